package viewkeeper.push;

import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.hbase.ServerName;
import org.apache.hadoop.hbase.replication.ReplicationException;
import org.apache.hadoop.hbase.replication.ReplicationQueueInfo;
import org.apache.hadoop.hbase.replication.ReplicationQueueStorage;
import org.apache.hadoop.hbase.replication.ReplicationStorageFactory;
import org.apache.hadoop.hbase.zookeeper.ZKUtil;
import org.apache.hadoop.hbase.zookeeper.ZKWatcher;
import org.apache.hadoop.hbase.zookeeper.ZNodePaths;
import org.apache.zookeeper.KeeperException;
import org.apache.zookeeper.data.Stat;

/**
 * The queues of a peer as ZooKeeper has them: for each server, dead ones too, the WALs that are not shipped whole.
 *
 * <p>A dead server's queue moves to the server that claims it in one step, which changes the version of the queues' root:
 * a listing during which that version stays the same has missed none. And after a listing in which every queue was a
 * live server's own, that is so for as long as version and live servers are the same: no other can have come.
 */
final class Queues {
    private static final long UNTOLD = 3;
    private static final long NOTED_WITHIN = 5_000_000;

    /** A listing that had no queue but those of the servers that lived, each its own. */
    private static final class Plain {
        final int version;
        final Set<String> live;

        Plain(int version, Set<String> live) {
            this.version = version;
            this.live = live;
        }
    }

    private final ZKWatcher zookeeper;
    private final ReplicationQueueStorage storage;
    private final String peer;
    private final String root;
    private final String peerNode;
    private final Object shipping = new Object();
    private volatile long shippedAt = System.nanoTime();
    private volatile Plain plain;

    Queues(ZKWatcher zookeeper, Configuration configuration, String peer) {
        this.zookeeper = zookeeper;
        this.peer = peer;
        storage = ReplicationStorageFactory.getReplicationQueueStorage(zookeeper, configuration);
        String replication = ZNodePaths.joinZNode(zookeeper.getZNodePaths().baseZNode,
                configuration.get("zookeeper.znode.replication", "replication"));
        root = ZNodePaths.joinZNode(replication, configuration.get("zookeeper.znode.replication.rs", "rs"));
        String peers = configuration.get("zookeeper.znode.replication.peers", "peers");
        peerNode = ZNodePaths.joinZNode(ZNodePaths.joinZNode(replication, peers), peer);
    }

    String epoch() throws IOException {
        try {
            Stat stat = zookeeper.getRecoverableZooKeeper().exists(peerNode, false);
            return stat == null ? "unknown" : Long.toHexString(stat.getCzxid());
        } catch (KeeperException error) {
            throw new IOException(error);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            throw new IOException(error);
        }
    }

    /** {@code briefly}: without the live servers' own queues if there are no others. */
    void list(boolean briefly, StringBuilder answer) throws IOException {
        try {
            Plain known = plain;
            if (briefly && known != null && known.version == version() && known.live.equals(live())) {
                tell(known.live, answer);
                return;
            }
            for (int tried = 0; tried < 20; tried++) {
                StringBuilder found = new StringBuilder();
                Set<String> owners = new TreeSet<>();
                int before = version();
                for (ServerName server : storage.getListOfReplicators()) {
                    for (String queue : storage.getAllQueues(server)) {
                        if (queue.equals(peer) || queue.startsWith(peer + "-")) {
                            owners.add(queue.equals(peer) ? server.toString() : queue);
                            for (String wal : storage.getWALsInQueue(server, queue)) {
                                found.append("queue ").append(server).append(' ').append(queue).append(' ').append(wal)
                                        .append(' ').append(storage.getWALPosition(server, queue, wal)).append('\n');
                            }
                        }
                    }
                }
                Set<String> live = live();
                if (before == version() && !live.isEmpty()) {
                    plain = live.containsAll(owners) ? new Plain(before, live) : null;
                    tell(live, found);
                    answer.append(found);
                    return;
                }
            }
            throw new IOException("the queues changed all the time");
        } catch (ReplicationException | KeeperException error) {
            throw new IOException(error);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            throw new IOException(error);
        }
    }

    private Set<String> live() throws KeeperException {
        List<String> found = ZKUtil.listChildrenNoWatch(zookeeper, zookeeper.getZNodePaths().rsZNode);
        return found == null ? new TreeSet<>() : new TreeSet<>(found);
    }

    private static void tell(Set<String> live, StringBuilder answer) {
        live.forEach(server -> answer.append("live ").append(server).append('\n'));
    }

    /** Something was taken: HBase is about to note how far it is. */
    void shipped() {
        synchronized (shipping) {
            shippedAt = System.nanoTime();
            shipping.notifyAll();
        }
    }

    /**
     * A server's own queue, once it is shipped up to these lengths, or after so long. A position is noted when what lies
     * before it was taken; a WAL that is whole leaves the queue.
     */
    void await(ServerName server, Map<String, Long> lengths, long milliseconds, StringBuilder answer)
            throws IOException {
        long until = System.nanoTime() + 1_000_000 * milliseconds;
        try {
            while (true) {
                StringBuilder found = new StringBuilder();
                boolean shipped = true;
                for (String wal : storage.getWALsInQueue(server, peer)) {
                    long position = storage.getWALPosition(server, peer, wal);
                    shipped &= position >= lengths.getOrDefault(wal, 0L);
                    found.append("queue ").append(server).append(' ').append(peer).append(' ').append(wal).append(' ')
                            .append(position).append('\n');
                }
                if (shipped || System.nanoTime() > until) {
                    answer.append(found);
                    return;
                }
                if (System.nanoTime() - shippedAt < NOTED_WITHIN) {
                    Thread.sleep(1);
                    continue;
                }
                synchronized (shipping) {
                    shipping.wait(UNTOLD); // what is not ours moves the position, too, and nobody says so
                }
            }
        } catch (ReplicationException error) {
            throw new IOException(error);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            throw new IOException(error);
        }
    }

    /** "lost server queue wal" for each WAL that waits in a queue and whose file is nowhere any more. */
    void lost(FileSystem files, Path root, StringBuilder answer) throws IOException {
        Set<String> lacking = new TreeSet<>();
        for (String line : waiting()) {
            String[] words = line.split(" ");
            if (!exists(files, root, words)) {
                lacking.add(line);
            }
        }
        if (!lacking.isEmpty()) {
            lacking.retainAll(waiting()); // what was shipped meanwhile may be forgotten
        }
        lacking.forEach(line -> answer.append("lost ").append(line).append('\n'));
    }

    private List<String> waiting() throws IOException {
        StringBuilder listed = new StringBuilder();
        list(false, listed);
        List<String> found = new ArrayList<>();
        for (String line : listed.toString().split("\n")) {
            if (line.startsWith("queue ")) {
                found.add(line.substring("queue ".length(), line.lastIndexOf(' ')));
            }
        }
        return found;
    }

    /** A WAL only ever moves from its server's directory to the one of those that are split, and on to the old ones. */
    private static boolean exists(FileSystem files, Path root, String[] queued) throws IOException {
        List<String> servers = new ArrayList<>();
        servers.add(queued[0]);
        new ReplicationQueueInfo(queued[1]).getDeadRegionServers().forEach(dead -> servers.add(dead.getServerName()));
        for (String place : new String[] {"WALs/%s/", "WALs/%s-splitting/", "oldWALs/", "oldWALs/%s/"}) {
            for (String server : servers) {
                if (files.exists(new Path(root, String.format(place, server) + queued[2]))) {
                    return true;
                }
            }
        }
        return false;
    }

    private int version() throws KeeperException, InterruptedException {
        Stat stat = zookeeper.getRecoverableZooKeeper().exists(root, false);
        return stat == null ? -1 : stat.getCversion();
    }
}
