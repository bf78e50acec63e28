"""What ``zklock run`` has besides a lock and a command; its exit statuses; its supervisor."""

from __future__ import annotations

import os
import pty
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import zklock
from tests.contract.support import SOON, boottime, freeze, gone, queued
from tests.contract.test_cli import PATIENCE, ZKLOCK, Commands, await_file, ends_in_order, python
from tests.contract.test_demo import parent_of
from zklock.cli.child import Child
from zklock.cli.supervisor import children_of
from zklock.testing import wait_for

BEGIN = "echo $$ > {0}/new; mv {0}/new {0}/began; "


def until(file: Path) -> str:
    """Return a shell line that ends when the file exists."""
    return f"while [ ! -e {file} ]; do sleep 0.02; done"


def supervisor_of(runner: subprocess.Popen[str]) -> int:
    (found,) = children_of(runner.pid)
    return found


# Kinds of locks


def test_shared_commands_run_at_once(zk: Commands) -> None:
    # Each of the two ends only when the other has begun.
    lines = [f"touch {zk.folder}/{one}; {until(zk.folder / two)}" for one, two in ("ab", "ba")]
    both = [zk.start("run", "--shared", zk.path, "-c", line) for line in lines]
    assert [one.wait(PATIENCE) for one in both] == [0, 0]


# At least


def test_the_lock_is_kept_for_a_time_after_the_grant(zk: Commands) -> None:
    begun = boottime()
    process = zk.start("run", "--at-least", "2", zk.path, "-c", f"echo y > {zk.folder}/ran")
    await_file(zk.folder / "ran")
    with zklock.Lock(zk.patient, zk.path, timeout=PATIENCE):
        assert boottime() - begun >= 2
    assert process.wait(PATIENCE) == 0


def test_a_signal_ends_the_keeping(zk: Commands) -> None:
    began = zk.folder / "began"
    line = BEGIN.format(zk.folder) + "exit 3"
    process = zk.start("run", "--at-least", "3600", zk.path, "-c", line)
    pid = int(await_file(began))
    wait_for(lambda: parent_of(pid) is None, PATIENCE)
    queued(zk.patient, zk.path, 1)
    process.terminate()
    assert process.wait(PATIENCE) == 3
    gone(zk.patient, zk.path)


# Exit statuses


@pytest.mark.parametrize("command", ["run", "elect"])
def test_output_of_no_use_keeps_the_status_of_a_silent_command(command: str, zk: Commands) -> None:
    """The terminal hangs up, the socket loses its reader, the disk is full from the start."""
    sockets = [end.detach() for end in socket.socketpair()]
    full = [os.open("/dev/full", os.O_WRONLY) for _ in range(2)]
    for at, ends in enumerate([pty.openpty(), sockets, full]):
        folder = zk.folder / str(at)
        folder.mkdir()
        line = BEGIN.format(folder) + until(folder / "end") + "; exit 3"
        process = zk.start(command, zk.path, "-c", line, stdout=ends[1])
        await_file(folder / "began")
        for end in ends:
            os.close(end)
        (folder / "end").touch()
        assert process.wait(PATIENCE) == 3


def test_a_lock_that_is_taken_away(zk: Commands) -> None:
    """Whether somebody reads the errors or not, the command ends in order."""
    for reads in (True, False):
        path, folder = f"{zk.path}/{reads}", zk.folder / str(reads)
        folder.mkdir()
        process = zk.start("run", "--grace", "3", path, *ends_in_order(folder))
        pid = int(await_file(folder / "began").split()[0])
        (node,) = queued(zk.patient, path, 1)
        assert process.stderr is not None
        if not reads:
            process.stderr.close()
        zk.patient.delete(f"{path}/{node}")
        assert process.wait(PATIENCE) == 79
        assert not reads or "lock lost" in process.stderr.read()
        assert parent_of(pid) is None
        assert (folder / "ended").read_text() == "in order"


@pytest.mark.parametrize("command", ["run", "elect"])
def test_a_supervisor_that_is_killed(command: str, zk: Commands) -> None:
    line = BEGIN.format(zk.folder) + "exec sleep 60"
    process = zk.start(command, zk.path, "-c", line)
    pid = int(await_file(zk.folder / "began"))
    os.kill(supervisor_of(process), signal.SIGKILL)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 125
    # It may be killed before it has said that the command runs.
    assert re.search("supervisor was( killed)?: run it again", errors)
    assert parent_of(pid) is None
    gone(zk.patient, zk.path)


def test_a_supervisor_that_is_killed_before_the_command_begins(zk: Commands) -> None:
    with zklock.Lock(zk.patient, zk.path):
        process = zk.start("run", zk.path, "touch", str(zk.folder / "ran"))
        queued(zk.patient, zk.path, 2)
        os.kill(supervisor_of(process), signal.SIGKILL)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 125
    assert "supervisor was killed: run it again" in errors
    assert not (zk.folder / "ran").exists()


def test_it_runs_out_of_an_archive(zk: Commands) -> None:
    package = Path(zklock.__file__).parent
    archive = shutil.make_archive(str(zk.folder / "app"), "zip", package.parent, package.name)
    zk.environ["PYTHONPATH"] = archive
    shows = f"import {Child.__module__} as m; assert m.__file__.startswith({archive!r}); "
    main = "from zklock.cli import main; raise SystemExit(main())"
    process = zk.start_program(
        shows + main, "run", zk.path, "-c", "echo mine; exit 3", cwd=zk.folder
    )
    assert process.communicate(timeout=PATIENCE) == ("mine\n", "")
    assert process.returncode == 3
    gone(zk.patient, zk.path)


@pytest.mark.parametrize("command", ["run", "elect"])
@pytest.mark.parametrize("how", ["the command ends", "SIGTERM"])
def test_a_supervisor_that_is_stopped_while_the_lease_is_renewed(
    how: str, command: str, zk: Commands
) -> None:
    line = BEGIN.format(zk.folder) + until(zk.folder / "end") + "; exit 3"
    process = zk.start(command, zk.path, "-c", line)
    await_file(zk.folder / "began")
    os.kill(supervisor_of(process), signal.SIGSTOP)
    if how == "SIGTERM":
        process.terminate()
    else:
        (zk.folder / "end").touch()
    assert process.wait(PATIENCE) == (143 if how == "SIGTERM" else 3)
    gone(zk.patient, zk.path)


# Another PID namespace


def unshare(*options: str) -> list[str]:
    """Return what runs a command in a PID namespace of its own; it is killed with it."""
    root = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    command = ["unshare", *root, "--pid", "--fork", "--kill-child"]
    if subprocess.run([*command, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this system lets nobody make a PID namespace")
    return [*command, *options, *ZKLOCK]


@pytest.mark.parametrize("command", ["run", "elect"])
def test_a_proc_of_another_namespace_is_refused(command: str, zk: Commands) -> None:
    line = f"touch {zk.folder}/ran"
    done = subprocess.run(
        [*unshare(), command, zk.path, "-c", line],
        env=zk.environ, capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == 125
    assert "unshare --mount-proc" in done.stderr
    assert not (zk.folder / "ran").exists()


def test_nothing_outlives_its_namespace(zk: Commands) -> None:
    beat = f"echo > {zk.folder}/beat; sleep 0.02"
    line = f"(setsid sh -c 'while :; do {beat}; done' &); {until(zk.folder / 'end')}"
    outer = subprocess.Popen(
        [*unshare("--mount-proc"), "run", "--session-timeout", "4", zk.path, "-c", line],
        env=zk.environ,
    )
    await_file(zk.folder / "beat")
    outer.kill()
    outer.wait()
    with zklock.Lock(zk.patient, zk.path):
        (zk.folder / "beat").unlink()
        assert zk.run("wait", "-w", "0.5", zk.path)[0] == 1
        assert not (zk.folder / "beat").exists()


# What the supervisor ends, and what it leaves


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
@pytest.mark.parametrize("command", ["run", "elect"])
def test_the_command_may_end_in_order_though_the_runner_does_nothing(
    command: str, number: signal.Signals, zk: Commands
) -> None:
    runner = zk.start(command, "--session-timeout", "12", zk.path, *ends_in_order(zk.folder))
    pid = int(await_file(zk.folder / "began").split()[0])
    runner.send_signal(number)
    wait_for(lambda: parent_of(pid) is None, PATIENCE)
    assert (zk.folder / "ended").read_text() == "in order"
    if command == "run":
        runner.send_signal(signal.SIGCONT)
        assert runner.wait(PATIENCE) == (79 if number == signal.SIGSTOP else -9)


def test_of_those_that_are_killed_nothing_is_left(zk: Commands) -> None:
    for who in ("group", "both", "outer"):  # the runner's group, the supervisor too, one of two
        folder = zk.folder / who
        folder.mkdir()
        line = f"trap '' TERM; {BEGIN.format(folder)} while :; do sleep 0.1; done"
        inner = ["--", *ZKLOCK, "run", f"{zk.path}/inner"] if who == "outer" else []
        path = f"{zk.path}/{who}"
        runner = zk.start("run", path, *inner, "-c", line, process_group=0)
        pid = int(await_file(folder / "began"))
        if who == "group":
            os.killpg(runner.pid, signal.SIGKILL)
        if who == "both":  # the kernel kills the command
            supervisor = supervisor_of(runner)
            freeze(runner.pid)  # it shall do nothing about the other's death
            os.kill(supervisor, signal.SIGKILL)
        runner.kill()
        wait_for(lambda: parent_of(pid) is None, PATIENCE)  # noqa: B023


def test_what_the_command_leaves_behind_goes_on(zk: Commands) -> None:
    line = f"({BEGIN.format(zk.folder)} {until(zk.folder / 'go')}; echo yes > {zk.folder}/went) "
    line += f">/dev/null 2>&1 </dev/null & {until(zk.folder / 'began')}"
    assert zk.run("run", zk.path, "-c", line)[0] == 0
    gone(zk.patient, zk.path)
    assert not (zk.folder / "went").exists()
    (zk.folder / "go").touch()
    await_file(zk.folder / "went")


def test_with_all_the_lock_is_kept_until_every_descendant_has_ended(zk: Commands) -> None:
    # The one that is left has left the command's group and session, and is a grandchild's child.
    stays = f"{BEGIN.format(zk.folder)} {until(zk.folder / 'go')}; echo yes > {zk.folder}/went"
    line = f"(setsid sh -c '{stays}; true' &) >/dev/null 2>&1 </dev/null; "
    line += f"{until(zk.folder / 'began')}; exit 7"
    runner = zk.start("run", "--all", zk.path, "-c", line)
    await_file(zk.folder / "began")
    left = {int((zk.folder / "began").read_text())}
    wait_for(lambda: children_of(supervisor_of(runner)) == left, PATIENCE)
    assert zk.run("run", "-n", zk.path, "true")[0] == 75
    (zk.folder / "go").touch()
    assert runner.wait(PATIENCE) == 7
    assert (zk.folder / "went").exists()
    gone(zk.patient, zk.path)


def test_with_all_what_is_left_gets_sigterm_and_its_grace(zk: Commands) -> None:
    left = f"trap 'echo yes > {zk.folder}/told; exit' TERM; {BEGIN.format(zk.folder)}"
    left += " while :; do sleep 0.02; done"
    line = f"({left}) >/dev/null 2>&1 </dev/null & {until(zk.folder / 'go')}"
    runner = zk.start("run", "--all", zk.path, "-c", line)
    await_file(zk.folder / "began")
    supervisor = supervisor_of(runner)
    command = children_of(supervisor)
    (zk.folder / "go").touch()
    wait_for(lambda: (now := children_of(supervisor)) and not now & command, PATIENCE)
    runner.terminate()
    assert runner.wait(PATIENCE) == 0
    assert (zk.folder / "told").exists()
    gone(zk.patient, zk.path)


def test_children_that_the_runner_had_before_are_left_alone(zk: Commands) -> None:
    line = BEGIN.format(zk.folder) + "exec sleep 60"
    shell = f"sleep 60 & echo $! > {zk.folder}/other; exec $RUN {zk.path} -c '{line}'"
    zk.environ["RUN"] = f"{sys.executable} -m zklock.cli run"
    runner = zk.start_program(
        f"import os; os.execvp('sh', ['sh', '-c', {shell!r}])", stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    await_file(zk.folder / "began")
    other = int((zk.folder / "other").read_text())
    try:
        (supervisor,) = children_of(runner.pid) - {other}
        os.kill(supervisor, signal.SIGKILL)
        assert runner.wait(PATIENCE) == 125
        assert parent_of(other) is not None
    finally:
        os.kill(other, signal.SIGKILL)


def test_what_the_command_reads_and_writes_passes_through(zk: Commands) -> None:
    process = zk.start("run", zk.path, "cat", stdin=subprocess.PIPE)
    assert process.communicate("one\ntwo\n", timeout=SOON) == ("one\ntwo\n", "")
    assert process.returncode == 0


def test_the_command_inherits_what_it_would_without_zklock(zk: Commands) -> None:
    program = """
        import os, signal
        ignored = [n for n in range(1, 65) if n in signal.valid_signals() - {9, 19}
                   and signal.getsignal(n) == signal.SIG_IGN]
        print(sorted(os.listdir("/proc/self/fd"))[:3], ignored,
              sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])), os.getpgid(0) == os.getpid())
    """

    def before() -> None:
        signal.signal(signal.SIGQUIT, signal.SIG_DFL)  # a shell's background job ignores it
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2, signal.SIGCHLD])

    process = zk.start("run", zk.path, *python(program), preexec_fn=before)
    out, errors = process.communicate(timeout=PATIENCE)
    # Python ignores SIGPIPE and SIGXFSZ by itself.
    ignored = [int(one) for one in (signal.SIGHUP, signal.SIGPIPE, signal.SIGXFSZ)]
    blocked = [signal.SIGUSR2, signal.SIGCHLD]
    assert (out, errors) == (f"['0', '1', '2'] {ignored} {blocked} True\n", "")


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("run -n PATH true 2>&-", 0),
        ("run -n PATH -c 'exit 9' <&- >&- 2>&-", 9),
        ("top --once PATH >&-", 0),
        ("graph PATH >&- 2>&-", 0),
        ("gc PATH <&-", 64),
    ],
)
def test_a_standard_descriptor_that_is_closed_is_not_missed(
    line: str, code: int, zk: Commands
) -> None:
    zk.patient.ensure_path(zk.path)
    command = f"{sys.executable} -m zklock.cli {line.replace('PATH', zk.path)}"
    process = zk.start_program(f"import os; os.execvp('sh', ['sh', '-c', {command!r}])")
    out, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, "Traceback" in out + errors) == (code, False), errors


def test_standard_descriptors_that_are_closed_stay_so(zk: Commands) -> None:
    program = (
        f"import os; open('{zk.folder}/fds', 'w').write(' '.join(os.listdir('/proc/self/fd')))"
    )
    line = f'exec {sys.executable} -m zklock.cli run {zk.path} -- {sys.executable} -c "$0"'
    process = zk.start_program(
        f"import os; os.execvp('sh', ['sh', '-c', {line + ' <&- >&-'!r}, {program!r}])"
    )
    _, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, errors) == (0, "")
    # The file and the listing take the numbers of the closed ones.
    assert sorted((zk.folder / "fds").read_text().split()) == ["0", "1", "2"]


# What the command is given


@pytest.mark.parametrize(
    ("before", "inside"),
    [({}, "unset"), ({"LC_CTYPE": "POSIX"}, "POSIX"), ({"LC_CTYPE": "C.UTF-8"}, "C.UTF-8")],
)
def test_the_locale_of_the_command_is_that_of_its_caller(
    before: dict[str, str], inside: str, zk: Commands
) -> None:
    for name in ("LANG", "LC_ALL", "LC_CTYPE"):
        zk.environ.pop(name, None)
    zk.environ |= before
    line = "echo ${LC_CTYPE-unset}"
    assert zk.run("run", zk.path, "-c", line) == (0, f"{inside}\n", "")


def test_a_script_without_an_interpreter_is_run_by_a_shell(zk: Commands) -> None:
    folders = [zk.folder / name for name in ("missing", "denied", "first", "second")]
    for folder in folders[1:]:
        folder.mkdir()
        (folder / "job").write_text(f'echo "{folder.name} $1 $ZKLOCK_HELD"; exit 3\n')
        (folder / "job").chmod(0o755 if folder.name != "denied" else 0o644)
    zk.environ["PATH"] = os.pathsep.join([*map(str, folders), zk.environ["PATH"]])
    for job in ("job", str(folders[2] / "job")):
        assert zk.run("run", zk.path, "--", job, "x") == (3, "first x 1\n", "")
    code, _, errors = zk.run("run", zk.path, "--", str(folders[1] / "job"))
    assert (code, errors) == (126, f"zklock: {folders[1]}/job: Permission denied\n")


def test_one_whose_caller_held_it_once_waits_as_any_other(zk: Commands) -> None:
    with zklock.Lock(zk.patient, zk.path) as grant:
        zk.environ["ZKLOCK_TOKEN"] = str(grant.token)
    with zklock.Lock(zk.patient, zk.path):
        process = zk.start("run", zk.path, "true")
        queued(zk.patient, zk.path, 2)
    assert process.wait(PATIENCE) == 0


# What is cut


@pytest.mark.parametrize("command", ["run", "elect"])
def test_times_that_are_cut(command: str, zk: Commands) -> None:
    assert zk.run(command, "--grace", "2", zk.path, "true") == (0, "", "")
    code, _, errors = zk.run(command, "--grace", "30", zk.path, "true")
    assert (code, errors.count("\n")) == (0, 1)
    assert re.match(
        rf"zklock {command}: the grace at the end of a lease is 3\.33 s, not 30 s: .*timeout 90$",
        errors,
    )
    zk.environ["ZKLOCK_SESSION_TIMEOUT"] = "100000"
    code, _, errors = zk.run(command, zk.path, "true")
    assert (code, errors.count("\n")) == (0, 1)
    assert re.match(rf"zklock {command}: the session timeout is \d+ s, not 100000 s: ", errors)
    _, _, errors = zk.run("-v", command, zk.path, "true")
    assert errors.count("instead of 100000 s") == 1
