"""What became of a Log between two moments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from .container import CHUNK, Change

__all__ = ("LogChange",)


class LogChange(Change):
    """Keep `kept` of what there was, then add `count` values. `cut`: there was more, or the chain is new."""

    __slots__ = ("kept", "count", "cut", "chain", "_values", "_noted", "__weakref__")

    def __init__(
        self,
        kept: int,
        count: int,
        cut: bool,
        chain: tuple[bytes, int],
        values: list[Any] | None,
        noted: Callable[[int, int], list[Any]] | None = None,
    ) -> None:
        self.kept, self.count, self.cut, self.chain = kept, count, cut, chain
        # One of the two; the latter looks into the log.
        self._values, self._noted = values, noted

    @property
    def values(self) -> list[Any]:
        """What is added, with `UNSEEN` for what may change."""
        if self._values is None:
            assert self._noted is not None
            return self._noted(self.kept, self.kept + self.count)
        return self._values

    def detach(self) -> None:
        """The log is about to change what is added."""
        self._values, self._noted = self.values, None

    @property
    def size(self) -> int:
        return self.count + self.cut

    @property
    def is_whole(self) -> bool:
        return not self.kept

    def over(self, older: Change) -> LogChange:
        assert isinstance(older, LogChange)
        if not older.size:
            return self
        if self.kept <= older.kept:
            return LogChange(self.kept, self.count, True, self.chain, self.values)
        values = older.values[: self.kept - older.kept] + self.values
        return LogChange(older.kept, len(values), older.cut, self.chain, values)

    def documents(self) -> Iterator[Any]:
        values = self.values
        yield self.kept, *self.chain, -(-len(values) // CHUNK)
        for start in range(0, len(values), CHUNK):
            yield values[start : start + CHUNK]
