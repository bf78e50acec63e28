import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.stream.Collectors;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.RetryOneTime;

/**
 * Takes Curator's mutex for tests/bench/peers.py, one command a line; answers in whole numbers:
 *
 * <pre>
 * block HOSTS PATH COUNT             the nanoseconds of every cycle, then all processor time
 * rate HOSTS PATH CLIENTS PATHS MS   the cycles of as many threads as there are clients or paths
 * hand HOSTS PATH COUNT MS           the nanoseconds from each release of one client to the other's turn
 * </pre>
 */
public final class Cycles implements AutoCloseable {
    private final List<CuratorFramework> clients = new ArrayList<>();

    private Cycles(String hosts, int count) throws InterruptedException {
        for (int i = 0; i < count; i++) {
            CuratorFramework client =
                    CuratorFrameworkFactory.builder()
                            .connectString(hosts)
                            .sessionTimeoutMs(10_000)
                            .connectionTimeoutMs(10_000)
                            .retryPolicy(new RetryOneTime(100))
                            .build();
            clients.add(client);
            client.start();
            client.blockUntilConnected();
        }
    }

    @Override
    public void close() {
        clients.forEach(CuratorFramework::close);
    }

    private InterProcessMutex mutex(int number, String path) {
        return new InterProcessMutex(clients.get(number % clients.size()), path);
    }

    private static void cycle(InterProcessMutex mutex) throws Exception {
        mutex.acquire();
        mutex.release();
    }

    /** Calls all at the same time, on a thread each. */
    private static List<Long> together(List<Callable<List<Long>>> all) throws Exception {
        ExecutorService threads = Executors.newFixedThreadPool(all.size());
        try {
            List<Long> results = new ArrayList<>();
            for (Future<List<Long>> each : threads.invokeAll(all)) {
                results.addAll(each.get());
            }
            return results;
        } finally {
            threads.shutdown();
        }
    }

    private List<Long> block(String path, int count) throws Exception {
        com.sun.management.OperatingSystemMXBean system =
                ManagementFactory.getPlatformMXBean(
                        com.sun.management.OperatingSystemMXBean.class);
        InterProcessMutex mutex = mutex(0, path);
        cycle(mutex);
        List<Long> took = new ArrayList<>(count + 1);
        long busy = system.getProcessCpuTime();
        for (int i = 0; i < count; i++) {
            long started = System.nanoTime();
            cycle(mutex);
            took.add(System.nanoTime() - started);
        }
        took.add(system.getProcessCpuTime() - busy);
        return took;
    }

    private List<Long> rate(String path, int paths, long millis) throws Exception {
        List<Callable<List<Long>>> all = new ArrayList<>();
        for (int i = 0; i < Math.max(clients.size(), paths); i++) {
            InterProcessMutex mutex = mutex(i, path + "-" + i % paths);
            cycle(mutex);
            all.add(
                    () -> {
                        long until = System.nanoTime() + millis * 1_000_000;
                        long count = 0;
                        for (; System.nanoTime() < until; count++) {
                            cycle(mutex);
                        }
                        return List.of(count);
                    });
        }
        return List.of(together(all).stream().mapToLong(Long::longValue).sum());
    }

    /** Each of two clients holds the lock for some time, so that the other one waits. */
    private List<Long> hand(String path, int count, long millis) throws Exception {
        List<Callable<List<Long>>> both = new ArrayList<>();
        for (int i = 0; i < 2; i++) {
            InterProcessMutex mutex = mutex(i, path);
            both.add(
                    () -> {
                        List<Long> moments = new ArrayList<>();
                        for (int turn = 0; turn < count; turn++) {
                            mutex.acquire();
                            moments.add(System.nanoTime());
                            Thread.sleep(millis);
                            moments.add(System.nanoTime());
                            mutex.release();
                        }
                        return moments;
                    });
        }
        List<Long> moments = together(both);
        moments.sort(null);
        List<Long> gaps = new ArrayList<>();
        for (int i = 2; i < moments.size(); i += 2) {
            gaps.add(moments.get(i) - moments.get(i - 1));
        }
        return gaps;
    }

    private static List<Long> answer(String[] words) throws Exception {
        int number = Integer.parseInt(words[3]);
        int clients = words[0].equals("rate") ? number : words[0].equals("hand") ? 2 : 1;
        try (Cycles cycles = new Cycles(words[1], clients)) {
            switch (words[0]) {
                case "block":
                    return cycles.block(words[2], number);
                case "rate":
                    return cycles.rate(
                            words[2], Integer.parseInt(words[4]), Long.parseLong(words[5]));
                case "hand":
                    return cycles.hand(words[2], number, Long.parseLong(words[4]));
                default:
                    throw new IllegalArgumentException("no such command: " + words[0]);
            }
        }
    }

    public static void main(String[] arguments) throws Exception {
        BufferedReader commands =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        String line;
        while ((line = commands.readLine()) != null) {
            List<Long> told = answer(line.split(" "));
            System.out.println(
                    told.stream().map(String::valueOf).collect(Collectors.joining(" ")));
        }
    }
}
