"""Participants of a cut without their system: instances, calls and messages as values; nothing runs.

Handles and Refs in such a state are values like any other. They can be read, compared and saved, and what
they are called with goes nowhere: each call raises, saying which checkpoint it came from. A suspended handler
is not run again; what an image knows of it is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

import msgpack

from cutline.barrier import ChannelTable, Frame, Member
from cutline.barrier.messages import InPart
from cutline.errors import CannotRestore, OutsideHandler

from .handle import CallOptions, Handle, Ref, live_loaders, make_ref
from .imaging import section_of
from .messages import ANSWER, ASK, CHASE, TELL, read_frame
from .pickling import Apart, Live

__all__ = (
    "Absent",
    "Codec",
    "Message",
    "Participant",
    "Question",
    "Spawned",
    "SuspendedCall",
    "calls_of",
    "parcels_of",
    "participant_of",
    "pending_of",
)

_KINDS = {ASK: "ask", TELL: "tell", ANSWER: "answer", CHASE: "chase"}
_FAILED = "error"


class Absent:
    """The port of handles and Refs in a state that was loaded without its system."""

    class_name = ""

    def __init__(self, name: str, cut: str) -> None:
        self.name = name
        self.cut = cut

    def _refuse(self, what: str) -> NoReturn:
        raise OutsideHandler(
            f"{what}: {self.name!r} was loaded from {self.cut} without its system, so nobody is there who "
            "could answer. Read the other participant in the loaded cut, or let the system run from there: "
            "cutline.start(..., restore=...)",
            participant=self.name,
        )

    def ask(self, target: str, method: str, args: Any, kwargs: Any, options: CallOptions) -> Ref[Any]:
        """Nobody can be asked."""
        self._refuse(f"{target}.{method} cannot be called")

    def tell(self, target: str, method: str, args: Any, kwargs: Any, options: CallOptions) -> None:
        """Nor told."""
        self._refuse(f"{target}.{method} cannot be called")

    def then(self, ref: Ref[Any], method: Any, own: tuple[Any, ...], error: Any) -> None:
        """No answer comes."""
        self._refuse(f"the answer of {ref.target}.{ref.method} cannot come")

    def wait(self, ref: Ref[Any]) -> Any:
        """No answer comes."""
        self._refuse(f"the answer of {ref.target}.{ref.method} cannot come")

    def result(self, ref: Ref[Any], timeout: float | None, committed: bool) -> Any:
        """No answer comes."""
        self._refuse(f"the answer of {ref.target}.{ref.method} cannot come")

    def methods_of(self, class_name: str) -> frozenset[str] | None:
        """Of nobody: that none can be called is the error to report, misspelt or not."""
        return None

    def keep(self, ref: Ref[Any]) -> None:
        """A Ref is copied or saved: it is a value."""

    def loaders(self) -> Live:
        """What unpicklers make of the handles and Refs of a state."""
        return live_loaders(
            lambda name, class_name: Handle(name, class_name, self),
            lambda owner, number, target, method: make_ref(owner, number, target, method, self),
        )


class Codec:
    """Loads what messages hold. `load` reads a pickle; `parcels`: large arguments that lay beside theirs."""

    def __init__(self, load: Callable[[Any], Any], parcels: Mapping[bytes, Any]) -> None:
        self.load = load
        self.parcels = parcels

    def arguments(self, packed: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and named ones."""
        if type(packed) is list:
            return tuple(packed), {}
        args, kwargs = self.load(self._content(packed))
        return tuple(args), kwargs

    def value(self, packed: Any) -> Any:
        """An answer; of one that is an error the exception."""
        return packed[0] if type(packed) is list else self.load(packed)

    def _content(self, packed: Any) -> Any:
        if not isinstance(packed, msgpack.ExtType):
            return packed
        parts = self.parcels.get(packed.data)
        if parts is None:
            raise CannotRestore(
                "a large argument of this message is in no image of its cut: whatever wrote it is at fault"
            )
        return Apart(parts)


@dataclass(frozen=True, slots=True)
class Message:
    """A message of the cut that was sent and not handled.

    ``kind``: "ask", "tell", "answer", "error" (an answer that is one) or "chase" (somebody who holds a Ref
    asks for its answer). ``method``: of asks and tells. ``question``: of the others, whose answer it is.
    """

    sender: str
    receiver: str
    number: int
    kind: str
    method: str
    question: int
    _packed: Any = field(repr=False)
    _codec: Codec = field(repr=False)

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Of an ask or a tell: positional and named ones. Raises CannotRestore."""
        return self._codec.arguments(self._packed)

    def value(self) -> Any:
        """Of an answer. Raises CannotRestore."""
        found = self._codec.value(self._packed)
        return found[0] if self.kind == _FAILED else found


@dataclass(frozen=True, slots=True)
class Question:
    """What a participant has asked and has no answer of. ``then``: how the answer is continued with."""

    number: int
    target: str
    method: str
    then: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SuspendedCall:
    """An async handler that has not returned. ``waits_for``: numbers of questions; none: for a timer."""

    number: int
    method: str
    sender: str | None
    waits_for: tuple[int, ...]
    requests: int
    began_at: float
    _packed: Any = field(repr=False)
    _codec: Codec = field(repr=False)

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and named ones. Raises CannotRestore."""
        return self._codec.arguments(self._packed)


@dataclass(frozen=True, slots=True)
class Spawned:
    """Somebody whom the participant has spawned and who is not up yet."""

    number: int
    name: str
    class_name: str
    _packed: Any = field(repr=False)
    _codec: Codec = field(repr=False)

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Of the constructor: positional and named ones. Raises CannotRestore."""
        return self._codec.arguments(self._packed)


@dataclass(frozen=True, slots=True)
class Participant:
    """All that a cut holds of one participant.

    ``handled``: messages that it had handled. ``pending``: messages to it that it had not, in the order of
    each channel. ``dead_letters``: how many were put aside.
    """

    name: str
    birth: int
    class_name: str
    class_version: int
    instance: Any = field(repr=False)
    handled: int
    pending: tuple[Message, ...]
    suspended: tuple[SuspendedCall, ...]
    questions: tuple[Question, ...]
    spawns: tuple[Spawned, ...]
    dead_letters: int


def pending_of(receiver: Member, tables: Mapping[Member, ChannelTable], codec: Codec) -> Iterator[Message]:
    """What of a cut was sent to `receiver` and not handled by it: its own share and the senders'."""
    incoming = tables[receiver].incoming
    senders = dict.fromkeys((*incoming, *(peer for peer in tables if receiver in tables[peer].outgoing)))
    for sender in senders:
        part = incoming.get(sender, InPart(0, 0, 0, ()))
        out = tables[sender].outgoing.get(receiver) if sender in tables else None
        frames: list[Frame] = [*part.frames, *(f for f in (out.frames if out else ()) if f.first > part.upto)]
        for frame in frames:
            skipped = max(0, part.processed + 1 - frame.first)
            if skipped > frame.last - frame.first:
                continue
            for number, message in enumerate(read_frame(frame.body, skipped), frame.first + skipped):
                yield _message(sender.name, receiver.name, number, message, codec)


def _message(sender: str, receiver: str, number: int, message: list[Any], codec: Codec) -> Message:
    code, question, detail, packed = message
    kind = _KINDS.get(code, str(code))
    if kind == "answer" and not detail:
        kind = _FAILED
    method = detail if isinstance(detail, str) else ""
    return Message(sender, receiver, number, kind, method, question, packed, codec)


def calls_of(doc: Mapping[str, Any], codec: Codec) -> tuple[list[SuspendedCall], list[Question]]:
    """The suspended handlers and the open questions of the section "calls"."""
    waits: dict[int, list[int]] = {}
    questions = []
    for number, target, method, waiters in doc["asks"]:
        for waiter in waiters:
            if waiter[0] == "call":
                waits.setdefault(waiter[1], []).append(number)
        then = tuple(waiter[1] for waiter in waiters if waiter[0] == "then")
        questions.append(Question(number, target, method, then))
    suspended = []
    for number, sender, _, method, packed, requests, _, base in doc["calls"]:
        who = sender[0] if sender else None
        waiting = tuple(waits.get(number, ()))
        suspended.append(SuspendedCall(number, method, who, waiting, len(requests), base, packed, codec))
    return suspended, questions


def participant_of(
    member: Member,
    header: Mapping[str, Any],
    sections: Mapping[str, bytes],
    instance: Any,
    tables: Mapping[Member, ChannelTable],
    codec: Codec,
) -> Participant:
    """What a cut holds of `member`. `tables`: the channels of all whose share of its messages counts."""
    doc = section_of(sections, "calls")
    suspended, questions = calls_of(doc, codec)
    spawns = (
        Spawned(spawn.number, spawn.name, spawn.record["class_name"], spawn.record["args"], codec)
        for spawn in tables[member].spawns
    )
    return Participant(
        name=member.name,
        birth=member.birth,
        class_name=header["class"],
        class_version=header["class_version"],
        instance=instance,
        handled=doc["handled"],
        pending=tuple(pending_of(member, tables, codec)),
        suspended=tuple(suspended),
        questions=tuple(questions),
        spawns=tuple(spawns),
        dead_letters=len(doc["dead_letters"]),
    )


def parcels_of(sections: Mapping[str, bytes]) -> dict[bytes, Any]:
    """The large arguments that an image holds, by their tokens."""
    return {token: parts for token, _, parts in section_of(sections, "calls").get("parcels", ())}
