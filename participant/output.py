"""`cutline.emit`: values for the world outside that leave when a checkpoint holds them; part of the desk.

What was emitted stays in the participant's state until the coordinator says that it is published. Numbers are
counted for each sink; a record keeps the lineage that it was emitted in and the first checkpoint that it was
captured in, which is what its place among others' goes by.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgpack

from cutline.barrier import Member
from cutline.errors import CannotCapture, CutlineError, Misuse
from cutline.storage.sinks import FILE, RECORD_MAX, TABLE, encoded

from .handle import of_handler, own_port
from .likeness import call_digest
from .messages import pack_value

if TYPE_CHECKING:
    from .async_call import AsyncCall
    from .desk import Desk

__all__ = ("CALL", "EMIT", "OUTPUT_BYTES", "Emitted", "Output", "emit")

# What an async handler does besides messages and effects; no kind of message.
EMIT = 9
# Whom a value is given to, where messages have a participant's name.
WORLD = "@sinks"
# The kind of a sink that is a function; all kinds, and what people call them.
CALL = "call"
KINDS = {FILE: "a FileSink", TABLE: "a PostgresSink", CALL: "a function"}
# Bytes that a participant has emitted and that are not published; from there on it takes no message.
OUTPUT_BYTES = 64 * 1024 * 1024
# Bytes of what no committed checkpoint holds, from which on one is asked for.
EARLY_BYTES = 8 * 1024 * 1024


def emit(sink: str, value: Any) -> None:
    """Gives a value to a sink of ``cutline.start(sinks=...)``, published when a checkpoint holds it.

    The value is taken as it is now. It is published once a checkpoint that holds it has committed, and then
    no loss can take it back; what a handler emitted that is undone is never published. Values of one
    participant come in their order, those of several in the order of their checkpoints.

    Args:
        sink: the sink's name.
        value: for a `FileSink` a text without line breaks, or what JSON can say; for a `PostgresSink` a dict
            of columns; for a function anything that can travel in a message.

    Raises:
        OutsideHandler: no handler runs in this thread.
        Misuse: no sink has that name; a value that the sink cannot take.
        CannotCapture: a value for a function that cannot travel.
    """
    output = of_handler(
        "output",
        "cutline.emit gives something to the world in the name of a participant, and no handler runs "
        "here: call it in a method of a participant. In the program, write to the file or table itself",
    )
    port: Any = own_port()
    output.add(port, sink, value)


class Emitted(NamedTuple):
    """One value. ``checkpoint``: the first one that it was captured in, 0 before that. ``kind``: of the sink
    whose form the body has; empty in images of older versions, which did not say."""

    number: int
    checkpoint: int
    lineage: str
    body: bytes
    kind: str = ""


class _Pile:
    """What was emitted for one sink and is not known to be published."""

    def __init__(self) -> None:
        self.next_number = 1
        self.records: deque[Emitted] = deque()
        # The last number that a committed checkpoint holds; by undecided capture, the last it holds.
        self.committed = 0
        self.captures: dict[int, int] = {}

    @property
    def last(self) -> int:
        return self.next_number - 1


class Output:
    """All of a participant's piles. ``sinks``: kinds of sinks by name."""

    def __init__(self, sinks: Mapping[str, Mapping[str, Any]], lineage: str, me: Member) -> None:
        self.sinks = sinks
        self.lineage = lineage
        self.me = me
        self.piles: dict[str, _Pile] = {}
        # Of all records, and of those that no capture holds.
        self.bytes = 0
        self.fresh_bytes = 0

    def add(self, desk: Desk, sink: str, value: Any) -> None:
        """See `emit`. What a re-run emits that was emitted before is not news."""
        if sink not in self.sinks and desk.active is not None and desk.active.repeats(WORLD):
            # This program names it no more; what was emitted is kept, and the handler goes on from there.
            return
        kind = self._kind(sink)
        if desk.active is not None and desk.active.is_at(WORLD):
            self._repeat(desk, desk.active, sink, kind, value)
            return
        body, said = self._body(sink, kind, value)
        if desk.active is not None:
            desk.numbered(WORLD, EMIT, sink, said)
        pile = self.piles.setdefault(sink, _Pile())
        pile.records.append(Emitted(pile.next_number, 0, self.lineage, body, kind))
        pile.next_number += 1
        self.bytes += len(body)
        self.fresh_bytes += len(body)

    def _kind(self, sink: str) -> str:
        doc = self.sinks.get(sink) if isinstance(sink, str) else None
        if doc is None:
            known = ", ".join(sorted(self.sinks)) or "none"
            raise Misuse(
                f"participant {self.me.name!r}: no sink is named {sink!r}; cutline.start(sinks=...) has: "
                f"{known}",
                participant=self.me.name,
                sink=sink,
            )
        kind: str = doc["kind"]
        return kind

    def _repeat(self, desk: Desk, active: AsyncCall, sink: str, kind: str, value: Any) -> None:
        """A re-run emits what was emitted before, when the name was perhaps that of a sink of another kind.

        That one took values which this one need not take.
        """
        others = partial(self._other_sayings, sink, kind, value)
        try:
            said = self._body(sink, kind, value)[1]
        except (Misuse, CannotCapture):
            known = (each for each in others() if active.has_said(call_digest(EMIT, sink, each)))
            said = next(known, None)
            if said is None:
                raise
        desk.numbered(WORLD, EMIT, sink, said, others)

    def _other_sayings(self, sink: str, own: str, value: Any) -> Iterator[Any]:
        """What a first run has said of it if the sink was of another kind."""
        for kind in KINDS:
            if kind != own:
                try:
                    yield self._body(sink, kind, value)[1]
                except (Misuse, CannotCapture):
                    continue

    def _body(self, sink: str, kind: str, value: Any) -> tuple[bytes, Any]:
        """The value in the form of a kind of sink, and what a re-run must say again."""
        name = self.me.name
        where = f"value for sink {sink!r}"
        try:
            if kind != CALL:
                body = encoded(kind, value)
                return body, [body]
            packed = pack_value(value, participant=name, where=where)
            body = msgpack.packb(packed)
            if len(body) > RECORD_MAX:
                raise ValueError(f"it has {len(body):,} bytes, more than {RECORD_MAX:,}")
        except ValueError as error:
            if isinstance(error, CutlineError):
                raise
            raise Misuse(
                f"participant {name!r}: {where}: {error}; got {value!r:.80}", participant=name, sink=sink
            ) from error
        return body, packed

    # -- cuts ----------------------------------------------------------------------------------

    def to_doc(self) -> list[Any]:
        """What an image holds: sink, next number, records. Empty if nothing was ever emitted."""
        return [
            [sink, pile.next_number, [list(each) for each in pile.records]]
            for sink, pile in self.piles.items()
        ]

    def load(self, doc: Iterable[Any]) -> None:
        """The reverse. What it takes in was committed; `restored` says in which checkpoint."""
        self.piles.clear()
        self.bytes = 0
        for sink, next_number, records in doc:
            pile = self.piles[sink] = _Pile()
            pile.next_number = next_number
            pile.records.extend(Emitted(*each) for each in records)
            pile.committed = pile.last
            self.bytes += sum(len(each.body) for each in pile.records)

    def restored(self, checkpoint: int) -> None:
        """The state of that committed cut was taken; what was emitted since is in none."""
        for pile in self.piles.values():
            _mark(pile, checkpoint, pile.committed)

    def facts(self) -> dict[str, Any]:
        """What the coordinator is told of a capture that is made now: the last number for each sink."""
        last = {sink: pile.last for sink, pile in self.piles.items() if pile.records}
        return {"emits": last} if last else {}

    def captured(self, checkpoint: int) -> None:
        """All that there is was captured."""
        self.fresh_bytes = 0
        for pile in self.piles.values():
            _mark(pile, checkpoint, pile.last)
            if pile.last > pile.committed:
                pile.captures[checkpoint] = pile.last

    def settled(self, checkpoint: int, committed: bool) -> None:
        """A checkpoint that was captured here is decided."""
        for pile in self.piles.values():
            last = pile.captures.pop(checkpoint, 0)
            if committed:
                pile.committed = max(pile.committed, last)
                continue
            # What was behind the last capture that holds something is held by none any more.
            held = max(pile.committed, *pile.captures.values(), 0)
            self.fresh_bytes += sum(len(each.body) for each in pile.records if held < each.number <= last)

    # -- publishing ------------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        """Whether all that was emitted is published."""
        return not any(pile.records for pile in self.piles.values())

    def owed(self) -> dict[str, list[list[int]]]:
        """For each sink, what committed cuts hold: pairs of a checkpoint and the last number of it."""
        found: dict[str, list[list[int]]] = {}
        for sink, pile in self.piles.items():
            last: dict[int, int] = {}
            for each in pile.records:
                if each.number <= pile.committed:
                    last[each.checkpoint] = each.number
            if last:
                found[sink] = [[checkpoint, number] for checkpoint, number in last.items()]
        return found

    def published(self, sink: str, after: Mapping[str, int]) -> None:
        """The sink has all up to these numbers of each lineage."""
        pile = self.piles.get(sink)
        if pile is None:
            return
        # They are published in order.
        while pile.records and pile.records[0].number <= after.get(pile.records[0].lineage, 0):
            self.bytes -= len(pile.records.popleft().body)

    def wanted(self, sink: str, upto: int) -> Iterator[Emitted]:
        """Records up to that number, in order."""
        pile = self.piles.get(sink)
        for each in pile.records if pile is not None else ():
            if each.number > upto:
                return
            yield each

    def misfit(self, sink: str, record: Emitted) -> str:
        """Why today's sink of that name cannot get a record; empty if it can.

        Bytes in another sink's form would be nonsense in this one, and cannot all be turned back into what
        they were made of.
        """
        kind = self._kind(sink)
        if record.kind in ("", kind):
            return ""
        old = KINDS[record.kind]
        return (
            f"sink {sink!r} is {KINDS[kind]} in this program, and was {old} when participant "
            f"{self.me.name!r} emitted value {record.number} for it, which waits to be published in that "
            f"form. Start once with {sink!r} as {old}, until nothing waits (`cutline output`), or leave it "
            "so and give the new sink another name"
        )


def _mark(pile: _Pile, checkpoint: int, last: int) -> None:
    """Records up to `last` that are in no older capture are first in this one."""
    for at in range(len(pile.records) - 1, -1, -1):
        each = pile.records[at]
        if each.checkpoint:
            return
        if each.number <= last:
            pile.records[at] = each._replace(checkpoint=checkpoint)
