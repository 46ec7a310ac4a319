"""The agents of the demo under a tiny scheduler: any order gives the reference's result, a loss does not.

The scheduler stands for the runtime: FIFO per channel, any order between channels, one handler at a time,
async handlers interleaved at their awaits, answers as messages of their own. It checks what the runtime's
rules ask of async handlers, and can drop or double any one message.
"""

from __future__ import annotations

import asyncio
import inspect
import pickle
import random
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutline.coordinator import demo_cast
from cutline.coordinator.demo_agents import Linker, Ranker, Reader, Scale
from cutline.coordinator.demo_reference import compute
from cutline.coordinator.demo_source import copy_sources, find_sources

TINY = Scale(passes=2, readers=2, buckets=128, iterations=3, ticks=1)
DRIVER = "driver"
# A message: "tell", "ask" or "answer", the method, and which of that kind in the order of sending.
Name: TypeAlias = tuple[str, str, int]


@dataclass
class Sent:
    """A message under way."""

    kind: str
    method: str
    call: Callable[[], None]


@dataclass(eq=False)
class Call:
    """What `remote` returns."""

    world: World
    owner: str
    callback: Callable[..., None] | None = None
    own: tuple[Any, ...] = ()
    future: asyncio.Future[Any] | None = None

    def then(self, callback: Callable[..., None], *own: Any) -> None:
        self.callback, self.own = callback, own

    def __await__(self) -> Any:
        return self.claim().__await__()

    def claim(self) -> asyncio.Future[Any]:
        if self.future is None:
            self.future = self.world.loop.create_future()
        return self.future

    def answered(self, answer: Any) -> None:
        if self.callback is not None:
            self.callback(answer, *self.own)
        elif not self.claim().done():
            # A second answer to an awaited call finds nobody: refusing it is the runtime's business.
            self.claim().set_result(answer)


@dataclass(eq=False)
class Method:
    handle: Handle
    name: str

    def tell(self, *arguments: Any) -> None:
        self.handle.world.send("tell", self.handle.name, self.name, arguments, None)

    def remote(self, *arguments: Any) -> Call:
        call = Call(self.handle.world, self.handle.world.running)
        self.handle.world.send("ask", self.handle.name, self.name, arguments, call)
        return call


@dataclass(eq=False)
class Handle:
    world: World
    name: str

    def __getattr__(self, name: str) -> Method:
        if name.startswith("__"):
            raise AttributeError(name)
        return Method(self, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return str, (self.name,)


@dataclass
class World:
    """Runs the agents until no message is left, but for the one to drop and with the one to double."""

    agents: Mapping[str, Any]
    seed: int = 0
    drop: Name | None = None
    double: Name | None = None
    strict: bool = False
    running: str = DRIVER
    sent: list[Name] = field(default_factory=list)
    numbers: Counter[tuple[str, str]] = field(default_factory=Counter)
    channels: dict[tuple[str, str], deque[Sent]] = field(default_factory=dict)
    handled: int = 0
    changed_early: list[str] = field(default_factory=list)
    on_boundary: Callable[[], None] | None = None

    def __post_init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.random = random.Random(self.seed)
        self.handles = {name: Handle(self, name) for name in self.agents}
        self.suspended: list[tuple[str, str, asyncio.Task[Any]]] = []

    def send(
        self, kind: str, target: str, method: str, arguments: tuple[Any, ...], call: Call | None
    ) -> None:
        # What travels is a copy, as it is between processes; only introductions carry handles.
        content = pickle.dumps(arguments) if method != "connect" else b""
        source = self.running

        def deliver() -> None:
            given = pickle.loads(content) if content else arguments
            self.handle(target, method, given, source, call)

        self.post(source, target, Sent(kind, method, deliver))

    def post(self, source: str, target: str, message: Sent) -> None:
        kind = (message.kind, message.method)
        name = (*kind, self.numbers[kind])
        self.numbers[kind] += 1
        self.sent.append(name)
        for _ in range(0 if name == self.drop else 2 if name == self.double else 1):
            self.channels.setdefault((source, target), deque()).append(message)

    def handle(self, name: str, method: str, given: tuple[Any, ...], source: str, call: Call | None) -> None:
        self.handled += 1
        bound = getattr(self.agents[name], method)

        def answer(value: Any) -> None:
            if call is not None:
                self.running = name
                self.post(name, source, Sent("answer", method, lambda: call.answered(value)))

        if not inspect.iscoroutinefunction(bound):
            answer(bound(*given))
            return
        before = self.image(name)
        task = self.loop.create_task(bound(*given))
        self.turn_loop()
        if not task.done():
            if self.image(name) != before:
                self.changed_early.append(f"{name}.{method}")
            self.suspended.append((name, method, task))
        else:
            answer(task.result())

    def image(self, name: str) -> bytes:
        return pickle.dumps(vars(self.agents[name])) if self.strict else b""

    def turn_loop(self) -> None:
        # Enough rounds for an answer to go through `gather` and wake the handler.
        for _ in range(6):
            self.loop.call_soon(self.loop.stop)
            self.loop.run_forever()

    def run(self) -> dict[str, Any]:
        """The combined result, or {} where the job did not finish."""
        try:
            calls = [
                self.handles[name].connect.remote(*arguments)
                for name, arguments in demo_cast.introductions(self.handles)
            ]
            self.drain()
            if all(call.claim().done() for call in calls):
                self.running = DRIVER
                for name in demo_cast.starters(self.handles):
                    self.handles[name].step.tell()
                self.drain()
            progress = {name: agent.progress() for name, agent in self.agents.items()}
            if not demo_cast.all_done(progress):
                return {}
            assert demo_cast.fraction_done(progress) == 1.0
            return demo_cast.combine({name: agent.result() for name, agent in self.agents.items()})
        finally:
            for _, _, task in self.suspended:
                task.cancel()
            self.turn_loop()
            self.loop.close()

    def drain(self) -> None:
        while ready := [channel for channel, waiting in self.channels.items() if waiting]:
            channel = self.random.choice(ready)
            message = self.channels[channel].popleft()
            self.running = channel[1]
            before = self.image(channel[1]) if message.kind == "answer" and channel[1] != DRIVER else b""
            message.call()
            if message.kind == "answer":
                self.turn_loop()
                self.check_suspended(channel[1], before)
            if self.on_boundary is not None:
                self.on_boundary()

    def check_suspended(self, name: str, before: bytes) -> None:
        ended = [entry for entry in self.suspended if entry[2].done()]
        self.suspended = [entry for entry in self.suspended if not entry[2].done()]
        for _, _, task in ended:
            task.result()
        awaited = any(entry[0] == name for entry in self.suspended)
        if self.strict and not ended and awaited and self.image(name) != before:
            self.changed_early.append(f"{name} between two awaits")


FILES = {
    "alpha.py": """
import beta
from pack import inner, other, SIZE, lazy
from pack.inner import Thing as T
import pack.inner, nowhere.at_all
class HTTPServer2:
    port_number = 1
    def serve_all(self, *, maxItems=3): return self.port_number + maxItems
""",
    "beta.py": """
from alpha import *
from alpha import HTTPServer2, absent
from gamma import anything, more
try:
    import json as quick
except ImportError:
    quick = None
(first, [second, *rest]) = 1, [2]
""",
    "broken.py": "def never(:\n",
    "gamma.py": """
from delta_that_is_not_there import *
async def runner():
    import alpha.more
    class Local:
        x: int = 1
""",
    "pack/__init__.py": """
from . import inner
from .inner import Thing, Missing
from .. import outside
SIZE: int = 3
def __getattr__(name): return name
""",
    "pack/inner.py": """
from . import SIZE
from .inner import Thing as Self
class Thing:
    def go(self): pass
    def go(self): return [Thing for Thing in ()]
""",
    "pack/other.py": "",
    "umlaut.py": "# -*- coding: latin-1 -*-\nna\u00efve_Stra\u00dfe = '\u00e9'\r\nimport umlaut\r\n",
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    for path, text in FILES.items():
        place = folder / path
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(text.encode("latin-1"))
    return folder


@pytest.fixture(scope="module")
def expected(corpus: Path) -> dict[str, Any]:
    return reference(corpus, sorted(FILES), TINY)


def reference(folder: Path, paths: list[str], scale: Scale) -> dict[str, Any]:
    return compute(
        folder,
        paths,
        passes=scale.passes,
        readers=scale.readers,
        buckets=scale.buckets,
        iterations=scale.iterations,
        ticks=scale.ticks,
    )


def world(folder: Path, paths: list[str], scale: Scale, **options: Any) -> World:
    cast = demo_cast.cast(scale, str(folder), paths)
    return World({name: kind(*arguments) for name, kind, arguments in cast}, **options)


def test_agents_and_reference_agree_and_every_message_is_accounted_for(
    corpus: Path, expected: dict[str, Any]
) -> None:
    run = world(corpus, sorted(FILES), TINY, strict=True)
    assert run.run() == expected
    continuations = expected["messages"]["on_total"][0]
    assert run.handled + continuations == expected["handlers"]
    assert run.changed_early == []
    assert expected["unparsable"] == 1
    outcomes = ("external", "plain", "defined", "submodules", "dynamic", "missing", "stars")
    assert all(expected[f"link_{outcome}"] for outcome in outcomes)


class Hasty(Reader):
    async def step(self) -> None:
        self.files += 1
        await super().step()


class Restless(Linker):
    async def resolve(self, importer: int, target: int, names: tuple[str, ...]) -> None:
        await self._look(target, "*")
        self.answered += 1
        await super().resolve(importer, target, names)


@pytest.mark.parametrize(
    ("name", "kind", "found"),
    [("reader-0", Hasty, "reader-0.step"), ("linker", Restless, "linker between two awaits")],
)
def test_the_scheduler_sees_state_changed_before_an_await(
    corpus: Path, name: str, kind: type, found: str
) -> None:
    run = world(corpus, sorted(FILES), TINY, strict=True)
    run.agents[name].__class__ = kind
    run.run()
    assert found in run.changed_early


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), readers=st.integers(1, 5))
def test_any_interleaving_gives_the_same_result(
    corpus: Path, expected: dict[str, Any], seed: int, readers: int
) -> None:
    scale = Scale(TINY.passes, readers, TINY.buckets, TINY.iterations, TINY.ticks)
    wanted = expected if readers == TINY.readers else reference(corpus, sorted(FILES), scale)
    assert world(corpus, sorted(FILES), scale, seed=seed).run() == wanted


def messages_of(corpus: Path, seed: int) -> list[Name]:
    run = world(corpus, sorted(FILES), TINY, seed=seed)
    run.run()
    return run.sent


@pytest.mark.parametrize("seed", [1, 2])
def test_any_lost_message_changes_the_result(corpus: Path, expected: dict[str, Any], seed: int) -> None:
    lost = messages_of(corpus, seed)
    for name in lost:
        outcome = world(corpus, sorted(FILES), TINY, seed=seed, drop=name).run()
        assert outcome != expected, f"{name} was lost without a trace"
    assert {method for _, method, _ in lost} == set(expected["messages"]) - {"on_total"}


@pytest.mark.parametrize("seed", [1, 2])
def test_any_doubled_message_changes_the_result(corpus: Path, expected: dict[str, Any], seed: int) -> None:
    # A second answer to an awaited call has no reader, so nothing of the job could notice it.
    doubled = [name for name in messages_of(corpus, seed) if name[0] != "answer" or name[1] == "total"]
    for name in doubled:
        outcome = world(corpus, sorted(FILES), TINY, seed=seed, double=name).run()
        assert outcome != expected, f"{name} was doubled without a trace"
    assert {method for _, method, _ in doubled} == set(expected["messages"]) - {"on_total"}


def test_one_lost_and_one_doubled_of_a_kind_do_not_cancel_out(corpus: Path, expected: dict[str, Any]) -> None:
    drop, double = ("tell", "tick", 1), ("tell", "tick", 2)
    outcome = world(corpus, sorted(FILES), TINY, seed=3, drop=drop, double=double).run()
    assert outcome["handlers"] == expected["handlers"]
    assert outcome["messages"]["tick"] != expected["messages"]["tick"]
    assert outcome["matrix_sum"] != expected["matrix_sum"]


def test_files_already_read_are_not_read_again(
    corpus: Path, tmp_path: Path, expected: dict[str, Any]
) -> None:
    copy_sources(corpus, sorted(FILES), tmp_path)
    run = world(tmp_path, sorted(FILES), TINY, seed=5)

    def spoil() -> None:
        for path in sorted(FILES)[: run.agents["librarian"].progress()["cursor"]]:
            (tmp_path / path).write_text("garbage (")

    run.on_boundary = spoil
    assert run.run() == expected


def changed_bytes(old: dict[str, bytes], new: dict[str, bytes]) -> int:
    """Whole attributes, but pages of 4 KiB of the large ones, as a capture with regions has it."""
    total = 0
    for name, content in new.items():
        before = old.get(name, b"")
        if content == before:
            continue
        if len(content) < 256 * 1024 or len(before) != len(content):
            total += len(content)
        else:
            whole = len(content) // 4096 * 4096
            left = np.frombuffer(before[:whole], dtype=np.uint64).reshape(-1, 512)
            right = np.frombuffer(content[:whole], dtype=np.uint64).reshape(-1, 512)
            total += 4096 * (int((left != right).any(axis=1).sum()) + 1)
    return total


def attributes(run: World) -> dict[str, bytes]:
    return {
        f"{name}.{key}": value.tobytes() if isinstance(value, np.ndarray) else pickle.dumps(value)
        for name, agent in run.agents.items()
        for key, value in vars(agent).items()
    }


def test_deltas_are_small_against_a_full_image() -> None:
    folder, paths = find_sources(24)
    scale = Scale(passes=8, readers=4, buckets=2048, iterations=4)
    run = world(folder, paths, scale)
    ranker = run.agents["ranker"]
    sizes: list[tuple[int, int]] = []
    last: dict[str, bytes] = {}
    ticked = -1

    def cut() -> None:
        # 24 cuts in a run; one of a minute with a cut every second has more, and smaller deltas.
        nonlocal last, ticked
        if ticked < 0 or ranker.ticked >= ticked + ranker.expected_ticks // 24:
            ticked = ranker.ticked
            now = attributes(run)
            sizes.append((changed_bytes(last, now), sum(map(len, now.values()))))
            last = now

    run.on_boundary = cut
    assert run.run() == reference(folder, paths, scale)
    shares = sorted(delta / full for delta, full in sizes[1:])
    assert len(shares) >= 20
    assert shares[len(shares) // 2] < 0.15


def test_a_tick_rewrites_one_percent_and_the_full_matrix_has_64_mib() -> None:
    ranker = Ranker(Scale(), 661)
    assert ranker.matrix.nbytes == 64 * 2**20
    before = ranker.matrix.copy()
    ranker.tick(17)
    pages = (before != ranker.matrix).reshape(-1, 1024).any(axis=1).mean()
    assert 0.009 < pages <= 0.0101


def test_an_empty_job_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nothing to do: 0 files"):
        demo_cast.cast(TINY, str(tmp_path), [])


def test_sources_are_sorted_relative_and_without_test_suites() -> None:
    folder, paths = find_sources()
    assert paths == sorted(paths) and find_sources(5)[1] == paths[:5]
    assert {"ast.py", "json/__init__.py"} <= set(paths)
    assert not any(part in ("test", "tests", "site-packages") for path in paths for part in path.split("/"))
    assert all((folder / path).is_file() for path in paths)
