"""A LangGraph thread that grows by a message a step, kept by a checkpointer after every step.

The graph is a loop of one node; a run makes as many steps as it is asked for. The messages are a channel with
the ordinary reducer (`operator.add`), or a `DeltaChannel` of the same list. Checkpoints are durable before
the next step begins (`durability="sync"`). Messages are plain dicts, which cost LangGraph less than its own
classes; they have no key `role`, by which a DeltaChannel would take them for messages and make them its own.
"""

from __future__ import annotations

import operator
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from bench.bench_step_vs_append import answer_of
from bench.peers.child import Absent, serve

__all__ = ("open_thread",)

_THREAD = {"configurable": {"thread_id": "one"}}


def _joined(messages: list[Any], more: list[list[Any]]) -> list[Any]:
    """The reducer of a DeltaChannel: all that was written in a step at once."""
    return messages + [message for few in more for message in few]


def _message(number: int) -> dict[str, Any]:
    message = answer_of(number)
    message["from"] = message.pop("role")
    return message


def _channel(kind: str) -> Any:
    if kind == "reducer":
        return Annotated[list, operator.add]
    try:
        from langgraph.channels.delta import DeltaChannel
    except ImportError as error:
        raise Absent(f"this langgraph has no DeltaChannel: {error}") from error
    return Annotated[list, DeltaChannel(_joined)]


def _graph(kind: str, saver: Any) -> Any:
    from langgraph.graph import END, START, StateGraph
    from typing_extensions import TypedDict

    make: Any = TypedDict
    state: Any = make("state", {"messages": _channel(kind), "left": int})

    def agent(found: Any) -> dict[str, Any]:
        return {"messages": [_message(len(found["messages"]))], "left": found["left"] - 1}

    def further(found: Any) -> Any:
        return "agent" if found["left"] else END

    building: Any = StateGraph(state)
    building.add_node("agent", agent)
    building.add_conditional_edges(START, further)
    building.add_conditional_edges("agent", further)
    return building.compile(checkpointer=saver)


@contextmanager
def _saver(place: str) -> Iterator[tuple[Any, Callable[[], int]]]:
    """The checkpointer, and what says how many bytes it keeps. ``place``: a file, or a server's URL."""
    if place.startswith("postgresql:"):
        from langgraph.checkpoint.postgres import PostgresSaver

        with PostgresSaver.from_conn_string(place) as saver:
            saver.setup()
            yield saver, lambda: _postgres_bytes(place)
        return
    from langgraph.checkpoint.sqlite import SqliteSaver

    with SqliteSaver.from_conn_string(place) as saver:
        saver.setup()
        yield saver, lambda: _sqlite_bytes(saver.conn, place)


def _sqlite_bytes(connection: Any, place: str) -> int:
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    return os.stat(place).st_size


def _postgres_bytes(url: str) -> int:
    import psycopg

    with psycopg.connect(url) as connection:
        found = connection.execute("SELECT pg_database_size(current_database())").fetchone()
    assert found is not None
    return int(found[0])


@contextmanager
def open_thread(kind: str, place: str) -> Iterator[Callable[..., dict[str, Any]]]:
    """What answers the orders of `bench.peers.threads`."""
    with _saver(place) as (saver, kept):
        graph = _graph(kind, saver)

        def answer(order: str, first: int = 0, count: int = 0) -> dict[str, Any]:
            if order == "check":
                messages = graph.get_state(_THREAD).values["messages"]
                return {"numbers": [message["number"] for message in messages]}
            if order == "grow":
                more = [_message(number) for number in range(first, first + count)]
                graph.invoke({"messages": more, "left": 0}, _THREAD, durability="sync")
                return {}
            before = kept()
            began = time.perf_counter()
            config = {**_THREAD, "recursion_limit": count + 10}
            graph.invoke({"messages": [], "left": count}, config, durability="sync")
            seconds = time.perf_counter() - began
            return {"seconds": seconds / count, "bytes": (kept() - before) / count}

        yield answer


if __name__ == "__main__":
    where = sys.argv[2] if "://" in sys.argv[2] else str(Path(sys.argv[2]) / "thread.db")
    serve(lambda: open_thread(sys.argv[1], where))
