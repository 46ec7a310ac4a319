"""Figures and diagrams of docs/ are those of the code."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parent.parent / "docs"
_ROW = re.compile(r"^\| ([^|]+) \| ([\d,]+)(?: (KiB|MiB|s))? \| `([\w.]+)(?:\((\w+)\))?` \|", re.MULTILINE)
_UNITS = {"": 1, "KiB": 1024, "MiB": 1024 * 1024, "s": 1}


def rows() -> list[tuple[str, int, str, str]]:
    """What, figure, dotted name, parameter (if the figure is a default)."""
    text = (DOCS / "limits.md").read_text()
    return [
        (what, int(figure.replace(",", "")) * _UNITS[unit], name, parameter)
        for what, figure, unit, name, parameter in _ROW.findall(text)
    ]


def constant(name: str, parameter: str) -> Any:
    """What the code has under a dotted name below `cutline`."""
    room, module, *path = name.split(".")
    value: Any = import_module(f"cutline.{room}.{module}")
    for part in path:
        value = getattr(value, part)
    return inspect.signature(value).parameters[parameter].default if parameter else value


@pytest.mark.parametrize(("what", "figure", "name", "parameter"), rows())
def test_limit(what: str, figure: int, name: str, parameter: str) -> None:
    assert constant(name, parameter) == figure, what


def test_every_row_of_the_table_is_compared() -> None:
    lines = (DOCS / "limits.md").read_text().splitlines()
    assert len(rows()) == sum(line.startswith("| ") for line in lines) - 2


@pytest.mark.parametrize(
    "module", ["barrier.commit", "barrier.recovery", "barrier.snapshot", "participant.runner"]
)
def test_diagram_is_the_one_of_the_module(module: str) -> None:
    text = (DOCS / "design.md").read_text()
    shown = re.search(rf"^`{module}`:\n\n```text\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert shown is not None, f"docs/design.md shows no diagram of {module}"
    head = f"{inspect.getdoc(import_module(f'cutline.{module}'))}\n"
    drawn = re.search(r"::\n\n((?:    .*\n|\n)+)", head)
    assert drawn is not None
    assert inspect.cleandoc(shown[1]) == inspect.cleandoc(drawn[1]), (
        "the diagram was changed in one place only"
    )


def test_links_lead_somewhere() -> None:
    for path in [DOCS.parent / "README.md", *DOCS.rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text()):
            assert (path.parent / target).exists(), f"{path.name}: {target}"
