"""Parcels without Ray: a dict stands in for the store that both ends share."""

from __future__ import annotations

import gc
import mmap
from collections.abc import Iterator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import msgpack
import numpy as np
import pytest

from cutline.barrier import Member, Stamp
from cutline.errors import CutlineError
from cutline.participant.handle import CallOptions
from cutline.participant.likeness import call_digest
from cutline.participant.messages import ASK, encode_ask, pack_arguments, read_frame, unpack_arguments
from cutline.participant.parcelling import Parcelling
from cutline.participant.parcels import MARK, Parcel, Parcels, is_parcel_packet, tokens_in
from cutline.participant.pickling import Apart
from cutline.participant.transport import LinkUp
from tests.participant.town import Town

ME, PEER = Member("me", 1), Member("peer", 2)
STAMP = Stamp("run", 3, ME, PEER)


class Shelf:
    """A store: what is put is copied; a reference is its number."""

    def __init__(self) -> None:
        self.kept: dict[int, list[bytes]] = {}
        self.full = False
        self.fetched = 0

    def put(self, parts: Sequence[Any]) -> int | None:
        if self.full:
            return None
        number = max(self.kept, default=0) + 1
        self.kept[number] = [bytes(memoryview(part).cast("B")) for part in parts]
        return number

    def share(self, reference: int) -> bytes:
        return str(reference).encode()

    def fetch(self, shared: bytes) -> list[bytes]:
        self.fetched += 1
        return self.kept[int(shared)]

    def read(self, reference: int) -> list[bytes]:
        return self.kept[reference]


def endpoint(processed: int = 0, released: int = 0) -> Any:
    """As much of an endpoint as parcels look at."""
    incoming = {ME: SimpleNamespace(processed=processed)}
    outgoing = {PEER: SimpleNamespace(released=released)}
    return SimpleNamespace(epoch=3, incoming=incoming, outgoing=outgoing, is_gone=lambda _peer: False)


def made(parcels: Parcels, value: Any, *, compared: bool = False) -> Any:
    join = partial(parcels.join, compared=compared)
    return pack_arguments((value,), {}, participant="me", where="x", join=join)


def sent(parcels: Parcels, value: Any) -> tuple[bytes, list[bytes]]:
    """The body of a frame with one message, and the packets ahead of it."""
    packed = made(parcels, value)
    assert type(packed) is Parcel
    parcels.note(packed)
    body = encode_ask(1, "take", packed)
    parcels.leaving([body])
    return body, parcels.accompany(STAMP, 1, body)


def received(body: bytes, parcels: Parcels) -> Any:
    message = next(read_frame(body))
    parts = Apart(parcels.open(message[3].data))
    (value,), _ = unpack_arguments(parts, participant="peer", live={})
    return value


def test_there_and_back_by_reference() -> None:
    shelf = Shelf()
    here, there = Parcels(1000, shelf), Parcels(1000, shelf)
    value = {"large": np.arange(1_000_000.0), "small": np.arange(1000.0)}
    body, packets = sent(here, value)
    assert len(body) < 200 and len(packets) == 1 and len(packets[0]) < 300
    assert is_parcel_packet(packets[0])
    assert there.arrived(packets[0], PEER, "run", endpoint())
    found = received(body, there)
    assert np.array_equal(found["large"], value["large"]) and not found["large"].flags.writeable
    assert np.array_equal(found["small"], value["small"]) and found["small"].flags.writeable


@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_of_other_orders_and_views_of_one(order: Any) -> None:
    shelf = Shelf()
    here, there = Parcels(1000, shelf), Parcels(1000, shelf)
    whole = np.asarray(np.arange(400_000.0).reshape(400, 1000), order=order)
    body, (packet,) = sent(here, [whole, whole[10:20], whole.T])
    there.arrived(packet, PEER, "run", endpoint())
    found = received(body, there)
    assert np.array_equal(found[0], whole) and np.array_equal(found[1], whole[10:20])
    assert np.array_equal(found[2], whole.T) and np.shares_memory(found[0], found[1])


@pytest.mark.parametrize("size", [10, 100_000])
def test_small_ones_and_no_store(size: int) -> None:
    assert type(made(Parcels(10_000_000, Shelf()), np.zeros(size))) is bytes
    assert type(made(Parcels(1), np.zeros(size))) is bytes
    assert type(made(Parcels(0, Shelf()), np.zeros(size))) is bytes


def test_a_full_store_and_a_limit_leave_arguments_in_their_message() -> None:
    shelf = Shelf()
    parcels = Parcels(1000, shelf, limit=1_000_000)
    first = made(parcels, np.zeros(100_000))
    assert type(first) is Parcel
    assert type(made(parcels, np.zeros(100_000))) is bytes
    del first
    gc.collect()
    shelf.full = True
    assert type(made(parcels, np.zeros(100_000))) is bytes
    gc.collect()
    shelf.full = False
    assert type(made(parcels, np.zeros(100_000))) is Parcel


def test_a_second_try_is_bytes() -> None:
    shelf = Shelf()
    here, blind = Parcels(1000, shelf), Parcels(1000)
    body, (packet,) = sent(here, np.arange(10_000))
    assert not blind.arrived(packet, PEER, "run", endpoint())
    (again,) = here.accompany(STAMP, 1, body)
    assert len(again) > 80_000
    assert blind.arrived(again, PEER, "run", endpoint())
    assert np.array_equal(received(body, blind), np.arange(10_000))
    assert shelf.fetched == 0


def test_an_image_holds_bytes_and_the_restored_are_sent_again() -> None:
    shelf = Shelf()
    here, there = Parcels(1000, shelf), Parcels(1000, shelf)
    body, (packet,) = sent(here, np.arange(10_000))
    there.arrived(packet, PEER, "run", endpoint())
    sender, receiver = (msgpack.unpackb(msgpack.packb(end.to_doc())) for end in (here, there))
    shelf.kept.clear()
    for end, doc in ((here, sender), (there, receiver)):
        end.clear()
        end.load(doc)
    assert np.array_equal(received(body, there), np.arange(10_000))
    # The receiver's image may lack it: then it comes again, by a new reference.
    (again,) = here.accompany(STAMP, 1, body)
    assert len(again) < 300 and len(shelf.kept) == 1
    assert there.arrived(again, PEER, "run", endpoint())
    assert np.array_equal(received(body, there), np.arange(10_000))


def test_released_and_handled_ones_are_forgotten() -> None:
    shelf = Shelf()
    here, there = Parcels(1000, shelf), Parcels(1000, shelf)
    _body, (packet,) = sent(here, np.arange(10_000))
    there.arrived(packet, PEER, "run", endpoint())
    here.sweep(endpoint(released=0))
    there.sweep(endpoint(processed=0))
    assert here.out and there.waiting
    here.sweep(endpoint(released=1))
    there.sweep(endpoint(processed=1))
    assert not here.out and not there.waiting
    # What comes again after that is a double.
    assert there.arrived(packet, PEER, "run", endpoint(processed=1)) and not there.waiting


def test_those_of_peers_that_have_left_are_forgotten() -> None:
    shelf = Shelf()
    here, there = Parcels(1000, shelf), Parcels(1000, shelf)
    _body, (packet,) = sent(here, np.arange(10_000))
    there.arrived(packet, PEER, "run", endpoint())
    left = endpoint()
    left.incoming, left.outgoing = {}, {}
    here.sweep(left)
    there.sweep(left)
    assert here.out and there.waiting
    left.is_gone = lambda peer: peer in (ME, PEER)
    here.sweep(left)
    there.sweep(left)
    assert not here.out and not there.waiting


def test_parcels_of_others_are_not_taken() -> None:
    shelf = Shelf()
    _body, (packet,) = sent(Parcels(1000, shelf), np.arange(10_000))
    there = Parcels(1000, shelf)
    other = endpoint()
    other.epoch = 4
    assert there.arrived(packet, PEER, "run", other)
    assert there.arrived(packet, PEER, "another run", endpoint())
    assert there.arrived(packet, Member("peer", 7), "run", endpoint())
    assert not there.waiting and shelf.fetched == 0


def test_what_a_handler_that_raised_had_made_does_not_stay() -> None:
    parcels = Parcels(1000, Shelf())
    parcels.note(made(parcels, np.arange(10_000)))
    parcels.leaving([encode_ask(1, "other", [1])])
    assert not parcels.out and not parcels.fresh


def test_a_message_without_its_parcel_is_a_named_error() -> None:
    with pytest.raises(CutlineError, match="this is a bug"):
        Parcels(1000).open(MARK + bytes(16))


def test_a_compared_token_says_what_is_in_it() -> None:
    parcels = Parcels(1000, Shelf())
    one, same, other = (made(parcels, np.full(10_000, number), compared=True) for number in (1, 1, 2))
    assert one.data != same.data
    digests = [call_digest(ASK, "m", each) for each in (one, same, other)]
    assert digests[0] == digests[1] != digests[2]
    as_bytes = pack_arguments((np.full(10_000, 1),), {}, participant="me", where="x")
    assert call_digest(ASK, "m", as_bytes) == digests[0]


def test_tokens_are_found_and_nothing_else_is() -> None:
    token = MARK + bytes(range(16))
    assert tokens_in(b"before" + token + b"after" + token) == [token, token]
    assert tokens_in(MARK + b"too short") == [] and tokens_in(b"") == []


def test_tokens_are_found_in_what_lies_on_disk() -> None:
    body = b"before" + MARK + bytes(range(16))
    file = mmap.mmap(-1, len(body))
    file.write(body)
    assert tokens_in(memoryview(file)[:]) == tokens_in(body) != []


class Holder:
    """Keeps the sums of the large arguments that come."""

    def __init__(self) -> None:
        self.sums: list[float] = []

    def take(self, array: Any) -> None:
        self.sums.append(float(array.sum()))


Pair = tuple[Town, Parcelling, Parcelling, Shelf]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Two participants of one town that share a shelf."""
    town, shelf = Town(), Shelf()
    made = []
    for name in ("here", "there"):
        runner = town.add(name, Holder, kind=Parcelling, by_reference=1000)
        assert isinstance(runner, Parcelling)
        runner.parcels.store = shelf
        made.append(runner)
    yield town, made[0], made[1], shelf
    town.close()


def send(runner: Parcelling, target: str, value: float) -> None:
    """Sends a large argument as one of its handlers would."""
    runner.desk.tell(target, "take", (np.full(1000, value),), {}, CallOptions())
    runner._release()


def sums(runner: Parcelling) -> list[float]:
    """What has come."""
    holder: Any = runner.instance
    return list(holder.sums)


def waiting(runner: Parcelling) -> list[Any]:
    """The events that a runner has not taken yet."""
    events = []
    while not runner.queue.empty():
        events.append(runner.queue.get())
    for event in events:
        runner.queue.put(event)
    return events


def push(town: Town, runner: Parcelling, target: str, value: float) -> None:
    """Sends, and lets everything settle."""
    send(runner, target, value)
    town.settle()


def test_what_is_sent_to_oneself_travels_in_its_message(pair: Pair) -> None:
    town, here, _there, shelf = pair
    town.start()
    push(town, here, "here", 2.0)
    assert here.phase == "running" and sums(here) == [2000.0]
    assert not shelf.kept and not here.parcels.out


def test_what_its_receiver_has_already_is_forgotten_after_a_restore(pair: Pair) -> None:
    town, here, there, _shelf = pair
    town.start()
    push(town, here, "there", 1.0)
    send(here, "there", 2.0)
    here.step(0.0)
    # Captured before the ack comes: the message is in the sender's outbox, and its receiver has handled it.
    number = town.checkpoint()
    town.roll_back(number)
    town.settle()
    town.resume(number)
    for _ in range(5):
        # Who takes its time finds the first ack together with the link, and sends nothing again.
        there.step(0.0)
        town.clock.now += 1
        if not any(isinstance(event, LinkUp) for event in waiting(here)):
            here.step(0.0)
    town.settle()
    assert sums(there) == [1000.0, 2000.0]
    # The next image does without it.
    town.checkpoint()
    assert not here.parcels.out and not there.parcels.waiting


def test_what_nobody_will_ever_take_is_forgotten(pair: Pair) -> None:
    town, here, _there, _shelf = pair
    town.start()
    push(town, here, "nobody", 1.0)
    assert here.parcels.out
    nowhere: dict[str, Any] = {"birth": None, "address": "", "gone": [], "left": False}
    town.say("here", "resolved", name="nobody", **nowhere, **town.view())
    town.settle()
    assert here.desk.dead_letters and not here.parcels.out


def test_a_newborn_does_without_what_came_early_and_was_not_to_be_had(pair: Pair) -> None:
    town, here, there, _shelf = pair
    town.start("here")
    push(town, here, "there", 1.0)
    assert there.early
    # Its store does not lead to it, so it comes as bytes, on another link.
    there.parcels.store = Shelf()
    town.say("there", "born", base=0, skips=[], **town.view())
    town.settle()
    town.clock.now += 1
    town.settle()
    assert there.phase == "running" and sums(there) == [1000.0]
