"""Names that the program uses before the news of their birth has come to it."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from cutline.coordinator.births import Births
from cutline.errors import UnknownParticipant


def births(runner: Any) -> Births:
    return Births(runner, SimpleNamespace(), "")  # type: ignore[arg-type]


def test_the_answer_of_who_has_spawned_it_may_be_first() -> None:
    """A participant answers that it has spawned another one, and the program uses that at once."""
    runner = SimpleNamespace(known_names={"parent": "Parent"}, fault=None, is_copy=False)

    def news() -> None:
        runner.known_names = {**runner.known_names, "child": "Child"}

    coming = threading.Timer(0.1, news)
    coming.start()
    births(runner).check("child")
    coming.join()


def test_a_name_that_nobody_has_is_an_error_that_says_who_there_is() -> None:
    runner = SimpleNamespace(known_names={"parent": "Parent"}, fault=None, is_copy=False)
    with pytest.raises(UnknownParticipant, match=r"'child'.*known: parent"):
        births(runner).check("child")
