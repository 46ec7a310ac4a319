"""The team of ``cutline demo --agents``: a planner, researchers, a writer, an approver; all straight lines.

Each handler awaits what it needs, in the order in which a person would do it, and changes its state after its
last await. What is asked of the world is an effect: the model and the search may be asked twice, the bank
knows a key, an invoice is looked up before it is paid again, a letter is sent again with the same key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from cutline.participant.effect_request import effect
from cutline.participant.log import Log
from cutline.participant.person import ask_person

from .team_tools import compose, divide, pay, price, search, send, summarize, was_paid, withdraw

__all__ = ("PARTS", "RESEARCHERS", "Approver", "Planner", "Researcher", "World", "Writer")

RESEARCHERS = 2
# Questions of a topic.
PARTS = 3

# A handle.
Peer: TypeAlias = Any


@dataclass(frozen=True)
class World:
    """Where the bank and the service are."""

    bank: str
    url: str


class Planner:
    """Divides the work, and puts together what comes back."""

    def __init__(self, researchers: Sequence[Peer], writer: Peer, approver: Peer) -> None:
        self.researchers = tuple(researchers)
        self.writer = writer
        self.approver = approver
        self.reports = 0

    async def report(self, topics: Sequence[str]) -> dict[str, Any]:
        """A report about some topics, published if a person approves of it."""
        sections, spent, receipts = [], 0, []
        for topic in topics:
            questions = await effect(divide, topic, PARTS, repeatable=True)
            found = await asyncio.gather(
                *[
                    self.researchers[number % len(self.researchers)].research.remote(topic, question)
                    for number, question in enumerate(questions)
                ]
            )
            spent += sum(each["cents"] for each in found)
            receipts += [each["receipt"] for each in found]
            sections.append(await self.writer.write.remote(topic, [each["text"] for each in found]))
        text = "\n\n".join(sections)
        published = await self.approver.publish.remote(text, spent)
        self.reports += 1
        return {"text": text, "spent": spent, "receipts": receipts, "published": published}


class Researcher:
    """Answers questions, and pays for what it reads."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.spent = 0
        self.paid: Log[tuple[str, str]] = Log()

    async def research(self, topic: str, question: str) -> dict[str, Any]:
        """What is known about a question, what it has cost, and the receipt."""
        world, invoice, cents = self.world, f"{topic}: {question}", price(question)
        passages = await effect(search, question, repeatable=True)
        await effect(withdraw, world.bank, cents, invoice)
        receipt = await effect(pay, world.url, invoice, cents, on_unknown=was_paid)
        text = await effect(summarize, question, passages, repeatable=True)
        self.spent += cents
        self.paid.append((invoice, receipt))
        return {"text": text, "cents": cents, "receipt": receipt}


class Writer:
    """Writes sections, and tells the editor of each."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.letters: list[str] = []

    async def write(self, topic: str, findings: Sequence[str]) -> str:
        """A section."""
        text = await effect(compose, topic, findings, repeatable=True)
        receipt = await effect(send, self.world.url, "editor", f"{topic}: {len(text)} characters")
        self.letters.append(receipt)
        return str(text)


class Approver:
    """Asks a person before anything is published."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.decisions: list[bool] = []

    async def publish(self, text: str, spent: int) -> str:
        """The receipt of the printer; empty if the person does not approve."""
        words = len(text.split())
        approved = await ask_person(f"Publish a report of {words} words, which has cost {spent} cents?", bool)
        receipt = await effect(send, self.world.url, "printer", text) if approved else ""
        self.decisions.append(approved)
        return str(receipt)
