"""When something raises where nobody waits for an answer: what the coordinator is told, what becomes of it.

User code that raises in a told handler leaves its participant *tainted*: it handles and captures nothing
more until the coordinator has decided by its policy (halt, retry, dead_letter). The half-changed state is
never kept. A broken invariant of our own is no policy's business: the system halts and names it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgpack
from xxhash import xxh3_64_intdigest

from cutline.barrier import Member
from cutline.errors import Overloaded, ParticipantFailed

from .desk import HandlerRaised
from .messages import ANSWER, ASK, CHASE, decode_frame, encode_answer, pack_error
from .saying import said
from .steps import StepLost

if TYPE_CHECKING:
    from .runner import Runner

__all__ = ("Skips", "skips_from", "report", "report_broken", "report_overload", "bury")

_log = logging.getLogger("cutline")


Skips = Mapping[tuple[str, int, int], frozenset[int | None]]


def skips_from(doc: Mapping[str, Any]) -> Skips:
    """The messages that are to be put aside: sender, birth and number, with the digests of what they say.

    After a rollback a channel's numbers may go to other messages; a digest of None fits all.
    """
    found: dict[tuple[str, int, int], frozenset[int | None]] = {}
    for name, birth, sequence, digest in doc.get("skips", ()):
        key = name, birth, sequence
        found[key] = found.get(key, frozenset()) | {digest}
    return found


def _digest(message: list[Any]) -> int:
    """What a message says, in 63 bits."""
    digest: int = xxh3_64_intdigest(msgpack.packb(message)) >> 1
    return digest


def _message(runner: Runner, peer: Member, sequence: int) -> list[Any] | None:
    """The message in hand."""
    channel = runner.endpoint.head if runner.endpoint is not None else None
    if not sequence or channel is None or channel.peer != peer:
        return None
    frame = channel.frames[0]
    return decode_frame(frame.body)[sequence - frame.first]


def report(runner: Runner, failure: HandlerRaised, peer: Member, sequence: int) -> None:
    """A handler raised; `sequence` 0 means that no message can be blamed, so that only halting is left."""
    runner.tainted = True
    policy = runner.setup.options.get("on_error", "halt") if sequence else "halt"
    # Sends of a handler that raised leave never.
    runner.desk.out.clear()
    message = _message(runner, peer, sequence)
    digest = _digest(message) if message is not None else None
    _tell(runner, policy, [peer.name, peer.birth, sequence], failure.method, failure.cause, digest)


def _tell(
    runner: Runner,
    policy: str,
    key: list[Any],
    method: str,
    cause: BaseException,
    digest: int | None = None,
) -> None:
    # Kept, because a coordinator that is lost now has not heard it; the next one must.
    runner.failure = {
        "policy": policy,
        "key": key,
        "digest": digest,
        "method": method,
        "error": pack_error(cause, participant=runner.me.name),
        "text": said(cause),
        "waits": runner.outbox.waits,
    }
    runner.liaison.say("failed", **runner.failure)


def report_overload(runner: Runner, error: Overloaded) -> None:
    """More is sent than is taken, and there is no room left: the system halts."""
    runner.tainted = True
    _tell(runner, "overloaded", [runner.me.name, runner.me.birth, 0], "(its outbox)", error)


def report_broken(runner: Runner, error: BaseException) -> None:
    """The runner itself failed. Ending the process would only bring the same state back."""
    if isinstance(error, StepLost):
        error = error.error
    _log.error("participant %r: its runner failed", runner.me.name, exc_info=error)
    _tell(runner, "halt", [runner.me.name, runner.me.birth, 0], "(its runner)", error)


def bury(runner: Runner, peer: Member, sequence: int, message: list[Any]) -> None:
    """Puts a message that failed too often to the dead letters; who asked gets an error.

    One that says something else than the one that failed is handled like any other. An answer is taken,
    but not by those whose failure nobody hears: what waited for it here ends.
    """
    digests = runner.skips[(peer.name, peer.birth, sequence)]
    if None not in digests and _digest(message) not in digests:
        runner.desk.handle(peer, message)
        return
    kind, number, detail, packed = message
    runner.desk.dead_letters.append([peer.name, peer.birth, sequence, kind, str(detail)])
    if kind == ANSWER:
        runner.desk.answered(number, detail, packed, bury=True)
        runner.desk.drain()
    if kind in (ASK, CHASE):
        error = ParticipantFailed(
            f"{runner.me.name}.{detail} failed too often; the message is a dead letter",
            participant=runner.me.name,
        )
        answer = encode_answer(number, False, pack_error(error, participant=runner.me.name))
        runner.desk.out.append((peer, answer))
