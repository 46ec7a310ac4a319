"""The coordinator's part in questions to people: it looks whether they have outcomes, and says so.

Answers are written to the catalog by whoever gives them, whether this runs or not; here they are only found.
A deadline that has passed is an outcome as well, and is recorded before it is told: so an answer and a
deadline cannot both count. Until then the question stays open, and costs a look into the catalog twice a
second.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgpack

from cutline.barrier import Member
from cutline.errors import DeadlinePassed, StorageError
from cutline.participant.effect_request import EffectRequest, rekeyed
from cutline.participant.messages import pack_error
from cutline.participant.person import asked_of
from cutline.storage.catalog import Catalog, CheckpointRow
from cutline.storage.collect import MADE_WHOLE
from cutline.storage.effects import NO_PROCESS, RECORDED, EffectRow, State, Verdict

from .roster import Seat

if TYPE_CHECKING:
    from .effects import Effects
    from .runner import Coordinator

__all__ = ("Questions", "answered_as", "given_before", "names_before", "outcome_row")

# Seconds between two looks for outcomes.
POLL = 0.5


def outcome_row(
    lineage: str,
    me: Member,
    request: EffectRequest,
    since: int,
    state: State,
    answer: Any,
    by: str,
    now: float,
) -> EffectRow:
    """The row of an outcome. ``request`` has the key of that lineage; ``by`` tells one writer from others."""
    return EffectRow(
        lineage,
        request.key,
        1,
        me.name,
        me.birth,
        request.number,
        request.function,
        request.digest,
        False,
        since,
        since,
        "",
        NO_PROCESS,
        0,
        0,
        float(now),
        asked_of(request).due,
        state,
        msgpack.packb(answer),
        None,
        by,
        float(now),
    )


def answered_as(row: CheckpointRow) -> list[str]:
    """The lineages by whose keys answers to a checkpoint's questions are known where it is.

    Its own; and the one that it was exported from, if it goes on in place of that, and so on from there.
    """
    imported = row.summary.get("imported", {})
    claimed = [imported["lineage"], *imported.get("before", ())] if imported.get("claimed") else []
    return [row.lineage, *claimed]


def names_before(catalog: Catalog, system: str, lineage: str) -> list[str]:
    """The lineages by whose keys a copy has answers, which that lineage has opened.

    Answers were given to a copy before it was opened: nobody but who opens it can have been meant. Who opens
    it once more is another fork of it, and asks anew.
    """
    lines, closed = catalog.lineages(system), catalog.unopened(system)
    origin = next((line.origin for line in lines if line.lineage == lineage), None)
    if origin is None or not origin[0].startswith(MADE_WHOLE):
        return []
    opened = [line.lineage for line in lines if line.origin == origin and line.lineage not in closed]
    if opened and opened[0] != lineage:
        return []
    return answered_as(catalog.find(system, f"{origin[0]}/{origin[1]}"))


def given_before(
    catalog: Catalog, names: Sequence[str], asked: Iterable[tuple[Member, EffectRequest]]
) -> dict[str, EffectRow]:
    """By the keys that questions have now, what a copy has for an outcome of them; see `names_before`."""
    theirs = {rekeyed(request, name, me).key: request.key for me, request in asked for name in names}
    found = catalog.outcomes(names[0], list(theirs)) if theirs else {}
    return {theirs[key]: row for key, row in found.items()}


class Questions:
    """See the module's head."""

    def __init__(self, coordinator: Coordinator, effects: Effects) -> None:
        self.c = coordinator
        self.effects = effects
        # By participant and key: who waits, in which process, for what.
        self.open: dict[tuple[str, str], tuple[Seat, str, EffectRequest]] = {}
        # The newest checkpoint that one of them was asked in, until the catalog knows of it.
        self.shown = 0
        self.look_at = 0.0
        # See `names_before`.
        self.copied: list[str] | None = None

    def watch(self, seat: Seat, doc: dict[str, Any]) -> None:
        """A committed checkpoint holds a question."""
        request = EffectRequest.from_doc(doc["request"])
        self.open[seat.member.name, request.key] = seat, doc["launch"], request
        self.shown = max(self.shown, request.since)
        self.look()

    def look(self) -> None:
        """Somebody says that he has just recorded an answer: no need to wait for the next look."""
        self.look_at = -math.inf

    def recovering(self) -> None:
        """Everybody goes back: who still waits says it again afterwards."""
        self.open.clear()

    def pending(self, member: Member, below: int, numbers: Collection[int]) -> None:
        """Of a participant's requests below that number a committed checkpoint has these left: others were
        withdrawn, or have had their outcome.
        """
        for place, (seat, _, request) in list(self.open.items()):
            if seat.member == member and request.number < below and request.number not in numbers:
                del self.open[place]

    def tick(self, now: float) -> None:
        """Looks for outcomes, if it is time."""
        if not self.open or now < self.look_at:
            return
        self.look_at = now + POLL
        c = self.c
        try:
            if self.shown:
                c.catalog.show_questions(c.lease, c.lineage, self.shown)
                self.shown = 0
            found = self._found()
            for (name, key), (seat, launch, _) in list(self.open.items()):
                row = found.get(key)
                if row is not None:
                    del self.open[name, key]
                    self.effects.say_verdict(seat, key, launch, Verdict("recorded", row.attempt, row=row))
        except StorageError as error:
            self.effects.not_written(error)

    def _found(self) -> dict[str, EffectRow]:
        c = self.c
        asked = {key: (seat, request) for (_, key), (seat, _, request) in self.open.items()}
        found = c.catalog.outcomes(c.lineage, list(asked))
        open_ones = [each for key, each in asked.items() if key not in found]
        rows = [*self._given_before(open_ones), *self._of_the_origin(open_ones)]
        known = {row.key for row in rows}
        rows += self._overdue(each for each in open_ones if each[1].key not in known)
        for row in rows:
            settled = c.catalog.settle(c.settings.system, row, c.lease)
            found[settled.key] = settled
        return found

    def _given_before(self, asked: list[tuple[Seat, EffectRequest]]) -> Iterable[EffectRow]:
        c = self.c
        if self.copied is None:
            self.copied = names_before(c.catalog, c.settings.system, c.lineage)
        given = given_before(c.catalog, self.copied, [(seat.member, request) for seat, request in asked])
        for seat, request in asked:
            row = given.get(request.key)
            if row is not None:
                answer = msgpack.unpackb(row.answer or b"")
                yield outcome_row(
                    c.lineage, seat.member, request, request.since, row.state, answer, row.by, c.wall()
                )

    def _of_the_origin(self, asked: list[tuple[Seat, EffectRequest]]) -> Iterable[EffectRow]:
        """In a fork that gets its origin's outcomes: what people have answered there."""
        return self.effects.recorded.answers(asked) if self.effects.rule == RECORDED else ()

    def _overdue(self, asked: Iterable[tuple[Seat, EffectRequest]]) -> Iterable[EffectRow]:
        c = self.c
        for seat, request in asked:
            text, _, due = asked_of(request)
            if due is not None and c.wall() > due:
                name = seat.member.name
                error = DeadlinePassed(
                    f"nobody has answered question {request.number} of participant {name!r} before its "
                    f"deadline: {text:.200}",
                    participant=name,
                    number=request.number,
                    deadline=due,
                )
                packed = pack_error(error, participant=name)
                yield outcome_row(
                    c.lineage, seat.member, request, request.since, "error", packed, "deadline", c.wall()
                )
