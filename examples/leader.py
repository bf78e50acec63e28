"""Two members of an election: the leader resigns, the other takes over, and an observer sees it."""

import os
import sys
import threading

import zklock


def main() -> None:
    """Run both members until each has led once."""
    hosts = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("ZKLOCK_HOSTS", "127.0.0.1:2181")
    stop = threading.Event()
    led: list[str] = []
    both = threading.Event()

    def lead(leadership: zklock.Leadership) -> None:
        led.append(leadership.identity)
        print(f"{leadership.identity} leads, its token is greater than the last one")
        if len(set(led)) == 2:
            both.set()
        leadership.should_stop.wait(0.2)  # returning ends the term: the next in the queue leads

    def member(name: str) -> None:
        with zklock.connect(hosts) as client:
            zklock.LeaderElection(client, "/examples/leader", identity=name).run(lead, stop)

    threads = [threading.Thread(target=member, args=(name,)) for name in ("anna", "ben")]
    for thread in threads:
        thread.start()
    both.wait(30)
    stop.set()
    for thread in threads:
        thread.join()
    print("both have led:", sorted(set(led)) == ["anna", "ben"])


if __name__ == "__main__":
    main()
