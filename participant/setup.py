"""What a host knows about the participant it runs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cutline.barrier import Member

from .outbox import OUTBOX_BYTES

__all__ = ("Setup",)


@dataclass
class Setup:
    """What a host knows about the participant it runs."""

    system: str
    run: str
    member: Member
    class_name: str
    options: Mapping[str, Any]
    launch: str = ""
    pid: int = field(default_factory=os.getpid)
    started: float = 0.0
    check_awaits: bool = False
    # Bytes from which on arguments travel by reference where that can be; 0: never.
    by_reference: int = 0
    # Bytes that it sent and that are not released, from which on it takes no message.
    outbox_bytes: int = OUTBOX_BYTES
    # What `cutline.emit` can name: for each sink, what values it takes.
    sinks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    # The machine of a cluster that it runs on; empty where there is only one.
    node: str = ""
