package viewkeeper.push;

import java.io.BufferedInputStream;
import java.io.BufferedOutputStream;
import java.io.ByteArrayOutputStream;
import java.io.Closeable;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.FileInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.net.InetSocketAddress;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.security.GeneralSecurityException;
import java.security.KeyStore;
import java.security.MessageDigest;
import java.security.SecureRandom;
import java.security.cert.Certificate;
import java.security.cert.CertificateFactory;
import java.util.Arrays;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLParameters;
import javax.net.ssl.SSLSocket;
import javax.net.ssl.TrustManagerFactory;

/**
 * A connection to a receiver: both sides prove that they know the secret, then every frame carries a code.
 *
 * <pre>
 *   receiver     r: 16 random bytes
 *   endpoint     "VKP1", e: 16 random bytes, n: 2 bytes, n bytes of text "role server peer epoch" (one a line),
 *                HMAC(secret, "E" r e text)
 *   receiver     HMAC(secret, "R" r e)
 *   frame        length: 4 bytes, body, first 16 bytes of HMAC(key, side number body)
 * </pre>
 *
 * HMAC is SHA-256, key is HMAC(secret, "S" r e), side is "E" or "R", number (8 bytes) counts each side's frames from 0.
 * `receiving.py` and `wire.py` are the other side.
 */
final class Wire implements Closeable {
    static final int LARGEST = 1 << 20;
    /** Bytes of a frame that is sent; a frame that comes is never larger than LARGEST. */
    static final int FULL = 4 << 20;

    private static final byte[] MAGIC = "VKP1".getBytes(StandardCharsets.US_ASCII);
    private static final int CODE = 16;

    private final Socket socket;
    private final DataInputStream in;
    private final DataOutputStream out;
    private final Mac code;
    private long sent;
    private long received;

    private Wire(Socket socket, Settings settings, String role, String server, String epoch)
            throws IOException, GeneralSecurityException {
        this.socket = socket;
        in = new DataInputStream(new BufferedInputStream(socket.getInputStream(), 1 << 16));
        out = new DataOutputStream(new BufferedOutputStream(socket.getOutputStream(), 1 << 16));
        byte[] theirs = new byte[16];
        in.readFully(theirs);
        byte[] ours = new byte[16];
        new SecureRandom().nextBytes(ours);
        byte[] text = String.join("\n", role, server, settings.peer, epoch).getBytes(StandardCharsets.UTF_8);
        out.write(MAGIC);
        out.write(ours);
        out.writeShort(text.length);
        out.write(text);
        out.write(hmac(settings.secret, "E", theirs, ours, text));
        out.flush();
        byte[] proof = new byte[32];
        in.readFully(proof);
        if (!MessageDigest.isEqual(proof, hmac(settings.secret, "R", theirs, ours))) {
            throw new IOException("whoever listens there does not know the secret");
        }
        code = Mac.getInstance("HmacSHA256");
        code.init(new SecretKeySpec(hmac(settings.secret, "S", theirs, ours), "HmacSHA256"));
    }

    static Wire connect(Settings settings, InetSocketAddress receiver, String role, String server, String epoch)
            throws IOException {
        Socket socket = new Socket();
        try {
            socket.setTcpNoDelay(true);
            socket.setKeepAlive(true);
            socket.setSoTimeout(settings.timeout);
            socket.connect(new InetSocketAddress(receiver.getHostString(), receiver.getPort()), 5_000);
            if (settings.ca != null) {
                socket = secured(socket, settings.ca, receiver);
            }
            return new Wire(socket, settings, role, server, epoch);
        } catch (GeneralSecurityException error) {
            socket.close();
            throw new IOException(error);
        } catch (IOException | RuntimeException error) {
            socket.close();
            throw error;
        }
    }

    synchronized void send(byte[] body, int length) throws IOException {
        out.writeInt(length);
        out.write(body, 0, length);
        out.write(codeOf('E', sent++, body, length), 0, CODE);
        out.flush();
    }

    byte[] receive() throws IOException {
        int length = in.readInt();
        if (length < 1 || length > LARGEST) {
            throw new IOException("a frame of " + length + " bytes");
        }
        byte[] body = new byte[length];
        in.readFully(body);
        byte[] claimed = new byte[CODE];
        in.readFully(claimed);
        if (!MessageDigest.isEqual(claimed, Arrays.copyOf(codeOf('R', received++, body, length), CODE))) {
            throw new IOException("a frame whose code is wrong");
        }
        return body;
    }

    /** Wait for a frame without end: for those who are asked. */
    void patient() throws IOException {
        socket.setSoTimeout(0);
    }

    boolean isClosed() {
        return socket.isClosed();
    }

    @Override
    public void close() {
        try {
            socket.close();
        } catch (IOException ignored) {
            // it is of no use any more
        }
    }

    private byte[] codeOf(char side, long number, byte[] body, int length) {
        synchronized (code) {
            code.update((byte) side);
            code.update(ByteBuffer.allocate(8).putLong(number).array());
            code.update(body, 0, length);
            return code.doFinal();
        }
    }

    private static byte[] hmac(byte[] secret, String what, byte[]... parts) throws GeneralSecurityException {
        Mac mac = Mac.getInstance("HmacSHA256");
        mac.init(new SecretKeySpec(secret, "HmacSHA256"));
        mac.update(what.getBytes(StandardCharsets.US_ASCII));
        for (byte[] part : parts) {
            mac.update(part);
        }
        return mac.doFinal();
    }

    private static Socket secured(Socket plain, String ca, InetSocketAddress receiver)
            throws IOException, GeneralSecurityException {
        KeyStore trusted = KeyStore.getInstance(KeyStore.getDefaultType());
        trusted.load(null, null);
        try (InputStream file = new FileInputStream(ca)) {
            int number = 0;
            for (Certificate one : CertificateFactory.getInstance("X.509").generateCertificates(file)) {
                trusted.setCertificateEntry("ca" + number++, one);
            }
        }
        TrustManagerFactory managers = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        managers.init(trusted);
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(null, managers.getTrustManagers(), null);
        SSLSocket socket = (SSLSocket) context.getSocketFactory()
                .createSocket(plain, receiver.getHostString(), receiver.getPort(), true);
        SSLParameters parameters = socket.getSSLParameters();
        parameters.setEndpointIdentificationAlgorithm("HTTPS"); // the name in the certificate is the receiver's
        socket.setSSLParameters(parameters);
        socket.startHandshake();
        return socket;
    }
}
