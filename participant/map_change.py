"""What became of a Map between two moments."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from . import key_index
from .container import CHUNK, Change
from .key_index import Indexing

__all__ = ("MapChange",)


class MapChange(Change):
    """Remove all of `gone`, then set all of `put`; `whole`: after everything was removed. `bare`: what is put
    has keys of `KEYS` and values of `SCALARS` alone, of which no two would be one object.
    """

    __slots__ = ("gone", "put", "whole", "bare")

    def __init__(self, gone: dict[Any, None], put: dict[Any, Any], whole: bool, bare: bool = False) -> None:
        self.gone = gone
        self.put = put
        self.whole = whole
        self.bare = bare

    @property
    def size(self) -> int:
        return len(self.gone) + len(self.put) + self.whole

    @property
    def is_whole(self) -> bool:
        return self.whole

    @property
    def is_bare(self) -> bool:
        return self.bare

    def over(self, older: Change) -> MapChange:
        assert isinstance(older, MapChange)
        if self.whole or not older.size:
            return self
        put = dict(older.put)
        for key in self.gone:
            put.pop(key, None)
        put.update(self.put)
        gone = {} if older.whole else {**older.gone, **self.gone}
        return MapChange(gone, put, older.whole, self.bare and older.bare)

    def documents(self) -> Iterator[Any]:
        count = -(-len(self.put) // CHUNK)
        yield self.whole, list(self.gone), count
        if count == 1:
            yield self.put
            return
        entries = iter(self.put.items())
        for _ in range(count):
            yield dict(islice(entries, CHUNK))

    def indexing(self) -> Indexing | None:
        return Indexing(self.bare) if len(self.put) >= key_index.LEAST else None
