"""How captures write containers: a log of changes for each, in segments that are pieces of the image.

Theory of operation. A container is a row of *segments*, the oldest first: what all of them say, in their
order, is the container. A capture adds one segment with what changed since its parent. It is named after the
container's number and the capture; what is in it never changes, so a delta leaves the older ones out.

*Folding.* As many small segments would cost more in tables than in content, the newest ones are folded
into one as soon as there are `FAN` of one level; what they say twice is written once. For that the
changes of small segments are kept in memory; large ones are left as they are.

*Renewal.* When the segments name more than twice as many entries as the container has, it is written anew. A
large one is written as it was at one capture (a shallow copy is all that this costs then) by the captures
that follow, each some thousand entries and four times what changed; when it is done, one segment takes the
place of all up to that capture. That one must be in the chain: if it was aborted, all begins again.

Nothing is done to a container before everything that can fail has been done (`turn`). What a capture notes
of a container is kept in it: the `Journal`, which is worth nothing to other capturers.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from blake3 import blake3

from cutline.storage.image import Piece

from .container import CHUNK, Change, Container, Journal
from .gathering import Gathering

__all__ = (
    *("NOTHING_SHELVED", "Log", "Segment", "Shelf", "Shelved"),
    *("is_segment", "read_logs", "segment_name"),
)

_SEGMENT = "entries:"
# Segments of one level that become one of the next.
FAN = 4
# Bytes from which on a segment is not folded any more; or that share of all of them, if that is more.
_SMALL = 16 * 1024
_SHARE = 64
# Entries that a capture writes anew at once.
_AT_ONCE = 2 * CHUNK
# Entries that segments may name, for each that there is; and beside those.
SPARE = 2
_LEAST = 64


def segment_name(container: int, capture: int) -> str:
    """The name of the piece with what a capture wrote of a container."""
    return f"{_SEGMENT}{container}:{capture}"


def is_segment(name: str) -> bool:
    """Whether a piece of that name is a segment."""
    return name.startswith(_SEGMENT)


class Segment(NamedTuple):
    """`since`: the capture that it is relative to, -1 where that is not known. `size`: entries that it names.

    `piece`: as it is in later images. `change`: what it says, while it may be folded; `level`: how often it
    was.
    """

    capture: int
    since: int
    piece: Piece
    length: int
    size: int
    level: int = 0
    change: Change | None = None


Log = tuple[Segment, ...]
# With the content that a capture writes of it, if it does.
Written = tuple[Segment, bytes | bytearray | None]


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
            segment.piece.name: (segment.piece.digest, segment.length)
            for log in self.logs.values()
            for segment in log
        }


NOTHING_SHELVED = Shelved({}, (), ())


def read_logs(
    segments: Mapping[int, Sequence[tuple[int, int]]], pieces: Mapping[str, tuple[bytes, int]]
) -> dict[int, Log]:
    """The logs of an image that was read, from its header's rows and the digests of its pieces."""

    def read(number: int, capture: int, size: int) -> Segment:
        name = segment_name(number, capture)
        digest, length = pieces[name]
        return Segment(capture, -1, Piece(name, digest, None), length, size)

    return {number: tuple(read(number, *row) for row in rows) for number, rows in segments.items()}


class Renewal:
    """A container that is written anew, a few thousand entries with each capture: as it was at `capture`."""

    def __init__(self, capture: int, change: Change) -> None:
        self.capture, self.size = capture, change.size
        # Grown bit by bit, so that no capture has all of it to copy or to hash.
        self.content = bytearray()
        self.digest = b""
        self._hasher = blake3()
        self._documents: Iterator[Any] | None = change.documents()
        self._index = change.indexing()
        self._is_bare = change.is_bare

    def go_on(self, writer: Writer, entries: int) -> None:
        """Writes about so many."""
        while self._documents is not None and entries > 0:
            entries -= CHUNK
            document = next(self._documents, None)
            if document is None:
                part = b"" if self._index is None else self._index.content()
                self._documents = self._index = None
            else:
                part = writer.write(document, bare=self._is_bare)
                if self._index is not None:
                    self._index.add(document, len(part))
            self.content += part
            self._hasher.update(part)
            if self._documents is None:
                self.digest = self._hasher.digest()

    def fits(self, capture: int, log: Log) -> bool:
        """Whether the log of that capture, without what is older than this, goes on where this ends."""
        return capture >= self.capture and all(
            segment.since >= self.capture for segment in log if segment.capture > self.capture
        )


class Shelf:
    """The containers of one capturer."""

    def __init__(self) -> None:
        self.first = 0
        # Those that the capture under way has begun to write anew.
        self._begun: dict[int, Renewal] = {}

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
        writer = Writer(dispatch)
        logs: dict[int, Log] = {}
        pieces: list[Piece] = []
        self._begun.clear()
        for number, container in met.met.items():
            own = self._of_one(number, container, writer, capture, base)
            logs[number] = tuple(segment for segment, _ in own)
            pieces += [
                segment.piece if content is None else Piece(segment.piece.name, segment.piece.digest, content)
                for segment, content in own
            ]
        met.check()
        return Shelved(logs, pieces, [_row(each, number, logs[number]) for number, each in met.met.items()])

    def _of_one(
        self,
        number: int,
        container: Container,
        writer: Writer,
        capture: int,
        base: tuple[int, Mapping[int, Log]] | None,
    ) -> list[Written]:
        """The segments of a container, with what this capture writes of them."""
        journal = container._journal
        log = base[1].get(number) if base is not None else None
        if base is None or log is None or journal is None or journal.owner is not self:
            return self._all_of(number, container, writer, capture)
        change = journal.since(base[0], container._change())
        if change.size and change.is_whole:
            return [self._segment(number, capture, capture, writer, change)]
        own: list[Written] = []
        renewal, floor = journal.renewal, -1
        if renewal is not None:
            renewal.go_on(writer, CHUNK + 4 * change.size)
            floor = renewal.capture
            renewed, log = self._renewed(number, journal, base[0], log)
            own += renewed
        elif sum(segment.size for segment in log) + change.size > SPARE * len(container) + _LEAST:
            if len(container) <= _AT_ONCE:
                return [self._segment(number, capture, capture, writer, container._everything())]
            # From this capture on; the next ones write it.
            self._begun[number] = Renewal(capture, container._everything())
        if not change.size:
            return own + [(segment, None) for segment in log]
        log, change, since, level = _folded(log, change, base[0], floor)
        small = max(_SMALL, sum(segment.length for segment in log) // _SHARE)
        segment = self._segment(number, capture, since, writer, change, level=level, small=small)
        return own + [(each, None) for each in log] + [segment]

    def _all_of(self, number: int, container: Container, writer: Writer, capture: int) -> list[Written]:
        """Everything; what was restored and never read goes on as it was stored."""
        journal = container._journal
        stored = container._as_stored() if journal is not None and journal.owner is self else None
        if stored is None:
            return [self._segment(number, capture, capture, writer, container._everything())]
        segments, change = stored
        own: list[Written] = []
        for each in segments:
            content = each.whole()
            piece = Piece(segment_name(number, each.capture), each.digest, None)
            own.append((Segment(each.capture, -1, piece, len(content), each.size), content))
        if change.size:
            own.append(self._segment(number, capture, -1, writer, change))
        return own

    def _renewed(self, number: int, journal: Journal, base: int, log: Log) -> tuple[list[Written], Log]:
        """(a segment in the place of the oldest ones, the others)."""
        renewal = journal.renewal
        assert renewal is not None
        if base >= renewal.capture and not renewal.fits(base, log):
            # The capture that it begins with came to nothing.
            journal.renewal = None
        elif renewal.digest and base >= renewal.capture:
            if log and log[0].piece.digest == renewal.digest:
                # The one before has it.
                journal.renewal = None
                return [], log
            piece = Piece(segment_name(number, renewal.capture), renewal.digest, None)
            segment = Segment(renewal.capture, renewal.capture, piece, len(renewal.content), renewal.size)
            kept = tuple(each for each in log if each.capture > renewal.capture)
            return [(segment, renewal.content)], kept
        return [], log

    @staticmethod
    def _segment(
        number: int,
        capture: int,
        since: int,
        writer: Writer,
        change: Change,
        *,
        level: int = 0,
        small: int = _SMALL,
    ) -> tuple[Segment, bytes]:
        """A new one, and its content."""
        content = _pickled(writer, change)
        piece = Piece(segment_name(number, capture), blake3(content).digest(), None)
        kept = change if len(content) < small else None
        return Segment(capture, since, piece, len(content), change.size, level, kept), content

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
            if number in self._begun:
                journal.renewal = self._begun[number]

    def adopt(self, containers: Mapping[int, Container]) -> None:
        """These were restored, and know what changed in them since."""
        for number, container in containers.items():
            container._journal = Journal(self, number)
            self.first = max(self.first, number + 1)


def _pickled(writer: Writer, change: Change) -> bytes:
    """What a segment says, with its index where it has one."""
    index, bare = change.indexing(), change.is_bare
    parts = []
    for document in change.documents():
        parts.append(writer.write(document, bare=bare))
        if index is not None:
            index.add(document, len(parts[-1]))
    return b"".join(parts) if index is None else b"".join([*parts, index.content()])


def _folded(log: Log, change: Change, since: int, floor: int) -> tuple[Log, Change, int, int]:
    """(the segments that stay, what the new one says, since when, its level); nothing from before `floor` is
    put with something from after it.
    """
    level = 0
    while len(tail := log[1 - FAN :]) == FAN - 1 and all(
        each.change is not None and each.level == level and each.since >= floor for each in tail
    ):
        for segment in reversed(tail):
            assert segment.change is not None
            change, since = change.over(segment.change), segment.since
        log = log[: 1 - FAN]
        level += 1
    return log, change, since, level


def _row(container: Container, number: int, log: Log) -> list[Any]:
    """What the header says of a container."""
    nested = sum(1 for _ in container._nested())
    counts = [len(container), container._checked_count(), nested]
    return [number, container.kind, *counts, [[segment.capture, segment.size] for segment in log]]


class Writer:
    """Pickles the documents of changes, each with a memo of its own."""

    def __init__(self, dispatch: Any) -> None:
        self._stream = io.BytesIO()
        self._pickler = pickle.Pickler(self._stream, 5)
        self._pickler.dispatch_table = dispatch
        # Takes half the time, and whoever loads what it wrote has less to do too.
        self._without_memo = pickle.Pickler(self._stream, 5)
        self._without_memo.fast = True

    def write(self, document: Any, *, bare: bool = False) -> bytes:
        """One of them. `bare`: see `Change.is_bare`."""
        self._stream.seek(0)
        self._stream.truncate()
        if bare and type(document) is dict:
            self._without_memo.dump(document)
        else:
            self._pickler.clear_memo()
            self._pickler.dump(document)
        return self._stream.getvalue()
