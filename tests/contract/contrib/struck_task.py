"""A child process whose task is struck at every moment, as a soft time limit may strike it."""

from __future__ import annotations

import faulthandler
import json
import sys
from collections import Counter

import celery
from celery.exceptions import SoftTimeLimitExceeded

import zklock
from tests.contract.struck import Moments
from tests.contract.support import gone, granted
from zklock.contrib.celery import current_grant, singleton


def main(hosts: str, path: str, stride: int) -> None:
    """Run the task, struck at one moment after the other; nothing may be held then."""
    faulthandler.dump_traceback_later(240, exit=True)
    app = celery.Celery("struck", set_as_current=False)
    app.conf.update(zklock_hosts=hosts, zklock_timeout=30.0)

    @app.task(name="struck")  # type: ignore[untyped-decorator]
    @singleton(lock=path)
    def task() -> None:
        current_grant().check()

    moments = Moments(SoftTimeLimitExceeded, folder="")  # in Python's own library and Celery, too
    counts = []
    for _ in range(5):
        moments.run(task)
        counts.append(moments.count)
    total = max(counts[2:])
    tally: Counter[str] = Counter()
    with zklock.connect(hosts, timeout=30.0) as onlooker:
        for at in range(1, total + 1, stride):
            tally["struck" if moments.run(task, at) else "done"] += 1
            try:
                gone(onlooker, path)
                granted(zklock.Lock(onlooker, path)).release()
            except BaseException as error:
                error.add_note(f"struck at moment {at} of {total}:\n{moments.where}")
                raise
    print(json.dumps({"total": total, **tally}), flush=True)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
