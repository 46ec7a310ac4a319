"""`cutline.get` and `cutline.wait`: answers of participants, and Ray's ObjectRefs among them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future
from concurrent.futures import wait as wait_futures
from typing import Any

from cutline.errors import Misuse
from cutline.participant.handle import Ref, current_port
from cutline.participant.late import is_object_ref

from .driver_port import DriverPort

__all__ = ("get", "wait")


def get(refs: Any, timeout: float | None = None) -> Any:
    """The answer of a Ref, or the answers of a list of them, in order. ObjectRefs of Ray may be among them.

    Args:
        timeout: seconds for all of them together; TimeoutError after them.

    Raises:
        BlockingInHandler: inside a handler.
        Exception: what the first failed one raised.
    """
    if isinstance(refs, Ref):
        return refs.result(timeout)
    if is_object_ref(refs):
        # Somebody has imported it: there is an ObjectRef.
        import ray

        return ray.get(refs, timeout=timeout)
    if not isinstance(refs, (list, tuple)):
        raise Misuse(f"get takes a Ref or a list of Refs (ObjectRefs too); got {type(refs).__name__}")
    deadline = None if timeout is None else time.monotonic() + timeout
    answers = []
    for ref in refs:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        answers.append(get(ref, left))
    return answers


def wait(
    refs: Sequence[Any], *, num_returns: int = 1, timeout: float | None = None
) -> tuple[list[Any], list[Any]]:
    """Waits until `num_returns` of them have an answer; returns (ready, not ready), in order.

    Args:
        refs: Refs, and ObjectRefs of Ray among them.
        timeout: seconds; what is ready then is returned.

    Raises:
        Misuse: inside a handler; there `asyncio.wait` and friends do this.
    """
    port = current_port()
    if not isinstance(port, DriverPort):
        raise Misuse("cutline.wait is for the driver; in an async handler use asyncio's own")
    futures = {id(ref): _future(port, ref) for ref in refs}
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        ready = [ref for ref in refs if futures[id(ref)].done()]
        left = None if deadline is None else deadline - time.monotonic()
        if len(ready) >= min(num_returns, len(refs)) or (left is not None and left <= 0):
            ready = ready[: max(num_returns, 0)]
            chosen = {id(ref) for ref in ready}
            return ready, [ref for ref in refs if id(ref) not in chosen]
        wait_futures([f for f in futures.values() if not f.done()], timeout=left, return_when=FIRST_COMPLETED)


def _future(port: DriverPort, ref: Any) -> Future[Any]:
    if isinstance(ref, Ref):
        return port.future_of(ref)
    if is_object_ref(ref):
        future: Future[Any] = ref.future()
        return future
    raise Misuse(f"wait takes Refs and ObjectRefs; got {type(ref).__name__}")
