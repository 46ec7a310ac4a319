"""The system's side: membership, checkpoints, commit, losses and recovery, and what the user holds.

Read in this order: `system` (what the user calls), `runner` (the shell round the commit automaton),
`recover` and `service` (its other halves), `trigger`, `roster`, `launch`, then `process` and `supervise` (who
starts whom), `client` and `cli`, and the demo.
"""

from __future__ import annotations

__all__: tuple[str, ...] = ()
