"""One sink of a running system: what is to be published there, in which order, and how far it is.

What a committed checkpoint holds is a row of *entries* (checkpoint, participant, last number), taken one
after the other. Opening and writing are done by a thread of the sink's own, one thing at a time; what becomes
of it is posted. A sink that fails is closed and opened anew, ever less often, and says how far it is.
"""

from __future__ import annotations

import bisect
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from cutline.barrier import Member
from cutline.errors import CutlineError, OutputRefused, StorageError
from cutline.participant.output import CALL
from cutline.participant.saying import said
from cutline.participant.transport import Link
from cutline.storage.sinks import Origin, Record, Sink, open_sink

__all__ = ("FIRST_PAUSE", "LONGEST_PAUSE", "Entry", "Opened", "Outlet", "close_sinks", "opened_sinks")

# Seconds before a sink that has failed is tried again: at first, and at most.
FIRST_PAUSE = 0.5
LONGEST_PAUSE = 30.0
# Seconds that a system that ends waits for what a sink is doing.
CLOSING = 2.0


class Entry(NamedTuple):
    """What a participant emitted up to that number; the checkpoint is the first that it was captured in.

    Who comes later under the same name has numbers of its own, from 1 on: so the birth is part of it.
    """

    checkpoint: int
    participant: str
    birth: int
    upto: int

    @property
    def member(self) -> Member:
        return Member(self.participant, self.birth)


class Opened(NamedTuple):
    """A sink that was opened at a start, and how far it is."""

    sink: Sink
    numbers: dict[Origin, int]


def opened_sinks(docs: Mapping[str, Mapping[str, Any]]) -> dict[str, Opened | StorageError]:
    """The sinks of a start that are no functions; of one that is only out of reach, why.

    Raises:
        OutputRefused: one can never be what it must be; the message says why.
        MissingPackage: what it needs is not installed.
    """
    found: dict[str, Opened | StorageError] = {}
    try:
        for name, doc in docs.items():
            if doc["kind"] != CALL:
                sink = open_sink(name, doc)
                try:
                    found[name] = Opened(sink, sink.open())
                except StorageError as error:
                    found[name] = error
    except BaseException:
        close_sinks(found)
        raise
    return found


def close_sinks(opened: Mapping[str, Opened | StorageError]) -> None:
    """Nothing comes of that start."""
    for each in opened.values():
        if isinstance(each, Opened):
            each.sink.close()


class Outlet:
    """See the module's head. ``phase``: closed, opening, idle, asking (a participant), publishing."""

    def __init__(self, name: str, doc: Mapping[str, Any], post: Callable[[Callable[[], None]], None]) -> None:
        self.name = name
        self.doc = doc
        self.phase = "closed"
        self.entries: list[Entry] = []
        # The entry in hand, by participant the last number that ever was in an entry, and the round that an
        # answer must be of.
        self.current: Entry | None = None
        self.queued: dict[Member, int] = {}
        self.round = 0
        self.asked_at = 0.0
        self.asked_link: Link | None = None
        self.numbers: dict[Origin, int] = {}
        # Numbers that the catalog does not know yet.
        self.unsaved: dict[Origin, int] = {}
        self.again_at = 0.0
        self.pause = FIRST_PAUSE
        self.trouble = ""
        # Whether people were told of the trouble.
        self.told = False
        self._post = post
        self._sink: Sink | None = None
        self._jobs: queue.SimpleQueue[Callable[[], None]] | None = None

    @property
    def is_function(self) -> bool:
        """Whether it is a function, which participants call."""
        return bool(self.doc["kind"] == CALL)

    def add(self, entry: Entry) -> bool:
        """Whether it is news: something that was not among the entries before."""
        if entry.upto <= self.queued.get(entry.member, 0):
            return False
        self.owe(entry)
        return True

    def owe(self, entry: Entry) -> None:
        """It may be the older part of one that is among the entries: it has its own place then."""
        self.queued[entry.member] = max(entry.upto, self.queued.get(entry.member, 0))
        if entry not in self.entries:
            bisect.insort(self.entries, entry)

    def forget(self) -> None:
        """Everybody goes back: what is owed is said again afterwards. What is under way is written."""
        self.entries.clear()
        self.queued.clear()
        self.current = None
        if self.phase == "asking":
            self.phase = "idle"

    def finish(self) -> None:
        """The entry in hand is published."""
        if self.current is not None and self.current in self.entries:
            self.entries.remove(self.current)
        self.current = None

    def after(self, participant: str, birth: int) -> dict[str, int]:
        """How far the sink is with a participant, by lineage."""
        return {
            origin.lineage: number
            for origin, number in self.numbers.items()
            if (origin.participant, origin.birth) == (participant, birth)
        }

    def reached(self, numbers: Mapping[Origin, int]) -> None:
        """So far is the sink now."""
        for origin, number in numbers.items():
            if number > self.numbers.get(origin, 0):
                self.numbers[origin] = self.unsaved[origin] = number
        self.trouble, self.told, self.pause = "", False, FIRST_PAUSE

    def failed(self, text: str, now: float) -> bool:
        """It is tried again later. Whether people are to hear of it; not of one connection that was cut."""
        cut = self.phase == "publishing" and not self.trouble
        self.again_at = now + self.pause
        self.pause = min(2 * self.pause, LONGEST_PAUSE)
        news = not cut and (text != self.trouble or not self.told)
        self.trouble = text
        self.told = self.told or news
        return news

    # -- its thread ------------------------------------------------------------------------------

    def take(self, opened: Opened) -> None:
        """At a start: it was opened."""
        self._sink, self.phase = opened.sink, "idle"
        self.numbers.update(opened.numbers)

    def open(self, heard: Callable[[dict[Origin, int] | CutlineError], None]) -> None:
        """Opens it anew; `heard` gets how far it is, or why not."""
        self.phase = "opening"
        if self.is_function:
            heard({})
            return

        def work() -> dict[Origin, int]:
            if self._sink is not None:
                self._sink.close()
            self._sink = open_sink(self.name, self.doc)
            return self._sink.open()

        self._do(work, heard)

    def publish(
        self, records: Sequence[Record], heard: Callable[[dict[Origin, int] | CutlineError], None]
    ) -> None:
        """Publishes records; `heard` gets how far it is then, or why not."""
        self.phase = "publishing"
        sink = self._sink
        assert sink is not None

        def work() -> dict[Origin, int]:
            sink.publish(records)
            return {record.origin: record.number for record in records}

        self._do(work, heard)

    def _do(
        self,
        work: Callable[[], dict[Origin, int]],
        heard: Callable[[dict[Origin, int] | CutlineError], None],
    ) -> None:
        def job() -> None:
            found: dict[Origin, int] | CutlineError
            try:
                found = work()
            except CutlineError as error:
                found = error
            except Exception as error:
                # Of a library: it is tried again like any other failure, and people are told.
                found = OutputRefused(f"sink {self.name!r}: {said(error)}", sink=self.name)
            self._post(lambda: heard(found))

        if self._jobs is None:
            self._jobs = queue.SimpleQueue()
            name = f"cutline-sink-{self.name}"
            threading.Thread(target=_run, args=(self._jobs,), name=name, daemon=True).start()
        self._jobs.put(job)

    def close(self) -> None:
        """Lets others have the sink when what is under way is done; not for long."""
        done = threading.Event()

        def work() -> dict[Origin, int]:
            if self._sink is not None:
                self._sink.close()
            done.set()
            return {}

        if self._sink is not None:
            self._do(work, lambda _found: None)
            done.wait(CLOSING)

    def news(self) -> list[str]:
        """What the sink has to say to people, once."""
        found, sink = [], self._sink
        while sink is not None and sink.news:
            found.append(sink.news.pop(0))
        return found


def _run(jobs: queue.SimpleQueue[Callable[[], None]]) -> None:
    while True:
        jobs.get()()
