"""Awkward values as arguments and as answers, between processes: exact, or refused by their path."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

import cutline
from cutline.errors import CannotCapture

if sys.version_info < (3, 11):
    pytest.skip("the zoo is written for Python 3.11 and later", allow_module_level=True)

from tests.system.customs import TRAVELLERS, Customs, made, zoo

REFUSED = {
    "defaultdict_lambda": r"\['d'\]",
    "deep_chain": r"\['head'\]",
    "closure_shares_list": r"\['add'\]",
    "generator": r"\['deep'\]\['gen'\]",
    "thread_lock": r"\['x'\]\.lock",
    "open_file": r"\['f'\]",
    "load_fails_two_arg_exception": r"\['err'\]",
    "load_fails_getattr_recursion": r"\['z'\]",
}
GOING = sorted(set(TRAVELLERS) - set(REFUSED))


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory, mark: str) -> Iterator[cutline.System]:
    with cutline.start(tmp_path_factory.mktemp("store"), interval=None, quiet=True) as system:
        yield system


@pytest.fixture(scope="module")
def two(system: cutline.System) -> tuple[Any, Any]:
    return system.spawn("customs", Customs), system.spawn("abroad", Customs)


@pytest.mark.parametrize("name", GOING)
def test_there_and_back(two: tuple[Any, Any], name: str) -> None:
    """From the program to a participant; from there to another one, back, and back to the program."""
    customs, abroad = two
    assert customs.look.remote(name, made(name)).result() == ""
    said, back = customs.pass_on.remote(abroad, name).result()
    assert said == "" and TRAVELLERS[name][1](made(name), back) in (True, None)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_refused_by_its_path(two: tuple[Any, Any], name: str) -> None:
    customs, _ = two
    value = made(name)
    with pytest.raises(CannotCapture, match=r"customs\.look\S*" + REFUSED[name]):
        customs.look.remote(name, value)
    if "f" in value:
        value["f"].close()
    with pytest.raises(CannotCapture, match=r"'customs' cannot save answer of give" + REFUSED[name]):
        customs.give.remote(name).result()
    assert customs.look.remote("enums", made("enums")).result() == ""


def test_nothing_is_left_out() -> None:
    assert set(zoo.zoo()) | set(zoo.refusals()) <= set(GOING) | set(REFUSED)
