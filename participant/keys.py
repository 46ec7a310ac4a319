"""Idempotency keys: a second submission under one key is the first one, for as long as it is remembered.

Keys and the answers of what was asked under them are part of the driver's state, so they are in every cut, go
back with it, are in forks of it, and do not need the log. Whether a submission is the first under its key is
decided once, when it is taken, and its record in the log says so (its *stamp*): a replay does what was done,
whatever the clock says by then, and with however long a time keys are remembered by now. Only a first
submission that a rollback has undone and that no log holds is succeeded by its duplicate.

A key is forgotten when its time is over and its question, if it was one, has been answered.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

import msgpack

from cutline.errors import InputRefused, Misuse

from .desk import Desk
from .map import Map

if TYPE_CHECKING:
    from .submission import Submission

__all__ = ("KEY_SECONDS", "Keys", "REMEMBERED_KEYS", "Stamp")

KEY_SECONDS = 86_400.0
REMEMBERED_KEYS = 1_000_000
# The time of those that older versions have taken.
_UNKNOWN = math.inf
# When it was taken; the number of the first one under its key, 0 if it is that itself.
Stamp = list[Any]


class Keys:
    """The keys in one state of the driver.

    ``keys``: of each key, the number of its first submission, when that was taken, and what it called;
    ``outcomes``: by number, the packed answers. Plain dicts until there is a key, Maps from then on.
    """

    def __init__(
        self, state: Any, desk: Desk, seconds: float = KEY_SECONDS, most: int = REMEMBERED_KEYS
    ) -> None:
        self._state, self._desk = state, desk
        self._seconds, self._most = seconds, most
        self._adopt()
        keys = self._keys
        # By number, keys whose question has no answer yet.
        self._open = {number: key for key, (number, _, _) in keys.items() if number in desk.asks}
        # In the order of their times. One whose time is over and whose question is open is put aside.
        self._order = deque((at, key) for key, (_, at, _) in keys.items())
        self._aside: dict[str, float] = {}

    @property
    def _keys(self) -> MutableMapping[str, tuple[int, float, str]]:
        keys: MutableMapping[str, tuple[int, float, str]] = self._state.keys
        return keys

    def _adopt(self) -> None:
        """States of older versions had the number alone, and the answers on the desk."""
        state = self._state
        if not hasattr(state, "outcomes"):
            numbers, state.keys, state.outcomes = state.keys, {}, {}
            for key, number in numbers.items():
                self._grow()
                state.keys[key] = (number, _UNKNOWN, "")
                self._desk.kept.discard(number)
                if number in self._desk.answers:
                    state.outcomes[number] = msgpack.packb(self._desk.answers[number])

    def _grow(self) -> None:
        """What grows is to be captured by what changes."""
        if type(self._state.keys) is dict:
            self._state.keys, self._state.outcomes = Map(), Map()

    # -- when it is taken ------------------------------------------------------------------

    def forget(self, now: float) -> None:
        """Forgets those whose time is over."""
        keys = self._keys
        while self._order:
            at, key = self._order[0]
            known = keys.get(key)
            if known is None or known[1] != at:
                # Its time was written anew.
                self._order.popleft()
                continue
            if at > now:
                self._date_anew(now)
                continue
            if at + self._seconds >= now:
                return
            self._order.popleft()
            if known[0] in self._open:
                self._aside[key] = at
            else:
                self._drop(key, known[0])

    def _date_anew(self, now: float) -> None:
        """The clock was ahead when they came, or nobody knows when they did: they count as coming now."""
        keys, order = self._keys, deque[tuple[float, str]]()
        for at, key in self._order:
            known = keys.get(key)
            if known is None or known[1] != at:
                continue
            if at > now:
                keys[key] = (known[0], now, known[2])
            order.append((min(at, now), key))
        self._order = order

    def _drop(self, key: str, number: int) -> None:
        del self._keys[key]
        self._state.outcomes.pop(number, None)
        self._open.pop(number, None)

    def judge(self, entry: Submission, now: float, others: dict[str, tuple[int, str]]) -> Stamp:
        """What the record of a submission says. ``others``: first ones that are taken together with it.

        Raises:
            Misuse: the key belongs to another call.
            InputRefused: there is no room for another key.
        """
        key, call = entry.key, f"{entry.target}.{entry.method}"
        assert key is not None
        known = self._keys.get(key)
        first, called = (
            others[key] if key in others else (known[0], known[2]) if known is not None else (0, call)
        )
        if called not in (call, ""):
            raise Misuse(
                f"the idempotency key {key!r} was used for {called}, and is now for {call}: the input was not"
                " taken; give each input a key of its own",
                participant=entry.target,
                key=key,
            )
        if not first:
            if len(self._keys) + len(others) >= self._most:
                raise InputRefused(
                    f"{self._most} idempotency keys are remembered, each for {self._seconds:g} s: the"
                    f" input with key {key!r} was not taken; remember them for less time (remember_keys=), or"
                    " send fewer inputs with keys",
                    participant=entry.target,
                    key=key,
                )
            others[key] = entry.number, call
        return [now, first]

    # -- when it is done -------------------------------------------------------------------

    def first(self, key: str, number: int, call: str, stamp: Stamp | None, *, asks: bool) -> int:
        """The number of the first submission under that key; if there was none, that is this one."""
        known = self._keys.get(key)
        if known is not None and (stamp is None or stamp[1] or known[0] == number):
            return known[0]
        if known is not None:
            # It had been forgotten when this one was taken.
            self._drop(key, known[0])
        self._grow()
        at = stamp[0] if stamp is not None else _UNKNOWN
        self._keys[key] = number, at, call
        self._order.append((at, key))
        if asks:
            self._open[number] = key
        return number

    def answered(self, number: int, ok: bool, packed: Any) -> None:
        """An own question has its answer."""
        key = self._open.pop(number, None) if self._open else None
        if key is not None:
            self._state.outcomes[number] = msgpack.packb((ok, packed))
            if key in self._aside:
                self._order.appendleft((self._aside.pop(key), key))

    def answer(self, number: int) -> tuple[bool, Any] | None:
        """The answer of a question with a key, if it has one."""
        raw = self._state.outcomes.get(number)
        if raw is None:
            return None
        ok, packed = msgpack.unpackb(raw, strict_map_key=False, max_bin_len=len(raw), max_str_len=len(raw))
        return ok, packed
