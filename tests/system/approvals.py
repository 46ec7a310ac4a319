"""Participants that ask people, for tests of whole systems."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from typing import Any

import pytest

import cutline

__all__ = ("Approver", "Verdict", "thorough")

# What takes half a minute together; `make test` has the rest.
thorough = pytest.mark.skipif(not os.environ.get("CUTLINE_TEST_PEOPLE"), reason="make test-people")


@dataclass
class Verdict:
    """What a person decides."""

    approved: bool
    comment: str = ""


class Approver:
    """Asks, and keeps what came back."""

    def __init__(self, peer: cutline.Handle | None = None) -> None:
        self.peer = peer
        self.got: list[Any] = []
        self.drafts = 0

    def ask(self, question: str, deadline: float | None = None) -> None:
        self.drafts += 1
        cutline.ask_person(question, Verdict, deadline).then(self.on_answer, question, error=self.on_error)

    async def ask_and_wait(self, question: str) -> bool:
        verdict: Verdict = await cutline.ask_person(question, Verdict)
        self.got.append((question, verdict))
        return verdict.approved

    async def publish(self, topic: str) -> str:
        """A gate in a straight line, with others asked before and after it."""
        assert self.peer is not None
        draft = await self.peer.write.remote(topic)
        verdict: Verdict = await cutline.ask_person(f"publish {draft!r}?", Verdict)
        await asyncio.sleep(0.01)
        done = await self.peer.finish.remote(draft, verdict.approved)
        self.got.append((done, verdict))
        return str(done)

    async def both(self) -> list[Any]:
        """Two questions at once."""
        return list(await asyncio.gather(cutline.ask_person("a?", int), cutline.ask_person("b?", int)))

    async def impatient(self) -> str:
        try:
            await asyncio.wait_for(_answer(), 2)
        except asyncio.TimeoutError:
            return "gave up"
        return "heard"

    def on_answer(self, verdict: Verdict, question: str) -> None:
        self.got.append((question, verdict))

    def on_error(self, error: Exception, question: str) -> None:
        self.got.append((question, type(error).__name__))

    def remind(self, seconds: float, what: str) -> None:
        cutline.after(seconds, self.note, what)

    async def nap(self, seconds: float) -> None:
        await cutline.sleep(seconds)
        self.got.append(f"slept {seconds}")

    def note(self, what: str) -> None:
        self.got.append(what)

    def all_got(self) -> list[Any]:
        return self.got

    def write(self, topic: str) -> str:
        self.drafts += 1
        return f"{topic}, draft {self.drafts}"

    def finish(self, draft: str, approved: bool) -> str:
        self.got.append((draft, approved))
        return f"{draft}: {'printed' if approved else 'shelved'}"


async def _answer() -> Any:
    return await cutline.ask_person("quick?", bool)
