"""Consistent global checkpoints of running multi-agent systems, and the way back to them.

This is the front door and holds nothing but names. Each loads the module it lives in when it is first used,
so that a worker that needs ``cutline.barrier`` alone pays for nothing else, and so that this face can stand
above the rooms while ``cutline.errors`` stands below them.

A new name is one line in ``_HOME`` and its twin for type checkers; tests/test_exports.py tells if one lacks.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cutline import errors as errors
    from cutline.coordinator.answers import get as get
    from cutline.coordinator.answers import wait as wait
    from cutline.coordinator.connect import connect as connect
    from cutline.coordinator.forks import fork as fork
    from cutline.coordinator.loading import Cut as Cut
    from cutline.coordinator.loading import load as load
    from cutline.coordinator.people import Question as Question
    from cutline.coordinator.people import answer as answer
    from cutline.coordinator.people import pending as pending
    from cutline.coordinator.system import System as System
    from cutline.coordinator.system import start as start
    from cutline.participant.actor import actor as actor
    from cutline.participant.actor import wrap as wrap
    from cutline.participant.departing import leave as leave
    from cutline.participant.effect_request import Done as Done
    from cutline.participant.effect_request import NotDone as NotDone
    from cutline.participant.effect_request import effect as effect
    from cutline.participant.handle import Handle as Handle
    from cutline.participant.handle import Ref as Ref
    from cutline.participant.handle import me as me
    from cutline.participant.log import Log as Log
    from cutline.participant.map import Map as Map
    from cutline.participant.output import emit as emit
    from cutline.participant.person import ask_person as ask_person
    from cutline.participant.renames import renamed as renamed
    from cutline.participant.spawning import spawn as spawn
    from cutline.participant.timers import after as after
    from cutline.participant.timers import sleep as sleep
    from cutline.participant.transient import transient as transient
    from cutline.storage.sinks import FileSink as FileSink
    from cutline.storage.sinks import PostgresSink as PostgresSink

_HOME = {
    "Cut": "cutline.coordinator.loading",
    "Done": "cutline.participant.effect_request",
    "FileSink": "cutline.storage.sinks",
    "Handle": "cutline.participant.handle",
    "Log": "cutline.participant.log",
    "Map": "cutline.participant.map",
    "NotDone": "cutline.participant.effect_request",
    "PostgresSink": "cutline.storage.sinks",
    "Question": "cutline.coordinator.people",
    "Ref": "cutline.participant.handle",
    "System": "cutline.coordinator.system",
    "actor": "cutline.participant.actor",
    "after": "cutline.participant.timers",
    "answer": "cutline.coordinator.people",
    "ask_person": "cutline.participant.person",
    "connect": "cutline.coordinator.connect",
    "effect": "cutline.participant.effect_request",
    "emit": "cutline.participant.output",
    "errors": "cutline.errors",
    "fork": "cutline.coordinator.forks",
    "get": "cutline.coordinator.answers",
    "load": "cutline.coordinator.loading",
    "leave": "cutline.participant.departing",
    "me": "cutline.participant.handle",
    "pending": "cutline.coordinator.people",
    "renamed": "cutline.participant.renames",
    "sleep": "cutline.participant.timers",
    "spawn": "cutline.participant.spawning",
    "start": "cutline.coordinator.system",
    "transient": "cutline.participant.transient",
    "wait": "cutline.coordinator.answers",
    "wrap": "cutline.participant.actor",
}

__all__ = tuple(_HOME)


def _load(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        face = sys.modules[__name__]
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name, obj=face)
    module = import_module(home)
    value = module if home == f"{__name__}.{name}" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


# Hidden from type checkers: to them a module with __getattr__ has every attribute, misspelt ones too.
if not TYPE_CHECKING:
    __getattr__ = _load
