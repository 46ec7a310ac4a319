"""The part of a runner that carries out effects: `cutline.effect`, and what is asked of people.

The book (`effect_book`) decides; here are the packets, the threads (`effect_calls`) and the delivery, which
is a step at a boundary like that of a message. What was asked for and has no result is in the image with the
desk; nothing else of this is.

Order of one effect, each step after the one before is durable::

    request in a committed checkpoint -> claim row -> call -> outcome row -> answer to the desk

Of a question to a person the coordinator is told when a committed checkpoint holds it, and says when it has
an outcome.
"""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from collections.abc import Collection, Iterable
from functools import partial
from typing import Any, NamedTuple

from cutline.errors import CutlineError, Misuse
from cutline.storage.effect_table import START_SECONDS
from cutline.storage.image import ImageRef

from .answer_form import built, classes_in
from .desk import HandlerRaised
from .effect_book import Act, Book, Outcome
from .effect_calls import Calls, Storage, read_answer, reconciled, unknown_text
from .effect_request import EffectRequest, bound_to, rekeyed
from .messages import pack_error, pack_value, unpack_arguments, unpack_value
from .person import asked_of
from .places import machine_id
from .runner import Runner
from .setup import Setup

__all__ = ("Effecting",)


class _Returned(NamedTuple):
    """A call has ended."""

    key: str
    attempt: int
    outcome: Outcome


class _Judged(NamedTuple):
    """A reconcile function has answered; `trouble`: that it has not, and why."""

    key: str
    attempt: int
    outcome: Outcome | None
    trouble: str


class Effecting(Runner):
    """See the module's head. Everything runs on the runner's thread but what `Calls` runs."""

    def __init__(self, setup: Setup, *rest: Any, **named: Any) -> None:
        self.book = Book()
        self.calls = Calls()
        # Outcomes that are recorded and not delivered: key, whether it is a value, packed.
        self.outcomes: deque[tuple[str, bool, Any]] = deque()
        self._pending_at: dict[int, tuple[int, list[int]]] = {}
        super().__init__(setup, *rest, **named)

    # -- hooks of the runner -------------------------------------------------------------------

    def _new_desk(self, instance: object) -> None:
        super()._new_desk(instance)
        self.desk.lineage = self.setup.run
        self.outcomes.clear()
        self._pending_at.clear()

    def be_restored(self, ref: ImageRef, epoch: int, checkpoint: int, floor: int) -> None:
        super().be_restored(ref, epoch, checkpoint, floor)
        effects = self.desk.effects
        for number, request in effects.items():
            # In a fork: what it does is not what its origin did.
            effects[number] = rekeyed(request, self.setup.run, self.me)
        # A suspended handler that was run again, and did more than the first time, has asked for something
        # that no cut holds.
        fresh = {request.number for request in self.desk.fresh_effects}
        self._mark_since(checkpoint, fresh)
        held = [request for number, request in effects.items() if number not in fresh]
        self.desk.fresh_effects[:0] = self.book.restored(held, checkpoint)

    def _mark_since(self, checkpoint: int, fresh: Collection[int] = ()) -> None:
        for number, request in self.desk.effects.items():
            if not request.since and number not in fresh:
                self.desk.effects[number] = dataclasses.replace(request, since=checkpoint)

    def captured(self, checkpoint: int) -> None:
        super().captured(checkpoint)
        self._mark_since(checkpoint)
        self.book.withdrawn(self.desk.effects)
        self.book.captured(checkpoint, self.desk.next_number)
        if self.desk.effects or self._pending_at:
            self._pending_at[checkpoint] = self.desk.next_number, list(self.desk.effects)

    def settled(self, checkpoint: int, committed: bool) -> None:
        super().settled(checkpoint, committed)
        self.book.settled(checkpoint, committed)
        held = self._pending_at.get(checkpoint)
        if committed and held is not None:
            below, pending = held
            self._pending_at = {n: each for n, each in self._pending_at.items() if n > checkpoint}
            self.liaison.say("effect_done", checkpoint=checkpoint, below=below, pending=pending)
            if pending:
                # So that the first cut without them is told of too.
                self._pending_at.setdefault(checkpoint, held)

    @property
    def is_waiting(self) -> bool:
        # Who leaves has done what it asked for first.
        return super().is_waiting or any(not each.is_question for each in list(self.desk.effects.values()))

    @property
    def is_still(self) -> bool:
        return super().is_still and not self.outcomes

    def _has_work(self) -> bool:
        own = self.desk.fresh_effects or (self.outcomes and not self.outbox.stalled)
        if own and self.phase == "running" and not self.tainted:
            return True
        return super()._has_work()

    def _until_due(self) -> float:
        due = self.book.next_due
        wait = super()._until_due()
        return wait if due is None or self.tainted else min(wait, max(0.0, due - self.now()))

    def at_boundary(self) -> None:
        super().at_boundary()
        if self.desk.fresh_effects:
            self._take_fresh()
        if not self.book.entries:
            return
        now = self.now()
        if self.book.wants_cut(now):
            self.liaison.say("effect_cut")
        self._perform_acts([*self.book.overdue(now), *self.book.start(now)])
        while self.outcomes and not self.tainted and not self.outbox.stalled:
            self._deliver(*self.outcomes.popleft())

    def reconnected(self) -> None:
        super().reconnected()
        self._perform_acts(self.book.reconnected())
        for key, attempt in self.book.outcomes:
            self._say_outcome(key, attempt)

    def other_event(self, event: Any) -> None:
        if isinstance(event, _Returned):
            self.book.returned(*event)
            self._say_outcome(event.key, event.attempt)
        elif isinstance(event, _Judged):
            self._judged(event)
        else:
            super().other_event(event)

    def other_order(self, doc: dict[str, Any]) -> None:
        if doc["kind"] == "effect_verdict":
            self._verdict(doc)
        elif doc["kind"] == "effect_confirmed":
            self._confirmed(doc)
        else:
            super().other_order(doc)

    # -- requests ------------------------------------------------------------------------------

    def _take_fresh(self) -> None:
        fresh, self.desk.fresh_effects = self.desk.fresh_effects, []
        for request in fresh:
            if not self.book.ask(request):
                self._answer([request.number], False, self._other(request))

    def _other(self, request: EffectRequest) -> bytes:
        error = Misuse(
            f"participant {self.me.name!r}: effect {request.function} has the key {request.handed_key!r}, "
            "under which another function, or other arguments, were asked for; give it a key of its own",
            participant=self.me.name,
            key=request.handed_key,
        )
        return pack_error(error, participant=self.me.name)

    def _deliver(self, key: str, ok: bool, packed: Any) -> None:
        entry = self.book.entries.get(key)
        if entry is None:
            # Withdrawn, while its outcome was on its way.
            return
        request = entry.request
        if ok and request.is_question:
            ok, packed = self._as_asked(request, packed)
        self._answer(self.book.delivered(key), ok, packed)

    def _as_asked(self, request: EffectRequest, packed: Any) -> tuple[bool, Any]:
        """A person's answer, with instances of the dataclasses that the question names."""
        form = asked_of(request).form
        if not any(classes_in(form)):
            return True, packed
        name = self.me.name
        try:
            value = built(unpack_value(packed, participant=name, live={}), form, self.classes.find_named)
            return True, pack_value(value, participant=name, where="a person's answer")
        except Exception as error:
            # Since the question the program has changed; whoever waits for the answer hears that.
            return False, pack_error(error, participant=name)

    def _answer(self, numbers: Iterable[int], ok: bool, packed: Any) -> None:
        """A step of its own, at a boundary."""
        for number in numbers:
            self.desk.effects.pop(number, None)
            self.step_of_answer(number, ok, packed)

    # -- attempts ------------------------------------------------------------------------------

    def _perform_acts(self, acts: Iterable[Act | None]) -> None:
        for act in acts:
            if act is None:
                continue
            try:
                self._perform_act(act)
            except CutlineError as error:
                # The program lacks the function, or it has changed; nothing was called.
                self.fail(HandlerRaised(f"effect {self.book.entries[act.key].request.function}", error))

    def _perform_act(self, act: Act) -> None:
        request = self.book.entries[act.key].request
        if act.what == "claim":
            self._function(request)
            self._claim(request, act.attempt)
        elif act.what == "watch":
            self._watch(request)
        elif act.what == "call":
            self._call(request, act.attempt)
        elif act.what == "reconcile":
            self._reconcile(request, act.attempt)
        else:
            self._say_unknown(request, act.attempt)

    def _function(self, request: EffectRequest) -> Any:
        if request.function.startswith("."):
            return self.desk.method_of(request.function[1:])[0]
        return self.classes.find_named(request.function)

    def _claim(self, request: EffectRequest, after: int) -> None:
        self.liaison.say(
            "effect_claim",
            key=request.key,
            number=request.number,
            function=request.function,
            digest=request.digest,
            repeatable=request.repeatable,
            checkpoint=0 if request.repeatable else self.book.entries[request.key].checkpoint,
            since=self.desk.effects[request.number].since,
            executor={"pid": self.setup.pid, "started": self.setup.started, "machine": machine_id()},
            after=after,
            timeout=request.timeout,
        )

    def _watch(self, request: EffectRequest) -> None:
        self.liaison.say(
            "effect_watch", request=self.desk.effects[request.number].to_doc(), launch=self.setup.launch
        )

    def _storage(self) -> Storage:
        setup = self.setup
        return Storage(self.blobs, self.me.name, (setup.system, self.me.name, self.me.birth))

    def _arguments(self, request: EffectRequest) -> list[Any]:
        # Handles among them are bound to nobody: only handlers send.
        return list(unpack_arguments(request.arguments, participant=self.me.name, live={})[0])

    def _call(self, request: EffectRequest, attempt: int) -> None:
        entry = self.book.entries[request.key]
        assert self.endpoint is not None
        epoch, until = self.endpoint.epoch, entry.claimed_at + START_SECONDS
        storage, name = self._storage(), request.function
        again = entry.raised < request.retries

        def may_begin() -> bool:
            endpoint = self.endpoint
            here = endpoint is not None and endpoint.epoch == epoch and self.phase == "running"
            return here and self.now() < until

        def finish(value: Any, error: BaseException | None) -> None:
            if error is not None:
                outcome = storage.raised(
                    name, request.number, error, again=again and isinstance(error, Exception)
                )
            else:
                outcome = storage.done(name, request.number, value)
            self.post(_Returned(request.key, attempt, outcome))

        def skip() -> None:
            self.post(_Returned(request.key, attempt, Outcome("skipped")))

        try:
            function, args = self._function(request), self._arguments(request)
            given = bound_to(function, args, request.handed_key)
        except Exception as error:
            # Since the request the program has changed: it is not called.
            finish(None, error)
            return
        self.calls.run(function, args, given, may_begin, finish, skip)

    def _reconcile(self, request: EffectRequest, attempt: int) -> None:
        ask = self.classes.find_named(request.on_unknown)
        args, storage = self._arguments(request), self._storage()
        question = partial(ask, request.handed_key, *args)

        def work() -> None:
            outcome, trouble = reconciled(question, storage, request.function, request.number, time.sleep)
            self.post(_Judged(request.key, attempt, outcome, trouble))

        self.calls.thread(work)

    def _judged(self, event: _Judged) -> None:
        if event.trouble:
            self._perform_acts([self.book.given_up(event.key, event.attempt, event.trouble)])
            return
        act = self.book.judged(event.key, event.attempt, event.outcome, self.now())
        if event.outcome is not None:
            self._say_outcome(event.key, event.attempt)
        if self.phase == "running":
            self._perform_acts([act])

    def _say_outcome(self, key: str, attempt: int) -> None:
        outcome = self.book.outcomes[key, attempt]
        self.liaison.say(
            "effect_ending",
            key=key,
            attempt=attempt,
            state=outcome.state,
            answer=outcome.answer,
            blob=outcome.blob,
            by=outcome.by,
        )

    def _say_unknown(self, request: EffectRequest, attempt: int) -> None:
        trouble = self.book.entries[request.key].trouble
        text = unknown_text(request.function, self.me.name, request.number, attempt, trouble)
        self.liaison.say("effect_unknown", key=request.key, text=text)

    # -- what the coordinator says ---------------------------------------------------------------

    def _verdict(self, doc: dict[str, Any]) -> None:
        endpoint = self.endpoint
        if endpoint is None or doc["epoch"] != endpoint.epoch or doc["launch"] != self.setup.launch:
            return
        key, attempt, verdict = doc["key"], doc["attempt"], doc["verdict"]
        if verdict == "recorded":
            self._recorded(key, doc["ok"], doc["answer"], doc["blob"])
        elif self.phase != "running":
            return
        elif verdict == "granted":
            self._perform_acts([self.book.granted(key, attempt, doc["raised"], self.now())])
        elif verdict == "unknown":
            self._perform_acts([self.book.unknown(key, attempt, self.now())])
        else:
            self._key_is_taken(key)

    def _key_is_taken(self, key: str) -> None:
        entry = self.book.entries.get(key)
        if entry is not None and entry.phase == "claiming":
            self.book.recorded(key)
            self.outcomes.append((key, False, self._other(entry.request)))

    def _confirmed(self, doc: dict[str, Any]) -> None:
        key, attempt, final = doc["key"], doc["attempt"], doc["final"]
        own = self.book.outcomes.get((key, attempt))
        self.book.confirmed(key, attempt)
        if own is not None and final == attempt:
            self._recorded(key, own.state == "done", own.answer, own.blob)

    def _recorded(self, key: str, ok: bool, answer: bytes | None, blob: Any) -> None:
        if self.book.recorded(key):
            self.outcomes.append((key, ok, read_answer(self.blobs, answer, blob)))
