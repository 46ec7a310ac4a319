"""Whether what an image holds beside the state fits this program: calls, continuations, messages, spawns.

Messages name methods, and values name classes, long before anybody uses them. A restore in another program
than the one that wrote the image (`Image.header["program"]`) asks all of it at once, so that a system begins
whole or not at all; a rollback in the same program need not.

What a participant has sent and nobody is known to have received lies in its image, and only its receiver
knows whether it has handled it, and whether it has such a method. So each participant says what it found
(`Fit`, a document), and who hears them all (`unmet`) puts them together: the coordinator, or `cutline check`.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgpack

from cutline.barrier import ChannelTable, Member
from cutline.errors import CannotRestore, ClassMissing, ClassNotAllowed, SchemaMismatch

from .answer_form import classes_in
from .classes import Classes
from .desk import LEAVE, Desk
from .findings import Findings, Problem
from .messages import ANSWER, ASK, TELL, read_frame
from .person import asked_of
from .pickling import Apart, loads
from .renames import RENAMES, name_of

__all__ = ("Fit", "examine", "has_method", "unmet")

# What a participant says: its class, its methods (None: any), what it has handled of whom, what waits for
# whom.
Fit = dict[str, Any]
_STACK_GLOBAL = b"\x93"
_SCHEMA = ClassMissing, ClassNotAllowed, SchemaMismatch
_DRIVER = "driver"
# Of messages without a number: it is certain that they were not handled.
_ALWAYS = 1 << 62


def examine(
    desk: Desk,
    kind: type,
    channels: ChannelTable,
    unresolved: Mapping[str, Sequence[bytes]],
    classes: Classes,
    findings: Findings,
) -> Fit:
    """Looks at everything in an image but its state. `desk` holds its calls, and the instance if it loaded.

    Raises:
        SchemaMismatch, ClassMissing: something does not fit, unless `findings` takes all of it.
    """
    return _Examination(desk, kind, channels, unresolved, classes, findings).fit()


class _Examination:
    def __init__(
        self,
        desk: Desk,
        kind: type,
        channels: ChannelTable,
        unresolved: Mapping[str, Sequence[bytes]],
        classes: Classes,
        findings: Findings,
    ) -> None:
        self._desk, self._kind, self._channels, self._unresolved = desk, kind, channels, unresolved
        self._classes, self._findings = classes, findings
        self._is_ours = kind.__module__.startswith("cutline.")
        # What was told of already: a thousand messages may name one method.
        self._known: set[tuple[Any, ...]] = set()
        self._newborn: dict[str, type] = {}

    def fit(self) -> Fit:
        self._waiters()
        self._effects()
        if not self._is_ours:
            for number, (ok, packed) in self._desk.answers.items():
                self._value(ok, packed, f"answer of question {number}")
        self._calls()
        self._spawns()
        self._inbox()
        return {
            "class_name": name_of(self._kind),
            "methods": None if self._is_ours else _methods(self._desk.instance, self._kind),
            "processed": [[*peer, part.processed] for peer, part in self._channels.incoming.items()],
            "pending": self._outbox(),
        }

    # -- single things -------------------------------------------------------------------------

    def _meet(self, what: str, path: str, text: str, **facts: Any) -> None:
        name = self._desk.name
        self._findings.meet(
            SchemaMismatch(
                f"participant {name!r}: {path}: {text}", participant=name, path=path, what=what, **facts
            )
        )

    def _value(self, ok: bool, packed: Any, path: str) -> bool:
        """Whether a packed value loads, as far as this program's classes are concerned."""
        return not ok or self._loads(packed, path, self._findings)

    def _loads(self, packed: Any, path: str, findings: Findings) -> bool:
        packed = self._content(packed)
        if packed is None or (type(packed) is bytes and _STACK_GLOBAL not in packed):
            return True
        inner = Findings(lenient=True)
        try:
            loads(
                packed,
                participant=self._desk.name,
                live=self._desk.live,
                classes=self._classes,
                findings=inner,
                name=path,
            )
        except _SCHEMA as error:
            inner.meet(error)
        except CannotRestore:
            # Whoever gets it hears that, as in any program.
            return True
        findings.migrations += inner.migrations
        for what, where, name, text in inner.problems:
            kind = ClassMissing if what == "class" else SchemaMismatch
            text = text if text.startswith(path) else f"{path}: {text}"
            findings.meet(
                kind(
                    f"participant {self._desk.name!r}: {text}",
                    participant=self._desk.name,
                    path=where or path,
                    class_name=name,
                    what=what,
                )
            )
        return not inner.problems

    def _content(self, packed: Any) -> Any:
        """The pickle behind what is in a message; None if it has none."""
        if type(packed) is not msgpack.ExtType:
            return packed if type(packed) is bytes and packed else None
        parcels = self._desk.parcels
        if packed.data in parcels.waiting:
            return Apart(parcels.waiting[packed.data].parts)
        out = parcels.out.get(packed.data)
        return None if out is None else Apart(out.held.parts)

    def _bound(self, method: str) -> Any:
        try:
            return self._desk.method_of(method)[0] if self._desk.instance is not None else None
        except AttributeError:
            return None

    def _has(self, method: str) -> bool:
        if self._desk.instance is not None:
            return self._bound(method) is not None
        return method == LEAVE or has_method(self._kind, method)

    def _method(self, method: str, path: str) -> bool:
        if not self._has(method):
            self._meet(
                "method",
                path,
                _gone(name_of(self._kind), method),
                class_name=name_of(self._kind),
                method=method,
            )
            return False
        return True

    # -- what waits here -----------------------------------------------------------------------

    def _waiters(self) -> None:
        for target, asked, waiters in self._desk.asks.values():
            for waiter in waiters:
                if waiter[0] == "tell" and not waiter[1]:
                    self._method(waiter[2], "timer")
                    self._value(True, waiter[3], f"timer, arguments of {waiter[2]}")
                if waiter[0] == "then":
                    _, method, own, error_method = waiter
                    path = f"continuation of {target}.{asked}"
                    for each in filter(None, (method, error_method)):
                        self._method(each, path)
                    self._value(True, own, path)

    def _effects(self) -> None:
        """Functions that were asked for and not called yet, or whose outcome is to be found out."""
        for request in self._desk.effects.values():
            path = f"effect {request.function} (request {request.number})"
            self._value(True, request.arguments, path)
            if request.is_question:
                path = f"question to a person (request {request.number})"
            if request.function.startswith("."):
                self._method(request.function[1:], path)
            named = classes_in(asked_of(request).form) if request.is_question else ()
            for name in (request.function, request.on_unknown, *named):
                if ":" in name:
                    try:
                        self._classes.find_named(name)
                    except _SCHEMA as error:
                        error.facts.setdefault("path", path)
                        self._findings.meet(error)

    def _calls(self) -> None:
        for call in self._desk.calls.values():
            path = f"suspended call of {call.method}"
            fits = self._method(call.method, path)
            fits &= self._value(True, call.arguments, path)
            for wake in call.journal:
                fits &= self._value(wake.ok, wake.packed, f"{path}, answer of question {wake.number}")
            bound = self._bound(call.method)
            if fits and bound is not None and not inspect.iscoroutinefunction(bound):
                fits = False
                text = f"{call.method} is no longer `async def`: let the program that began the call end it"
                self._meet("call", path, text, class_name=name_of(self._kind), method=call.method)
            if not fits:
                self._findings.stuck.add(call.number)

    def _spawns(self) -> None:
        for spawn in self._channels.spawns:
            path = f"spawn of {spawn.name}"
            try:
                self._newborn[spawn.name] = self._classes.find_named(spawn.record["class_name"])
            except _SCHEMA as error:
                text = f"participant {self._desk.name!r}: {path}: {error}"
                self._findings.meet(type(error)(text, **{**error.facts, "path": path}))
            self._value(True, spawn.record["args"], path)

    def _inbox(self) -> None:
        for peer, part in self._channels.incoming.items():
            for frame in part.frames:
                for at, (kind, number, detail, packed) in enumerate(read_frame(frame.body)):
                    if frame.first + at > part.processed:
                        self._message(peer, frame.first + at, kind, number, detail, packed)

    def _message(self, peer: Member, at: int, kind: int, number: int, detail: Any, packed: Any) -> None:
        path = f"message {at} of {peer.name}"
        if kind in (ASK, TELL):
            if (peer, detail) not in self._known and not self._has(detail):
                self._known.add((peer, detail))
                self._method(detail, path)
            self._value(True, packed, f"{path}, arguments of {detail}")
        elif kind == ANSWER and not self._is_ours:
            self._value(detail, packed, f"{path}, answer of question {number}")

    # -- what waits for others -----------------------------------------------------------------

    def _outbox(self) -> list[list[Any]]:
        """Of each receiver, method and problem the last message: receiver, birth, number, method, problem."""
        last: dict[tuple[Any, ...], int] = {}
        for name, birth, at, (kind, _, detail, packed) in self._sent():
            method = detail if kind in (ASK, TELL) else ""
            to_driver = kind == ANSWER and name == _DRIVER
            if method and name in self._newborn and not has_method(self._newborn[name], method):
                born = name_of(self._newborn[name])
                self._meet(
                    "method", f"message to {name}", _gone(born, method), class_name=born, method=method
                )
            rows: list[Any] = [None] if method else []
            if not to_driver and (kind != ANSWER or detail):
                inner = Findings(lenient=True)
                self._loads(
                    packed, f"message {at} to {name}" if at != _ALWAYS else f"message to {name}", inner
                )
                self._findings.migrations += inner.migrations
                rows += [tuple(problem) for problem in inner.problems]
            for problem in rows:
                key = name, birth, method, problem
                last[key] = max(at, last.get(key, 0))
        return [[name, birth, at, method, problem] for (name, birth, method, problem), at in last.items()]

    def _sent(self) -> Iterator[tuple[str, int, int, list[Any]]]:
        for peer, part in self._channels.outgoing.items():
            for frame in part.frames:
                for at, message in enumerate(read_frame(frame.body)):
                    if frame.first + at > part.released:
                        yield *peer, frame.first + at, message
        for name, bodies in self._unresolved.items():
            for body in bodies:
                yield from ((name, 0, _ALWAYS, message) for message in read_frame(body))


def has_method(kind: type, method: str) -> bool:
    """Whether objects of the class can be asked for that method, under that name or another one."""
    if method.startswith("__"):
        return False
    today = RENAMES.inside(kind, method)
    return (
        hasattr(kind, "__getattr__")
        or callable(getattr(kind, method, None))
        or (today is not None and callable(getattr(kind, today, None)))
    )


def _methods(instance: object | None, kind: type) -> list[str] | None:
    """All that others may ask for, also by the names that it had; None if only asking tells."""
    if hasattr(kind, "__getattr__"):
        return None
    held = getattr(instance, "__dict__", {})
    names = {name for name in dir(kind) if callable(getattr(kind, name, None))}
    names.update(name for name, value in held.items() if type(name) is str and callable(value))
    former = {old.rpartition(".")[2] for old in RENAMES.table if "." in old.partition(":")[2]}
    names.update(name for name in former if RENAMES.inside(kind, name) in names)
    return sorted(name for name in names if not name.startswith("__"))


def _gone(class_name: str, method: str) -> str:
    short = class_name.partition(":")[2]
    return (
        f"{class_name} has no method {method!r} any more; if it was renamed, say so: "
        f"cutline.renamed('{class_name}.{method}', {short}.new_name)"
    )


def unmet(fits: Mapping[Member, Fit]) -> list[tuple[str, Problem]]:
    """What is on its way and has no place to arrive, by the names of the receivers; each method once."""
    processed = {
        (sender, sender_birth, receiver): number
        for receiver, fit in fits.items()
        for sender, sender_birth, number in fit["processed"]
    }
    by_name = {member.name: member for member in fits}
    found: dict[tuple[str, Any], Problem] = {}
    for sender, fit in fits.items():
        for name, birth, number, method, problem in fit["pending"]:
            receiver = by_name.get(name)
            if receiver is None or birth not in (0, receiver.birth):
                continue
            if number <= processed.get((*sender, receiver), 0):
                # Handled: the sender has not heard of it yet.
                continue
            theirs = fits[receiver]
            if problem is not None:
                found.setdefault((name, tuple(problem)), Problem(*problem))
            elif method != LEAVE and theirs["methods"] is not None and method not in theirs["methods"]:
                text = f"message of {sender.name}: {_gone(theirs['class_name'], method)}"
                problem = Problem("method", f"message of {sender.name}", theirs["class_name"], text)
                found.setdefault((name, method), problem)
    return [(name, problem) for (name, _), problem in found.items()]
