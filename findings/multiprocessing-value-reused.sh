#!/usr/bin/env bash
# The guess: a `multiprocessing.Value` that a process was given stays that process's for as long as it runs, as a file
#   descriptor or a piece of shared memory does that somebody has open.
# Instead: the memory is the parent's alone. When the parent has dropped its last reference, the next Value of that size
#   gets the same bytes, while the first process still reads and writes them. A process that was told to stop reads that
#   it was not; what it writes is the other's. `Process` keeps no reference either: start() drops its arguments.
# Why it matters: a supervisor sets a worker's stop flag, takes the worker out of its table and starts the next one. The
#   old worker, in the middle of a step, looks at its flag, reads the new one's 0, and goes on beside it; heartbeats and
#   leases in a Value are renewed by the wrong worker. Arrays have the same fault. Keep the Value until the process was
#   joined, or use an Event, which is not made of this memory.
# Seen: Python 3.11.7, 3.12.1 and 3.13.0, spawn and fork, Linux, 2026-11-30.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cat >"$dir/main.py" <<'PYTHON'
import multiprocessing
import platform
import sys


def is_told(stop):
    return stop.is_set() if hasattr(stop, "is_set") else bool(stop.value)


def work(stop, begun, go_on, answer):
    begun.set()
    go_on.wait()
    answer.put(is_told(stop))


def tell(stop):
    stop.set() if hasattr(stop, "set") else setattr(stop, "value", 1)


def what_the_old_one_reads(context, make, keeps):
    """Tell a worker to stop, forget it or not, make the next one's flag, and return what the first then reads."""
    begun, go_on, answer = context.Event(), context.Event(), context.Queue()
    stop = make()
    worker = context.Process(target=work, args=(stop, begun, go_on, answer))
    worker.start()
    begun.wait()
    tell(stop)
    kept = stop if keeps else None
    del stop
    following = make()
    go_on.set()
    read = answer.get()
    worker.join()
    del following, kept
    return read


def main():
    print("Python", platform.python_version())
    seen = []
    for start in ("spawn", "fork"):
        context = multiprocessing.get_context(start)
        flags = {"Value": lambda: context.Value("b", 0), "RawValue": lambda: context.RawValue("b", 0)}
        for name, make in {**flags, "Event": context.Event}.items():
            for keeps in (True, False):
                told = what_the_old_one_reads(context, make, keeps)
                print(f"{start}: the parent {'keeps' if keeps else 'forgets'} its {name}: told to stop: {told}")
                seen.append(told)
    sys.exit(None if seen == [True, False, True, False, True, True] * 2 else "the behaviour has changed")


if __name__ == "__main__":
    main()
PYTHON
timeout 120 python3 "$dir/main.py"
