"""The protocol and nothing else: pure state machines, events in, actions out.

No I/O, no clock, no thread, no randomness; it imports nothing of the other rooms. What can be got wrong
in a distributed way lives here, where a test can drive it through any schedule. Read in this order:
`messages`, `channel`, `snapshot`, `endpoint` (a participant's side), `cut`, `commit`, `recovery` (the
coordinator's side), `wire`.
"""

from __future__ import annotations

from . import actions, commit, cut, events, recovery, wire
from .channel import ChannelBroken, Incoming, Outgoing
from .endpoint import Endpoint
from .messages import ChannelTable, Frame, InPart, Mark, Member, Open, OutPart, Positions, Spawn, Stamp
from .snapshot import LocalSnapshot

__all__ = (
    "ChannelBroken",
    "ChannelTable",
    "Endpoint",
    "Frame",
    "InPart",
    "Incoming",
    "LocalSnapshot",
    "Mark",
    "Member",
    "Open",
    "OutPart",
    "Outgoing",
    "Positions",
    "Spawn",
    "Stamp",
    "actions",
    "commit",
    "cut",
    "events",
    "recovery",
    "wire",
)
