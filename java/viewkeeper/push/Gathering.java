package viewkeeper.push;

import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.ReentrantLock;

/**
 * How long HBase's WAL reader waits before it reads on: frames become fewer and longer while much is written.
 *
 * <p>A frame costs much the same whether it has one row or thousands: the reader's look at a file that grows, the spool's
 * flushes, the position in ZooKeeper. So the reader lets gather what follows a frame, for a tenth of a millisecond for each
 * of its rows: below 10,000 rows a second frames grow shorter by that until nobody waits, above it they grow longer, up to
 * the longest wait. Whoever makes a batch does not see anything later for it: it takes what had been acknowledged when it
 * began, and asks until that has come; while somebody asks, the reader does not wait.
 */
final class Gathering {
    private static final long A_ROW = TimeUnit.MICROSECONDS.toNanos(100);
    private static final long LONGEST = TimeUnit.MILLISECONDS.toNanos(100);

    private final ReentrantLock lock = new ReentrantLock();
    private final Condition asked = lock.newCondition();
    private int asking;
    private volatile long until = System.nanoTime();

    /** A frame with so many rows is being sent. */
    void sends(int rows) {
        until = System.nanoTime() + Math.min(rows * A_ROW, LONGEST);
    }

    /** Somebody waits for what is in the WAL, until {@link #answered}. */
    void asks() {
        lock.lock();
        try {
            asking++;
            asked.signalAll();
        } finally {
            lock.unlock();
        }
    }

    void answered() {
        lock.lock();
        try {
            asking--;
        } finally {
            lock.unlock();
        }
    }

    /** The reader has found something. */
    void gather() {
        if (until - System.nanoTime() <= 0) {
            return;
        }
        lock.lock();
        try {
            long left;
            while (asking == 0 && (left = until - System.nanoTime()) > 0) {
                asked.awaitNanos(left);
            }
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt(); // the reader ends
        } finally {
            lock.unlock();
        }
    }
}
