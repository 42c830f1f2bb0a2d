package viewkeeper.push;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.hadoop.hbase.Cell;
import org.apache.hadoop.hbase.CellUtil;
import org.apache.hadoop.hbase.shaded.protobuf.generated.WALProtos.RegionEventDescriptor;
import org.apache.hadoop.hbase.wal.WAL;
import org.apache.hadoop.hbase.wal.WALEdit;

/**
 * Which rows some entries touched, and the oldest and newest time of the cells that did; no values.
 *
 * <pre>
 *   'D', then for each table (numbers little-endian):
 *     name        n: 2 bytes, n bytes
 *     kind        1 byte: 0 rows, 1 files were bulk-loaded, or a region is new: any row may have changed
 *     written     8 bytes: the newest entry's write time
 *     rows        n: 4 bytes; n oldest times, n newest times (8 bytes each), n + 1 offsets (4 bytes), the row keys
 * </pre>
 */
final class Touched {
    private static final int A_ROW = 20;
    /** The largest sequence number with which a region opens that has never been open. */
    private static final long FIRST = 2;

    private static final class Rows {
        final List<byte[]> keys = new ArrayList<>();
        final List<long[]> times = new ArrayList<>();
        long written;
        int bytes;
        boolean loaded;
    }

    private final Map<String, Rows> tables = new LinkedHashMap<>();
    private int size;
    private int count;

    int size() {
        return size;
    }

    int rows() {
        return count;
    }

    /** False if there is nothing in it that matters. */
    boolean add(WAL.Entry entry) throws IOException {
        Rows rows = null;
        byte[] last = null;
        for (Cell cell : entry.getEdit().getCells()) {
            boolean meta = CellUtil.matchingFamily(cell, WALEdit.METAFAMILY);
            if (meta && !CellUtil.matchingQualifier(cell, WALEdit.BULK_LOAD) && !isFresh(cell)) {
                continue; // flushes, compactions, regions that open and close
            }
            if (rows == null) {
                String table = entry.getKey().getTableName().getNameAsString();
                rows = tables.get(table);
                if (rows == null) {
                    rows = new Rows();
                    tables.put(table, rows);
                    size += 20 + table.length();
                }
                rows.written = Math.max(rows.written, entry.getKey().getWriteTime());
            }
            if (meta) {
                rows.loaded = true;
                continue;
            }
            long time = cell.getTimestamp();
            if (last != null && CellUtil.matchingRows(cell, last)) {
                long[] times = rows.times.get(rows.times.size() - 1);
                times[0] = Math.min(times[0], time);
                times[1] = Math.max(times[1], time);
                continue;
            }
            last = CellUtil.cloneRow(cell);
            rows.keys.add(last);
            rows.times.add(new long[] {time, time});
            rows.bytes += last.length;
            count++;
            size += A_ROW + last.length;
        }
        return rows != null;
    }

    /**
     * Whether a region opens for the first time, with nothing in it: of a table that is made, or emptied, which deletes no
     * row. One that moves or was split has been open, and has files unless it is empty.
     */
    private static boolean isFresh(Cell cell) throws IOException {
        RegionEventDescriptor event = WALEdit.getRegionEventDescriptor(cell);
        return event != null && event.getEventType() == RegionEventDescriptor.EventType.REGION_OPEN
                && event.getLogSequenceNumber() <= FIRST
                && event.getStoresList().stream().allMatch(store -> store.getStoreFileCount() == 0);
    }

    byte[] body() {
        int length = 1;
        for (Map.Entry<String, Rows> one : tables.entrySet()) {
            int n = one.getValue().keys.size();
            int name = one.getKey().getBytes(StandardCharsets.UTF_8).length;
            length += 2 + name + 1 + 8 + 4 + 20 * n + 4 + one.getValue().bytes;
        }
        ByteBuffer out = ByteBuffer.allocate(length).order(ByteOrder.LITTLE_ENDIAN);
        out.put((byte) 'D');
        for (Map.Entry<String, Rows> one : tables.entrySet()) {
            byte[] name = one.getKey().getBytes(StandardCharsets.UTF_8);
            Rows rows = one.getValue();
            out.putShort((short) name.length).put(name).put((byte) (rows.loaded ? 1 : 0)).putLong(rows.written);
            out.putInt(rows.keys.size());
            rows.times.forEach(times -> out.putLong(times[0]));
            rows.times.forEach(times -> out.putLong(times[1]));
            int offset = 0;
            out.putInt(0);
            for (byte[] key : rows.keys) {
                out.putInt(offset += key.length);
            }
            rows.keys.forEach(out::put);
        }
        return out.array();
    }
}
