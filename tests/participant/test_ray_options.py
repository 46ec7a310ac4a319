"""The table of Ray's options: pure rules, and the page that shows them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cutline.errors import RefusedOption
from cutline.participant.ray_options import (
    ACTOR_OPTIONS,
    METHOD_OPTIONS,
    accept,
    check_method_options,
    decode_options,
    encode_options,
    passed_options,
    refuse_marked_methods,
    table,
)

PAGE = Path(__file__).resolve().parents[2] / "docs" / "ray.md"


class Place:
    """No plain value, as a scheduling strategy is none."""

    def __init__(self, node: str) -> None:
        self.node = node


@pytest.mark.parametrize("rules", [ACTOR_OPTIONS, METHOD_OPTIONS], ids=["actor", "method"])
def test_the_page_shows_the_table(rules: Any) -> None:
    assert table(rules) in PAGE.read_text()


def test_every_rule_says_what_it_means() -> None:
    for rules in (ACTOR_OPTIONS, METHOD_OPTIONS):
        for name, rule in rules.items():
            assert rule.verdict in ("passed", "interpreted", "refused"), name
            assert rule.says or rule.verdict == "passed", name


@pytest.mark.parametrize("name", [n for n, rule in ACTOR_OPTIONS.items() if rule.verdict == "refused"])
def test_refused_options_take_harmless_values_alone(name: str) -> None:
    for value in ACTOR_OPTIONS[name].harmless:
        assert accept(name, value)
    with pytest.raises(RefusedOption, match=name):
        accept(name, 17)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_restarts", -1),
        ("max_restarts", 0),
        ("max_task_retries", None),
        ("lifetime", "detached"),
        ("get_if_exists", True),
        ("num_gpus", 0.5),
        ("name", "x"),
        ("namespace", "y"),
    ],
)
def test_accepted_values(name: str, value: Any) -> None:
    assert accept(name, value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_restarts", 1.5),
        ("max_restarts", True),
        ("max_task_retries", -2),
        ("lifetime", "for ever"),
        ("num_cpus", "2"),
        ("num_cpus", True),
        ("resources", 1),
        ("name", 3),
    ],
)
def test_values_that_mean_nothing(name: str, value: Any) -> None:
    with pytest.raises(RefusedOption, match=name):
        accept(name, value)


def test_an_unknown_option_is_somebody_elses() -> None:
    assert not accept("on_error", "halt")
    with pytest.raises(RefusedOption, match="options are: key, durable"):
        check_method_options({"kee": 1})


def test_options_travel_as_documents() -> None:
    options = {
        "num_cpus": 1,
        "runtime_env": {"env_vars": {"A": "b"}},
        "scheduling_strategy": Place("n1"),
        "resources": {"lamp": 1},
        "label_selector": None,
    }
    document = encode_options(options, "here")
    found = decode_options(document, "here")
    assert found["scheduling_strategy"].node == "n1"
    assert {name: found[name] for name in ("num_cpus", "runtime_env", "resources")} == {
        name: options[name] for name in ("num_cpus", "runtime_env", "resources")
    }
    assert "scheduling_strategy" not in decode_options(document, "elsewhere")


def test_only_passed_ones_reach_ray() -> None:
    given = {"num_cpus": 2, "max_restarts": 3, "on_error": "halt", "memory": None, "name": "x"}
    assert passed_options(given) == {"num_cpus": 2}


def test_marks_of_ray_method() -> None:
    class Marked:
        def many(self) -> None: ...

    refuse_marked_methods(Marked)
    Marked.many.__ray_num_returns__ = 1  # type: ignore[attr-defined]
    refuse_marked_methods(Marked)
    Marked.many.__ray_num_returns__ = 2  # type: ignore[attr-defined]
    with pytest.raises(RefusedOption, match=r"Marked\.many.*num_returns"):
        refuse_marked_methods(Marked)
