"""What a participant knows of its effects, and what is to be done next (pure).

An effect goes from *asked* (no committed checkpoint holds it) over *due* and *claiming* to *running*, then
*recording*, and is delivered when the coordinator says that its outcome is recorded. Where an attempt has no
outcome that anybody knows, it is *judging*: its policy decides.

The book is told what happens and answers with what is to be done (`Act`). Calls that run, and outcomes that
the coordinator has not confirmed, belong to the process: they stay over a rollback, so that what was begun
once in this process is never begun a second time.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from .effect_request import HALT, RETRY, EffectRequest

__all__ = ("ASK_AGAIN", "Act", "Book", "Entry", "POOL", "RECONCILE_SECONDS", "TIMEOUTS")

# Effects of a participant that are claimed or run at once.
POOL = 16
# How often a key's calls may take too long in a process before that is given up: those that hang keep their
# places.
TIMEOUTS = 5
# Seconds that a reconcile function has for its answer.
RECONCILE_SECONDS = 300.0
# Seconds after which a checkpoint is asked for again: of one that was aborted before it was captured here,
# nobody here hears.
ASK_AGAIN = 1.0

Phase = Literal["asked", "due", "claiming", "watching", "running", "judging", "recording", "halting"]


class Act(NamedTuple):
    """To do: claim, call, reconcile, halt; of a question to a person, watch for its outcome. ``attempt``:
    which one it is about; of a claim, the one that the policy has judged."""

    what: Literal["claim", "watch", "call", "reconcile", "halt"]
    key: str
    attempt: int = 0


class Outcome(NamedTuple):
    """What became of an attempt in this process, until the coordinator has confirmed it."""

    state: str
    answer: bytes | None = None
    blob: tuple[str, bytes, int] | None = None
    by: str = ""


@dataclass
class Entry:
    """One key. ``numbers``: the questions that wait for it."""

    request: EffectRequest
    numbers: list[int] = field(default_factory=list)
    phase: Phase = "asked"
    attempt: int = 0
    # The attempt that the policy has judged, while another one is claimed.
    after: int = 0
    raised: int = 0
    checkpoint: int = 0
    claimed_at: float = 0.0
    until: float | None = None
    # Whether its outcome is recorded, and about to be delivered.
    is_answered: bool = False
    # Why its reconcile function did not help.
    trouble: str = ""


class Book:
    """See the module's head. Times are seconds of one monotonic clock."""

    def __init__(self, most: int = POOL) -> None:
        self.most = most
        self.entries: dict[str, Entry] = {}
        # For each undecided capture, the number that the next request had.
        self.captures: dict[int, int] = {}
        # When a checkpoint was asked for; None: that is not known to be under way.
        self.asked_at: float | None = None
        # Of this process, whatever is rolled back: the newest attempt that was begun, by key; outcomes that
        # are not confirmed; calls under way.
        self.begun: dict[str, int] = {}
        self.outcomes: dict[tuple[str, int], Outcome] = {}
        # How often calls under a key have taken too long.
        self.timeouts: dict[str, int] = {}
        # With the time when each has taken too long.
        self.calls: dict[tuple[str, int], float | None] = {}

    # -- requests and cuts -------------------------------------------------------------------

    def ask(self, request: EffectRequest) -> bool:
        """A new request; false if its key belongs to another one."""
        entry = self.entries.get(request.key)
        if entry is None:
            entry = self.entries[request.key] = Entry(request)
            if request.repeatable:
                self._ready(entry)
        elif entry.request.digest != request.digest:
            return False
        entry.numbers.append(request.number)
        return True

    def _ready(self, entry: Entry) -> None:
        """It may be claimed, unless this process has begun it already."""
        entry.phase, entry.until, entry.after, entry.trouble = "due", None, 0, ""
        for (key, attempt), until in self.calls.items():
            if key == entry.request.key:
                entry.phase, entry.attempt, entry.until = "running", attempt, until
        for key, attempt in self.outcomes:
            if key == entry.request.key:
                entry.phase, entry.attempt, entry.until = "recording", attempt, None

    def captured(self, checkpoint: int, next_number: int) -> None:
        """The state was captured, with all requests below that number."""
        self.captures[checkpoint] = next_number

    def settled(self, checkpoint: int, committed: bool) -> None:
        """A checkpoint that was captured here is decided."""
        below = self.captures.pop(checkpoint, 0)
        if not committed:
            self.asked_at = None
            return
        for entry in self.entries.values():
            if entry.phase == "asked" and entry.numbers[0] < below:
                entry.checkpoint = checkpoint
                self._ready(entry)

    def wants_cut(self, now: float) -> bool:
        """Whether to ask for a checkpoint now: something was asked for that no undecided capture holds."""
        held = max(self.captures.values(), default=0)
        waits = any(e.phase == "asked" and e.numbers[0] >= held for e in self.entries.values())
        if not waits:
            self.asked_at = None
        elif self.asked_at is None or now - self.asked_at >= ASK_AGAIN:
            self.asked_at = now
            return True
        return False

    def restored(self, requests: Iterable[EffectRequest], checkpoint: int) -> list[EffectRequest]:
        """The state of a committed cut is there, with these requests in it.

        Returns those whose key belongs to another one of them.
        """
        self.entries.clear()
        self.captures.clear()
        self.asked_at = None
        refused = [request for request in requests if not self.ask(request)]
        for entry in self.entries.values():
            entry.checkpoint = checkpoint
            self._ready(entry)
        return refused

    def reconnected(self) -> list[Act]:
        """What was said to a coordinator may be lost: what is to be said again, besides outcomes."""
        self.asked_at = None
        acts = []
        for key, entry in self.entries.items():
            if entry.phase == "claiming":
                acts.append(Act("claim", key, entry.after))
            elif entry.phase == "watching":
                acts.append(Act("watch", key))
            elif entry.phase == "halting":
                acts.append(Act("halt", key, entry.attempt))
        return acts

    # -- attempts ------------------------------------------------------------------------------

    def start(self, now: float) -> Iterator[Act]:
        """Claims, as many as there is room for; questions take none."""
        busy = len(self.calls) + sum(e.phase in ("claiming", "judging") for e in self.entries.values())
        for key, entry in self.entries.items():
            if entry.phase != "due":
                continue
            if entry.request.is_question:
                entry.phase = "watching"
                yield Act("watch", key)
            elif busy < self.most:
                entry.phase, entry.claimed_at, entry.after = "claiming", now, 0
                busy += 1
                yield Act("claim", key)

    def granted(self, key: str, attempt: int, raised: int, now: float) -> Act | None:
        """A claim was granted."""
        entry = self.entries.get(key)
        if entry is None or entry.phase != "claiming" or attempt <= self.begun.get(key, 0):
            return None
        entry.phase, entry.attempt, entry.raised = "running", attempt, raised
        timeout = entry.request.timeout
        entry.until = None if timeout is None else now + timeout
        self.begun[key] = attempt
        self.calls[key, attempt] = entry.until
        return Act("call", key, attempt)

    def unknown(self, key: str, attempt: int, now: float) -> Act | None:
        """An attempt of a process that is gone has no outcome."""
        entry = self.entries.get(key)
        if entry is None or entry.phase != "claiming":
            return None
        return self._judge(entry, attempt, now)

    def _judge(self, entry: Entry, attempt: int, now: float) -> Act:
        key, policy = entry.request.key, entry.request.on_unknown
        entry.until = None
        if entry.request.repeatable or policy == RETRY:
            return self._claim_after(entry, attempt, now)
        if policy == HALT:
            entry.phase, entry.attempt = "halting", attempt
            return Act("halt", key, attempt)
        entry.phase, entry.attempt, entry.until = "judging", attempt, now + RECONCILE_SECONDS
        return Act("reconcile", key, attempt)

    def _claim_after(self, entry: Entry, attempt: int, now: float) -> Act:
        # The time to begin is that of the new attempt.
        entry.phase, entry.after, entry.claimed_at, entry.until = "claiming", attempt, now, None
        return Act("claim", entry.request.key, attempt)

    def judged(self, key: str, attempt: int, outcome: Outcome | None, now: float) -> Act | None:
        """The reconcile function has answered; no outcome: it surely has not happened."""
        entry = self.entries.get(key)
        if outcome is not None:
            # What the call itself has said by now goes first.
            self.outcomes.setdefault((key, attempt), outcome)
        if entry is None or entry.phase != "judging" or entry.attempt != attempt:
            return None
        if outcome is not None:
            entry.phase, entry.until = "recording", None
            return None
        if (key, attempt) in self.calls:
            # It runs yet, and has only taken too long: a second one beside it would not be the same.
            assert entry.request.timeout is not None
            entry.phase, entry.until = "running", now + entry.request.timeout
            return None
        return self._claim_after(entry, attempt, now)

    def given_up(self, key: str, attempt: int, trouble: str) -> Act | None:
        """The reconcile function does not say anything that helps."""
        entry = self.entries.get(key)
        if entry is None or entry.phase != "judging" or entry.attempt != attempt:
            return None
        entry.phase, entry.trouble, entry.until = "halting", trouble, None
        return Act("halt", key, attempt)

    def returned(self, key: str, attempt: int, outcome: Outcome) -> None:
        """A call of this process has ended."""
        self.calls.pop((key, attempt), None)
        self.outcomes[key, attempt] = outcome
        entry = self.entries.get(key)
        if entry is not None and entry.phase in ("running", "judging", "claiming", "halting"):
            # However late: what it says counts, if nothing else was recorded before.
            entry.phase, entry.until = "recording", None

    def confirmed(self, key: str, attempt: int) -> None:
        """An outcome is recorded; it was not the last word, or `recorded` follows."""
        self.outcomes.pop((key, attempt), None)
        entry = self.entries.get(key)
        if entry is not None and entry.phase == "recording" and not entry.is_answered:
            self._ready(entry)

    def recorded(self, key: str) -> bool:
        """The request has an outcome that counts; whether that is news here."""
        entry = self.entries.get(key)
        if entry is None or entry.is_answered:
            return False
        entry.phase, entry.is_answered, entry.until = "recording", True, None
        return True

    def withdrawn(self, numbers: Container[int]) -> None:
        """Of the questions to people, these are left."""
        for key, entry in list(self.entries.items()):
            if entry.request.is_question and not any(number in numbers for number in entry.numbers):
                del self.entries[key]

    def delivered(self, key: str) -> list[int]:
        """The questions that an outcome answers; the key is done with."""
        entry = self.entries.pop(key, None)
        self.begun.pop(key, None)
        self.timeouts.pop(key, None)
        return [] if entry is None else entry.numbers

    def overdue(self, now: float) -> Iterator[Act]:
        """What has taken too long: an attempt, which is unknown then, not failed; a reconcile function."""
        for entry in list(self.entries.values()):
            if entry.until is None or now < entry.until:
                continue
            if entry.phase == "running":
                yield self._too_long(entry, now)
            elif entry.phase == "judging":
                trouble = f"its reconcile function has said nothing for {RECONCILE_SECONDS:g} s"
                act = self.given_up(entry.request.key, entry.attempt, trouble)
                assert act is not None
                yield act

    def _too_long(self, entry: Entry, now: float) -> Act:
        key = entry.request.key
        times = self.timeouts[key] = self.timeouts.get(key, 0) + 1
        if times < TIMEOUTS:
            return self._judge(entry, entry.attempt, now)
        entry.phase, entry.until = "halting", None
        hanging = sum(each == key for each, _ in self.calls)
        entry.trouble = f"it took too long {times} times, and {hanging} of its calls have not returned"
        return Act("halt", key, entry.attempt)

    @property
    def next_due(self) -> float | None:
        """When the next attempt, or reconcile function, has taken too long."""
        return min((e.until for e in self.entries.values() if e.until is not None), default=None)
