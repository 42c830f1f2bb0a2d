package viewkeeper.push;

import java.io.IOException;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hbase.regionserver.HRegion;
import org.apache.hadoop.hbase.regionserver.Region;
import org.apache.hadoop.hbase.regionserver.RegionServerServices;
import org.apache.hadoop.hbase.replication.BaseReplicationEndpoint;
import org.apache.hadoop.hbase.replication.ReplicationPeerConfig;
import org.apache.hadoop.hbase.replication.WALEntryFilter;
import org.apache.hadoop.hbase.wal.WAL;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Runs in each region server, in HBase's replication threads. Tells a receiver which rows the WAL's entries touched, and
 * lets HBase forget the entries only when the receiver has said that it has them: HBase keeps WAL files and positions
 * until then, over crashes of either.
 *
 * <p>An entry is in the WAL before readers can see it. It is sent when they can (the region's read point has passed it),
 * so that whoever is told of a row can read it.
 */
public class PushEndpoint extends BaseReplicationEndpoint {
    private static final Logger LOG = LoggerFactory.getLogger(PushEndpoint.class);
    private static final long VISIBLE_WITHIN = 60_000;
    private static final long AGAIN = 60_000;
    private static final int FIRST = 1;
    private static final int ALWAYS = 10;

    private final ConcurrentHashMap<Thread, Wire> wires = new ConcurrentHashMap<>();
    private volatile Settings settings;
    private RegionServerServices server;
    private volatile Control control;
    private volatile boolean stopping;
    private volatile int preferred;
    private volatile String told = "";
    private volatile long toldAt;

    @Override
    public void init(Context context) throws IOException {
        super.init(context);
        settings = new Settings(context.getPeerId(), context.getPeerConfig().getConfiguration());
        if (!(context.getAbortable() instanceof RegionServerServices)) {
            throw new IOException("not in a region server");
        }
        server = (RegionServerServices) context.getAbortable();
        // This source's own copy of the settings, read again when its WAL reader is made: how long it sleeps when there
        // is nothing new. HBase's defaults (1 s, and longer each time) would be the latency. Where it sleeps longer each
        // time in which it finds nothing, it begins with two milliseconds, and an idle WAL is seldom looked at.
        Configuration own = context.getLocalConfiguration();
        int first = slowsDown() ? Math.min(FIRST, settings.pause) : Math.min(ALWAYS, settings.pause);
        own.setLong("replication.source.sleepforretries", first);
        own.setInt("replication.source.maxretriesmultiplier", slowsDown() ? settings.pause / first : 1);
    }

    /** Whether HBase's reader of WALs sleeps longer each time (2.6), or always the same (2.4, 2.5). */
    private static boolean slowsDown() {
        try {
            Class.forName("org.apache.hadoop.hbase.replication.regionserver.WALEntryStream$HasNext");
            return true;
        } catch (ClassNotFoundException error) {
            return false;
        }
    }

    /** Other receivers, or another secret. */
    @Override
    public synchronized void peerConfigUpdated(ReplicationPeerConfig changed) {
        try {
            settings = new Settings(settings.peer, changed.getConfiguration());
        } catch (IOException error) {
            LOG.error("the changed peer {} stays as it was: {}", settings.peer, error.toString());
            return;
        }
        if (control != null) {
            control.follow(settings);
        }
        wires.values().forEach(Wire::close); // whoever uses one connects again
    }

    /** Not this cluster's, or HBase would drop entries as its own. */
    @Override
    public UUID getPeerUUID() {
        return UUID.nameUUIDFromBytes(("viewkeeper " + settings.peer).getBytes(StandardCharsets.UTF_8));
    }

    /** Every column family, whatever its REPLICATION_SCOPE: no table need be altered. */
    @Override
    protected WALEntryFilter getScopeWALEntryFilter() {
        return null;
    }

    /** Called by HBase's WAL reader for each entry, before it looks for the next. */
    @Override
    public WALEntryFilter getWALEntryfilter() {
        WALEntryFilter ours = super.getWALEntryfilter();
        return entry -> {
            WAL.Entry left = ours == null ? entry : ours.filter(entry);
            if (left != null) {
                control.gathering.gather();
            }
            return left;
        };
    }

    @Override
    public boolean canReplicateToSameCluster() {
        return true;
    }

    @Override
    public boolean replicate(ReplicateContext context) {
        try {
            Touched touched = new Touched();
            List<WAL.Entry> entries = context.getEntries();
            for (int at = 0; at < entries.size(); at++) {
                WAL.Entry entry = entries.get(at);
                if (control.wants(entry.getKey().getTableName().getNameAsString()) && touched.add(entry)) {
                    awaitVisible(entry);
                    if (touched.size() >= Wire.FULL) {
                        send(touched);
                        touched = new Touched();
                    }
                }
            }
            if (touched.size() > 0) {
                send(touched);
            }
            control.shipped();
            return true;
        } catch (IOException error) {
            tell(context.getEntries().size(), error.toString());
            pause(1_000); // HBase tries again, and at once
            return false;
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            return false;
        }
    }

    /** Once a minute while it is the same: a receiver may be away for a day. */
    private void tell(int entries, String why) {
        long now = System.currentTimeMillis();
        if (!why.equals(told) || now - toldAt > AGAIN) {
            told = why;
            toldAt = now;
            LOG.warn("{} entries of peer {} were not taken, and are tried again: {}", entries, settings.peer, why);
        }
    }

    private void send(Touched touched) throws IOException {
        byte[] body = touched.body();
        control.gathering.sends(touched.rows());
        IOException last = null;
        for (int tried = 0; tried < settings.receivers.size(); tried++) {
            try {
                Wire wire = wires.get(Thread.currentThread());
                if (wire == null) {
                    InetSocketAddress receiver = settings.receivers.get(preferred % settings.receivers.size());
                    wire = Wire.connect(settings, receiver, "data", server.getServerName().getServerName(),
                            control.epoch());
                    wires.put(Thread.currentThread(), wire);
                }
                wire.send(body, body.length);
                byte[] answer = wire.receive();
                if (answer[0] != 'A') {
                    throw new IOException("refused: " + new String(answer, 1, answer.length - 1,
                            StandardCharsets.UTF_8));
                }
                return;
            } catch (IOException error) {
                last = error;
                Wire wire = wires.remove(Thread.currentThread());
                if (wire != null) {
                    wire.close();
                }
                preferred++;
            }
        }
        throw last;
    }

    /** Until readers can see the entry. A region that is not here any more was closed: all that it had can be seen. */
    private void awaitVisible(WAL.Entry entry) throws InterruptedException, IOException {
        String name = new String(entry.getKey().getEncodedRegionName(), StandardCharsets.UTF_8);
        long sequence = entry.getKey().getSequenceId();
        long until = System.currentTimeMillis() + VISIBLE_WITHIN;
        while (!stopping) {
            Region region = server.getRegion(name);
            if (!(region instanceof HRegion) || ((HRegion) region).getMVCC().getReadPoint() >= sequence) {
                return;
            }
            if (System.currentTimeMillis() > until) {
                throw new IOException("entry " + sequence + " of region " + name + " cannot be seen yet");
            }
            Thread.sleep(1);
        }
        throw new IOException("stopping");
    }

    private void pause(long milliseconds) {
        try {
            Thread.sleep(milliseconds);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
    }

    @Override
    public void start() {
        startAsync();
    }

    @Override
    public void stop() {
        stopAsync();
    }

    @Override
    protected void doStart() {
        control = Control.of(server, ctx.getFilesystem(), settings);
        notifyStarted();
    }

    @Override
    protected void doStop() {
        stopping = true;
        control.release();
        for (Wire wire : wires.values()) {
            wire.close();
        }
        notifyStopped();
    }
}
