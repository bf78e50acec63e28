from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import textwrap
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from zklock.errors import GuardUnusable, StaleToken
from zklock.fencing import FileGuard, Guard
from zklock.token import FencingToken

A, B, C = (FencingToken(7, number) for number in (33, 34, 35))


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


def test_writes_and_refuses(guard: FileGuard, path: Path) -> None:
    assert isinstance(guard, Guard)
    assert guard.highest() is None
    guard.write(b"a", A)
    guard.claim(B)
    with pytest.raises(StaleToken) as caught:
        guard.write(b"late", A)
    assert str(caught.value).startswith(f"{path}: token {A} is stale, {B} has been seen")
    assert path.read_bytes() == b"a"
    assert guard.highest() == B


def test_leaves_only_file_and_mark(guard: FileGuard, path: Path) -> None:
    guard.write(b"a", A)
    guard.write(b"b", B)
    assert names(path.parent) == ["report.json", "report.json.fence"]


def test_without_create_everything_is_refused(path: Path) -> None:
    guard = FileGuard(path)
    for call in (lambda: guard.claim(A), lambda: guard.write(b"a", A), guard.highest):
        with pytest.raises(GuardUnusable) as caught:
            call()
        assert str(caught.value) == (
            f"{path}: no mark at {path}.fence, every write is refused: call create() once when "
            "the resource is made; if that was done, find out who removed the mark before making "
            "it anew"
        )
    assert not path.exists()


@pytest.mark.parametrize("content", [b"", b"34", b"none ", b"\x00" * 27, b"x" * 500])
def test_a_spoilt_mark_is_refused(guard: FileGuard, path: Path, content: bytes) -> None:
    guard.write(b"a", A)
    Path(f"{path}.fence").write_bytes(content)
    with pytest.raises(GuardUnusable, match="is not a token but"):
        guard.write(b"b", C)
    assert path.read_bytes() == b"a"


def test_create_keeps_a_mark(guard: FileGuard) -> None:
    guard.claim(B)
    guard.create()
    assert guard.highest() == B


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
    with pytest.raises(TimeoutError, match=r"another process has been writing for 0\.05 s"):
        FileGuard(path, timeout=0.05).write(b"a", A)
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


def test_a_forked_child_does_not_keep_the_lock(guard: FileGuard, path: Path) -> None:
    ready, going = os.pipe(), os.pipe()
    with guard._locked(A), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads, which the child ignores
        child = os.fork()
        if child == 0:
            os.write(ready[1], b".")
            os.read(going[0], 1)
            os._exit(0)
    try:
        assert os.read(ready[0], 1) == b"."
        FileGuard(path, timeout=0.05).write(b"a", B)
    finally:
        os.write(going[1], b".")
        os.waitpid(child, 0)
        for descriptor in (*ready, *going):
            os.close(descriptor)


def test_a_full_disk_changes_nothing(
    guard: FileGuard, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard.write(b"a", A)

    def full(descriptor: int, data: memoryview) -> int:
        raise OSError(errno.ENOSPC, "no space")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(OSError, match="no space"):
            guard.write(b"b", B)
    assert path.read_bytes() == b"a"
    assert guard.highest() == A
    guard.write(b"b", B)


CALLS = ("open", "write", "fsync", "rename", "replace", "fchmod", "pread", "link", "close")

KILLED = textwrap.dedent(
    """
    import fcntl, os, signal, sys
    from zklock.fencing import FileGuard
    from zklock.token import FencingToken

    path, what, moment, step = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
    count = 0

    def killing(call):
        def wrapped(*args, **kwargs):
            global count
            count += 1
            if count == step and moment == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            result = call(*args, **kwargs)
            if count == step and moment == "after":
                os.kill(os.getpid(), signal.SIGKILL)
            return result
        return wrapped

    guard = FileGuard(path)
    for name in sys.argv[5:]:
        setattr(os, name, killing(getattr(os, name)))
    real_write = os.write
    # Content goes out in three parts, as a large one would.
    os.write = lambda fd, data: real_write(fd, bytes(data)[: max(1, (len(data) + 2) // 3)])
    fcntl.flock = killing(fcntl.flock)
    if what == "create":
        guard.create()
    else:
        guard.write(b"new content", FencingToken(7, 34))
    """
)


def killed_at_every_step(path: Path, what: str) -> Iterator[tuple[str, bool]]:
    """Kill the call before and after its first, second, … system call, until it gets through."""
    for moment in ("before", "after"):
        step = 0
        while True:
            step += 1
            done = subprocess.run(
                [sys.executable, "-c", KILLED, str(path), what, moment, str(step), *CALLS],
                check=False,
            )
            if done.returncode == 0:
                yield f"{moment} {step}", True
                break
            assert done.returncode == -signal.SIGKILL
            yield f"{moment} {step}", False
        assert step > 10, "the calls are not patched any more"


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
    for _, through in killed_at_every_step(path, "write"):
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
    for _, through in killed_at_every_step(path, "create"):
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
        log.append(f"fsync {Path(f'/proc/self/fd/{descriptor}').readlink().name}")
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
        "fsync report.json.fence.new",
        "rename to report.json.fence",
        f"fsync {folder}",
        "fsync report.json.new",
        "rename to report.json",
        f"fsync {folder}",
    ]
