#!/usr/bin/env bash
# The guess: save() of an object whose row somebody has deleted meanwhile raises an error. It wants an UPDATE, and there
#   is nothing to update.
# Instead: each mapper answers otherwise. Django's save() does an INSERT after the UPDATE that found nothing: the row is
#   there again, with all its old columns. Tortoise's save() returns as usual and has written nothing. peewee's save()
#   returns 0, and nothing is raised. SQLAlchemy's flush raises StaleDataError. In Django, save(update_fields=…) and
#   save(force_update=True) raise; in Tortoise, update_fields changes nothing.
# Why it matters: a holder that stood still renews its lease by save() after the clean-up has deleted it and the next
#   holder has made its own. With Django there are two leases; with Tortoise and peewee the late one believes that it
#   has renewed. Renew by an UPDATE with the holder in its WHERE, and look at the count.
# Seen: Django 5.2.19, tortoise-orm 1.1.9, peewee 4.5.3, SQLAlchemy 2.1.9, on SQLite (that of Python 3.11), 2026-11-30.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
python=$dir/venv/bin/python
"$python" -m pip -q --disable-pip-version-check install django==5.2.19 tortoise-orm==1.1.9 peewee==4.5.3 \
  sqlalchemy==2.1.9 2>"$dir/pip.log" || { cat "$dir/pip.log" >&2; exit 69; }

cat >"$dir/tables.py" <<'PYTHON'
from tortoise import fields
from tortoise.models import Model


class Lease(Model):
    id = fields.IntField(primary_key=True)
    until = fields.IntField()
PYTHON

timeout 120 "$python" - "$dir/data" <<'PYTHON'
import asyncio
import sys
from importlib.metadata import version

import django
import peewee
from django.conf import settings
from django.db import DatabaseError
from sqlalchemy import create_engine, delete, func, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sqlalchemy.orm.exc import StaleDataError
from tortoise import Tortoise

data = sys.argv[1]
sys.path.insert(0, data.removesuffix("/data"))
settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": f"{data}.django"}})
django.setup()

from django.db import connection, models

seen = {}


class Lease(models.Model):
    until = models.IntegerField()

    class Meta:
        app_label = "leases"


def with_django(**options):
    """What the late save() says, and how many leases there are after it; the next holder's is one of them."""
    Lease.objects.all().delete()
    late = Lease.objects.create(until=1)
    Lease.objects.all().delete()
    Lease.objects.create(until=5)
    late.until = 9
    try:
        said = str(late.save(**options))
    except DatabaseError as error:
        said = type(error).__name__
    return said, Lease.objects.count()


with connection.schema_editor() as schema:
    schema.create_model(Lease)
seen["Django"] = with_django()
seen["Django, update_fields"] = with_django(update_fields=["until"])
seen["Django, force_update"] = with_django(force_update=True)


class Base(DeclarativeBase):
    pass


class Row(Base):
    __tablename__ = "lease"
    id: Mapped[int] = mapped_column(primary_key=True)
    until: Mapped[int]
    __table_args__ = {"sqlite_autoincrement": True}


engine = create_engine(f"sqlite:///{data}.sqlalchemy")
Base.metadata.create_all(engine)
with Session(engine, expire_on_commit=False) as session, Session(engine) as others:
    late = Row(until=1)
    session.add(late)
    session.commit()
    others.execute(delete(Row))
    others.add(Row(until=5))
    others.commit()
    late.until = 9
    try:
        said = str(session.commit())
    except StaleDataError as error:
        said = type(error).__name__
        session.rollback()
    seen["SQLAlchemy"] = said, others.scalar(select(func.count()).select_from(Row))


class Peewee(peewee.Model):
    id = peewee.AutoField()
    until = peewee.IntegerField()

    class Meta:
        database = peewee.SqliteDatabase(f"{data}.peewee")


Peewee.create_table()
late = Peewee.create(until=1)
Peewee.delete().execute()
Peewee.insert(id=late.id + 1, until=5).execute()
late.until = 9
seen["peewee"] = str(late.save()), Peewee.select().count()


async def with_tortoise(**options):
    from tables import Lease

    await Lease.all().delete()
    late = await Lease.create(id=1, until=1)
    await Lease.all().delete()
    await Lease.create(id=2, until=5)
    late.until = 9
    return str(await late.save(**options)), await Lease.all().count()


async def main():
    await Tortoise.init(db_url=f"sqlite://{data}.tortoise", modules={"models": ["tables"]})
    await Tortoise.generate_schemas()
    seen["Tortoise"] = await with_tortoise()
    seen["Tortoise, update_fields"] = await with_tortoise(update_fields=["until"])
    await Tortoise.close_connections()


asyncio.run(main())
print(*(f"{name} {version(name)}" for name in ("Django", "tortoise-orm", "peewee", "SQLAlchemy")))
for mapper, (said, count) in seen.items():
    print(f"{mapper}: the late save() says {said}, and there are {count} leases")
expected = {
    "Django": ("None", 2),
    "Django, update_fields": ("DatabaseError", 1),
    "Django, force_update": ("DatabaseError", 1),
    "SQLAlchemy": ("StaleDataError", 1),
    "peewee": ("0", 1),
    "Tortoise": ("None", 1),
    "Tortoise, update_fields": ("None", 1),
}
sys.exit(None if seen == expected else "the behaviour has changed")
PYTHON
