"""Refs that `ray.get` takes: ``ray.get(ref)`` and ``ray.get([ref, ref])`` work unchanged.

Ray's `get` asks anything derived from its `CompiledDAGRef` (an alpha API) for its own `get`. A Ref of this
kind derives from it and from nothing of its behaviour; `cutline.get` is the documented twin.
"""

from __future__ import annotations

from typing import Any

from ray.experimental.compiled_dag_ref import CompiledDAGRef

from cutline.errors import Misuse

from . import handle
from .handle import Port, Ref

__all__ = ("RayRef", "install")


_SAYS = (
    "a Ref of Cutline is no ObjectRef of Ray: use cutline.wait and cutline.get (both take lists of Refs and "
    "ObjectRefs), and ref.object_ref() where Ray itself wants one: arguments of tasks, ray.wait, ActorPool"
)


class _Telling(type):
    """Ray names the type of what it does not take, and no more: so the name says what to do."""

    def __repr__(cls) -> str:
        return f"<class {cls.__module__}.{cls.__qualname__}: {_SAYS}>"


class RayRef(Ref[Any], CompiledDAGRef, metaclass=_Telling):
    """A Ref that `ray.get` takes."""

    def __init__(self, owner: str, number: int, target: str, method: str, port: Port | None = None) -> None:
        # Not Ray's own constructor: it would look for a compiled graph.
        Ref.__init__(self, owner, number, target, method, port)

    def get(self, timeout: float | None = None) -> Any:
        """What `ray.get` calls."""
        return self.result(timeout)

    __str__ = Ref.__repr__

    def __reduce__(self) -> tuple[Any, ...]:
        """Called by foreign picklers alone (ours have `__cutline_reduce__`): by Ray, for a task."""
        raise Misuse(f"{self!r} cannot be an argument, or part of one, of a Ray task or actor: {_SAYS}")

    def __copy__(self) -> RayRef:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> RayRef:
        return self

    def __del__(self) -> None:
        """Nothing of Ray's is held."""


def install() -> None:
    """From here on this process makes Refs of this kind."""
    handle.ref_kind = RayRef
