"""Several documents as one, for one report: the peers are measured in an environment of their own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from bench.bench_same_vs_same import GROUP as NOISE
from bench.packages import together

__all__ = ("merged",)


def merged(documents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """All rows of all documents; the machine is that of the first, with the packages of all.

    What one of them has measured is not missing because another has not; a row that two of them have is that
    of the later one, also where the earlier one had an error; ``runs`` are those of the last that has some.
    The baselines against themselves are told apart by their places, so a noisy run makes the whole noisy.

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
    measured = list(dict.fromkeys(name for document in documents for name in _measured(document)))
    runs = [{"runs": document["runs"]} for document in documents if "runs" in document]
    errors = [
        entry
        for place, document in enumerate(documents)
        for entry in document["errors"]
        if not any(_has(later, entry["name"]) for later in documents[place + 1 :])
    ]
    named = {*rows, *measured, *(entry["name"] for entry in errors)}
    missing = {entry["name"]: entry for document in documents for entry in document["missing"]}
    return {
        "machine": {
            **first["machine"],
            "load": documents[-1]["machine"]["load"],
            "packages": together(document["machine"]["packages"] for document in documents),
        },
        "rows": list(rows.values()),
        "missing": [entry for name, entry in missing.items() if name not in named],
        "errors": errors,
        "micro": [part for document in documents for part in document["micro"]],
        "quick": any(document["quick"] for document in documents),
        "measured": measured,
        "seconds": dict(seconds),
        **(runs[-1] if runs else {}),
    }


def _has(document: Mapping[str, Any], name: str) -> bool:
    """Whether it has measured that row, or that module."""
    return name in _measured(document) or any(row["name"] == name for row in document["rows"])


def _measured(document: Mapping[str, Any]) -> Sequence[str]:
    """The modules that came to their end. Documents of before say only what took time and what is missing."""
    if "measured" in document:
        found: Sequence[str] = document["measured"]
        return found
    missing = {entry["name"] for entry in (*document["missing"], *document["errors"])}
    return [name for name in document["seconds"] if name not in missing]
