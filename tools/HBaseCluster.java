import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.hbase.HBaseConfiguration;
import org.apache.hadoop.hbase.HRegionLocation;
import org.apache.hadoop.hbase.KeyValue;
import org.apache.hadoop.hbase.ServerName;
import org.apache.hadoop.hbase.TableName;
import org.apache.hadoop.hbase.client.Admin;
import org.apache.hadoop.hbase.client.Connection;
import org.apache.hadoop.hbase.client.ConnectionFactory;
import org.apache.hadoop.hbase.io.hfile.CacheConfig;
import org.apache.hadoop.hbase.io.hfile.HFile;
import org.apache.hadoop.hbase.io.hfile.HFileContextBuilder;
import org.apache.hadoop.hbase.tool.BulkLoadHFiles;
import org.apache.hadoop.hbase.util.Bytes;

/**
 * What an administrator does and Thrift has no calls for, one after another with "then" between. Keys and values are in
 * hexadecimal digits.
 *
 * <pre>
 *   regions TABLE                     "SERVER START" of each region, its start key in hexadecimal digits
 *   move TABLE                        each region to another live server
 *   split TABLE KEY                   at a row key
 *   flush [TABLE]                     to files; all tables if none is named
 *   compact TABLE                     a major compaction, until it is done
 *   roll                              every region server begins another WAL
 *   load TABLE DIR                    HFiles from lines "KEY FAMILY:COLUMN TIME VALUE" of standard input, sorted by key,
 *                                     bulk-loaded
 * </pre>
 */
public final class HBaseCluster {
    private HBaseCluster() {
    }

    public static void main(String[] said) throws Exception {
        Configuration configuration = HBaseConfiguration.create();
        try (Connection hbase = ConnectionFactory.createConnection(configuration); Admin admin = hbase.getAdmin()) {
            for (String one : String.join(" ", said).split(" then ")) {
                perform(configuration, hbase, admin, one.split(" "));
            }
        }
    }

    private static void perform(Configuration configuration, Connection hbase, Admin admin, String[] said)
            throws Exception {
        TableName table = said.length > 1 ? TableName.valueOf(said[1]) : null;
        switch (said[0]) {
            case "regions":
                for (HRegionLocation one : hbase.getRegionLocator(table).getAllRegionLocations()) {
                    System.out.println(one.getServerName() + " " + Bytes.toHex(one.getRegion().getStartKey()));
                }
                break;
            case "move":
                move(hbase, admin, table);
                break;
            case "split":
                admin.splitRegionAsync(hbase.getRegionLocator(table)
                        .getRegionLocation(Bytes.fromHex(said[2]), true).getRegion().getRegionName(),
                        Bytes.fromHex(said[2])).get();
                break;
            case "flush":
                for (TableName one : table == null ? admin.listTableNames() : new TableName[] {table}) {
                    admin.flush(one);
                }
                break;
            case "compact":
                admin.flush(table);
                admin.majorCompact(table);
                do {
                    Thread.sleep(300);
                } while (!admin.getCompactionState(table).name().equals("NONE"));
                break;
            case "roll":
                for (ServerName server : admin.getRegionServers()) {
                    admin.rollWALWriter(server);
                }
                break;
            case "load":
                load(configuration, table, new Path(said[2]));
                break;
            default:
                throw new IllegalArgumentException(said[0]);
        }
    }

    private static void move(Connection hbase, Admin admin, TableName table) throws IOException {
        List<ServerName> servers = new ArrayList<>(admin.getRegionServers());
        for (HRegionLocation one : hbase.getRegionLocator(table).getAllRegionLocations()) {
            int next = (servers.indexOf(one.getServerName()) + 1) % servers.size();
            admin.move(one.getRegion().getEncodedNameAsBytes(), servers.get(next));
            System.out.println(one.getServerName() + " " + servers.get(next));
        }
    }

    private static void load(Configuration configuration, TableName table, Path directory) throws IOException {
        FileSystem files = directory.getFileSystem(configuration);
        Map<String, List<String[]>> families = new java.io.BufferedReader(new java.io.InputStreamReader(System.in))
                .lines().map(line -> line.split(" ", -1))
                .collect(Collectors.groupingBy(words -> words[1].substring(0, words[1].indexOf(':'))));
        for (Map.Entry<String, List<String[]>> family : families.entrySet()) {
            Path file = new Path(new Path(directory, family.getKey()), "cells");
            try (HFile.Writer out = HFile.getWriterFactory(configuration, new CacheConfig(configuration))
                    .withPath(files, file).withFileContext(new HFileContextBuilder().build()).create()) {
                for (String[] words : family.getValue()) {
                    out.append(new KeyValue(Bytes.fromHex(words[0]), Bytes.toBytes(family.getKey()),
                            Bytes.toBytes(words[1].substring(words[1].indexOf(':') + 1)),
                            Long.parseLong(words[2]), Bytes.fromHex(words[3])));
                }
            }
        }
        System.out.println(Arrays.toString(BulkLoadHFiles.create(configuration).bulkLoad(table, directory)
                .keySet().toArray()));
    }
}
