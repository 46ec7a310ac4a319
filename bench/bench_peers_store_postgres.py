"""A durable step of an agent with a long history: against LangGraph and DBOS on a PostgreSQL of this machine.

The server is private and syncs every commit. See `bench.peers.threads` for how it is measured.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from bench.peers.child import Absent
from bench.peers.threads import GROUP, PeerOf, Steps, compared
from bench.row import Missing, Row
from tests.storage.servers import Postgres, a_postgres

__all__ = ("GROUP", "measure")

_LANGGRAPH, _DBOS = "bench.peers.langgraph_thread", "bench.peers.dbos_steps"


def measure(*, rounds: int = 10, steps: int = 2_000) -> list[Row | Missing]:
    """The rows; see the module's head."""
    with ExitStack() as stack:
        server: Postgres | str
        try:
            server = stack.enter_context(a_postgres(durable=True))
        except LookupError as error:
            server = str(error)

        def on_server(module: str, *arguments: str) -> Callable[[], Steps]:
            def opened() -> Steps:
                if isinstance(server, str):
                    raise Absent(server)
                return Steps(module, *arguments, place=server.database("_".join(("bench", *arguments))))

            return opened

        peers: dict[str, PeerOf] = {
            "langgraph_postgres": (
                "LangGraph's PostgresSaver, reducer",
                on_server(_LANGGRAPH, "reducer"),
                1.0,
            ),
            "langgraph_postgres_delta": (
                "LangGraph's PostgresSaver, DeltaChannel",
                on_server(_LANGGRAPH, "delta"),
                1.0,
            ),
            "dbos_postgres": ("a step of DBOS on PostgreSQL", on_server(_DBOS), 1.0),
        }
        return compared(peers, rounds=rounds, steps=steps)
