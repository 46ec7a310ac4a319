"""The entries of a Map that was restored and is not read yet: each is read when somebody asks for it.

Theory of operation. They stand where the dict of a Map stands, and are asked what that dict would be asked.
What is in this dict itself are the entries that were set since the restore, and those that were read; `_gone`
are keys that were removed since. Below lie the *layers*, the segments of the image, the oldest first: the
large ones are read by key, through their index, the small ones are known. So a key costs one block of a large
segment, a changed one too: how many entries there are is known at any time.

What needs all entries or their order (iteration, views, comparison, a key of an unusual type), and who has
come to read half of them, gets a dict with everything, which takes the place of these in the Map: what the
layers say, in their order, then what was removed since, then what was set, which is how a capture writes a
change (`cutline.participant.map`). From then on the Map is one like any other.

Captures ask a Map for what changed, and never for what did not: an unread segment goes on as it is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, ItemsView, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from cutline.errors import CannotRestore, CutlineError, StorageError

from .container import Stored
from .immutable import KEYS
from .key_index import ABSENT, Indexed
from .rebuild import UNSEEN

if TYPE_CHECKING:
    from .map import Map

__all__ = ("Known", "Layers", "Origin", "Unread")


class Origin:
    """Where entries come from, for errors. `checkpoint`: that of the image."""

    def __init__(self, participant: str, path: str, checkpoint: int | None) -> None:
        self.participant, self.path, self.checkpoint = participant, path, checkpoint

    def teller(self, capture: int) -> Callable[[str, Exception], Exception]:
        """For the segment that the capture of that number wrote."""

        def told(what: str, error: Exception) -> CutlineError:
            came = "" if self.checkpoint is None else f", for checkpoint {self.checkpoint}"
            text = (
                f"participant {self.participant!r}: {self.path}: {what} of the entries that checkpoint "
                f"{capture} wrote cannot be read{came}: {error}"
            )
            facts = {"participant": self.participant, "path": self.path, "part": what}
            if isinstance(error, StorageError):
                return type(error)(text, **{"checkpoint": capture, **error.facts, **facts})
            return CannotRestore(text, checkpoint=capture, **facts)

        return told


class _Layer(Protocol):
    @property
    def is_whole(self) -> bool: ...
    def find(self, key: Any) -> Any: ...
    def gone(self) -> Mapping[Any, None]: ...
    def replay(self, items: dict[Any, Any]) -> None: ...


class Known:
    """A segment that was read whole."""

    def __init__(self, documents: Iterator[Any]) -> None:
        whole, gone, count = next(documents)
        self.is_whole = bool(whole)
        self.put: dict[Any, Any] = {}
        for _ in range(count):
            self.put.update(next(documents))
        self._gone = dict.fromkeys(gone)

    def find(self, key: Any) -> Any:
        """The value of a key, or `ABSENT`."""
        return self.put.get(key, ABSENT)

    def gone(self) -> dict[Any, None]:
        """The keys that it removes."""
        return self._gone

    def replay(self, items: dict[Any, Any]) -> None:
        """All that it says, over what was before."""
        if self.is_whole:
            items.clear()
        for key in self._gone:
            items.pop(key, None)
        items.update(self.put)


class Layers:
    """The segments of a Map that was restored. `stored`: as they are; `count`: entries that they make;
    `checked`: those of them without a value, which comes with the attributes.
    """

    def __init__(
        self,
        layers: Sequence[Known | Indexed],
        stored: Sequence[Stored],
        count: int,
        checked: int,
        origin: Origin,
    ) -> None:
        self.stored = stored
        self._layers: list[_Layer] = [*layers]
        self._indexed = [each for each in layers if isinstance(each, Indexed)]
        self.count, self.checked = count, checked
        self.origin = origin
        self.lock = threading.RLock()

    @property
    def is_half_read(self) -> bool:
        """Whether so much was read that the rest is worth less than asking for it bit by bit."""
        return 2 * sum(len(each.read) for each in self._indexed) > sum(each.blocks for each in self._indexed)

    def find(self, key: Any) -> Any:
        """The value of a key, or `ABSENT`."""
        for layer in reversed(self._layers):
            found = layer.find(key)
            if found is not ABSENT or layer.is_whole or key in layer.gone():
                return found
        return ABSENT

    def everything(self) -> dict[Any, Any]:
        """All entries in their order."""
        items: dict[Any, Any] = {}
        for layer in self._layers:
            layer.replay(items)
        if len(items) != self.count:
            raise self.wrong(f"has {self.count} entries, its segments make {len(items)}")
        if self.checked and self.checked != (found := _unseen_in(items)):
            raise self.wrong(f"has {self.checked} values that may change, its segments name {found}")
        return items

    def wrong(self, what: str) -> CannotRestore:
        """The error for what only a fault in what was written explains."""
        return CannotRestore(
            f"participant {self.origin.participant!r}: {self.origin.path} of the image {what}: whatever "
            "wrote it is at fault; go back to another checkpoint",
            participant=self.origin.participant,
            path=self.origin.path,
        )


def _unseen_in(items: Mapping[Any, Any]) -> int:
    return sum(value is UNSEEN for value in items.values())


class Unread(dict[Any, Any]):
    """See the module's head. Equal to a dict, but no place for what works on the memory of dicts."""

    __slots__ = ("_owner", "_layers", "_gone", "_count", "_lock", "_full")
    # The dict with everything, once there is one.
    _full: dict[Any, Any] | None

    def __init__(self, owner: Map[Any, Any], layers: Layers) -> None:
        super().__init__()
        self._owner, self._layers, self._lock = owner, layers, layers.lock
        self._gone: set[Any] = set()
        self._count, self._full = layers.count, None

    @property
    def stored(self) -> Sequence[Stored]:
        """The segments below, as they are."""
        return self._layers.stored

    @property
    def removed(self) -> Collection[Any]:
        """The keys that were removed since."""
        return self._gone

    def here(self) -> ItemsView[Any, Any]:
        """The entries that were set since, and those that were read."""
        return dict.items(self)

    def fill(self, key: Any, value: Any) -> None:
        """The value of an entry for which a segment has none. Known by everybody, so it is no change."""
        dict.__setitem__(self, key, value)

    def filled(self, key: Any) -> Any:
        """What `fill` was given."""
        return dict.get(self, key)

    def everything(self) -> dict[Any, Any]:
        """A dict with all entries, which has taken the place of these."""
        with self._lock:
            if self._full is None:
                items = self._layers.everything()
                for key in self._gone:
                    items.pop(key, None)
                items.update(dict.items(self))
                if self._layers.checked and _unseen_in(items):
                    raise self._layers.wrong("has values that may change, which are not in it")
                self._owner._items = self._full = items
            return self._full

    def _find(self, key: Any) -> Any:
        """The value of a key that is not in this dict itself, or `ABSENT`; takes note of it."""
        if self._full is None and type(key) in KEYS and not self._layers.is_half_read:
            if key in self._gone:
                return ABSENT
            found = self._layers.find(key)
            if found is UNSEEN:
                raise self._layers.wrong(f"has no value for the key {key!r}, which may change")
            if found is not ABSENT:
                dict.__setitem__(self, key, found)
            return found
        return self.everything().get(key, ABSENT)

    # -- one entry -----------------------------------------------------------------------------------

    def __missing__(self, key: Any) -> Any:
        with self._lock:
            found = self._find(key)
        if found is ABSENT:
            raise KeyError(key)
        return found

    def get(self, key: Any, default: Any = None) -> Any:
        found = dict.get(self, key, ABSENT)
        if found is ABSENT:
            with self._lock:
                found = self._find(key)
        return default if found is ABSENT else found

    def __contains__(self, key: object) -> bool:
        return self.get(key, ABSENT) is not ABSENT

    def __setitem__(self, key: Any, value: Any) -> None:
        with self._lock:
            is_new = key not in self
            if self._full is not None:
                self._full[key] = value
                return
            dict.__setitem__(self, key, value)
            self._count += is_new

    def pop(self, key: Any, *default: Any) -> Any:
        with self._lock:
            if key not in self and not default:
                raise KeyError(key)
            if self._full is not None:
                return self._full.pop(key, *default)
            # In this order: who is interrupted in between has the newest values, if in another order.
            self._gone.add(key)
            self._count -= dict.__contains__(self, key)
            return dict.pop(self, key, *default)

    def update(self, given: Any) -> None:  # type: ignore[override]
        with self._lock:
            if 2 * len(given) > self._count:
                self.everything()
            for key, value in given.items():
                (self if self._full is None else self._full)[key] = value

    def clear(self) -> None:
        self._owner._items = self._full = {}

    # -- all of them ---------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self._count if self._full is None else len(self._full)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.everything())

    def __reversed__(self) -> Iterator[Any]:
        return reversed(self.everything().keys())

    def keys(self) -> Any:
        return self.everything().keys()

    def values(self) -> Any:
        return self.everything().values()

    def items(self) -> Any:
        return self.everything().items()

    def copy(self) -> dict[Any, Any]:
        return self.everything().copy()

    def __eq__(self, other: object) -> bool:
        return self.everything() == other

    def __ne__(self, other: object) -> bool:
        return self.everything() != other

    __hash__ = None

    def __repr__(self) -> str:
        return repr(self.everything())
