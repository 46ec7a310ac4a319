"""The user's script on its way to where participants run."""

from __future__ import annotations

import threading
import types

import pytest

from cutline.participant.program import describe_program, install_program
from cutline.participant.transient import transient

SCRIPT = """
class Agent:
    lock = transient(threading.Lock)
    def name(self):
        return greet("agent")
def greet(whom):
    return f"hello {whom}"
def unfit():
    return held
"""


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A program's ``__main__`` that holds something which cannot travel."""
    main = types.ModuleType("__main__")
    main.__dict__.update(transient=transient, threading=threading, held=threading.Lock())
    monkeypatch.setitem(__import__("sys").modules, "__main__", main)
    exec(SCRIPT, vars(main))
    return main


def test_classes_with_transients_travel_and_what_cannot_travel_stays_behind(
    script: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    doc = describe_program()
    there = types.ModuleType("__main__")
    monkeypatch.setitem(__import__("sys").modules, "__main__", there)
    install_program(doc)
    agent = there.Agent()
    assert agent.name() == "hello agent"
    assert agent.lock is agent.lock and agent.lock is not script.Agent().lock
    assert not hasattr(there, "unfit")
