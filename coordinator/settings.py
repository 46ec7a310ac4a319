"""What a system is run with, and what the coordinator keeps of what was asked of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cutline.barrier import Member
from cutline.barrier.cut import Claims
from cutline.participant.keys import KEY_SECONDS
from cutline.participant.outbox import OUTBOX_BYTES
from cutline.participant.room import WAITING_INPUTS
from cutline.participant.spill import SPILL_BYTES
from cutline.participant.transport import Link
from cutline.storage import Manifest

from .trigger import Start

__all__ = ("OpenCheckpoint", "TAKING_PART", "TICK", "Settings", "Ticket")

# Seconds between two looks at what only time brings.
TICK = 0.2
# Phases of who is in the rosters: a parked driver is, and the coordinator answers for it.
TAKING_PART = ("running", "parked")


@dataclass
class Settings:
    """What a system is run with."""

    system: str
    interval: float | None = 5.0
    # None: as `trigger.usual_pause` has it.
    min_pause: float | None = None
    # None: chains are kept short by folding alone (`storage.folding`).
    full_every: int | None = None
    keep: int = 10
    checkpoint_timeout: float = 60.0
    lost_after: float = 300.0
    rollback_grace: float = 30.0
    max_deaths: int = 20
    spawn_timeout: float = 60.0
    by_reference: int = 1 << 20
    # On Ray: hosts that stand by for participants that are lost. None: as `spares` has it.
    spares: int | None = None
    outbox_bytes: int = OUTBOX_BYTES
    spill_bytes: int = SPILL_BYTES
    # Of the driver: seconds for which idempotency keys are remembered; inputs that may wait.
    remember_keys: float = KEY_SECONDS
    waiting_inputs: int = WAITING_INPUTS
    # Where the system outlives its driver's process: seconds until it stops without one. None: it does not.
    driver_grace: float | None = None
    break_mode: str = ""
    check_awaits: bool = False
    # By name, what `coordinator.sinks.chosen_sinks` made of them.
    sinks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass
class Ticket:
    """Who asked for something, and under which number the reply goes back.

    `asked` names the request over lost links and coordinators; empty for those that are not repeated.
    """

    link: Link | None
    number: int
    asked: str = ""


@dataclass
class OpenCheckpoint:
    """What the shell keeps of an undecided checkpoint."""

    start: Start
    began: float
    # Those who take part, so that what they say of each other need not make them anew.
    members: Mapping[tuple[str, int], Member] = field(default_factory=dict)
    manifest: Manifest | None = None
    summary: dict[str, Any] = field(default_factory=dict)
    # What the driver said of its channels and of itself in this cut.
    driver: tuple[Claims, Mapping[str, Any]] | None = None
