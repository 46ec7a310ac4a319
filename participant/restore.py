"""Makes a participant's instance again from the pieces and regions of an image.

Theory of operation. The piece "header" says how to read the rest. The parts of a long piece follow each other
and are one stream. One Unpickler reads the pieces in their order with one memo, so what several attributes
shared is shared again; the empty instance stands at the bottom of that memo before the first piece. Regions
become the memory of the arrays that own them. Classes come from this program (`cutline.participant.classes`),
live handles from `live`. When everything stands, read-only flags are set and objects of classes that have
changed become what these are now (`cutline.participant.migrating`).

The quick unpickler cannot set attributes that a class has no place for any more; then all is read once more
by a patient one, over the memory that the regions have become the first time.
"""

from __future__ import annotations

import copyreg
import io
import sys
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

import msgpack
import numpy as np

from cutline.errors import CannotRestore, ClassMissing, ClassNotAllowed, SchemaMismatch, StorageError
from cutline.storage.part_names import part_name, piece_of
from cutline.storage.unread import Unread

from .classes import Classes, slot_names, version_of
from .container import Container
from .findings import Findings
from .memory import Bytes, address
from .migrating import Settling, fields_of
from .pickling import OUT_OF_PLACE, Live, Opener, PatientOpener
from .pieces import NESTED
from .rebuild import Loader
from .renames import RENAMES
from .saying import said
from .shelf import is_segment
from .tracking import Mark
from .unread import Origin
from .unshelving import check_filled, unshelve

__all__ = ("HEADER", "Classes", "Live", "Restored", "restore")

HEADER = "header"
# The newest format of a header that is read here.
NEWEST = 3
_UNCUT = 0, 1
_IN_ONE = "self, in a Map or a Log"
_DEFAULT = Classes()
_NOBODY: Live = {}
_NOTHING: Mapping[str, Unread] = {}


class Restored:
    """What a restore tells `Capturer.adopt`: the pieces as stored, and of each region, by number, its place
    (address and size) and its mark, which `mark` makes of the memory when it has just been filled.

    `slots`: the regions' numbers in the order in which the pieces name them. `cuts`: of pieces that
    have several parts, what size the next ones are to have, and how many there are. `containers`: Maps and
    Logs by number, if what captures wrote of them is still how this program would write it; `segments`: that,
    as the header has it; `classes`: those of their entries, by the names that the image has for them.
    `unread`: digest and length of the pieces that were left unread.
    """

    def __init__(self, mark: Callable[[int, Bytes], Mark]) -> None:
        self.pieces: list[tuple[str, bytes]] = []
        self.unread: dict[str, tuple[bytes, int]] = {}
        self.places: dict[int, tuple[int, int]] = {}
        self.marks: dict[int, Mark] = {}
        self.slots: list[int] = []
        self.cuts: dict[str, tuple[int, int]] = {}
        self.containers: dict[int, Container] = {}
        self.segments: dict[int, list[tuple[int, int]]] = {}
        self.classes: Mapping[str, type] = {}
        self._mark = mark

    def filled(self, number: int, memory: Bytes) -> None:
        """The memory of a region holds what the image says; nobody has seen it yet."""
        self.places[number] = address(memory), memory.nbytes
        self.marks[number] = self._mark(number, memory)


def restore(
    pieces: list[tuple[str, bytes]],
    regions: MutableMapping[int, Any],
    *,
    participant: str,
    classes: Classes = _DEFAULT,
    live: Live = _NOBODY,
    header: Mapping[str, Any] | None = None,
    restored: Restored | None = None,
    loader_kind: type[Loader] = Loader,
    findings: Findings | None = None,
    unread: Mapping[str, Unread] = _NOTHING,
) -> object:
    """The instance of an image.

    `regions` is emptied as memory is taken over. `header` is the image's own and needed for errors only.
    `restored`, when given, is filled for `Capturer.adopt`. `loader_kind` makes the arrays. `findings`, if it
    is lenient, takes all that does not fit; the instance is of use only if that is nothing. `unread`: pieces
    that are not among `pieces`; Maps read of them what they are asked for.

    Raises:
        ClassMissing: this program lacks a class that the image names; says which, whose and where.
        SchemaMismatch: it has the class, which is made of something else than what was saved.
        CannotRestore: the image does not load in this program, or was written by a newer one.
    """
    reading = _Reading(pieces, participant, classes, findings or Findings(), unread)
    reading.checkpoint = (header or {}).get("checkpoint")
    numbers = reading.doc["regions"]
    by_slot = _BySlot(regions, numbers)

    def filled(slot: int, memory: Bytes) -> None:
        by_slot.made[slot] = memory
        if restored is not None:
            restored.filled(numbers[slot], memory)

    def loader() -> Loader:
        made = loader_kind(by_slot, filled)
        made.findings, made.path = reading.findings, "self"
        return made

    instance = reading.run(loader, live)
    if restored is not None:
        restored.pieces = list(pieces)
        restored.unread = {name: (piece.digest, piece.length) for name, piece in unread.items()}
        restored.slots = list(numbers)
        restored.cuts = {name: (size, count) for name, (size, count) in reading.parts.items()}
        restored.classes = reading.found
        if not reading.is_dated():
            restored.containers = dict(reading.containers)
            restored.segments = {row[0]: [(taken, size) for taken, size in row[-1]] for row in reading.rows}
    return instance


class _BySlot:
    """The regions of an image by the slot that a piece names; each is taken out once, and again as what it
    has become.
    """

    def __init__(self, regions: MutableMapping[int, Any], numbers: list[int]) -> None:
        self._regions, self._numbers = regions, numbers
        self.made: dict[int, Bytes] = {}

    def pop(self, slot: int) -> Any:
        return self.made[slot] if slot in self.made else self._regions.pop(self._numbers[slot])


class _Reading:
    """One restore under way."""

    # The number of the image, for errors.
    checkpoint: int | None = None

    def __init__(
        self,
        pieces: list[tuple[str, bytes]],
        participant: str,
        classes: Classes,
        findings: Findings,
        unread: Mapping[str, Unread],
    ) -> None:
        self.participant, self.classes, self.findings = participant, classes, findings
        contents = dict(pieces)
        if HEADER not in contents:
            raise CannotRestore(
                f"participant {participant!r}: an image without a header", participant=participant
            )
        self.doc: dict[str, Any] = msgpack.unpackb(contents[HEADER], strict_map_key=False)
        if self.doc["format"] > NEWEST:
            raise CannotRestore(
                f"participant {participant!r}: its image has format {self.doc['format']}, this Cutline "
                f"reads up to {NEWEST}; restore with the newer Cutline that wrote it",
                participant=participant,
            )
        # Maps and Logs, and the classes of their entries, by the names that the image has for them.
        self.containers: Mapping[int, Container] = {}
        self.found: dict[str, type] = {}
        # Whether something in them may change by this program's classes that could not, or the reverse.
        self.is_rejudged = False
        self.rows: list[list[Any]] = self.doc.get("containers", [])
        self.segments: dict[str, bytes | Unread] = {
            **{name: content for name, content in pieces if is_segment(name)},
            **unread,
        }
        pieces = [piece for piece in pieces if piece[0] != HEADER and piece[0] not in self.segments]
        self.stream = [content for _, content in pieces]
        # Of pieces that have several: their size, and how many.
        self.parts: dict[str, tuple[int, int]] = self.doc.get("parts", {})
        self.names = self._names([name for name, _ in pieces])

    def _names(self, stored: list[str]) -> list[str]:
        """The pieces in their order. Raises CannotRestore if their parts are not those that there must be."""
        names = [name for name in stored if piece_of(name) == name]
        due = [part_name(name, index) for name in names for index in range(self.parts.get(name, _UNCUT)[1])]
        if due != stored or not self.parts.keys() <= set(names):
            wrong = next((name for name in (*stored, *due) if (name in stored) != (name in due)), HEADER)
            raise CannotRestore(
                f"participant {self.participant!r}: its image has not the parts that its header names (see "
                f"{wrong!r}): whatever wrote it is at fault; go back to another checkpoint",
                participant=self.participant,
            )
        return names

    def run(self, loaders: Callable[[], Loader], live: Live) -> object:
        loader = loaders()
        try:
            # The class first: a missing one is the error to report, whatever else is wrong.
            kind = self._kind(loader)
            if kind is None:
                return None
            try:
                return self._instance(kind, loader, live, Opener)
            except OUT_OF_PLACE:
                loader = loaders()
                return self._instance(kind, loader, live, PatientOpener)
        except (ClassMissing, ClassNotAllowed, SchemaMismatch) as error:
            path = error.facts.get("path", loader.path)
            where = "" if str(error).startswith(path) else f"{path}: "
            raise type(error)(
                f"participant {self.participant!r}: {where}{error}",
                **{**error.facts, "participant": self.participant, "path": path},
            ) from error
        except (CannotRestore, StorageError):
            raise
        except Exception as error:
            if self.findings.problems:
                # What was put in the place of something that is missing was not good enough.
                return None
            failure = CannotRestore(
                f"participant {self.participant!r}: {loader.path} does not load in this program: "
                f"{said(error)}",
                participant=self.participant,
                path=loader.path,
            )
            failure.__cause__ = error
            self.findings.meet(failure)
            return None

    def _kind(self, loader: Loader) -> type | None:
        try:
            kind: type = self.classes.find_named(self.doc["class"])
            return kind
        except CannotRestore as error:
            error.facts.setdefault("path", "self")
            self.findings.meet(error)
            return None

    def _instance(
        self, kind: type, loader: Loader, live: Live, opening: type[Opener] | type[PatientOpener]
    ) -> object:
        whole = self.doc["whole"]
        self._containers(loader, live, opening)
        primed = () if whole else self._primed(kind, loader)
        # An opcode row that puts the primed objects into the memo: BININT2 n, BINPERSID, MEMOIZE, POP.
        prologue = b"\x80\x05" + b"".join(
            b"M" + index.to_bytes(2, "little") + b"Q\x940" for index in range(len(primed))
        )
        stream = io.BytesIO(b"".join([prologue, b"N.", *self.stream]))
        opener = opening(stream, loader, self.classes, live, primed=primed)
        opener.load()
        values: dict[str, Any] = {}
        for name in self.names:
            if not name.startswith(NESTED):
                loader.path = "self" if whole else f"self.{name.partition(':')[2]}"
            elif not whole:
                loader.path = _IN_ONE
            values[name] = opener.load()
        loader.path = "self"
        instance = values["state"] if whole else primed[0]
        if not whole:
            self._fill(instance, values, loader)
        loader.finish()
        check_filled(loader)
        # All of them; what is of built-in types alone is what it was.
        named = [each for number, each in self.containers.items() if number not in loader.nameless]
        self.is_rejudged = any([each._judge_again() for each in named])
        if loader.settles and not self.findings.problems:
            settling = Settling(
                instance,
                {self.doc["class"]: kind, **self.found, **opener.found},
                self.doc["versions"],
                self.doc.get("fields", {}),
                loader.stray,
                name="self",
                findings=self.findings,
            )
            settling.run()
        return instance

    def _containers(self, loader: Loader, live: Live, opening: type[Opener] | type[PatientOpener]) -> None:
        """Maps and Logs, without what of them comes with the attributes."""
        loader.path = _IN_ONE

        def opened(stream: io.BytesIO) -> Any:
            opener = opening(stream, loader, self.classes, live)
            opener.found = self.found
            return opener

        # Where each of them is, will be known when the attributes are there.
        origins = {row[0]: Origin(self.participant, loader.path, self.checkpoint) for row in self.rows}
        loader.origins = origins
        unshelve(self.rows, self.segments, loader, opened, origins.__getitem__)
        self.containers, loader.path = loader.containers, "self"

    def is_dated(self) -> bool:
        """Whether what captures wrote of containers would be written in another way by this program."""
        versions, fields = self.doc["versions"], self.doc.get("fields", {})
        return bool(self.rows) and (
            bool(RENAMES.table)
            or self.is_rejudged
            or any(
                version_of(kind) != versions.get(name, 0) or fields_of(kind) != fields.get(name)
                for name, kind in self.found.items()
            )
        )

    def _primed(self, kind: type, loader: Loader) -> tuple[Any, ...]:
        made: list[Any] = [copyreg.__newobj__(kind)]  # type: ignore[attr-defined]
        for slot in self.doc["primed"]:
            content = loader.content(slot)
            owned = content if type(content) is bytearray else bytearray(content)
            loader.filled(slot, np.frombuffer(owned, np.uint8))
            made.append(owned)
        return tuple(made)

    def _fill(self, instance: object, values: dict[str, Any], loader: Loader) -> None:
        # The order of the names is that of the attributes when they were saved.
        slots = {name: values[f"slot:{name}"] for name in self.doc["slots"]}
        held = {sys.intern(name): values[f"attr:{name}"] for name in self.doc["names"]}
        set_state = getattr(instance, "__setstate__", None)
        if set_state is not None:
            # It was saved attribute by attribute; since then its class has got a way of its own.
            set_state((held or None, slots) if slots else held)
        elif hasattr(instance, "__dict__") and (
            slots.keys() <= (places := {*slot_names(type(instance))}) and places.isdisjoint(held)
        ):
            for name, value in slots.items():
                object.__setattr__(instance, name, value)
            vars(instance).update(held)
        else:
            loader.put(instance, (held, slots))
