"""What the world says about a run of the team, compared with one that nobody has disturbed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .team_play import Seen
from .team_world import MONEY

__all__ = ("Check", "figures", "judge")

_ASKED = ("cutline.coordinator.team_tools:pay", "cutline.coordinator.team_tools:send")


@dataclass(frozen=True)
class Check:
    """``what`` was ``found``, and ``wanted``; they are to be equal."""

    what: str
    found: Any
    wanted: Any

    @property
    def holds(self) -> bool:
        """Whether they are."""
        return bool(self.found == self.wanted)


def figures(seen: Seen) -> dict[str, Any]:
    """What was counted."""
    calls = Counter(entry["about"]["key"] for entry in seen.requests)
    paid = Counter(_invoice(entry["about"]) for entry in seen.requests if entry["what"] == "pay")
    by_key: dict[str, list[Mapping[str, Any]]] = {}
    for doc in seen.attempts:
        if doc["function"] in _ASKED:
            by_key.setdefault(doc["key"], []).append(doc)
    unknown = {key: sum(_is_unknown(doc) for doc in docs) for key, docs in by_key.items()}
    return {
        "kills": dict(Counter(kill["kind"] for kill in seen.kills)),
        "starts": seen.starts,
        "seconds": round(seen.seconds, 1),
        "invoices": len(paid),
        "doubled": sorted(invoice for (invoice, _), times in paid.items() if times > 1),
        "requests": len(seen.requests),
        "operations": sum(any(doc["state"] == "done" for doc in docs) for docs in by_key.values()),
        # Calls of which nobody knew what had become of them, and what was done about that.
        "unknown": sum(unknown.values()),
        "asked the world": sum(doc["by"] == "reconcile" for docs in by_key.values() for doc in docs),
        "sent again": sum(min(calls[key] - 1, unknown[key]) for key in by_key if calls[key] > 1),
        "unresolved": sorted(
            key for key, docs in by_key.items() if not any(d["state"] == "done" for d in docs)
        ),
        "questions": len(seen.questions),
        "answers taken": seen.answers.count("taken"),
    }


def _is_unknown(doc: Mapping[str, Any]) -> bool:
    """Of an attempt: whether its process was gone before anybody knew what became of it."""
    return bool(doc["state"] == "unknown" or doc["by"] == "reconcile")


def _invoice(about: Mapping[str, Any]) -> tuple[str, int]:
    return about["invoice"], about["cents"]


def judge(seen: Seen, deaths: int, alone: Seen) -> list[Check]:
    """All that must hold. ``alone``: the run that nobody has disturbed."""
    found = figures(seen)
    paid = Counter(_invoice(entry["about"]) for entry in seen.requests if entry["what"] == "pay")
    due = {_invoice(entry["about"]) for entry in alone.requests if entry["what"] == "pay"}
    cents = sum(cents for _, cents in due)
    return [
        Check("kills", len(seen.kills), deaths),
        Check("what kept it from its end", seen.trouble, []),
        Check("invoices paid other than once", sorted(x[0] for x in due | paid.keys() if paid[x] != 1), []),
        Check("invoices", found["invoices"], len(due)),
        Check("operations", found["operations"], len(alone.requests)),
        Check(
            "requests: operations, and those of unknown outcome sent again",
            found["requests"],
            found["operations"] + found["sent again"],
        ),
        Check("effects without an outcome", found["unresolved"], []),
        Check("bookings at the bank", seen.booked, sorted(due)),
        Check("cents left at the bank", seen.left, MONEY - cents),
        Check("times the approval was asked", found["questions"], 1),
        Check("answers taken", found["answers taken"], 1),
        Check("second answers refused", len(seen.answers) - found["answers taken"] > 0, True),
        Check(
            "final report as of the undisturbed run",
            seen.report is not None and seen.report == alone.report,
            True,
        ),
    ]
