"""Carries out effects: threads for sync functions, one event loop for async ones; never the handlers' thread.

What comes back is an `Outcome` with the answer in the bytes that are stored: a result that has happened and
cannot be stored is an error that says so, for it must not be taken for one that has not happened.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import msgpack

from cutline.errors import Corrupt, EffectUnknown, RemoteError, ResultNotStored, StorageError
from cutline.storage.blobs import BlobStore, effect_key
from cutline.storage.codec import digest_of

from .effect_book import Outcome
from .effect_request import Done, NotDone
from .messages import pack_error, pack_value
from .processes import only_here
from .saying import shown, text_of

__all__ = (
    "RESULT_IN_ROW",
    "Calls",
    "Storage",
    "read_answer",
    "reconciled",
    "unknown_error",
    "unknown_text",
)

# Bytes of a packed result up to which it is kept in the catalog's row; larger ones are blobs.
RESULT_IN_ROW = 64 * 1024
# How often a reconcile function that raises is asked, and a result is stored, before that is given up.
TRIES = 5
PAUSE = 0.5


class Storage:
    """Turns what a function returned or raised into what is stored. Any thread may use it."""

    def __init__(self, blobs: BlobStore, participant: str, place: tuple[str, str, int]) -> None:
        self.blobs = blobs
        self.participant = participant
        self.place = place

    def done(self, function: str, number: int, value: Any, by: str = "") -> Outcome:
        """It has happened and returned this."""
        try:
            packed = pack_value(value, participant=self.participant, where=f"result of effect {function}")
            return self._stored("done", number, packed, by)
        except BaseException as error:
            # Whatever it is (pickling calls code of the user's): it has happened, and that must be known.
            lost = ResultNotStored(
                f"effect {function} of participant {self.participant!r} has happened, and its result cannot "
                f"be stored: {text_of(error)}. It is not called again; have it return what can be stored",
                participant=self.participant,
                function=function,
            )
            return Outcome("error", _bytes(pack_error(lost, participant=self.participant)), None, by)

    def raised(self, function: str, number: int, error: BaseException, *, again: bool) -> Outcome:
        """It has raised this."""
        state = "again" if again else "error"
        try:
            if not isinstance(error, Exception):
                error = RemoteError(f"effect {function} ended with {type(error).__name__}: {text_of(error)}")
            return self._stored(state, number, pack_error(error, participant=self.participant), "")
        except BaseException as failure:
            # Whatever it is (its own `__str__` may raise): the call is over, and that must be known.
            kind, why = type(error).__name__, text_of(failure)
            text = f"effect {function} raised {kind}, which cannot be stored: {why}"
            return Outcome(state, _bytes(pack_error(RemoteError(text), participant=self.participant)))

    def _stored(self, state: str, number: int, packed: Any, by: str) -> Outcome:
        answer = _bytes(packed)
        if len(answer) <= RESULT_IN_ROW:
            return Outcome(state, answer, None, by)
        for left in range(TRIES, 0, -1):
            key = effect_key(*self.place, number)
            try:
                self.blobs.create(key, [answer])
                break
            except StorageError:
                if left == 1:
                    raise
                time.sleep(PAUSE)
        return Outcome(state, None, (key, digest_of(answer), len(answer)), by)


def _bytes(packed: Any) -> bytes:
    content: bytes = msgpack.packb(packed)
    return content


def read_answer(blobs: BlobStore, answer: bytes | None, blob: Sequence[Any] | None) -> Any:
    """A packed answer, from its row or its blob. Raises Corrupt, BlobNotFound."""
    if answer is None:
        assert blob is not None
        key, digest, size = blob
        answer = blobs.read(key)
        if digest_of(answer) != digest:
            raise Corrupt(f"stored object {key} is not the effect's result that was written there", key=key)
    return msgpack.unpackb(answer, max_bin_len=len(answer), max_str_len=len(answer))


class Calls:
    """Where functions run. `finish` hears, in some thread, what came of each."""

    def __init__(self) -> None:
        self._count = 0
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        given: Mapping[str, Any],
        may_begin: Callable[[], bool],
        finish: Callable[[Any, BaseException | None], None],
        skip: Callable[[], None],
    ) -> None:
        """Calls the function, unless `may_begin`, asked right before, says that it is too late."""
        if inspect.iscoroutinefunction(function):
            self._run_async(function, args, given, may_begin, finish, skip)
            return

        def work() -> None:
            if not may_begin():
                skip()
                return
            value: Any = None
            failure: BaseException | None = None
            with only_here():
                try:
                    value = function(*args, **given)
                except BaseException as error:
                    failure = error
            finish(value, failure)

        self.thread(work)

    def thread(self, work: Callable[[], None]) -> None:
        """A thread that does not keep the process from ending."""
        self._count += 1
        threading.Thread(target=work, name=f"cutline-effect-{self._count}", daemon=True).start()

    def _run_async(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        given: Mapping[str, Any],
        may_begin: Callable[[], bool],
        finish: Callable[[Any, BaseException | None], None],
        skip: Callable[[], None],
    ) -> None:
        async def work() -> tuple[Any, BaseException | None] | None:
            if not may_begin():
                return None
            with only_here():
                try:
                    return await function(*args, **given), None
                except BaseException as error:
                    # A SystemExit too: it would end the loop, and all that others have in it.
                    return None, error

        def ended(future: Future[tuple[Any, BaseException | None] | None]) -> None:
            if future.cancelled():
                found: tuple[Any, BaseException | None] | None = (
                    None, asyncio.CancelledError("the effect was cancelled")
                )  # fmt: skip
            else:
                found = future.result()
            # Storing blocks, and the loop is for others too.
            self.thread(skip if found is None else partial(finish, *found))

        asyncio.run_coroutine_threadsafe(work(), self._running_loop()).add_done_callback(ended)

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            loop = self._loop = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="cutline-effect-loop", daemon=True).start()
        return self._loop


def reconciled(
    ask: Callable[[], Any], storage: Storage, function: str, number: int, pause: Callable[[float], None]
) -> tuple[Outcome | None, str]:
    """What a reconcile function says: an outcome, None for "surely not"; or why it says nothing."""
    reason = ""
    for left in range(TRIES, 0, -1):
        try:
            with only_here():
                said = ask()
                if inspect.iscoroutine(said):
                    said = asyncio.run(said)
        except BaseException as error:
            # A SystemExit too: nobody would ever hear of what the policy says.
            reason = f"its reconcile function raised {type(error).__name__}: {text_of(error)}"
            if left > 1:
                pause(PAUSE)
            continue
        if isinstance(said, Done):
            return storage.done(function, number, said.value, by="reconcile"), ""
        if isinstance(said, NotDone) or said is NotDone:
            return None, ""
        text = "its reconcile function must return cutline.Done(result) or cutline.NotDone()"
        return None, f"{text}, not {shown(said)}"
    return None, reason


def unknown_text(function: str, participant: str, number: int, attempt: int, reason: str) -> str:
    """What a person is told of an effect that nobody knows the outcome of."""
    why = f"; {reason}" if reason else ""
    return f"{participant}#{number} {function} (attempt {attempt}{why})"


def unknown_error(texts: Sequence[str]) -> EffectUnknown:
    """The list of effects that a person must look after."""
    return EffectUnknown(
        "whether these effects have happened is unknown, because their process was lost during the call, or "
        f"took too long: {'; '.join(texts)}. Look at the world, then say it, for each of them: `cutline "
        "effects --resolve PARTICIPANT#NUMBER --done JSON` (or --not-done, or --failed TEXT), and start the "
        "program again",
        effects=list(texts),
    )
