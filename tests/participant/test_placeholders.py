"""States are shown without their classes: whatever a state holds, nothing of it is imported or run."""

from __future__ import annotations

import enum
import json
import os
import pickle
import random
import sys
from collections.abc import Callable
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest

from cutline import Log, Map
from cutline.errors import CannotRestore
from cutline.participant.at_rest import Absent
from cutline.participant.capture import Capturer
from cutline.participant.classes import Classes
from cutline.participant.pickling import dumps
from cutline.participant.placeholders import Placeholder, shown_message, shown_state
from cutline.participant.restore import HEADER
from cutline.participant.state_tree import Bounds, tree_of
from tests.participant.animals import CATALOGUE, Open, small_zoo
from tests.participant.images import Images

LIVE = Absent("p", "a test").loaders()
ANIMALS: dict[str, Callable[[random.Random], Any]] = {
    **CATALOGUE,
    **(small_zoo() if sys.version_info >= (3, 11) else {}),
}


class Bomb:
    """Makes a folder when it is unpickled by its class."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def image_of(state: Any, region_min: int = 4096) -> tuple[list[tuple[str, bytes]], dict[int, Any]]:
    images = Images()
    images.put(Capturer("p", region_min=region_min).capture(state, number=1, against=None), None)
    return images.images[1]


def tree(state: Any, depth: int = 6, width: int = 50) -> dict[str, Any]:
    shown, loader = shown_state(*image_of(state), participant="p", live=LIVE)
    return tree_of(shown, Bounds(depth, width), loader.is_hollow)


@pytest.mark.parametrize("name", sorted(ANIMALS))
def test_whatever_can_be_saved_can_be_shown(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    value = ANIMALS[name](random.Random(1))
    pieces, regions = image_of(Open(value=value))

    def never(self: Classes, module: str, qualname: str) -> Any:
        raise AssertionError(f"{module}:{qualname} was looked for")

    monkeypatch.setattr(Classes, "find", never)
    shown, loader = shown_state(pieces, regions, participant="p", live=LIVE)
    assert type(shown).cutline_name == "tests.participant.animals:Open"
    doc = tree_of(shown, Bounds(6, 50), loader.is_hollow)
    assert list(doc["attributes"]) == ["value"] and json.loads(json.dumps(doc)) == doc


def test_no_code_runs(tmp_path: Path) -> None:
    bomb = Bomb(tmp_path / "went off")
    header = {"format": 1, "class": "os:nothing", "version": 0, "whole": True, "names": [], "slots": []}
    pieces = [
        (HEADER, msgpack.packb({**header, "primed": [], "regions": [], "versions": {}})),
        ("state", pickle.dumps(bomb, 5)),
    ]
    shown, _ = shown_state(pieces, {}, participant="p", live=LIVE)
    assert type(shown).cutline_name == "posix:mkdir" and shown.cutline_arguments == (str(bomb.path),)
    message = shown_message(pickle.dumps((bomb, eval), 5), LIVE)
    assert type(message[0]).cutline_name == "posix:mkdir" and message[1].cutline_name == "builtins:eval"
    assert not bomb.path.exists()


def test_what_is_shared_is_marked_and_circles_end() -> None:
    book = Open(n=1)
    state = Open(a=book, b=[book, book], empty=(), nothing=())
    vars(state)["me"] = state
    doc = tree(state)
    found = doc["attributes"]
    number = found["a"]["id"]
    assert [each["same_as"] for each in found["b"]["items"]] == [number] * 2
    assert found["me"] == {"type": "tests.participant.animals:Open", "same_as": doc["id"]}
    assert doc["id"] != number and "same_as" not in found["nothing"]


def test_bounds_say_what_is_left_out() -> None:
    doc = tree(Open(log=list(range(2000)), deep={"a": {"b": {"c": 1}}}, text="x" * 500), depth=2, width=3)
    log, deep, text = doc["attributes"].values()
    assert (log["length"], len(log["items"]), log["more"]) == (2000, 3, 1997)
    assert deep["entries"][0][1] == {"type": "dict", "length": 1, "more": 1}
    assert text["length"] == 500 and len(text["value"]) == 200
    assert tree(Open(a=1, b=2, c=3, d=4), width=3)["more"] == 1
    assert tree(Open(a=1), depth=0) == {"type": "tests.participant.animals:Open", "more": 1}


def test_arrays_by_their_shape_and_large_ones_without_contents() -> None:
    large = np.arange(6000.0).reshape(60, 100)
    state = Open(
        large=large, tail=large[0, :4], small=np.array([[1, 2], [3, 4]], np.int16), raw=bytearray(9000)
    )
    large_doc, tail, small, raw = tree(state)["attributes"].values()
    assert (large_doc["shape"], large_doc["dtype"], large_doc["bytes"]) == ([60, 100], "float64", 48000)
    # Its elements are zeros here: better none than wrong ones.
    assert "values" not in tail and small["values"] == "[[1, 2], [3, 4]]"
    assert raw == {"type": "bytearray", "bytes": 9000}


def test_what_a_standard_type_is_made_of_may_be_missing() -> None:
    """A date in a zone of the program's own: a placeholder is no zone, so the date is one as well."""
    made = tree(Open(when=Zoned.moment(), rest=[1]))["attributes"]
    assert made["when"]["type"] == "datetime:datetime" and made["rest"]["items"][0]["value"] == 1
    assert any(each["type"].endswith(":Zoned") for each in made["when"]["arguments"])


class Zoned(tzinfo):
    """A zone."""

    @classmethod
    def moment(cls) -> Any:
        return datetime(2026, 1, 2, tzinfo=cls())

    def utcoffset(self, when: Any) -> Any:
        return timedelta(hours=1)


def test_entries_of_maps() -> None:
    inner = Open(n=1)
    rows: Any = Map({("a", 1): (1, 2), "b": inner, "c": Map(x=1)})
    doc = tree(Open(rows=rows, same=rows, inner=inner))["attributes"]
    assert doc["rows"]["length"] == 3 and doc["same"]["same_as"] == doc["rows"]["id"]
    entries = [(key["type"], item["type"]) for key, item in doc["rows"]["entries"]]
    assert ("str", "tests.participant.animals:Open") in entries and ("tuple", "tuple") in entries
    assert doc["inner"]["same_as"]


def test_a_newer_image_is_refused() -> None:
    pieces, regions = image_of(Open(a=1))
    doc = msgpack.unpackb(dict(pieces)[HEADER])
    newer = [(HEADER, msgpack.packb({**doc, "format": 99})), *pieces[1:]]
    with pytest.raises(CannotRestore, match="format 99"):
        shown_state(newer, regions, participant="p", live=LIVE)


def test_garbage_is_refused() -> None:
    pieces, regions = image_of(Open(a=1))
    with pytest.raises(CannotRestore, match="'p'.*does not load"):
        shown_state([*pieces[:1], (pieces[1][0], b"\x80\x05garbage")], regions, participant="p", live=LIVE)
    with pytest.raises(CannotRestore, match="does not load"):
        shown_message(b"\x80\x05garbage", LIVE)


def test_messages_with_arrays_beside_them() -> None:
    packed = dumps(([Open(n=1)], {"rows": np.arange(2000.0)}), participant="p", where="argument")
    (first,), named = shown_message(packed, LIVE)
    assert isinstance(first, Placeholder) and vars(first) == {"n": 1}
    assert named["rows"].shape == (2000,)


def test_a_map_is_shown_with_its_entries() -> None:
    inner: Map[str, Any] = Map(deep=Open(n=1))
    shown = tree(Open(seen=Map({"a": 1, "b": [2], (1, "k"): inner, Kind.ONE: 5}), inner=inner))
    seen, inside = (shown["attributes"][name] for name in ("seen", "inner"))
    assert (seen["type"], seen["length"]) == ("cutline.participant.map:Map", 4) and "attributes" not in seen
    assert [key.get("value") for key, _ in seen["entries"]][:2] == ["a", "b"]
    assert inside["same_as"] == seen["entries"][2][1]["id"]
    state: Any = Open(seen=Map({Kind.ONE: 1}))
    images, capturer = Images(), Capturer("p")
    images.put(capturer.capture(state, number=1, against=None), None)
    del state.seen[Kind.ONE]
    state.seen[Kind.ONE] = 2
    images.put(capturer.capture(state, number=2, against=1), 1)
    again, _ = shown_state(*images.images[2], participant="p", live=LIVE)
    assert list(again.seen.values()) == [2]


def test_a_log_is_shown_with_its_values() -> None:
    inner: Log[Any] = Log([Kind.ONE, [2]])
    (seen,) = tree(Open(seen=Log([1, inner, inner])))["attributes"].values()
    assert (seen["type"], seen["length"]) == ("cutline.participant.log:Log", 3) and "attributes" not in seen
    assert [each["type"].rpartition(":")[2] for each in seen["items"]] == ["int", "Log", "Log"]
    assert seen["items"][1]["length"] == 2 and seen["items"][2]["same_as"] == seen["items"][1]["id"]


class Kind(enum.Enum):
    ONE = 1
