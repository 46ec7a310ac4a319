"""What Handles and Refs mean in the driver's own threads: submit, wait, and never touch the runner's state.

Numbers of questions are given out here, under a lock; everything else happens on the driver runner's
thread (`cutline.participant.driver`), to which this posts.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

from cutline.errors import AnswerForgotten, InputRefused, Misuse, ParticipantLeft, ReplayMismatch
from cutline.participant.desk import LEAVE
from cutline.participant.driver import DriverRunner
from cutline.participant.handle import CallOptions, Handle, Ref, live_loaders, make_ref
from cutline.participant.late import Gates, late_call
from cutline.participant.likeness import call_digest
from cutline.participant.messages import ASK, pack_arguments, unpack_error, unpack_value
from cutline.participant.pickling import Join
from cutline.participant.room import input_size
from cutline.participant.submission import Place, Submission, Taken, Waited

from .births import Births, outcome

__all__ = ("DriverPort", "outcome")

T = TypeVar("T")
_log = logging.getLogger("cutline")


class _InLoop:
    """A body that is running: its place, and what the cut has of this step already."""

    def __init__(self, name: str, step: int, known: dict[int, list[int]], generation: int) -> None:
        self.name = name
        self.step = step
        self.known = known
        self.generation = generation
        self.index = 0
        self.late: list[Future[None]] = []


class DriverPort:
    """`cutline.participant.handle.Port` for user threads of the driver."""

    def __init__(
        self, runner: DriverRunner, cluster: str = "", join: Callable[..., Any] | None = None
    ) -> None:
        self.runner = runner
        self.join = join
        self.gates = Gates()
        self.births = Births(runner, self, cluster)
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

    def on_runner(self, call: Callable[[], T], *, check: bool = True) -> T:
        """Runs something on the runner's thread and waits for it."""
        done: Future[T] = Future()

        def run() -> None:
            try:
                done.set_result(call())
            except Exception as error:
                done.set_exception(error)

        if check or self.runner.is_copy:
            self.check()
        elif self.runner.fault is not None:
            raise self.runner.fault
        self.runner.post(run)
        return done.result()

    def check(self) -> None:
        """Raises what this session has not heard yet: the system halted, or went back, or an input that
        it told was not taken; or that this process is a fork of the program's.
        """
        if self.runner.is_copy:
            raise Misuse(
                "this process was forked from the program that has started the system, and is not connected "
                "to it: call participants in the program itself, and hand results over"
            )
        if self.runner.fault is not None:
            raise self.runner.fault
        undone = self.runner.rolled_back
        if undone is not None:
            self.runner.rolled_back = None
            raise undone
        refused = self.runner.refused
        if refused is not None:
            self.runner.refused = None
            raise refused

    # -- calls -----------------------------------------------------------------------------

    def ask(self, target: str, method: str, args: Any, kwargs: Any, options: CallOptions) -> Ref[Any]:
        """Submits a question; the Ref's answer is unstable until a checkpoint holds it."""
        future: Future[Any] = Future()
        call = self._call("ask", target, method, args, kwargs, options, future)
        if call < 0:
            future = self.runner.waiting.setdefault(-call, future)
            self.runner.post(lambda: self._redeliver(-call))
        # The future itself, not what the table holds by now: the answer may have been here already.
        ref = make_ref(self.name, abs(call), target, method, self)
        ref.future = future
        return ref

    def _redeliver(self, number: int) -> None:
        runner = self.runner
        known = runner.desk.answers.get(number) or runner.known_keys().answer(number)
        if known is not None:
            runner.deliver(number, *known)
            return
        future = runner.waiting.get(number)
        if future is None or future.done() or number in runner.desk.asks or runner.is_coming(number):
            return
        error = runner.fault or AnswerForgotten(f"the answer of question {number} is no longer kept")
        future.set_exception(error)

    def tell(self, target: str, method: str, args: Any, kwargs: Any, options: CallOptions) -> None:
        """Submits a message that wants no answer."""
        self._call("tell", target, method, args, kwargs, options, None)

    def stop(self, name: str, is_gone: Callable[[], bool], timeout: float | None) -> None:
        """Has a participant leave; `is_gone` waits for it. See `System.stop_participant`."""
        if name == self.name:
            raise Misuse("the driver's participant is this program; system.stop() ends the system")
        order = self.ask(name, LEAVE, (), {}, CallOptions())
        # It may leave already, by itself.
        with suppress(ParticipantLeft):
            self.result(order, timeout, False)
        while not is_gone():
            self.check()

    def create(
        self, kind: type, name: str | None, options: Mapping[str, Any], args: Any, kwargs: Any
    ) -> Handle:
        """Begins to make a participant; see `cutline.participant.actor.Creator`."""
        return self.births.spawn(name, kind, options, args, kwargs)[0]

    def _call(
        self,
        kind: str,
        target: str,
        method: str,
        args: Any,
        kwargs: Any,
        options: CallOptions,
        answer: Future[Any] | None,
    ) -> int:
        """Submits a call, now or when its arguments are there; returns its number.

        If the cut has it already (the body of a loop is run again), the number is negative.
        """
        self.check()
        late = late_call(args, kwargs)
        body = self._loop()
        # What is logged is logged as bytes.
        join: Join | None = None
        if self.join is not None and not (options.durable and body is None):
            join = partial(self.join, compared=body is not None)
        shown: tuple[Any, Any] = (args, kwargs) if late is None else late.outline()
        said, carried = self._pack(target, method, *shown, join)
        place, known = self._place(body, target, method, said)
        if known is not None:
            return -known
        self.births.check(target)
        number = self.number()
        if answer is not None:
            if not options.durable:
                self.runner.reads.add(number)
            self.runner.waiting[number] = answer

        def go() -> None:
            packed = (said, carried) if late is None else self._pack(target, method, *late.filled(), join)
            self._submit(kind, number, target, method, *packed, options, place, body, answer)

        def failed(error: Exception) -> None:
            if answer is None:
                _log.error("driver: %s.%s was not told: %s: %s", target, method, type(error).__name__, error)
            elif not answer.done():
                self.runner.waiting.pop(number, None)
                answer.set_exception(error)

        try:
            done = self.gates.through(target, late, go, failed)
        except BaseException:
            self.runner.waiting.pop(number, None)
            self.runner.reads.discard(number)
            raise
        if done is not None and body is not None:
            body.late.append(done)
        return number

    def _pack(
        self, target: str, method: str, args: Any, kwargs: Any, join: Join | None
    ) -> tuple[Any, tuple[int, ...]]:
        """Packed arguments, and the numbers of own questions whose Refs are among them."""
        where = f"arguments of {target}.{method}"
        carried = self._local.carried = []
        try:
            packed = pack_arguments(args, kwargs, participant=self.name, where=where, join=join)
            return packed, tuple(carried)
        finally:
            self._local.carried = None

    def _submit(
        self,
        kind: str,
        number: int,
        target: str,
        method: str,
        arguments: Any,
        carried: tuple[int, ...],
        options: CallOptions,
        place: Place | None,
        body: _InLoop | None,
        answer: Future[Any] | None,
    ) -> None:
        generation = body.generation if body is not None else 0
        # Whoever sends faster than others take waits here, as a source does.
        waits = threading.get_ident() != self.runner.ident
        # Whether there was room is nothing that the body of a loop may depend on: a re-run does the same.
        patience = options.wait if body is None else None
        size = self._enter(target, method, arguments, patience, waits)
        waited = options.acked and waits
        taken = (Waited if waited else Taken)(answer, self.runner.room, size)
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
                carried,
            )
        )
        if type(taken) is Waited:
            taken.wait()

    def _enter(self, target: str, method: str, arguments: Any, patience: float | None, waits: bool) -> int:
        """Takes room for an input, and waits for it; returns its size."""
        runner, size = self.runner, input_size(arguments)
        began = runner.generation
        if not runner.room.enter(size, patience, lambda: runner.fault is not None, waits=waits):
            why = ", participants have not taken what was sent to them" if runner.room.is_shut else ""
            raise InputRefused(
                f"{target}.{method}: {runner.room.inputs} inputs ({runner.room.bytes} bytes) wait{why}, and"
                f" {patience:g} s brought no room for another one: it was not taken; call again later, or"
                " with a longer wait=",
                participant=target,
                method=method,
            )
        if runner.generation != began:
            # It may follow from what was undone while it waited.
            try:
                self.check()
            except BaseException:
                runner.room.leave(size)
                raise
        return size

    def number(self) -> int:
        """The next question's number."""
        with self._lock:
            number = self._next
            self._next += 1
        return number

    # -- loops -----------------------------------------------------------------------------

    def _loop(self) -> _InLoop | None:
        body: _InLoop | None = getattr(self._local, "body", None)
        if body is not None and body.generation != self.runner.generation:
            self.check()
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
        body = self._local.body = _InLoop(name, step, known, generation)
        self.births.again(self.place_name)
        try:
            yield
            # The step is over when all that it calls has been submitted.
            for done in body.late:
                done.result()
        finally:
            self._local.body = None

    @property
    def in_loop(self) -> bool:
        """Whether this thread is inside a loop's body."""
        return getattr(self._local, "body", None) is not None

    @property
    def place_name(self) -> str:
        """What tells names given inside a loop from those given outside, or at another step."""
        body: _InLoop | None = getattr(self._local, "body", None)
        return "" if body is None else f"-{body.name}-{body.step}"

    # -- answers ---------------------------------------------------------------------------

    def result(self, ref: Ref[Any], timeout: float | None, committed: bool) -> Any:
        """Blocks for an answer."""
        self.check()
        what = f"answer of {ref.target}.{ref.method}"
        ok, packed = outcome(self._future(ref), timeout, what)
        if not ok and ref.target not in self.runner.known_names:
            self.births.told(ref.target)
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
            taken: Future[Any] = Future()
            # One that does not commit is no reason to wait for ever.
            taken.add_done_callback(lambda done: _fail(done, stable))
            self.runner.request("checkpoint", {}, taken)

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
        self.check()
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
        if ref.owner != self.name:
            return
        number = ref.number
        carried: list[int] | None = getattr(self._local, "carried", None)
        if carried is not None:
            carried.append(number)
        else:
            self.runner.post(lambda: self.runner.desk.keep_number(number))

    def methods_of(self, class_name: str) -> frozenset[str] | None:
        """The methods of a class by name."""
        methods: frozenset[str] | None = self.runner.classes.methods_of(class_name)
        return methods

    def _load_handle(self, name: str, class_name: str) -> Handle:
        self.births.heard_of(name)
        return Handle(name, class_name, self)

    def _load_ref(self, owner: str, number: int, target: str, method: str) -> Ref[Any]:
        ref = make_ref(owner, number, target, method, self)
        if owner == self.name:
            ref.future = self.runner.waiting.get(number)
        return ref


class _Awaitable:
    def __init__(self, answer: Callable[[], Any]) -> None:
        self._answer = answer

    def __await__(self) -> Any:
        return self._answer().__await__()


def _fail(done: Future[Any], answer: Future[Any]) -> None:
    error = done.exception()
    if error is not None and not answer.done():
        answer.set_exception(error)
