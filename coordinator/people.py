"""`cutline.pending` and `cutline.answer`: what participants ask people, and what people say.

Both work on the store alone, whether a process of the system runs or not. A question is open if the
checkpoint that the system would go on from holds it and the catalog has no outcome of it. An answer is
checked here and written to the catalog in one transaction; whoever runs the system finds it there.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import msgpack

from cutline.barrier import Member
from cutline.errors import (
    AnswerTooLate,
    AnswerUnfit,
    BelowHorizon,
    CheckpointNotFound,
    Misuse,
    QuestionAnswered,
    QuestionUnknown,
    StorageError,
    StoreInUse,
)
from cutline.participant.answer_form import fault_of, plain, read_text, shown
from cutline.participant.clock import wall
from cutline.participant.effect_calls import RESULT_IN_ROW
from cutline.participant.effect_request import EffectRequest, rekeyed
from cutline.participant.messages import pack_value
from cutline.participant.person import asked_of, id_of
from cutline.storage import CheckpointRow, Store, open_store
from cutline.storage.effects import PERSON, EffectRow
from cutline.storage.importing import claimed_by

from .effect_rows import requests_of
from .questions import answered_as, given_before, names_before, outcome_row

__all__ = ("Question", "answer", "answered", "asked", "pending")


# How often the catalog is looked at while it changes, and the seconds between.
_LOOKS, _PAUSE = 20, 0.05


@dataclass(frozen=True)
class Question:
    """A question to a person. Times in seconds since 1970.

    ``id`` is what an answer names; no other question of any lineage has it. ``schema``: what an answer must
    be like, as a JSON Schema; empty: anything. ``deadline``: until when an answer counts; None: for ever.
    ``checkpoint``: the first that holds it. ``state``: ``open``, ``answered`` (the answer is recorded, and
    that checkpoint does not know it yet) or ``late`` (the deadline has passed).
    """

    id: str
    participant: str
    text: str
    schema: dict[str, Any]
    deadline: float | None
    checkpoint: int
    lineage: str
    state: str


@dataclass(frozen=True)
class _Open:
    """A question as it stands in a checkpoint. ``request`` has the key of ``lineage``."""

    lineage: str
    me: Member
    request: EffectRequest
    since: int
    outcome: EffectRow | None

    @property
    def id(self) -> str:
        return id_of(self.request, self.lineage, self.me)

    def shown(self) -> Question:
        text, form, due = asked_of(self.request)
        if self.outcome is not None:
            state = "late" if self.outcome.state == "error" else "answered"
        else:
            state = "open" if due is None or wall() <= due else "late"
        return Question(self.id, self.me.name, text, shown(form), due, self.since, self.lineage, state)


def pending(
    storage: str | os.PathLike[str] = "./checkpoints",
    point: str | None = None,
    *,
    name: str = "default",
) -> list[Question]:
    """The questions that wait for an answer, oldest first; no process of the system need run.

    Args:
        storage: the storage folder, or its URL.
        point: a checkpoint (an id, a label): what was open there, answered by now or not. Without it: what is
            open in the one that the system goes on from.
        name: the system's name.

    Raises:
        CheckpointNotFound: there is no such system, or checkpoint.
        NotAStore, ForeignStore, Corrupt, BelowHorizon: the store, or what the system would go on from, cannot
            be read.
    """
    with _opened(storage) as store:
        found = asked(store, name, point)
    return [each for each in found if point is not None or each.state == "open"]


def answer(storage: str | os.PathLike[str], question: str, value: Any, *, name: str = "default") -> Question:
    """Answers a question; durable when this returns, and delivered once: now, or when the system is started.

    Args:
        question: its id, as `pending` gives it.
        value: what JSON can say, or a dataclass of such values.
        name: the system's name.

    Raises:
        QuestionUnknown: no such question is open; the message says why, if that can be found out.
        QuestionAnswered: somebody has answered it; the first answer counts.
        AnswerTooLate: its deadline has passed.
        AnswerUnfit: it is not what the question's schema wants; the message says where.
        StoreInUse: the system goes on in a copy that has claimed it.
        ForeignStore: the key of the store is not here.
    """
    with _opened(storage) as store:
        return answered(store, name, question, value)


def _opened(storage: str | os.PathLike[str]) -> Any:
    return open_store(os.fspath(storage), create=False)


def asked(store: Store, system: str, point: str | None = None) -> list[Question]:
    """The questions of a checkpoint, whatever became of them; see `pending`."""
    row, lineage = _place(store, system, point)
    return [] if row is None else [each.shown() for each in _open_in(store, row, lineage)]


def _place(store: Store, system: str, point: str | None) -> tuple[CheckpointRow | None, str]:
    """A checkpoint, and the lineage that goes on from it."""
    if point is not None:
        row = store.catalog.find(system, point)
        return row, row.lineage
    # One that is being opened for the first time has no question yet.
    newest = [line.lineage for line in store.catalog.lineages(system)[-1:]]
    lineage = store.catalog.head_lineage(system) or next(iter(newest), None)
    if lineage is None:
        names = ", ".join(store.catalog.systems()) or "none"
        raise CheckpointNotFound(
            f"there is no system {system!r} in {store.url}; there are: {names} (choose with "
            "--name, or name=)",
            system=system,
        )
    return _current(store, system, lineage), lineage


def _current(store: Store, system: str, lineage: str) -> CheckpointRow | None:
    """What the lineage would go on from; None: nothing was ever committed."""
    for left in range(_LOOKS, 0, -1):
        damage: list[StorageError] = []
        try:
            return store.recovery_cut(system, lineage, deep=False, damage=damage)
        except CheckpointNotFound:
            return None
        except BelowHorizon:
            # With nothing damaged, one was committed between the look for it and that for the horizon.
            if damage or left == 1:
                raise
            time.sleep(_PAUSE)
    raise AssertionError("the last look has returned or raised")


def _open_in(store: Store, row: CheckpointRow, lineage: str) -> list[_Open]:
    """What a checkpoint asks people, in the name of a lineage that goes on from it."""
    found = []
    # The row says whose images are worth a look.
    for me, request in requests_of(store, row, row.summary.get("waits", {}).get("people")):
        if request.is_question:
            found.append((me, rekeyed(request, lineage, me), request.since or row.checkpoint))
    names = answered_as(row) if row.lineage == lineage else [lineage]
    keys = {request.key: [rekeyed(request, name, me).key for name in names] for me, request, _ in found}
    known = store.catalog.outcomes(lineage, [key for each in keys.values() for key in each])
    made = [
        _Open(
            lineage, me, request, since, next((known[key] for key in keys[request.key] if key in known), None)
        )
        for me, request, since in found
    ]
    made = _with_given_before(store, row.system, lineage, made)
    return sorted(made, key=lambda each: (each.since, each.me.name, each.request.number))


def _with_given_before(store: Store, system: str, lineage: str, made: list[_Open]) -> list[_Open]:
    """Who runs an opened copy takes over what the copy was answered; he may not have come to that yet."""
    rest = [(each.me, each.request) for each in made if each.outcome is None]
    if not rest:
        return made
    given = given_before(store.catalog, names_before(store.catalog, system, lineage), rest)
    return [replace(each, outcome=each.outcome or given.get(each.request.key)) for each in made]


# -- answers -----------------------------------------------------------------------------------


def answered(store: Store, system: str, question: str, value: Any, *, is_text: bool = False) -> Question:
    """Records an answer; see `answer`. ``is_text``: as it was typed, see `answer_form.read_text`."""
    row, lineage = _place(store, system, None)
    store.catalog.seals.need_key()
    found = {each.id: each for each in _open_in(store, row, lineage)} if row is not None else {}
    each = found.get(question)
    if each is None:
        raise _unknown(store, system, lineage, question, list(found))
    if each.outcome is not None:
        raise _has_outcome(question, each.outcome)
    _need_unclaimed(store, system, lineage, question)
    due, now = asked_of(each.request).due, wall()
    if due is not None and now > due:
        raise _late(question, due)
    packed = _packed(each, question, value, is_text)
    # Two who give the same answer at the same moment are two all the same.
    by = f"person {secrets.token_hex(4)}"
    made = outcome_row(lineage, each.me, each.request, each.since, "done", packed, by, now)
    recorded = store.catalog.settle(system, made)
    if recorded != made:
        raise _has_outcome(question, recorded)
    # Who claims it looks at the answers after that: what came later than his look is not taken along.
    _need_unclaimed(store, system, lineage, question)
    _say_again(store, system, lineage, each, made)
    return _Open(lineage, each.me, each.request, each.since, made).shown()


def _say_again(store: Store, system: str, lineage: str, each: _Open, made: EffectRow) -> None:
    """A copy may have been opened while it was answered: who runs it takes that answer, unless somebody has
    answered him first. Raises QuestionAnswered, AnswerTooLate."""
    head = store.catalog.head_lineage(system)
    if head is None or head == lineage or lineage not in names_before(store.catalog, system, head):
        return
    request = rekeyed(each.request, head, each.me)
    recorded = store.catalog.settle(system, replace(made, lineage=head, key=request.key))
    if recorded.by != made.by:
        raise _has_outcome(each.id, recorded)


def _need_unclaimed(store: Store, system: str, lineage: str, question: str) -> None:
    export = claimed_by(store, lineage)
    if export is not None:
        raise StoreInUse(
            f"system {system!r} goes on in a copy that has claimed it (export {export}): answer "
            f"{question} there",
            system=system,
            lineage=lineage,
            export=export,
        )


def _packed(each: _Open, question: str, value: Any, is_text: bool) -> Any:
    form = asked_of(each.request).form
    try:
        if is_text:
            value, fault = read_text(value, form)
        else:
            value = plain(value)
            fault = fault_of(value, form)
    except Misuse as error:
        fault = str(error)
    if not fault:
        packed = pack_value(value, participant=each.me.name, where=f"answer to {question}")
        size = len(msgpack.packb(packed))
        if size <= RESULT_IN_ROW:
            return packed
        fault = f"it has {size:,} bytes, and {RESULT_IN_ROW // 1024} KiB are the most"
    wanted = json.dumps(shown(form), ensure_ascii=False)
    raise AnswerUnfit(
        f"this is no answer to {question}: {fault}. Nothing was recorded; wanted is {wanted}",
        question=question,
        fault=fault,
    )


def _has_outcome(question: str, row: EffectRow) -> Exception:
    if row.state == "error":
        return _late(question, row.deadline)
    return QuestionAnswered(
        f"{question} has an answer already, and the first one counts: it is delivered when the system runs",
        question=question,
        answered_at=row.decided_at,
    )


def _late(question: str, due: float | None) -> AnswerTooLate:
    return AnswerTooLate(
        f"{question} could be answered until its deadline, which has passed; who waited for it has heard "
        "that, or will when the system runs",
        question=question,
        deadline=due,
    )


def _unknown(store: Store, system: str, lineage: str, question: str, known: list[str]) -> Exception:
    """Why nothing of that id is open."""
    asker, _, digits = question.rpartition(".")
    for row in store.catalog.effects(lineage):
        told = f"{row.participant}#{row.number}.{row.key[2:]}"
        if row.function == PERSON and digits and told.startswith(question):
            return _has_outcome(question, row)
    why = "it was mistyped, or undone with the checkpoint that held it, or nobody waits for it any more"
    elsewhere = next(_elsewhere(store, system, lineage, question), None)
    now = [each for each in known if asker and each.startswith(f"{asker}.")]
    if elsewhere is not None:
        why = elsewhere
    elif now:
        why = "another one is open under that number"
    there = ", ".join(now or known) or "none"
    return QuestionUnknown(
        f"no question {question!r} of system {system!r} is open in lineage {lineage}: {why}. Open "
        f"are: {there}",
        question=question,
        system=system,
        lineage=lineage,
        open=known,
    )


def _elsewhere(store: Store, system: str, lineage: str, question: str) -> Iterator[str]:
    """Where else in the store that question was asked."""
    for other in store.catalog.systems():
        for line in reversed(store.catalog.lineages(other)):
            if line.lineage == lineage:
                continue
            try:
                row = _current(store, other, line.lineage)
                found = [] if row is None else _open_in(store, row, line.lineage)
            except StorageError:
                # It is looked at to explain an error, which stands without it.
                continue
            if any(each.id == question for each in found):
                if other != system:
                    yield f"system {other!r} asks it (choose with --name, or name=)"
                else:
                    yield f"lineage {line.lineage} asked it, and the system does not go on there"
