"""Runs tests against mutants: one pytest session that has collected, and a forked child for each mutant.

A child replaces the code of one function and runs the tests, the fastest first, until one fails. Only tests
that call the function are run (a first child without a mutant finds out which call what): the others cannot
tell the difference. No import and no collection is repeated, so that most mutants take some hundredths of a
second. A child that never ends is ended by its own CPU time (a multiple of what its tests took without a
mutant), so that a busy machine kills no mutant.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import ceil
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any, NamedTuple

import pytest

from .mutants import Mutant, functions_of, modules_of, mutants_of

__all__ = ("Session", "Verdict")

MEMORY = 1 << 30
# What a mutant's child may use beyond three times what its tests took.
CPU_SECONDS = 15


class Verdict(NamedTuple):
    """What became of a mutant; `killer` is the test that failed, or "" if none of `tests` tests did."""

    mutant: Mutant
    killer: str
    tests: int


class _Found(NamedTuple):
    """What a child found: the test that failed; of the first child also what each test called and cost."""

    failed: str
    calls: list[list[str]]
    seconds: list[float]


class _Running(NamedTuple):
    number: int
    mutant: Mutant
    out: Path
    tests: int
    most: int


class Session:
    """A pytest plugin: instead of running the tests once it runs them for every mutant of `package`.

    `report` gets the verdicts in the order of the text. Afterwards `trouble` says why there are none, if so.
    """

    def __init__(
        self, package: str, only: list[str], workers: int, report: Callable[[Verdict], None]
    ) -> None:
        self.package = package
        self.only = only
        self.workers = workers
        self.report = report
        self.trouble = "the tests cannot be collected; run them with pytest"
        self.failure = ""
        self._running: dict[int, _Running] = {}
        self._verdicts: dict[int, Verdict] = {}
        self._reported = 0

    # -- pytest calls these ----------------------------------------------------------------------

    def pytest_configure(self) -> None:
        """The same examples for every mutant, and no time spent on making a failure small."""
        hypothesis = importlib.import_module("hypothesis")  # not before pytest may rewrite its plugin
        phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
        fixed = {"derandomize": True, "database": None, "deadline": None, "phases": phases}
        hypothesis.settings.register_profile("mutate", **fixed)
        hypothesis.settings.load_profile("mutate")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Instead of pytest's own loop."""
        if session.testsfailed == 0:
            with tempfile.TemporaryDirectory() as folder:
                self.trouble = self._all(session.items, Path(folder))
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> pytest.TestReport | None:
        """In a child: that a test failed is enough. Its words would cost time, and the memory may be full."""
        assert call.when != "collect"
        if call.excinfo is None or call.excinfo.errisinstance(pytest.skip.Exception):
            return None
        _unlimit()
        return pytest.TestReport(item.nodeid, item.location, {}, "failed", "", call.when)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """In a child: the first failure is enough."""
        if report.failed and not self.failure:
            self.failure = report.nodeid

    # -- all mutants -----------------------------------------------------------------------------

    def _all(self, items: list[pytest.Item], folder: Path) -> str:
        """Every mutant; what went wrong, or ""."""
        functions: dict[str, FunctionType] = {}
        mutants: list[tuple[Mutant, str]] = []
        for module in modules_of(self.package):
            file = Path(module.__file__ or "").name
            if not self.only or file in self.only:
                functions |= {f"{file}:{name}": function for name, function in functions_of(module).items()}
                mutants += [(mutant, f"{file}:{mutant.name}") for mutant in mutants_of(module)]
        first = folder / "first"
        _, status = os.waitpid(self._fork(items, first, None, functions), 0)
        whole = _read(first)
        if whole is None:
            return f"the tests without any mutant: {_ended(status)}"
        if whole.failed:
            return f"a test fails without any mutant: {whole.failed}"
        callers: dict[str, list[pytest.Item]] = defaultdict(list)
        cost: Counter[str] = Counter()
        for seconds, k in sorted(zip(whole.seconds, range(len(items)), strict=True)):
            for key in whole.calls[k]:
                callers[key].append(items[k])
                cost[key] += ceil(3000 * seconds)
        lost = [key for _, key in mutants if key not in functions]
        if lost:
            return f"{lost[0]} has conditions and is not to be found in the loaded module"
        trouble = ""
        for number, (mutant, key) in enumerate(mutants):
            trouble = self._reap() if len(self._running) >= self.workers else ""
            if trouble:
                break
            out, tests = folder / str(number), callers[key]
            most = CPU_SECONDS + cost[key] // 1000
            pid = self._fork(tests, out, (functions[key], mutant), {}, most)
            self._running[pid] = _Running(number, mutant, out, len(tests), most)
        while self._running:
            trouble = self._reap() or trouble
        return trouble

    def _reap(self) -> str:
        """Waits for a child; what went wrong with it, or ""."""
        pid, status = os.wait()
        child = self._running.pop(pid)
        found = _read(child.out)
        endless = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU
        if found is None and not endless:
            return f"{child.mutant.place}: {_ended(status)}"
        killer = found.failed if found else f"its {child.most} s of CPU time: it has no end"
        self._verdicts[child.number] = Verdict(child.mutant, killer, child.tests)
        while self._reported in self._verdicts:
            self.report(self._verdicts[self._reported])
            self._reported += 1
        return ""

    # -- one child -------------------------------------------------------------------------------

    def _fork(
        self,
        items: list[pytest.Item],
        out: Path,
        change: tuple[FunctionType, Mutant] | None,
        watched: dict[str, FunctionType],
        most: int = resource.RLIM_INFINITY,
    ) -> int:
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            _limit(most)
            if change is not None:
                function, mutant = change
                function.__code__ = mutant.code
            unfinished = out.with_suffix(".part")
            unfinished.write_text(json.dumps(self._run(items, watched)), encoding="utf-8")
            unfinished.rename(out)
            code = 0
        finally:
            os._exit(code)  # whatever happened: a child must never go on in its parent's place

    def _run(self, items: list[pytest.Item], watched: dict[str, FunctionType]) -> _Found:
        """The tests one by one, until one fails."""
        names = {id(function.__code__): key for key, function in watched.items()}
        calls: list[list[str]] = []
        seconds: list[float] = []
        try:
            for item, following in zip(items, [*items, None][1:], strict=True):
                start = time.process_time()
                with _watch(names) as called:
                    item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                calls.append(sorted(called))
                seconds.append(time.process_time() - start)
                if self.failure:
                    break
        except MemoryError:
            _unlimit()
            self.failure = f"its {MEMORY >> 20} MiB of memory"
        return _Found(self.failure, calls, seconds)


@contextmanager
def _watch(names: dict[int, str]) -> Iterator[set[str]]:
    """Which of the named codes (by id) are called meanwhile."""
    called: set[str] = set()

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and id(frame.f_code) in names:
            called.add(names[id(frame.f_code)])

    sys.setprofile(profile if names else None)
    try:
        yield called
    finally:
        sys.setprofile(None)


def _read(out: Path) -> _Found | None:
    return _Found(*json.loads(out.read_text(encoding="utf-8"))) if out.exists() else None


def _ended(status: int) -> str:
    return f"the process ended with {os.waitstatus_to_exitcode(status)} and without a result"


def _limit(seconds: int) -> None:
    """A mutant may loop for ever, or fill the memory; and what its tests print is of no use."""
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, resource.getrlimit(resource.RLIMIT_CPU)[1]))
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    if sys.platform == "linux":  # elsewhere the system may refuse; the CPU time is limited all the same
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, most))
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)


def _unlimit() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
