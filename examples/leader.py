"""Two members of an election: the leader resigns, and the other one takes over.

A leader works until ``should_stop`` is set. A ``lead`` that returns gives the leadership away.
"""

import os
import queue
import sys
import threading

import zklock


def main() -> None:
    """Run both members; have the first leader resign."""
    hosts = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("ZKLOCK_HOSTS", "127.0.0.1:2181")
    begun: queue.Queue[str] = queue.Queue()

    def lead(leadership: zklock.Leadership) -> None:
        print(leadership.identity, "leads")
        begun.put(leadership.identity)
        while not leadership.should_stop.wait(0.1):
            leadership.check()  # before each step of the work, which gets leadership.token

    with zklock.connect(hosts) as one, zklock.connect(hosts) as two:
        members = {
            name: zklock.LeaderElection(client, "/examples/leader", identity=name)
            for name, client in (("anna", one), ("ben", two))
        }
        threads = [threading.Thread(target=each.run, args=(lead,)) for each in members.values()]
        for thread in threads:
            thread.start()
        try:
            first = begun.get(timeout=30)
            members[first].resign()
            print(first, "resigns")
            print("both have led:", begun.get(timeout=30) != first)
        finally:
            for each in members.values():
                each.stop()
            for thread in threads:
                thread.join()


if __name__ == "__main__":
    main()
