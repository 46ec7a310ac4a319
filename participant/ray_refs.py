"""Refs that `ray.get` takes: ``ray.get(ref)`` and ``ray.get([ref, ref])`` work unchanged.

Ray's `get` asks anything derived from its `CompiledDAGRef` (an alpha API) for its own `get`. A Ref of this
kind derives from it and from nothing of its behaviour; `cutline.get` is the documented twin.
"""

from __future__ import annotations

from typing import Any

from ray.experimental.compiled_dag_ref import CompiledDAGRef

from . import handle
from .handle import Port, Ref

__all__ = ("RayRef", "install")


class RayRef(Ref[Any], CompiledDAGRef):
    """A Ref that `ray.get` takes."""

    def __init__(self, owner: str, number: int, target: str, method: str, port: Port | None = None) -> None:
        # Not Ray's own constructor: it would look for a compiled graph.
        Ref.__init__(self, owner, number, target, method, port)

    def get(self, timeout: float | None = None) -> Any:
        """What `ray.get` calls."""
        return self.result(timeout)

    __str__ = Ref.__repr__
    __reduce__ = Ref.__reduce__

    def __copy__(self) -> RayRef:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> RayRef:
        return self

    def __del__(self) -> None:
        """Nothing of Ray's is held."""


def install() -> None:
    """From here on this process makes Refs of this kind."""
    handle.ref_kind = RayRef
