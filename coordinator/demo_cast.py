"""Who takes part in ``cutline demo``, how they are introduced, and what their results add up to.

Kept apart from the agents, which know nothing of each other but handles, and from the runtime: the demo
spawns what `cast` lists, calls ``connect`` with what `introductions` lists, waits for all of that (else a
file may arrive before the acquaintance), and tells each of `starters` its ``step``. When `all_done`, it asks
each for its ``result`` and adds them up with `combine`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .demo_agents import MASK64, Librarian, Linker, Ranker, Reader, Scale

__all__ = ("all_done", "cast", "combine", "fraction_done", "introductions", "starters")


def cast(scale: Scale, corpus: str, paths: Sequence[str]) -> list[tuple[str, type, tuple[Any, ...]]]:
    """(name, class, constructor's arguments). Raises ValueError for an empty job."""
    if not paths or min(scale.passes, scale.readers, scale.iterations) < 1 or scale.buckets < 2:
        raise ValueError(f"nothing to do: {len(paths)} files, {scale}")
    return [
        ("librarian", Librarian, (corpus, tuple(paths))),
        *((f"reader-{number}", Reader, (number, scale)) for number in range(scale.readers)),
        ("linker", Linker, (tuple(paths),)),
        ("ranker", Ranker, (scale, len(paths))),
    ]


def introductions(handles: Mapping[str, Any]) -> list[tuple[str, tuple[Any, ...]]]:
    """(name, arguments of its ``connect``); the librarian only answers and needs to know nobody."""
    librarian, linker, ranker = handles["librarian"], handles["linker"], handles["ranker"]
    readers = [handles[name] for name in starters(handles)]
    return [
        ("ranker", (ranker, librarian)),
        ("linker", (linker, ranker, readers)),
        *((name, (handles[name], librarian, linker, ranker)) for name in starters(handles)),
    ]


def starters(names: Mapping[str, Any]) -> list[str]:
    """The readers, in the order of their numbers."""
    return sorted((name for name in names if name.startswith("reader-")), key=lambda name: int(name[7:]))


def all_done(progress: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether nothing is left to do, from every participant's ``progress()``."""
    return all(each["done"] for each in progress.values())


def fraction_done(progress: Mapping[str, Mapping[str, Any]]) -> float:
    """0.0 to 1.0. The ranker's ticks come last in the life of a file, so they are what counts."""
    ranker = progress["ranker"]
    return min(1.0, float(ranker["ticked"]) / float(ranker["ticks"]))


def combine(results: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """One result out of the participants': numbers of one name are added, so who did what does not show.

    ``messages`` is {method: [number handled, sum of weights, sum of squares]}, ``handlers`` that of all;
    ``progress`` and ``result`` are not counted, because how often they are asked is up to the asker.
    """
    total: dict[str, Any] = {}
    messages: dict[str, list[int]] = {}
    for name in sorted(results):
        for key, value in results[name].items():
            if key == "messages":
                for kind, row in value.items():
                    seen = messages.get(kind, [0, 0, 0])
                    messages[kind] = [(old + new) & MASK64 for old, new in zip(seen, row, strict=True)]
            elif isinstance(value, int) and key in total:
                total[key] += value
            else:
                total[key] = value
    total["messages"] = dict(sorted(messages.items()))
    total["handlers"] = sum(row[0] for row in messages.values())
    return total
