"""When something raises where nobody waits for an answer: what the coordinator is told, what becomes of it.

User code that raises in a told handler leaves its participant *tainted*: it handles and captures nothing
more until the coordinator has decided by its policy (halt, retry, dead_letter). The half-changed state is
never kept. A broken invariant of our own is no policy's business: the system halts and names it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from cutline.barrier import Member
from cutline.errors import ParticipantFailed

from .desk import HandlerRaised
from .messages import ASK, encode_answer, pack_error

if TYPE_CHECKING:
    from .runner import Runner

__all__ = ("report", "report_broken", "bury")

_log = logging.getLogger("cutline")


def report(runner: Runner, failure: HandlerRaised, peer: Member, sequence: int) -> None:
    """A handler raised; `sequence` 0 means that no message can be blamed, so that only halting is left."""
    runner.tainted = True
    policy = runner.setup.options.get("on_error", "halt") if sequence else "halt"
    runner.liaison.say(
        "failed",
        policy=policy,
        key=[peer.name, peer.birth, sequence],
        method=failure.method,
        error=pack_error(failure.cause, participant=runner.me.name),
        text=f"{type(failure.cause).__name__}: {failure.cause}",
    )


def report_broken(runner: Runner, error: Exception) -> None:
    """The runner itself failed. Ending the process would only bring the same state back."""
    _log.error("participant %r: its runner failed", runner.me.name, exc_info=error)
    runner.liaison.say(
        "failed",
        policy="halt",
        key=[runner.me.name, runner.me.birth, 0],
        method="(its runner)",
        error=pack_error(error, participant=runner.me.name),
        text=f"{type(error).__name__}: {error}",
    )


def bury(runner: Runner, peer: Member, sequence: int, message: list[Any]) -> None:
    """Puts a message that failed too often to the dead letters; who asked gets an error."""
    kind, number, detail, _packed = message
    runner.desk.dead_letters.append([peer.name, peer.birth, sequence, kind, str(detail)])
    if kind == ASK:
        error = ParticipantFailed(
            f"{runner.me.name}.{detail} failed too often; the message is a dead letter",
            participant=runner.me.name,
        )
        answer = encode_answer(number, False, pack_error(error, participant=runner.me.name))
        runner.desk.out.append((peer, answer))
