"""What a program asks of its running system besides calls: checkpoints, moves, how it stands.

Part of `System`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from cutline.participant.leaving import LeavingDriver
from cutline.storage import Store

from .people import Question, answered, asked
from .suspending import SOONER, Suspended, free_label, wait_until_still

__all__ = ("Asking",)


class Asking(ABC):
    """See the module's head."""

    name: str
    store: Store
    _runner: LeavingDriver

    @abstractmethod
    def _suspend(self, label: str) -> Suspended:
        """Takes a savepoint and ends the system."""

    @abstractmethod
    def _request(self, what: str, timeout: float | None = None, **fields: Any) -> Any:
        """Asks the coordinator and waits for its reply."""

    def checkpoint(self) -> int:
        """Takes a checkpoint now and returns its id when it is committed.

        Raises:
            CheckpointAborted: it did not commit; the message says why. Nothing is lost, ask again.
        """
        number: int = self._request("checkpoint")["checkpoint"]
        return number

    def savepoint(self, label: str) -> int:
        """Takes a labelled, self-contained checkpoint that is kept until it is deleted; returns its id.

        Raises:
            DuplicateLabel: the label is taken.
            CheckpointAborted: it did not commit.
        """
        number: int = self._request("savepoint", label=label)["checkpoint"]
        return number

    def checkpoints(self) -> list[Any]:
        """The committed checkpoints of this system, oldest first, with their figures."""
        rows: list[Any] = self.store.catalog.checkpoints(self.name)
        return rows

    def pending(self) -> list[Question]:
        """The questions to people that wait for an answer, oldest first; see `cutline.pending`."""
        return [each for each in asked(self.store, self.name) if each.state == "open"]

    def answer(self, question: str, value: Any) -> Question:
        """Answers a question to a person; see `cutline.answer`. It is delivered at once."""
        found = answered(self.store, self.name, question, value)
        # Else the coordinator finds it when it looks next.
        runner = self._runner
        runner.post(lambda: runner.liaison.say("effect_answered"))
        return found

    def suspend(self, label: str | None = None) -> Suspended:
        """Takes a savepoint and ends every process of the system; `cutline.start` goes on from it.

        That may be days later, and, with an export, on another machine. Calls of effects that are under way
        are let come to their end first, 15 seconds at most. Meanwhile questions can be seen and answered
        (`cutline.pending`, `cutline.answer`), and timers that come due fire at the start.

        Args:
            label: of the savepoint, which stays until it is deleted; None: ``suspended-1`` and so on.

        Raises:
            CheckpointAborted, DuplicateLabel: there is no savepoint; the system goes on.
            Misuse: in a loop's body.
        """
        taken = [row.label for row in self.checkpoints()]
        chosen = free_label(taken) if label is None else label
        return self._suspend(chosen)

    def suspend_when_waiting(
        self, timeout: float | None = None, *, sooner: float = SOONER, label: str | None = None
    ) -> Suspended:
        """Suspends the system when every participant only waits for people or timers and no message is under
        way; see `suspend`.

        Args:
            timeout: seconds; TimeoutError after them, and the system goes on.
            sooner: timers that are due in fewer seconds than these are waited for.
        """
        wait_until_still(self._request, timeout, sooner)
        return self.suspend(label)

    def drain(self, node: str, timeout: float = 120.0) -> dict[str, str]:
        """Moves all participants off a node of the cluster; returns where each of them is now.

        A checkpoint is taken first; what is done after it is done again elsewhere. Nothing is started on
        that node any more. Ray's own draining of a node (``ray drain-node``, preemption) does the same.

        Raises:
            Misuse: there is no such node, or somebody's options allow no other; the message names both.
            TimeoutError: not everybody was elsewhere in `timeout` seconds.
        """
        places: dict[str, str] = self._request("drain", timeout, node=node)
        return places

    def status(self) -> dict[str, Any]:
        """What is going on: phase and process of each participant, the newest and undecided checkpoints."""
        doc: dict[str, Any] = self._request("status", timeout=30.0)
        return doc
