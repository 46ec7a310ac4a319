"""The desk as a section of an image, and back: pending questions, answers, suspended handlers.

Restoring a suspended handler means running it again from the top with its journal (`rerun`); nothing it
had sent is sent again.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from cutline.errors import ReplayMismatch, SchemaMismatch

from .async_call import AsyncCall
from .clock import Clock
from .desk import Desk
from .effect_request import EffectRequest
from .findings import Findings
from .messages import unpack_arguments
from .person import withdraw
from .timers import Queue

__all__ = ("desk_to_doc", "load_desk", "rerun")


def desk_to_doc(desk: Desk) -> dict[str, Any]:
    """All that an image must hold of the calls."""
    desk.sweep()
    withdraw(desk)
    parcels = desk.parcels.to_doc() if desk.parcels is not None else []
    return {
        **({"parcels": parcels} if parcels else {}),
        **({"leaving": True} if desk.leaving else {}),
        **({"effects": [each.to_doc() for each in desk.effects.values()]} if desk.effects else {}),
        **({"timers": desk.timers.to_doc()} if desk.timers else {}),
        # What is measured goes on from here, wherever; also what a suspended handler will yet begin to
        # measure, because its loop counts from when it began.
        **({"clock": desk.now()} if desk.timers or desk.calls else {}),
        **({"output": output} if (output := desk.output.to_doc()) else {}),
        "handled": desk.handled,
        "handlers": desk.handlers,
        "next_number": desk.next_number,
        "next_call": desk.next_call,
        "asks": [[number, *ask] for number, ask in desk.asks.items()],
        "answers": [[number, *answer] for number, answer in desk.answers.items()],
        "exported": list(desk.exported),
        "kept": sorted(desk.kept & (desk.asks.keys() | desk.answers.keys())),
        "calls": [call.to_doc() for call in desk.calls.values()],
        "dead_letters": list(desk.dead_letters),
    }


def load_desk(desk: Desk, doc: dict[str, Any]) -> None:
    """Takes back what an image holds; `rerun` then brings the suspended handlers to where they stood."""
    if "parcels" in doc:
        desk.parcels.load(doc["parcels"])
    desk.leaving = doc.get("leaving", False)
    desk.effects = {each.number: each for each in map(EffectRequest.from_doc, doc.get("effects", ()))}
    desk.timers = Queue.from_doc(doc.get("timers", ()))
    if "clock" in doc and isinstance(desk.now, Clock):
        desk.now.not_before(doc["clock"])
    desk.output.load(doc.get("output", ()))
    desk.handled = doc["handled"]
    desk.handlers = doc["handlers"]
    desk.next_number = doc["next_number"]
    desk.next_call = doc["next_call"]
    desk.asks = {number: (target, method, waiters) for number, target, method, waiters in doc["asks"]}
    desk.answers = {number: (ok, packed) for number, ok, packed in doc["answers"]}
    desk.exported = OrderedDict.fromkeys(doc["exported"])
    desk.kept = set(doc["kept"])
    desk.dead_letters.clear()
    desk.dead_letters.extend(doc["dead_letters"])
    desk.calls = {}
    for entry in doc["calls"]:
        call = AsyncCall.from_doc(entry, desk.name)
        desk.calls[call.number] = call


def rerun(desk: Desk, findings: Findings | None = None) -> None:
    """Runs every suspended handler again, up to the end of its journal.

    `findings`: another program wrote the image, and a handler that does something else than the first time is
    a fault of this one; else it is one of the handler's, and its asker hears of it.

    Raises:
        HandlerRaised: one of them did something else than the first time, and nobody waits for its answer.
        SchemaMismatch: the same, in another program.
    """
    for call in list(desk.calls.values()):
        if findings is not None:
            if call.number not in findings.stuck:
                _rerun_elsewhere(desk, call, findings)
            continue
        try:
            _rerun(desk, call)
        except ReplayMismatch as fault:
            desk.end(call, fault)
        desk.drain()


class _NoStep:
    """Stands for a participant's steps while a suspended call is run again in another program.

    A handler makes none before it waits, so one that does so now is another one, and its function must not be
    called to find that out.
    """

    def take(self, log: object, function: object, args: object, kwargs: object) -> None:
        raise ReplayMismatch("it makes a step of a log before it waits, which no suspended call has done")


def _rerun_elsewhere(desk: Desk, call: AsyncCall, findings: Findings) -> None:
    recorded = len(call.requests)
    steps, desk.steps = desk.steps, _NoStep()  # type: ignore[assignment]
    try:
        _rerun(desk, call)
        if call.made != recorded:
            raise ReplayMismatch(
                f"{desk.name}.{call.method} was run again, and asked for {call.made} things where it had "
                f"asked for {recorded}"
            )
        desk.drain()
    except Exception as fault:
        path = f"suspended call of {call.method}"
        error = SchemaMismatch(
            f"participant {desk.name!r}: {path}: it does something else in this program than in the one that "
            f"began it ({fault}); let that one end it, or keep the old method for calls that are under way",
            participant=desk.name,
            path=path,
            class_name=desk.class_name,
            method=call.method,
            what="call",
        )
        error.__cause__ = fault
        findings.meet(error)
    finally:
        desk.steps = steps


def _rerun(desk: Desk, call: AsyncCall) -> None:
    bound, is_async = desk.method_of(call.method)
    if not is_async:
        raise ReplayMismatch(
            f"{desk.name}.{call.method} was suspended in the image and is no longer `async def`: "
            "let the old version of the class finish it first"
        )
    args, kwargs = unpack_arguments(call.arguments, participant=desk.name, live=desk.live)
    desk.active, desk.in_handler = call, call.method
    try:
        call.start(bound(*args, **kwargs))
        for event in call.journal:
            call.wake(event, desk.settle_future)
    finally:
        desk.active, desk.in_handler = None, ""
    if call.done:
        error = None if call.task is None or call.task.cancelled() else call.task.exception()
        if isinstance(error, ReplayMismatch):
            raise error
        raise ReplayMismatch(
            f"{desk.name}.{call.method} was suspended in the image and its re-run came to an end: it did not "
            "do the same with the same answers",
            participant=desk.name,
            method=call.method,
        )
    desk.arm(call)
