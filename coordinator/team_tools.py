"""What the team of ``cutline demo --agents`` calls: a model, a bank, a service for payments and letters.

The model is deterministic: it picks words and sentences out of real text, the heads of Cutline's own modules.
The bank is a SQLite file and knows a key that it has seen. The service (`team_world`) is dumb: whatever is
sent to it it writes down and does, again if it is sent again.
"""

from __future__ import annotations

import json
import re
import sqlite3
import urllib.parse
import urllib.request
import zlib
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from functools import lru_cache
from pathlib import Path
from typing import Any

from cutline.participant.effect_request import Done, NotDone

__all__ = ("compose", "divide", "pay", "price", "search", "send", "summarize", "was_paid", "withdraw")

_ROOMS = ("barrier", "storage", "participant", "coordinator")
_WORD = re.compile(r"[a-z]{4,}")
_SENTENCE = re.compile(r"[^.:;]{30,}?[.;]")
_ORDINARY = frozenset(
    "that this what with from have which when they their then them than there where".split()
)
_SECONDS = 10.0


# -- the model ---------------------------------------------------------------------------------------


@lru_cache
def _texts() -> tuple[tuple[str, str], ...]:
    """(module, what its head says) for all modules."""
    root = Path(__file__).parent.parent
    found = []
    for room in _ROOMS:
        for path in sorted((root / room).glob("*.py")):
            text = path.read_text(encoding="utf-8")
            head = text[3:].partition('"""')[0] if text.startswith('"""') else ""
            if head:
                found.append((f"{room}.{path.stem}", " ".join(head.split())))
    return tuple(found)


def _words(text: str) -> list[str]:
    return [word for word in _WORD.findall(text.lower()) if word not in _ORDINARY]


def divide(topic: str, parts: int) -> list[str]:
    """A topic as questions: the words that are told most often together with it."""
    counts: Counter[str] = Counter()
    for _, text in _texts():
        words = _words(text)
        if topic in words:
            counts.update(set(words) - {topic})
    common = sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))[:parts]
    return [f"what has {topic} to do with {word}" for word, _ in common]


def search(question: str) -> list[tuple[str, str]]:
    """The sentences that have most to do with a question, each with its module."""
    wanted = set(_words(question))
    found = [
        (len(wanted & set(_words(sentence))), module, sentence.strip())
        for module, text in _texts()
        for sentence in _SENTENCE.findall(text)
    ]
    found.sort(key=lambda entry: (-entry[0], entry[1], entry[2]))
    return [(module, sentence) for score, module, sentence in found[:3] if score]


def summarize(question: str, passages: Sequence[Sequence[str]]) -> str:
    """One sentence of several passages: the one that says most in fewest words."""
    wanted = set(_words(question))
    best = min(passages, key=lambda each: (-len(wanted & set(_words(each[1]))), len(each[1]), each[1]))
    return f"{best[1]} [{', '.join(sorted({module for module, _ in passages}))}]"


def compose(topic: str, findings: Sequence[str]) -> str:
    """A section of the report."""
    return "\n".join([topic.capitalize(), *(f"- {each}" for each in findings)])


def price(question: str) -> int:
    """What an answer costs, in cents."""
    return 100 + zlib.crc32(question.encode()) % 900


# -- the bank ----------------------------------------------------------------------------------------


def withdraw(bank: str, cents: int, invoice: str, key: str) -> int:
    """Takes money for an invoice out of the account; the same key is booked once. Returns what was taken."""
    with closing(sqlite3.connect(bank, timeout=_SECONDS)) as connection, connection:
        connection.execute("BEGIN IMMEDIATE")
        booked = connection.execute(
            "INSERT INTO bookings (key, invoice, cents) VALUES (?, ?, ?) ON CONFLICT (key) DO NOTHING",
            (key, invoice, cents),
        )
        if booked.rowcount:
            connection.execute("UPDATE account SET cents = cents - ?", (cents,))
    return cents


# -- the service -------------------------------------------------------------------------------------


def _post(url: str, what: str, about: dict[str, Any]) -> str:
    body = json.dumps(about).encode()
    request = urllib.request.Request(f"{url}/{what}", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=_SECONDS) as reply:
        receipt: str = json.load(reply)["receipt"]
    return receipt


def pay(url: str, invoice: str, cents: int, key: str) -> str:
    """Pays an invoice, and does not look whether it has done so before. Returns the receipt."""
    return _post(url, "pay", {"invoice": invoice, "cents": cents, "key": key})


def was_paid(key: str, url: str, invoice: str, cents: int) -> Done | NotDone:
    """Asks the service whether it was told to pay with that key."""
    query = urllib.parse.urlencode({"key": key})
    with urllib.request.urlopen(f"{url}/seen?{query}", timeout=_SECONDS) as reply:
        receipts: list[str] = json.load(reply)["receipts"]
    return Done(receipts[0]) if receipts else NotDone()


def send(url: str, whom: str, text: str, key: str) -> str:
    """Sends a letter; one that nobody knows of is sent again with the same key. Returns the receipt."""
    return _post(url, "send", {"whom": whom, "text": text, "key": key})
