import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
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

    private static long contend(String hosts, String path, int clients, long millis)
            throws Exception {
        ExecutorService threads = Executors.newFixedThreadPool(clients);
        List<CuratorFramework> opened = new ArrayList<>();
        try {
            List<Callable<Long>> all = new ArrayList<>();
            for (int i = 0; i < clients; i++) {
                CuratorFramework client = connected(hosts);
                opened.add(client);
                InterProcessMutex mutex = new InterProcessMutex(client, path);
                mutex.acquire();
                mutex.release();
                all.add(() -> turns(mutex, millis));
            }
            long count = 0;
            for (Future<Long> each : threads.invokeAll(all)) {
                count += each.get();
            }
            return count;
        } finally {
            opened.forEach(CuratorFramework::close);
            threads.shutdown();
        }
    }

    private static long turns(InterProcessMutex mutex, long millis) throws Exception {
        long until = System.nanoTime() + millis * 1_000_000;
        long count = 0;
        while (System.nanoTime() < until) {
            mutex.acquire();
            mutex.release();
            count++;
        }
        return count;
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
                default:
                    throw new IllegalArgumentException("no such command: " + line);
            }
        }
    }
}
