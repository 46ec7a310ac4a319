"""Handles and Refs: values that name a participant and an answer.

Both can be stored in state, sent in messages and restored with an image; they mean the same after it. A
`Handle` is the participant's name (and its class by name, so that a typo fails at the caller); a `Ref`
is an owner, the participant that asked, and the number of the question. What makes them act is a
`Port`: the runner of the participant (or driver) they live in. It is never part of their pickled form;
unpickling binds them to the port of the process that loads them.
"""

from __future__ import annotations

import difflib
import threading
from collections.abc import Callable, Generator, Mapping
from typing import Any, Generic, NamedTuple, ParamSpec, Protocol, TypeVar

from cutline.errors import OutsideHandler, UnknownMethod

from .ray_options import check_method_options

__all__ = (
    "Handle",
    "Ref",
    "Method",
    "Port",
    "CallOptions",
    "live_loaders",
    "bound_port",
    "current_port",
    "make_ref",
    "me",
    "of_handler",
    "own_port",
)

T = TypeVar("T")
P = ParamSpec("P")


class CallOptions(NamedTuple):
    """How a call from the driver is taken in; inside handlers only the defaults make sense.

    Attributes:
        key: an idempotency key; a second submission under it is the first one.
        durable: logged before it is acknowledged, and replayed after a loss. Reads may do without.
        acked: the call returns when the input is taken: it is in the log then, and will be done once.
        wait: seconds that the call may wait for room where much input waits already; None: without end.
    """

    key: str | None = None
    durable: bool = True
    acked: bool = False
    wait: float | None = None


_DEFAULTS = CallOptions()


class Port(Protocol):
    """What Handles and Refs need from the place they live in."""

    @property
    def name(self) -> str:
        """The participant that asks."""
        ...

    @property
    def class_name(self) -> str:
        """Its class by name."""
        ...

    def ask(self, target: str, method: str, args: Any, kwargs: Any, options: CallOptions) -> Ref[Any]:
        """Send a call that wants an answer."""
        ...

    def tell(self, target: str, method: str, args: Any, kwargs: Any, options: CallOptions) -> None:
        """Send a call that wants none."""
        ...

    def then(self, ref: Ref[Any], method: Any, own: tuple[Any, ...], error: Any) -> None:
        """Continue with `method` when the answer is there."""
        ...

    def wait(self, ref: Ref[Any]) -> Any:
        """A future of the running async handler."""
        ...

    def result(self, ref: Ref[Any], timeout: float | None, committed: bool) -> Any:
        """Block for the answer, outside handlers."""
        ...

    def methods_of(self, class_name: str) -> frozenset[str] | None:
        """The methods of a participant's class, None where the class is not at hand."""
        ...

    def keep(self, ref: Ref[Any]) -> None:
        """The Ref leaves in a message: keep its answer for whoever asks."""
        ...


# One driver port per process (the last started system), and one runner per thread of handlers.
_threads = threading.local()
_process: list[Port] = []


def bound_port(port: Port, *, thread_only: bool) -> Callable[[], None]:
    """Makes `port` the one that module functions of this thread (or process) mean; returns the undo."""
    if thread_only:
        before = getattr(_threads, "port", None)
        _threads.port = port

        def undo_thread() -> None:
            _threads.port = before

        return undo_thread
    _process.append(port)

    def undo_process() -> None:
        if port in _process:
            _process.remove(port)

    return undo_process


def current_port() -> Port:
    """The port of this thread, else of this process.

    Raises:
        OutsideHandler: neither a handler nor a started system is here.
    """
    port: Port | None = getattr(_threads, "port", None)
    if port is None and _process:
        port = _process[-1]
    if port is None:
        raise OutsideHandler(
            "no system is started in this program and no handler runs here: call cutline.start first"
        )
    return port


def own_port() -> Port | None:
    """The port of the participant whose handler runs in this thread."""
    port: Port | None = getattr(_threads, "port", None)
    return port


def of_handler(name: str, hint: str) -> Any:
    """What the participant whose handler runs in this thread offers handlers under that name.

    Raises:
        OutsideHandler: no handler runs in this thread; `hint` is its message, which says what to do.
    """
    found = getattr(own_port(), name, None)
    if found is None:
        raise OutsideHandler(hint)
    return found


def me() -> Handle:
    """A handle to the participant whose handler runs.

    Raises:
        OutsideHandler: no handler runs in this thread.
    """
    port = own_port()
    if port is None:
        raise OutsideHandler("cutline.me() names the participant whose handler runs; no handler runs here")
    return Handle(port.name, port.class_name, port)


class Handle:
    """A participant, by name. ``handle.method.remote(...)`` asks, ``handle.method.tell(...)`` tells."""

    __slots__ = ("_cutline_name", "_cutline_class", "_cutline_port", "__dict__", "__weakref__")

    def __init__(self, name: str, class_name: str = "", port: Port | None = None) -> None:
        self._cutline_name = name
        self._cutline_class = class_name
        self._cutline_port = port

    def __getattr__(self, method: str) -> Method[..., Any]:
        if method.startswith("__") and method.endswith("__"):
            raise AttributeError(method)
        # Found here the next time: a told message costs less than making this object does.
        found: Method[..., Any] = self._method(method)
        self.__dict__[method] = found
        return found

    def _method(self, method: str) -> Method[Any, Any]:
        return Method(self._cutline_name, self._cutline_class, self._cutline_port, method)

    def on(self, method: Callable[P, Any]) -> Method[P, Any]:
        """The typed spelling: ``handle.on(Editor.submit).remote("a")`` checks the arguments.

        The first parameter of an unbound method is its self; type checkers see it, so pass the handle's
        class method as it stands and call with the remaining arguments.
        """
        return self._method(method.__name__)

    def __reduce__(self) -> tuple[Any, ...]:
        return _load_handle, (self._cutline_name, self._cutline_class)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Handle) and other._cutline_name == self._cutline_name

    def __hash__(self) -> int:
        return hash(("cutline.Handle", self._cutline_name))

    def __repr__(self) -> str:
        return f"<Handle {self._cutline_name}>"


class Method(Generic[P, T]):
    """One method of a participant, ready to be called."""

    __slots__ = ("_target", "_class", "_port", "_method", "_options", "_checked_port")

    def __init__(
        self, target: str, class_name: str, port: Port | None, method: str, options: CallOptions = _DEFAULTS
    ) -> None:
        self._target = target
        self._class = class_name
        self._port = port
        self._method = method
        self._options = options
        self._checked_port: Port | None = None

    def _check(self) -> Port:
        """The port to call through. One that the handle is bound to is asked once, another each time."""
        port = self._port or current_port()
        known = port.methods_of(self._class) if self._class else None
        if known is not None and self._method not in known:
            near = difflib.get_close_matches(self._method, known, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise UnknownMethod(
                f"participant {self._target!r} ({self._class}) has no method {self._method!r}{hint}",
                participant=self._target,
                method=self._method,
            )
        self._checked_port = self._port
        return port

    def remote(self, *args: P.args, **kwargs: P.kwargs) -> Ref[T]:
        """Asks: the returned Ref stands for the answer.

        Raises:
            UnknownMethod: the class has no such method.
            CannotCapture: an argument cannot travel; the message says where it is.
        """
        port = self._checked_port or self._check()
        return port.ask(self._target, self._method, args, kwargs, self._options)

    def tell(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Tells: no answer is wanted. Raises as `remote` does."""
        port = self._checked_port or self._check()
        port.tell(self._target, self._method, args, kwargs, self._options)

    def options(
        self,
        *,
        key: str | None = None,
        durable: bool = True,
        acked: bool = False,
        wait: float | None = None,
        **options: Any,
    ) -> Method[P, T]:
        """The same method with other `CallOptions`; they mean something in the driver.

        `options`: method options of Ray's; docs/ray.md says what becomes of each.

        Raises:
            RefusedOption: one that is not known, or would break order.
        """
        if options:
            check_method_options(options)
        chosen = CallOptions(key, durable, acked, wait)
        return Method(self._target, self._class, self._port, self._method, chosen)

    def named(self) -> tuple[str, str]:
        """Whose it is, and what it is called. Raises UnknownMethod if the class has no such method."""
        self._check()
        return self._target, self._method

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(
            f"methods of participant {self._target!r} are called by message: "
            f".{self._method}.remote(...) for an answer, .{self._method}.tell(...) without"
        )


class Ref(Generic[T]):
    """An answer to come: ``await`` it in async handlers, `then` in sync ones, `result` in the driver."""

    __slots__ = ("owner", "number", "target", "method", "future", "_cutline_port", "__weakref__")

    def __init__(self, owner: str, number: int, target: str, method: str, port: Port | None = None) -> None:
        self.owner = owner
        self.number = number
        self.target = target
        self.method = method
        # In the driver: what its threads block on. No part of the value.
        self.future: Any = None
        self._cutline_port = port

    @property
    def _port(self) -> Port:
        return self._cutline_port or current_port()

    def then(self, method: Callable[..., Any], *own: Any, error: Callable[..., Any] | None = None) -> None:
        """Continues in another handler: ``method(answer, *own)`` of the same participant.

        Args:
            method: a bound method of the participant itself; its name is kept, in the image too.
            own: values to carry along; they are part of the image until the answer is there.
            error: a bound method called as ``error(exception, *own)`` when the answer is an exception;
                without it the exception counts as raised by this participant.
        """
        self._port.then(self, method, own, error)

    def __await__(self) -> Generator[Any, None, T]:
        answer: T = yield from self._port.wait(self).__await__()
        return answer

    def result(self, timeout: float | None = None, *, committed: bool = False) -> T:
        """Blocks for the answer, outside handlers.

        Args:
            timeout: seconds; TimeoutError after them.
            committed: wait until a committed checkpoint holds the answer, so that no recovery undoes it.

        Raises:
            BlockingInHandler: inside a handler.
            RolledBack: the question was undone by a recovery.
            Exception: whatever the method raised, with the remote traceback as its cause.
        """
        answer: T = self._port.result(self, timeout, committed)
        return answer

    def object_ref(self) -> Any:
        """The answer as an ObjectRef of Ray's: for arguments of Ray tasks, `ray.wait`, an ActorPool.

        It blocks until the answer is there, and puts it into Ray's object store. What the method raised is
        raised here. Uncommitted, as `result` is.
        """
        # Only who uses Ray calls this.
        import ray

        return ray.put(self.result())

    def __cutline_reduce__(self) -> tuple[Any, ...]:
        self._port.keep(self)
        return _load_ref, (self.owner, self.number, self.target, self.method)

    def __reduce__(self) -> tuple[Any, ...]:
        return self.__cutline_reduce__()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ref) and (other.owner, other.number) == (self.owner, self.number)

    def __hash__(self) -> int:
        return hash(("cutline.Ref", self.owner, self.number))

    def __repr__(self) -> str:
        return f"<Ref {self.target}.{self.method} asked by {self.owner} #{self.number}>"


# What Refs of this process are: hosts may put a kind in its place that other libraries recognize.
ref_kind: type[Ref[Any]] = Ref


def make_ref(owner: str, number: int, target: str, method: str, port: Port) -> Ref[Any]:
    """A Ref of this process's kind."""
    return ref_kind(owner, number, target, method, port)


def _load_handle(name: str, class_name: str) -> Handle:
    """What a pickled Handle names; unpicklers put a bound loader in its place."""
    return Handle(name, class_name)


def _load_ref(owner: str, number: int, target: str, method: str) -> Ref[Any]:
    """What a pickled Ref names; unpicklers put a bound loader in its place."""
    return Ref(owner, number, target, method)


def live_loaders(
    handle: Callable[[str, str], Handle], ref: Callable[[str, int, str, str], Ref[Any]]
) -> Mapping[str, Callable[..., Any]]:
    """The names that unpicklers of this process answer with bound loaders."""
    return {f"{__name__}:_load_handle": handle, f"{__name__}:_load_ref": ref}
