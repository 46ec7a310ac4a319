"""What tests of changed programs share: modules that come, change and go, renames of their own."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator

import pytest

from cutline.participant.renames import RENAMES

Define = Callable[[str, str], types.ModuleType]


@pytest.fixture(autouse=True)
def own_renames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RENAMES, "table", {})


@pytest.fixture
def define() -> Iterator[Define]:
    """Makes a module of this text; one of that name before is gone. "" removes it."""
    made: dict[str, types.ModuleType | None] = {}

    def defined(name: str, text: str) -> types.ModuleType:
        made.setdefault(name, sys.modules.pop(name, None))
        module = types.ModuleType(name)
        if text:
            sys.modules[name] = module
            exec("import cutline, dataclasses, enum, typing\n" + text, vars(module))
        else:
            sys.modules.pop(name, None)
        return module

    yield defined
    for name, before in made.items():
        if before is None:
            sys.modules.pop(name, None)
        else:
            sys.modules[name] = before
