"""Two processes that use tooz stand for election; the leader is killed, and the other one leads.

Only the URL says that zklock does it: ``zklock://`` in the place of ``zookeeper://``.
"""

import os
import subprocess
import sys
import time

from tooz import coordination


def member(url: str, name: str) -> None:
    """Stand for election, say so when elected, and go on until killed."""
    coordinator = coordination.get_coordinator(url, name.encode())
    coordinator.start(start_heart=True)
    coordinator.join_group_create(b"workers")

    def lead(event: coordination.LeaderElected) -> None:
        grant = coordinator.leadership(b"workers")  # not a part of tooz: it has the token
        print(f"{name} leads with token {grant.token if grant else None}", flush=True)

    coordinator.watch_elected_as_leader(b"workers", lead)
    while True:
        coordinator.run_watchers()
        time.sleep(0.1)


def next_line(process: subprocess.Popen[str]) -> str:
    """Return what a member says next."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def main() -> None:
    """Start both members, and kill the one that leads."""
    hosts = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("ZKLOCK_HOSTS", "127.0.0.1:2181")
    url = f"zklock://{hosts}?timeout=4&namespace=examples-tooz"
    members = []
    for name in ("anna", "ben"):
        command = [sys.executable, __file__, "member", url, name]
        members.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        if name == "anna":
            print(next_line(members[0]))
    members[0].kill()
    print("the leader is killed")
    print(next_line(members[1]))  # when the session of the dead one has expired
    for each in members:
        each.kill()
        each.communicate()


if __name__ == "__main__":
    if sys.argv[1:2] == ["member"]:
        member(*sys.argv[2:])
    else:
        main()
