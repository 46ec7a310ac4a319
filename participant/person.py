"""`cutline.ask_person`: a question to a person, from a handler; a value in the participant's state.

It is kept, keyed and delivered as an effect is (`cutline.participant.effect_request`), and nothing is called:
once a checkpoint that holds it has committed it can be seen and answered, and the first outcome that the
catalog has of it, an answer or a deadline that has passed, is delivered.
"""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import msgpack

from cutline.barrier import Member
from cutline.errors import Misuse
from cutline.storage.codec import digest_of
from cutline.storage.effects import PERSON

from .answer_form import form_of, shown
from .clock import wall
from .effect_request import HALT, EffectRequest, key_of, rekeyed
from .handle import Ref, of_handler

if TYPE_CHECKING:
    from .desk import Desk

__all__ = ("PEOPLE", "Asked", "ask_person", "asked_of", "id_of", "make_question", "withdraw")

# What an async handler asks for besides messages and effects; no kind of message.
ASK_PERSON = 7
# Whom a question is asked of, where messages have a participant's name.
PEOPLE = "@people"
# Bytes of a question with its schema.
QUESTION_MAX = 64 * 1024
_ID_DIGITS = 8
_ANSWER = "answer"


class Asked(NamedTuple):
    """What is asked. ``due``: until when an answer counts, in seconds since 1970; None: for ever."""

    text: str
    form: dict[str, Any]
    due: float | None


def ask_person(
    question: str, schema: Any = None, deadline: float | timedelta | datetime | None = None
) -> Ref[Any]:
    """Asks a person; returns a Ref for the answer, however long that takes.

    In an async handler ``await`` it, in a sync one write ``.then(self.on_answer)``. The question can be seen
    (`cutline.pending`) when a checkpoint holds it, so one that was undone was never asked; it is asked once,
    whatever is lost or stopped meanwhile, and its answer (`cutline.answer`) is delivered once. No process has
    to run while it waits.

    Args:
        question: what people read.
        schema: what an answer must be like: ``bool``, ``int``, ``float``, ``str``, ``list``, ``dict``,
            ``None``, ``list[T]``, ``dict[str, T]``, ``T | U``, ``Literal[...]``, a dataclass of such fields
            (an instance of it is delivered), or a JSON Schema of the keywords that
            `cutline.participant.answer_form` lists. Without it: whatever JSON can say.
        deadline: seconds from now, or a ``timedelta``, or a ``datetime`` with a time zone. After it answers
            are refused, and `DeadlinePassed` is raised where the answer is awaited. It is a date: the clock
            of whoever answers, and of the coordinator, says whether it has passed.

    Raises:
        OutsideHandler: no handler runs in this thread.
        Misuse: a schema that is not supported; a deadline that is none.
    """
    ask = of_handler(
        "ask_person",
        "cutline.ask_person asks in the name of a participant, and no handler runs here: call it in a "
        "method of a participant",
    )
    made: Ref[Any] = ask(question, schema, deadline)
    return made


def make_question(
    desk: Desk, question: str, schema: Any, deadline: Any
) -> tuple[EffectRequest | None, int, str]:
    """The request, None if a re-run asks what was asked before; its number; what the answer is called."""
    if not isinstance(question, str) or not question.strip():
        raise Misuse(f"participant {desk.name!r}: a question to a person is a text, not {question!r:.80}")
    form = form_of(schema)
    given = _given(desk, deadline)
    due = given[1] if given[0] == "at" else None if given[0] == "" else wall() + given[1]
    said = [question, form, due]
    packed = _packed(desk, said)
    # Names of classes may change from program to program, and the question is the same.
    number, is_new = desk.numbered(PEOPLE, ASK_PERSON, PERSON, [question, shown(form), given])
    if not is_new:
        return None, number, _ANSWER
    key = key_of(desk.lineage, desk.me, number, PERSON, said)
    request = EffectRequest(number, PERSON, said, key, digest_of(packed), HALT, False, None, 0, desk.lineage)
    return request, number, _ANSWER


def _packed(desk: Desk, said: list[Any]) -> bytes:
    """Before it has a number: what is refused must be refused in a re-run too."""
    try:
        packed: bytes = msgpack.packb([PERSON, said])
    except (ValueError, OverflowError) as error:
        raise Misuse(
            f"participant {desk.name!r}: the question, or its schema, cannot be stored: {error}"
        ) from error
    if len(packed) > QUESTION_MAX:
        raise Misuse(
            f"participant {desk.name!r}: a question with its schema has at most {QUESTION_MAX // 1024} KiB, "
            f"not {len(packed):,} bytes"
        )
    return packed


def _given(desk: Desk, deadline: Any) -> tuple[str, float]:
    """How the deadline was given, which is the same in a re-run, and when it is."""
    if deadline is None:
        return "", 0.0
    if isinstance(deadline, datetime) and deadline.tzinfo is not None:
        return "at", deadline.timestamp()
    seconds = deadline.total_seconds() if isinstance(deadline, timedelta) else deadline
    if isinstance(seconds, (int, float)) and not isinstance(seconds, bool) and 0 < seconds < math.inf:
        return "in", float(seconds)
    raise Misuse(
        f"participant {desk.name!r}: a question's deadline is seconds from now, a timedelta, or a datetime "
        f"with a time zone; not {deadline!r:.80}"
    )


def withdraw(desk: Desk) -> None:
    """Takes back questions that nobody waits for any more, because their handler has ended or given up."""
    gone = [each for each in desk.effects.values() if each.is_question and not _is_awaited(desk, each.number)]
    for request in gone:
        del desk.effects[request.number]
        desk.asks.pop(request.number, None)
    if gone:
        desk.fresh_effects = [each for each in desk.fresh_effects if each.number in desk.effects]


def _is_awaited(desk: Desk, number: int) -> bool:
    waiters = desk.asks[number][2] if number in desk.asks else []
    if not waiters or number in desk.live_refs or number in desk.exported or number in desk.kept:
        return True
    for waiter in waiters:
        call = desk.calls.get(waiter[1]) if waiter[0] == "call" else None
        if waiter[0] != "call" or (call is not None and number in call.awaited()):
            return True
    return False


def asked_of(request: EffectRequest) -> Asked:
    """What a request asks a person."""
    return Asked(*request.arguments)


def id_of(request: EffectRequest, lineage: str, me: Member) -> str:
    """What people call a question by: it says who asks, and no other question of any lineage has it."""
    key = rekeyed(request, lineage, me).handed_key
    return f"{me.name}#{request.number}.{key[:_ID_DIGITS]}"
