package viewkeeper.push;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.LocatedFileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RemoteIterator;
import org.apache.hadoop.hbase.HBaseConfiguration;
import org.apache.hadoop.hbase.ServerMetrics;
import org.apache.hadoop.hbase.TableName;
import org.apache.hadoop.hbase.client.Admin;
import org.apache.hadoop.hbase.client.Connection;
import org.apache.hadoop.hbase.client.ConnectionFactory;
import org.apache.hadoop.hbase.replication.ReplicationLoadSource;
import org.apache.hadoop.hbase.replication.ReplicationPeerConfig;
import org.apache.hadoop.hbase.replication.ReplicationPeerConfigBuilder;
import org.apache.hadoop.hbase.replication.ReplicationPeerDescription;
import org.apache.hadoop.hbase.util.CommonFSUtils;
import org.apache.hadoop.hbase.zookeeper.ZKWatcher;

/**
 * What Thrift has no calls for. Run with HBase's own class path and settings.
 *
 * <pre>
 *   enable PEER [namespace=NAME | table=NAMESPACE:NAME | KEY=VALUE]...   adds the peer, or changes it to this;
 *                        the secret is the first line of standard input
 *   disable PEER         HBase keeps the WALs from now on, and sends nothing
 *   remove PEER          HBase forgets it, and all that was not sent
 *   status PEER          lines: "peer enabled|disabled|absent", "config KEY VALUE", "live SERVER",
 *                        "queue SERVER ID WAL POSITION LENGTH", "lag SERVER MILLISECONDS", "epoch ID"
 * </pre>
 */
public final class PushAdmin {
    private PushAdmin() {
    }

    public static void main(String[] arguments) throws Exception {
        Configuration configuration = HBaseConfiguration.create();
        configuration.setInt("hbase.client.retries.number", 3);
        configuration.setInt("zookeeper.recovery.retry", 1);
        try (Connection hbase = ConnectionFactory.createConnection(configuration); Admin admin = hbase.getAdmin()) {
            String peer = arguments[1];
            switch (arguments[0]) {
                case "enable":
                    enable(admin, peer, Arrays.asList(arguments).subList(2, arguments.length));
                    break;
                case "disable":
                    admin.disableReplicationPeer(peer);
                    break;
                case "remove":
                    admin.removeReplicationPeer(peer);
                    break;
                case "status":
                    status(admin, configuration, peer);
                    break;
                default:
                    throw new IllegalArgumentException(arguments[0]);
            }
        }
    }

    private static void enable(Admin admin, String peer, List<String> said) throws IOException {
        String secret = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8)).readLine();
        Set<String> namespaces = new HashSet<>();
        Map<TableName, List<String>> tables = new HashMap<>();
        ReplicationPeerConfigBuilder builder = ReplicationPeerConfig.newBuilder()
                .setReplicationEndpointImpl(PushEndpoint.class.getName())
                .setReplicateAllUserTables(false);
        for (String one : said) {
            int equals = one.indexOf('=');
            String key = one.substring(0, equals);
            String value = one.substring(equals + 1);
            if (key.equals("namespace")) {
                namespaces.add(value);
            } else if (key.equals("table")) {
                tables.put(TableName.valueOf(value), null);
            } else {
                builder.putConfiguration(key, value);
            }
        }
        if (secret != null && !secret.isEmpty()) {
            builder.putConfiguration(Settings.PREFIX + "secret", secret);
        }
        ReplicationPeerConfig config = builder.setNamespaces(namespaces).setTableCFsMap(tables).build();
        ReplicationPeerDescription known = find(admin, peer);
        if (known == null) {
            admin.addReplicationPeer(peer, config, true);
            return;
        }
        if (!PushEndpoint.class.getName().equals(known.getPeerConfig().getReplicationEndpointImpl())) {
            throw new IOException("the peer " + peer + " is somebody else's");
        }
        admin.updateReplicationPeerConfig(peer, config);
        if (!known.isEnabled()) {
            admin.enableReplicationPeer(peer);
        }
    }

    private static ReplicationPeerDescription find(Admin admin, String peer) throws IOException {
        for (ReplicationPeerDescription one : admin.listReplicationPeers()) {
            if (one.getPeerId().equals(peer)) {
                return one;
            }
        }
        return null;
    }

    private static void status(Admin admin, Configuration configuration, String peer) throws IOException {
        ReplicationPeerDescription known = find(admin, peer);
        System.out.println("peer " + (known == null ? "absent" : known.isEnabled() ? "enabled" : "disabled"));
        if (known == null) {
            return;
        }
        ReplicationPeerConfig config = known.getPeerConfig();
        config.getConfiguration().forEach((key, value) -> {
            if (key.startsWith(Settings.PREFIX) && !key.equals(Settings.PREFIX + "secret")) {
                System.out.println("config " + key + " " + value);
            }
        });
        Collection<String> namespaces = config.getNamespaces();
        if (namespaces != null) {
            namespaces.forEach(name -> System.out.println("namespace " + name));
        }
        if (config.getTableCFsMap() != null) {
            config.getTableCFsMap().keySet().forEach(table -> System.out.println("table " + table));
        }
        for (ServerMetrics server : admin.getClusterMetrics().getLiveServerMetrics().values()) {
            for (ReplicationLoadSource source : server.getReplicationLoadSourceList()) {
                if (source.getPeerID().equals(peer)) {
                    System.out.println("lag " + server.getServerName() + " " + source.getReplicationLag());
                }
            }
        }
        try (ZKWatcher zookeeper = new ZKWatcher(configuration, "viewkeeper", null)) {
            Queues queues = new Queues(zookeeper, configuration, peer);
            System.out.println("epoch " + queues.epoch());
            StringBuilder listed = new StringBuilder();
            queues.list(false, listed);
            Map<String, Long> lengths = null;
            for (String line : listed.toString().split("\n")) {
                if (line.startsWith("queue ")) {
                    lengths = lengths == null ? lengths(configuration) : lengths;
                    System.out.println(line + " " + lengths.getOrDefault(line.split(" ")[3], -1L));
                } else {
                    System.out.println(line);
                }
            }
        }
    }

    /** Of all WAL files, those that are kept for replication only, too. */
    private static Map<String, Long> lengths(Configuration configuration) throws IOException {
        Path root = CommonFSUtils.getWALRootDir(configuration);
        FileSystem files = root.getFileSystem(configuration);
        Map<String, Long> lengths = new HashMap<>();
        List<String> places = new ArrayList<>(Arrays.asList("WALs", "oldWALs"));
        for (String place : places) {
            Path path = new Path(root, place);
            if (files.exists(path)) {
                RemoteIterator<LocatedFileStatus> found = files.listFiles(path, true);
                while (found.hasNext()) {
                    FileStatus file = found.next();
                    lengths.put(file.getPath().getName(), file.getLen());
                }
            }
        }
        return lengths;
    }
}
