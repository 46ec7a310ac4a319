"""What the catalog keeps of effects, and what a claim is answered (pure).

Each attempt to carry out a request is a row: its *claim*, written before the call, and its outcome, written
before anybody hears of it. Rows are found by the request's key, so a request that comes again after a
rollback finds what became of it. A claim without an outcome is *unknown*: the call may or may not have
happened.

Who claims an attempt that an ended process has left open is told so and decides by the request's policy; as
long as that process may still act, he waits. Nothing here looks at a clock or a process: the caller says who
is surely gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple

__all__ = (
    "BLOCK",
    "LIVE",
    "NO_PROCESS",
    "ORIGIN",
    "PERSON",
    "RULES",
    "RECORDED",
    "Rule",
    "State",
    "Claim",
    "EffectRow",
    "Ending",
    "Verdict",
    "answers_after",
    "final_of",
    "judge",
    "raised_of",
    "takes",
)

# What becomes of a lineage's effects: commit-gated ones run; they wait until somebody allows them; all get
# what became of the same request in the lineage that it forked off, and nothing is called.
Rule = Literal["live", "block", "recorded"]
LIVE: Rule = "live"
BLOCK: Rule = "block"
RECORDED: Rule = "recorded"
RULES: tuple[Rule, ...] = (LIVE, BLOCK, RECORDED)
# By whom an outcome is that was taken over from there.
ORIGIN = "origin"
# The executor of what no process carries out.
NO_PROCESS: Mapping[str, Any] = {"pid": 0, "started": 0.0, "machine": ""}
# The function of what is asked of a person: nothing is called, and there is a row when it has an outcome.
PERSON = "@person"

# ``""``: claimed, and nothing is known. ``again``: it raised, and is to be tried again. ``skipped``: surely
# not called. ``unknown``: another attempt has taken its place.
State = Literal["", "done", "error", "again", "skipped", "unknown"]
FINAL = ("done", "error")


@dataclass(frozen=True, slots=True)
class EffectRow:
    """One attempt. Times in seconds since 1970.

    ``checkpoint``: the committed cut that the claim was made from, 0 for a repeatable one. ``launch`` and
    ``executor`` name the process that may call. ``deadline``: after it the attempt is over, whatever the
    process does; None: only the end of the process says so. ``answer``: packed, unless it is in a ``blob``
    (key, digest, bytes). ``done``: a committed cut that has the outcome.
    """

    lineage: str
    key: str
    attempt: int
    participant: str
    birth: int
    number: int
    function: str
    digest: bytes
    repeatable: bool
    checkpoint: int
    since: int
    launch: str
    executor: Mapping[str, Any]
    epoch: int
    token: int
    claimed_at: float
    deadline: float | None
    state: State = ""
    answer: bytes | None = None
    blob: tuple[str, bytes, int] | None = None
    by: str = ""
    decided_at: float | None = None
    done: int | None = None

    def to_doc(self) -> dict[str, Any]:
        """All but the lineage, as an export has it."""
        return {field.name: getattr(self, field.name) for field in fields(self)[1:]}

    @classmethod
    def from_doc(cls, lineage: str, doc: Mapping[str, Any]) -> EffectRow:
        """The reverse, in some lineage. Raises TypeError, KeyError for what is no such document."""
        blob = None if doc["blob"] is None else tuple(doc["blob"])
        return cls(lineage, **{**doc, "blob": blob})

    @property
    def is_final(self) -> bool:
        """Whether its outcome is the request's."""
        return self.state in FINAL

    def __str__(self) -> str:
        if self.function == PERSON:
            return f"the answer to question {self.participant}#{self.number}"
        return f"{self.participant}#{self.number} {self.function} (attempt {self.attempt})"


class Claim(NamedTuple):
    """Somebody wants to carry out a request. ``after``: the attempt that its policy has been asked about, and
    said that another one may be made; 0: none."""

    key: str
    participant: str
    birth: int
    number: int
    function: str
    digest: bytes
    repeatable: bool
    checkpoint: int
    since: int
    launch: str
    executor: Mapping[str, Any]
    epoch: int
    after: int = 0
    timeout: float | None = None


class Ending(NamedTuple):
    """What became of an attempt. ``launch`` is the process that claimed it, or empty for a person's word."""

    key: str
    attempt: int
    launch: str
    state: State
    answer: bytes | None = None
    blob: tuple[str, bytes, int] | None = None
    by: str = ""


class Verdict(NamedTuple):
    """The answer to a claim: ``granted`` (call, this attempt), ``recorded`` (it has an outcome), ``unknown``
    (ask the policy about that attempt), ``wait`` (a process may still act), ``other`` (the key belongs to
    another request), ``stale`` (of an older epoch, or its cut is not committed)."""

    kind: Literal["granted", "recorded", "unknown", "wait", "other", "stale"]
    attempt: int = 0
    raised: int = 0
    row: EffectRow | None = None
    # Whether the attempt is to be written, and the one before it closed.
    fresh: bool = False
    closes: EffectRow | None = None


def answers_after(rows: Iterable[EffectRow], checkpoint: int) -> list[EffectRow]:
    """Outcomes of questions that a checkpoint may hold and no checkpoint up to it knows the outcome of."""
    return [
        row
        for row in rows
        if row.function == PERSON
        and row.is_final
        and row.since <= checkpoint
        and (row.done is None or row.done > checkpoint)
    ]


def final_of(rows: Sequence[EffectRow]) -> EffectRow | None:
    """The attempt whose outcome counts: the first that was recorded."""
    return next((row for row in rows if row.is_final), None)


def raised_of(rows: Sequence[EffectRow]) -> int:
    """How many attempts have raised and are to be tried again."""
    return sum(row.state == "again" for row in rows)


def judge(rows: Sequence[EffectRow], claim: Claim, is_over: Callable[[EffectRow], bool]) -> Verdict:
    """What a claim is answered. ``rows``: those of its key, by attempt; ``is_over``: whether the process of
    an attempt can surely not act any more, or its deadline has passed."""
    if any(row.digest != claim.digest for row in rows):
        return Verdict("other", row=rows[0])
    final = final_of(rows)
    raised = raised_of(rows)
    if final is not None:
        return Verdict("recorded", final.attempt, raised, final)
    if not rows:
        return Verdict("granted", 1, fresh=True)
    last = rows[-1]
    following = Verdict("granted", last.attempt + 1, raised, fresh=True)
    if last.state:
        return following
    own = last.launch == claim.launch
    if claim.repeatable and not own:
        return following._replace(closes=last)
    if claim.after == last.attempt:
        # Its own policy has spoken: of an attempt of its own that timed out, or of one that is over.
        return following._replace(closes=last) if own or is_over(last) else Verdict("wait", row=last)
    if own:
        # The answer was lost, or the claim was made before a rollback: it knows whether it has called.
        return Verdict("granted", last.attempt, raised, last)
    return Verdict("unknown" if is_over(last) else "wait", last.attempt, raised, last)


def takes(rows: Sequence[EffectRow], ending: Ending) -> EffectRow | None:
    """The attempt that an ending is about, if it is news: late, doubled and foreign ones change nothing."""
    if final_of(rows) is not None:
        return None
    row = next((row for row in rows if row.attempt == ending.attempt), None)
    if row is None or (ending.launch and ending.launch != row.launch):
        return None
    if row.state == "" or (row.state in ("unknown", "skipped") and ending.state in FINAL):
        # The call knows better than a policy, or a person who has said that it was not made.
        return row
    return None
