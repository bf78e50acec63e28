"""One leader among forked workers: each of them connects after the fork, and stands for election.

A client does not survive a fork. So the parent connects to nothing, as the master process of a web
server does. The leader is told to end, and another worker leads.
"""

import os
import signal
import sys

import zklock

WORKERS = 3


def work(hosts: str, number: int, told: int) -> None:
    """Be one worker; it tells through a pipe that it leads."""
    client = zklock.connect(hosts)  # after the fork
    try:
        election = zklock.LeaderElection(client, "/examples/forked", identity=f"worker-{number}")

        def lead(leadership: zklock.Leadership) -> None:
            os.write(told, f"{os.getpid()} {leadership.identity}\n".encode())
            leadership.should_stop.wait()  # the leader's work

        election.run(lead, handle_signals=True)  # SIGTERM hands over, and ends it
    finally:
        client.stop()
        client.close()


def main() -> None:
    """Fork the workers, end the leader, and see another one lead."""
    hosts = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("ZKLOCK_HOSTS", "127.0.0.1:2181")
    heard, told = os.pipe()
    workers = set()
    for number in range(WORKERS):
        pid = os.fork()
        if pid == 0:
            try:
                work(hosts, number, told)
            finally:
                os._exit(0)
        workers.add(pid)
    os.close(told)
    led = []
    with os.fdopen(heard) as lines:
        for _ in range(2):
            leader, identity = lines.readline().split()
            print(identity, "leads")
            led.append(identity)
            os.kill(int(leader), signal.SIGTERM)
    for worker in workers:
        os.kill(worker, signal.SIGTERM)
    for worker in workers:
        os.waitpid(worker, 0)
    print("two have led, one after the other:", len(set(led)) == 2)


if __name__ == "__main__":
    main()
