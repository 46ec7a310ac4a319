"""Values of messages as bytes: arguments, answers, errors. Same rules as for state, without regions.

Theory of operation. A message must come back exactly, on another machine, in a program that has the same
classes: classes go by name, code is refused, so are locks, files and Ray's own handles, each with its
path. Arrays of 4 KiB or more are carried beside the pickle, so that each is copied once into the message
and once out of it, into memory that the array owns; small ones lie in the stream. What a message shows of
an array travels, not the array behind a slice; slices that overlap in one message overlap on arrival.

Most messages are small, so a pickler is kept per thread and reused, and a message that names nothing
(plain containers and values) is loaded by pickle's own C function. The first object of each type is
loaded on trial before its message leaves, since an object that saves and does not load would otherwise
fail at the receiver.

Layout: a pickle; or, when arrays travel beside it, a zero byte, their number, the lengths of the pickle
and of each of them (little-endian, 64 bits), the pickle, the arrays.
"""

from __future__ import annotations

import io
import pickle
import struct
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from cutline.errors import CannotCapture, CannotRestore, ClassMissing, ClassNotAllowed, SchemaMismatch

from .allowing import is_restricted
from .arrays import MessageArrays, Regroup, StateArrays, Unsharable
from .attempts import Attempts
from .classes import Classes, slot_names, version_of
from .findings import Absent, Findings
from .kinds import Kinds, PersistentTypes, Refused
from .memory import span
from .migrating import Settling
from .paths import deepest, find_culprit, path_of
from .rebuild import MARKS, Borrower, Loader, TrialLoader
from .renames import RENAMES
from .saying import said

__all__ = (
    "OUT_OF_PLACE", "Apart", "Join", "Live", "Opener", "PatientOpener", "dumps", "load", "loads", "prove",
    "refusal",
)  # fmt: skip

Live = Mapping[str, Callable[..., Any]]
Join = Callable[[bytes, Sequence[memoryview]], Any]
_STACK_GLOBAL = b"\x93"
_REBUILD = Loader.__module__
_NOBODY: Live = {}
# From this size on, in bytes, a trial does without the content of an array.
_TRIAL_MIN = 64 * 1024
_DEFAULT = Classes()


class _Opening:
    """What is special about our unpicklers: classes come from the program, live objects from `live`, arrays
    and enum members from the `loader`.
    """

    def __init__(
        self,
        stream: Any,
        loader: Loader,
        classes: Classes,
        live: Live,
        buffers: Iterable[Any] | None = None,
        primed: tuple[Any, ...] = (),
    ) -> None:
        super().__init__(stream, buffers=buffers)  # type: ignore[call-arg]
        self._loader, self._classes, self._live, self._primed = loader, classes, live, primed
        # By the names that the pickle has for them.
        self.found: dict[str, type] = {}

    def find_class(self, module: str, name: str, /) -> Any:
        self._loader.named += 1
        if module == _REBUILD and name in MARKS:
            return getattr(self._loader, name)
        saved = f"{module}:{name}"
        bound = self._live.get(saved)
        if bound is not None:
            return bound
        try:
            found = self._classes.find(module, name)
        except CannotRestore as error:
            error.facts.setdefault("path", self._loader.path)
            self._loader.findings.meet(error)
            return Absent
        if found is getattr:
            return self._loader.attribute
        if isinstance(found, type):
            self.found[saved] = found
        return found

    def persistent_load(self, pid: Any, /) -> Any:
        """What an image expects to stand at the bottom of the memo: the instance, large bytearrays."""
        return self._primed[pid]


class Opener(_Opening, pickle.Unpickler):
    """The unpickler for all but those objects whose class keeps its attributes in another way than it did."""


class PatientOpener(_Opening, pickle._Unpickler):
    """A slow one for those: the quick one sets attributes as the pickle says, in ``__dict__`` or by setattr,
    and fails where the class has no place for them now.
    """

    stack: list[Any]
    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = dict(pickle._Unpickler.dispatch)

    def load_build(self) -> None:
        """The instruction that gives an object its state."""
        state = self.stack.pop()
        instance = self.stack[-1]
        set_state = getattr(instance, "__setstate__", None)
        if set_state is None:
            self._loader.put(instance, state)
        else:
            set_state(state)

    dispatch[pickle.BUILD[0]] = load_build


# What the quick one raises there.
OUT_OF_PLACE = AttributeError, pickle.UnpicklingError


class _Writer:
    """A pickler of one thread, reused."""

    def __init__(
        self, persistent: PersistentTypes | None = None, arrays: MessageArrays | StateArrays | None = None
    ) -> None:
        self.kinds = Kinds(persistent, marking=True)
        self.busy = False
        self._arrays = arrays or MessageArrays()
        self._stream = io.BytesIO()
        self._beside: list[pickle.PickleBuffer] = []
        self._pickler = self._another()

    def _another(self) -> pickle.Pickler:
        # A truthy answer would put the buffer in the stream; append answers None.
        pickler = pickle.Pickler(self._stream, 5, buffer_callback=self._beside.append)
        pickler.dispatch_table = self.kinds
        return pickler

    def write(self, value: Any, join: Join | None = None) -> Any:
        kinds, arrays = self.kinds, self._arrays
        kinds.begin(arrays)
        attempts: Attempts | None = None
        try:
            while True:
                try:
                    self._pickler.dump(value)
                    if arrays.is_used():
                        arrays.check()
                    return self._joined(join) if self._beside else self._stream.getvalue()
                except Regroup as regroup:
                    merged = [*regroup.spans, *arrays.merged]
                    former, self._pickler = self._pickler, self._another()
                    self._clean()
                    arrays.merged.extend(merged)
                    attempts = attempts or Attempts(kinds)
                    attempts.again(former)
        finally:
            self._clean()
            if attempts is not None:
                attempts.over()

    def _clean(self) -> None:
        if self._arrays.is_used():
            self._arrays.clear()
        # Also what objects put there that pickle themselves, such as a pickle.PickleBuffer.
        self._beside.clear()
        self._pickler.clear_memo()
        self._stream.seek(0)
        self._stream.truncate()

    def _joined(self, join: Join | None) -> Any:
        stream = self._stream.getvalue()
        raws = [buffer.raw() for buffer in self._beside]
        try:
            apart = None if join is None else join(stream, raws)
            return _lay_out(stream, raws) if apart is None else apart
        finally:
            for raw in raws:
                raw.release()


def _lay_out(stream: bytes, buffers: Sequence[Any]) -> bytes:
    lengths = [len(stream), *(len(buffer) for buffer in buffers)]
    head = struct.pack(f"<BQ{len(lengths)}Q", 0, len(buffers), *lengths)
    return b"".join([head, stream, *buffers])


class Apart:
    """A message whose arrays are not in one block with its pickle; large ones stay there, read-only."""

    __slots__ = ("stream", "buffers")

    def __init__(self, parts: Sequence[Any]) -> None:
        self.stream: bytes = parts[0]
        self.buffers = parts[1:]

    def joined(self) -> bytes:
        """The same as `dumps` makes it."""
        return _lay_out(self.stream, self.buffers)


class _Own(threading.local):
    def __init__(self) -> None:
        self.writer = _Writer()


_own = _Own()


def dumps(value: Any, *, participant: str, where: str, join: Join | None = None) -> Any:
    """A value as bytes. `where` names it in errors, e.g. "argument" or "answer of critic.review".

    `join`: asked what to make of a pickle with arrays beside it; None is bytes, anything else is returned.

    Raises:
        CannotCapture: something that cannot travel, with the participant and the path.
    """
    writer = _own.writer
    if writer.busy:
        # A value whose own __reduce__ sends something.
        writer = _Writer()
    writer.busy = True
    try:
        payload = writer.write(value, join)
        if writer.kinds.fresh:
            prove(writer.kinds, payload=payload if type(payload) is bytes else None)
        return payload
    except Exception as error:
        refused = refusal(value, error, writer.kinds, participant=participant, name=where)
    finally:
        writer.kinds.forget()
        writer.busy = False
    # Raised here, it has no context whose frames would keep parts of the value alive.
    raise refused


def loads(
    payload: bytes | memoryview | Apart,
    *,
    participant: str,
    live: Live = _NOBODY,
    classes: Classes = _DEFAULT,
    findings: Findings | None = None,
    name: str = "a message",
) -> Any:
    """The value; arrays are writable unless they were read-only when sent, or are large and `Apart`.

    `findings`: where all is noted that does not fit this program's classes; else the first such thing is
    raised. `name` is what the value is called there.

    Raises:
        ClassMissing: this program lacks a class that the message names.
        SchemaMismatch: it has the class, made of something else.
        CannotRestore: the value does not load.
    """
    try:
        return load(payload, live, classes, findings=findings, name=name)
    except (ClassMissing, ClassNotAllowed, SchemaMismatch) as error:
        error.facts.setdefault("participant", participant)
        raise
    except Exception as error:
        raise CannotRestore(
            f"participant {participant!r}: {name} does not load: {said(error)}",
            participant=participant,
        ) from error


def load(
    payload: bytes | memoryview | Apart,
    live: Live,
    classes: Classes,
    loader: Loader | None = None,
    *,
    findings: Findings | None = None,
    name: str = "a message",
) -> Any:
    """The value of a message; raises what loading raises. `loader`: makes the arrays in a way of its own."""
    kind = Loader
    stream: bytes | memoryview
    buffers: Sequence[Any] | None
    if isinstance(payload, Apart):
        stream, buffers = payload.stream, payload.buffers
        if b"_tensor" not in stream:
            # A tensor can only stand on memory that may be written to.
            kind = Borrower
    elif payload[0]:
        plain = type(payload) is bytes and _STACK_GLOBAL not in payload
        if plain and loader is None and not is_restricted():
            return pickle.loads(payload)
        stream, buffers = payload, None
    else:
        view = memoryview(payload)
        (count,) = struct.unpack_from("<Q", view, 1)
        lengths = struct.unpack_from(f"<{count + 1}Q", view, 9)
        at = 9 + 8 * (count + 1)
        stream = view[at : at + lengths[0]]
        at += lengths[0]
        buffers = []
        for length in lengths[1:]:
            buffers.append(view[at : at + length])
            at += length
    own = loader is not None
    loader = loader or kind(findings=findings, path=name)
    opener: Opener | PatientOpener = Opener(io.BytesIO(stream), loader, classes, live, buffers)
    try:
        value = opener.load()
    except OUT_OF_PLACE:
        if own:
            raise
        loader = kind(findings=findings, path=name)
        opener = PatientOpener(io.BytesIO(stream), loader, classes, live, buffers)
        value = opener.load()
    loader.finish()
    if loader.settles:
        _settle(value, opener.found, loader, name)
    return value


def _settle(value: Any, found: Mapping[str, type], loader: Loader, name: str) -> None:
    """Objects of other versions: each of a class that had one said so, all others were of version 0."""
    silent = {
        saved: kind
        for saved, kind in found.items()
        if hasattr(kind, "__cutline_version__") and kind not in loader.marked
    }
    mixed = any(kind.__dictoffset__ and slot_names(kind) for kind in found.values())
    if silent or mixed or loader.outdated or loader.stray or RENAMES.table:
        marked = {saved: version_of(kind) for saved, kind in found.items() if kind in loader.marked}
        settling = Settling(value, found, marked, None, loader.stray, name=name, findings=loader.findings)
        settling.run(loader.outdated)


def prove(kinds: Kinds, *, payload: bytes | None = None) -> None:
    """Loads the objects whose types were seen for the first time; raises what loading raises.

    `payload`: a message that holds them all. Without it they are written as one, and loaded with large
    arrays of zeros in place of their content; only if that fails, with the content.
    """
    if payload is None:
        shown = list(kinds.fresh)
        try:
            stream = _Writer(kinds.persistent, StateArrays(_TRIAL_MIN)).write(shown)
            Opener(io.BytesIO(stream), TrialLoader(), _DEFAULT, _NOBODY).load()
            kinds.prove()
            return
        except Exception:
            payload = _Writer(kinds.persistent).write(shown)
    load(payload, _NOBODY, _DEFAULT)
    kinds.prove()


def refusal(value: Any, error: Exception, kinds: Kinds, *, participant: str, name: str) -> CannotCapture:
    """The error to raise when `value` did not save, or saved and did not load on trial."""
    met = kinds.arrays
    kinds.arrays = met.another()
    try:
        path, reason = _diagnosis(value, error, kinds, list(kinds.fresh), name)
    finally:
        kinds.arrays.clear()
        kinds.arrays = met
    return CannotCapture(
        f"participant {participant!r} cannot save {path}: {reason}. What belongs to this process only "
        f"(clients, locks, files) goes into a cutline.transient(...) of the class",
        participant=participant,
        path=path,
        reason=reason,
    )


def _diagnosis(value: Any, error: Exception, kinds: Kinds, fresh: list[Any], name: str) -> tuple[str, str]:
    culprit = find_culprit(value, name, kinds)
    if culprit is not None:
        return culprit
    unloadable = _unloadable(fresh, kinds)
    if unloadable is not None:
        shown, failure = unloadable
        path = path_of(value, name, lambda here: here is shown) or name
        return path, (
            f"a {type(shown).__module__}.{type(shown).__qualname__} that saves but does not load "
            f"({said(failure)}); give the class a __reduce__ that it can be made from"
        )
    if isinstance(error, RecursionError):
        return deepest(value, name), "objects nested too deep for pickle; keep them in a list instead"
    if isinstance(error, Unsharable) and (unit := error.unit) is not None:
        return path_of(value, name, lambda here: _shows(here, unit)) or name, str(error)
    return name, str(error) if isinstance(error, (Refused, Unsharable)) else said(error)


def _shows(here: Any, unit: tuple[int, int]) -> bool:
    """Whether `here` is an array inside these addresses."""
    if not isinstance(here, np.ndarray) or here.dtype.hasobject or not here.nbytes:
        return False
    start, stop = span(np.ndarray.view(here, np.ndarray))
    return unit[0] <= start and stop <= unit[1]


def _unloadable(fresh: list[Any], kinds: Kinds) -> tuple[Any, Exception] | None:
    """The smallest of these objects that saves and does not load, and what loading it raised."""
    found: tuple[int, Any, Exception] | None = None
    for shown in fresh:
        try:
            payload = _Writer(kinds.persistent).write(shown)
        except Exception:
            continue
        try:
            load(payload, _NOBODY, _DEFAULT)
        except Exception as failure:
            if found is None or len(payload) <= found[0]:
                found = len(payload), shown, failure.with_traceback(None)
    return None if found is None else found[1:]
