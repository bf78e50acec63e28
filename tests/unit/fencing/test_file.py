from __future__ import annotations

import contextlib
import fcntl
import io
import itertools
import multiprocessing
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from tests.modes import repeated
from tests.unit.fencing.strikes import interrupted, strikes
from zklock.errors import GuardUnusable, NoAnswer, StaleToken
from zklock.fencing import FileGuard
from zklock.token import FencingToken

A, B, C = (FencingToken(7, number) for number in (33, 34, 35))

SPAWN = multiprocessing.get_context("spawn")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "report.json"


@pytest.fixture
def guard(path: Path) -> FileGuard:
    guard = FileGuard(path)
    guard.create()
    return guard


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


@pytest.mark.parametrize("wrong", ["", ".", "/"])
def test_a_folder_is_no_file(wrong: str) -> None:
    with pytest.raises(ValueError, match="not the path of a file"):
        FileGuard(wrong)


def test_permissions_are_kept(guard: FileGuard, path: Path) -> None:
    path.write_bytes(b"")
    path.chmod(0o640)
    Path(f"{path}.fence").chmod(0o660)
    guard.write(b"a", A)
    assert path.stat().st_mode & 0o7777 == 0o640
    assert Path(f"{path}.fence").stat().st_mode & 0o7777 == 0o660


def test_a_link_is_followed(guard: FileGuard, path: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(path)
    FileGuard(link).write(b"a", A)
    assert link.is_symlink()
    assert path.read_bytes() == b"a"
    assert guard.highest() == A


def test_only_bytes_are_written(guard: FileGuard) -> None:
    with pytest.raises(TypeError):
        guard.write("text", A)  # type: ignore[arg-type]
    guard.write(bytearray(b"ab"), A)
    assert guard.highest() == A


def test_another_writer_in_the_middle_is_waited_for(guard: FileGuard, path: Path) -> None:
    descriptor = os.open(f"{path}.fence", os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    late = r"another process has been writing for 0\.05 s"
    with pytest.raises(NoAnswer, match=late) as caught:
        FileGuard(path, timeout=0.05).write(b"a", A)
    assert isinstance(caught.value, TimeoutError)
    writer = threading.Thread(target=guard.write, args=(b"a", A))
    writer.start()
    os.close(descriptor)
    writer.join(10)
    assert path.read_bytes() == b"a"


def test_a_replaced_mark_is_looked_at_again(
    guard: FileGuard, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between opening the mark and locking it, another writer may have replaced it."""
    real = fcntl.flock
    once = iter([True])

    def flock(descriptor: int, operation: int) -> None:
        if operation & fcntl.LOCK_NB and next(once, False):
            fresh = path.with_name("fresh")
            fresh.write_text(str(B))
            fresh.replace(f"{path}.fence")
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(StaleToken):
        guard.write(b"late", A)


def fork_in_a_write(path: Path, step: int, told: Connection, go_on: Connection) -> None:
    """Fork on another thread when the write syncs for the time of this number, and be killed."""
    real = os.fsync

    def fork() -> None:
        if os.fork() == 0:
            told.send("forked")
            go_on.recv()
            os._exit(0)

    def fork_and_be_killed(descriptor: int) -> None:
        nonlocal step
        step -= 1
        if step:
            real(descriptor)
            return
        forker = threading.Thread(target=fork)
        forker.start()
        forker.join()
        os.kill(os.getpid(), signal.SIGKILL)

    os.fsync = fork_and_be_killed  # type: ignore[assignment]
    FileGuard(path).write(b"late", A)


@pytest.mark.hazard("H50")
@pytest.mark.parametrize("step", [1, 3], ids=["mark", "content"])
def test_a_child_forked_in_a_write_does_not_keep_the_lock(
    guard: FileGuard, path: Path, step: int
) -> None:
    """The writer forks in the middle of its write and is killed; its child lives on."""
    (telling, told), (go_on, going) = SPAWN.Pipe(), SPAWN.Pipe()
    writer = SPAWN.Process(target=fork_in_a_write, args=(path, step, told, going))
    writer.start()
    assert telling.poll(30)
    assert telling.recv() == "forked"
    writer.join()  # its sentinel is open in its child
    assert writer.exitcode == -signal.SIGKILL
    FileGuard(path, timeout=1).write(b"b", B)
    assert path.read_bytes() == b"b"
    go_on.send("end")


@pytest.mark.hazard("H50")
def test_neighbours_are_left_alone(guard: FileGuard, path: Path, tmp_path: Path) -> None:
    """No name that somebody else may use is written to, through a link neither."""
    neighbours = [path.with_name(f"report.json{end}") for end in (".new", ".fence.new", ".tmp")]
    outside = tmp_path / "elsewhere"
    outside.mkdir()
    target, twin = outside / "target", outside / "twin"
    target.write_bytes(b"theirs")
    twin.write_bytes(b"theirs")
    neighbours[0].write_bytes(b"theirs")
    neighbours[1].symlink_to(target)
    neighbours[2].hardlink_to(twin)
    before = names(tmp_path)
    guard.write(b"a", A)
    guard.write(b"b", B)
    assert names(tmp_path) == sorted([*before, "report.json"])
    assert {each.read_bytes() for each in (*neighbours, target, twin)} == {b"theirs"}
    assert neighbours[1].is_symlink()
    assert neighbours[2].samefile(twin)


@pytest.mark.hazard("H50")
def test_a_guarded_file_may_be_named_like_anything(tmp_path: Path) -> None:
    guards = [FileGuard(tmp_path / name) for name in ("a", "a.new", "a.fence.new", "b" * 249)]
    for guard in guards:
        guard.create()
    for token in (A, B):
        for guard in guards:
            guard.write(guard.resource.encode(), token)
    for guard in guards:
        assert Path(guard.resource).read_bytes() == guard.resource.encode()
        assert guard.highest() == B


@pytest.mark.parametrize("there", [True, False])
def test_a_link_that_has_taken_the_name_meanwhile_is_replaced(
    guard: FileGuard, path: Path, tmp_path: Path, there: bool
) -> None:
    """It is not followed, nor are its permission bits taken: on Linux they are 0777."""
    target, plain = tmp_path / "target", tmp_path / "plain"
    plain.touch()
    if there:
        target.write_bytes(b"theirs")
    path.symlink_to(target)
    guard.write(b"a", A)
    assert not path.is_symlink()
    assert path.read_bytes() == b"a"
    assert path.stat().st_mode == plain.stat().st_mode
    assert not there or target.read_bytes() == b"theirs"


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_a_mark_that_is_no_file_is_refused(guard: FileGuard, path: Path, kind: str) -> None:
    mark = Path(f"{path}.fence")
    mark.rename(f"{path}.elsewhere")
    if kind == "link":
        mark.symlink_to(f"{path}.elsewhere")
    elif kind == "pipe":
        os.mkfifo(mark)
    else:
        mark.mkdir()
    for call in (lambda: guard.write(b"a", A), guard.highest):
        with pytest.raises(GuardUnusable, match="is not a token but"):
            call()
    assert not path.exists()


def test_what_is_private_is_never_open_to_others(guard: FileGuard, path: Path) -> None:
    path.write_bytes(b"")
    path.chmod(0o600)
    seen = []
    real = os.write

    def write(descriptor: int, data: memoryview) -> int:
        seen.append(os.fstat(descriptor).st_mode & 0o777)
        return real(descriptor, data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "write", write)
        guard.write(b"secret", A)
    assert seen[-1] == 0o600


@pytest.mark.hazard("H49")
def test_a_mark_made_again_shuts_out_a_write_under_way(path: Path) -> None:
    """Paused at any line of its write, an earlier holder finds the mark removed and made again."""
    line = 0
    while True:
        line += 1
        for left in path.parent.iterdir():
            left.unlink()
        guard = FileGuard(path)
        guard.create()
        guard.claim(FencingToken(7, 32))
        other = FileGuard(path, timeout=1)
        left_lines = line

        def meanwhile(other: FileGuard = other) -> None:
            Path(f"{path}.fence").unlink()
            other.create()
            other.write(b"new", B)

        def trace(frame: Any, event: str, _: Any, meanwhile: Any = meanwhile) -> Any:
            nonlocal left_lines
            if "zklock/fencing/file.py" not in frame.f_code.co_filename:
                return None
            if event == "line":
                left_lines -= 1
                if left_lines == 0:
                    meanwhile()
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            with contextlib.suppress(StaleToken):
                guard.write(b"old", A)
        finally:
            sys.settrace(before)
        if left_lines > 0:
            break
        assert path.read_bytes() == b"new", f"line {line}"
        assert other.highest() == B, f"line {line}"
        assert names(path.parent) == ["report.json", "report.json.fence"]
    assert line > 60


@pytest.fixture
def quick_path(tmp_path: Path) -> Iterator[Path]:
    """A place where fsync costs nothing, if there is one."""
    shared = Path("/dev/shm")
    if not os.access(shared, os.W_OK):
        yield tmp_path / "report.json"
        return
    with tempfile.TemporaryDirectory(dir=shared) as folder:
        yield Path(folder) / "report.json"
        # An exception between the opening of the folder and its keeping leaves it open.
        for descriptor in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                if str(descriptor.readlink()) == folder:
                    os.close(int(descriptor.name))


def _write_when_told(path: Path, orders: Connection) -> None:
    orders.send("ready")
    while (token := orders.recv()) is not None:
        try:
            FileGuard(path, timeout=0.5).write(str(token).encode(), token)
        except Exception as error:
            orders.send(repr(error))
        else:
            orders.send("")


STEPS = pytest.mark.lengthy("each bytecode of a write and a claim: seconds of a core")


@pytest.mark.hazard("H48")
@pytest.mark.parametrize(
    "what", [pytest.param("write", marks=STEPS), pytest.param("claim", marks=STEPS), "create"]
)
def test_an_exception_at_any_bytecode_leaves_the_guard_usable(quick_path: Path, what: str) -> None:
    """By other processes, other threads and the one that was struck, with nothing left behind."""
    guard = FileGuard(quick_path, timeout=0.5)
    guard.create()
    numbers = itertools.count(1)
    before: FencingToken | None = None
    last = "None"
    token = FencingToken(7, 0)

    def call() -> None:
        nonlocal token
        token = FencingToken(7, next(numbers))
        if what == "write":
            guard.write(str(token).encode(), token)
        elif what == "claim":
            guard.claim(token)
        else:
            Path(f"{quick_path}.fence").unlink()
            guard.create()

    orders, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=_write_when_told, args=(quick_path, theirs), daemon=True)
    process.start()
    theirs.close()  # the end of the process is the end of the connection
    # On a busy machine an interpreter needs a minute for its start.
    assert orders.recv() == "ready"
    with ThreadPoolExecutor(1) as thread:
        for step in strikes(call, stride=repeated(1, 5)):
            if what == "create":
                guard.create()
            mark = guard.highest()
            assert mark in {before, token} or what == "create", step
            if what == "write":
                written = quick_path.read_text() if quick_path.exists() else str(before)
                assert (written, mark) in {
                    (last, before),
                    (last, token),
                    (str(token), token),
                }, step
            before = FencingToken(7, next(numbers))
            last = str(before)
            orders.send(before)
            assert orders.poll(30)
            assert orders.recv() == "", step
            assert names(quick_path.parent) == ["report.json", "report.json.fence"], step
            if step % 50 == 1:
                before = FencingToken(7, next(numbers))
                thread.submit(guard.claim, before).result(10)
    orders.send(None)
    process.join(10)
    assert step > 100


@pytest.mark.hazard("H48")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_an_exception_of_a_signal_handler_frees_the_file_for_the_handler_of_it(
    quick_path: Path,
) -> None:
    guard = FileGuard(quick_path, timeout=1)
    guard.create()
    numbers = itertools.count()

    def write() -> None:
        for _ in range(100):
            guard.write(b"a", FencingToken(7, next(numbers)))

    def claim() -> None:
        FileGuard(quick_path, timeout=1).claim(FencingToken(7, next(numbers)))

    interrupted(write, claim, 0.000_02)


@pytest.mark.hazard("H50")
@pytest.mark.parametrize("room", [3, 30])
def test_a_file_that_may_not_grow_leaves_nothing(guard: FileGuard, path: Path, room: int) -> None:
    """The system's own refusal, at the mark and at the content."""
    guard.write(b"a", A)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            guard.write(b"b" * 1000, B)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == b"a"
    assert guard.highest() == (A if room == 3 else B)
    assert names(path.parent) == ["report.json", "report.json.fence"]
    guard.write(b"b", B)


@pytest.mark.hazard("H50")
def test_a_full_file_system_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, check=False).returncode:
        pytest.skip("may not mount a file system")
    try:
        guard = FileGuard(folder / "report.json")
        guard.create()
        guard.write(b"a", A)
        with pytest.raises(OSError, match="No space"):
            guard.write(b"b" * 100_000, B)
        assert (folder / "report.json").read_bytes() == b"a"
        assert names(folder) == ["report.json", "report.json.fence"]
        guard.write(b"b", B)
    finally:
        subprocess.run(["umount", str(folder)], check=True)


CALLS = [
    *((os, name) for name in ("open", "write", "fsync", "rename", "replace", "fchmod", "pread")),
    *((os, name) for name in ("link", "close")),
    (fcntl, "flock"),
    (io, "FileIO"),
]


def killed(path: Path, what: str, moment: str, step: int) -> None:
    """Write or create, and be killed before or after the system call of this number."""
    count = 0

    def killing(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            nonlocal count
            count += 1
            if count == step and moment == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            result = call(*args, **kwargs)
            if count == step and moment == "after":
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return wrapped

    guard = FileGuard(path)
    for module, name in CALLS:
        setattr(module, name, killing(getattr(module, name)))
    write: Any = os.write
    # Content goes out in three parts, as a large one would.
    os.write = lambda file, data: write(file, data[: max(1, (len(data) + 2) // 3)])  # type: ignore[arg-type, index]
    if what == "create":
        guard.create()
    else:
        guard.write(b"new content", B)


def kill_when_told(path: Path, orders: Connection) -> None:
    while True:
        what, moment, step = orders.recv()
        child = os.fork()
        if child == 0:
            try:
                killed(path, what, moment, step)
                os._exit(0)
            finally:
                os._exit(1)
        orders.send(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def killed_at_every_step(path: Path, what: str) -> Iterator[bool]:
    """Kill the call before and after its first, second, … system call; yield whether it ended."""
    orders, theirs = SPAWN.Pipe()
    process = SPAWN.Process(target=kill_when_told, args=(path, theirs), daemon=True)
    process.start()
    for moment in ("before", "after"):
        for step in itertools.count(1):
            orders.send((what, moment, step))
            ended = orders.recv()
            assert ended in (0, -signal.SIGKILL)
            yield ended == 0
            if ended == 0:
                break
        assert step > 8, "the calls are not patched any more"
    process.kill()
    process.join()


def test_a_write_killed_at_every_step(path: Path) -> None:
    steps = 0
    seen = set()

    def prepare() -> None:
        for left in path.parent.iterdir():
            left.unlink()
        guard = FileGuard(path)
        guard.create()
        guard.write(b"old content", A)

    prepare()
    for through in killed_at_every_step(path, "write"):
        steps += 1
        guard = FileGuard(path, timeout=0.5)
        content, mark = path.read_bytes(), guard.highest()
        seen.add((content, mark))
        if through:
            assert (content, mark) == (b"new content", B)
        # Whole content; a mark at least as high as what wrote it.
        assert (content, mark) in {
            (b"old content", A),
            (b"old content", B),
            (b"new content", B),
        }
        guard.write(b"next", C)
        assert path.read_bytes() == b"next"
        with pytest.raises(StaleToken):
            guard.write(b"late", B)
        assert names(path.parent) == ["report.json", "report.json.fence"]
        prepare()
    assert len(seen) == 3
    assert steps > 40


def test_create_killed_at_every_step(path: Path) -> None:
    for through in killed_at_every_step(path, "create"):
        guard = FileGuard(path)
        if through:
            assert guard.highest() is None
        guard.create()
        assert guard.highest() is None
        guard.write(b"a", A)
        for left in path.parent.iterdir():
            left.unlink()


def test_what_is_renamed_was_synced_and_the_mark_comes_first(
    guard: FileGuard, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power failure: no name ever leads to content that was not on the disk."""
    log: list[str] = []
    fsync, replace = os.fsync, os.replace

    def note_fsync(descriptor: int) -> None:
        name = Path(f"/proc/self/fd/{descriptor}").readlink().name
        log.append(f"fsync {'a new file' if name.startswith('.zklock-') else name}")
        fsync(descriptor)

    def note_replace(source: str, target: str) -> None:
        log.append(f"rename to {Path(target).name}")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "replace", note_replace)
    monkeypatch.setattr(os, "rename", note_replace)
    guard.write(b"a", A)
    folder = path.parent.name
    assert log == [
        "fsync a new file",
        "rename to report.json.fence",
        f"fsync {folder}",
        "fsync a new file",
        "rename to report.json",
        f"fsync {folder}",
    ]
