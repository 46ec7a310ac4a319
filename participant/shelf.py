"""How captures write containers: a log of changes for each, in segments that are pieces of the image.

Theory of operation. A container is a row of *segments*, the oldest first: what all of them say, in their
order, is the container. A capture adds one segment with what changed since its parent. It is named after the
container's number and the capture; what is in it never changes, so a delta leaves the older ones out.

*Folding.* As many small segments would cost more in tables than in content, the newest ones are folded
into one as soon as there are `_FAN` of one level; what they say twice is written once. For that the
changes of small segments are kept in memory; large ones are left as they are. When the segments name more
than twice as many entries as the container has, all of it is written anew, as one segment.

Nothing is done to a container before everything that can fail has been done (`turn`). What a capture notes
of a container is kept in it: the `Journal`, which is worth nothing to other capturers.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from blake3 import blake3

from cutline.storage.image import Piece

from .container import Change, Container, Journal
from .gathering import Gathering

__all__ = (
    *("NOTHING_SHELVED", "Log", "Segment", "Shelf", "Shelved"),
    *("is_segment", "read_logs", "segment_name"),
)

_SEGMENT = "entries:"
# Segments of one level that become one of the next.
_FAN = 4
# Bytes from which on a segment is not folded any more.
_SMALL = 16 * 1024
# Entries that may be named in vain, beside as many as there are.
_SPARE = 64


def segment_name(container: int, capture: int) -> str:
    """The name of the piece with what a capture wrote of a container."""
    return f"{_SEGMENT}{container}:{capture}"


def is_segment(name: str) -> bool:
    """Whether a piece of that name is a segment."""
    return name.startswith(_SEGMENT)


class Segment(NamedTuple):
    """`size`: entries that it names. `change`: what it says, while it may be folded; `level`: how often
    it was.
    """

    capture: int
    digest: bytes
    length: int
    size: int
    level: int = 0
    change: Change | None = None


Log = tuple[Segment, ...]


class Shelved(NamedTuple):
    """What a capture writes of the containers. `rows` are the header's."""

    logs: dict[int, Log]
    pieces: Sequence[Piece]
    rows: Sequence[list[Any]]

    def counts(self) -> dict[str, int]:
        """How many entries there are, and how many of them are checked."""
        if not self.rows:
            return {}
        return {"entries": sum(row[2] for row in self.rows), "checked": sum(row[3] for row in self.rows)}

    def table(self) -> dict[str, tuple[bytes, int]]:
        """Digest and length of all segments, by the names of their pieces."""
        return {
            segment_name(number, segment.capture): (segment.digest, segment.length)
            for number, log in self.logs.items()
            for segment in log
        }


NOTHING_SHELVED = Shelved({}, (), ())


def read_logs(
    segments: Mapping[int, Sequence[tuple[int, int]]], pieces: Mapping[str, tuple[bytes, int]]
) -> dict[int, Log]:
    """The logs of an image that was read, from its header's rows and the digests of its pieces."""
    return {
        number: tuple(
            Segment(capture, *pieces[segment_name(number, capture)], size) for capture, size in rows
        )
        for number, rows in segments.items()
    }


class Shelf:
    """The containers of one capturer."""

    def __init__(self) -> None:
        self.first = 0

    def gathering(self) -> Gathering:
        """For one pickling of the state."""
        return Gathering(self, self.first)

    def write(
        self,
        met: Gathering,
        dispatch: Any,
        capture: int,
        base: tuple[int, Mapping[int, Log]] | None,
    ) -> Shelved:
        """The containers of a capture. `base`: number and logs of the one that it is relative to.

        Raises:
            Exception: whatever pickle raises.
        """
        met.names_only = True
        writer = _Writer(dispatch)
        logs: dict[int, Log] = {}
        pieces: list[Piece] = []
        for number, container in met.met.items():
            log, change, level = self._due(number, container, base)
            content: bytes | None = None
            if change is not None:
                content = writer.write(change)
                kept = change if len(content) < _SMALL else None
                digest = blake3(content).digest()
                log = (*log, Segment(capture, digest, len(content), change.size, level, kept))
            logs[number] = log
            for segment in log:
                own = content if segment.capture == capture else None
                pieces.append(Piece(segment_name(number, segment.capture), segment.digest, own))
        return Shelved(logs, pieces, [_row(each, number, logs[number]) for number, each in met.met.items()])

    def _due(
        self, number: int, container: Container, base: tuple[int, Mapping[int, Log]] | None
    ) -> tuple[Log, Change | None, int]:
        """(the segments that stay, what the new one says, its level)."""
        journal = container._journal
        log = base[1].get(number) if base is not None else None
        if base is None or log is None or journal is None or journal.owner is not self:
            return (), container._everything(), 0
        change = journal.since(base[0], container._change())
        if not change.size:
            return log, None, 0
        if change.is_whole:
            return (), change, 0
        if sum(segment.size for segment in log) + change.size > 2 * len(container) + _SPARE:
            return (), container._everything(), 0
        level = 0
        while len(tail := log[1 - _FAN :]) == _FAN - 1 and all(_is_open(each, level) for each in tail):
            for segment in reversed(tail):
                assert segment.change is not None
                change = change.over(segment.change)
            log = log[: 1 - _FAN]
            level += 1
        return log, change, level

    def turn(self, met: Gathering, capture: int, known: Collection[int]) -> None:
        """The capture was taken: what was noted so far is in it. `known`: see `Journal.add`."""
        self.first = met.first
        for number, container in met.met.items():
            journal = container._journal
            if journal is None or journal.owner is not self:
                journal = container._journal = Journal(self, number)
            change = container._change()
            if change.size or journal.generations:
                journal.add(capture, change, known)
                container._turn()

    def adopt(self, containers: Mapping[int, Container]) -> None:
        """These were restored, and know what changed in them since."""
        for number, container in containers.items():
            container._journal = Journal(self, number)
            self.first = max(self.first, number + 1)


def _is_open(segment: Segment, level: int) -> bool:
    return segment.change is not None and segment.level == level


def _row(container: Container, number: int, log: Log) -> list[Any]:
    """What the header says of a container."""
    nested = sum(1 for _ in container._nested())
    counts = [len(container), container._checked_count(), nested]
    return [number, container.kind, *counts, [[segment.capture, segment.size] for segment in log]]


class _Writer:
    """Pickles changes, a few thousand entries at a time, each part with a memo of its own."""

    def __init__(self, dispatch: Any) -> None:
        self._stream = io.BytesIO()
        self._pickler = pickle.Pickler(self._stream, 5)
        self._pickler.dispatch_table = dispatch

    def write(self, change: Change) -> bytes:
        self._stream.seek(0)
        self._stream.truncate()
        for document in change.documents():
            self._pickler.clear_memo()
            self._pickler.dump(document)
        return self._stream.getvalue()
