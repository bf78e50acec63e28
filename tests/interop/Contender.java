import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.leader.LeaderLatch;
import org.apache.curator.framework.recipes.leader.Participant;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreV2;
import org.apache.curator.framework.recipes.locks.Lease;
import org.apache.curator.framework.recipes.locks.StandardLockInternalsDriver;
import org.apache.curator.retry.RetryOneTime;

/**
 * A process that holds Curator's locks when it is told to, as tests/interop/player.py does those of
 * zklock and kazoo. The commands and what they are answered are described there.
 */
public final class Contender {
    private static final long DEADLINE_MILLIS = 60_000;
    private static final String WHO = "curator-" + ProcessHandle.current().pid();

    /** One of Curator's recipes on one path. */
    interface Recipe {
        String kind();

        boolean acquire(long millis) throws Exception;

        /** The name of the node that it is held by. */
        String node() throws Exception;

        void release() throws Exception;
    }

    /** Sorts the names of all clients that zklock knows by their numbers, not only Curator's own. */
    static final class EveryName extends StandardLockInternalsDriver {
        private static final Pattern CONTENDER =
                Pattern.compile(".*(?:-lock-|-__READ__|-__WRIT__|-latch-|__r?lock__)(\\d{10})");

        @Override
        public String fixForSorting(String name, String lockName) {
            Matcher contender = CONTENDER.matcher(name);
            return contender.matches() ? contender.group(1) : name;
        }
    }

    static final class Mutex extends InterProcessMutex implements Recipe {
        Mutex(CuratorFramework client, String path) {
            super(client, path);
        }

        Mutex(CuratorFramework client, String path, StandardLockInternalsDriver driver) {
            super(client, path, driver);
        }

        @Override
        public String kind() {
            return "exclusive";
        }

        @Override
        public boolean acquire(long millis) throws Exception {
            return acquire(millis, TimeUnit.MILLISECONDS);
        }

        @Override
        public String node() {
            return getLockPath();
        }
    }

    static final class Writer extends InterProcessReadWriteLock.WriteLock implements Recipe {
        private final CuratorFramework client;
        private final String path;

        Writer(CuratorFramework client, String path) {
            super(client, path, null);
            this.client = client;
            this.path = path;
        }

        /** Turn it into a read lock, in the way that Curator's documentation describes. */
        Reader downgrade() throws Exception {
            Reader reader = new Reader(client, path, this);
            reader.acquire();
            release();
            return reader;
        }

        @Override
        public String kind() {
            return "write";
        }

        @Override
        public boolean acquire(long millis) throws Exception {
            return acquire(millis, TimeUnit.MILLISECONDS);
        }

        @Override
        public String node() {
            return getLockPath();
        }
    }

    static final class Reader extends InterProcessReadWriteLock.ReadLock implements Recipe {
        Reader(CuratorFramework client, String path, InterProcessReadWriteLock.WriteLock writer) {
            super(client, path, null, writer);
        }

        @Override
        public String kind() {
            return "read";
        }

        @Override
        public boolean acquire(long millis) throws Exception {
            return acquire(millis, TimeUnit.MILLISECONDS);
        }

        @Override
        public String node() {
            return getLockPath();
        }
    }

    static final class Semaphore implements Recipe {
        private final InterProcessSemaphoreV2 semaphore;
        private Lease lease;

        Semaphore(CuratorFramework client, String path, int limit) {
            semaphore = new InterProcessSemaphoreV2(client, path, limit);
        }

        @Override
        public String kind() {
            return "lease";
        }

        @Override
        public boolean acquire(long millis) throws Exception {
            lease = semaphore.acquire(millis, TimeUnit.MILLISECONDS);
            return lease != null;
        }

        @Override
        public String node() {
            return lease.getNodeName();
        }

        @Override
        public void release() {
            semaphore.returnLease(lease);
        }
    }

    static final class Latch implements Recipe {
        private final CuratorFramework client;
        private final String path;
        private final String id;
        private LeaderLatch latch;

        Latch(CuratorFramework client, String path, String id) {
            this.client = client;
            this.path = path;
            this.id = id;
        }

        @Override
        public String kind() {
            return "exclusive";
        }

        @Override
        public boolean acquire(long millis) throws Exception {
            latch = new LeaderLatch(client, path, id);
            latch.start();
            if (latch.await(millis, TimeUnit.MILLISECONDS)) {
                return true;
            }
            latch.close();
            return false;
        }

        /** Whether it would tell its user that it leads. */
        boolean leads() {
            return latch.hasLeadership();
        }

        String participants() throws Exception {
            return latch.getParticipants().stream()
                    .map(Participant::getId)
                    .collect(Collectors.joining(","));
        }

        @Override
        public String node() {
            return latch.getOurPath();
        }

        @Override
        public void release() throws Exception {
            latch.close();
        }
    }

    private static Recipe recipe(CuratorFramework client, String text, String path) {
        String[] parts = text.split("=");
        switch (parts[0]) {
            case "mutex":
                return new Mutex(client, path);
            case "mutex-every-name":
                return new Mutex(client, path, new EveryName());
            case "write":
                return new Writer(client, path);
            case "read":
                return new Reader(client, path, new Writer(client, path));
            case "semaphore":
                return new Semaphore(client, path, Integer.parseInt(parts[1]));
            case "latch":
                return new Latch(client, path, parts.length > 1 ? parts[1] : "");
            default:
                throw new IllegalArgumentException("no such recipe: " + text);
        }
    }

    private static String contend(CuratorFramework client, String[] words) throws Exception {
        String[] texts = words[1].split(",");
        int count = Integer.parseInt(words[4]);
        long holdMicros = Long.parseLong(words[5]);
        Recipe[] recipes = new Recipe[texts.length];
        for (int i = 0; i < texts.length; i++) {
            recipes[i] = recipe(client, texts[i], words[2]);
        }
        try (FileChannel ledger =
                FileChannel.open(
                        Path.of(words[3], "ledger"),
                        StandardOpenOption.CREATE,
                        StandardOpenOption.APPEND)) {
            for (int i = 0; i < count; i++) {
                Recipe recipe = recipes[i % recipes.length];
                if (!recipe.acquire(DEADLINE_MILLIS)) {
                    throw new IllegalStateException("not granted in time");
                }
                long entered = System.nanoTime();
                if (holdMicros > 0) {
                    TimeUnit.MICROSECONDS.sleep(holdMicros);
                }
                String node = recipe.node();
                String sequence = node.substring(node.length() - 10);
                long left = System.nanoTime();
                String line =
                        String.join(
                                " ",
                                recipe.kind(),
                                sequence,
                                String.valueOf(entered),
                                String.valueOf(left),
                                WHO + "\n");
                ledger.write(ByteBuffer.wrap(line.getBytes(StandardCharsets.US_ASCII)));
                recipe.release();
            }
        }
        return "done " + count;
    }

    /** The fencing token of whoever holds a lock by this node, as zklock would write it. */
    private static String token(CuratorFramework client, String node) throws Exception {
        String path = node.substring(0, node.lastIndexOf('/'));
        long epoch = client.checkExists().forPath(path).getCzxid();
        return String.format("%016x-%s", epoch, node.substring(node.length() - 10));
    }

    public static void main(String[] arguments) throws Exception {
        CuratorFramework client =
                CuratorFrameworkFactory.builder()
                        .connectString(arguments[0])
                        .sessionTimeoutMs(10_000)
                        .connectionTimeoutMs(10_000)
                        .retryPolicy(new RetryOneTime(100))
                        .build();
        client.start();
        client.blockUntilConnected();
        System.out.println("ready");
        Map<String, Recipe> held = new HashMap<>();
        BufferedReader commands =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        String line;
        while ((line = commands.readLine()) != null) {
            String[] words = line.split(" ");
            switch (words[0]) {
                case "acquire":
                    Recipe recipe = recipe(client, words[2], words[3]);
                    boolean granted = recipe.acquire(Long.parseLong(words[4]));
                    if (granted) {
                        held.put(words[1], recipe);
                    }
                    System.out.println(granted ? "granted " + recipe.node() : "refused");
                    break;
                case "release":
                    held.remove(words[1]).release();
                    System.out.println("released");
                    break;
                case "token":
                    System.out.println(token(client, held.get(words[1]).node()));
                    break;
                case "downgrade":
                    Reader reader = ((Writer) held.remove(words[1])).downgrade();
                    held.put(words[1], reader);
                    System.out.println("granted " + reader.node());
                    break;
                case "leads":
                    System.out.println(((Latch) held.get(words[1])).leads());
                    break;
                case "participants":
                    System.out.println(((Latch) held.get(words[1])).participants());
                    break;
                case "contend":
                    System.out.println(contend(client, words));
                    break;
                default:
                    throw new IllegalArgumentException("no such command: " + line);
            }
        }
        client.close();
    }
}
