"""`cutline.Map`: a dict whose captures cost what changed in it.

Theory of operation. The entries are in a plain dict, and all reading is that dict's own. Every change is
noted as well: what was set in `_put`, in the order in which it came, what was removed in `_gone`. That is the
change that a capture writes (`cutline.participant.container`): who removes all of `_gone` and then sets all
of `_put` has the entries in their order, also those that were removed and set again.

A value is judged when it is set. What is immutable (`cutline.participant.immutable`) is noted as it is, and
so is another container. Any other value may change unseen; noted is only that there is one (`UNSEEN`), and
each capture pickles it with the state. A key is noted as it is if an equal one finds it after a restore;
others, such as objects that are themselves only, get a number (`Spot`) in its place, and their entries are
pickled with the state.

It is no dict: what works on the memory of dicts, such as `dict.__setitem__(m, k, v)`, would not be noted. For
the same reason it has no subclasses.
"""

from __future__ import annotations

import copy
import reprlib
from collections.abc import Collection, Iterable, Iterator, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast, final

from cutline.errors import CannotRestore

from .container import Container, Refused, Stored
from .immutable import ATOMS, KEYS, SCALARS, is_immutable, is_steady
from .map_change import MapChange
from .rebuild import UNSEEN, Spot
from .unread import Layers, Unread

if TYPE_CHECKING:
    from _collections_abc import dict_items, dict_keys, dict_values

__all__ = ("Map",)

K = TypeVar("K")
V = TypeVar("V")
_NOTHING: Any = object()


@final
class Map(Container, MutableMapping[K, V]):
    """A dict, in all but its type, that tells a capture what changed: docs/limits.md says what it costs.

    Made as a dict is; for the large tables of an agent: ``self.seen: cutline.Map[str, int] = cutline.Map()``.
    """

    __slots__ = (
        *("_items", "_put", "_gone", "_whole", "_lost"),
        *("_odd", "_unseen", "_inner", "_spots", "_last_spot", "_bare", "_all_bare"),
    )
    kind = "map"
    _items: dict[K, V]
    # The change.
    _put: dict[Any, Any]
    _gone: dict[Any, None]
    _whole: bool
    # Steady keys of unseen values, and of containers, and whether there are any of either, or of the others.
    _odd: bool
    _unseen: dict[K, None]
    _inner: dict[K, Container]
    # Of keys that are not steady, the numbers that stand for them.
    _spots: dict[K, Spot]
    _last_spot: int
    # Something raised half-way.
    _lost: bool
    # Whether nothing was noted but keys of `KEYS` and values of `SCALARS`; and in all generations before.
    _bare: bool
    _all_bare: bool

    def __init_subclass__(cls, **named: Any) -> NoReturn:
        raise TypeError("cutline.Map has no subclasses, whose methods could go round it: hold one in a class")

    def __new__(cls, /, *args: Any, **named: Any) -> Map[K, V]:
        made = super().__new__(cls)
        made._journal = None
        made._items = {}
        made._reset()
        made._whole = False
        return made

    def __init__(self, /, *args: Any, **named: V) -> None:
        self.update(*args, **named)

    def _reset(self) -> None:
        """Everything was removed."""
        self._put, self._gone, self._whole = {}, {}, True
        self._odd, self._unseen, self._inner, self._spots = False, {}, {}, {}
        self._last_spot, self._lost = 0, False
        self._bare = self._all_bare = True

    # -- reading -------------------------------------------------------------------------------------

    def __getitem__(self, key: K) -> V:
        return self._items[key]

    def get(self, key: Any, default: Any = None) -> Any:
        return self._items.get(key, default)

    def __contains__(self, key: object) -> bool:
        return key in self._items

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[K]:
        return iter(self._items)

    def __reversed__(self) -> Iterator[K]:
        return reversed(self._items)

    def keys(self) -> dict_keys[K, V]:
        return self._items.keys()

    def values(self) -> dict_values[K, V]:
        return self._items.values()

    def items(self) -> dict_items[K, V]:
        return self._items.items()

    def __eq__(self, other: object) -> bool:
        if type(other) is Map:
            return self._items == other._items
        return self._items == other if isinstance(other, dict) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    @reprlib.recursive_repr("Map({...})")
    def __repr__(self) -> str:
        return f"Map({self._items!r})" if self._items else "Map()"

    # -- writing -------------------------------------------------------------------------------------

    def __setitem__(self, key: K, value: V) -> None:
        if self._odd or type(value) not in SCALARS or type(key) not in KEYS:
            self._bare = False
            if self._odd or type(value) not in ATOMS or type(key) not in KEYS:
                self._set(key, value)
                return
        try:
            self._items[key] = value
            self._put[key] = value
        except BaseException:
            # Interrupted between the two.
            self._doubt()
            raise

    def _set(self, key: K, value: V) -> None:
        """Of whatever kind they are."""
        if self._lost:
            self._note_again()
        key, spot = self._place(key)
        try:
            self._items[key] = value
            if spot is not None:
                self._put[spot] = UNSEEN
                return
            if isinstance(value, Container):
                self._inner[key], self._odd, noted = value, True, cast(Any, value)
                self._unseen.pop(key, None)
            elif is_immutable(value):
                noted = value
                self._forget(key)
            else:
                self._unseen[key], self._odd, noted = None, True, UNSEEN
                self._inner.pop(key, None)
            self._put[key] = noted
        except BaseException:
            self._doubt()
            raise

    def _place(self, key: K) -> tuple[K, Spot | None]:
        """The key under which an entry is noted, and what stands for it. Raises TypeError as a dict does."""
        found = self._spots.get(key)
        if found is not None or is_steady(key):
            return key, found
        if key in self._items:
            return self._kept(key), None
        return key, self._new_spot(key)

    def _kept(self, key: K) -> K:
        """The steady key of an entry that is found by an equal one: it keeps the one it was made with."""
        asking = _Asking(key)
        return cast(K, asking.found) if asking in self._items else key

    def _new_spot(self, key: K) -> Spot:
        spot = Spot(self._last_spot + 1)
        self._spots[key], self._last_spot, self._odd = spot, spot.number, True
        return spot

    def _forget(self, key: K) -> None:
        self._unseen.pop(key, None)
        self._inner.pop(key, None)

    def _doubt(self) -> None:
        """Something raised half-way: what was noted may not be what is there."""
        self._lost = self._odd = True

    def _note_again(self) -> None:
        """All that there is, as if it had been set just now."""
        last = self._last_spot
        self._reset()
        self._last_spot, self._lost, self._bare = last, True, False
        for key, value in self._items.items():
            if not is_steady(key):
                self._put[self._new_spot(key)] = UNSEEN
            elif isinstance(value, Container):
                self._inner[key], self._put[key], self._odd = value, value, True
            elif is_immutable(value):
                self._put[key] = value
            else:
                self._unseen[key], self._put[key], self._odd = None, UNSEEN, True
        self._lost = False

    def __delitem__(self, key: K) -> None:
        if key not in self._items:
            raise KeyError(key)
        self._remove(key)

    def _remove(self, key: K) -> V:
        """An entry that is there."""
        if self._lost:
            self._note_again()
        noted: Any = key
        if type(key) not in KEYS and key not in self._spots and not is_steady(key):
            # It may be equal to another one tomorrow.
            noted = self._kept(key)
        try:
            value = self._items.pop(key)
            if self._odd:
                noted = self._spots.pop(key, noted)
                self._forget(key)
            self._gone[noted] = None
            self._put.pop(noted, None)
            return value
        except BaseException:
            self._doubt()
            raise

    def pop(self, key: K, default: Any = _NOTHING, /) -> Any:
        if key in self._items:
            return self._remove(key)
        if default is _NOTHING:
            raise KeyError(key)
        return default

    def popitem(self) -> tuple[K, V]:
        if not self._items:
            raise KeyError("popitem(): the Map is empty")
        key = next(reversed(self._items))
        return key, self._remove(key)

    def clear(self) -> None:
        try:
            self._items.clear()
            self._reset()
        except BaseException:
            self._doubt()
            raise

    def setdefault(self, key: K, default: Any = None, /) -> Any:
        found = self._items.get(key, _NOTHING)
        if found is _NOTHING:
            found = self[key] = default
        return found

    def update(self, /, *args: Any, **named: Any) -> None:
        if len(args) > 1:
            raise TypeError(f"update expected at most 1 argument, got {len(args)}")
        for given in (*args, named):
            if type(given) is dict or type(given) is Map:
                self._take(given)
            elif hasattr(given, "keys"):
                for key in given.keys():  # noqa: SIM118
                    self[key] = given[key]
            else:
                # Pairs, read as a dict reads them, one at a time.
                for pair in given:
                    self.update(dict([pair]))

    def _take(self, given: dict[K, V] | Map[K, V]) -> None:
        """All of a plain dict: at once where nothing in it needs a look of its own."""
        kinds = set(map(type, given.values()))
        if not self._odd and KEYS.issuperset(map(type, given)) and kinds <= ATOMS:
            self._bare = self._bare and kinds <= SCALARS
            try:
                self._items.update(given)
                self._put.update(given)
            except BaseException:
                self._doubt()
                raise
            return
        for key, value in given.items():
            self[key] = value

    def __ior__(self, other: Any) -> Map[K, V]:
        self.update(other)
        return self

    def __or__(self, other: Any) -> Map[Any, Any]:
        if not isinstance(other, (dict, Map)):
            return NotImplemented
        made: Map[Any, Any] = self.copy()
        made.update(other)
        return made

    def __ror__(self, other: Any) -> Map[Any, Any]:
        if not isinstance(other, dict):
            return NotImplemented
        made: Map[Any, Any] = Map(other)
        made.update(self)
        return made

    # -- copies --------------------------------------------------------------------------------------

    def copy(self) -> Map[K, V]:
        return Map(self)

    __copy__ = copy

    def __deepcopy__(self, memo: dict[int, Any]) -> Map[K, V]:
        made: Map[K, V] = Map()
        memo[id(self)] = made
        for key, value in self._items.items():
            made[copy.deepcopy(key, memo)] = copy.deepcopy(value, memo)
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        """For pickle and messages: a plain value. Images have a way of their own."""
        return Map, (), None, None, iter(self._items.items())

    @classmethod
    def fromkeys(cls, keys: Iterable[Any], value: Any = None, /) -> Map[Any, Any]:
        return cls(dict.fromkeys(keys, value))

    # -- for captures and restores -------------------------------------------------------------------

    def _change(self) -> MapChange:
        if self._lost:
            self._note_again()
        return MapChange(self._gone, self._put, self._whole, self._bare)

    def _turn(self) -> None:
        self._put, self._gone, self._whole = {}, {}, False
        self._all_bare, self._bare = self._all_bare and self._bare, True

    def _everything(self) -> MapChange:
        if self._lost:
            self._note_again()
        if not self._odd:
            bare = self._all_bare and self._bare
            return MapChange({}, cast("dict[Any, Any]", self._items.copy()), True, bare)
        spots, unseen = self._spots, self._unseen
        put: dict[Any, Any] = {}
        for key, value in self._items.items():
            if key in spots:
                put[spots[key]] = UNSEEN
            else:
                put[key] = UNSEEN if key in unseen else value
        return MapChange({}, put, True)

    def _as_stored(self) -> tuple[Sequence[Stored], MapChange] | None:
        items = self._items
        if self._lost or not isinstance(items, Unread):
            return None
        unseen = self._unseen
        put = {key: UNSEEN if key in unseen else value for key, value in items.here()}
        return items.stored, MapChange(dict.fromkeys(items.removed), put, False)

    def _checked_count(self) -> int:
        if self._lost:
            self._note_again()
        return len(self._unseen) + len(self._spots)

    def _checked_state(self) -> Any:
        if self._lost:
            self._note_again()
        if not (self._unseen or self._spots):
            return None
        items = self._items
        for key, spot in self._spots.items():
            if self._spots.get(key) is not spot:
                raise Refused(
                    f"a Map whose key {key!r} is not found any more, or is equal to another one: something "
                    "that its hash or its comparison goes by has changed since it was set"
                )
        unseen = [part for key in self._unseen for part in (key, items[key])]
        spots = [part for key, spot in self._spots.items() for part in (spot.number, key, items[key])]
        return unseen, spots

    def _checked_places(self) -> Any:
        return list(self._unseen), list(self._spots.values())

    def _nested(self) -> Collection[Container]:
        if self._lost:
            self._note_again()
        return self._inner.values()

    @classmethod
    def _blank(cls) -> Map[Any, Any]:
        return Map()

    def _replay(self, documents: Iterator[Any]) -> None:
        items, self._all_bare = self._items, False
        whole, gone, count = next(documents)
        if whole:
            items.clear()
        for key in gone:
            items.pop(key, None)
        for _ in range(count):
            items.update(next(documents))

    def _defer(self, layers: Layers) -> None:
        """Takes all segments of an image in place of `_replay`: entries are read when they are asked for."""
        self._items, self._all_bare = Unread(self, layers), False

    def _find_nested(self) -> None:
        for key, value in self._items.items():
            if isinstance(value, Container):
                self._inner[key], self._odd = value, True

    def _judge_again(self) -> bool:
        items, spots, before = self._items, self._spots, self._unseen
        if isinstance(items, Unread):
            # Of what is not read nothing can have become something else.
            self._unseen = {key: None for key in before if not is_immutable(items.filled(key))}
            return self._unseen.keys() != before.keys()
        if not before and ATOMS.issuperset(map(type, items.values())):
            return False
        self._unseen = {
            key: None
            for key, value in items.items()
            if not (key in spots or isinstance(value, Container) or is_immutable(value))
        }
        self._odd = self._odd or bool(self._unseen)
        return self._unseen.keys() != before.keys()

    def _fill(self, state: Any) -> None:
        unseen, spots = state
        items = self._items
        self._odd = True
        entries = iter(unseen)
        for key, value in zip(entries, entries, strict=True):
            self._unseen[key] = None
            if isinstance(items, Unread):
                items.fill(key, value)
                continue
            if items.get(key) is not UNSEEN:
                raise CannotRestore(f"a Map of the image has no place for the value of its key {key!r}")
            items[key] = value
        if spots:
            self._fill_spots(spots)

    def _fill_spots(self, spots: list[Any]) -> None:
        flat = iter(spots)
        known = {Spot(number): (key, value) for number, key, value in zip(flat, flat, flat, strict=True)}
        before = list(cast("dict[Any, Any]", self._items).items())
        self._items.clear()
        for mark, value in before:
            if type(mark) is not Spot:
                self._items[mark] = value
                continue
            key, value = known.pop(mark)
            self._items[key] = value
            self._spots[key] = mark
            self._last_spot = max(self._last_spot, mark.number)
        if known:
            raise CannotRestore("a Map of the image has no place for the values of some of its keys")


class _Asking:
    """Equal to whatever is equal to `key`; `found` is the last such thing that it was compared with."""

    __slots__ = ("_key", "found")

    def __init__(self, key: object) -> None:
        self._key, self.found = key, key

    def __eq__(self, other: object) -> bool:
        is_same = bool(other is self._key or other == self._key)
        if is_same:
            self.found = other
        return is_same

    def __hash__(self) -> int:
        return hash(self._key)
