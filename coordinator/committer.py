"""The durable half of a commit: the manifest, the row, and what to do when the catalog does not answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cutline.barrier.commit import Decide, ManifestDurable, RowDecided, WriteManifest
from cutline.barrier.cut import in_flight
from cutline.errors import Fenced, StorageError
from cutline.participant.driver import DRIVER
from cutline.storage import Manifest, MemberImage
from cutline.storage.image import ImageRef

if TYPE_CHECKING:
    from .runner import Coordinator

__all__ = ("Committer",)


# Of a report that does not say so.
_UNKNOWN: Mapping[str, Any] = {"people": 0, "timer": None, "still": False}


class Committer:
    """Performs what the commit automaton decides about durable things."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.c = coordinator
        # Fates that the catalog kept to itself.
        self.undecidable: dict[int, Decide] = {}

    def compose(self, action: WriteManifest) -> ManifestDurable:
        """The manifest of a cut that has proved itself, and the figures of its row."""
        c = self.c
        checkpoint = action.checkpoint
        entry = c.open[checkpoint]
        images = {
            member.name: MemberImage(member.birth, ImageRef.from_doc(report["image"]))
            for member, report in action.reports.items()
        }
        driver = next((member for member in action.reports if member.name == DRIVER), None)
        if driver is not None:
            entry.driver = action.claims[driver], action.reports[driver]["facts"]
        facts = {member.name: report["facts"] for member, report in action.reports.items()}
        entry.summary = {
            "participants": len(images),
            "in_flight_messages": in_flight(action.claims, action.departed),
            "changed_bytes": sum(fact["changed_bytes"] for fact in facts.values()),
            "written_bytes": sum(fact["written_bytes"] for fact in facts.values()),
            "state_bytes": sum(fact["state_bytes"] for fact in facts.values()),
            # One machine's monotonic clock is the same in all its processes; over several it means nothing.
            "capture_delay_ms": (max(fact["captured_at"] for fact in facts.values()) - entry.began) * 1000,
            "stall_ms_max": max(fact["stall_ms"] for fact in facts.values()),
            # Of a stall: finding out what changed.
            "detect_ms_max": max(fact["detect_ms"] for fact in facts.values()),
            "handled": {name: fact["handled"] for name, fact in facts.items()},
            "tracked": {name: fact["tracked"] for name, fact in facts.items() if fact.get("tracked")},
            # Entries of Maps and Logs, and how many of them each capture has to look at.
            "containers": {name: held for name, fact in facts.items() if (held := fact.get("containers"))},
            "handlers": {name: fact["handlers"] for name, fact in facts.items()},
            # Why the changes in some arrays are not found by the kernel's account.
            **({"why": whys} if (whys := _whys(facts)) else {}),
            # Who had emitted what is not known to be published: sinks, and the last number for each.
            **({"emits": emits} if (emits := _emits(facts)) else {}),
            "extra": {name: fact["extra"] for name, fact in facts.items() if "extra" in fact},
            **({"early": True} if entry.start.early else {}),
            # How many records of the driver's log it has behind it; see `input_retention`.
            **({"input": behind} if (behind := facts.get(DRIVER, {}).get("input")) is not None else {}),
            # So that a request that is made again of the next coordinator is known to have been done.
            "asked": [ticket.asked for ticket in entry.start.tickets if ticket.asked],
        }
        entry.summary["waits"] = _waiting(facts, entry.summary["in_flight_messages"])
        entry.manifest = Manifest(
            system=c.settings.system,
            lineage=c.lineage,
            checkpoint=checkpoint,
            epoch=c.epoch,
            kind="full" if entry.start.full else "delta",
            label=entry.start.label,
            parent_checkpoint=c.parent,
            created_at=c.wall(),
            images=images,
            channels={
                "in_flight_messages": entry.summary["in_flight_messages"],
                "members": {
                    seat.member.name: {
                        "class_name": seat.class_name,
                        "options": dict(seat.options),
                        "spawn": list(seat.spawn) if seat.spawn is not None else None,
                    }
                    for seat in c.roster
                    if seat.member.name in images
                },
                "departed": c.departures.to_doc(action.departed),
            },
        )
        return ManifestDurable(checkpoint)

    def decide(self, action: Decide) -> RowDecided | None:
        """The row. Nothing is said to anybody before it says so."""
        c = self.c
        entry = c.open[action.checkpoint]
        try:
            if action.commit:
                assert entry.manifest is not None
                entry.summary["duration_ms"] = (c.now() - entry.began) * 1000
                # The record beside the manifest is written by the sweep, after everybody has heard.
                c.store.commit_cut(c.lease, entry.manifest, entry.summary, c.wall(), record=False)
                return RowDecided(action.checkpoint, True, "")
            c.catalog.abort(c.lease, c.lineage, action.checkpoint, action.reason, c.wall())
            return RowDecided(action.checkpoint, False, action.reason)
        except Fenced as error:
            c.ended = f"fenced: {error}"
            return None
        except StorageError as error:
            return self._undecidable(action, error)

    def _undecidable(self, action: Decide, error: StorageError) -> RowDecided | None:
        """The write failed: only the row says whether it happened after all."""
        c = self.c
        try:
            fate = c.catalog.fate(c.lineage, action.checkpoint)
            if fate == "begun":
                c.catalog.abort(c.lease, c.lineage, action.checkpoint, str(error), c.wall())
                fate = "aborted"
        except StorageError as second:
            # The catalog cannot be asked. The participants go on without this checkpoint; a later tick or
            # the next coordinator reads the row and decides.
            c.notice("catalog_unreachable", text=str(second))
            self.undecidable[action.checkpoint] = action
            return None
        return RowDecided(action.checkpoint, fate == "committed", str(error))

    def ask_again(self) -> None:
        """What could not be asked of the catalog is asked now."""
        c = self.c
        for checkpoint, action in list(self.undecidable.items()):
            try:
                fate = c.catalog.fate(c.lineage, checkpoint)
                if fate == "begun":
                    c.catalog.abort(c.lease, c.lineage, checkpoint, "the catalog was away", c.wall())
                    fate = "aborted"
            except StorageError:
                continue
            del self.undecidable[checkpoint]
            c.feed(RowDecided(action.checkpoint, fate == "committed", "the catalog was away"))


def _waiting(facts: Mapping[str, Mapping[str, Any]], in_flight: int) -> dict[str, Any]:
    """Who waits for how many people, the earliest timer, and whether all of them wait for these alone.

    Nothing but an answer, a timer or the program can end that, so what the cut shows is true from then on.
    """
    waits = {name: fact.get("waits", _UNKNOWN) for name, fact in facts.items()}
    timers = [said["timer"] for said in waits.values() if said["timer"] is not None]
    return {
        "people": {name: said["people"] for name, said in waits.items() if said["people"]},
        "timer": min(timers, default=None),
        "still": not in_flight and all(said["still"] for said in waits.values()),
    }


def _whys(facts: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {name: fact["why"] for name, fact in facts.items() if fact.get("why")}


def _emits(facts: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {name: fact["emits"] for name, fact in facts.items() if "emits" in fact}
