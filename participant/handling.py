"""Handles messages: as many of the oldest frame as fit before something else wants attention.

This is the hot loop of a participant, so what is the same for a run of messages is done once per run:
counting, and giving what the handlers sent to the channels. It leaves at the end of the run, which is
still before the next boundary, hence in no capture and in no packet before it. What a handler sent that
then raised never leaves.

A run ends at the end of its frame, when an event waits (a marker must not wait for a frame), and after
FLUSH_AFTER seconds, so that acks and frames travel while a long frame is handled. Reading the clock costs
as much as a cheap handler, so it is read once per *batch*: one message, and up to MOST_UNTIMED while all
of the last batch took less than CHEAP seconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from cutline.barrier.channel import Incoming
from cutline.barrier.messages import Member

from . import failures
from .desk import HandlerRaised
from .flight import DONE, IN_HAND
from .messages import TELL

if TYPE_CHECKING:
    from .runner import Runner

__all__ = ("handle_run", "FLUSH_AFTER")

FLUSH_AFTER = 0.002
CHEAP = 0.0001
MOST_UNTIMED = 16


def handle_run(
    runner: Runner, channel: Incoming, last: int, rest: Iterator[list[Any]], *, once: bool = False
) -> None:
    """Handles messages of the oldest frame of `channel`, or one.

    Args:
        last: the number of the frame's last message.
        rest: those that were not processed.
    """
    desk, now = runner.desk, runner.now
    first = channel.processed + 1
    run = _Run(runner, channel.peer, first)
    read = now()
    until = read + FLUSH_AFTER
    batch = 1
    try:
        while run.handle(rest, batch):
            before, read = read, now()
            if once or read >= until or run.sequence > last:
                return
            batch = min(2 * batch, MOST_UNTIMED) if read - before < CHEAP else 1
        if run.sequence == first:
            raise AssertionError(f"a frame from {run.peer.name} ends before its message {first}")
    except HandlerRaised as failure:
        failures.report(runner, failure, run.peer, run.sequence)
    finally:
        desk.in_handler = ""
        channel.processed = run.sequence - 1
        handled = run.sequence - first
        desk.handled += handled
        desk.handlers += handled - run.others
        runner.handled_total += handled
        runner.handlers_run += handled - run.others
        if runner.leaving:
            runner.release(runner.leaving)


class _Run:
    """Where a run stands: the number of its next message, and how many of those before were no calls."""

    __slots__ = ("runner", "peer", "first", "sequence", "others")

    def __init__(self, runner: Runner, peer: Member, first: int) -> None:
        self.runner = runner
        self.peer = peer
        self.first = self.sequence = first
        self.others = 0
        self._record()

    def _record(self) -> None:
        """Opens a new row of the flight recorder, which counts calls alone."""
        runner, desk = self.runner, self.runner.desk
        handled = self.sequence - self.first
        calls = handled - self.others
        runner.flight.open(
            desk.handled + handled,
            desk.handlers + calls,
            runner.handlers_run + calls,
            self.peer,
            self.sequence,
        )

    def handle(self, rest: Iterator[list[Any]], most: int) -> bool:
        """Handles so many messages; false if an event waits or none is left."""
        runner, peer, sequence = self.runner, self.peer, self.sequence
        desk, skips, leaving = runner.desk, runner.skips, runner.leaving
        methods, sent, after = desk.sync_methods, desk.out, desk.after
        known = ""
        bound: Any = None
        progress = runner.flight.words
        began = sequence
        try:
            for message in islice(rest, most):
                progress[IN_HAND] = sequence
                kind, _number, method, packed = message
                if skips and (peer.name, peer.birth, sequence) in skips:
                    failures.bury(runner, peer, sequence, message)
                elif kind == TELL and type(packed) is list and (method == known or method in methods):
                    # What desk.handle would do, for the message that there are most of.
                    if method != known:
                        known, bound = method, methods[method]
                        desk.in_handler = method
                    try:
                        bound(*packed)
                    except Exception as error:
                        raise HandlerRaised(method, error) from error
                    if after:
                        desk.drain()
                        known = ""
                else:
                    desk.handle(peer, message)
                    known = ""
                progress[DONE] = sequence
                sequence += 1
                if kind > TELL:
                    self.others += 1
                    self.sequence = sequence
                    self._record()
                if sent:
                    leaving += sent
                    sent.clear()
                if runner.called:
                    return False
        finally:
            self.sequence = sequence
        return sequence - began == most
