"""`cutline.effect`: a request to the outside world, from a handler; a value in the participant's state.

A request names its function (``module:qualname``, or a method of the participant), and has a key that is
fixed here: a hash of lineage, participant, number of the request, function and arguments. It is carried out
by `cutline.participant.effecting`.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import msgpack

from cutline.barrier import Member
from cutline.errors import CutlineError, Misuse, UnknownMethod
from cutline.storage.codec import digest_of
from cutline.storage.effects import PERSON

from .classes import Classes, name_of
from .handle import Ref, of_handler
from .likeness import likeness
from .messages import pack_arguments

if TYPE_CHECKING:
    from .desk import Desk

__all__ = (
    "EFFECT",
    "OUTSIDE",
    "Done",
    "EffectRequest",
    "NotDone",
    "bound_to",
    "effect",
    "key_of",
    "make_request",
    "rekeyed",
)

# What an async handler asks for besides messages; no kind of message.
EFFECT = 6
# Whom an effect is asked of, where messages have a participant's name.
OUTSIDE = "@effects"
RETRY, HALT = "retry", "halt"
KEY_MAX = 200


class Done(NamedTuple):
    """What a reconcile function returns when the effect has happened; `value` is its result."""

    value: Any = None


class NotDone(NamedTuple):
    """What a reconcile function returns when the effect has surely not happened."""


@dataclass(frozen=True)
class EffectRequest:
    """An effect that was asked for and has no result yet.

    ``function``: ``module:qualname``, or ``.name`` of a method. ``digest``: of function and arguments.
    ``key``: ``r:`` and a hash, or ``u:`` and what the user gave. ``on_unknown``: retry, halt, or the name of
    a function. ``lineage``: whose key it has. ``since``: the first checkpoint that it was captured in, or 0.
    """

    number: int
    function: str
    arguments: Any
    key: str
    digest: bytes
    on_unknown: str
    repeatable: bool
    timeout: float | None
    retries: int
    lineage: str
    since: int = 0

    @property
    def is_question(self) -> bool:
        """Whether it is asked of a person (`cutline.participant.person`)."""
        return self.function == PERSON

    @property
    def handed_key(self) -> str:
        """The idempotency key as the function gets it."""
        return self.key[2:]

    def to_doc(self) -> list[Any]:
        """What an image holds."""
        return [getattr(self, name) for name in self.__dataclass_fields__]

    @classmethod
    def from_doc(cls, doc: list[Any]) -> EffectRequest:
        """The reverse of `to_doc`."""
        return cls(*doc)


def effect(
    function: Callable[..., Any] | str,
    *args: Any,
    key: str | None = None,
    on_unknown: Callable[..., Any] | str | None = None,
    repeatable: bool = False,
    timeout: float | None = None,
    retries: int = 0,
) -> Ref[Any]:
    """Asks for something to be done in the world outside; returns a Ref for its result.

    In an async handler ``await`` it, in a sync one write ``.then(self.on_result)``. The function runs in this
    participant's process, beside the handlers, once a checkpoint that holds the request has committed: from
    then on no recovery can un-ask it. Its result is recorded before it is delivered, so it is not run again
    after a loss. What it raises is its result too.

    Args:
        function: a function of a module, sync or async; or a method of this participant (bound, or by name),
            which must not touch the state, because handlers run beside it.
        args: its arguments; they travel like those of a message. A parameter ``key`` that they leave free
            gets the idempotency key: the same one at each attempt, for whoever can tell attempts apart.
        key: an idempotency key of your own. Requests under one key are one: all get the one result.
        on_unknown: what happens if the process is lost between the beginning of the call and its recorded
            result. ``"retry"``: it is called again with the same key; the default where the function takes
            ``key``. A function: it is called as ``on_unknown(key, *args)`` and returns
            ``cutline.Done(result)`` or ``cutline.NotDone()``. ``"halt"``: the system halts with
            `EffectUnknown`; the default otherwise.
        repeatable: it may be done twice (a read, a model's answer): it starts when the handler's step is
            over, without a checkpoint, and its recorded result is used when the same request comes again.
        timeout: seconds; after them the attempt is unknown. The function is not interrupted.
        retries: how often it is called again, with the same key, when it raises.

    Raises:
        OutsideHandler: no handler runs in this thread.
        Misuse: a function that cannot be named; arguments that it does not take.
        UnknownMethod: the participant has no such method.
        CannotCapture: an argument cannot travel.
    """
    ask = of_handler(
        "ask_effect",
        "cutline.effect asks for something in the name of a participant, and no handler runs here: call "
        "it in a method of a participant. In the program, call the function itself",
    )
    policy = _Policy(key, on_unknown, repeatable, timeout, retries)
    made: Ref[Any] = ask(function, args, policy)
    return made


class _Policy(NamedTuple):
    key: str | None
    on_unknown: Callable[..., Any] | str | None
    repeatable: bool
    timeout: float | None
    retries: int


def make_request(
    desk: Desk, function: Any, args: tuple[Any, ...], policy: _Policy
) -> tuple[EffectRequest | None, int, str]:
    """The request, None if a re-run asks for what was asked before; its number; the function's name."""
    name, found = _named(desk, function)
    takes_key = _check_call(desk, name, found, args)
    on_unknown = _named_policy(desk, policy.on_unknown, takes_key)
    _check_numbers(desk, name, policy)
    packed = pack_arguments(args, {}, participant=desk.name, where=f"arguments of effect {name}")
    said = packed if type(packed) is list else likeness(packed)
    own = [policy.key, on_unknown, policy.repeatable, policy.timeout, policy.retries]
    digest = digest_of(msgpack.packb([name, said]))
    number, is_new = desk.numbered(OUTSIDE, EFFECT, name, [said, own])
    if not is_new:
        return None, number, name
    own_key = f"u:{policy.key}"
    key = key_of(desk.lineage, desk.me, number, name, said) if policy.key is None else own_key
    timeout = None if policy.timeout is None else float(policy.timeout)
    request = EffectRequest(
        number,
        name,
        packed,
        key,
        digest,
        on_unknown,
        bool(policy.repeatable),
        timeout,
        policy.retries,
        desk.lineage,
    )
    return request, number, name


def rekeyed(request: EffectRequest, lineage: str, me: Member) -> EffectRequest:
    """The request in another lineage; a key of the user's own stays."""
    if request.lineage == lineage:
        return request
    if request.key.startswith("u:"):
        return replace(request, lineage=lineage)
    packed = request.arguments
    said = packed if type(packed) is list else likeness(packed)
    return replace(request, lineage=lineage, key=key_of(lineage, me, request.number, request.function, said))


def key_of(lineage: str, me: Member, number: int, name: str, said: Any) -> str:
    """The key of a request that has none of the user's own."""
    return f"r:{digest_of(msgpack.packb([lineage, me.name, me.birth, number, name, said])).hex()}"


def _named(desk: Desk, function: Any) -> tuple[str, Callable[..., Any]]:
    if isinstance(function, str) or getattr(function, "__self__", None) is desk.instance is not None:
        name = function if isinstance(function, str) else function.__name__
        method = None if name.startswith("__") else getattr(desk.instance, name, None)
        if not callable(method):
            raise UnknownMethod(
                f"participant {desk.name!r} ({desk.class_name}) has no method {name!r} to be an effect",
                participant=desk.name,
                method=name,
            )
        return f".{name}", method
    return _function_name(desk, function, "an effect"), function


def _function_name(desk: Desk, function: Any, what: str) -> str:
    hint = (
        f"participant {desk.name!r}: {what} must be a function that a module has under its own name, because "
        f"its name is what the image keeps and what another process finds it by. Got {function!r}"
    )
    if not callable(function) or not hasattr(function, "__qualname__"):
        raise Misuse(f"{hint}.", participant=desk.name)
    name = name_of(function)
    try:
        found = Classes().find_named(name)
    except CutlineError as error:
        raise Misuse(f"{hint}: {error}", participant=desk.name) from error
    if found is not function:
        raise Misuse(f"{hint}: {name} is something else.", participant=desk.name)
    return name


def _check_call(desk: Desk, name: str, function: Callable[..., Any], args: tuple[Any, ...]) -> bool:
    """Whether the function gets the key. Raises Misuse if it does not take these arguments."""
    try:
        return "key" in bound_to(function, args, "")
    except TypeError as error:
        raise Misuse(
            f"participant {desk.name!r}: effect {name} does not take these arguments: {error}",
            participant=desk.name,
        ) from error


def bound_to(function: Callable[..., Any], args: Any, key: str) -> dict[str, str]:
    """What a function is given besides its arguments. Raises TypeError if they do not fit."""
    try:
        signature = inspect.signature(function)
    except ValueError:
        # Written in C, without a signature.
        return {}
    parameter = signature.parameters.get("key")
    free = parameter is not None and parameter.kind in (
        inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    )  # fmt: skip
    given = {"key": key} if free and "key" not in signature.bind_partial(*args).arguments else {}
    signature.bind(*args, **given)
    return given


def _named_policy(desk: Desk, policy: Any, takes_key: bool) -> str:
    if policy is None:
        return RETRY if takes_key else HALT
    if policy in (RETRY, HALT):
        return str(policy)
    if isinstance(policy, str):
        raise Misuse(
            f'participant {desk.name!r}: on_unknown is "retry", "halt" or a function, not {policy!r}',
            participant=desk.name,
        )
    return _function_name(desk, policy, "on_unknown")


def _check_numbers(desk: Desk, name: str, policy: _Policy) -> None:
    timeout, retries, key = policy.timeout, policy.retries, policy.key
    if timeout is not None and not (isinstance(timeout, (int, float)) and 0 < timeout < math.inf):
        raise Misuse(f"participant {desk.name!r}: timeout of effect {name} is seconds, not {timeout!r}")
    if not isinstance(retries, int) or isinstance(retries, bool) or retries < 0:
        raise Misuse(f"participant {desk.name!r}: retries of effect {name} is a number, not {retries!r}")
    if key is not None and not (isinstance(key, str) and 0 < len(key) <= KEY_MAX and key.isprintable()):
        raise Misuse(
            f"participant {desk.name!r}: key of effect {name} is a text of 1 to {KEY_MAX} printable "
            f"characters, not {key!r:.80}"
        )
