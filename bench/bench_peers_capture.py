"""A checkpoint of a participant after one in a hundred of its state has changed, against ways of saving it.

Four states: arrays, a table (`Map`, dict), a chat history (`Log`, list), and all three. Three figures each:
what the program is held up for, the time until all is durable, and the bytes written. Ours is a checkpoint
of a running system, asked for right after the changes; the time to durable is that of
`system.checkpoint()`, from the request to the commit, and the bytes are those of its packs, which are
compressed (the history repeats itself, the arrays do not). The peers are `bench.peers.savers`. Both sides
make the same changes, and in the end what was saved last is read back and must be what is held, and the
same on both sides.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any

import cutline
from bench.peers.held import SHAPES, OurHeld
from bench.peers.savers import SAVERS, SavingPeer
from bench.peers.turns import Peers, in_turns
from bench.row import Missing, Row
from cutline.storage.blobs import parts_of

__all__ = ("GROUP", "measure")

GROUP = "capture"
# (figure, unit, what it is)
_FIGURES = (
    ("stall", "s", "what the program is held up for"),
    ("durable", "s", "until all is durable"),
    ("written", "bytes", "written for a change of 1 %"),
)
_WHAT = {
    "pickle": "pickle.dump and fsync",
    "cloudpickle": "cloudpickle.dump and fsync",
    "numpy_save": "numpy.save of each array and fsync",
    "orbax": "Orbax AsyncCheckpointer",
    "kishu": "Kishu, a cell of a notebook",
    "torch": "torch.distributed.checkpoint.async_save",
}


class _Ours:
    """A system with one participant of a shape."""

    def __init__(self, folder: str, shape: str, scale: float) -> None:
        self.folder = folder
        self.system = cutline.start(folder, name=shape, interval=None, quiet=True)
        self.held: Any = self.system.spawn("held", OurHeld, shape, scale)

    @staticmethod
    def _ask(method: Any) -> Any:
        return method.options(durable=False).remote().result(timeout=60)

    def save(self) -> dict[str, float]:
        """A turn of changes, which is not timed, and a checkpoint."""
        self._ask(self.held.change)
        began = time.perf_counter()
        number = self.system.checkpoint()
        durable = time.perf_counter() - began
        row = next(row for row in self.system.checkpoints() if row.checkpoint == number)
        written = sum(self.system.store.blobs.size(key) for key in row.blobs if self._of(key) == number)
        return {"stall": row.summary["stall_ms_max"] / 1000, "durable": durable, "written": float(written)}

    @staticmethod
    def _of(key: str) -> int:
        parts = parts_of(key)
        return parts.checkpoint if parts is not None and key.endswith(".pack") else 0

    def check(self) -> str:
        """The digest of what it holds, after it has been found to be what the newest checkpoint holds."""
        held = str(self._ask(self.held.digest))
        self.system.stop(checkpoint=False)
        loaded = cutline.load("newest", self.folder, name=self.system.name)["held"].digest()
        if loaded != held:
            raise AssertionError("the newest checkpoint holds something else than the participant")
        return held


def _peers_of(shape: str) -> list[str]:
    return [name for name, saver in SAVERS.items() if shape in saver.shapes]


def _shape(shape: str, rounds: int, scale: float, chosen: list[str]) -> list[Row | Missing]:
    names = {f"{shape}_{figure}_vs_{name}": name for name in chosen for figure, _unit, _meaning in _FIGURES}
    with tempfile.TemporaryDirectory(prefix="cutline-bench-") as folder, Peers() as peers:
        ours = _Ours(folder, shape, scale)
        try:
            sides: dict[str, Callable[[], dict[str, float]]] = {"ours": ours.save}
            checks: dict[str, Callable[[], str]] = {}
            for name in chosen:
                peer = peers.open(name, lambda name=name: SavingPeer(name, shape, scale))  # type: ignore[misc]
                if peer is not None:
                    sides[name], checks[name] = peers.side(name, peer.save), peer.check
            # The first of both sides has everything to write.
            samples = in_turns(rounds, sides, warm=2)
            _compare(peers, ours.check(), {name: checks[name] for name in samples if name in checks})
        finally:
            ours.system.stop(checkpoint=False)
    rows: list[Row | Missing] = []
    for name in checks:
        for figure, unit, meaning in _FIGURES if name not in peers.failed else ():
            rows.append(
                Row(
                    name=f"{shape}_{figure}_vs_{name}",
                    unit=unit,
                    samples_ours=[sample[figure] for sample in samples["ours"]],
                    samples_baseline=[sample[figure] for sample in samples[name]],
                    ratio="baseline/ours",
                    at_least=1.0,
                    against=_WHAT[name],
                    group=GROUP,
                    note=f"{meaning}; {_size(shape, scale)}; read back and compared",
                )
            )
    return rows + list(peers.rows(names))


def _compare(peers: Peers, held: str, checks: Mapping[str, Callable[[], str]]) -> None:
    """Peers that cannot read what they saved, or hold something else than ours, have failed.

    Raises:
        AssertionError: none of them holds what ours does, which may be what is wrong.
    """
    found = {name: peers.attempt(name, check) for name, check in checks.items()}
    others = {name: digest for name, digest in found.items() if digest is not None}
    if others and held not in others.values():
        raise AssertionError(f"no side holds the same as ours, {held}: {others}")
    for name, digest in others.items():
        if digest != held:
            peers.fail(name, AssertionError(f"{name} holds something else than the other sides"))


def _size(shape: str, scale: float) -> str:
    mebibytes, entries, messages = (int(amount * scale) for amount in SHAPES[shape])
    parts = ((mebibytes, "MiB of arrays"), (entries, "entries"), (messages, "messages"))
    return ", ".join(f"{amount:,} {what}" for amount, what in parts if amount)


def measure(
    *,
    rounds: int = 5,
    scale: float = 1.0,
    shapes: tuple[str, ...] = tuple(SHAPES),
    peers: tuple[str, ...] | None = None,
) -> list[Row | Missing]:
    """The rows; see the module's head. ``peers``: these only."""
    rows: list[Row | Missing] = []
    for shape in shapes:
        chosen = [name for name in _peers_of(shape) if peers is None or name in peers]
        rows += _shape(shape, rounds, scale, chosen)
    return rows
