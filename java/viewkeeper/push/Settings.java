package viewkeeper.push;

import java.io.IOException;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * What the peer's configuration says.
 *
 * <pre>
 *   viewkeeper.push.receivers     host:port,host:port: the first that takes a frame gets it
 *   viewkeeper.push.secret        what both sides know; or
 *   viewkeeper.push.secret.file   a file on every region server that holds it
 *   viewkeeper.push.ca            a file on every region server: TLS, and whose certificates are believed
 *   viewkeeper.push.pause         milliseconds at most between two looks at a WAL without news
 *   viewkeeper.push.timeout       milliseconds that a receiver may take
 * </pre>
 */
final class Settings {
    static final String PREFIX = "viewkeeper.push.";

    private final Map<String, String> said;
    final String peer;
    final List<InetSocketAddress> receivers;
    final byte[] secret;
    final String ca;
    final int pause;
    final int timeout;

    /** Several sources of a peer hear of the same change. */
    @Override
    public boolean equals(Object other) {
        return other instanceof Settings && ((Settings) other).said.equals(said);
    }

    @Override
    public int hashCode() {
        return said.hashCode();
    }

    Settings(String peer, Map<String, String> configuration) throws IOException {
        this.peer = peer;
        said = new HashMap<>(configuration);
        receivers = new ArrayList<>();
        for (String one : configuration.getOrDefault(PREFIX + "receivers", "").split(",")) {
            int colon = one.lastIndexOf(':');
            if (colon > 0) {
                receivers.add(InetSocketAddress.createUnresolved(
                        one.substring(0, colon).trim(), Integer.parseInt(one.substring(colon + 1).trim())));
            }
        }
        if (receivers.isEmpty()) {
            throw new IOException("the peer " + peer + " has no " + PREFIX + "receivers");
        }
        String file = configuration.get(PREFIX + "secret.file");
        String said = file == null ? configuration.getOrDefault(PREFIX + "secret", "")
                : new String(Files.readAllBytes(Paths.get(file)), StandardCharsets.UTF_8);
        secret = said.trim().getBytes(StandardCharsets.UTF_8);
        if (secret.length < 16) {
            throw new IOException("the peer " + peer + " has no secret of 16 bytes or more");
        }
        ca = configuration.get(PREFIX + "ca");
        pause = Integer.parseInt(configuration.getOrDefault(PREFIX + "pause", "50"));
        timeout = Integer.parseInt(configuration.getOrDefault(PREFIX + "timeout", "20000"));
    }
}
