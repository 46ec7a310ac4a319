"""`cutline.actor`: marks a class, and returns the class itself.

The mark holds options; the class stays what it was, so inheritance, ``isinstance``, plain instances in unit
tests and pickling by name go on working. No mark is needed to start: ``system.spawn`` takes any class.

A marked class also has Ray's spelling, ``Editor.remote(...)`` and ``Editor.options(name="e").remote(...)``.
Both live in descriptors that answer the class alone and raise AttributeError for an instance, so that
``Editor().options`` is whatever the user made it. A class, or a subclass, that has an attribute, a slot or an
annotated field of such a name keeps it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, TypeVar, overload, runtime_checkable

from cutline.errors import Misuse, RefusedOption

from .handle import Handle, current_port
from .ray_options import ACTOR_OPTIONS, accept, refuse_marked_methods
from .tracking import TRACKING

__all__ = ("ClassOnly", "Creator", "actor", "options_of", "underlying", "wrap")

C = TypeVar("C", bound=type)

_OWN = {
    "on_error": ("halt", "retry", "dead_letter"),
    "tracking": TRACKING,
}
_NUMBERS = ("retries",)
_FLAGS = ("lazy_maps",)


@runtime_checkable
class Creator(Protocol):
    """A port that can make participants: the driver's, and that of a handler."""

    def create(
        self, kind: type, name: str | None, options: Mapping[str, Any], args: Any, kwargs: Any
    ) -> Handle:
        """Begins to make a participant and returns its handle at once."""
        ...


class _Creation(NamedTuple):
    """A class with the options that one participant of it gets."""

    kind: type
    options: Mapping[str, Any]

    def remote(self, *args: Any, **kwargs: Any) -> Handle:
        """Makes a participant and returns its handle at once: of the last started system, or in a handler.

        What keeps it from coming up (what the constructor raised, CannotCapture, SpawnFailed) is raised by
        the first use of the handle, by ``system.ready(...)``, and told at the system's stop. In a handler it
        is the answer of whatever is asked of the handle, a name that is taken too; see `cutline.spawn`.

        Raises:
            OutsideHandler: no system is started.
            DuplicateName: this program has made that name before.
            CannotCapture: an argument cannot travel.
        """
        port = current_port()
        assert isinstance(port, Creator), f"{port!r} cannot make participants"
        options = {**options_of(self.kind), **self.options}
        return port.create(self.kind, options.pop("name", None), options, args, kwargs)


class ClassOnly:
    """An attribute that a class has and its instances do not."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type) -> Callable[..., Any]:
        if instance is None and not self._is_taken(owner):
            return _Creation(owner, {}).remote if self._name == "remote" else _with_options(owner)
        shown = (
            repr(owner.__name__) + " object" if instance is not None else f"type object {owner.__name__!r}"
        )
        raise AttributeError(f"{shown} has no attribute {self._name!r}", name=self._name, obj=instance)

    def _is_taken(self, owner: type) -> bool:
        """Whether a subclass declares a field of this name; `dataclass` must not take us for its default."""
        for kind in owner.__mro__:
            if kind.__dict__.get(self._name) is self:
                return False
            if self._name in kind.__dict__.get("__annotations__", ()):
                return True
        return False


def _with_options(kind: type) -> Callable[..., _Creation]:
    def options(**options: Any) -> _Creation:
        """The class with options of one participant: `name` and what `cutline.actor` takes."""
        _check(options)
        return _Creation(kind, options)

    return options


@overload
def actor(kind: C, /) -> C: ...
@overload
def actor(**options: Any) -> Callable[[C], C]: ...
def actor(kind: Any = None, /, **options: Any) -> Any:
    """Marks a class as a participant's.

    Args:
        on_error: what happens when a *told* handler raises (an asked one answers with the exception):
            ``"halt"`` (default) stops the system, ``"retry"`` rolls it back and delivers again up to
            `retries` times, ``"dead_letter"`` rolls back and puts the message aside.
        tracking: how changes in large arrays are found: ``"auto"`` (default), ``"kernel"`` (refused where the
            kernel gives no account of written pages), or ``"hash"``, for memory that devices write to by
            themselves. The environment's CUTLINE_TRACKING counts where nothing is said here.
        lazy_maps: after a restore a large `Map` reads an entry when a handler asks for it, not before; False
            unless given. docs/limits.md says which Maps that holds for.
        retries: how often ``"retry"`` tries; 3 unless given.
        num_cpus, resources, max_restarts, ...: Ray's actor options; docs/ray.md says what becomes of each.

    Raises:
        RefusedOption: an option that Cutline does not know, or that would break order.
    """
    _check(options)

    def mark(marked: C) -> C:
        if not isinstance(marked, type):
            raise Misuse(
                f"cutline.actor marks a class; got {marked!r}. For a class of ray.remote: cutline.wrap"
            )
        refuse_marked_methods(marked)
        marked.__cutline_options__ = {**options_of(marked), **options}  # type: ignore[attr-defined]
        for name in ("remote", "options"):
            if not _has(marked, name):
                setattr(marked, name, ClassOnly(name))
        return marked

    return mark if kind is None else mark(kind)


def _has(kind: type, name: str) -> bool:
    return any(
        name in each.__dict__ or name in each.__dict__.get("__annotations__", ()) for each in kind.__mro__
    )


def wrap(kind: Any, /, **options: Any) -> Any:
    """A class that ``ray.remote`` has decorated already, as a participant's class.

    Returns the class under Ray's, marked as `actor` marks it, with the options it was decorated with.
    ``Editor = cutline.wrap(Editor)`` is the best spelling: what a name means is then the same everywhere.

    Args:
        options: as of `actor`; they win over those of the decoration.

    Raises:
        RefusedOption: it was decorated with an option that would break order.
        Misuse: no class.
    """
    found = underlying(kind)
    if not isinstance(found, type):
        raise Misuse(f"cutline.wrap takes a class, plain or decorated with ray.remote; got {kind!r}")
    decorated = {} if found is kind else dict(kind._default_options)
    return actor(**{**decorated, **options})(found)


def underlying(kind: Any) -> Any:
    """The user's class under one of Ray's actor classes; anything else as it is."""
    if isinstance(kind, type):
        return kind
    metadata = getattr(kind, "__dict__", {}).get("__ray_metadata__")
    modified = getattr(metadata, "modified_class", None)
    # Ray works on a subclass of its own; it keeps the original beside it.
    return kind if modified is None else getattr(modified, "__ray_actor_class__", modified)


def _check(options: Mapping[str, Any]) -> None:
    for name, value in options.items():
        if name in _OWN:
            if value not in _OWN[name]:
                raise RefusedOption(f"option {name!r} is one of {', '.join(_OWN[name])}; got {value!r}")
        elif name in _NUMBERS:
            if not isinstance(value, int) or value < 0:
                raise RefusedOption(f"option {name!r} is a whole number, 0 or more; got {value!r}")
        elif name in _FLAGS:
            if type(value) is not bool:
                raise RefusedOption(f"option {name!r} is True or False; got {value!r}")
        elif not accept(name, value):
            known = ", ".join([*_OWN, *_NUMBERS, *_FLAGS, *ACTOR_OPTIONS])
            raise RefusedOption(f"option {name!r} is not known here; options are: {known}")


def options_of(kind: type) -> dict[str, Any]:
    """The options a class was marked with."""
    return dict(getattr(kind, "__cutline_options__", {}))
