"""Messages between participants as bytes: calls, answers, and the fast path for plain arguments.

A message is one msgpack array, so that a frame's body (messages one after another) is decoded by one C
loop. Arguments of plain types (None, bool, int of 64 bits, float, str, bytes) travel as msgpack values;
everything else as a pickle made by `cutline.participant.pickling`, which names classes and refuses code.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgpack

from cutline.errors import CutlineError, RemoteError

from .pickling import Join, dumps, loads
from .saying import text_of

__all__ = (
    "ASK",
    "TELL",
    "ANSWER",
    "CHASE",
    "SPAWN",
    "are_plain",
    "decode_frame",
    "read_frame",
    "encode_ask",
    "encode_tell",
    "encode_answer",
    "encode_chase",
    "pack_arguments",
    "unpack_arguments",
    "pack_value",
    "unpack_value",
    "pack_error",
    "unpack_error",
)

ASK, TELL, ANSWER, CHASE = 1, 2, 3, 4
# What an async handler asks for besides messages; no kind of message.
SPAWN = 5
_PLAIN = frozenset((type(None), bool, float, bytes))
_INT_LIMIT = 1 << 63
_pack = msgpack.Packer(use_bin_type=True, autoreset=True).pack


def _is_plain(value: Any) -> bool:
    return are_plain((value,), {})


def _is_text(value: str) -> bool:
    """Whether it is text that UTF-8 can hold; names of files may hold lone surrogates."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def are_plain(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether arguments are their own packed form: only values of plain types, none by name."""
    if kwargs:
        return False
    for value in args:
        kind = type(value)
        if kind is str:
            if not value.isascii() and not _is_text(value):
                return False
        elif kind not in _PLAIN and not (kind is int and -_INT_LIMIT <= value < _INT_LIMIT):
            return False
    return True


def pack_arguments(
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    participant: str,
    where: str,
    join: Join | None = None,
) -> Any:
    """Arguments as a list of plain values, or as a pickle, or as what `join` makes of a large one.

    Raises:
        CannotCapture: something that cannot travel, with its path.
    """
    if are_plain(args, kwargs):
        return list(args)
    return dumps((args, dict(kwargs)), participant=participant, where=where, join=join)


def unpack_arguments(
    packed: Any, *, participant: str, live: Mapping[str, Any]
) -> tuple[tuple[Any, ...] | list[Any], dict[str, Any]]:
    """The reverse of `pack_arguments`."""
    if type(packed) is list:
        return packed, {}
    args, kwargs = loads(packed, participant=participant, live=live)
    return args, kwargs


def pack_value(value: Any, *, participant: str, where: str) -> Any:
    """An answer's value, packed like arguments."""
    return [value] if _is_plain(value) else dumps(value, participant=participant, where=where)


def unpack_value(packed: Any, *, participant: str, live: Mapping[str, Any]) -> Any:
    """The reverse of `pack_value`."""
    return packed[0] if type(packed) is list else loads(packed, participant=participant, live=live)


def pack_error(error: BaseException, *, participant: str) -> bytes:
    """An exception with its traceback as text; one that does not pickle becomes a `RemoteError`."""
    story = "".join(traceback.format_exception(type(error), error, error.__traceback__)).rstrip()
    try:
        packed: bytes = dumps((error, story), participant=participant, where="exception")
        loads(packed, participant=participant, live={})
    except Exception as refusal:
        stand_in = RemoteError(
            f"{type(error).__name__} in participant {participant!r}: {text_of(error)} (the exception itself "
            f"does not travel: {text_of(refusal)})",
            participant=participant,
        )
        packed = dumps((stand_in, story), participant=participant, where="exception")
    return packed


def unpack_error(packed: bytes, *, participant: str, live: Mapping[str, Any]) -> BaseException:
    """The exception, with the remote traceback as its cause."""
    try:
        error, story = loads(packed, participant=participant, live=live)
    except CutlineError as failure:
        return RemoteError(f"an exception that this program cannot load: {failure}", participant=participant)
    if not isinstance(error, BaseException):
        return RemoteError(f"an answer that is not an exception: {error!r}", participant=participant)
    if error.__cause__ is None:
        error.__cause__ = RemoteError(f"raised by a participant:\n{story}")
    return error


def encode_ask(number: int, method: str, arguments: Any) -> bytes:
    """A call that wants an answer; `number` is the asker's own."""
    packed: bytes = _pack((ASK, number, method, arguments))
    return packed


def encode_tell(method: str, arguments: Any) -> bytes:
    """A call that wants none."""
    packed: bytes = _pack((TELL, 0, method, arguments))
    return packed


def encode_answer(number: int, ok: bool, packed_value: Any) -> bytes:
    """The answer to question `number` of the receiver."""
    packed: bytes = _pack((ANSWER, number, ok, packed_value))
    return packed


def encode_chase(number: int, owned: int) -> bytes:
    """Asks the owner of a Ref for its answer: answer my `number` when your `owned` is answered."""
    packed: bytes = _pack([CHASE, number, owned, None])
    return packed


def read_frame(body: bytes, skip: int = 0) -> Iterator[list[Any]]:
    """The messages of a frame's body, each decoded when its turn comes, without the first `skip`."""
    unpacker = msgpack.Unpacker(max_buffer_size=max(len(body), 1), max_bin_len=max(len(body), 1))
    unpacker.feed(body)
    for _ in range(skip):
        unpacker.skip()
    messages: Iterator[list[Any]] = iter(unpacker)
    return messages


def decode_frame(body: bytes) -> list[list[Any]]:
    """The messages of a frame's body."""
    return list(read_frame(body))
