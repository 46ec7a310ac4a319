"""The states that ways of saving are compared on, the same for every side: from a seed, changed in turns.

A state has arrays, a table of small entries and a history of chat messages; a shape says how much of each. A
turn changes one in a hundred of everything: entries of the arrays, scattered; entries of the table; and as
many new messages. Ours has the table as a `cutline.Map` and the history as a `cutline.Log`, the peers have a
dict and a list.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from xxhash import xxh3_128

import cutline

__all__ = ("SHAPES", "Held", "OurHeld", "digest_of")

# Shape: (MiB of arrays, entries of the table, messages of the history)
SHAPES = {
    "arrays": (128, 0, 0),
    "dicts": (0, 200_000, 0),
    "chats": (0, 0, 20_000),
    "mixed": (32, 50_000, 5_000),
}
_ARRAYS = 8
_PAGE = 4096
# Of every kind, one in so many changes in a turn.
_CHANGED = 100
_TEXT = "checkpoint agent tool answer the of plan search result maybe done next "


def _message(number: int) -> dict[str, Any]:
    return {"role": ("user", "assistant")[number % 2], "id": number, "content": f"{_TEXT * 8}{number}"}


class Held:
    """A state of one shape, ``scale`` times its size."""

    def __init__(self, shape: str, scale: float = 1.0) -> None:
        mebibytes, entries, messages = SHAPES[shape]
        self.random = np.random.default_rng(1)
        self.pages = int(mebibytes * scale * (1 << 20)) // _PAGE // _ARRAYS
        self.arrays = [
            self.random.random((self.pages, _PAGE // 4), dtype=np.float32)
            for _ in range(_ARRAYS if mebibytes else 0)
        ]
        self.entries = int(entries * scale)
        self.table: Any = self.new_table({f"key {n}": ("seen", n) for n in range(self.entries)})
        self.messages = int(messages * scale)
        self.chat: Any = self.new_chat([_message(number) for number in range(self.messages)])

    def new_table(self, entries: dict[str, Any]) -> Any:
        """What holds the table."""
        return entries

    def new_chat(self, messages: list[Any]) -> Any:
        """What holds the history."""
        return messages

    def change(self) -> None:
        """One turn."""
        for array in self.arrays:
            array[self.random.integers(0, self.pages, -(-self.pages // _CHANGED)), 0] += 1
        for number in self.random.integers(0, self.entries, self.entries // _CHANGED).tolist():
            self.table[f"key {number}"] = ("seen", self.table[f"key {number}"][1] + 1)
        self.chat.extend([_message(len(self.chat) + n) for n in range(self.messages // _CHANGED)])

    def digest(self) -> str:
        """What it holds."""
        return digest_of(self.arrays, self.table, self.chat)


class OurHeld(Held):
    """The same, as a participant has it."""

    def new_table(self, entries: dict[str, Any]) -> Any:
        return cutline.Map(entries)

    def new_chat(self, messages: list[Any]) -> Any:
        return cutline.Log(messages)


def digest_of(arrays: Any, table: Any, chat: Any) -> str:
    """Of the contents, whatever holds them."""
    digest = xxh3_128()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).data)
    for key, value in table.items():
        digest.update(f"{key}{value[0]}{value[1]};".encode())
    for message in chat:
        digest.update(f"{message['role']}{message['id']}{message['content']};".encode())
    return str(digest.hexdigest())
