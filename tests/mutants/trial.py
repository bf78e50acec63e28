"""Run the tests of a module against its mutants, each in a process of its own.

The tests are collected once. A mutant is a fork of that process. There the mutated function gets
its new code, if the mutation is within a function; otherwise all is imported anew.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib.abc
import importlib.machinery
import json
import os
import resource
import selectors
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import IO, Any, NoReturn

import pytest
from hypothesis import Phase, settings

_MEMORY = 4 * 2**30
_EXAMPLES = 30
"""Random tests try so many examples, not the usual 100: a mutant has to be noticed by these."""

_UNUSED = 99
"""The exit status of tests that never import the mutant."""

_OPTIONS = ("-x", "-q", "-p", "no:cacheprovider", "-p", "pytest_timeout", "--assert=plain")


@dataclass
class Bench:
    """A module, the tests that hold it, and what is known of them."""

    module: str
    tests: Sequence[str]
    seconds: float = 60.0
    """The processor time that the tests need; a mutant that takes far more never ends."""

    _first: list[str] = field(default_factory=list)
    _items: list[pytest.Item] = field(default_factory=list)
    _functions: dict[str, list[FunctionType]] = field(default_factory=dict)
    _caches: list[functools._lru_cache_wrapper[Any]] = field(default_factory=list)

    @property
    def path(self) -> Path:
        """The file of the module."""
        spec = importlib.machinery.PathFinder.find_spec("zklock", None)
        assert spec is not None
        assert spec.origin is not None
        return Path(spec.origin).parent.parent / f"{self.module.replace('.', '/')}.py"

    def run(self, campaign: Callable[[], Any]) -> Any:
        """Collect the tests, and call ``campaign`` in another process, where it may try mutants.

        Return what the call returned; it must fit into JSON.
        """
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            self._collect(campaign, os.fdopen(writer, "w"))
        os.close(writer)
        with os.fdopen(reader) as told:
            said = told.read()
        if os.waitpid(child, 0)[1] or not said:
            raise SystemExit(f"{self.module}: its tests cannot be tried")
        return json.loads(said)

    def _collect(self, campaign: Callable[[], Any], told: IO[str]) -> NoReturn:
        status = 1
        try:
            plugin = _Campaign(self, lambda: json.dump(campaign(), told))
            with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere):
                status = int(pytest.main([*_OPTIONS, *self.tests], plugins=[plugin]))
            told.flush()
        finally:
            os._exit(status)

    def collected(self, items: list[pytest.Item]) -> None:
        """Take the tests, and run them on the module as it is: they must pass, and use it."""
        self._items = items
        if self.module not in sys.modules:
            raise SystemExit(f"{self.module}: its tests do not import it")
        gc.unfreeze()  # tests/conftest.py has frozen them: they would not be found
        for one in gc.get_objects():
            if isinstance(one, FunctionType) and one.__code__.co_filename == str(self.path):
                self._functions.setdefault(one.__code__.co_qualname, []).append(one)
            elif isinstance(one, functools._lru_cache_wrapper):
                self._caches.append(one)
        gc.collect()
        gc.freeze()
        source = self.path.read_text()
        begun = _children()
        for attempt in (self._patched({}), self._anew(source)):
            if (noticed := self._try(attempt)) is not None:
                raise SystemExit(f"{self.module}: its tests fail without a mutant: {noticed}")
        self.seconds = _children() - begun

    def notices(self, source: str) -> str | None:
        """Return the test that fails with this source of the module; ``None``: all tests pass."""
        changed = _changed(
            _compiled(self.path.read_text(), self.path), _compiled(source, self.path)
        )
        if changed is not None and changed.keys() <= self._functions.keys():
            return self._try(self._patched(changed))
        return self._try(self._anew(source))

    def _try(self, child: Callable[[Callable[[str], object]], int]) -> str | None:
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            _end_with(child, os.fdopen(writer, "w", buffering=1), self.seconds)
        os.close(writer)
        with os.fdopen(reader) as told:
            said = _read(told, pid, 60 + 60 * self.seconds).splitlines()
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        _end_group(pid)
        if status == 0:
            return None
        if status == _UNUSED:
            raise SystemExit(f"{self.module}: its tests do not import it")
        if not said:
            return "never ends" if status < 0 else "cannot be imported"
        # A test that has noticed one mutant often notices the next one, too.
        self._first = [said[0], *(test for test in self._first if test != said[0])]
        return said[0]

    def _patched(self, codes: dict[str, CodeType]) -> Callable[[Callable[[str], object]], int]:
        """Run the collected tests with other code in some functions."""

        def child(tell: Callable[[str], object]) -> int:
            for name, code in codes.items():
                for function in self._functions[name]:
                    function.__code__ = code
            for cache in self._caches:
                cache.cache_clear()
            failed = False

            class Noticing:
                def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
                    nonlocal failed
                    if report.failed and not failed:
                        failed = True
                        tell(report.nodeid)

            items = _ordered(self._items, self._first)
            config = items[0].config
            config.pluginmanager.register(Noticing())
            for item, following in zip(items, [*items[1:], None], strict=True):
                config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                if failed:
                    return 1
            return 0

        return child

    def _anew(self, source: str) -> Callable[[Callable[[str], object]], int]:
        """Import everything anew, with this source of the module, and run the tests."""

        def child(tell: Callable[[str], object]) -> int:
            for name in list(sys.modules):
                if name.partition(".")[0] in {"zklock", "tests"} and name != __name__:
                    del sys.modules[name]
            sys.meta_path.insert(0, _Finder(self.module, source))
            status = int(pytest.main([*_OPTIONS, *self.tests], plugins=[_Anew(self._first, tell)]))
            return status or (0 if self.module in sys.modules else _UNUSED)

        return child


def prepare() -> None:
    """Import what all trials need, once; nothing of zklock."""
    for name in ("hypothesis.stateful", "kazoo.client", "kazoo.recipe.lock", "pytest_timeout"):
        __import__(name)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"


def _compiled(source: str, path: Path) -> CodeType:
    return compile(source, str(path), "exec", dont_inherit=True)


def _changed(old: CodeType, new: CodeType) -> dict[str, CodeType] | None:
    """Return the code of the functions that differ; ``None`` if anything else differs."""
    before, after = dict(_parts(old)), dict(_parts(new))
    if before.keys() != after.keys():
        return None
    changed = {name: code for name, code in after.items() if _said(code) != _said(before[name])}
    if any(not _is_function(code) for code in changed.values()):
        return None
    if any(code.co_freevars != before[name].co_freevars for name, code in changed.items()):
        return None
    return changed


def _parts(code: CodeType) -> Iterator[tuple[str, CodeType]]:
    """Yield the code of a module or class, and of the classes and functions in it."""
    yield code.co_qualname, code
    if not _is_function(code):
        for one in code.co_consts:
            if isinstance(one, CodeType):
                yield from _parts(one)


def _is_function(code: CodeType) -> bool:
    optimized = 1
    return bool(code.co_flags & optimized)


def _said(code: CodeType) -> object:
    """What the code does; for a module or class without that of its functions and classes."""
    deep = _is_function(code)
    consts = [
        (_said(one) if deep else one.co_qualname)
        if isinstance(one, CodeType)
        else (type(one), repr(one))
        for one in code.co_consts
    ]
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    return (code.co_code, consts, names, code.co_flags, code.co_exceptiontable)


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _read(told: IO[str], child: int, seconds: float) -> str:
    """Return what the child tells until its end, or until its time is over."""
    said = ""
    deadline = time.monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        selector.register(told, selectors.EVENT_READ)
        while selector.select(max(0.0, deadline - time.monotonic())):
            more = os.read(told.fileno(), 65536).decode()
            if not more:
                return said
            said += more
    _end_group(child)
    return said


def _end_group(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


class _Loader(importlib.machinery.SourceFileLoader):
    """Load a text in the place of a module's file."""

    def __init__(self, name: str, path: str, text: str) -> None:
        super().__init__(name, path)
        self._text = text

    def get_code(self, fullname: str) -> CodeType:
        return _compiled(self._text, Path(self.get_filename(fullname)))


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, module: str, text: str) -> None:
        self._module, self._text = module, text

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self._module:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        assert spec is not None
        assert spec.origin is not None
        spec.loader = _Loader(name, spec.origin, self._text)
        return spec


class _Quick:
    """Have Hypothesis look for no simpler failure."""

    def pytest_configure(self, config: pytest.Config) -> None:
        del config
        settings.register_profile(
            "mutants",
            settings.get_profile("repeatable"),
            phases=(Phase.explicit, Phase.generate),
            max_examples=_EXAMPLES,
        )
        settings.load_profile("mutants")


class _Campaign(_Quick):
    """Run a campaign in the place of the tests."""

    def __init__(self, bench: Bench, campaign: Callable[[], object]) -> None:
        self._bench, self._campaign = bench, campaign

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        capture: Any = session.config.pluginmanager.getplugin("capturemanager")
        capture.suspend_global_capture()
        with contextlib.redirect_stdout(sys.__stdout__):
            self._bench.collected(session.items)
            self._campaign()
        return True


class _Anew(_Quick):
    """Order the tests, and tell what fails."""

    def __init__(self, first: Sequence[str], tell: Callable[[str], object]) -> None:
        self._first = first
        self._tell = tell

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = _ordered(items, self._first)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._tell(report.nodeid)


def _ordered(items: list[pytest.Item], first: Sequence[str]) -> list[pytest.Item]:
    """Return the tests: first those that have noticed other mutants, last the random ones."""
    places = {test: place for place, test in enumerate(first)}

    def place(item: pytest.Item) -> tuple[int, bool]:
        tried: Any = getattr(item, "obj", None)
        is_random = item.name == "runTest" or hasattr(tried, "hypothesis")
        return places.get(item.nodeid, len(places)), is_random

    return sorted(items, key=place)


def _end_with(
    child: Callable[[Callable[[str], object]], int], told: IO[str], seconds: float
) -> NoReturn:
    status = 1
    try:
        os.setpgid(0, 0)
        nowhere = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(nowhere, descriptor)
        limit = int(5 + 2 * seconds)
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
        status = child(lambda test: print(test, file=told))
    finally:
        os._exit(status)
