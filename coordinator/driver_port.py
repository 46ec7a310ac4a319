"""What Handles and Refs mean in the driver's own threads: submit, wait, and never touch the runner's state.

Numbers of questions are given out here, under a lock; everything else happens on the driver runner's
thread (`cutline.participant.driver`), to which this posts.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import contextmanager
from typing import Any, TypeVar

from cutline.errors import Misuse, ReplayMismatch, UnknownParticipant
from cutline.participant.driver import DriverRunner, Place, Submission
from cutline.participant.handle import CallOptions, Handle, Ref, live_loaders, make_ref
from cutline.participant.likeness import call_digest
from cutline.participant.messages import ASK, pack_arguments, unpack_error, unpack_value

__all__ = ("DriverPort", "outcome")

T = TypeVar("T")


class _InLoop:
    """A body that is running: its place, and what the cut has of this step already."""

    def __init__(self, name: str, step: int, known: dict[int, list[int]], generation: int) -> None:
        self.name = name
        self.step = step
        self.known = known
        self.generation = generation
        self.index = 0


class DriverPort:
    """`cutline.participant.handle.Port` for user threads of the driver."""

    def __init__(self, runner: DriverRunner) -> None:
        self.runner = runner
        self.live = live_loaders(self._load_handle, self._load_ref)
        self._lock = threading.Lock()
        self._next = 1
        self._local = threading.local()

    @property
    def name(self) -> str:
        """The driver's participant."""
        return self.runner.me.name

    @property
    def class_name(self) -> str:
        """The driver is no class of the user's."""
        return ""

    def numbers_from(self, number: int) -> None:
        """Questions get numbers from here on."""
        with self._lock:
            self._next = max(self._next, number)

    def on_runner(self, call: Callable[[], T], timeout: float | None = None) -> T:
        """Runs something on the runner's thread and waits for it."""
        done: Future[T] = Future()

        def run() -> None:
            try:
                done.set_result(call())
            except Exception as error:
                done.set_exception(error)

        self._check()
        self.runner.post(run)
        return done.result(timeout)

    def _check(self) -> None:
        if self.runner.fault is not None:
            raise self.runner.fault
        undone = self.runner.rolled_back
        if undone is not None:
            self.runner.rolled_back = None
            raise undone

    # -- calls -----------------------------------------------------------------------------

    def ask(self, target: str, method: str, args: Any, kwargs: Any, options: CallOptions) -> Ref[Any]:
        """Submits a question; the Ref's answer is unstable until a checkpoint holds it."""
        arguments = self._pack(target, method, args, kwargs)
        body = self._loop()
        place, number = self._place(body, target, method, arguments)
        if number is not None:
            future = self.runner.waiting.setdefault(number, Future())
            self.runner.post(lambda: self._redeliver(number))
            return self._load_ref(self.name, number, target, method)
        number = self._number()
        if not options.durable:
            self.runner.reads.add(number)
        future = self.runner.waiting[number] = Future()
        self._submit("ask", number, target, method, arguments, options, place, body, future)
        return self._load_ref(self.name, number, target, method)

    def _redeliver(self, number: int) -> None:
        known = self.runner.desk.answers.get(number)
        if known is not None:
            self.runner.deliver(number, *known)

    def tell(self, target: str, method: str, args: Any, kwargs: Any, options: CallOptions) -> None:
        """Submits a message that wants no answer."""
        arguments = self._pack(target, method, args, kwargs)
        body = self._loop()
        place, known = self._place(body, target, method, arguments)
        if known is None:
            self._submit("tell", self._number(), target, method, arguments, options, place, body, None)

    def _pack(self, target: str, method: str, args: Any, kwargs: Any) -> Any:
        self._check()
        if target not in self.runner.known_names:
            known = ", ".join(sorted(self.runner.known_names)) or "none"
            raise UnknownParticipant(
                f"there is no participant {target!r}; spawn it first (known: {known})", participant=target
            )
        where = f"arguments of {target}.{method}"
        return pack_arguments(args, kwargs, participant=self.name, where=where)

    def _submit(
        self,
        kind: str,
        number: int,
        target: str,
        method: str,
        arguments: Any,
        options: CallOptions,
        place: Place | None,
        body: _InLoop | None,
        answer: Future[Any] | None,
    ) -> None:
        taken: Future[Any] = Future()
        if answer is not None:
            # What was not taken has no answer: whoever waits hears the reason.
            taken.add_done_callback(lambda done: _fail(done, answer))
        generation = body.generation if body is not None else 0
        self.runner.post(
            Submission(
                kind,
                number,
                target,
                method,
                arguments,
                options.key,
                options.durable,
                place,
                generation,
                taken,
            )
        )

    def _number(self) -> int:
        with self._lock:
            number = self._next
            self._next += 1
        return number

    # -- loops -----------------------------------------------------------------------------

    def _loop(self) -> _InLoop | None:
        body: _InLoop | None = getattr(self._local, "body", None)
        if body is not None and body.generation != self.runner.generation:
            self._check()
            # The error was taken by the body itself: it must not go on in a world that was undone.
            raise self.runner.undone()
        return body

    def _place(
        self, body: _InLoop | None, target: str, method: str, arguments: Any
    ) -> tuple[Place | None, int | None]:
        """The place of the next submission, and its number if the cut has it already."""
        if body is None:
            return None, None
        index, body.index = body.index, body.index + 1
        digest = call_digest(ASK, f"{target} {method}", arguments)
        known = body.known.get(index)
        if known is None:
            return Place(body.name, body.step, index, digest), None
        if known[1] != digest:
            raise ReplayMismatch(
                f"loop {body.name!r}, step {body.step}: the body was run again and its call "
                f"{index + 1} differs "
                f"from the first time (now {target}.{method}); the body must do the same at the same step"
            )
        return None, known[0]

    @contextmanager
    def inside(self, name: str, step: int, known: dict[int, list[int]], generation: int) -> Iterator[None]:
        """This thread's calls belong to one step of a loop."""
        if getattr(self._local, "body", None) is not None:
            raise Misuse(f"loop {name!r} is inside another loop; loops of one driver follow each other")
        self._local.body = _InLoop(name, step, known, generation)
        try:
            yield
        finally:
            self._local.body = None

    @property
    def in_loop(self) -> bool:
        """Whether this thread is inside a loop's body."""
        return getattr(self._local, "body", None) is not None

    # -- answers ---------------------------------------------------------------------------

    def result(self, ref: Ref[Any], timeout: float | None, committed: bool) -> Any:
        """Blocks for an answer."""
        self._check()
        what = f"answer of {ref.target}.{ref.method}"
        ok, packed = outcome(self._future(ref), timeout, what)
        if committed:
            stable: Future[None] = Future()
            self.runner.post(lambda: self._await_stable(ref.number, stable))
            outcome(stable, timeout, f"checkpoint that holds the {what}")
        if ok:
            return unpack_value(packed, participant=self.name, live=self.live)
        raise unpack_error(packed, participant=self.name, live=self.live)

    def _await_stable(self, number: int, stable: Future[None]) -> None:
        self.runner.await_stable(number, stable)
        if not stable.done():
            self.runner.request("checkpoint", {}, Future())

    def _future(self, ref: Ref[Any]) -> Future[Any]:
        if ref.owner != self.name:
            raise Misuse(f"{ref!r} was asked by {ref.owner!r}; ask that participant for the answer")
        held: Future[Any] | None = ref.future
        if held is None:
            held = self.runner.waiting.setdefault(ref.number, Future())
            number = ref.number
            self.runner.post(lambda: self._redeliver(number))
            ref.future = held
        return held

    def future_of(self, ref: Ref[Any]) -> Future[Any]:
        """The future behind a Ref: done when its answer is there."""
        return self._future(ref)

    def wait(self, ref: Ref[Any]) -> Any:
        """``await ref`` in an asyncio program of the driver."""

        async def answer() -> Any:
            ok, packed = await asyncio.wrap_future(self._future(ref))
            if ok:
                return unpack_value(packed, participant=self.name, live=self.live)
            raise unpack_error(packed, participant=self.name, live=self.live)

        return _Awaitable(answer)

    def then(self, ref: Ref[Any], method: Any, own: tuple[Any, ...], error: Any) -> None:
        """Continuations are for handlers."""
        raise Misuse("ref.then(...) is for handlers of participants; in the driver use cutline.get(ref)")

    def keep(self, ref: Ref[Any]) -> None:
        """A Ref of the driver leaves in a message."""
        if ref.owner == self.name:
            number = ref.number
            self.runner.post(lambda: self.runner.desk.exported.setdefault(number))

    def methods_of(self, class_name: str) -> frozenset[str] | None:
        """The methods of a class by name."""
        methods: frozenset[str] | None = self.runner.classes.methods_of(class_name)
        return methods

    def _load_handle(self, name: str, class_name: str) -> Handle:
        return Handle(name, class_name, self)

    def _load_ref(self, owner: str, number: int, target: str, method: str) -> Ref[Any]:
        ref = make_ref(owner, number, target, method, self)
        if owner == self.name:
            ref.future = self.runner.waiting.get(number)
        return ref


def outcome(future: Future[T], timeout: float | None, what: str) -> T:
    """What a future comes to.

    Raises:
        TimeoutError: nothing in `timeout` seconds; names `what`. (Python 3.10's futures have another one.)
    """
    try:
        return future.result(timeout)
    except FutureTimeout:
        if future.done():
            raise
        raise TimeoutError(f"no {what} in {timeout} s") from None


class _Awaitable:
    def __init__(self, answer: Callable[[], Any]) -> None:
        self._answer = answer

    def __await__(self) -> Any:
        return self._answer().__await__()


def _fail(done: Future[Any], answer: Future[Any]) -> None:
    error = done.exception()
    if error is not None and not answer.done():
        answer.set_exception(error)
