"""Run by ``manage.py test`` on SQLite and on PostgreSQL."""

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, close_old_connections, connection, transaction
from django.test import TransactionTestCase, override_settings

import zklock
from shop.models import Sale
from zklock import FencingToken
from zklock.contrib.django import claim, create_mark, fence, fenced_atomic, lock, token
from zklock.contrib.django.configuration import configuration

OLD, NEW = FencingToken(7, 1), FencingToken(7, 2)


def sell() -> None:
    Sale.objects.create(token="", process=0)


class Fenced(TransactionTestCase):  # type: ignore[misc]
    def setUp(self) -> None:
        with connection.cursor() as cursor:
            cursor.execute("DELETE FROM zklock_fence")
        create_mark("sales")
        create_mark("sales")

    def sold(self) -> int:
        return int(Sale.objects.count())

    def test_a_present_token_commits(self) -> None:
        for each in (OLD, OLD, NEW):
            with fenced_atomic(each, "sales"):
                sell()
        assert self.sold() == 3

    def test_a_stale_token_commits_nothing(self) -> None:
        claim(NEW, "sales")
        with pytest.raises(zklock.StaleToken), fenced_atomic(OLD, "sales"):
            sell()
        assert self.sold() == 0
        with fenced_atomic(NEW, "sales"):
            sell()
        assert self.sold() == 1

    def test_after_a_stale_token_there_is_only_the_rollback(self) -> None:
        claim(NEW, "sales")
        with transaction.atomic():
            sell()
            try:
                with fence(OLD, "sales"):
                    sell()
            except zklock.StaleToken:
                pass  # whoever swallows it commits nothing
            with pytest.raises(transaction.TransactionManagementError):
                sell()
        assert self.sold() == 0

    def test_the_outer_transaction_is_rolled_back_as_a_whole(self) -> None:
        claim(NEW, "sales")
        with transaction.atomic():
            sell()
            try:
                with fenced_atomic(OLD, "sales"):
                    sell()
            except zklock.StaleToken:
                pass
        assert self.sold() == 0

    def test_it_is_refused_outside_of_a_transaction(self) -> None:
        with (
            pytest.raises(transaction.TransactionManagementError, match="fenced_atomic"),
            fence(NEW, "sales"),
        ):
            sell()
        assert self.sold() == 0

    def test_without_a_mark_nothing_is_written(self) -> None:
        with pytest.raises(zklock.GuardUnusable), fenced_atomic(NEW, "never made"):
            sell()
        assert self.sold() == 0

    def test_an_error_of_the_block_takes_the_claim_back(self) -> None:
        with pytest.raises(ZeroDivisionError), fenced_atomic(NEW, "sales"):
            raise ZeroDivisionError
        with fenced_atomic(OLD, "sales"):
            sell()
        assert self.sold() == 1

    def test_a_connection_that_was_closed_in_the_block_is_told(self) -> None:
        with pytest.raises(zklock.ZkLockError), fenced_atomic(NEW, "sales"):
            sell()
            close_old_connections()
        assert self.sold() == 0

    def test_an_error_of_the_database_in_a_savepoint_is_survived(self) -> None:
        with fenced_atomic(NEW, "sales"):
            sell()
            with pytest.raises(DatabaseError), transaction.atomic(), connection.cursor() as cursor:
                cursor.execute("SELECT nothing FROM nowhere")
            sell()
        assert self.sold() == 2

    def test_the_setting_says_where_zookeeper_is(self) -> None:
        with lock("report", timeout=60) as grant:
            claim(grant, "sales")
            assert grant.lock_path.endswith("/report")
        wrong = [{}, {"HOSTS": ""}, {"HOSTS": "a:1", "HOST": "b:1"}]
        for each in wrong:
            with override_settings(ZKLOCK=each), pytest.raises(ImproperlyConfigured):
                lock("other")
        with override_settings(ZKLOCK={"HOSTS": ["a:1", "b:2", "/chroot"]}):
            assert configuration().hosts == "a:1,b:2/chroot"
        with pytest.raises(RuntimeError, match="run_singleton"):
            token()
