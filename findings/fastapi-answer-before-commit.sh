#!/usr/bin/env bash
# The guess: what stands after the `yield` of a FastAPI dependency (the commit of a session, the release of a lock,
#   the last look at a lease) runs before the answer is sent; if it raises, the client gets a 500.
# Instead: since FastAPI 0.118 it runs after the answer, and after background tasks. The client has its 200 before the
#   commit is tried; the commit may fail (the error is only logged), and the client's next request may come before it.
#   With `Depends(…, scope="function")` it runs before.
# Why it matters: "saved" is told, and nothing is saved; a write that a fencing token refuses at the commit counts as
#   done. And the lock or transaction of a request lasts as long as its background tasks.
# Seen: FastAPI 0.163.2, Starlette 1.10.0, uvicorn 0.54.0, 2026-11-28.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
python=$dir/venv/bin/python
"$python" -m pip -q --disable-pip-version-check install fastapi==0.163.2 starlette==1.10.0 uvicorn==0.54.0 \
  2>"$dir/pip.log" || { cat "$dir/pip.log" >&2; exit 69; }

timeout 60 "$python" - "$dir/database" <<'PYTHON'
import http.client
import socket
import sqlite3
import sys
import threading
import time
from importlib.metadata import version
from typing import Annotated

import uvicorn
from fastapi import BackgroundTasks, Depends, FastAPI

print(*(f"{package} {version(package)}" for package in ("fastapi", "starlette", "uvicorn")), sep=", ")
# The constraint is looked at when the transaction is committed.
with sqlite3.connect(sys.argv[1], isolation_level=None) as setup:
    setup.execute("CREATE TABLE customers (id int PRIMARY KEY)")
    setup.execute("CREATE TABLE orders (customer int REFERENCES customers DEFERRABLE INITIALLY DEFERRED)")
    setup.execute("INSERT INTO customers VALUES (1)")
happened = []
ended = threading.Event()


def session():
    database = sqlite3.connect(sys.argv[1], isolation_level=None, check_same_thread=False)
    database.execute("PRAGMA foreign_keys = ON")
    database.execute("BEGIN")
    try:
        yield database
        ended.wait(20)
        database.execute("COMMIT")
        happened.append("committed")
    except sqlite3.IntegrityError:
        happened.append("refused")
        raise
    finally:
        database.close()
        happened.append("closed")


app = FastAPI()


@app.post("/order/{customer}")
def order(customer: int, tasks: BackgroundTasks, database: Annotated[sqlite3.Connection, Depends(session)]):
    database.execute("INSERT INTO orders VALUES (?)", (customer,))
    tasks.add_task(happened.append, "background task")
    return "ordered"


@app.post("/earlier/{customer}")
def earlier(customer: int, database: Annotated[sqlite3.Connection, Depends(session, scope="function")]):
    database.execute("INSERT INTO orders VALUES (?)", (customer,))
    return "ordered"


def post(path, before_the_end):
    """The status of the answer, the orders that are there when it comes, and what happens then."""
    happened.clear()
    ended.clear()
    if not before_the_end:
        ended.set()
    client = http.client.HTTPConnection("127.0.0.1", listener.getsockname()[1], timeout=20)
    client.request("POST", path)
    status = client.getresponse().status
    with sqlite3.connect(sys.argv[1]) as reader:
        orders = reader.execute("SELECT count(*) FROM orders").fetchone()[0]
    reader.close()
    ended.set()
    while "closed" not in happened:
        time.sleep(0.01)
    return status, orders, happened.copy()


listener = socket.create_server(("127.0.0.1", 0))
server = uvicorn.Server(uvicorn.Config(app, log_level="critical"))
thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
thread.start()
while not server.started:
    time.sleep(0.05)
try:
    good = post("/order/1", True)
    print("a good order: status, orders then, and afterwards:", good)
    bad = post("/order/2", True)
    print("one that the commit refuses:", bad)
    function = post("/earlier/2", False)
    print('the same, scope="function":', function)
finally:
    server.should_exit = True
    thread.join()
expected = [
    (200, 0, ["background task", "committed", "closed"]),
    (200, 1, ["background task", "refused", "closed"]),
    (500, 1, ["refused", "closed"]),
]
sys.exit(None if [good, bad, function] == expected else "the behaviour has changed")
PYTHON
