"""What waits in an image for methods and classes: calls, continuations, spawns, messages of both ends."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

import msgpack
import pytest

import cutline
from cutline.barrier import ChannelTable, Member, Spawn
from cutline.barrier.messages import Frame, InPart, OutPart
from cutline.barrier.recovery import Restoring
from cutline.coordinator.fits import Fits
from cutline.coordinator.roster import Seat
from cutline.errors import CannotRestore, ClassMissing, SchemaMismatch
from cutline.participant.classes import Classes
from cutline.participant.desk import Desk
from cutline.participant.desk_image import desk_to_doc, load_desk, rerun
from cutline.participant.findings import Findings
from cutline.participant.fitting import Fit, examine, unmet
from cutline.participant.handle import Handle, bound_port
from cutline.participant.messages import (
    encode_answer,
    encode_ask,
    encode_tell,
    pack_arguments,
    pack_value,
    unpack_error,
)
from tests.schema.conftest import Define

ME, PEER, OTHER = Member("me", 1), Member("peer", 2), Member("other", 3)
NOTE = "class Note: pass\n"
AGENT = """
class Agent:
    def go(self, value=None): pass
    def on_answer(self, answer, own): pass
    async def wait(self, value=None):
        await self.peer.go.remote(value)
"""


@pytest.fixture
def agents(define: Define) -> Iterator[types.ModuleType]:
    yield define("agents", NOTE + AGENT)


def desk_of(module: types.ModuleType) -> Desk:
    instance = module.Agent()
    desk = Desk(ME, instance)
    instance.peer = Handle("peer", "", desk)
    return desk


def taken_up(before: Desk, module: types.ModuleType) -> Desk:
    """The calls of a desk at another one's, in another program; nothing is run again yet."""
    after = desk_of(module)
    load_desk(after, msgpack.unpackb(msgpack.packb(desk_to_doc(before)), strict_map_key=False))
    before.close()
    return after


def found(desk: Desk, channels: ChannelTable, **more: Any) -> tuple[Fit, set[tuple[str, str]]]:
    """What an examination says, and the kinds and paths of all problems."""
    findings = Findings(lenient=True)
    fit = examine(desk, type(desk.instance), channels, more.get("unresolved", {}), Classes(), findings)
    if findings.problems:
        with pytest.raises(CannotRestore) as first:
            examine(desk, type(desk.instance), channels, more.get("unresolved", {}), Classes(), Findings())
        assert str(first.value) == findings.problems[0].text
    return fit, {(problem.what, problem.path) for problem in findings.problems}


EMPTY = ChannelTable({}, {})


def packed(*args: Any) -> Any:
    return pack_arguments(args, {}, participant="peer", where="test")


def incoming(*messages: bytes, processed: int = 0) -> ChannelTable:
    frame = Frame(1, len(messages), b"".join(messages), 0)
    return ChannelTable({PEER: InPart(processed, len(messages), 0, (frame,))}, {})


def outgoing(*messages: bytes, released: int = 0) -> ChannelTable:
    frame = Frame(1, len(messages), b"".join(messages), 0)
    return ChannelTable({}, {PEER: OutPart(len(messages), released, 0, (frame,))})


def test_a_continuation(agents: types.ModuleType, define: Define) -> None:
    desk = desk_of(agents)
    ref: Any = desk.instance.peer.go.remote()  # type: ignore[attr-defined]
    ref.then(desk.instance.on_answer, agents.Note())  # type: ignore[attr-defined]
    desk = taken_up(desk, agents)
    assert found(desk, EMPTY)[1] == set()
    new = define("agents", AGENT.replace("on_answer", "on_reply"))
    desk = taken_up(desk, new)
    path = "continuation of peer.go"
    assert found(desk, EMPTY)[1] == {("method", path), ("class", path)}
    cutline.renamed("agents:Agent.on_answer", new.Agent.on_reply)
    new = define("agents", "class Remark: pass\n" + AGENT.replace("on_answer", "on_reply"))
    cutline.renamed("agents:Note", new.Remark)
    assert found(taken_up(desk, new), EMPTY)[1] == set()


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("async def wait", "async def hold", "method"),
        ("async def wait", "def wait", "call"),
        ("value=None):\n        await", "):\n        await", "call"),
        ("go.remote(value)", "go.remote(value, 1)", "call"),
        ("        await", "        self.peer.go.tell()\n        await", "call"),
        ("        await self.peer.go.remote(value)", "        return", "call"),
        ("        await", "        cutline.Log().step(CALLED.append, 1)\n        await", "call"),
    ],
)
def test_a_suspended_call(agents: types.ModuleType, define: Define, old: str, new: str, problem: str) -> None:
    desk = desk_of(agents)
    desk.handle(PEER, [1, 7, "wait", packed(agents.Note())])
    assert len(desk.calls) == 1
    text = NOTE + AGENT.replace(old, new)
    assert text != NOTE + AGENT
    if problem == "call" and old.startswith("async"):
        text = text.replace("await self", "self")
    module = define("agents", text)
    called = vars(module)["CALLED"] = []
    desk = taken_up(desk, module)
    undo = bound_port(desk, thread_only=True)
    findings = Findings(lenient=True)
    examine(desk, type(desk.instance), EMPTY, {}, Classes(), findings)
    rerun(desk, findings)
    undo()
    assert called == []
    assert [(each.what, each.path) for each in findings.problems] == [(problem, "suspended call of wait")]


def test_a_suspended_call_whose_names_have_changed(agents: types.ModuleType, define: Define) -> None:
    """Its own, that of the class in its arguments, and that of the method it asks: it is the same call."""
    desk = desk_of(agents)
    desk.handle(PEER, [1, 7, "wait", packed([agents.Note()])])
    text = AGENT.replace("def wait", "def hold").replace("go", "run").replace("Agent", "Clerk")
    new: Any = define("agents", "class Remark: pass\n" + text)
    for old, now in (
        ("Note", new.Remark),
        ("Agent", new.Clerk),
        ("Agent.wait", new.Clerk.hold),
        ("Agent.go", new.Clerk.run),
    ):
        cutline.renamed(f"agents:{old}", now)
    new.Agent = new.Clerk
    desk = taken_up(desk, new)
    assert found(desk, EMPTY)[1] == set()
    rerun(desk, Findings())
    assert len(desk.calls) == 1 and not desk.out


def test_messages_that_wait_here(agents: types.ModuleType, define: Define) -> None:
    note = packed(agents.Note())
    messages = (
        encode_tell("gone", []),
        encode_tell("go", note),
        encode_ask(3, "gone", []),
        encode_answer(4, True, pack_value(agents.Note(), participant="peer", where="test")),
    )
    desk = desk_of(define("agents", AGENT))
    paths = (
        ("class", "message 2 of peer, arguments of go"),
        ("class", "message 4 of peer, answer of question 4"),
    )
    assert found(desk, incoming(*messages))[1] == {("method", "message 1 of peer"), *paths}
    # What was handled is nobody's concern.
    assert found(desk, incoming(*messages, processed=3))[1] == {paths[1]}
    assert found(desk, incoming(*messages, processed=4))[1] == set()


def test_spawns(agents: types.ModuleType, define: Define) -> None:
    record = {"class_name": "agents:Agent", "args": packed(agents.Note()), "options": {}}
    channels = ChannelTable({}, {}, (Spawn(1, "child", record),))
    unresolved = {"child": [encode_tell("gone", [])]}
    desk = desk_of(agents)
    assert found(desk, channels)[1] == set()
    assert found(desk, channels, unresolved=unresolved)[1] == {("method", "message to child")}
    new = define("agents", AGENT.replace("Agent", "Clerk"))
    path = "spawn of child"
    new.Agent = new.Clerk  # type: ignore[attr-defined]
    assert found(desk_of(new), channels)[1] == {("class", path)}


def fit(methods: list[str] | None, processed: int = 0, pending: list[Any] | None = None) -> Fit:
    return {
        "class_name": "agents:Agent",
        "methods": methods,
        "processed": [[*ME, processed]],
        "pending": pending or [],
    }


def test_messages_on_their_way_to_others(agents: types.ModuleType, define: Define) -> None:
    """Whether they arrive is known when sender and receiver have been heard."""
    messages = [encode_tell("go", packed(agents.Note())), encode_tell("gone", []), encode_tell("@leave", [])]
    desk = desk_of(define("agents", AGENT))
    mine, problems = found(desk, outgoing(*messages), unresolved={"other": [encode_tell("late", [])]})
    assert problems == set()

    def told(**theirs: Fit) -> list[tuple[str, str, str]]:
        members = {"peer": PEER, "other": OTHER}
        fits = {ME: mine, **{members[name]: each for name, each in theirs.items()}}
        return [(name, problem.what, problem.name) for name, problem in unmet(fits)]

    missing = ("peer", "class", "agents:Note")
    assert told(peer=fit(["go", "gone"])) == [missing]
    assert told(peer=fit(["go"])) == [missing, ("peer", "method", "agents:Agent")]
    assert told(peer=fit(["go"], processed=1)) == [("peer", "method", "agents:Agent")]
    assert told(peer=fit(["go"], processed=2)) == []
    assert told(peer=fit(None)) == [missing]
    assert told(other=fit(["go"])) == [("other", "method", "agents:Agent")]
    assert told(other=fit(["late"])) == []
    assert found(desk, outgoing(*messages, released=3))[0]["pending"] == []


def test_the_last_one_to_confirm_ends_it(agents: types.ModuleType) -> None:
    mine, _ = found(desk_of(agents), outgoing(encode_tell("gone", [])))
    halts: list[tuple[Any, ...]] = []
    waiting: dict[Member, None] = {ME: None, PEER: None}
    state = Restoring(2, 5, (ME, PEER), waiting)
    recovery = types.SimpleNamespace(state=state)
    fits = Fits(types.SimpleNamespace(epoch=2, recovery=recovery, halt=lambda *told: halts.append(told)))  # type: ignore[arg-type]
    assert not fits.halts(Seat(ME, "agents:Old"), mine) and not halts
    del waiting[ME]
    seat = Seat(PEER, "agents:Old")
    assert not fits.halts(seat, fit(["gone"])) and seat.class_name == "agents:Agent"
    assert fits.halts(seat, fit(["go"]))
    ((text, error, name),) = halts
    assert name == "peer" and text.startswith("participant 'peer' cannot take checkpoint 5: message of me: ")
    raised = unpack_error(error, participant="driver", live={})
    assert isinstance(raised, SchemaMismatch) and raised.facts["checkpoint"] == 5
    # Of another epoch it is no more.
    recovery.state = Restoring(3, 5, (PEER,), {PEER: None})
    fits._c.epoch = 3  # type: ignore[misc]
    assert not fits.halts(seat, None)


def test_methods_by_their_old_names_are_there(define: Define) -> None:
    new = define("agents", AGENT)
    cutline.renamed("agents:Agent.walk", new.Agent.go)
    desk = desk_of(new)
    told, _ = found(desk, EMPTY)
    assert {"go", "walk", "wait"} <= set(told["methods"]) and "peer" not in told["methods"]
    desk.handle(PEER, [2, 0, "walk", []])
    assert desk.method_of("walk")[0] == desk.instance.go  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="no method 'fly'"):
        desk.method_of("fly")


def test_errors_name_what_they_are_about(agents: types.ModuleType, define: Define) -> None:
    desk = desk_of(agents)
    with pytest.raises(
        SchemaMismatch, match=r"'me': message 1 of peer: .*renamed\('agents:Agent.gone'"
    ) as one:
        examine(desk, type(desk.instance), incoming(encode_tell("gone", [])), {}, Classes(), Findings())
    assert one.value.facts["class_name"] == "agents:Agent" and one.value.facts["method"] == "gone"
    note = encode_tell("go", packed(agents.Note()))
    desk = desk_of(define("agents", AGENT))
    with pytest.raises(ClassMissing, match=r"'me': message 1 of peer, arguments of go: .*agents:Note"):
        examine(desk, type(desk.instance), incoming(note), {}, Classes(), Findings())


def test_effects_that_wait(agents: types.ModuleType, define: Define) -> None:
    functions = "def pay(note): pass\ndef look(key, note): pass\n"
    module = define("agents", NOTE + AGENT + functions)
    desk = desk_of(module)
    undo = bound_port(desk, thread_only=True)
    try:
        cutline.effect(module.pay, module.Note(), on_unknown=module.look)
        cutline.effect("go")
    finally:
        undo()
    assert found(taken_up(desk, module), EMPTY)[1] == set()
    changed = define("agents", AGENT.replace("def go", "def gone"))
    _, problems = found(taken_up(desk, changed), EMPTY)
    assert problems == {("class", "effect agents:pay (request 1)"), ("method", "effect .go (request 2)")}
