import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.StringJoiner;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.RetryOneTime;

/**
 * Takes Curator's mutex for tests/bench/peers.py, one command a line:
 *
 * <pre>
 * connect HOSTS PATH              connected
 * disconnect                      disconnected
 * block COUNT                     the nanoseconds of every cycle, then all processor time
 * contend HOSTS PATH CLIENTS MS   the cycles of all clients, each of which has a thread
 * spread HOSTS PATH THREADS MS    the cycles of all threads of one client, each with a lock of its own
 * hand HOSTS PATH COUNT MS        the nanoseconds from each release of one client to the other's turn
 * </pre>
 */
public final class Cycles {
    private static CuratorFramework connected(String hosts) throws InterruptedException {
        CuratorFramework client =
                CuratorFrameworkFactory.builder()
                        .connectString(hosts)
                        .sessionTimeoutMs(10_000)
                        .connectionTimeoutMs(10_000)
                        .retryPolicy(new RetryOneTime(100))
                        .build();
        client.start();
        client.blockUntilConnected();
        return client;
    }

    private static String block(InterProcessMutex mutex, int count) throws Exception {
        StringJoiner times = new StringJoiner(" ");
        long busy = processorTime();
        long[] took = new long[count];
        for (int i = 0; i < count; i++) {
            long started = System.nanoTime();
            mutex.acquire();
            mutex.release();
            took[i] = System.nanoTime() - started;
        }
        busy = processorTime() - busy;
        for (long each : took) {
            times.add(String.valueOf(each));
        }
        return times.add(String.valueOf(busy)).toString();
    }

    private static long processorTime() {
        com.sun.management.OperatingSystemMXBean system =
                ManagementFactory.getPlatformMXBean(
                        com.sun.management.OperatingSystemMXBean.class);
        return system.getProcessCpuTime();
    }

    /** Calls all at the same time, on a thread each. */
    private static <T> List<T> together(List<Callable<T>> all) throws Exception {
        ExecutorService threads = Executors.newFixedThreadPool(all.size());
        try {
            List<T> results = new ArrayList<>();
            for (Future<T> each : threads.invokeAll(all)) {
                results.add(each.get());
            }
            return results;
        } finally {
            threads.shutdown();
        }
    }

    private static long contend(String hosts, String path, int clients, long millis)
            throws Exception {
        List<CuratorFramework> opened = new ArrayList<>();
        try {
            List<Callable<Long>> all = new ArrayList<>();
            for (int i = 0; i < clients; i++) {
                CuratorFramework client = connected(hosts);
                opened.add(client);
                all.add(turns(new InterProcessMutex(client, path), millis));
            }
            return sum(together(all));
        } finally {
            opened.forEach(CuratorFramework::close);
        }
    }

    private static long spread(String hosts, String path, int threads, long millis)
            throws Exception {
        CuratorFramework client = connected(hosts);
        try {
            List<Callable<Long>> all = new ArrayList<>();
            for (int i = 0; i < threads; i++) {
                all.add(turns(new InterProcessMutex(client, path + "-" + i), millis));
            }
            return sum(together(all));
        } finally {
            client.close();
        }
    }

    private static long sum(List<Long> counts) {
        return counts.stream().mapToLong(Long::longValue).sum();
    }

    /** Each of two clients holds the lock for some time, so that the other one waits. */
    private static String hand(String hosts, String path, int count, long millis)
            throws Exception {
        List<CuratorFramework> opened = new ArrayList<>();
        try {
            List<Callable<List<Long>>> both = new ArrayList<>();
            for (int i = 0; i < 2; i++) {
                CuratorFramework client = connected(hosts);
                opened.add(client);
                InterProcessMutex mutex = new InterProcessMutex(client, path);
                both.add(() -> held(mutex, count, millis));
            }
            List<Long> moments = new ArrayList<>();
            together(both).forEach(moments::addAll);
            Collections.sort(moments);
            StringJoiner gaps = new StringJoiner(" ");
            for (int i = 2; i < moments.size(); i += 2) {
                gaps.add(String.valueOf(moments.get(i) - moments.get(i - 1)));
            }
            return gaps.toString();
        } finally {
            opened.forEach(CuratorFramework::close);
        }
    }

    private static List<Long> held(InterProcessMutex mutex, int count, long millis)
            throws Exception {
        List<Long> moments = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            mutex.acquire();
            moments.add(System.nanoTime());
            Thread.sleep(millis);
            moments.add(System.nanoTime());
            mutex.release();
        }
        return moments;
    }

    /** Takes the mutex once; returns what takes it in turns for so long, and counts. */
    private static Callable<Long> turns(InterProcessMutex mutex, long millis) throws Exception {
        mutex.acquire();
        mutex.release();
        return () -> {
            long until = System.nanoTime() + millis * 1_000_000;
            long count = 0;
            while (System.nanoTime() < until) {
                mutex.acquire();
                mutex.release();
                count++;
            }
            return count;
        };
    }

    public static void main(String[] arguments) throws Exception {
        CuratorFramework client = null;
        InterProcessMutex mutex = null;
        BufferedReader commands =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        String line;
        while ((line = commands.readLine()) != null) {
            String[] words = line.split(" ");
            switch (words[0]) {
                case "connect":
                    client = connected(words[1]);
                    mutex = new InterProcessMutex(client, words[2]);
                    System.out.println("connected");
                    break;
                case "disconnect":
                    client.close();
                    System.out.println("disconnected");
                    break;
                case "block":
                    System.out.println(block(mutex, Integer.parseInt(words[1])));
                    break;
                case "contend":
                    int clients = Integer.parseInt(words[3]);
                    long millis = Long.parseLong(words[4]);
                    System.out.println(contend(words[1], words[2], clients, millis));
                    break;
                case "spread":
                    int spread = Integer.parseInt(words[3]);
                    System.out.println(
                            spread(words[1], words[2], spread, Long.parseLong(words[4])));
                    break;
                case "hand":
                    int count = Integer.parseInt(words[3]);
                    System.out.println(hand(words[1], words[2], count, Long.parseLong(words[4])));
                    break;
                default:
                    throw new IllegalArgumentException("no such command: " + line);
            }
        }
    }
}
