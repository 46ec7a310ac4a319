"""What `allow=` lets a pickle name, and that it holds for every way to name it."""

from __future__ import annotations

import collections
import datetime
import os
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cutline.errors import ClassNotAllowed, CutlineError, Misuse, UnknownMethod
from cutline.participant.allowing import check_allow, lift, restrict
from cutline.participant.classes import Classes
from cutline.participant.pickling import dumps, loads
from cutline.participant.ray_options import decode_options, encode_options


class Own:
    """A class of the program."""

    class Inner:
        pass

    def __init__(self) -> None:
        self.inner = Own.Inner()


# As `from os import system` in a module of the program.
borrowed = os.system


class Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.fixture(autouse=True)
def unrestricted() -> Iterator[None]:
    yield
    for system in ("s", "t"):
        lift(system)


def allow(*names: str) -> None:
    restrict("s", check_allow(names))


def test_a_bomb_among_options_for_ray_does_not_go_off(tmp_path: Path) -> None:
    document = encode_options({"resources": {"x": Bomb(tmp_path / "bomb")}, "num_cpus": (1, Own())}, "here")
    allow(__name__)
    with pytest.raises(ClassNotAllowed):
        decode_options(document, "here")
    assert not (tmp_path / "bomb").exists()
    del document["resources"]
    assert type(decode_options(document, "here")["num_cpus"][1]) is Own
    lift("s")
    document = encode_options({"resources": {"x": Bomb(tmp_path / "bomb")}}, "here")
    decode_options(document, "here")
    assert (tmp_path / "bomb").exists()


def test_places_of_ray_are_allowed() -> None:
    strategies = pytest.importorskip("ray.util.scheduling_strategies")
    raylet = pytest.importorskip("ray._raylet")
    group = pytest.importorskip("ray.util.placement_group").PlacementGroup(
        raylet.PlacementGroupID(os.urandom(18))
    )
    labels = {
        "a": strategies.In("b"),
        "c": strategies.NotIn("d"),
        "e": strategies.Exists(),
        "f": strategies.DoesNotExist(),
    }
    allow("nothing")
    for place in (
        strategies.PlacementGroupSchedulingStrategy(group, 0, True),
        strategies.NodeAffinitySchedulingStrategy("ab" * 28, soft=False),
        strategies.NodeLabelSchedulingStrategy(hard=labels),
    ):
        found = decode_options(encode_options({"scheduling_strategy": place}, "here"), "here")
        assert type(found["scheduling_strategy"]) is type(place)


@pytest.mark.parametrize("protocol", range(6))
def test_a_bomb_does_not_go_off(tmp_path: Path, protocol: int) -> None:
    """Whatever opcode names it: old pickles have others."""
    evil = pickle.dumps(Bomb(tmp_path / "bomb"), protocol)
    allow(__name__, "builtins.*")
    with pytest.raises(CutlineError, match=r"(posix|os):mkdir is not among what allow="):
        loads(evil, participant="p")
    assert not (tmp_path / "bomb").exists()
    lift("s")
    loads(evil, participant="p")
    assert (tmp_path / "bomb").exists()


@pytest.mark.parametrize(
    ("entries", "name"),
    [
        ((), f"{__name__}:Own"),
        ((f"{__name__}.Own",), f"{__name__}:Bomb"),
        ((__name__,), f"{__name__}:borrowed"),
        ((__name__,), f"{__name__}:os.system"),
        ((__name__,), f"{__name__}:np.load"),
        ((__name__[:-1],), f"{__name__}:Own"),
        (("builtins",), "builtins:eval"),
        (("builtins.*",), "builtins:__import__"),
        (("builtins.*",), "builtins:getattr"),
        (("os", "posix"), "posix:system"),
        (("subprocess",), "subprocess:Popen"),
        (("functools",), "functools:partial"),
        (("cutline",), "cutline.participant.program:os.system"),
        ((), "cutline.errors:Any"),
        ((), "cutline.participant.ingress:IngressLog"),
    ],
)
def test_what_is_not_allowed(entries: tuple[str, ...], name: str) -> None:
    allow(*entries)
    with pytest.raises(ClassNotAllowed, match="is not among what allow="):
        Classes().find_named(name)


@pytest.mark.parametrize(
    ("entries", "name", "found"),
    [
        ((__name__,), f"{__name__}:Own.Inner", Own.Inner),
        ((f"{__name__}.*",), f"{__name__}:Own", Own),
        ((f"{__name__}.Own",), f"{__name__}:Own.Inner", Own.Inner),
        (("tests",), f"{__name__}:Own", Own),
        (("posix.system",), "posix:system", os.system),
        (("builtins.eval",), "builtins:eval", eval),
        (("numpy",), "numpy:dtype", np.dtype),
        ((), "builtins:set", set),
        ((), "builtins:KeyError", KeyError),
        ((), "collections:deque", collections.deque),
        ((), "datetime:datetime", datetime.datetime),
        ((), "cutline.errors:UnknownMethod", UnknownMethod),
    ],
)
def test_what_is(entries: tuple[str, ...], name: str, found: Any) -> None:
    allow(*entries)
    assert Classes().find_named(name) is found


def test_no_module_is_imported_for_what_is_not_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "loaded_too_early.py").write_text("raise SystemExit")
    monkeypatch.syspath_prepend(tmp_path)
    allow(__name__)
    with pytest.raises(ClassNotAllowed):
        Classes().find_named("loaded_too_early:Thing")
    assert "loaded_too_early" not in sys.modules


def test_messages_of_the_program_come_through() -> None:
    allow(__name__, "numpy")
    value = {
        "own": Own(),
        "array": np.arange(5000),
        "at": datetime.datetime(2026, 1, 2),
        "error": KeyError("x"),
    }
    found = loads(dumps(value, participant="p", where="argument"), participant="p")
    assert isinstance(found["own"].inner, Own.Inner) and (found["array"] == value["array"]).all()
    assert found["at"] == value["at"] and isinstance(found["error"], KeyError)


def test_what_one_system_allows_counts_for_the_process() -> None:
    allow(__name__)
    restrict("t", None)
    assert Classes().find_named("posix:system") is os.system
    lift("t")
    with pytest.raises(ClassNotAllowed):
        Classes().find_named("posix:system")


@pytest.mark.parametrize("wrong", ["myapp", [""], ["my app"], ["a..b"], ["*"], [3], ["a.*.b"]])
def test_what_is_no_list_of_names(wrong: Any) -> None:
    with pytest.raises(Misuse, match="allow"):
        check_allow(wrong)
    assert check_allow(None) is None and check_allow(["a.b", "c.*"]) == ["a.b", "c"]
