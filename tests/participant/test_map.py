"""`cutline.Map`: a dict in all but its type; captures of it cost what changed, and miss nothing."""

from __future__ import annotations

import collections
import copy
import io
import pickle
import pickletools
from collections.abc import Callable, MutableMapping
from typing import Any

import msgpack
import pytest

from cutline import Map
from cutline.errors import CannotCapture, CannotRestore
from cutline.participant import immutable, map_change, shelf
from cutline.participant.capture import Captured, Capturer
from tests.participant.images import Images, Packs, through_image, through_message
from tests.participant.maps_in_a_row import Open


class Agent(Open):
    """Has Maps."""

    seen: Any
    one: Any


def written(captured: Captured) -> dict[str, int]:
    return {piece.name: len(piece.content) for piece in captured.pieces if piece.content is not None}


class Taking:
    """Captures of one agent, each committed at once, in packs that are folded."""

    def __init__(self, agent: Any, small: int = 0) -> None:
        self.agent, self.images, self.number = agent, Packs(), 0
        self.small = small
        self.capturer = Capturer("p", small=small)

    def take(self, full: bool = False) -> Captured:
        against = None if full or not self.number else self.number
        self.number += 1
        captured = self.capturer.capture(self.agent, number=self.number, against=against)
        self.images.put(captured, against)
        self.capturer.committed(self.number)
        return captured

    def restore(self) -> Any:
        restored = Capturer("p").expecting()
        return self.images.restore(self.number, restored)

    def restart(self) -> Any:
        self.capturer = Capturer("p", small=self.small)
        restored = self.capturer.expecting()
        self.agent = self.images.restore(self.number, restored)
        self.capturer.adopt(self.number, self.agent, restored)
        return self.agent


# -- as a dict ---------------------------------------------------------------------------------------


def test_it_is_made_as_a_dict_is() -> None:
    assert Map() == {} and Map({"a": 1}) == {"a": 1} and Map([("a", 1)], b=2) == {"a": 1, "b": 2}
    assert Map(lazy=True, self=1) == {"lazy": True, "self": 1}
    assert Map(collections.ChainMap({"a": 1})) == {"a": 1} == Map(Map(a=1))
    assert Map.fromkeys("ab", 3) == dict.fromkeys("ab", 3)
    wrongs: list[Any] = [5, [1], [("a",)], None]
    for wrong in wrongs:
        with pytest.raises((TypeError, ValueError)):
            dict(wrong)
        with pytest.raises((TypeError, ValueError)):
            Map(wrong)
    with pytest.raises(TypeError):
        Map({}, {})


def test_it_compares_and_joins_with_dicts_from_both_sides() -> None:
    one: Map[str, int] = Map(a=1, b=2)
    assert one == {"b": 2, "a": 1} and {"b": 2, "a": 1} == one and one == Map(b=2, a=1)
    assert one != {"a": 1} and {"a": 1} != one and one != 5 and one != [("a", 1)]
    for joined in (one | {"b": 3, "c": 4}, {"a": 1, "b": 2} | Map(b=3, c=4), one | Map(b=3, c=4)):
        assert type(joined) is Map and list(joined.items()) == [("a", 1), ("b", 3), ("c", 4)]
    one |= [("z", 26)]
    assert type(one) is Map and one["z"] == 26
    with pytest.raises(TypeError):
        one | [("z", 26)]
    assert {**one} == dict(one) == {"a": 1, "b": 2, "z": 26}


def test_its_views_are_those_of_a_dict() -> None:
    one: Map[Any, Any] = Map(a=1, b=2)
    keys, values, items = one.keys(), one.values(), one.items()
    one["c"] = 3
    assert list(keys) == ["a", "b", "c"] and list(values) == [1, 2, 3] and ("c", 3) in items
    assert keys & {"a", "x"} == {"a"} and keys - {"a"} == {"b", "c"} and items ^ {("a", 1)}
    assert list(reversed(one)) == list(reversed(keys)) == ["c", "b", "a"]
    one.clear()
    assert not keys and not one and list(items) == []


def test_its_errors_are_those_of_a_dict() -> None:
    one: Map[Any, Any] = Map(a=1)
    for wrong in ("b", 1, None):
        for call in (one.__getitem__, one.__delitem__, one.pop):
            with pytest.raises(KeyError) as caught:
                call(wrong)
            assert caught.value.args == (wrong,)
    for call in (one.__getitem__, one.__delitem__, one.pop, one.get, one.setdefault, one.__contains__):
        with pytest.raises(TypeError, match="unhashable type: 'list'"):
            call([])
    with pytest.raises(TypeError, match="unhashable type: 'list'"):
        one[[]] = 1
    with pytest.raises(TypeError, match="unhashable"):
        hash(one)
    one.popitem()
    with pytest.raises(KeyError, match="empty"):
        one.popitem()
    with pytest.raises(RuntimeError, match="changed size"):
        one["x"] = 1
        for _ in one:
            one["more"] = 1


def test_nothing_goes_round_it() -> None:
    one: Any = Map(a=1)
    assert not issubclass(Map, dict) and issubclass(Map, MutableMapping)
    with pytest.raises(TypeError):
        dict.__setitem__(one, "a", 2)
    with pytest.raises(TypeError, match="no subclasses"):
        type("Sub", (Map,), {})
    with pytest.raises(AttributeError):
        one.attribute = 1
    with pytest.raises(TypeError):
        one.items().mapping["a"] = 2
    assert Map[str, int] is not None and repr(one) == "Map({'a': 1})" and repr(Map()) == "Map()"
    one["self"] = one
    assert repr(one) == "Map({'a': 1, 'self': Map({...})})"


@pytest.mark.parametrize("way", [copy.copy, Map.copy, copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_are_maps_of_their_own(way: Callable[[Any], Any]) -> None:
    one: Map[Any, Any] = Map({"b": [1], "a": 2})
    again = way(one)
    assert type(again) is Map and list(again.items()) == [("b", [1]), ("a", 2)]
    again["c"] = 1
    assert "c" not in one and (again["b"] is one["b"]) is (way in (copy.copy, Map.copy))
    one["self"] = one
    if way not in (copy.copy, Map.copy):
        again = way(one)
        assert again["self"] is again


def test_in_messages_it_is_a_plain_value() -> None:
    shared = [1]
    one: Map[Any, Any] = Map(a=shared, b=Map(c=shared))
    again = through_message([one, shared, one])
    assert again[0] is again[2] and again[0] == one and again[0]["b"]["c"] is again[0]["a"] is again[1]


# -- what is written ---------------------------------------------------------------------------------


def test_a_delta_has_the_changed_keys() -> None:
    agent = Agent(seen=Map({f"key {number}": number for number in range(10_000)}), name="x")
    taking = Taking(agent)
    assert written(taking.take())["entries:0:1"] > 100_000
    assert written(taking.take()) == {}
    agent.seen["key 7"] = -7
    del agent.seen["key 8"], agent.seen["key 9"]
    agent.seen["key 8"] = "again"
    delta = written(taking.take())
    assert delta["entries:0:3"] < 100 and delta.keys() == {"header", "entries:0:3"}
    again = taking.restore().seen
    assert again == agent.seen and list(again) == list(agent.seen)


def test_values_that_may_change_are_looked_at_each_time() -> None:
    agent = Agent(seen=Map(a=1, b=[2], c={"d": 3}))
    taking = Taking(agent)
    assert taking.take().containers == {"entries": 3, "checked": 2}
    agent.seen["c"]["d"] = 4
    assert written(taking.take()).keys() == {"attr:seen"}
    agent.seen["b"] = 5
    captured = taking.take()
    assert captured.containers == {"entries": 3, "checked": 1}
    assert list(taking.restore().seen.items()) == [("a", 1), ("b", 5), ("c", {"d": 4})]


def test_what_is_shared_stays_shared() -> None:
    shared: list[Any] = [1]
    inner: Map[str, Any] = Map(shared=shared)
    agent = Agent(one=Map(a=shared, b=(shared, 2), inner=inner), shared=shared, inner=inner, two=inner)
    inner["up"] = agent.one
    shared.append(agent.one)
    taking = Taking(agent)
    taking.take()
    shared.append(5)
    inner["x"] = 1
    taking.take()
    again = taking.restore()
    assert again.one["a"] is again.shared is again.one["b"][0] is again.inner["shared"]
    assert again.one["inner"] is again.inner is again.two and again.inner["up"] is again.one
    assert again.shared[1] is again.one and again.shared[2] == 5 and again.inner["x"] == 1


def test_keys_that_are_themselves_only_are_kept() -> None:
    key: Any = Open(n=1)
    agent = Agent(key=key, seen=Map({"a": 1, key: 2, "z": 3}))
    taking = Taking(agent)
    taking.take()
    key.n = 7
    agent.seen[key] = [8]
    assert taking.take().containers["checked"] == 1
    again = taking.restart()
    assert list(again.seen)[1] is again.key and again.seen[again.key] == [8] and again.key.n == 7
    del again.seen[again.key]
    again.seen["q"] = 1
    taking.take()
    assert list(taking.restore().seen.items()) == [("a", 1), ("z", 3), ("q", 1)]


def test_an_aborted_capture_takes_no_change_with_it() -> None:
    agent = Agent(seen=Map(a=1, b=2))
    taking = Taking(agent)
    taking.take()
    agent.seen["c"] = 3
    del agent.seen["a"]
    for number in (2, 3, 4):
        taking.capturer.capture(agent, number=number, against=1)
        agent.seen[f"n{number}"] = number
    taking.capturer.aborted(2)
    taking.capturer.aborted(4)
    taking.capturer.aborted(3)
    captured = taking.capturer.capture(agent, number=5, against=1)
    taking.images.put(captured, 1)
    again = taking.images.restore(5)
    assert list(again.seen.items()) == list(agent.seen.items())
    journal = agent.seen._journal
    assert [number for number, _ in journal.generations] == [5]


def test_what_is_captured_twice_keeps_its_order() -> None:
    """A capture that is aborted, before one that found no change and committed."""
    agent = Agent(seen=Map(a=1, b=2))
    taking = Taking(agent)
    taking.take()
    capturer, images = taking.capturer, taking.images
    del agent.seen["a"]
    agent.seen.update(a=4, x=1)
    capturer.capture(agent, number=2, against=1)
    images.put(capturer.capture(agent, number=3, against=1), 1)
    capturer.aborted(2)
    agent.seen["y"] = 5
    capturer.capture(agent, number=4, against=1)
    capturer.committed(3)
    capturer.aborted(4)
    images.put(capturer.capture(agent, number=5, against=3), 3)
    assert list(images.restore(5).seen.items()) == [("b", 2), ("a", 4), ("x", 1), ("y", 5)]


def test_a_large_one_is_written_anew_by_the_captures_that_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    for place, name, value in [(map_change, "CHUNK", 50), (shelf, "CHUNK", 50), (shelf, "_AT_ONCE", 100)]:
        monkeypatch.setattr(place, name, value)
    agent = Agent(seen=Map({number: "x" * 100 for number in range(1000)}))
    taking = Taking(agent)
    taking.take()
    first, most = [taking.images.refs[1].key], 0
    for turn in range(400):
        agent.seen[turn % 300] = f"{turn}" * 30
        captured = taking.take()
        segments = [piece.name for piece in captured.pieces if shelf.is_segment(piece.name)]
        most = max(most, len(segments))
        first.append(segments[0])
    assert len({*first}) > 2 and most < 40 and taking.restore().seen == agent.seen


def test_segments_are_folded_and_written_anew() -> None:
    agent = Agent(seen=Map({number: 0 for number in range(200)}))
    taking = Taking(agent)
    most, segments = 0, 0
    for turn in range(120):
        agent.seen[turn % 50] = turn
        captured = taking.take()
        names = [piece.name for piece in captured.pieces if shelf.is_segment(piece.name)]
        segments = max(segments, len(names))
        most = max(most, sum(length for length in written(captured).values()))
    assert segments < 16 and taking.restore().seen == agent.seen
    # The same keys over and over never make more than twice of what there is.
    header = next(piece for piece in captured.pieces if piece.name == "header")
    assert header.content is not None
    (row,) = msgpack.unpackb(header.content)["containers"]
    assert sum(size for _, size in row[-1]) <= 2 * 200 + 64


def test_small_states_are_written_whole() -> None:
    agent = Agent(seen=Map(a=1))
    taking = Taking(agent, small=4096)
    taking.take()
    agent.seen["b"] = 2
    captured = taking.take()
    assert all(piece.content is not None for piece in captured.pieces)
    assert taking.restart().seen == {"a": 1, "b": 2}
    taking.agent.seen.update({number: number for number in range(500)})
    assert written(taking.take()).keys() == {"header", "entries:0:3"}
    taking.agent.seen["b"] = 3
    assert written(taking.take())["entries:0:4"] < 100


def test_what_a_restore_changes_is_a_change() -> None:
    taking = Taking(Waking())
    taking.take()
    again: Any = taking.restart()
    assert again.seen == {"a": 1, "woken": 1}
    taking.take()
    assert taking.restore().seen == {"a": 1, "woken": 2}


class Waking:
    """Changes its Map when it is loaded."""

    def __init__(self) -> None:
        self.seen: Map[str, int] = Map(a=1)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.seen["woken"] = self.seen.get("woken", 0) + 1


def test_another_capturer_writes_everything() -> None:
    agent = Agent(seen=Map(a=1))
    Taking(agent).take()
    other = Taking(agent)
    other.take()
    assert other.restore().seen == {"a": 1}


class Picky(Open):
    """A key that raises when one has been compared `limit` times."""

    n: int
    times = limit = 0

    def __hash__(self) -> int:
        return 7

    def __eq__(self, other: object) -> bool:
        Picky.times += 1
        if Picky.times == Picky.limit:
            raise ValueError("compared too often")
        return isinstance(other, Picky) and self.n == other.n


def _set_picky(seen: Map[Any, Any]) -> None:
    seen[Picky(n=3)] = 4


def _pop_picky(seen: Map[Any, Any]) -> None:
    seen.pop(Picky(n=1), None)


@pytest.mark.parametrize("limit", range(1, 14))
@pytest.mark.parametrize("act", [_set_picky, _pop_picky])
def test_what_is_interrupted_half_way_is_noted(act: Callable[[Any], None], limit: int) -> None:
    Picky.limit = 0
    agent = Agent(seen=Map({7: 0, Picky(n=1): 1, Picky(n=2): 2, "s": 3}))
    taking = Taking(agent)
    taking.take()
    Picky.times, Picky.limit = 0, limit
    raised = False
    try:
        act(agent.seen)
    except ValueError:
        raised = True
    Picky.limit = 0
    assert raised or limit > 3
    agent.seen["more"] = 1
    taking.take()
    shown = [(getattr(key, "n", key), value) for key, value in agent.seen.items()]
    assert [(getattr(key, "n", key), value) for key, value in taking.restore().seen.items()] == shown


# -- what goes wrong ---------------------------------------------------------------------------------


def test_what_cannot_be_saved_is_named_by_its_key_and_nothing_is_lost() -> None:
    agent = Agent(seen=Map(a=1, inner=Map(b=2)))
    taking = Taking(agent)
    taking.take()
    agent.seen["c"] = 3
    agent.seen["inner"]["bad"] = 3, iter([part for part in "ab"]), (part for part in "ab")
    named = r"participant 'p' cannot save self.seen\['inner'\]\['bad'\]\[2\]: a generator"
    with pytest.raises(CannotCapture, match=named):
        taking.capturer.capture(agent, number=2, against=1)
    agent.seen["inner"]["bad"] = lambda: 3
    with pytest.raises(CannotCapture, match=r"self.seen\['inner'\]\['bad'\]"):
        taking.capturer.capture(agent, number=2, against=1)
    del agent.seen["inner"]["bad"]
    taking.take()
    assert taking.restore().seen == {"a": 1, "inner": {"b": 2}, "c": 3}


def test_an_image_that_says_something_else_than_its_header_is_refused() -> None:
    agent = Agent(seen=Map({number: number for number in range(9)}))
    images = Images()
    images.put(Capturer("p").capture(agent, number=1, against=None), None)
    pieces, _ = images.images[1]
    at, good = next((at, piece) for at, piece in enumerate(pieces) if shelf.is_segment(piece[0]))
    documents: list[Any] = [(True, [], 1), {number: number for number in range(8)}]
    pieces[at] = (good[0], b"".join(pickle.dumps(each, 5) for each in documents))
    with pytest.raises(CannotRestore, match="has 9 entries"):
        images.restore(1)
    del pieces[at]
    with pytest.raises(CannotRestore, match="without the piece 'entries:0:1'"):
        images.restore(1)


def test_a_class_of_values_is_looked_up_as_any_other() -> None:
    again = through_image(Map({"a": Open, "b": immutable.is_immutable}))
    assert again == {"a": Open, "b": immutable.is_immutable}


def memo_of(captured: Captured) -> list[int]:
    """How many objects each new segment notes, in case they come again."""
    return [
        sum(code.name == "MEMOIZE" for code, _, _ in pickletools.genops(rest_of(bytes(piece.content))))
        for piece in captured.pieces
        if piece.name.startswith("entries:") and piece.content is not None
    ]


def rest_of(content: bytes) -> io.BytesIO:
    """What comes behind the head of a segment."""
    stream = io.BytesIO(content)
    pickle.load(stream)
    return stream


def test_numbers_are_written_without_a_memo_and_texts_with_one() -> None:
    seen: Any = Map({f"k{number}": number for number in range(100)})
    taking = Taking(Agent(seen=seen))
    assert memo_of(taking.take()) == [0]
    seen.update(a=1.5, b=None, c=True)
    seen["k1"] = -1
    assert memo_of(taking.take()) == [0]
    # One text a thousand times is one.
    text = "text" * 500
    for number in range(1000):
        seen[number] = text
    captured = taking.take()
    assert sum(written(captured).values()) < 30_000 and memo_of(captured)[0] > 0
    # All of it has a text in it.
    assert memo_of(taking.take(full=True))[0] > 0
    seen.clear()
    seen.update({"x": 1}, y=2)
    assert memo_of(taking.take(full=True)) == [0]
    assert taking.restore().seen == seen


def test_a_restored_map_does_not_know_what_is_in_it() -> None:
    seen: Any = Map({f"k{number}": ("text" * 50,) * 3 for number in range(10)})
    taking = Taking(Agent(seen=seen))
    taking.take()
    taking.restart().seen["new"] = 1
    assert memo_of(taking.take()) == [0]
    assert memo_of(taking.take(full=True))[0] > 0


def test_an_equal_key_is_found_at_once() -> None:
    """However many there are: it was looked for among all of them."""
    seen: Any = Map({number: number for number in range(1000)})
    counts = [0]

    class Counted(int):
        def __eq__(self, other: object) -> bool:
            counts[0] += 1
            return int(self) == other

        def __hash__(self) -> int:
            return hash(int(self))

    seen[Counted(7)] = "seven"
    del seen[Counted(8)]
    assert counts[0] < 20
    assert seen[7] == "seven" and list(seen)[7] == 7 and type(list(seen)[7]) is int and 8 not in seen
    taking = Taking(Agent(seen=seen))
    taking.take()
    assert list(taking.restore().seen.items()) == list(seen.items())
