"""Ray's spelling on Ray: making participants, Refs and ObjectRefs in each other's places, wrapped classes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import cutline
from cutline.errors import DuplicateName, Misuse, RefusedOption

ray = pytest.importorskip("ray")
from tests.ray.cast import Cell, Choosy, Crowded, Wrapped, broken, slow, twice  # noqa: E402

pytestmark = pytest.mark.usefixtures("local_ray")


@pytest.fixture(scope="module")
def system(local_ray: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[cutline.System]:
    folder = tmp_path_factory.mktemp("spelling") / "checkpoints"
    with cutline.start(str(folder), name="spelling", interval=None, quiet=True) as started:
        yield started


@pytest.fixture(scope="module")
def cell(system: cutline.System) -> Any:
    return Cell.options(name="cell").remote("here")  # type: ignore[attr-defined]


def fresh(name: str) -> Any:
    return Cell.options(name=name).remote()  # type: ignore[attr-defined]


def test_remote_gives_a_handle_at_once_and_names_by_order(system: cutline.System) -> None:
    made = [Cell.remote(number) for number in range(3)]  # type: ignore[attr-defined]
    assert ray.get([handle.first.remote() for handle in made]) == [0, 1, 2]
    assert [repr(handle) for handle in made] == ["<Handle Cell-0>", "<Handle Cell-1>", "<Handle Cell-2>"]


def test_what_the_constructor_raised_is_raised_by_the_first_use(system: cutline.System) -> None:
    choosy = cutline.actor(Choosy)
    handle = choosy.options(name="choosy").remote()  # type: ignore[attr-defined]
    with pytest.raises(LookupError, match="good enough"):
        ray.get(handle.anything.remote())
    with pytest.raises(LookupError, match="good enough"):
        system.ready(handle)
    with pytest.raises(LookupError, match="good enough"):
        handle.anything.remote()


def test_a_taken_name_is_refused_unless_it_is_to_be_found(cell: Any) -> None:
    with pytest.raises(DuplicateName):
        fresh("cell")
    found = Cell.options(name="cell", get_if_exists=True).remote()  # type: ignore[attr-defined]
    assert ray.get(found.first.remote()) == "here"


def test_mixed_lists(cell: Any) -> None:
    assert cutline.get([cell.first.remote(), slow.remote(4, 0.0)]) == ["here", 4]
    late, soon = slow.remote(1, 5.0), cell.first.remote()
    ready, rest = cutline.wait([late, soon], timeout=4.0)
    assert (ready, rest) == ([soon], [late])


def test_a_ref_as_object_ref_goes_into_a_task(cell: Any) -> None:
    assert ray.get(twice.remote(cell.first.remote().object_ref())) == "herehere"


def test_a_ref_in_a_task_says_what_to_use(cell: Any) -> None:
    # Inside another value it is ours to say; an argument itself is refused by Ray, in words of its own.
    with pytest.raises(Misuse, match="object_ref"):
        twice.remote([cell.first.remote()])
    with pytest.raises(TypeError, match="cannot be used as Ray task"):
        twice.remote(cell.first.remote())


def test_a_ref_in_ray_wait_says_what_to_use(cell: Any) -> None:
    with pytest.raises(TypeError, match="cutline.wait"):
        ray.wait([cell.first.remote()])


def test_a_ref_in_an_actor_pool_says_what_to_use(cell: Any) -> None:
    from ray.util import ActorPool

    pool = ActorPool([cell])
    pool.submit(lambda handle, _value: handle.first.remote(), 1)
    with pytest.raises(TypeError, match="cutline.wait"):
        pool.get_next_unordered()


def test_late_arguments_of_the_driver_keep_their_place(system: cutline.System) -> None:
    receiver = fresh("receiver")
    for number in range(4):
        receiver.keep.tell(slow.remote(number, 0.3 - 0.07 * number))
        receiver.keep.tell(-number)
    assert ray.get(receiver.all.remote()) == [0, 0, 1, -1, 2, -2, 3, -3]


def test_late_arguments_do_not_hold_up_others(cell: Any) -> None:
    stuck = fresh("stuck")
    asked = stuck.keep.remote(slow.remote(1, 6.0))
    assert ray.get(cell.first.remote()) == "here"
    assert not cutline.wait([asked], timeout=0)[0]
    assert ray.get(asked) == 1


def test_a_broken_task_is_the_answer(cell: Any) -> None:
    with pytest.raises(ValueError, match="the task broke"):
        ray.get(cell.keep.remote(broken.remote()))
    assert ray.get(cell.first.remote()) == "here"


def test_late_arguments_by_name_and_in_constructors(system: cutline.System) -> None:
    made = Cell.options(name="late").remote(start=slow.remote("now", 0.2))  # type: ignore[attr-defined]
    assert ray.get(made.first.remote()) == "now"
    assert ray.get(made.keep.remote(value=slow.remote(1, 0.1))) == 1


def test_late_arguments_in_a_loop(system: cutline.System) -> None:
    target = fresh("loop-target")

    def body(step: int) -> None:
        target.keep.tell(slow.remote(step, 0.1))

    system.loop("late", 3, body)
    assert ray.get(target.all.remote()) == [0, 1, 2]


def test_late_arguments_between_participants(system: cutline.System) -> None:
    sender, receiver = fresh("sender"), fresh("taker")
    ray.get(sender.meet.remote(receiver))
    sender.hand_over.tell(3, 0.1)
    # The checkpoint waits for the values: they are in it, ObjectRefs cannot be.
    assert ray.get(sender.hand_over_one.remote(0.1)) == 7
    assert system.checkpoint() > 0
    assert ray.get(receiver.all.remote()) == [0, 0, 1, -1, 2, -2, 7]
    assert ray.get(sender.hand_over_broken.remote()) == "the task broke"


def test_object_refs_inside_others_are_refused(cell: Any) -> None:
    with pytest.raises(cutline.errors.CannotCapture, match="object store"):
        cell.keep.remote([slow.remote(1, 0.0)])


def test_raw_ray_handles_are_refused(cell: Any) -> None:
    raw: Any = Wrapped.remote()  # type: ignore[attr-defined]
    with pytest.raises(cutline.errors.CannotCapture, match="Handle that spawn returned"):
        cell.keep.remote(raw)
    ray.kill(raw)


def test_a_wrapped_class(system: cutline.System) -> None:
    kind: Any = cutline.wrap(Wrapped, retries=1)
    assert isinstance(kind(), kind)
    made = kind.options(name="wrapped").remote(start=5)
    assert ray.get([made.add.remote(1), made.add_slowly.remote(1)]) == [6, 7]
    assert ray.get([made.greet.remote(), made.marked.remote()]) == ["hello from Wrapped", 1]
    spawned = system.spawn("wrapped-too", Wrapped, 1)
    assert ray.get(spawned.add.remote(1)) == 2


def test_wrapping_what_cannot_be_a_participant() -> None:
    with pytest.raises(RefusedOption, match="max_concurrency"):
        cutline.wrap(Crowded)
    with pytest.raises(Misuse, match="takes a class"):
        cutline.wrap(len)


def test_a_handler_spawns_and_what_it_spawned_leaves(system: cutline.System, cell: Any) -> None:
    for _ in range(2):
        assert ray.get(cell.grow.remote("child")) == "child"
        system.stop_participant("child")
        assert "child" not in system.status()["participants"]
