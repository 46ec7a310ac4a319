"""One actor's side: its handlers and calls, capturing and restoring its state, its links, its host.

Read in this order: `runner` (the shell and its loop), `desk` (calls in both directions) with `async_call`
and `replay_loop` (handlers that survive a crash), `shutter` and `capture` (images), `restore`, `liaison` (the
coordinator), `peers` and `transport` (bytes), `driver` (the user's program as a participant), and the hosts.
"""

from __future__ import annotations

__all__: tuple[str, ...] = ()
