"""Several documents as one, for one report: the peers are measured in an environment of their own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from bench.bench_same_vs_same import GROUP as NOISE

__all__ = ("merged",)


def merged(documents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """All rows of all documents; the machine is that of the first.

    What one of them has measured is not missing because another has not; a row that two of them have is that
    of the later one. The baselines against themselves are told apart by their places, so a noisy run makes
    the whole noisy.

    Raises:
        ValueError: they were made on machines that differ.
    """
    first, *others = documents
    for key in ("processor", "cores", "kernel"):
        if any(other["machine"][key] != first["machine"][key] for other in others):
            raise ValueError(
                f"the documents were made on different machines: {key} differs; measure all of them on this "
                "one (`make bench-quick` comes first)"
            )
    rows = {row["name"]: row for row in first["rows"]}
    for place, other in enumerate(others, 2):
        for row in other["rows"]:
            name = row["name"] + (f"_run_{place}" if row["group"] == NOISE else "")
            rows[name] = {**row, "name": name}
    seconds: Counter[str] = Counter()
    for document in documents:
        seconds.update(document["seconds"])
    measured = set(rows) | {name for name, taken in seconds.items() if taken}
    missing = {entry["name"]: entry for document in documents for entry in document["missing"]}
    return {
        "machine": {**first["machine"], "load": documents[-1]["machine"]["load"]},
        "rows": list(rows.values()),
        "missing": [entry for name, entry in missing.items() if name not in measured],
        "errors": [entry for document in documents for entry in document["errors"]],
        "micro": [part for document in documents for part in document["micro"]],
        "quick": first["quick"],
        "seconds": dict(seconds),
    }
