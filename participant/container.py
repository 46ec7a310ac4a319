"""What a Map and a Log are to a capture: containers that know what of them changed.

Theory of operation. A container notes each change as it is made, in a form that is itself what a capture
writes: its *change*. At a capture the noted change becomes a *generation* and a new, empty one takes its
place, which costs the same however large the container is. A generation is never touched again, so several
captures may be under way. What an image writes is the changes of all generations since its parent, the older
ones under the newer ones; hence an aborted capture loses nothing: its generation stays and is written again.

What can change without the container's knowledge (a list that is a value) is not in changes but in the
container's *checked* state, which each capture pickles with the attributes, so that sharing survives.
Changes hold only what is immutable, and containers, by their numbers: `nested` names those.

A second kind of container is a subclass of `Container` with a `Change` of its own, and one line in
`cutline.participant.container_kinds`; captures, images and restores know no more than what is here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from blake3 import blake3

from cutline.storage.unread import Unread

if TYPE_CHECKING:
    from .key_index import Indexing
    from .shelf import Renewal

__all__ = ("CHUNK", "Change", "Container", "Journal", "Refused", "Stored")

# Entries that are pickled, or loaded, in one go: well below a millisecond.
CHUNK = 4096


class Refused(Exception):
    """Something that must not go into an image or a message."""


class Change(ABC):
    """What became of a container between two moments. Never modified once the later one is over."""

    __slots__ = ()

    @property
    @abstractmethod
    def size(self) -> int:
        """How many entries it names; 0: there was no change."""

    @property
    @abstractmethod
    def is_whole(self) -> bool:
        """Whether nothing of what was before counts any more."""

    @property
    def is_bare(self) -> bool:
        """Whether no document but the first names an object twice, so that pickle needs no memo."""
        return False

    @abstractmethod
    def over(self, older: Change) -> Change:
        """Both as one: `older` came first."""

    @abstractmethod
    def documents(self) -> Iterator[Any]:
        """What is to be pickled, one after the other; each with a memo of its own."""

    def indexing(self) -> Indexing | None:
        """What makes an index of these documents; None: they are read whole or not at all."""
        return None


class Stored(NamedTuple):
    """A segment of an image, as a restore found it. `capture`, `size`: as in the header's row."""

    capture: int
    size: int
    content: bytes | Unread

    @property
    def digest(self) -> bytes:
        """Of the content."""
        return self.content.digest if isinstance(self.content, Unread) else blake3(self.content).digest()

    def whole(self) -> bytes:
        """The content. Raises StorageError if it was left unread and cannot be read."""
        return self.content.whole() if isinstance(self.content, Unread) else self.content


class Journal:
    """The generations of a container: (number of the capture, change), ascending. `owner`: whose captures."""

    __slots__ = ("owner", "number", "generations", "renewal")

    def __init__(self, owner: object, number: int) -> None:
        self.owner = owner
        self.number = number
        self.generations: list[tuple[int, Change]] = []
        # The business of `cutline.participant.shelf`: how far it has come with writing all of it anew.
        self.renewal: Renewal | None = None

    def since(self, capture: int, now: Change) -> Change:
        """All that changed since that capture; `now` is what changed since the newest one."""
        change = now
        for number, older in reversed(self.generations):
            if number > capture:
                change = change.over(older)
        return change

    def add(self, capture: int, change: Change, known: Collection[int]) -> None:
        """A capture was taken. `known`: those that a later one may be relative to, and those under way."""
        first, last = min(known, default=capture), max(known, default=-1)
        kept = [each for each in self.generations if each[0] > first]
        while kept and kept[-1][0] > last:
            # That one was aborted: nothing will ever be relative to it, nor to one between it and this.
            change = change.over(kept.pop()[1])
        self.generations = [*kept, (capture, change)] if change.size else kept


class Container:
    """See the module's head. `kind` is its name in images, and does not change.

    No ABC: captures ask of every value that may change whether it is one, and of an ABC that takes several
    times as long. Type checkers see to it that a container has all of this.
    """

    __slots__ = ("_journal",)
    kind: ClassVar[str]
    _journal: Journal | None

    @abstractmethod
    def __len__(self) -> int:
        """How many entries there are."""

    @abstractmethod
    def _change(self) -> Change:
        """What was noted since the last `_turn`; it may still grow."""

    @abstractmethod
    def _turn(self) -> None:
        """A new generation begins. The change before is left alone from now on; must not fail."""

    @abstractmethod
    def _everything(self) -> Change:
        """All that there is, as a change that is whole. Leaves what was noted as it is."""

    def _as_stored(self) -> tuple[Sequence[Stored], Change] | None:
        """What the segments that it was restored from say, as they are, and what changed since then; None:
        it does not know them any more.
        """
        return None

    @abstractmethod
    def _checked_state(self) -> Any:
        """What each capture has to look at: for pickle; None if there is nothing."""

    @abstractmethod
    def _checked_places(self) -> Any:
        """Where in the container it stands, to be compared with where it stands later."""

    @abstractmethod
    def _checked_count(self) -> int:
        """Of how many entries that is."""

    @abstractmethod
    def _nested(self) -> Iterable[Container]:
        """The containers that changes name."""

    @abstractmethod
    def _find_nested(self) -> None:
        """After the last `_replay`, if containers were named: what `_nested` is to give."""

    @classmethod
    @abstractmethod
    def _blank(cls) -> Container:
        """An empty one, for `_replay`."""

    @abstractmethod
    def _replay(self, documents: Iterator[Any]) -> None:
        """Takes the next change, as `Change.documents` gave it, from an image. It is not noted."""

    @abstractmethod
    def _fill(self, state: Any) -> None:
        """Takes the checked state from an image, after the last `_replay`. It is not noted."""

    @abstractmethod
    def _judge_again(self) -> bool:
        """Judges all values anew: whether one may change now that could not, or the other way round. So
        it is after a restore by a program in which a class has become something else.
        """
