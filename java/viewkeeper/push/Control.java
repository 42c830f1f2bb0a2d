package viewkeeper.push;

import java.io.IOException;
import java.io.InputStream;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.OptionalLong;
import java.util.Set;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.hbase.regionserver.RegionServerServices;
import org.apache.hadoop.hbase.regionserver.wal.AbstractFSWAL;
import org.apache.hadoop.hbase.util.CommonFSUtils;
import org.apache.hadoop.hbase.util.EnvironmentEdgeManager;
import org.apache.hadoop.hbase.wal.AbstractFSWALProvider;
import org.apache.hadoop.hbase.wal.WAL;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Answers what a receiver asks of a region server: one for all sources of a peer there (claimed queues are sources, too).
 *
 * <pre>
 *   'M' number, then names of tables that are not wanted, one a line; none: as before
 *       'M' number, then "clock milliseconds", and for each WAL "name length": what has been acknowledged to writers up
 *       to that time is in its first bytes
 *   'W' number, then milliseconds, and "name length" for each WAL of an 'M'
 *       'W' number, then "queue server id wal position" for each WAL of this server's own queue, when all of the given
 *       bytes are shipped, or the time is over
 *   'Q' number, then "others" if those of 'W' need not be among them
 *       'Q' number, then "live server" for each, "queue server id wal position" for each WAL of the peer's queues
 *   'L' number
 *       'L' number, then "lost server queue wal" for each WAL of these whose file is gone: HBase waits for it for ever
 *   each can be answered by a line "error ..." instead
 * </pre>
 *
 * A list of unwanted tables is safe where one of wanted ones is not: a table that nobody has spoken of yet is sent.
 */
final class Control {
    private static final Logger LOG = LoggerFactory.getLogger(Control.class);
    private static final long MOST_WAITED = 1_000;
    private static final Map<String, Control> KNOWN = new HashMap<>();

    private final RegionServerServices server;
    private final FileSystem files;
    private volatile Settings settings;
    private final Queues queues;
    private final Map<String, Long> headers = new HashMap<>();
    private final List<Wire> wires = new ArrayList<>();
    final Gathering gathering = new Gathering();
    private volatile Set<String> unwanted = new HashSet<>();
    private volatile boolean stopped;
    private int users;

    static Control of(RegionServerServices server, FileSystem files, Settings settings) {
        String name = server.getServerName() + " " + settings.peer;
        synchronized (KNOWN) {
            Control known = KNOWN.get(name);
            if (known == null) {
                known = new Control(server, files, settings);
                KNOWN.put(name, known);
                known.start();
            }
            known.users++;
            return known;
        }
    }

    private Control(RegionServerServices server, FileSystem files, Settings settings) {
        this.server = server;
        this.files = files;
        this.settings = settings;
        queues = new Queues(server.getZooKeeper(), server.getConfiguration(), settings.peer);
    }

    void release() {
        synchronized (KNOWN) {
            if (--users > 0) {
                return;
            }
            KNOWN.values().remove(this);
        }
        stopped = true;
        synchronized (wires) {
            wires.forEach(Wire::close);
        }
    }

    /** Other receivers, or another secret: whoever serves the old ones ends, and the new ones are served. */
    synchronized void follow(Settings changed) {
        if (stopped || changed.equals(settings)) {
            return;
        }
        settings = changed;
        synchronized (wires) {
            wires.forEach(Wire::close);
        }
        start();
    }

    void shipped() {
        queues.shipped();
    }

    boolean wants(String table) {
        return !unwanted.contains(table);
    }

    /** Names this life of the peer: another one if it was removed and added again, and entries between were lost. */
    String epoch() throws IOException {
        return queues.epoch();
    }

    private void start() {
        Settings now = settings;
        for (InetSocketAddress receiver : now.receivers) {
            Thread thread = new Thread(() -> serve(now, receiver), "viewkeeper-push-" + now.peer + "-" + receiver);
            thread.setDaemon(true);
            thread.start();
        }
    }

    private void serve(Settings served, InetSocketAddress receiver) {
        String told = "";
        while (!stopped && served == settings && !server.isStopped()) {
            try (Wire wire = Wire.connect(served, receiver, "control", server.getServerName().getServerName(),
                    epoch())) {
                synchronized (wires) {
                    wires.add(wire);
                }
                told = "";
                wire.patient();
                while (!stopped && served == settings) {
                    byte[] answer = answer(wire.receive());
                    wire.send(answer, answer.length);
                }
            } catch (IOException | RuntimeException error) {
                if (!stopped && !told.equals(error.toString())) {
                    told = error.toString();
                    LOG.info("receiver {} of peer {}: {}", receiver, settings.peer, told);
                }
            }
            synchronized (wires) {
                wires.removeIf(wire -> stopped || wire.isClosed());
            }
            try {
                Thread.sleep(250);
            } catch (InterruptedException error) {
                return;
            }
        }
    }

    private byte[] answer(byte[] question) {
        String[] lines = new String(question, StandardCharsets.UTF_8).split("\n");
        StringBuilder answer = new StringBuilder();
        try {
            if (lines[0].startsWith("M ")) {
                if (lines.length > 1) {
                    unwanted = new HashSet<>(Arrays.asList(lines).subList(1, lines.length));
                }
                // Before the lengths: what has been acknowledged up to this time is in them.
                answer.append("clock ").append(EnvironmentEdgeManager.currentTime()).append('\n');
                marks().forEach((wal, length) -> answer.append(wal).append(' ').append(length).append('\n'));
            } else if (lines[0].startsWith("W ")) {
                long milliseconds = Math.min(MOST_WAITED, Long.parseLong(lines[1]));
                gathering.asks();
                try {
                    queues.await(server.getServerName(), lengths(lines), milliseconds, answer);
                } finally {
                    gathering.answered();
                }
            } else if (lines[0].startsWith("Q ")) {
                queues.list(lines.length > 1, answer);
            } else if (lines[0].startsWith("L ")) {
                Path root = CommonFSUtils.getWALRootDir(server.getConfiguration());
                queues.lost(files, root, answer);
            } else {
                throw new IOException("no such question");
            }
        } catch (IOException | RuntimeException error) {
            answer.setLength(0);
            answer.append("error ").append(error.toString().replace('\n', ' ')).append('\n');
        }
        return (lines[0] + "\n" + answer).getBytes(StandardCharsets.UTF_8);
    }

    private static Map<String, Long> lengths(String[] lines) {
        Map<String, Long> found = new HashMap<>();
        for (String line : Arrays.asList(lines).subList(2, lines.length)) {
            int space = line.lastIndexOf(' ');
            found.put(line.substring(0, space), Long.parseLong(line.substring(space + 1)));
        }
        return found;
    }

    private Map<String, Long> marks() throws IOException {
        Map<String, Long> marks = new HashMap<>();
        for (WAL wal : server.getWALs()) {
            if (!(wal instanceof AbstractFSWAL)) {
                throw new IOException("a WAL that is no file: " + wal.getClass());
            }
            OptionalLong length = OptionalLong.empty();
            Path path = null;
            for (int tried = 0; tried < 100 && !length.isPresent(); tried++) { // it may be rolled just now
                path = ((AbstractFSWAL<?>) wal).getCurrentFileName();
                length = wal.getLogFileSizeIfBeingWritten(path);
            }
            if (!AbstractFSWALProvider.isMetaFile(path)) {
                long found = length.orElseThrow(() -> new IOException("a WAL that is being rolled all the time"));
                marks.put(path.getName(), found <= header(path, found) ? 0 : found);
            }
        }
        return marks;
    }

    /** Where a WAL's entries begin: HBase notes no position for a WAL in which it has read none. */
    private long header(Path path, long length) {
        if (length == 0 || length > 4096) {
            return 0;
        }
        Long known = headers.get(path.getName());
        if (known != null) {
            return known;
        }
        try (InputStream in = files.open(path)) {
            for (int at = 0; at < 4; at++) {
                if (in.read() < 0) {
                    return length; // not even that is there
                }
            }
            long size = 0;
            int bytes = 0;
            for (int shift = 0; shift < 35; shift += 7) {
                int next = in.read();
                if (next < 0) {
                    return length;
                }
                bytes++;
                size |= (long) (next & 0x7f) << shift;
                if (next < 0x80) {
                    break;
                }
            }
            headers.clear();
            headers.put(path.getName(), 4 + bytes + size);
            return 4 + bytes + size;
        } catch (IOException error) {
            LOG.debug("the header of {}", path, error);
            return 0;
        }
    }
}
