"""The part of a runner that gives the coordinator what was emitted: `cutline.emit`.

The coordinator publishes, in one place and one order, and asks for what it needs: what is owed after a
recovery, the records of a committed checkpoint, or, for a sink that is a function, that they be given to the
function here. Nothing is said twice by itself; whoever asks, asks again.

Over its limit a participant takes no message until something is published.
"""

from __future__ import annotations

import asyncio
import inspect
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgpack

from cutline.barrier import Endpoint
from cutline.storage.image import ImageRef
from cutline.storage.sinks import Origin, Record, identity

from .effect_book import ASK_AGAIN
from .effect_request import bound_to
from .effecting import Effecting
from .messages import unpack_value
from .output import EARLY_BYTES, OUTPUT_BYTES, Emitted, Output
from .processes import only_here
from .setup import Setup

__all__ = ("BATCH_BYTES", "BATCH_RECORDS", "Emitting")

# What is given to the coordinator at once; one larger record is given alone.
BATCH_BYTES = 1024 * 1024
BATCH_RECORDS = 2000
# Seconds between two looks of one that is over its limit.
HELD_PAUSE = 0.02


class _Given(NamedTuple):
    """Records were given to a function, up to a number of a lineage; `error`: why not all."""

    sink: str
    round: int
    numbers: dict[str, int]
    error: str


class Emitting(Effecting):
    """See the module's head."""

    def __init__(self, setup: Setup, *rest: Any, **named: Any) -> None:
        # Functions that are called in this process, by sink; they stay over rollbacks.
        self.givers: dict[str, _Giver] = {}
        self.cut_asked_at = 0.0
        super().__init__(setup, *rest, **named)

    # -- hooks of the runner -------------------------------------------------------------------

    def _new_desk(self, instance: object) -> None:
        super()._new_desk(instance)
        self.desk.output = Output(self.setup.sinks, self.setup.run, self.me)

    def be_restored(self, ref: ImageRef, epoch: int, checkpoint: int, floor: int) -> None:
        super().be_restored(ref, epoch, checkpoint, floor)
        self.desk.output.restored(checkpoint)

    def captured(self, checkpoint: int) -> None:
        super().captured(checkpoint)
        self.desk.output.captured(checkpoint)

    def settled(self, checkpoint: int, committed: bool) -> None:
        super().settled(checkpoint, committed)
        self.desk.output.settled(checkpoint, committed)

    @property
    def is_waiting(self) -> bool:
        return super().is_waiting or not self.desk.output.is_empty

    @property
    def is_over_its_limit(self) -> bool:
        """Whether so much waits to be published that nothing more is handled."""
        return self.desk.output.bytes >= OUTPUT_BYTES and not self.desk.leaving

    def _has_work(self) -> bool:
        return not self.is_over_its_limit and super()._has_work()

    def _until_due(self) -> float:
        # What is due waits too, timers for one: not without a pause.
        wait = super()._until_due()
        return max(wait, HELD_PAUSE) if self.is_over_its_limit else wait

    def _work(self, endpoint: Endpoint) -> None:
        if not self.is_over_its_limit:
            super()._work(endpoint)

    def at_boundary(self) -> None:
        super().at_boundary()
        output = self.desk.output
        wanted = output.fresh_bytes >= EARLY_BYTES or (self.desk.leaving and output.fresh_bytes)
        if wanted and self.now() - self.cut_asked_at >= ASK_AGAIN:
            self.cut_asked_at = self.now()
            self.liaison.say("emit_cut")

    def other_event(self, event: Any) -> None:
        if isinstance(event, _Given):
            self.liaison.say(
                "emit_given",
                sink=event.sink,
                round=event.round,
                numbers=event.numbers,
                error=event.error,
            )
        else:
            super().other_event(event)

    def other_order(self, doc: dict[str, Any]) -> None:
        kind = doc["kind"]
        if not kind.startswith("emit_"):
            super().other_order(doc)
        elif self.endpoint is None or doc["epoch"] != self.endpoint.epoch or self.phase != "running":
            # It asks again.
            return
        elif kind == "emit_owed":
            self.liaison.say("emit_owes", owed=self.desk.output.owed())
        else:
            self.desk.output.published(doc["sink"], doc["after"])
            if kind in ("emit_want", "emit_give"):
                self._offer(doc)

    # -- records -------------------------------------------------------------------------------

    def _batch(self, doc: Mapping[str, Any]) -> tuple[list[Emitted], bool, str]:
        """What is handed over at once, whether more is wanted, and why nothing can be."""
        found: list[Emitted] = []
        size = 0
        for each in self.desk.output.wanted(doc["sink"], doc["upto"]):
            size += len(each.body)
            why = self.desk.output.misfit(doc["sink"], each)
            if why and not found:
                return [], True, why
            if found and (why or size > BATCH_BYTES or len(found) == BATCH_RECORDS):
                return found, True, ""
            found.append(each)
        return found, False, ""

    def _offer(self, doc: dict[str, Any]) -> None:
        """The coordinator asks for what it is to publish, or to have given to a function."""
        records, more, why = self._batch(doc)
        if why:
            self.liaison.say("emit_unfit", sink=doc["sink"], round=doc["round"], text=why)
        elif doc["kind"] == "emit_want":
            self._hand_over(doc, records, more)
        else:
            self._give(doc, records)

    def _hand_over(self, doc: dict[str, Any], records: list[Emitted], more: bool) -> None:
        rows = [[each.number, each.checkpoint, each.lineage, each.body] for each in records]
        self.liaison.say("emit_have", sink=doc["sink"], round=doc["round"], records=rows, more=more)

    def _give(self, doc: dict[str, Any], records: list[Emitted]) -> None:
        sink = doc["sink"]
        if not records:
            self.liaison.say("emit_have", sink=sink, round=doc["round"], records=[], more=False)
            return
        giver = self.givers.get(sink)
        if giver is None:
            giver = self.givers[sink] = _Giver(sink, self.post)
        me, function = self.me, doc["function"]
        made = [
            Record(Origin(each.lineage, me.name, me.birth), each.number, each.checkpoint, each.body)
            for each in records
        ]
        giver.take(doc["round"], lambda: self.classes.find_named(function), made)


class _Giver:
    """Calls one sink's function, in a thread of its own, in order; never one record twice in this process."""

    def __init__(self, sink: str, post: Callable[[Any], None]) -> None:
        self.sink = sink
        self.post = post
        self.called: dict[str, int] = {}
        self.is_busy = False
        self._jobs: queue.SimpleQueue[tuple[int, Callable[[], Any], Sequence[Record]]] = queue.SimpleQueue()
        threading.Thread(target=self._run, name=f"cutline-sink-{sink}", daemon=True).start()

    def take(self, number: int, find: Callable[[], Any], records: Sequence[Record]) -> None:
        """While a call is under way, nothing more is taken: the coordinator asks again."""
        if not self.is_busy:
            self.is_busy = True
            self._jobs.put((number, find, records))

    def _run(self) -> None:
        while True:
            number, find, records = self._jobs.get()
            done: dict[str, int] = {}
            error = ""
            try:
                function = find()
                for record in records:
                    lineage = record.origin.lineage
                    if record.number > self.called.get(lineage, 0):
                        self._call(function, record)
                        self.called[lineage] = record.number
                    done[lineage] = record.number
            except BaseException as fault:
                # Whatever it is: the coordinator hears of it and has it tried again.
                error = f"{type(fault).__name__}: {fault}"
            self.is_busy = False
            self.post(_Given(self.sink, number, done, error))

    def _call(self, function: Callable[..., Any], record: Record) -> None:
        size = len(record.body)
        packed = msgpack.unpackb(record.body, max_bin_len=size, max_str_len=size)
        # Handles in it are bound to nobody: only handlers send.
        value = unpack_value(packed, participant=record.origin.participant, live={})
        with only_here():
            returned = function(value, **bound_to(function, [value], identity(self.sink, record)))
            if inspect.iscoroutine(returned):
                asyncio.run(returned)
