"""A job that many hosts start at the same time, and that runs once a day.

The lock keeps two hosts from running the job together. The day of the last run is in ZooKeeper, and
is written under the lock's token: no other host runs the job again on that day, and a host that was
paused cannot write late. The job runs again the next day.
"""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import zklock
from zklock.fencing import ZooKeeperGuard

LAST = "/examples/daily-last"
MARK = "/examples/daily-fence"


def install(hosts: str) -> None:
    """Make what the guard guards, and its mark: once, so that a lost mark is not made again."""
    with zklock.connect(hosts) as client:
        if client.exists(LAST) is None:
            ZooKeeperGuard(client, MARK).create()
            client.ensure_path(LAST)


def host(hosts: str, name: str) -> str:
    """Be one host: return what it did."""
    with zklock.connect(hosts) as client, zklock.Lock(client, "/examples/daily") as grant:
        guard = ZooKeeperGuard(client, MARK)
        guard.claim(grant)
        today = datetime.now(UTC).date().isoformat()  # of UTC: the same on all hosts
        last, _ = client.get(LAST)
        if last.decode() >= today:
            return f"{name}: done already"
        print(f"the report of {today}")  # the job itself
        guard.transaction(grant).set_data(LAST, today.encode()).commit()
        return f"{name}: ran the job"


def main() -> None:
    """Install the job, and be three hosts."""
    hosts = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("ZKLOCK_HOSTS", "127.0.0.1:2181")
    install(hosts)
    with ThreadPoolExecutor() as pool:
        said = list(pool.map(lambda name: host(hosts, name), ("host-1", "host-2", "host-3")))
    print(*sorted(said), f"runs: {sum('ran the job' in line for line in said)}", sep="\n")


if __name__ == "__main__":
    main()
