"""A participant's runner where Ray is at hand: calls with ObjectRefs as arguments leave when those are there.

Such a call waits in the runner, by receiver, and whatever goes to that receiver afterwards waits behind it
(RULES: a channel has one order). The handler that made it has long returned. An ObjectRef cannot go into an
image, its value can: while a checkpoint is due, nothing is handled until every value is there, or the
checkpoint is given up. What waits is gone after a rollback, as everything of the undone history is.
"""

from __future__ import annotations

import logging
from collections import deque
from functools import partial
from typing import Any, NamedTuple

from cutline.barrier import Member

from .desk import HandlerRaised
from .handle import CallOptions, Ref
from .late import LateCall, late_call
from .messages import ASK, TELL, encode_ask, encode_tell, pack_error
from .parcelling import ParcelDesk, Parcelling

__all__ = ("LateDesk", "LateMessage", "RayRunner")

_log = logging.getLogger("cutline")


class LateMessage(NamedTuple):
    """A message that has no bytes yet; it stands in `Desk.out` where they would."""

    number: int
    target: str
    method: str
    call: LateCall

    def encode(self, desk: LateDesk) -> bytes:
        """The bytes.

        Raises:
            Exception: what the task behind an argument raised, or CannotCapture for its value.
        """
        arguments = desk._packed(self.target, self.method, *self.call.filled())
        if self.number:
            return encode_ask(self.number, self.method, arguments)
        return encode_tell(self.method, arguments)


class _Ready(NamedTuple):
    """An argument of the first call that waits for `name` has come."""

    name: str


class LateDesk(ParcelDesk):
    """A desk that takes ObjectRefs as arguments."""

    out: list[Any]
    # Whether such a message was ever sent.
    has_late = False

    def ask(self, target: str, method: str, args: Any, kwargs: Any, options: CallOptions) -> Ref[Any]:
        call = late_call(args, kwargs)
        if call is None:
            return super().ask(target, method, args, kwargs, options)
        number, is_new = self.numbered(target, ASK, method, self._packed(target, method, *call.outline()))
        if is_new:
            self.asks[number] = (target, method, [])
            self.out.append((target, LateMessage(number, target, method, call)))
            self.has_late = True
        return self._load_ref(self.name, number, target, method)

    def tell(self, target: str, method: str, args: Any, kwargs: Any, options: CallOptions) -> None:
        call = late_call(args, kwargs)
        if call is None:
            super().tell(target, method, args, kwargs, options)
            return
        said = self._packed(target, method, *call.outline())
        if self.active is None or self.numbered(target, TELL, method, said)[1]:
            self.out.append((target, LateMessage(0, target, method, call)))
            self.has_late = True


class RayRunner(Parcelling):
    """See the module's head."""

    desk: LateDesk
    desk_kind = LateDesk

    def _new_desk(self, instance: object) -> None:
        self.late: dict[str, deque[tuple[str | Member, bytes | LateMessage]]] = {}
        super()._new_desk(instance)

    @property
    def is_waiting(self) -> bool:
        return bool(self.late) or super().is_waiting

    def release(self, out: list[tuple[str | Member, Any]]) -> None:
        if self.late or (self.desk.has_late and any(type(message) is LateMessage for _, message in out)):
            free: list[tuple[str | Member, bytes]] = []
            for target, message in out:
                name = target if isinstance(target, str) else target.name
                waiting = self.late.get(name)
                if waiting is not None:
                    waiting.append((target, message))
                elif isinstance(message, LateMessage):
                    self.late[name] = deque([(target, message)])
                else:
                    free.append((target, message))
                    continue
                if isinstance(message, LateMessage):
                    message.call.when_ready(partial(self.post, _Ready(name)))
            out.clear()
            out.extend(free)
        super().release(out)

    def other_event(self, event: Any) -> None:
        if isinstance(event, _Ready):
            self._let_go(event.name)
        else:
            super().other_event(event)

    def _let_go(self, name: str) -> None:
        """Sends what waits for `name`, up to the next call whose arguments are not there."""
        waiting = self.late.get(name)
        if waiting is None:
            return
        while waiting:
            target, message = waiting[0]
            if isinstance(message, LateMessage):
                if not message.call.ready:
                    return
                try:
                    message_bytes = message.encode(self.desk)
                except Exception as error:
                    waiting.popleft()
                    self._failed(message, error)
                    continue
            else:
                message_bytes = message
            waiting.popleft()
            super().release([(target, message_bytes)])
        del self.late[name]

    def _failed(self, message: LateMessage, error: Exception) -> None:
        if message.number:
            self.local_answer(message.number, pack_error(error, participant=self.me.name))
        else:
            self.fail(HandlerRaised(f"argument of {message.target}.{message.method}", error))

    def _take_events(self, wait: float) -> None:
        super()._take_events(wait)
        told = False
        while self.late and self.phase == "running" and self.ended is None and self._is_due():
            if not told:
                told = True
                _log.info(
                    "participant %r: a checkpoint waits for ObjectRefs in calls to %s",
                    self.me.name,
                    ", ".join(self.late),
                )
            super()._take_events(1.0)
            self._retry_links()

    def _is_due(self) -> bool:
        return self.endpoint is not None and bool(self.endpoint.due)
