"""Takes a participant's state at a message boundary: everything once, then only what changed.

Theory of operation. A capture pickles the instance into pieces (`cutline.participant.pieces`), with the
memory of large owners beside them as numbered regions. Long pieces are cut into parts, which are pieces of
the image (`cutline.participant.parts`). Parts are compared by hash with those of the capture that this one is
relative to, regions by what is known of their writes (`cutline.participant.tracking`). What differs is
*copied* into the result, so the handler may go on the moment `capture` returns: nothing in a `Captured`
refers to memory that anybody may change. Everything happens on the handler's thread at the boundary.

What is known at each capture is kept under its number until a later one is known to have committed, so an
aborted capture takes no change with it and captures may overlap. Nothing else is kept: no reference, weak
reference or buffer export to anything of the state, which would make `bytearray.append` and
`ndarray.resize` fail. A region's number only names content. It stays with the owner found at the same
address and size, or else in the same place with the same size, which keeps deltas small; a number that went
to another owner costs bytes and nothing else.

A restore tells of each region's memory as it is filled, before any code of the program (`__setstate__`,
`migrate`, a handler that runs again) can write to it: what such code changes is a change like any other.

The first piece, "header", is a msgpack document that says how to read the others (`restore.py`).
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgpack
import numpy as np

from cutline.errors import CannotCapture, CannotRestore, CaptureError, ConcurrentMutation, StorageError
from cutline.storage.extents import Extents
from cutline.storage.image import Piece, Region
from cutline.storage.part_names import part_name, piece_of

from .classes import name_of, version_of
from .kernel_pages import PAGE
from .kinds import Kinds, PersistentTypes
from .memory import Bytes, address, span
from .migrating import fields_of
from .parts import SMALLEST, Cutting, Part, digest_of, part_size
from .paths import path_of
from .pickling import prove, refusal
from .pieces import NESTED, Order, Row, write_row
from .restore import HEADER, Restored, restore
from .shelf import NOTHING_SHELVED, Shelf, Shelved, is_segment, read_logs
from .standing import Standing
from .table import Table
from .tracking import Mark, RegionTracker, Taken
from .undisturbed import undisturbed

__all__ = ("Captured", "Capturer", "PersistentTypes", "check_capturable")

# Of the header; the second where a piece has parts, the third where there are containers.
FORMAT = 1
FORMAT_PARTS = 2
FORMAT_CONTAINERS = 3
_NOTHING = b"", 0
# Bytes that an entry of a container is taken to have, roughly, where that is to be known beforehand.
_ENTRY = 32


@dataclass
class Captured:
    """One capture, a copy of its own. Sizes in bytes, times in seconds.

    `stall`: all of it; `detecting`: what of it went by in finding out what changed (pickling, hashing, the
    kernel's account), the rest is copying. `changed_bytes`: changed runs of regions plus the length of
    changed pieces, of long ones that of changed parts. `tracked`: bytes of the regions by the way in which
    their changes were found, "kernel", "hash" or "whole"; `why`: by way, why not by the kernel, see
    `RegionTracker.reasons`. `pages`: those that the kernel said were written.
    `containers`: entries of Maps and Logs, and how many of them were checked; empty if there are none.
    """

    number: int
    pieces: tuple[Piece, ...]
    regions: tuple[Region, ...]
    changed_bytes: int
    state_bytes: int
    class_name: str
    class_version: int
    stall: float
    detecting: float
    tracked: dict[str, int]
    why: dict[str, list[str]]
    pages: int
    containers: dict[str, int]


class Capturer:
    """Takes the captures of one participant. `region_min`, `block`, `small` and `part` in bytes.

    A piece longer than `part` is cut into parts of at least that. A state up to `small` is written whole each
    time. `persistent` names types that are written in a way of the program's own, or refused by raising.
    `tracking`: see `RegionTracker`.
    """

    def __init__(
        self,
        participant: str,
        *,
        region_min: int = 256 * 1024,
        block: int = 4096,
        persistent: PersistentTypes | None = None,
        small: int = 0,
        tracking: str = "auto",
        part: int = SMALLEST,
    ) -> None:
        self.participant = participant
        self._region_min = region_min
        self._small = small
        self._smallest = part
        self._seed = secrets.randbits(64)
        self._tracker = RegionTracker(tracking, block)
        self._kinds = Kinds(persistent)
        self._order = Order()
        self._shelf = Shelf()
        self._tables: dict[int, Table] = {}
        self._latest = Table()
        self._next_region = 0
        # Seconds of the capture under way that went into copying.
        self._copying = 0.0

    def capture(self, instance: object, *, number: int, against: int | None) -> Captured:
        """The state of `instance` now, as checkpoint `number`.

        Call at a message boundary, on the handler's thread. `against` is the committed capture that a
        delta is relative to; None, or one that is not known here, writes everything.

        Raises:
            CannotCapture: something that cannot be saved, or would not load, with its path.
            ConcurrentMutation: another thread writes to the memory of an array meanwhile.
        """
        began, self._copying = time.perf_counter(), 0.0
        base = self._tables.get(against) if against is not None else None
        with undisturbed():
            row, shelved = self._write(instance, number, base, against)
            try:
                captured = self._compare(row, shelved, instance, number, base)
            finally:
                row.arrays.clear()
        captured.stall = time.perf_counter() - began
        captured.detecting = captured.stall - self._copying
        return captured

    def copy_ahead(self, against: int, most: int) -> int:
        """Copies up to `most` pages that the next capture, relative to `against`, will have to write.

        Returns how many; fewer than `most`: none are left for now. Call on the handler's thread, between
        messages.
        """
        base = self._tables.get(against)
        return 0 if base is None else self._tracker.copy_ahead(self._latest.places, base.regions, most)

    def committed(self, number: int) -> None:
        """Capture `number` committed: no delta will be relative to an older one."""
        self._tables = {known: table for known, table in self._tables.items() if known >= number}

    def aborted(self, number: int) -> None:
        """Capture `number` came to nothing. What it held is still changed relative to the others."""
        self._tables.pop(number, None)

    def standing(self, number: int, instance: object) -> Standing:
        """The memory of `instance` whose contents at capture `number` are known here; see `Standing`.

        This capturer is not used again.
        """
        table = self._tables.get(number, Table())
        regions = sum(mark.size for mark in table.regions.values())
        nothing = Standing({}, {}, self._tracker)
        if not regions or regions < sum(length for _, length in table.pieces.values()):
            # Finding the memory costs a pickle of all the rest.
            return nothing
        try:
            row, _ = self._write(instance)
        except CannotCapture:
            # The state went bad since, which is nobody's concern: it is being undone.
            return nothing
        memories = row.arrays.slots
        owners = {
            region: memory.base
            for region, memory in zip(self._known(memories, table), memories, strict=True)
            if region is not None and type(memory.base) is np.ndarray
        }
        row.arrays.clear()
        return Standing(owners, table.regions, self._tracker)

    def expecting(self, standing: Standing | None = None) -> Restored:
        """What to give to the restore whose result `adopt` will take: it lets the next delta be small.

        `standing` spares hashing what it knows the hashes of.
        """
        known: Mapping[int, Mark] = {}
        if standing is not None:
            self._tracker.hasher, known = standing.tracker.hasher, standing.marks
        return Restored(lambda number, memory: self._tracker.first(memory, known.get(number)))

    def adopt(self, number: int, instance: object, restored: Restored | None = None) -> None:
        """`instance` was just restored from checkpoint `number`: later captures may be relative to it.

        `restored` is what `expecting` gave. Without it the next delta writes everything, under new region
        numbers.
        """
        table = Table()
        self._next_region = max(self._next_region, (number + 1) << 20)
        if restored is not None:
            parts: dict[str, list[str]] = {}
            for name, content in restored.pieces:
                table.pieces[name] = (digest_of([content]), len(content))
                parts.setdefault(piece_of(name), []).append(name)
            del parts[HEADER]
            table.pieces.update(restored.unread)
            table.logs = read_logs(restored.segments, table.pieces)
            self._shelf.adopt(restored.containers)
            self._kinds.know(restored.classes.values())
            parts = {name: names for name, names in parts.items() if not is_segment(name)}
            table.wholes = {name: table.whole(names) for name, names in parts.items()}
            table.cuts = dict(restored.cuts)
            self._order.arrange([name for name in parts if not name.startswith(NESTED)])
            table.slots = restored.slots
            table.regions = dict(restored.marks)
            table.places = {place: region for region, place in restored.places.items()}
        self._tables[number] = self._latest = table

    # -- one capture ---------------------------------------------------------------------------------

    def _write(
        self,
        instance: object,
        number: int | None = None,
        base: Table | None = None,
        against: int | None = None,
    ) -> tuple[Row, Shelved]:
        """The pieces, every type in them proven to load; parts that `base` has are not kept. Without a
        `number` not those of Maps and Logs."""
        row: Row | None = None
        shelved = NOTHING_SHELVED
        sizes = {name: size for name, (size, _) in self._latest.cuts.items()}
        cutting = Cutting(self._seed, self._smallest, sizes, base.quick if base is not None else {})
        try:
            row = write_row(instance, self._kinds, self._order, self._region_min, cutting, self._shelf)
            if number is not None and row.arrays.containers.met:
                logs = None
                if base is not None and against is not None and not self._is_small(row):
                    logs = against, base.logs
                shelved = self._shelf.write(row.arrays.containers, self._kinds, number, logs)
            if self._kinds.fresh:
                prove(self._kinds)
            return row, shelved
        except StorageError as error:
            refused = CannotCapture(
                f"participant {self.participant!r} cannot be captured: a Map that is read as it is asked for "
                f"had to be read: {error}",
                **{"path": "self", **error.facts, "participant": self.participant, "reason": str(error)},
            )
        except Exception as error:
            refused = refusal(instance, error, self._kinds, participant=self.participant, name="self")
        finally:
            # Types whose proof did not come about will be new again.
            self._kinds.forget()
        if row is not None:
            row.arrays.clear()
        # Raised here, it has no context whose frames would hold memory of the state.
        raise refused

    def _is_small(self, row: Row) -> bool:
        """Whether the state is written whole each time."""
        if row.arrays.slots or row.length > self._small or not row.is_kept:
            return False
        entries = sum(map(len, row.arrays.containers.met.values()))
        return row.length + entries * _ENTRY <= self._small

    def _compare(
        self, row: Row, shelved: Shelved, instance: object, number: int, base: Table | None
    ) -> Captured:
        if self._is_small(row):
            base = None
        table = Table(logs=shelved.logs)
        try:
            regions, changed = self._regions(row, table, base)
        except _Torn as torn:
            raise self._mutated(instance, torn) from None
        kind = type(instance)
        pieces = self._pieces(row, table, base)
        # It says how many parts they have.
        packed = self._header(row, shelved, kind, table)
        header = self._part(HEADER, Part(b"", len(packed), False, [packed]), table, base)
        table.pieces.update(shelved.table())
        pieces = (header, *shelved.pieces, *pieces)
        changed += sum(len(piece.content) for piece in pieces if piece.content is not None)
        total = sum(length for _, length in table.pieces.values())
        self._order.settle(total, free=base is None)
        self._shelf.turn(row.arrays.containers, number, self._tables.keys())
        self._tables[number] = self._latest = table
        return Captured(
            number=number,
            pieces=pieces,
            regions=regions,
            changed_bytes=changed,
            state_bytes=total + sum(region.size for region in regions),
            class_name=name_of(kind),
            class_version=version_of(kind),
            stall=0.0,
            detecting=0.0,
            tracked=self._tracked(table),
            why=self._tracker.reasons(),
            pages=self._pages(regions),
            containers=shelved.counts(),
        )

    def _mutated(self, instance: object, torn: _Torn) -> ConcurrentMutation:
        def lies_there(shown: Any) -> bool:
            if not isinstance(shown, np.ndarray) or not shown.nbytes or shown.dtype.hasobject:
                return False
            low, high = span(shown)
            return torn.start < high and low < torn.stop

        path = path_of(instance, "self", lies_there) or "self"
        return ConcurrentMutation(
            f"participant {self.participant!r}: something wrote to {path} while it was captured, outside a "
            "handler: a thread of the program, most likely. The checkpoint was given up, nothing else is "
            "lost. Change a participant's state in its handlers only",
            participant=self.participant,
            path=path,
        )

    def _header(self, row: Row, shelved: Shelved, kind: type, table: Table) -> bytes:
        versions = {name_of(each): version_of(each) for each in (*self._kinds.versioned, kind)}
        dataclasses = {each: fields_of(each) for each in (*self._kinds.dataclasses, kind)}
        fields = {name_of(each): names for each, names in dataclasses.items() if names is not None}
        parts, containers = table.cuts, shelved.rows
        form = FORMAT_CONTAINERS if containers else FORMAT_PARTS if parts else FORMAT
        packed: bytes = msgpack.packb(
            {
                "format": form,
                "class": name_of(kind),
                "version": version_of(kind),
                "whole": row.whole,
                "names": row.names,
                "slots": row.slots,
                "primed": row.primed,
                "regions": table.slots,
                "versions": dict(sorted(versions.items())),
                **({"fields": dict(sorted(fields.items()))} if fields else {}),
                **({"parts": parts} if parts else {}),
                **({"containers": containers} if containers else {}),
            }
        )
        return packed

    def _pieces(self, row: Row, table: Table, base: Table | None) -> tuple[Piece, ...]:
        """All but the header."""
        pieces: list[Piece] = []
        judged, before = [], self._latest
        now, old = table.pieces, before.pieces
        for name, parts in row.pieces:
            if len(parts) == 1:
                # There may be hundreds of these, and nothing is to be done for them but what must be.
                pieces.append(self._part(name, parts[0], table, base))
                digest, length = table.wholes[name] = now[name]
                judged.append((name, digest, length, length))
                continue
            names = [part_name(name, at) for at in range(len(parts))]
            for each, part in zip(names, parts, strict=True):
                pieces.append(self._part(each, part, table, base))
            table.wholes[name] = digest, length = table.whole(names)
            size, _ = before.cuts.get(name, (self._smallest, 1))
            table.cuts[name] = part_size(length, size, self._smallest), len(parts)
            table.quick[name] = [part.quick for part in parts]
            rewritten = sum(now[each][1] for each in names if now[each] != old.get(each))
            judged.append((name, digest, length, rewritten))
        if before.pieces:
            self._order.observe(before.wholes, judged)
        return tuple(pieces)

    def _part(self, name: str, part: Part, table: Table, base: Table | None) -> Piece:
        if part.known:
            assert base is not None
            digest, _ = table.pieces[name] = base.pieces[name]
            return Piece(name, digest, None)
        digest = digest_of(part.chunks)
        table.pieces[name] = (digest, part.length)
        if base is not None and base.pieces.get(name, _NOTHING)[0] == digest:
            return Piece(name, digest, None)
        if len(part.chunks) == 1:
            return Piece(name, digest, part.chunks[0])
        began = time.perf_counter()
        content = b"".join(part.chunks)
        self._copying += time.perf_counter() - began
        return Piece(name, digest, content)

    # -- regions -------------------------------------------------------------------------------------

    def _regions(self, row: Row, table: Table, base: Table | None) -> tuple[tuple[Region, ...], int]:
        """The regions with what changed in them, and how many bytes that is."""
        if not row.arrays.slots and not self._tracker.ways:
            # There were none before either.
            return (), 0
        table.slots = self._numbers(row.arrays.slots)
        memories = dict(zip(table.slots, row.arrays.slots, strict=True))
        tracker = self._tracker
        tracker.begin(memories)
        regions, changed = [], 0
        taken: dict[int, Taken] = {}
        for region, memory in memories.items():
            table.places[address(memory), memory.nbytes] = region
            parent = base.regions.get(region) if base is not None else None
            mark = tracker.mark(region, memory, self._latest.regions.get(region), parent)
            table.regions[region] = mark
            began = time.perf_counter()
            extents = tracker.changed(region, memory, parent, mark)
            self._copying += time.perf_counter() - began
            changed += extents.nbytes
            taken[region] = Taken(memory, mark, extents)
            regions.append(Region(region, memory.nbytes, extents))
        for region in tracker.end(taken):
            raise _Torn(memories[region])
        return tuple(regions), changed

    def _tracked(self, table: Table) -> dict[str, int]:
        tracked: dict[str, int] = {}
        for region, way in self._tracker.ways.items():
            tracked[way] = tracked.get(way, 0) + table.regions[region].size
        return tracked

    def _pages(self, regions: Sequence[Region]) -> int:
        ways = self._tracker.ways
        extents = (region.extents for region in regions if ways.get(region.number) == "kernel")
        return sum(each.nbytes for each in extents if isinstance(each, Extents)) // PAGE

    def _numbers(self, memories: list[Bytes]) -> list[int]:
        """A number for each region: one that is known, or a new one."""
        chosen = []
        for number in self._known(memories, self._latest):
            if number is None:
                number = self._next_region
                self._next_region += 1
            chosen.append(number)
        return chosen

    @staticmethod
    def _known(memories: list[Bytes], before: Table) -> list[int | None]:
        """For each region the number of the same place, or of the same slot and size, or None."""
        numbers: list[int | None] = []
        taken: set[int] = set()
        for memory in memories:
            place = before.places.get((address(memory), memory.nbytes))
            numbers.append(None if place in taken else place)
            taken.update(() if place is None else (place,))
        for slot, memory in enumerate(memories):
            if numbers[slot] is not None or slot >= len(before.slots):
                continue
            candidate = before.slots[slot]
            known = before.regions.get(candidate)
            if candidate not in taken and known is not None and known.size == memory.nbytes:
                numbers[slot] = candidate
                taken.add(candidate)
        return numbers


class _Torn(Exception):
    """Somebody wrote to this memory while it was copied."""

    def __init__(self, memory: Bytes) -> None:
        super().__init__()
        self.start, self.stop = span(memory)


def check_capturable(instance: object, participant: str) -> None:
    """A capture and a restore of it on trial, both thrown away; used right after a participant is made.

    Raises:
        CannotCapture: the state cannot be saved, or would not load; the message names the path.
    """
    # The kernel is not told of the memory: keeping account splits the huge pages of who writes to it.
    captured = Capturer(participant, tracking="whole").capture(instance, number=0, against=None)
    pieces = [(piece.name, bytes(piece.content or b"")) for piece in captured.pieces]
    regions: dict[int, Any] = {
        region.number: bytearray().join(run for _, run in region.extents) for region in captured.regions
    }
    del captured
    try:
        restore(pieces, regions, participant=participant)
    except CaptureError as error:
        path = error.facts.get("path", "self")
        raise CannotCapture(
            f"participant {participant!r} cannot save {path}: it saves but does not load: {error}",
            participant=participant,
            path=path,
            reason=str(error),
        ) from error


assert issubclass(CannotRestore, CaptureError)
