"""S3Guard and DynamoDbGuard, and the pages about them, over a stand-in of AWS.

The stand-in, moto, serves one request after the other. So what is not shown here: what AWS does
with requests at the same time, its answer 409, replicas, and how late a request may arrive.
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import Any, cast

import pytest

pytest.importorskip("moto", reason="no moto: install the extra test")
import boto3

from tests.contract.fencing import howto
from tests.modes import repeated
from zklock.errors import GuardUnusable, NoAnswer, OutcomeUnknown, StaleToken
from zklock.fencing import DynamoDbGuard, Guard, S3Guard
from zklock.testing.guard_conformance import CHECKS, Check, Effort, Handle, Subject
from zklock.testing.ports import free_ports
from zklock.token import FencingToken

A, B = FencingToken(7, 33), FencingToken(7, 34)

# The stand-in of AWS answers in about 10 ms.
EFFORT = Effort(interleavings=25, races=2, writes=15, kills=4, stops=repeated(30, 5))


@dataclass
class Grant:
    token: FencingToken


class Faulty:
    """Serves an application; the next changes meet the faults that are queued.

    ``cut`` answers a read: the connection ends in the middle of the body.
    ``lose``: the change happens, and the answer is an error 500. ``fail``: it does not happen, and
    the answer is the same. ``conflict``: it does not happen, and the answer is 409.
    """

    def __init__(self, app: Any) -> None:
        self._app = app
        self.faults: deque[str] = deque()

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] == "GET" and "cut" in self.faults:
            self.faults.remove("cut")
            body = b"".join(self._app(environ, start_response))
            return [body[: len(body) // 2]]
        changes = environ["REQUEST_METHOD"] == "PUT" or environ.get(
            "HTTP_X_AMZ_TARGET", ""
        ).endswith("UpdateItem")
        fault = self.faults.popleft() if changes and self.faults else ""
        if not fault:
            return cast("Iterable[bytes]", self._app(environ, start_response))
        if fault == "lose":
            for _ in self._app(environ, lambda status, headers, error=None: None):
                pass
        else:
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        status = "409 Conflict" if fault == "conflict" else "500 Internal Server Error"
        start_response(status, [("Content-Length", "0")])
        return [b""]


@dataclass
class Aws:
    url: str
    faults: deque[str]


@pytest.fixture(scope="module")
def served() -> Iterator[Aws]:
    """Serve moto from one thread, so that its own steps are atomic."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        def log(self, type: str, message: str, *args: object) -> None:
            pass

    app = Faulty(DomainDispatcherApplication(create_backend_app))
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
        yield Aws(url, app.faults)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def aws(served: Aws) -> str:
    return served.url


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
        DynamoDbGuard(made.table(), {"resource": made.key}).create()
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
        self._change("REMOVE zklock_fence")

    def spoil_mark(self) -> None:
        self._change("SET zklock_fence = :wrong", **{":wrong": " " * 27})


class DynamoHandle(Handle):
    def __init__(self, subject: DynamoSubject) -> None:
        self.table, self.key = subject.table(), subject.key
        self.guard: Guard = DynamoDbGuard(self.table, {"resource": self.key})

    def write(self, data: bytes, token: Any) -> None:
        assert isinstance(self.guard, DynamoDbGuard)
        self.guard.write({"content": data}, token)

    def read(self) -> bytes | None:
        item = self.table.get_item(Key={"resource": self.key}, ConsistentRead=True)["Item"]
        return bytes(item["content"].value) if "content" in item else None

    def close(self) -> None:
        self.table.meta.client.close()


LONG = {"interleavings", "races", "rising", "crashes", "edges", "order", "stopped"}
THOROUGH = pytest.mark.thorough(
    "the long conformance checks of the guards for S3 and DynamoDB: AWS's stand-in takes a core"
)


@pytest.mark.parametrize(
    "check",
    [pytest.param(each, marks=[THOROUGH] * (each.name in LONG)) for each in CHECKS],
    ids=str,
)
@pytest.mark.parametrize("kind", ["S3", "DynamoDB"])
def test_conforms(kind: str, check: Check, aws: str, results: dict[str, dict[str, str]]) -> None:
    make = howto.S3Subject if kind == "S3" else DynamoSubject
    guard = "S3Guard" if kind == "S3" else "DynamoDbGuard"
    subject = make(f"{guard}, boto3 {version('boto3')}, moto {version('moto')}", aws)
    assert check.applies_to(subject)
    results.setdefault(subject.name, {})[check.name] = str(check(subject, EFFORT))


def test_the_page_about_s3(aws: str) -> None:
    s3 = boto3.client("s3", endpoint_url=aws)
    names: dict[str, Any] = {"s3": s3, "grant": Grant(B)}
    for block in howto.blocks("howto/fencing-s3.md"):
        exec(block, names)
    assert names["guard"].read() == b'{"total": 7}'
    with pytest.raises(StaleToken, match=r"s3://reports/today\.json: token"):
        names["guard"].write(b"late", Grant(A))
    s3.delete_object(Bucket="reports", Key="today.json")
    with pytest.raises(GuardUnusable):
        names["guard"].claim(B)
    s3.close()


def test_the_page_about_dynamodb(aws: str) -> None:
    names: dict[str, Any] = {"dynamodb": dynamodb(aws), "grant": Grant(B)}
    for block in howto.blocks("howto/fencing-dynamodb.md"):
        exec(block, names)
    item = dynamodb(aws).Table("reports").get_item(Key={"resource": "today"})["Item"]
    assert (item["total"], item["runs"]) == (7, 1)
    with pytest.raises(StaleToken, match="dynamodb://reports/resource=today: token"):
        names["guard"].write({"total": 8}, Grant(A))


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


# What boto3 sends again.


class Resource(ABC):
    """A resource to which each write adds a letter, or which each write replaces by it."""

    def __init__(self, url: str) -> None:
        self.url, self.key = url, uuid.uuid4().hex
        self.other = self.guard()
        self.other.create()

    @abstractmethod
    def guard(self, between: Callable[[], object] | None = None) -> Any:
        """Return a guard; ``between`` is called before each request that is sent again."""

    @abstractmethod
    def write(self, guard: Any, letter: str, token: FencingToken) -> None:
        """Write through the guard."""

    @abstractmethod
    def letters(self) -> str:
        """Return the letters of the writes that happened, in any order."""


def sends_again(client: Any, event: str, between: Callable[[], object]) -> None:
    """Let boto3 send again at once what was answered by an error 500."""

    def decide(response: Any, **_: object) -> float | None:
        if response is not None and response[0].status_code == 500:
            between()
            return 0
        return None

    client.meta.events.register_first(f"needs-retry.{event}", decide)


class S3Object(Resource):
    def guard(self, between: Callable[[], object] | None = None) -> S3Guard:
        client = boto3.client("s3", endpoint_url=self.url)
        if between is not None:
            sends_again(client, "s3.PutObject", between)
        return S3Guard(client, "reports", self.key)

    def write(self, guard: Any, letter: str, token: FencingToken) -> None:
        guard.write(letter.encode(), token)

    def letters(self) -> str:
        text: bytes = self.other.read()
        return text.decode()


class DynamoItem(Resource):
    def guard(self, between: Callable[[], object] | None = None) -> DynamoDbGuard:
        table = dynamodb(self.url).Table("reports")
        if between is not None:
            sends_again(table.meta.client, "dynamodb.UpdateItem", between)
        return DynamoDbGuard(table, {"resource": self.key})

    def write(self, guard: Any, letter: str, token: FencingToken) -> None:
        values = {":none": [], ":new": [letter]}
        guard.update("SET l = list_append(if_not_exists(l, :none), :new)", token, values=values)

    def letters(self) -> str:
        table = dynamodb(self.url).Table("reports")
        return "".join(table.get_item(Key={"resource": self.key})["Item"].get("l", ()))


@pytest.fixture(params=[S3Object, DynamoItem])
def resource(request: pytest.FixtureRequest, aws: str) -> Resource:
    made: Resource = request.param(aws)
    return made


def both(resource: Resource, happened: str) -> str:
    """Return what is left of these writes: the last one replaces the rest of an object."""
    return happened[-1:] if isinstance(resource, S3Object) else happened


@pytest.mark.hazard("H52")
def test_what_boto3_itself_sends_again_happens_once(resource: Resource, served: Aws) -> None:
    served.faults.append("lose")
    resource.write(resource.other, "a", A)
    assert not served.faults
    assert resource.letters() == "a"
    assert resource.other.highest() == A


@pytest.mark.hazard("H52")
@pytest.mark.parametrize("token", [A, B], ids=["the same holder's", "the next holder's"])
def test_a_write_that_is_sent_again_after_another_does_not_come_back(
    resource: Resource, served: Aws, token: FencingToken
) -> None:
    """It was accepted, its answer was lost, another one wrote: nothing is undone or doubled."""
    guard = resource.guard(lambda: resource.write(resource.other, "b", token))
    served.faults.append("lose")
    resource.write(guard, "a", A)
    assert resource.letters() == both(resource, "ab")
    assert guard.highest() == token


@pytest.mark.hazard("H52")
@pytest.mark.parametrize("fault", ["lose", "fail"])
def test_an_outcome_that_cannot_be_known_is_told(
    resource: Resource, served: Aws, fault: str
) -> None:
    def others() -> None:
        for letter in "bcdefghi":
            resource.write(resource.other, letter, A)

    guard = resource.guard(others)
    served.faults.append(fault)
    with pytest.raises(OutcomeUnknown, match="read, and decide") as caught:
        resource.write(guard, "a", A)
    assert (caught.value.resource, caught.value.token) == (guard.resource, A)
    assert resource.letters() == both(resource, ("a" if fault == "lose" else "") + "bcdefghi")


@pytest.mark.hazard("H52")
def test_as_many_others_as_the_mark_has_numbers_for(resource: Resource, served: Aws) -> None:
    def others() -> None:
        for letter in "bcdefgh":
            resource.write(resource.other, letter, B)

    guard = resource.guard(others)
    served.faults.append("lose")
    resource.write(guard, "a", A)
    assert resource.letters() == both(resource, "abcdefgh")


def test_a_write_that_did_not_happen_is_made_or_refused(resource: Resource, served: Aws) -> None:
    guard = resource.guard(lambda: resource.write(resource.other, "b", A))
    served.faults.append("fail")
    resource.write(guard, "a", A)
    assert resource.letters() == both(resource, "ba")
    guard = resource.guard(lambda: resource.other.claim(B))
    served.faults.append("fail")
    with pytest.raises(StaleToken):
        resource.write(guard, "c", A)
    assert resource.letters() == both(resource, "ba")


def test_a_mark_that_was_lost_after_the_write(resource: Resource, served: Aws) -> None:
    def remove() -> None:
        if isinstance(resource, S3Object):
            boto3.client("s3", endpoint_url=resource.url).delete_object(
                Bucket="reports", Key=resource.key
            )
        else:
            dynamodb(resource.url).Table("reports").delete_item(Key={"resource": resource.key})

    guard = resource.guard(remove)
    served.faults.append("lose")
    with pytest.raises(GuardUnusable) as caught:
        resource.write(guard, "a", A)
    assert "may have happened" in caught.value.__notes__[0]


def test_create_keeps_what_its_first_sending_has_made(resource: Resource, served: Aws) -> None:
    resource.write(resource.other, "a", A)
    resource.other.create()
    assert resource.letters() == "a"
    resource.key = uuid.uuid4().hex
    served.faults.append("lose")
    guard = resource.guard()
    guard.create()
    assert guard.highest() is None


def test_s3_refuses_for_now_what_meets_another_request(
    aws: str, served: Aws, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(S3Guard, "_wait", staticmethod(lambda turn: None))
    one = S3Object(aws)
    guard = one.guard()
    served.faults.extend(["conflict"] * 3)
    guard.write(b"a", A)
    assert guard.read() == b"a"
    served.faults.extend(["conflict"] * 3)
    one.key = uuid.uuid4().hex
    one.guard().create()
    assert one.guard().read() == b""
    served.faults.extend(["conflict"] * 21)
    with pytest.raises(OutcomeUnknown, match="no answer came") as caught:
        guard.write(b"b", A)
    assert "409" in str(caught.value.__cause__)
    assert not served.faults
    assert guard.read() == b"a"


def test_what_goes_wrong_is_told_with_its_cause(resource: Resource, served: Aws) -> None:
    from botocore.exceptions import ClientError

    guard = resource.guard()
    resource.write(guard, "a", A)
    served.faults.extend(["fail"] * 20)  # more often than boto3 sends it
    with pytest.raises(OutcomeUnknown, match="may still happen") as unknown:
        resource.write(guard, "b", A)
    assert isinstance(unknown.value.__cause__, ClientError)
    served.faults.clear()
    assert resource.letters() == "a"
    assert guard.highest() == A


@pytest.mark.slow("real servers, and connections that are struck or lost")
def test_a_service_that_is_not_there_or_refuses(aws: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from botocore.config import Config
    from botocore.exceptions import ClientError, EndpointConnectionError, NoCredentialsError

    once = Config(retries={"total_max_attempts": 1})
    (nothing,) = free_ports()

    def guards(url: str, place: str) -> list[tuple[Guard, Callable[[Guard], object]]]:
        client = boto3.client("s3", endpoint_url=url, config=once)
        table = boto3.resource("dynamodb", endpoint_url=url, config=once).Table(place)
        return [
            (S3Guard(client, place, "key"), lambda guard: cast(S3Guard, guard).write(b"", A)),
            (
                DynamoDbGuard(table, {"resource": "today"}),
                lambda guard: cast(DynamoDbGuard, guard).write({}, A),
            ),
        ]

    for guard, write in guards(f"http://127.0.0.1:{nothing}", "reports"):
        with pytest.raises(NoAnswer, match="is unreachable") as caught:
            write(guard)  # which looks first
        assert isinstance(caught.value.__cause__, EndpointConnectionError)
        with pytest.raises(OutcomeUnknown):
            guard.create()
    for guard, write in guards(aws, "nowhere"):
        for refused in (type(guard).create, type(guard).highest, write):
            with pytest.raises(GuardUnusable, match="fix what it reports") as unusable:
                refused(guard)
            assert isinstance(unusable.value.__cause__, ClientError)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    boto3.setup_default_session()
    for guard, _ in guards(aws, "reports"):
        with pytest.raises(GuardUnusable, match="credentials") as unusable:
            guard.highest()
        assert isinstance(unusable.value.__cause__, NoCredentialsError)


def test_an_object_that_was_read_in_part_is_not_written_back(aws: str, served: Aws) -> None:
    guard = S3Object(aws).guard()
    guard.write(b"x" * 1000, A)
    for call in (guard.read, lambda: guard.claim(B)):
        served.faults.append("cut")
        with pytest.raises(NoAnswer, match="is unreachable"):
            call()
        assert not served.faults
    assert guard.read() == b"x" * 1000
    assert guard.highest() == A


@pytest.mark.parametrize("body", [b"", b"none", b"none\n", b"x" * 1000, str(A).encode() + b" 1\n"])
def test_an_object_that_has_no_mark_is_refused(aws: str, body: bytes) -> None:
    client = boto3.client("s3", endpoint_url=aws)
    key = uuid.uuid4().hex
    client.put_object(Bucket="reports", Key=key, Body=body)
    guard = S3Guard(client, "reports", key)
    guard.create()
    for call in (guard.highest, guard.read, lambda: guard.write(b"x", B), lambda: guard.claim(B)):
        with pytest.raises(GuardUnusable, match="is not a token but"):
            call()
    assert client.get_object(Bucket="reports", Key=key)["Body"].read() == body


def test_options_of_s3(aws: str) -> None:
    client = boto3.client("s3", endpoint_url=aws)
    options = {"ContentType": "application/json"}
    guard = S3Guard(client, "reports", uuid.uuid4().hex, put_options=options)
    guard.create()
    guard.write(bytearray(b"{}"), A)
    guard.claim(B)
    assert guard.read() == b"{}"
    key = guard.resource.rpartition("/")[2]
    assert client.head_object(Bucket="reports", Key=key)["ContentType"] == "application/json"
    with pytest.raises(TypeError, match="data must be bytes, not str"):
        guard.write("text", B)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="put_options itself: IfMatch"):
        S3Guard(client, "reports", "key", put_options={"IfMatch": "x"})
    with pytest.raises(TypeError, match=r"takes boto3\.client\('s3'\)"):
        S3Guard(boto3.client("dynamodb", endpoint_url=aws), "reports", "key")


def test_expressions_of_dynamodb(aws: str) -> None:
    from botocore.exceptions import ClientError

    item = DynamoItem(aws)
    guard, table = item.guard(), dynamodb(aws).Table("reports")

    def found() -> Any:
        made = table.get_item(Key={"resource": item.key})["Item"]
        del made["resource"], made["zklock_fence"]
        return made

    guard.write({"total": 1, "set": "a reserved word", "data": b"x"}, A)
    guard.update("ADD runs :one", A, values={":one": 2})
    guard.update("REMOVE #d set #t = :t", A, names={"#d": "data", "#t": "total"}, values={":t": 5})
    guard.write({}, A)
    assert found() == {"total": 5, "set": "a reserved word", "runs": 2}
    guard.update("SET runs = :n", A, values={":n": 3, ":two": 2}, condition="runs = :two")
    with pytest.raises(ClientError, match="ConditionalCheckFailed"):
        guard.update("SET runs = :n", B, values={":n": 4, ":two": 2}, condition="runs = :two")
    assert found()["runs"] == 3
    assert guard.highest() == A
    with pytest.raises(StaleToken):
        guard.update("ADD runs :one", FencingToken(1, 1), values={":one": 1})
    with pytest.raises(ClientError, match="Validation"):
        guard.update("NONSENSE", B)
    for wrong in ({"#zklock_x": "a"}, {":zklock_x": "a"}):
        with pytest.raises(ValueError, match="uses these names itself"):
            guard.update("REMOVE a", A, names=wrong)
    with pytest.raises(ValueError, match="is the mark's name: pass another attribute="):
        guard.write({"zklock_fence": 1}, A)
    with pytest.raises(TypeError, match="values must be a mapping"):
        guard.write(b"bytes", A)  # type: ignore[arg-type]


def test_what_is_no_table_or_key_is_refused(aws: str) -> None:
    table = dynamodb(aws).Table("reports")
    for wrong in (table.meta.client, dynamodb(aws)):
        with pytest.raises(TypeError, match=r"boto3\.resource\('dynamodb'\)\.Table"):
            DynamoDbGuard(wrong, {"resource": "a"})
    wrong_keys: tuple[Any, ...] = ("today", {})
    for key in wrong_keys:
        with pytest.raises(TypeError, match="key must be the item's key"):
            DynamoDbGuard(table, key)
    with pytest.raises(ValueError, match="cannot be in the key"):
        DynamoDbGuard(table, {"zklock_fence": "a"})
    guard = DynamoDbGuard(table, {"another": "a"})
    for call in (guard.highest, guard.create):
        with pytest.raises(GuardUnusable, match="key"):
            call()


def test_a_number_in_place_of_the_mark_is_refused(aws: str) -> None:
    item = DynamoItem(aws)
    dynamodb(aws).Table("reports").put_item(Item={"resource": item.key, "zklock_fence": 34})
    with pytest.raises(GuardUnusable, match="is not a token but"):
        item.guard().claim(B)
