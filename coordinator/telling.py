"""What a program's terminal shows of its system."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from cutline.errors import BelowHorizon, CannotRestore, EffectUnknown, SystemHalted

from .parting import ARRIVED

__all__ = ("lines_about", "tell_people", "to_be_mended")

_log = logging.getLogger("cutline")


def tell_people(quiet: bool) -> None:
    """Lines about what happens go to standard error, unless the program has a logger of its own."""
    if not quiet and not _log.handlers and not logging.getLogger().handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("cutline: %(message)s"))
        _log.addHandler(handler)
        _log.setLevel(logging.INFO)


def to_be_mended(error: BaseException) -> BaseException | None:
    """What keeps a system from starting and is its user's to mend: told as that, not as a halt."""
    cause = error.__cause__
    told = isinstance(error, SystemHalted) and isinstance(cause, (BelowHorizon, CannotRestore, EffectUnknown))
    return cause if told else None


def lines_about(doc: Mapping[str, Any]) -> Iterator[str]:
    """The lines for people about a notice of the coordinator; most are worth none."""
    what = doc["what"]
    if what == "recovered" and doc["causes"]:
        lost = ", ".join(doc["lost"]) or "nobody"
        yield (
            f"{lost} lost, all back at checkpoint {doc['checkpoint']} ({doc['age']:.1f} s old), "
            f"{doc['in_flight']} in-flight messages re-delivered, going on"
        )
    elif what == "recovered" and doc["reason"] not in ("", "resume", ARRIVED):
        yield f"{doc['reason']}: all back at checkpoint {doc['checkpoint']}, going on"
    elif what == "effects_blocked":
        yield (
            f"effects of {doc['participant']} ({doc['function']}) are blocked, because this lineage is a "
            "fork: `cutline effects --allow` lets them run"
        )
    elif what == "effect_waits":
        yield (
            f"effect {doc['text']} was begun by a process of another machine, or before this one was booted, "
            "and nobody can see from here whether that process is gone. It has no timeout, so it waits: look "
            f"at the world, then say it with `cutline effects --resolve {doc['participant']}#{doc['number']}`"
        )
    elif what == "output_blocked":
        yield (
            f"what is emitted for {doc['sink']} is not published, because this lineage is a fork: `cutline "
            "effects --allow` lets it out"
        )
    elif what == "sink_missing":
        yield (
            f"something was emitted for a sink {doc['sink']!r} and is not published: the program has none of "
            "that name any more (sinks= of cutline.start). It is kept"
        )
    elif what == "sink_down":
        yield f"{doc['text']}; what was emitted is kept, and tried again"
    elif what == "sink_back":
        yield f"sink {doc['sink']!r} takes what was emitted again"
    elif what == "sink_changed":
        yield doc["text"]
    elif what == "damaged":
        yield f"passed over: {doc['text']}"
    elif what == "aborted":
        yield f"checkpoint {doc['checkpoint']} was aborted: {doc['reason']}"
    elif what == "spawn_failed":
        yield f"{doc['spawner']} spawned {doc['name']}, which did not come up: {doc['text']}"
    elif what == "left" and doc["unhandled"]:
        yield f"{doc['name']} has left; {doc['unhandled']} messages that it was told are dead letters"
    elif what == "undelivered":
        yield f"{doc['sender']} told {doc['name']}.{doc['method']}, nobody's name: a dead letter"
    elif what in ("catalog_unreachable", "sweep_failed"):
        yield f"{what.replace('_', ' ')}: {doc['text']}"
