#!/usr/bin/env bash
# The guess: a listener of SQLAlchemy's event `commit` hears of every commit of the engine, and can refuse it.
# Instead: a two-phase transaction is committed without that event. It has events of its own, `prepare_twophase` and
#   `commit_twophase`; and `commit()` of a transaction of begin_twophase() skips the first if nobody called prepare().
# Why it matters: checks before a commit, audit logs and outboxes that hang on `commit` are silently left out as soon as
#   somebody turns on twophase=True; a check in `prepare_twophase` is left out by whoever does not prepare.
# Seen: MariaDB 10.11.19 (Debian 12), SQLAlchemy 2.1.9, PyMySQL 1.2.4, 2026-11-28.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
version=$(mariadbd --version 2>/dev/null || true)
case $version in
  *" 10.11."*) echo "$version" ;;
  *) echo "this finding needs MariaDB 10.11 (Debian 12: mariadb-server)" >&2; exit 69 ;;
esac
dir=$(mktemp -d)
server=
cleanup() {
  if [ -n "$server" ]; then kill "$server" 2>/dev/null || true; wait "$server" || true; fi
  rm -rf "$dir"
}
trap cleanup EXIT
python3 -m venv "$dir/venv"
python=$dir/venv/bin/python
"$python" -m pip -q --disable-pip-version-check install sqlalchemy==2.1.9 pymysql==1.2.4 2>"$dir/pip.log" ||
  { cat "$dir/pip.log" >&2; exit 69; }

port=$("$python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
options=(--no-defaults --datadir="$dir/data" --user="$(id -un)")
mariadb-install-db "${options[@]}" --skip-test-db >"$dir/install.log" 2>&1
mariadbd "${options[@]}" --skip-grant-tables --skip-networking=0 --bind-address=127.0.0.1 --port="$port" \
  --socket="$dir/socket" --pid-file="$dir/pid" --innodb-buffer-pool-size=16M >"$dir/server.log" 2>&1 &
server=$!
timeout 60 sh -c "until mariadb-admin --no-defaults --socket='$dir/socket' ping >/dev/null 2>&1; do sleep 0.2; done"

timeout 60 "$python" - "$port" <<'PYTHON'
import sys
from importlib.metadata import version

from sqlalchemy import create_engine, event, text
from sqlalchemy.orm import Session

print(*(f"{package} {version(package)}" for package in ("SQLAlchemy", "PyMySQL")), sep=", ")
base = f"mysql+pymysql://root@127.0.0.1:{sys.argv[1]}"
with create_engine(base).begin() as connection:
    connection.execute(text("CREATE DATABASE shop"))
engine = create_engine(f"{base}/shop")
with engine.begin() as connection:
    connection.execute(text("CREATE TABLE orders (how varchar(40))"))
heard = []
for name in ("commit", "prepare_twophase", "commit_twophase"):
    event.listen(engine, name, lambda *_, name=name: heard.append(name))
add = text("INSERT INTO orders VALUES ('one')")


def plain():
    with engine.begin() as connection:
        connection.execute(add)


def two_phase(prepares):
    with engine.connect() as connection:
        transaction = connection.begin_twophase()
        connection.execute(add)
        if prepares:
            transaction.prepare()
        transaction.commit()


def session(twophase):
    with Session(engine, twophase=twophase) as unit:
        unit.execute(add)
        unit.commit()


ways = {
    "engine.begin()": plain,
    "Session()": lambda: session(False),
    "Session(twophase=True)": lambda: session(True),
    "begin_twophase(), prepare(), commit()": lambda: two_phase(True),
    "begin_twophase(), commit()": lambda: two_phase(False),
}
seen = {}
for way, commit in ways.items():
    heard.clear()
    commit()
    seen[way] = heard.copy()
    print(f"{way}: {', '.join(heard)}")
with engine.connect() as connection:
    rows = connection.execute(text("SELECT count(*) FROM orders")).scalar()
print(f"rows committed: {rows}")
both = ["prepare_twophase", "commit_twophase"]
expected = dict(zip(ways, (["commit"], ["commit"], both, both, both[1:]), strict=True))
sys.exit(None if seen == expected and rows == len(ways) else "the behaviour has changed")
PYTHON
