"""The lineages of a store as people see them: where each comes from, and what has come of it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cutline.storage import CheckpointRow, Store
from cutline.storage.catalog import LineageRow, Place
from cutline.storage.collect import EDITED, FORKED, IMPORTED, MADE_WHOLE

from .cli_store import place_of

__all__ = ("branches", "lineage_docs", "told")


def lineage_docs(store: Store, systems: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """By system, in the order of their making.

    Of each: ``how`` it was made (beginning, restore, edit, fork, import; run: the opening of one of the last
    three), ``origin``, ``about`` (what is known of the making), epoch, what becomes of its effects,
    checkpoints, whether it has come up (a start may have failed), and whether the system goes on there.
    """
    found = {}
    for system in systems:
        rows = store.catalog.checkpoints(system, damage=[])
        lines = store.catalog.lineages(system)
        head, closed = store.catalog.head_lineage(system), store.catalog.unopened(system)
        found[system] = [
            {
                **_doc(line, [row for row in rows if row.lineage == line.lineage]),
                "effects": store.catalog.effects_rule(line.lineage),
                "opened": line.lineage not in closed,
                "goes_on": line.lineage == head,
            }
            for line in lines
        ]
    return found


def _doc(line: LineageRow, cuts: Sequence[CheckpointRow]) -> dict[str, Any]:
    how, about = _making(line, cuts)
    origin: Place | None = line.origin
    if how == "fork" and about:
        origin = about["lineage"], about["checkpoint"]
    return {
        "lineage": line.lineage,
        "system": line.system,
        "how": how,
        "origin": place_of(origin),
        "about": about,
        "epoch": line.epoch,
        "next_checkpoint": line.next_checkpoint,
        "checkpoints": [
            {"id": row.checkpoint, "kind": row.kind, "label": row.label, "decided_at": row.decided_at}
            for row in cuts
        ],
    }


def _making(line: LineageRow, cuts: Sequence[CheckpointRow]) -> tuple[str, dict[str, Any]]:
    """In a word, and what the first cut of one that was made whole says of it."""
    facts: Mapping[str, Any] = cuts[0].summary if cuts else {}
    ways = (IMPORTED, "import", "imported"), (EDITED, "edit", "edited"), (FORKED, "fork", "forked")
    for prefix, how, field in ways:
        if line.lineage.startswith(prefix):
            return how, dict(facts.get(field, {}))
    if line.origin is None:
        return "beginning", {}
    return ("run" if line.origin[0].startswith(MADE_WHOLE) else "restore"), {}


def branches(docs: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str | None, list[Mapping[str, Any]]]:
    """Which lineages come from which, over all systems; None: from none of these."""
    known = {doc["lineage"] for each in docs.values() for doc in each}
    found: dict[str | None, list[Mapping[str, Any]]] = {}
    for each in docs.values():
        for doc in each:
            above = (doc["origin"] or "").rpartition("/")[0]
            found.setdefault(above if above in known else None, []).append(doc)
    return found


def told(doc: Mapping[str, Any]) -> Iterator[str]:
    """What is said of a lineage in one line, in parts."""
    cuts = doc["checkpoints"]
    yield f"{len(cuts)} checkpoint{'' if len(cuts) == 1 else 's'}"
    if cuts:
        taken = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(cuts[-1]["decided_at"]))
        yield f"{cuts[0]['id']} to {cuts[-1]['id']}, the last of {taken}"
    yield from _came(doc)
    labels = ", ".join(f"{cut['label']} ({cut['id']})" for cut in cuts if cut["label"])
    if labels:
        yield f"labelled {labels}"
    if doc["effects"] != "live":
        yield f"effects {doc['effects']}"
    if not doc["opened"]:
        yield "never came up"
    if doc["goes_on"]:
        yield "goes on"


def _came(doc: Mapping[str, Any]) -> Iterator[str]:
    how, about = doc["how"], doc["about"]
    point = (doc["origin"] or "").rpartition("/")[2]
    if how == "import":
        yield f"import from {about.get('url', 'elsewhere')}"
    elif point:
        yield f"{how} from {point}"
    changed = about.get("participants" if how == "edit" else "edited", ())
    if changed:
        yield f"changed {', '.join(changed)}"
    if about.get("replayed"):
        yield f"{about['replayed']} inputs given"
