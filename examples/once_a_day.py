"""A job that many hosts start at the same time, and that runs once.

The lock keeps two hosts from running the job together. A mark in ZooKeeper, written under the
lock's token, keeps the second host from running it again.
"""

import os
import sys
from concurrent.futures import ThreadPoolExecutor

import zklock
from zklock.fencing import ZooKeeperGuard

DAY = "2024-05-01"


def host(hosts: str, name: str) -> str:
    """Be one host: return what it did."""
    with zklock.connect(hosts) as client:
        guard = ZooKeeperGuard(client, "/examples/daily-fence")
        guard.create()
        client.ensure_path("/examples/daily-done")
        with zklock.Lock(client, "/examples/daily", identity=name) as grant:
            guard.claim(grant)
            data, _ = client.get("/examples/daily-done")
            if data.decode() == DAY:
                return f"{name}: done already"
            print(f"the report of {DAY}")  # the job itself
            guard.transaction(grant).set_data("/examples/daily-done", DAY.encode()).commit()
            return f"{name}: ran the job"


def main() -> None:
    """Be three hosts."""
    hosts = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("ZKLOCK_HOSTS", "127.0.0.1:2181")
    with ThreadPoolExecutor() as pool:
        said = list(pool.map(lambda name: host(hosts, name), ("host-1", "host-2", "host-3")))
    print(*sorted(said), f"runs: {sum('ran the job' in line for line in said)}", sep="\n")


if __name__ == "__main__":
    main()
