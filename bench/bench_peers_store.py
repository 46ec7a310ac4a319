"""A durable step of an agent with a long history, in files: against LangGraph, DBOS, and a bare append.

See `bench.peers.threads` for how it is measured, and `bench_peers_store_postgres` for the same on a server.
"""

from __future__ import annotations

from bench.peers.threads import GROUP, Appending, PeerOf, Steps, compared
from bench.row import Missing, Row

__all__ = ("GROUP", "measure")

_LANGGRAPH, _DBOS = "bench.peers.langgraph_thread", "bench.peers.dbos_steps"
_RECORD = 250


def measure(*, rounds: int = 10, steps: int = 2_000) -> list[Row | Missing]:
    """The rows; see the module's head."""
    peers: dict[str, PeerOf] = {
        "append": ("write and fdatasync of as many bytes as a message has", lambda: Appending(_RECORD), None),
        "langgraph": ("LangGraph's SqliteSaver, reducer", lambda: Steps(_LANGGRAPH, "reducer"), 1.0),
        "langgraph_delta": ("LangGraph's SqliteSaver, DeltaChannel", lambda: Steps(_LANGGRAPH, "delta"), 1.0),
        "dbos": ("a step of DBOS on SQLite", lambda: Steps(_DBOS), 1.0),
    }
    return compared(peers, rounds=rounds, steps=steps)
