#!/usr/bin/env bash
# The guess: with `version_id_col`, of two sessions that have read one object and change it the second one gets a
#   StaleDataError, whichever way the change is made.
# Instead: the version is that of the row, and only a flush that updates the row compares it. An item that is added to
#   order.items changes no column of the order: both sessions add their last item, and both commit. And `session.execute
#   (update(Order)…)` neither compares nor raises the version: the other session's flush then overwrites it unheard.
# Why it matters: "at most ten items", "the sum fits the credit" and "only a draft may be changed" are checked on an
#   order that another one has changed since, though the class has a version. Let each such session set a column of the
#   order, too, or lock it by with_for_update(); and write `version=Order.version + 1` into each update().
# Seen: SQLAlchemy 2.1.9 on SQLite (that of Python 3.11), 2026-11-30.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
python=$dir/venv/bin/python
"$python" -m pip -q --disable-pip-version-check install sqlalchemy==2.1.9 2>"$dir/pip.log" ||
  { cat "$dir/pip.log" >&2; exit 69; }

timeout 120 "$python" - "$dir/data" <<'PYTHON'
import sys

import sqlalchemy
from sqlalchemy import ForeignKey, create_engine, func, select, update
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship
from sqlalchemy.orm.exc import StaleDataError


class Base(DeclarativeBase):
    pass


class Item(Base):
    __tablename__ = "item"
    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int] = mapped_column(ForeignKey("orders.id"))


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    state: Mapped[str] = mapped_column(default="draft")
    touched: Mapped[int] = mapped_column(default=0)
    version: Mapped[int] = mapped_column()
    items: Mapped[list[Item]] = relationship()
    __mapper_args__ = {"version_id_col": version}


def set_state(order, state):
    order.state = state


def add_item(order, _):
    if len(order.items) < 10:
        order.items.append(Item())


def add_and_touch(order, _):
    add_item(order, _)
    order.touched += 1


def update_state(order, state, **more):
    statement = update(Order).where(Order.id == order.id).values(state=state, **more)
    Session.object_session(order).execute(statement.execution_options(synchronize_session=False))


def update_with_version(order, state):
    update_state(order, state, version=Order.version + 1)


def two(first, second):
    """Two sessions read an order with nine items, then change it in turn: what the second hears, and what is there."""
    engine = create_engine("sqlite:///" + sys.argv[1])
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        session.add(Order(id=1, items=[Item() for _ in range(9)]))
        session.commit()
    heard = "nothing"
    sessions = [Session(engine, expire_on_commit=False) for _ in range(2)]
    orders = [session.get(Order, 1) for session in sessions]
    for session, order in zip(sessions, orders, strict=True):
        assert len(order.items) == 9
        session.commit()
    for session, order, change, state in zip(sessions, orders, (first, second), ("sent", "deleted"), strict=True):
        try:
            change(order, state)
            session.commit()
        except StaleDataError:
            session.rollback()
            heard = "StaleDataError"
    with Session(engine) as session:
        order = session.get(Order, 1)
        return heard, order.state, session.scalar(select(func.count()).select_from(Item))


print("SQLAlchemy", sqlalchemy.__version__)
seen = {
    "a column, a column": two(set_state, set_state),
    "an item, an item": two(add_item, add_item),
    "a column, an item": two(set_state, add_item),
    "update(), a column": two(update_state, set_state),
    "a column, update()": two(set_state, update_state),
    "an item and a column, the same": two(add_and_touch, add_and_touch),
    "update() with the version, a column": two(update_with_version, set_state),
}
for changes, (heard, state, items) in seen.items():
    print(f"{changes}: the second one hears {heard}; the order is {state} and has {items} items")
stale, nothing = "StaleDataError", "nothing"
expected = [
    (stale, "sent", 9),
    (nothing, "draft", 11),
    (nothing, "sent", 10),
    (nothing, "deleted", 9),
    (nothing, "deleted", 9),
    (stale, "draft", 10),
    (stale, "sent", 9),
]
sys.exit(None if list(seen.values()) == expected else "the behaviour has changed")
PYTHON
