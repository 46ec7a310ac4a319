"""`cutline.actor`: marks a class, and returns the class itself.

The mark holds options; the class stays what it was, so inheritance, ``isinstance``, plain instances in unit
tests and pickling by name go on working. No mark is needed to start: ``system.spawn`` takes any class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, overload

from cutline.errors import RefusedOption

__all__ = ("actor", "options_of")

C = TypeVar("C", bound=type)

_OWN = {
    "on_error": ("halt", "retry", "dead_letter"),
}
_NUMBERS = ("retries",)
_REFUSED = {
    "max_concurrency": "handlers of one participant run one at a time: order is what a cut is made of",
    "concurrency_groups": "handlers of one participant run one at a time: order is what a cut is made of",
    "allow_out_of_order_execution": "messages of a channel are handled in the order they were sent",
}


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
        retries: how often ``"retry"`` tries; 3 unless given.

    Raises:
        RefusedOption: an option that Cutline does not know, or that would break order.
    """
    _check(options)

    def mark(marked: C) -> C:
        inherited = dict(getattr(marked, "__cutline_options__", {}))
        marked.__cutline_options__ = {**inherited, **options}  # type: ignore[attr-defined]
        return marked

    return mark if kind is None else mark(kind)


def _check(options: Mapping[str, Any]) -> None:
    for name, value in options.items():
        if name in _REFUSED:
            raise RefusedOption(f"option {name!r} is refused: {_REFUSED[name]}")
        if name in _OWN:
            if value not in _OWN[name]:
                raise RefusedOption(f"option {name!r} is one of {', '.join(_OWN[name])}; got {value!r}")
        elif name in _NUMBERS:
            if not isinstance(value, int) or value < 0:
                raise RefusedOption(f"option {name!r} is a whole number, 0 or more; got {value!r}")
        else:
            known = ", ".join([*_OWN, *_NUMBERS])
            raise RefusedOption(f"option {name!r} is not known here; options are: {known}")


def options_of(kind: type) -> dict[str, Any]:
    """The options a class was marked with."""
    return dict(getattr(kind, "__cutline_options__", {}))
