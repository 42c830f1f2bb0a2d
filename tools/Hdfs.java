import java.io.File;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hdfs.MiniDFSCluster;

/** Hdfs DIR PORT DATANODES: a NameNode at that port and DataNodes, all on loopback; what is in DIR stays. */
public final class Hdfs {
    private Hdfs() {
    }

    public static void main(String[] said) throws Exception {
        File directory = new File(said[0]);
        Configuration configuration = new Configuration();
        configuration.set(MiniDFSCluster.HDFS_MINIDFS_BASEDIR, directory.getPath());
        configuration.setBoolean("dfs.permissions.enabled", false);
        configuration.setInt("dfs.replication", 1);
        configuration.set("dfs.namenode.http-bind-host", "127.0.0.1");
        MiniDFSCluster cluster = new MiniDFSCluster.Builder(configuration, directory)
                .nameNodePort(Integer.parseInt(said[1]))
                .numDataNodes(Integer.parseInt(said[2]))
                .format(!new File(directory, "name-0-1").exists())
                .manageNameDfsDirs(true)
                .manageDataDfsDirs(true)
                .build();
        cluster.waitActive();
        System.out.println("up " + cluster.getURI());
        Thread.currentThread().join();
    }
}
