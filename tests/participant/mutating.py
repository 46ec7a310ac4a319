"""Ways to change a state: every mutable thing in it is found, and something is done to it that suits it.

A change is chosen by three numbers, so that hypothesis can make them smaller: which of the things that are
found, which of the ways that suit it, and with what.
"""

from __future__ import annotations

import array
import collections
import ctypes
import io
import random
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.participant.animals import Open, Slots, torch

__all__ = ("everything_in", "found_in", "mutate")

Way = Callable[[Any, int, list[Any]], object]
# Types of the zoo whose attributes are plain.
_OPENED = {"Memory", "Fact", "Slotted", "Model", "Node", "Turn"}


def found_in(state: Open) -> list[Any]:
    """The mutable things that `state` leads to, itself included, each once, in a fixed order."""
    return [here for here in everything_in(state) if _ways_for(here)]


def everything_in(state: Open) -> list[Any]:
    """All that `state` leads to, as far as it is known how, in a fixed order."""
    seen: dict[int, Any] = {}
    work: list[Any] = [state]
    while work:
        here = work.pop()
        if id(here) in seen:
            continue
        seen[id(here)] = here
        work.extend(reversed(_parts(here)))
    return list(seen.values())


def _parts(here: Any) -> list[Any]:
    if isinstance(here, dict):
        return list(dict.values(here))
    if isinstance(here, (list, tuple, collections.deque)):
        return list(here)
    if isinstance(here, np.ndarray):
        return [each for each in here.ravel().tolist() if each is not None] if here.dtype == object else []
    if isinstance(here, Slots):
        return [getattr(here, name) for name in Slots.__slots__ if hasattr(here, name)]
    if isinstance(here, Open) or type(here).__name__ in _OPENED:
        return list(vars(here).values()) if hasattr(here, "__dict__") else []
    return []


def mutate(state: Open, which: int, how: int, number: int) -> str:
    """One change; what it was."""
    found = found_in(state)
    target = found[which % len(found)]
    ways = _ways_for(target)
    way = ways[how % len(ways)]
    try:
        way(target, number, found)
    except BufferError:
        # A bytearray that an array shows cannot grow: Python says so.
        return f"{way.__name__} refused by {type(target).__name__}"
    return f"{way.__name__} of {type(target).__name__}"


# -- tensors -----------------------------------------------------------------------------------------------


def element(shown: Any, number: int, _: list[Any]) -> None:
    flat = shown.detach()
    flat[number % len(flat)] = number % 127


def elements(shown: Any, number: int, _: list[Any]) -> None:
    shown.detach()[number % len(shown) :].add_(1)


# -- arrays: content ---------------------------------------------------------------------------------------


def _value(dtype: np.dtype[Any], number: int) -> Any:
    kind = dtype.kind
    if kind in "iu":
        return number % 127
    if kind == "b":
        return bool(number % 2)
    if kind in "US":
        return np.array(str(number)).astype(dtype)[()]
    if kind == "T":
        return str(number) * (1 + number % 9)
    return np.array(number % 60000).astype(dtype)[()]


def _plain(shown: Any) -> Any:
    """The array without its subclass, one field of it where it has fields."""
    view = np.ndarray.view(shown, np.ndarray)
    while view.dtype.names:
        view = view[view.dtype.names[-1]]
    return view


def one(shown: Any, number: int, _: list[Any]) -> None:
    view = _plain(shown)
    view.flat[number % view.size] = _value(view.dtype, number)


def some(shown: Any, number: int, _: list[Any]) -> None:
    view = _plain(shown)
    view[number % len(view) :: 1 + number % 5] = _value(view.dtype, number + 1)


def last(shown: Any, number: int, _: list[Any]) -> None:
    view = _plain(shown)
    view[-1:] = _value(view.dtype, number + 2)


def all_of_it(shown: Any, number: int, _: list[Any]) -> None:
    view = _plain(shown)
    view.fill(_value(view.dtype, number))


def copied_to(shown: Any, number: int, _: list[Any]) -> None:
    view = _plain(shown)
    where = np.zeros(view.shape, bool)
    where.flat[number % view.size :: 37] = True
    np.copyto(view, _value(view.dtype, number + 3), where=where)


def put(shown: Any, number: int, _: list[Any]) -> None:
    view = _plain(shown)
    np.put(view, [number % view.size, (number * 7) % view.size], _value(view.dtype, number + 4))


def in_order(shown: Any, number: int, _: list[Any]) -> None:
    _plain(shown).sort()


def shuffled(shown: Any, number: int, _: list[Any]) -> None:
    np.random.default_rng(number).shuffle(_plain(shown))


def added_at(shown: Any, number: int, _: list[Any]) -> None:
    view = _plain(shown)
    places: Any = ([number % len(view), 0, 0], *([0] * (view.ndim - 1)))
    np.add.at(view, places, 1)


def by_ufunc(shown: Any, number: int, _: list[Any]) -> None:
    view = _plain(shown)
    part = view[number % len(view) :]
    with np.errstate(all="ignore"):
        if part.dtype.kind in "iu":
            np.bitwise_xor(part, number % 120, out=part)
        else:
            np.subtract(3, part, out=part)


def turned_bytes(shown: Any, number: int, _: list[Any]) -> None:
    _plain(shown)[number % len(shown) :].byteswap(inplace=True)


def poked(shown: Any, number: int, _: list[Any]) -> None:
    """By address."""
    view = _plain(shown)
    at = tuple(index % length for index, length in zip((number, number // 3, 1), view.shape, strict=False))
    place = view[at + (...,)]
    ctypes.memset(place.ctypes.data, number % 60, place.itemsize)


def read_into(shown: Any, number: int, _: list[Any]) -> None:
    """By whoever was handed the buffer."""
    line = _plain(shown).reshape(-1).view(np.uint8)
    start = number % len(line)
    io.BytesIO(bytes([number % 60]) * 300).readinto(line[start:].data)


# -- arrays: form ------------------------------------------------------------------------------------------


def resized(shown: Any, number: int, _: list[Any]) -> None:
    try:
        shown.resize((max(1, number * 3),))
    except ValueError:
        # Something shows its memory.
        shown.flat[0] = shown.flat[-1]


def sealed(shown: Any, number: int, _: list[Any]) -> None:
    shown.flags.writeable = False


def _elements(shown: Any, number: int, found: list[Any]) -> None:
    shown.flat[number % shown.size] = found[(number * 5) % len(found)] if number % 3 else number


# -- bytes, containers, objects ----------------------------------------------------------------------------


def byte(shown: bytearray, number: int, _: list[Any]) -> None:
    shown[number % len(shown) if shown else 0 : 1 + number % max(1, len(shown))] = b"z"


def one_byte(shown: bytearray, number: int, _: list[Any]) -> None:
    if shown:
        shown[number % len(shown)] ^= 1


def longer(shown: bytearray, number: int, _: list[Any]) -> None:
    shown.extend(bytes([number % 256]) * (number * 3))


def shorter(shown: bytearray, number: int, _: list[Any]) -> None:
    del shown[len(shown) - number % max(1, len(shown)) :]


def moved_on(shown: bytearray, number: int, _: list[Any]) -> None:
    del shown[:16]
    shown += bytes([number % 256]) * 16


def by_memoryview(shown: bytearray, number: int, _: list[Any]) -> None:
    with memoryview(shown) as view:
        view[number % max(1, len(view)) :][:50] = bytes(len(view[number % max(1, len(view)) :][:50]))


def item(shown: Any, number: int, _: list[Any]) -> None:
    if len(shown):
        shown[number % len(shown)] = number % 100


def items(shown: Any, number: int, _: list[Any]) -> None:
    shown.extend(range(number % 300))


def _given(number: int, found: list[Any]) -> Any:
    """Something to store: new, or one of those that are there already."""
    chance = random.Random(number)
    if chance.random() < 0.4:
        return found[chance.randrange(len(found))]
    return chance.choice(
        (number, str(number), None, [number], (1, [2]), Open(n=number), float("nan"), b"x" * number)
    )


def pushed(shown: Any, number: int, found: list[Any]) -> None:
    kind = list if isinstance(shown, list) else collections.deque
    kind.append(shown, _given(number, found))


def stored(shown: list[Any], number: int, found: list[Any]) -> None:
    if shown:
        list.__setitem__(shown, number % len(shown), _given(number, found))


def popped(shown: list[Any], number: int, _: list[Any]) -> None:
    if shown:
        list.pop(shown, number % len(shown))


def reversed_(shown: list[Any], number: int, _: list[Any]) -> None:
    list.reverse(shown)


def parted(shown: list[Any], number: int, _: list[Any]) -> None:
    """What was one object becomes two equal ones."""
    for index, each in enumerate(shown):
        if type(each) in (list, dict, np.ndarray):
            shown[index] = each.copy()
            return


def rotated(shown: collections.deque[Any], number: int, _: list[Any]) -> None:
    collections.deque.rotate(shown, number)


def _base(shown: dict[Any, Any]) -> Any:
    """Whose methods change it, around any override. An OrderedDict keeps an order of its own."""
    return collections.OrderedDict if isinstance(shown, collections.OrderedDict) else dict


def keyed(shown: dict[Any, Any], number: int, found: list[Any]) -> None:
    _base(shown).__setitem__(shown, f"k{number % 4}", _given(number, found))


def unkeyed(shown: dict[Any, Any], number: int, _: list[Any]) -> None:
    keys = list(dict.keys(shown))
    if keys:
        _base(shown).pop(shown, keys[number % len(keys)])


def to_the_end(shown: dict[Any, Any], number: int, _: list[Any]) -> None:
    keys = [key for key in dict.keys(shown) if key == key]
    if keys:
        key = keys[number % len(keys)]
        _base(shown).__setitem__(shown, key, _base(shown).pop(shown, key))


def member(shown: set[Any], number: int, _: list[Any]) -> None:
    set.symmetric_difference_update(shown, {number % 5, str(number % 3)})


def drawn(shown: Any, number: int, _: list[Any]) -> None:
    shown.random()


def attribute(shown: Any, number: int, found: list[Any]) -> None:
    setattr(shown, f"a{number % 4}", _given(number, found))


def no_attribute(shown: Any, number: int, _: list[Any]) -> None:
    names = list(vars(shown))
    if names:
        delattr(shown, names[number % len(names)])


def viewed(shown: Any, number: int, found: list[Any]) -> None:
    """Another view of an array that is there."""
    arrays = [each for each in found if isinstance(each, np.ndarray) and each.ndim]
    if not arrays:
        return
    owner = arrays[number % len(arrays)]
    views: tuple[Callable[[], Any], ...] = (
        lambda: owner[number % len(owner) if len(owner) else 0 :],
        lambda: owner[::-2],
        lambda: owner.T,
        # A matrix with three axes is a slip of numpy's that no copy of it repeats.
        lambda: owner.view() if isinstance(owner, np.matrix) else owner[None],
        lambda: owner.view(),
        lambda: owner[:5],
    )
    setattr(shown, f"v{number % 3}", views[number % len(views)]())


def replaced(shown: Any, number: int, _: list[Any]) -> None:
    """An array gives way to one that looks alike, elsewhere in memory."""
    names = [name for name, value in vars(shown).items() if isinstance(value, np.ndarray)]
    if not names:
        return
    name = names[number % len(names)]
    value = getattr(shown, name)
    made: tuple[Callable[[], Any], ...] = (
        lambda: value.copy(),
        lambda: value.copy(order="F"),
        lambda: np.concatenate([value.ravel(), value.ravel()[:1]]),
        lambda: value.ravel()[: 1 + number].copy(),
    )
    setattr(shown, name, made[number % len(made)]())


def swapped(shown: Any, number: int, _: list[Any]) -> None:
    names = list(vars(shown))
    if len(names) > 1:
        one_name, other = names[number % len(names)], names[(number + 1) % len(names)]
        held = vars(shown)
        held[one_name], held[other] = held[other], held[one_name]


def slot(shown: Slots, number: int, found: list[Any]) -> None:
    if number % 4 == 0 and hasattr(shown, "two"):
        del shown.two
    else:
        setattr(shown, "two" if number % 2 else "one", _given(number, found))


_ANY_ARRAY: tuple[Way, ...] = (one, some, last, all_of_it, copied_to, put)
_OBJECT: tuple[Way, ...] = (attribute, no_attribute, viewed, replaced, swapped, attribute)


def _ways_for(here: Any) -> tuple[Way, ...]:
    if isinstance(here, np.ndarray):
        return _array_ways(here)
    if isinstance(here, Open):
        return _OBJECT
    for kind, ways in _WAYS.items():
        if isinstance(here, kind):
            return ways
    return ()


def _array_ways(here: Any) -> tuple[Way, ...]:
    if not here.ndim or not here.size or not here.flags.writeable or np.ma.isMaskedArray(here):
        return ()
    if here.dtype == object:
        return (_elements,)
    view = _plain(here)
    if view.dtype.kind in "VO" or not view.ndim:
        return ()
    ways = _ANY_ARRAY
    if view.dtype.kind not in "T":
        ways += (in_order, shuffled)
    if view.dtype.kind in "iuf":
        ways += (added_at, by_ufunc, turned_bytes, poked)
        if view.flags.c_contiguous and view is not here and type(here) is np.ndarray and not here.dtype.names:
            ways += (read_into,)
    if type(here) is np.ndarray and not here.dtype.names:
        ways += (sealed,)
        if here.flags.owndata and here.ndim == 1 and here.dtype.kind in "iufcmM":
            ways += (resized, resized)
    return ways


_TENSORS: dict[Any, tuple[Way, ...]] = {torch.Tensor: (element, elements)} if torch else {}
_WAYS: dict[Any, tuple[Way, ...]] = {
    **_TENSORS,
    bytearray: (byte, one_byte, longer, shorter, moved_on, by_memoryview),
    array.array: (item, items),
    list: (pushed, stored, popped, reversed_, parted),
    collections.deque: (pushed, rotated),
    dict: (keyed, unkeyed, to_the_end),
    set: (member,),
    np.random.Generator: (drawn,),
    np.random.RandomState: (drawn,),
    random.Random: (drawn,),
    Slots: (slot,),
}
