"""Locks of databases."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from . import Use


class PostgresByHand(Use):
    title = "PostgreSQL `pg_advisory_lock`, by hand"
    packages = ("psycopg[binary]==3.3.9",)
    store = "PostgreSQL"
    modules = ("psycopg",)
    made = "`SELECT pg_advisory_lock(hashtext(name))` on a connection of its own, psycopg"
    asks = "a query"
    reusable = False

    @contextmanager
    def lock(self, name: str) -> Iterator[Any]:
        with self.lib.connect(self.place, autocommit=True) as connection:
            connection.execute("SELECT pg_advisory_lock(hashtext(%s))", [name])
            yield connection
            connection.execute("SELECT pg_advisory_unlock(hashtext(%s))", [name])

    def held(self, lock: Any, entered: Any) -> bool:
        entered.execute("SELECT 1")
        return True


class MariaDbByHand(Use):
    title = "MariaDB `GET_LOCK`, by hand"
    packages = ("PyMySQL==1.2.4",)
    store = "MariaDB"
    modules = ("pymysql",)
    made = "`SELECT GET_LOCK(name, 86400)` on a connection of its own, PyMySQL"
    asks = "`IS_USED_LOCK(name) = CONNECTION_ID()`"
    reusable = False

    @contextmanager
    def lock(self, name: str) -> Iterator[Any]:
        connection = self.lib.connect(host="127.0.0.1", port=self.port, user="root")
        with connection, connection.cursor() as cursor:
            cursor.execute("SELECT GET_LOCK(%s, 86400)", [name])
            if cursor.fetchone() != (1,):
                raise RuntimeError("GET_LOCK")
            yield name, cursor
            cursor.execute("SELECT RELEASE_LOCK(%s)", [name])

    def held(self, lock: Any, entered: Any) -> bool:
        name, cursor = entered
        cursor.execute("SELECT IS_USED_LOCK(%s) = CONNECTION_ID()", [name])
        return bool(cursor.fetchone() == (1,))


class SqlalchemyDlock(Use):
    title = "sqlalchemy-dlock, PostgreSQL"
    packages = ("sqlalchemy-dlock==0.9.0", "sqlalchemy==2.1.9", "psycopg[binary]==3.3.9")
    store = "PostgreSQL"
    modules = ("sqlalchemy_dlock", "psycopg")
    made = "`with engine.connect() as it, create_sadlock(it, name)`"
    asks = "`locked`"
    reusable = False

    def connect(self) -> None:
        import sqlalchemy

        url = self.place.replace("postgresql:", "postgresql+psycopg:")
        self.engine = sqlalchemy.create_engine(url)

    @contextmanager
    def lock(self, name: str) -> Iterator[Any]:
        with self.engine.connect() as connection, self.lib.create_sadlock(connection, name) as lock:
            yield lock

    def held(self, lock: Any, entered: Any) -> bool:
        return bool(entered.locked)


class Pals(Use):
    title = "PALs"
    packages = ("PALs==0.4.0", "sqlalchemy==2.1.9", "psycopg2-binary==2.9.13")
    store = "PostgreSQL"
    modules = ("pals",)
    made = '`pals.Locker("app", url).lock(name)`'

    def connect(self) -> None:
        self.locker = self.lib.Locker(
            "app", self.place.replace("postgresql:", "postgresql+psycopg2:")
        )

    def lock(self, name: str) -> Any:
        return self.locker.lock(name)


class DjangoRows(Use):
    title = "Django `select_for_update`"
    packages = ("Django==5.2.19", "psycopg[binary]==3.3.9")
    store = "PostgreSQL"
    modules = ("django",)
    made = "`with transaction.atomic(): Row.objects.select_for_update().get(name=name)`"
    asks = "a query"
    reusable = False

    def connect(self) -> None:
        from django.conf import settings
        from django.db import connection, models

        database = {
            "ENGINE": "django.db.backends.postgresql",
            "HOST": "127.0.0.1",
            "PORT": self.port,
            "USER": "zklock",
            "NAME": "postgres",
        }
        settings.configure(DATABASES={"default": database})
        self.lib.setup()
        fields = {"name": models.TextField(primary_key=True), "__module__": "rows"}
        meta = type("Meta", (), {"app_label": "rows", "db_table": "rows"})
        row: Any = type("Row", (models.Model,), fields | {"Meta": meta})
        self.rows = row.objects
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_lock(1)")
            cursor.execute("CREATE TABLE IF NOT EXISTS rows (name text PRIMARY KEY)")
            cursor.execute("SELECT pg_advisory_unlock(1)")

    @property
    def port(self) -> int:
        return int(self.place.rpartition(":")[2].partition("/")[0])

    @contextmanager
    def lock(self, name: str) -> Iterator[Any]:
        from django.db import transaction

        self.rows.get_or_create(name=name)
        with transaction.atomic():
            yield self.rows.select_for_update().get(name=name)

    def held(self, lock: Any, entered: Any) -> bool:
        entered.refresh_from_db()
        return True
