"""A participant's calls in both directions: who asked what, who waits for an answer, what is suspended.

The desk turns one message into one step of the user's code, from boundary to boundary: a sync handler
runs to its return, an async one to its next await on something that is not there. What a step sends is
collected in `out` and leaves when the step is over. Everything else the desk knows is part of the
participant's image (`cutline.participant.desk_image`).

Waiters of an answer: a continuation (`then`), a suspended handler, another participant that holds the
Ref. An answer stays until nobody can ask for it: its Ref is collected, and it never left in a message.
"""

from __future__ import annotations

import inspect
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from cutline.barrier import Member, Spawn
from cutline.errors import AnswerForgotten, BlockingInHandler, CutlineError, Misuse, UnknownMethod

from .async_call import ANSWERED, AsyncCall
from .effect_request import OUTSIDE, EffectRequest, make_request
from .handle import CallOptions, Handle, Ref, live_loaders, make_ref
from .likeness import Sayings, call_digest, earlier_digests
from .messages import (
    ANSWER,
    ASK,
    CHASE,
    SPAWN,
    TELL,
    are_plain,
    encode_answer,
    encode_ask,
    encode_chase,
    encode_tell,
    pack_arguments,
    pack_error,
    unpack_arguments,
    unpack_error,
    unpack_value,
)
from .method_table import refuse_generator
from .output import Output
from .person import PEOPLE, make_question
from .renames import RENAMES
from .spawning import check_name, packer, record_of
from .steps import Steps
from .suspended import HandlerRaised, SuspendedCalls
from .timers import CLOCK, Queue, make_timer

__all__ = ("Desk", "HandlerRaised", "EXPORTED_ANSWERS", "DEAD_LETTERS", "LEAVE")

# The method by which a driver asks a participant to leave; no user's method is called so.
LEAVE = "@leave"

EXPORTED_ANSWERS = 10_000
DEAD_LETTERS = 1_000


class Desk(SuspendedCalls):
    """See the module's head. Implements `cutline.participant.handle.Port` for handlers."""

    def __init__(
        self,
        me: Member,
        instance: object,
        *,
        class_name: str = "",
        methods_of: Callable[[str], frozenset[str] | None] = lambda _: None,
        fingerprint: Callable[[AsyncCall], bytes] | None = None,
        now: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.me = me
        self.instance = instance
        self.class_name = class_name
        self.methods_of = methods_of
        self.fingerprint = fingerprint
        self.now = now
        # Spawns are among it, in their place.
        self.out: list[tuple[str | Member, Any]] = []
        self.has_spawned = False
        # Whether the participant leaves: nothing more is handled. Its runner hears of it at once.
        self.leaving = False
        self.on_leave: Callable[[], None] = lambda: None
        # Which cluster options of newborns can name places of.
        self.cluster = ""
        self.handled = 0
        self.handlers = 0
        self.next_number = 1
        self.next_call = 1
        self.asks: dict[int, tuple[str, str, list[list[Any]]]] = {}
        self.answers: dict[int, tuple[bool, Any]] = {}
        self.exported: OrderedDict[int, None] = OrderedDict()
        self.kept: set[int] = set()
        self.calls: dict[int, AsyncCall] = {}
        self.armed: dict[int, tuple[float, int]] = {}
        self.timers = Queue()
        self.dead_letters: deque[list[Any]] = deque(maxlen=DEAD_LETTERS)
        self.live_refs: weakref.WeakValueDictionary[int, Ref[Any]] = weakref.WeakValueDictionary()
        self.active: AsyncCall | None = None
        self.in_handler = ""
        self.live = live_loaders(self._load_handle, self._load_ref)
        self.on_answered: Callable[[int, bool, Any], None] | None = None
        self._methods: dict[str, tuple[Any, bool]] = {}
        self.sync_methods: dict[str, Callable[..., Any]] = {}
        self.after: deque[Callable[[], None]] = deque()
        # What a restore in another program found that others have to know; see `fitting`.
        self.fit: dict[str, Any] | None = None
        # What was asked of the world and has no result, and what of it the runner has not heard of.
        self.lineage = ""
        self.effects: dict[int, EffectRequest] = {}
        self.fresh_effects: list[EffectRequest] = []
        # What was emitted and is not known to be published.
        self.output = Output({}, "", me)
        # Large arguments that travel beside their messages, where a host has a way for them.
        self.parcels: Any = None
        # Durable steps, where a host has a place for them.
        self.steps: Steps | None = None

    @property
    def name(self) -> str:
        """The participant's name."""
        return self.me.name

    def close(self) -> None:
        """Drops all suspended handlers and lets go of the instance: a rollback, or the end."""
        super().close()
        # The instance may hold handles, which hold this desk: without a circle it goes at once.
        self.instance = None
        self._methods.clear()
        self.sync_methods.clear()

    # -- one message, one step -----------------------------------------------------------

    def handle(self, sender: Member, message: list[Any]) -> None:
        """Runs the step that a message causes.

        Raises:
            HandlerRaised: user code raised and nobody waits for an answer.
        """
        kind, number, detail, packed = message
        if kind == TELL or kind == ASK:
            bound = self.sync_methods.get(detail)
            if bound is not None and type(packed) is list:
                self._run(bound, sender, number, detail, packed)
            else:
                self._call(sender, number, detail, packed)
        elif kind == ANSWER:
            self.answered(number, detail, packed)
        elif kind == CHASE:
            self._chased(sender, number, detail)
        else:
            raise CutlineError(f"participant {self.name!r} got a message of unknown kind {kind!r}")
        if self.after:
            self.drain()

    def _run(
        self, bound: Callable[..., Any], sender: Member, question: int, method: str, plain: list[Any]
    ) -> None:
        """A sync handler with plain arguments: what `_call` would do, without its detours."""
        self.in_handler = method
        try:
            value = bound(*plain)
        except Exception as error:
            self._raised(sender, question, method, error)
            return
        finally:
            self.in_handler = ""
        if question:
            self._answer(sender, question, method, value)

    def method_of(self, method: str) -> tuple[Any, bool]:
        known = self._methods.get(method)
        if known is None and method == LEAVE:
            return self.leave, False
        if known is None:
            bound = None if method.startswith("__") else getattr(self.instance, method, None)
            called = method
            if not callable(bound) and (today := RENAMES.inside(type(self.instance), method)) is not None:
                # A message of before it was renamed.
                called, bound = today, getattr(self.instance, today, None)
            if not callable(bound):
                raise UnknownMethod(
                    f"participant {self.name!r} ({self.class_name}) has no method {method!r}",
                    participant=self.name,
                    method=method,
                )
            refuse_generator(bound, self.name, method)
            known = bound, inspect.iscoroutinefunction(bound)
            if getattr(type(self.instance), called, None) is not None:
                self._methods[method] = known
                if not known[1]:
                    self.sync_methods[method] = bound
        return known

    def _call(self, sender: Member | None, question: int, method: str, packed: Any) -> None:
        try:
            bound, is_async = self.method_of(method)
            args, kwargs = unpack_arguments(packed, participant=self.name, live=self.live)
            if is_async:
                # Arguments that do not fit raise here, before there is anything to suspend.
                self._begin(bound(*args, **kwargs), sender, question, method, packed)
                return
            self.in_handler = method
            try:
                value = bound(*args, **kwargs)
            finally:
                self.in_handler = ""
        except Exception as error:
            self._raised(sender, question, method, error)
            return
        if question and sender is not None:
            self._answer(sender, question, method, value)

    # -- answers -------------------------------------------------------------------------

    def answered(self, number: int, ok: bool, packed: Any, *, bury: bool = False) -> None:
        """Takes the answer of an own question; a second one for the same question changes nothing.

        `bury`: continuations and told handlers that wait for it have failed too often and end here.
        """
        ask = self.asks.pop(number, None)
        if ask is None:
            return
        self.answers[number] = (ok, packed)
        if self.on_answered is not None:
            self.on_answered(number, ok, packed)
        for waiter in ask[2]:
            if not (bury and self._buried(waiter)):
                self._serve(waiter, number)

    def _buried(self, waiter: list[Any]) -> bool:
        if waiter[0] == "call":
            call = self.calls.get(waiter[1])
            if call is None or call.question:
                return False
            self.drop(call)
        return bool(waiter[0] != "peer")

    def _serve(self, waiter: list[Any], number: int) -> None:
        ok, packed = self.answers[number]
        kind = waiter[0]
        if kind == "call":
            call = self.calls.get(waiter[1])
            if call is not None:
                self.after.append(partial(self._wake, call, ANSWERED, number, ok, packed))
        elif kind == "then":
            self.after.append(partial(self._continue, waiter, ok, packed))
        elif kind == "tell":
            _, target, method, own = waiter
            if target:
                self.out.append((target, encode_tell(method, own)))
            else:
                self.after.append(partial(self._call, None, 0, method, own))
        else:
            _, name, birth, theirs = waiter
            self.out.append((Member(name, birth), encode_answer(theirs, ok, packed)))

    def _continue(self, waiter: list[Any], ok: bool, packed: Any) -> None:
        _, method, own, error_method = waiter
        try:
            args, _kwargs = unpack_arguments(own, participant=self.name, live=self.live)
            if ok:
                answer = unpack_value(packed, participant=self.name, live=self.live)
            else:
                answer = unpack_error(packed, participant=self.name, live=self.live)
            name = method if ok else error_method
            where = f"continuation {name}"
            arguments = pack_arguments((answer, *args), {}, participant=self.name, where=where)
        except Exception as error:
            raise HandlerRaised(method, error) from error
        if not name:
            raise HandlerRaised(method, answer)
        self._call(None, 0, name, arguments)

    def _chased(self, sender: Member, number: int, owned: int) -> None:
        waiter = ["peer", sender.name, sender.birth, number]
        if owned in self.asks:
            self.asks[owned][2].append(waiter)
        elif owned in self.answers:
            self._serve(waiter, owned)
        else:
            error = AnswerForgotten(
                f"participant {self.name!r} no longer has the answer of its question {owned}: "
                f"it keeps the last {EXPORTED_ANSWERS} answers whose Refs it has sent away",
                participant=self.name,
            )
            self.out.append((sender, encode_answer(number, False, pack_error(error, participant=self.name))))

    def sweep(self) -> None:
        """Forgets answers that nobody can ask for any more."""
        wanted = self.live_refs
        gone = [n for n in self.answers if n not in wanted and n not in self.exported and n not in self.kept]
        for number in gone:
            del self.answers[number]

    # -- what user code calls (Port) -----------------------------------------------------

    def ask(self, target: str, method: str, args: Any, kwargs: Any, options: CallOptions) -> Ref[Any]:
        """Sends a call that wants an answer; it leaves when the step is over."""
        return self._ask(target, method, self._packed(target, method, args, kwargs))

    def _ask(self, target: str, method: str, arguments: Any) -> Ref[Any]:
        number, is_new = self.numbered(target, ASK, method, arguments)
        if is_new:
            self.asks[number] = (target, method, [])
            self.out.append((target, encode_ask(number, method, arguments)))
        return self._load_ref(self.name, number, target, method)

    def tell(self, target: str, method: str, args: Any, kwargs: Any, options: CallOptions) -> None:
        """Sends a call that wants none."""
        packed = args if are_plain(args, kwargs) else self._packed(target, method, args, kwargs)
        if self.active is None or self._asked(target, TELL, method, packed, lambda: 0)[1]:
            self.out.append((target, encode_tell(method, packed)))

    def create(
        self, kind: type, name: str | None, options: Mapping[str, Any], args: Any, kwargs: Any
    ) -> Handle:
        """Spawns: leaves when the step is over, ahead of what is sent to the newborn; see `cutline.spawn`."""
        if name is None:
            name = self._name_for(kind)
        check_name(name, "driver")
        packed = packer(self.name, name)(args, kwargs)
        record = record_of(kind, options, packed, self.cluster)
        number, is_new = self.numbered(name, SPAWN, record["class_name"], packed)
        if is_new:
            self.has_spawned = True
            self.out.append((name, Spawn(number, name, record)))
        return Handle(name, record["class_name"], self)

    def ask_effect(self, function: Any, args: tuple[Any, ...], policy: Any) -> Ref[Any]:
        """Asks the world for something, when a checkpoint holds the request; see `cutline.effect`."""
        return self._asked_outside(OUTSIDE, *make_request(self, function, args, policy))

    def ask_person(self, question: str, schema: Any, deadline: Any) -> Ref[Any]:
        """Asks a person, when a checkpoint holds the question; see `cutline.ask_person`."""
        return self._asked_outside(PEOPLE, *make_question(self, question, schema, deadline))

    def _asked_outside(self, target: str, request: EffectRequest | None, number: int, name: str) -> Ref[Any]:
        if request is not None:
            self.asks[number] = (target, name, [])
            self.effects[number] = request
            self.fresh_effects.append(request)
        return self._load_ref(self.name, number, target, name)

    def ask_clock(self, seconds: Any, method: Any, args: Any, kwargs: Any) -> Ref[Any]:
        """Asks to be told after so many seconds; see `cutline.after`."""
        number, is_new, waiters = make_timer(self, seconds, method, args, kwargs)
        if is_new:
            self.asks[number] = (CLOCK, "after", waiters)
            self.timers.set(number, self.now() + seconds)
        return self._load_ref(self.name, number, CLOCK, "after")

    def leave(self) -> None:
        """The participant leaves when the step is over; see `cutline.leave`."""
        self.leaving = True
        self.on_leave()

    def end_all(self, error: bytes) -> None:
        """Ends what is suspended, and the waiting of others for answers that would come here."""
        for call in list(self.calls.values()):
            self.drop(call)
            if call.question and call.sender is not None:
                self.out.append((call.sender, encode_answer(call.question, False, error)))
        for ask in self.asks.values():
            for waiter in ask[2]:
                if waiter[0] == "peer":
                    self.out.append((Member(waiter[1], waiter[2]), encode_answer(waiter[3], False, error)))
        self.asks.clear()

    def _name_for(self, kind: type) -> str:
        """A name that no other newborn of this participant has; the same one in a re-run."""
        call = self.active
        place = str(self.next_number) if call is None else f"{call.number}.{call.made}"
        return f"{kind.__name__}-{self.name}-{place}"

    def _packed(self, target: str, method: str, args: Any, kwargs: Any) -> Any:
        return pack_arguments(args, kwargs, participant=self.name, where=f"arguments of {target}.{method}")

    def numbered(
        self, target: str, kind: int, detail: str | int, arguments: Any, others: Sayings = tuple
    ) -> tuple[int, bool]:
        """The number of a request, and whether it is new: not in a re-run of it, or of one of ``others``."""
        if self.active is None:
            return self._fresh_number(), True
        return self._asked(target, kind, detail, arguments, self._fresh_number, others)

    def _asked(
        self, target: str, kind: int, detail: Any, said: Any, new: Callable[[], int], others: Sayings = tuple
    ) -> tuple[int, bool]:
        """The same, of a request of an async handler."""
        assert self.active is not None
        digest = call_digest(kind, detail, said)
        earlier = partial(earlier_digests, kind, detail, said, others)
        return self.active.request(target, digest, new, earlier)

    def _fresh_number(self) -> int:
        number = self.next_number
        self.next_number += 1
        return number

    def then(self, ref: Ref[Any], method: Any, own: tuple[Any, ...], error: Any) -> None:
        """Registers a continuation."""
        if self.active is not None:
            raise Misuse(
                f"{self.name}.{self.in_handler} is async: write `await ref` there; `then` is "
                "for sync handlers (a re-run would register it twice)"
            )
        names = [self._own_method(method), self._own_method(error) if error is not None else ""]
        packed = pack_arguments(own, {}, participant=self.name, where=f"values carried to {names[0]}")
        number = self._own_number(ref)
        waiter = ["then", names[0], packed, names[1]]
        if number in self.asks:
            self.asks[number][2].append(waiter)
        elif number in self.answers:
            self._serve(waiter, number)
        else:
            raise self._forgotten(ref)

    def _own_method(self, method: Any) -> str:
        if getattr(method, "__self__", None) is not self.instance:
            raise Misuse(
                f"{self.name}: a continuation must be a bound method of the participant "
                "itself (self.on_answer); "
                f"its name is what the image keeps. Got {method!r}.",
                participant=self.name,
            )
        name: str = method.__name__
        return name

    def wait(self, ref: Ref[Any]) -> Any:
        """A future of the running async handler."""
        call = self.active
        if call is None:
            raise Misuse(f"{self.name}: `await ref` works in async handlers; in a sync one use ref.then(...)")
        number = self._own_number(ref)
        future = call.future(number)
        if number in call.known:
            del call.waiting[number][-1]
            self.settle_future(future, call.known[number])
        elif number in self.asks:
            waiters = self.asks[number][2]
            if ["call", call.number] not in waiters:
                waiters.append(["call", call.number])
        elif number not in self.answers and not call.has_asked(number) and not self._replaying(call):
            raise self._forgotten(ref)
        return future

    def _replaying(self, call: AsyncCall) -> bool:
        return any(wake.kind == ANSWERED and wake.number not in call.known for wake in call.journal)

    def _own_number(self, ref: Ref[Any]) -> int:
        """The number of an own question that stands for `ref`; somebody else's Ref is chased."""
        if ref.owner == self.name:
            return ref.number
        number, is_new = self.numbered(ref.owner, CHASE, ref.number, None)
        if is_new:
            self.asks[number] = (ref.owner, "", [])
            self.out.append((ref.owner, encode_chase(number, ref.number)))
        return number

    def _forgotten(self, ref: Ref[Any]) -> AnswerForgotten:
        return AnswerForgotten(f"participant {self.name!r}: the answer of {ref!r} is no longer kept")

    def result(self, ref: Ref[Any], timeout: float | None, committed: bool) -> Any:
        """Refused: a handler must not block."""
        raise BlockingInHandler(
            f"{self.name}.{self.in_handler} blocks on the answer of {ref.target}.{ref.method}. A handler "
            "that waits holds up every checkpoint, and its request leaves only when it returns. Make it "
            f"`async def {self.in_handler}` and write `await {ref.target}.{ref.method}.remote(...)`, or "
            "continue in another method: ref.then(self.on_answer).",
            caller=f"{self.name}.{self.in_handler}",
            callee=f"{ref.target}.{ref.method}",
        )

    def keep(self, ref: Ref[Any]) -> None:
        """The Ref leaves: its answer is kept for whoever asks."""
        if ref.owner == self.name:
            self.keep_number(ref.number)

    def keep_number(self, number: int) -> None:
        """Somebody may ask for the answer of this question."""
        self.exported[number] = None
        if len(self.exported) > EXPORTED_ANSWERS:
            self.exported.popitem(last=False)

    def _load_handle(self, name: str, class_name: str) -> Handle:
        return Handle(name, class_name, self)

    def _load_ref(self, owner: str, number: int, target: str, method: str) -> Ref[Any]:
        if owner != self.name:
            return make_ref(owner, number, target, method, self)
        ref = self.live_refs.get(number)
        if ref is None:
            ref = make_ref(owner, number, target, method, self)
            self.live_refs[number] = ref
        return ref
