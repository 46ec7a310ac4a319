"""Making participants from the driver: names, options, and what became of each.

``system.spawn`` waits until the participant is up. ``Editor.remote(...)`` returns a handle at once, so that
several start side by side; what goes wrong is kept here and raised by the first use of the handle, by
`ready`, or told at the system's stop.

A participant without a name is called after its class and its place in the order of creation: ``Trader-0``,
``Trader-1``; inside `system.loop` after loop and step too, since a body is run again. A program that makes
them in another order gets each other's states at resume, of which it is warned once.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import TYPE_CHECKING, Any, TypeVar

from cutline.errors import DuplicateName, UnknownParticipant
from cutline.participant.actor import options_of, wrap
from cutline.participant.classes import name_of
from cutline.participant.driver import DRIVER, DriverRunner
from cutline.participant.handle import Handle
from cutline.participant.late import late_call
from cutline.participant.program import describe_program, vouched
from cutline.participant.spawning import check_name, packer, record_of
from cutline.participant.submission import Submission

if TYPE_CHECKING:
    from .driver_port import DriverPort

__all__ = ("Births", "outcome")

T = TypeVar("T")

_log = logging.getLogger("cutline")
# Seconds until a name that nobody here has heard of counts as one that nobody has.
_NEWS = 1.0
_LOOK = 0.01


class Births:
    """See the module's head. Called by user threads."""

    def __init__(self, runner: DriverRunner, port: DriverPort, cluster: str) -> None:
        self._runner = runner
        self._port = port
        self._cluster = cluster
        self._claimed: set[str] = set()
        self._pending: dict[str, Future[None]] = {}
        self._failed: dict[str, BaseException] = {}
        self._untold: dict[str, BaseException] = {}
        self._unnamed: Counter[str] = Counter()
        # Names whose handles came in messages: somebody else's newborns, perhaps.
        self._heard: dict[str, None] = {}

    def spawn(
        self, name: str | None, kind: Any, options: Mapping[str, Any] | None, args: Any, kwargs: Any
    ) -> tuple[Handle, Future[None]]:
        """A handle, and what is done when its participant is up; see `System.spawn`.

        `options`: what the class was marked with, unless given.
        """
        if not isinstance(kind, type):
            kind = wrap(kind)
        if options is None:
            options = options_of(kind)
        if name is None:
            name = self._name_for(kind)
        check_name(name, DRIVER)
        self._port.check()
        handle = Handle(name, name_of(kind), self._port)
        up = self._pending.get(name)
        if up is None and name in self._runner.spawning:
            # The log's record of it is being replayed, and may fail as it did the first time.
            self._runner.spawning[name].exception()
        if name not in self._runner.known_names and up is not None and up.done():
            # It has left: the name is free.
            up = None
            self._claimed.discard(name)
        if name in self._runner.known_names or (up is not None and name not in self._failed):
            if name in self._claimed and not self._port.in_loop and not options.get("get_if_exists"):
                raise DuplicateName(
                    f"there is a participant {name!r} already; names are identities", participant=name
                )
            self._claimed.add(name)
            return handle, up if up is not None else _done()
        return handle, self._begin(name, kind, options, args, kwargs)

    def _begin(
        self, name: str, kind: type, options: Mapping[str, Any], args: Any, kwargs: Any
    ) -> Future[None]:
        late = late_call(args, kwargs)
        said = packer(DRIVER, name)
        packed = said(*(late.outline() if late is not None else (args, kwargs)))
        record = record_of(kind, options, packed, self._cluster)
        if record["class_name"].startswith("__main__:"):
            record["main"] = describe_program()["main"]
            if self._runner.script_key is not None:
                record["vouched"] = vouched(record["main"], self._runner.script_key)
        up: Future[None] = Future()
        self._claimed.add(name)
        self._failed.pop(name, None)
        self._untold.pop(name, None)
        self._pending[name] = up
        up.add_done_callback(lambda done: self._ended(name, done))

        def go() -> None:
            if late is not None:
                record["args"] = said(*late.filled())
            number = self._port.number()
            self._runner.post(Submission("spawn", number, name, "", record, None, True, None, 0, up))

        self._port.gates.through(name, late, go, up.set_exception)
        return up

    def _name_for(self, kind: type) -> str:
        if not self._unnamed:
            _log.warning(
                "%s has no name and is called after the order of creation; give names "
                "(%s.options(name=...).remote(...)), or a program that makes them in another order gets each "
                "other's states at resume",
                kind.__name__,
                kind.__name__,
            )
        stem = f"{kind.__name__}{self._port.place_name}"
        number = self._unnamed[stem]
        self._unnamed[stem] += 1
        return f"{stem}-{number}"

    def again(self, place_name: str) -> None:
        """The body of a loop begins its step anew: it makes what it made."""
        for stem in [stem for stem in self._unnamed if stem.endswith(place_name)]:
            del self._unnamed[stem]

    def _ended(self, name: str, done: Future[None]) -> None:
        error = done.exception()
        if error is not None:
            self._claimed.discard(name)
            self._failed[name] = self._untold[name] = error

    # -- what became of it -----------------------------------------------------------------

    def check(self, name: str) -> None:
        """Raises what the use of a handle is to raise.

        Raises:
            UnknownParticipant: nobody of that name was ever begun.
            Exception: what kept the participant from coming up.
        """
        error = self._failed.get(name)
        if error is not None:
            self._untold.pop(name, None)
            raise error
        if not self._comes(name):
            known = ", ".join(sorted({*self._runner.known_names, *self._pending})) or "none"
            raise UnknownParticipant(
                f"there is no participant {name!r}; spawn it first (known: {known})", participant=name
            )

    def _comes(self, name: str) -> bool:
        """Whether somebody of that name is known here, or gets known: the answer of a participant that has
        spawned it may be here before the news of its birth."""
        deadline = time.monotonic() + _NEWS
        while not any(name in names for names in (self._runner.known_names, self._pending, self._heard)):
            if time.monotonic() > deadline or self._runner.fault is not None or self._runner.is_copy:
                return False
            time.sleep(_LOOK)
        return True

    def heard_of(self, name: str) -> None:
        """A handle of that name came in a message."""
        self._heard[name] = None

    def told(self, name: str) -> None:
        """Somebody has heard of the failure, by an answer."""
        self._untold.pop(name, None)

    def ready(self, handles: Iterable[Handle], timeout: float | None) -> None:
        """Waits until all are up; see `System.ready`."""
        deadline = None if timeout is None else time.monotonic() + timeout
        for handle in handles:
            name = handle._cutline_name
            up = self._pending.get(name)
            if up is not None:
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                self._await(name, up, left)
            self.check(name)

    def _await(self, name: str, up: Future[None], left: float | None) -> None:
        try:
            outcome(up, left, f"sign of participant {name!r}")
        except TimeoutError:
            raise
        except Exception:
            self.told(name)
            raise

    def wait_up(self, name: str, up: Future[None]) -> None:
        """Waits for one; raises what kept it from coming up."""
        self._await(name, up, None)

    def untold(self) -> dict[str, BaseException]:
        """Failures that nobody has heard of."""
        return dict(self._untold)


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


def _done() -> Future[None]:
    done: Future[None] = Future()
    done.set_result(None)
    return done
