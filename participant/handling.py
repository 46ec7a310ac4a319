"""Handles messages: as many of the oldest frame as fit before something else wants attention.

This is the hot loop of a participant, so what is the same for a run of messages is done once per run:
counting, and giving what the handlers sent to the channels. It leaves at the end of the run, which is
still before the next boundary, hence in no capture and in no packet before it. What a handler sent that
then raised never leaves.

A run ends at the end of its frame, when an event waits (a marker must not wait for a frame), and after
FLUSH_AFTER seconds, so that acks and frames travel while a long frame is handled.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from cutline.barrier.channel import Incoming
from cutline.barrier.messages import Frame

from . import failures
from .desk import HandlerRaised
from .flight import DONE, IN_HAND
from .messages import TELL

if TYPE_CHECKING:
    from .runner import Runner

__all__ = ("handle_run", "FLUSH_AFTER")

FLUSH_AFTER = 0.002


def handle_run(runner: Runner, channel: Incoming, frame: Frame, messages: list[list[Any]]) -> None:
    """Handles messages of `frame`, the oldest of `channel`, from the first that was not processed."""
    desk, peer, skips = runner.desk, channel.peer, runner.skips
    step, sent, leaving = desk.handle, desk.out, runner.leaving
    empty, now = runner.queue.empty, runner.now
    until = now() + FLUSH_AFTER
    first = sequence = channel.processed + 1
    others = 0
    runner.flight.open(desk.handled, desk.handlers, runner.handlers_run, peer, first)
    progress = runner.flight.words
    try:
        for message in islice(messages, first - frame.first, None):
            progress[IN_HAND] = sequence
            if skips and (peer.name, peer.birth, sequence) in skips:
                failures.bury(runner, peer, sequence, message)
            else:
                step(peer, message)
            progress[DONE] = sequence
            sequence += 1
            if message[0] > TELL:
                others += 1
                calls = sequence - first - others
                runner.flight.open(
                    desk.handled + calls + others,
                    desk.handlers + calls,
                    runner.handlers_run + calls,
                    peer,
                    sequence,
                )
            if sent:
                leaving += sent
                sent.clear()
            if not empty() or now() >= until:
                break
    except HandlerRaised as failure:
        failures.report(runner, failure, peer, sequence)
    finally:
        handled = sequence - first
        channel.processed = sequence - 1
        desk.handled += handled
        desk.handlers += handled - others
        runner.handled_total += handled
        runner.handlers_run += handled - others
        if leaving:
            runner.release(leaving)
