"""Room for input: who waits for it, and for how long."""

from __future__ import annotations

import threading

from cutline.participant.room import Room, input_size


def never() -> bool:
    return False


def test_one_always_finds_room_where_nothing_waits() -> None:
    room = Room(1, 10)
    assert room.enter(1000, 0.0, never)
    assert not room.enter(1, 0.0, never)
    room.leave(1000)
    assert room.enter(1, 0.0, never) and not room.enter(1, 0.01, never)


def test_bytes_count_too() -> None:
    room = Room(10, 100)
    assert room.enter(60, 0.0, never) and room.enter(40, 0.0, never)
    assert not room.enter(1, 0.0, never)
    # Who makes room must not wait for it.
    assert room.enter(1, 0.0, never, waits=False)
    assert (room.inputs, room.bytes) == (3, 101)


def test_whoever_waits_goes_on_when_there_is_room_or_nobody_to_make_any() -> None:
    for end in ("room", "open", "gone"):
        room = Room(1 if end != "open" else 9, 100)
        gone = threading.Event()
        if end == "open":
            room.shut(True)
        else:
            assert room.enter(1, 0.0, never)
        found: list[bool] = []

        def wait(room: Room = room, gone: threading.Event = gone, found: list[bool] = found) -> None:
            found.append(room.enter(1, None, gone.is_set))

        waiting = threading.Thread(target=wait)
        waiting.start()
        waiting.join(0.05)
        assert waiting.is_alive() and not found
        if end == "room":
            room.leave(1)
        elif end == "open":
            room.shut(False)
        else:
            gone.set()
        waiting.join(30)
        assert found == [True]


def test_the_size_of_what_waits() -> None:
    assert input_size([1, "abc", b"12345"]) - input_size([]) == 8 + 3 + 5
    assert input_size(bytes(1000)) - input_size(b"") == 1000
