"""The code of the documentation's pages, run as it stands there."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any

import pytest

pytest.importorskip("moto", reason="no moto: install the extra test")
import boto3

from tests.contract.fencing import howto
from zklock.errors import GuardUnusable, StaleToken
from zklock.testing.guard_conformance import CHECKS, Check, Effort, Handle, Subject
from zklock.token import FencingToken

A, B = FencingToken(7, 33), FencingToken(7, 34)

# The stand-in of AWS answers in about 10 ms.
EFFORT = Effort(interleavings=25, races=2, writes=15, kills=4)


@dataclass
class Grant:
    token: FencingToken


@pytest.fixture(scope="module")
def aws() -> Iterator[str]:
    """Serve moto from one thread, so that its own steps are atomic."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        def log(self, type: str, message: str, *args: object) -> None:
            pass

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        app = DomainDispatcherApplication(create_backend_app)
        server = make_server("127.0.0.1", 0, app, threaded=False, request_handler=Quiet)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}"
        try:
            boto3.client("s3", endpoint_url=url).create_bucket(Bucket="reports")
            dynamodb(url).create_table(
                TableName="reports",
                KeySchema=[{"AttributeName": "resource", "KeyType": "HASH"}],
                AttributeDefinitions=[{"AttributeName": "resource", "AttributeType": "S"}],
                BillingMode="PAY_PER_REQUEST",
            )
            yield url
        finally:
            server.shutdown()
            thread.join()
            server.server_close()


def dynamodb(url: str) -> Any:
    return boto3.resource("dynamodb", endpoint_url=url)


@dataclass(frozen=True)
class DynamoSubject(Subject):
    name: str
    url: str
    key: str = ""

    def table(self) -> Any:
        return dynamodb(self.url).Table("reports")

    def fresh(self) -> DynamoSubject:
        made = replace(self, key=uuid.uuid4().hex)
        howto.DynamoGuard(made.table(), made.key).create()
        return made

    def open(self) -> Handle:
        return DynamoHandle(self)

    def restart(self) -> None:
        """Leave the service alone: its connections are opened anew."""

    def _change(self, expression: str, **values: object) -> None:
        self.table().update_item(
            Key={"resource": self.key},
            UpdateExpression=expression,
            **({"ExpressionAttributeValues": values} if values else {}),
        )

    def remove_mark(self) -> None:
        self._change("REMOVE fence")

    def spoil_mark(self) -> None:
        self._change("SET fence = :wrong", **{":wrong": " " * 27})


class DynamoHandle(Handle):
    def __init__(self, subject: DynamoSubject) -> None:
        self.table, self.key = subject.table(), subject.key
        self.guard: Any = howto.DynamoGuard(self.table, self.key)

    def write(self, data: bytes, token: Any) -> None:
        self.guard.write(data, token)

    def read(self) -> bytes | None:
        item = self.table.get_item(Key={"resource": self.key}, ConsistentRead=True)["Item"]
        return bytes(item["content"].value) if "content" in item else None

    def close(self) -> None:
        self.table.meta.client.close()


@pytest.mark.parametrize("check", CHECKS, ids=str)
@pytest.mark.parametrize("kind", ["S3", "DynamoDB"])
def test_conforms(kind: str, check: Check, aws: str, results: dict[str, dict[str, str]]) -> None:
    make = howto.S3Subject if kind == "S3" else DynamoSubject
    subject = make(f"how-to of {kind}, moto {version('moto')}", aws)
    assert check.applies_to(subject)
    results.setdefault(subject.name, {})[check.name] = str(check(subject, EFFORT))


def test_the_use_of_the_s3_guard(aws: str) -> None:
    s3 = boto3.client("s3", endpoint_url=aws)
    names: dict[str, Any] = {"S3Guard": howto.S3Guard, "s3": s3, "grant": Grant(B)}
    exec(howto.blocks("howto/fencing-s3.md")[1], names)
    assert names["guard"].read() == b'{"total": 7}'
    with pytest.raises(StaleToken, match=r"s3://reports/today\.json: token"):
        names["guard"].write(b"late", Grant(A))
    s3.delete_object(Bucket="reports", Key="today.json")
    with pytest.raises(GuardUnusable):
        names["guard"].claim(B)
    s3.close()


def test_metadata_would_not_change_the_etag(aws: str) -> None:
    """Why the page keeps the mark in the body: a claim must invalidate the earlier ETag."""
    s3 = boto3.client("s3", endpoint_url=aws)
    item = {"Bucket": "reports", "Key": "metadata", "Body": b"data"}
    before = s3.put_object(**item, Metadata={"fence": str(A)})["ETag"]
    s3.put_object(**item, Metadata={"fence": str(B)}, IfMatch=before)
    late = s3.put_object(**{**item, "Body": b"late"}, Metadata={"fence": str(A)}, IfMatch=before)
    assert late["ResponseMetadata"]["HTTPStatusCode"] == 200
    s3.close()


def test_the_use_of_the_dynamodb_guard(aws: str) -> None:
    names: dict[str, Any] = {
        "DynamoGuard": howto.DynamoGuard,
        "dynamodb": dynamodb(aws),
        "grant": Grant(B),
    }
    exec(howto.blocks("howto/fencing-dynamodb.md")[1], names)
    with pytest.raises(StaleToken, match="today: token"):
        names["guard"].write(b"late", Grant(A))


def test_the_test_and_the_report_of_the_page_about_own_guards(
    aws: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    names: dict[str, Any] = {}
    for block in howto.blocks("howto/write-a-guard.md")[1:]:
        exec(block, names)
    order = next(check for check in CHECKS if check.name == "order")
    subject = howto.S3Subject("S3", aws)
    names["test_s3_guard"](order, subject)
    monkeypatch.setattr("zklock.testing.guard_conformance.CHECKS", (order,))
    with contextlib.suppress(StopIteration):
        names["show"](subject)
    assert capsys.readouterr().out.split() == ["order", "S3", "9"]
