"""An agent's history that grows step by step, kept durably after every step: ours and peers, in turns.

A round grows the history by as many messages as are not measured (at once), and then makes steps that are:
each gives one message and is durable before the next. So the rounds see the history at a tenth, two tenths
and so on of its length, and what grows with it grows in the figures. Ours makes the steps with `Log.step` and
takes a checkpoint after each round's, which is in its time and in its bytes. Bytes are what a step adds to
what is kept; ours those of the file of steps and of the packs, also of checkpoints that are dropped later.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import cutline
from bench.bench_step_vs_append import Agent, answer_of
from bench.peers.child import Absent, Child
from bench.peers.turns import Peers, in_turns
from bench.row import Missing, Row

__all__ = ("GROUP", "Appending", "PeerOf", "Steps", "compared")

GROUP = "store"


class Growing(Agent):
    """The agent of `step_vs_append`, which also takes messages without steps."""

    def grow(self, first: int, count: int) -> None:
        """So many messages at once."""
        self.log.extend([answer_of(number) for number in range(first, first + count)])


class _Ours:
    """The agent in a system of its own."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.system = cutline.start(folder, name="thread", interval=None, quiet=True)
        self.agent: Any = self.system.spawn("agent", Growing, 0)

    def grow(self, first: int, count: int) -> None:
        """Messages that are not measured."""
        self.agent.grow.remote(first, count).result(timeout=60)
        self.system.checkpoint()

    def steps(self, first: int, count: int) -> dict[str, float]:
        """Seconds and bytes of a step."""
        before = self._step_bytes()
        began = time.perf_counter()
        self.agent.steps.remote(first, count).result(timeout=60)
        stepped = time.perf_counter() - began
        added = self._step_bytes() - before
        began = time.perf_counter()
        number = self.system.checkpoint()
        seconds = stepped + time.perf_counter() - began
        added += self._pack_bytes(number)
        return {"seconds": seconds / count, "bytes": added / count}

    def _step_bytes(self) -> int:
        # Behind the records there is room, which is zeros.
        files = Path(self.folder).glob("thread/*/*/*.steps")
        return sum(len(path.read_bytes().rstrip(b"\0")) for path in files)

    def _pack_bytes(self, number: int) -> int:
        row = next(row for row in self.system.checkpoints() if row.checkpoint == number)
        older = {key for each in self.system.checkpoints() if each.checkpoint < number for key in each.blobs}
        own = [key for key in row.blobs if key.endswith(".pack") and key not in older]
        return sum(self.system.store.blobs.size(key) for key in own)

    def numbers(self) -> list[int]:
        """Of all messages."""
        found: list[int] = self.agent.numbers.remote().result(timeout=60)[0]
        return found

    def close(self) -> None:
        self.system.stop(checkpoint=False)


class Steps:
    """A peer in a process of its own that answers to ``grow``, ``steps`` and ``check``."""

    def __init__(self, module: str, *arguments: str, place: str = "") -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="cutline-bench-")
        try:
            self._child = Child(module, *arguments, place or self._folder.name)
        except Absent:
            self._folder.cleanup()
            raise

    def grow(self, first: int, count: int) -> None:
        """Messages that are not measured."""
        self._child.ask(order="grow", first=first, count=count)

    def steps(self, first: int, count: int) -> dict[str, float]:
        """Seconds and bytes of a step."""
        return self._child.ask(order="steps", first=first, count=count)

    def numbers(self) -> list[int]:
        """Of all messages that it has kept."""
        found: list[int] = self._child.ask(order="check")["numbers"]
        return found

    def close(self) -> None:
        """Ends it."""
        self._child.close()
        self._folder.cleanup()


class Appending:
    """`write` and `fdatasync` of a message's record: the least that durable steps take."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._folder = tempfile.TemporaryDirectory(prefix="cutline-bench-")
        self._file = os.open(f"{self._folder.name}/appended", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._count = 0

    def grow(self, _first: int, count: int) -> None:
        """Messages that are not measured."""
        os.write(self._file, os.urandom(self.size) * count)
        os.fdatasync(self._file)
        self._count += count

    def steps(self, _first: int, count: int) -> dict[str, float]:
        """Seconds and bytes of a step."""
        record = os.urandom(self.size)
        began = time.perf_counter()
        for _ in range(count):
            os.write(self._file, record)
            os.fdatasync(self._file)
        self._count += count
        return {"seconds": (time.perf_counter() - began) / count, "bytes": float(self.size)}

    def numbers(self) -> list[int]:
        """Of all records, by the file's size."""
        return list(range(os.fstat(self._file).st_size // self.size))

    def close(self) -> None:
        """Removes the file."""
        os.close(self._file)
        self._folder.cleanup()


Peer: TypeAlias = Steps | Appending
# What it is, how it is opened, and the target of its rows.
PeerOf: TypeAlias = tuple[str, Callable[[], Peer], float | None]


def compared(peers: Mapping[str, PeerOf], *, rounds: int, steps: int) -> list[Row | Missing]:
    """The rows. ``peers``: by the end of the row's name, what it is, how it is opened, and the target.

    After ``rounds`` the history has ``steps`` messages, half of which were measured.
    """
    half = steps // rounds // 2
    with tempfile.TemporaryDirectory(prefix="cutline-bench-") as folder, Peers() as opened:
        sides: dict[str, _Ours | Peer] = {"ours": _Ours(folder)}
        opened.callback(sides["ours"].close)
        for name, (_against, make, _target) in peers.items():
            peer = opened.open(name, make)
            if peer is not None:
                sides[name] = peer
        at = dict.fromkeys(sides, 0)

        def turn(name: str) -> dict[str, float]:
            first, side = at[name], sides[name]
            at[name] += 2 * half
            side.grow(first, half)
            return side.steps(first + half, half)

        def check(name: str) -> None:
            if sides[name].numbers() != list(range(at[name])):
                raise AssertionError(f"{name} has not kept each message once, in order")

        takes = {name: partial(turn, name) for name in sides}
        safe = {name: take if name == "ours" else opened.side(name, take) for name, take in takes.items()}
        samples = in_turns(rounds, safe, warm=0)
        check("ours")
        for name in samples:
            if name != "ours":
                opened.attempt(name, partial(check, name))
    note = f"a history of up to {2 * half * rounds:,} messages, {half} steps at each of {rounds} lengths"
    rows: list[Row | Missing] = [
        Row(
            name=f"store_{figure}_vs_{name}",
            unit="s" if figure == "seconds" else "bytes",
            samples_ours=[sample[figure] for sample in samples["ours"]],
            samples_baseline=[sample[figure] for sample in samples[name]],
            ratio="baseline/ours",
            at_least=peers[name][2],
            against=peers[name][0],
            group=GROUP,
            note=f"of a step; {note}",
        )
        for name in samples
        if name != "ours" and name not in opened.failed
        for figure in ("seconds", "bytes")
    ]
    missing = {f"store_{figure}_vs_{name}": name for name in peers for figure in ("seconds", "bytes")}
    return rows + list(opened.rows(missing))
