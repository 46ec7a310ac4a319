"""Forks that run beside their origin: what they are told, what they share; the origin stays as it is."""

from __future__ import annotations

import json
import random
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import cutline
from cutline.coordinator.begin import lineage_to_run
from cutline.coordinator.cli import app
from cutline.errors import (
    CheckpointNotFound,
    Corrupt,
    DuplicateName,
    EffectsBlocked,
    ForeignStore,
    Misuse,
    RefusedOption,
    UnknownParticipant,
)
from cutline.participant.inherited import inputs_after
from cutline.storage import Lease, Owner, Store, open_store, store_home
from cutline.storage.fork_apart import comes_from
from tests.coordinator.test_cli_store import asked, run
from tests.system import outside
from tests.system.dying import dying_before_adoption
from tests.system.estate import Estate, make_estate
from tests.system.living import again, comes_to, kill, until
from tests.system.outside import Payer

NAME = "estate"


def started(folder: Path, name: str, **options: Any) -> cutline.System:
    return cutline.start(folder / "store", name=name, interval=None, quiet=True, **options)


def rows(folder: Path, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = asked("effects", "-s", folder / "store", "-n", name)
    return found


class Clerk(Payer):
    """Pays, draws lots, and keeps minutes whose entries are made once."""

    def __init__(self) -> None:
        super().__init__()
        self.minutes: cutline.Log[Any] = cutline.Log()

    def lots(self) -> tuple[int, float]:
        """What its process was given to be random by."""
        return hash("a text"), random.random()

    def ask(self) -> None:
        cutline.ask_person("go on?", int).then(self.on_got)

    def minute(self, number: int) -> int:
        return self.minutes.step(outside.much_noted, number)

    def entries(self) -> list[Any]:
        return list(self.minutes)


def got(clerk: cutline.Handle) -> list[Any]:
    found: list[Any] = again(lambda: clerk.all_got.options(durable=False).remote().result(timeout=60))
    return sorted(found)


def richer(cut: cutline.Cut) -> None:
    cut["clerk"].got.append(0)


def manifests(folder: Path) -> dict[str, bytes]:
    """The bytes of all manifests and commit records, by key."""
    blobs = folder / "store" / "blobs"
    return {str(p.relative_to(blobs)): p.read_bytes() for p in blobs.rglob("manifest-*") if p.is_file()}


def unchanged(folder: Path, before: dict[str, bytes], label: str) -> None:
    """What retention has not taken is as it was; what has the label is there."""
    with open_store(folder / "store", create=False) as store:
        kept = store.catalog.find("office", label).manifest_key
    now = manifests(folder)
    assert kept in before and kept in now
    assert {key: content for key, content in before.items() if now.get(key, content) != content} == {}


def test_three_forks_run_beside_their_origin(tmp_path: Path, world: Path) -> None:
    store = tmp_path / "store"
    with started(tmp_path, "office") as origin:
        clerk = origin.spawn("clerk", Clerk)
        clerk.minute.remote(5).result(timeout=60)
        origin.savepoint("before")
        for number in (1, 2):
            clerk.then.tell(number)
        clerk.note.tell(3)
        clerk.minute.tell(6)
        clerk.ask.tell()
        comes_to(lambda: got(clerk), [1, 2, 3], "the origin's answers")
        origin.checkpoint()
        (question,) = origin.pending()
        before = manifests(tmp_path)
        cutline.answer(store, question.id, 5, name="office")
        comes_to(lambda: got(clerk), [1, 2, 3, 5], "a person's answer")
        made = {
            rule: cutline.fork(
                "before",
                store,
                name="office",
                to=f"office-{rule}",
                effects=rule,
                inputs="drop" if rule == "block" else "replay",
                edit=None if rule == "block" else richer,
            )
            for rule in ("live", "recorded", "block")
        }
        assert made["block"].changed == () and made["live"].changed == ("clerk",)
        paid = outside.lines(world)
        forks = {rule: started(tmp_path, forked.system) for rule, forked in made.items()}
        try:
            clerks = {rule: fork.spawn("clerk", Clerk) for rule, fork in forks.items()}
            # Its own calls, for the inputs of the origin; with keys of its own.
            comes_to(lambda: got(clerks["live"]), [0, 1, 2, 3], "the calls of the live one")
            # The origin's outcomes, and no calls.
            comes_to(lambda: got(clerks["recorded"]), [0, 1, 2, 3, 5], "the origin's outcomes")
            # It asks for itself.
            forks["live"].checkpoint()
            (own,) = forks["live"].pending()
            assert own.text == question.text and own.id != question.id
            assert got(clerks["block"]) == []
            calls = [line for line in outside.lines(world) if line.startswith("pay")]
            assert len(calls) == 6 and len(set(calls)) == 6
            assert calls[:3] == [line for line in paid if line.startswith("pay")]
            with pytest.raises(EffectsBlocked, match=r"outside:pay of participant 'clerk' is blocked"):
                clerks["recorded"].wait_for.remote("pay", 9).result(timeout=60)
            with pytest.raises(EffectsBlocked):
                clerks["recorded"].repeat.remote(9).result(timeout=60)
            clerks["block"].then.tell(4)
            until(
                lambda: [n for n in list(forks["block"].notices) if n["what"] == "effects_blocked"],
                "a notice",
            )
            # The origin goes on.
            clerk.then.tell(7)
            comes_to(lambda: got(clerk), [1, 2, 3, 5, 7], "a call of the origin")
            _share_nothing({"origin": origin, **forks}, {"origin": clerk, **clerks})
        finally:
            for fork in forks.values():
                fork.stop()
        unchanged(tmp_path, before, "before")
    _left_behind(tmp_path, store, made["live"].point)


def _left_behind(tmp_path: Path, store: Path, point: str) -> None:
    """What the stopped systems have left: keys of their own, the origin's outcomes, one ancestry."""
    keys = {name: {doc["key"] for doc in rows(tmp_path, name)} for name in ("office", "office-live")}
    assert not keys["office"] & keys["office-live"] and all(keys.values())
    by = [doc["by"] for doc in rows(tmp_path, "office-recorded") if doc["state"] == "done"]
    assert by and set(by) == {"origin"}
    # What the program sent is sent to a fork when it is opened first, and not each time.
    with started(tmp_path, "office-live") as fork:
        again_there = fork.spawn("clerk", Clerk)
        comes_to(lambda: got(again_there), [0, 1, 2, 3], "the state that it was stopped with")
        assert again_there.entries.remote().result(timeout=60)[:1] == [5]
    with open_store(store, create=False) as opened:
        heads = {name: opened.catalog.head_lineage(name) or "" for name in ("office", "office-live")}
        came = comes_from(opened.catalog, "office-live", heads["office-live"])
    assert came == [heads["office-live"], point.split("/")[0], heads["office"]]
    assert asked("verify", "-s", store)["office-live"]["faults"] == []


def _share_nothing(systems: dict[str, cutline.System], clerks: dict[str, cutline.Handle]) -> None:
    """Nothing that Cutline hands out is handed out to two of these."""
    status = [system.status() for system in systems.values()]
    lots = [clerk.lots.remote().result(timeout=60) for clerk in clerks.values()]
    points = [system.savepoint("all") for system in systems.values()]
    hashes = [system.checkpoints()[-1].manifest_digest for system in systems.values()]
    lineages = [each["lineage"] for each in status]
    for handed in (
        lineages,
        [each["epoch"] for each in status],
        hashes,
        [hashed for hashed, _ in lots],
        [drawn for _, drawn in lots],
        [f"{lineage}/{point}" for lineage, point in zip(lineages, points, strict=True)],
    ):
        assert len(set(handed)) == len(systems), handed


def test_an_edit_and_a_fork_in_the_middle_of_everything(tmp_path: Path, world: Path) -> None:
    """A cut with an effect under way, and steps behind it: what each kind of fork does with them."""
    with started(tmp_path, "office") as origin:
        clerk = origin.spawn("clerk", Clerk)
        clerk.minute.remote(5).result(timeout=60)
        clerk.then_hanging.tell(8)
        until(lambda: [x for x in outside.lines(world) if x.startswith("hang")], "the call that hangs")
        origin.savepoint("middle")
        clerk.minute.remote(6).result(timeout=60)
        before = manifests(tmp_path)
        kill(origin, "clerk")
        comes_to(lambda: got(clerk), [8], "what the world was asked for")
        late = cutline.fork("middle", tmp_path / "store", name="office", effects="recorded", label="late")
    calls = len([x for x in outside.lines(world) if x.startswith("hang")])
    with started(tmp_path, late.system) as fork:
        there = fork.spawn("clerk", Clerk)
        comes_to(lambda: got(there), [8], "the origin's outcome of what was under way")
        # Steps are a participant's own, made anew behind the point.
        assert there.entries.remote().result(timeout=60) == [5]
        assert there.minute.remote(6).result(timeout=60) == 6
        kill(fork, "clerk")
        comes_to(lambda: got(there), [8], "the same after a loss")
    assert len([x for x in outside.lines(world) if x.startswith("hang")]) == calls
    # An edit of the same cut, allowed before anybody opens it: it makes its own call.
    cut = cutline.load("middle", tmp_path / "store", name="office")
    assert cut["clerk"].minutes[0] == 5
    cut["clerk"].got.append(1)
    cut.fork()
    told = CliRunner().invoke(app, ["effects", "-s", str(tmp_path / "store"), "-n", "office", "--allow"])
    assert told.exit_code == 0, told.output
    with started(tmp_path, "office") as edited:
        there = edited.spawn("clerk", Clerk)
        until(lambda: len([x for x in outside.lines(world) if x.startswith("hang")]) > calls, "its own call")
        kill(edited, "clerk")
        comes_to(lambda: got(there), [1, 8], "what became of it")
    assert len({x.split()[-1] for x in outside.lines(world) if x.startswith("hang")}) == 2
    with started(tmp_path, "office", restore="middle") as restored:
        restored.spawn("clerk", Clerk)
    # Restored, forked, edited: what was written stays as it was written.
    unchanged(tmp_path, before, "middle")
    shown = run("tree", tmp_path / "store")
    assert f"({late.system}): 1 checkpoint, 3 to 3" in shown and f"fork from {cut.checkpoint}" in shown
    assert f"edit from {cut.checkpoint}, changed clerk" in shown and "effects recorded" in shown


def test_what_is_said_of_effects_at_a_start_counts(estate: Estate) -> None:
    with open_store(estate.folder, create=False) as store:
        catalog = store.catalog
        lease = catalog.acquire_lease(NAME, Owner.here("test"), 60.0, time.time())

        def begun(**spec: Any) -> tuple[str, str]:
            usual = {"take_over": False, "restore": None, "fresh": False, "effects": None}
            lineage, _ = lineage_to_run(store, lease, NAME, {**usual, **spec})
            return lineage, catalog.effects_rule(lineage)

        first, rule = begun()
        assert rule == "live"
        assert [begun(effects=each)[1] for each in ("block", "live")] == ["block", "live"]
        with pytest.raises(RefusedOption, match="has made its own calls by now"):
            begun(effects="recorded")
        assert begun() == (first, "live")
        fork, rule = begun(restore="early")
        # It goes on there when that has come up; what failed before is seen, and does no harm.
        assert rule == "block" and begun() == (first, "live")
        assert "never came up" in run("tree", estate.folder)
        catalog.opened(lease, fork)
        assert begun() == (fork, "block")
        # It has no cut of its own yet.
        assert begun(effects="recorded") == (fork, "recorded") and begun() == (fork, "recorded")
        assert begun(effects="live") == (fork, "live")
        with pytest.raises(RefusedOption, match="is none"):
            begun(fresh=True, effects="recorded")
        assert [begun(fresh=True, effects=each)[1] for each in (None, "block")] == ["live", "block"]
        catalog.release_lease(lease)
    # What was said before an edit is opened, and before a fork is.
    cut = load_early(estate)
    cut["t0"].cash = 5
    cut.fork()
    told = run("effects", "-s", estate.folder, "-n", NAME, "--allow")
    assert "effects of lineage edit-" in told
    with open_store(estate.folder, create=False) as store:
        lease = store.catalog.acquire_lease(NAME, Owner.here("test"), 60.0, time.time())
        assert begun_with(store, lease) == "live"
        store.catalog.release_lease(lease)
    with pytest.raises(RefusedOption, match='"block", "recorded" or "live"'):
        cutline.start(estate.folder, name=NAME, effects="lively")


def load_early(estate: Estate) -> cutline.Cut:
    return cutline.load("early", estate.folder, name=NAME)


def begun_with(store: Store, lease: Lease) -> str:
    spec = {"take_over": False, "restore": None, "fresh": False}
    return store.catalog.effects_rule(lineage_to_run(store, lease, NAME, spec)[0])


# -- bad input -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Estate:
    return make_estate(tmp_path_factory.mktemp("forks") / "store", tells=3)


@pytest.fixture
def estate(made: Estate, tmp_path: Path) -> Estate:
    return Estate(Path(shutil.copytree(made.folder, tmp_path / "store")), made.tells)


def everything(estate: Estate) -> Any:
    with open_store(estate.folder, create=False) as store:
        return estate.hashes(), [store.catalog.lineages(each) for each in store.catalog.systems()]


def raises(cut: cutline.Cut) -> None:
    cut["t0"].cash = 1
    raise LookupError("no idea")


def returns(cut: cutline.Cut) -> Any:
    cut["t0"].cash = 1
    return cut


def wrong_name(cut: cutline.Cut) -> None:
    cut["t7"].cash = 1


def nothing(cut: cutline.Cut) -> None:
    assert cut["t0"].cash == 0


@pytest.mark.parametrize(
    ("point", "options", "kind", "said"),
    [
        ("late", {}, CheckpointNotFound, "no checkpoint 'late'"),
        ("early", {"name": "nobody"}, CheckpointNotFound, "there is none yet"),
        ("early", {"effects": "lively"}, RefusedOption, '"block", "recorded" or "live"'),
        ("early", {"effects": None}, RefusedOption, '"block", "recorded" or "live"'),
        ("early", {"inputs": "again"}, RefusedOption, '"replay" or "drop"'),
        ("early", {"to": NAME}, DuplicateName, "choose another name"),
        ("early", {"to": ""}, RefusedOption, "it is empty"),
        ("early", {"label": "12"}, RefusedOption, "label"),
        ("early", {"edit": "cash=1"}, Misuse, "edit is a function"),
        ("early", {"edit": raises}, LookupError, "no idea"),
        ("early", {"edit": returns}, Misuse, "return nothing, not <Cut"),
        ("early", {"edit": wrong_name}, UnknownParticipant, "did you mean 't"),
        ("early", {"edit": nothing}, Misuse, "edit has changed nothing"),
    ],
)
def test_fork_refuses(estate: Estate, point: str, options: Any, kind: type[Exception], said: str) -> None:
    before = everything(estate)
    with pytest.raises(kind, match=said):
        cutline.fork(point, estate.folder, **{"name": NAME, **options})
    assert everything(estate) == before


def test_a_damaged_cut_is_not_forked(estate: Estate) -> None:
    with open_store(estate.folder, create=False) as store:
        row = store.catalog.find(NAME, "early")
    key = next(key for key in row.blobs if "/t0-" in key)
    path = estate.folder / "blobs" / key
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    before = everything(estate)
    for edit in (None, raises):
        with pytest.raises(Corrupt, match="t0-"):
            cutline.fork("early", estate.folder, name=NAME, edit=edit)
    path.unlink()
    with pytest.raises(Corrupt, match="t0-"):
        cutline.fork("early", estate.folder, name=NAME)
    assert {k: v for k, v in before[0].items() if k != key} == everything(estate)[0]


def test_without_the_key_nothing_is_forked(
    estate: Estate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = everything(estate)
    with monkeypatch.context() as patched:
        patched.setenv("CUTLINE_HOME", str(tmp_path / "nobody's"))
        with pytest.raises(ForeignStore):
            cutline.fork("early", estate.folder, name=NAME)
    assert everything(estate) == before


def test_inputs_that_are_not_here_are_missed(estate: Estate) -> None:
    home = store_home(str(estate.folder))
    with open_store(estate.folder, create=False) as store:
        row = store.catalog.find(NAME, "early")
        key = store.catalog.seals.need_key().derived("ingress")
    sent = inputs_after(home, row.lineage, 0, key)
    assert len(inputs_after(home, row.lineage, len(sent) - 3, key)) == 3
    log = home / "ingress" / f"{row.lineage}.log"
    log.rename(log.with_suffix(".away"))
    before = everything(estate)
    with pytest.raises(Misuse, match='is not in .*inputs="drop"'):
        cutline.fork("early", estate.folder, name=NAME, inputs="replay")
    assert everything(estate) == before
    log.with_suffix(".away").rename(log)
    raw = bytearray(log.read_bytes())
    raw[40] ^= 1
    log.write_bytes(raw)
    with pytest.raises(Corrupt):
        cutline.fork("early", estate.folder, name=NAME, inputs="replay")


def test_what_a_fork_leaves_that_died_is_collected(estate: Estate, monkeypatch: pytest.MonkeyPatch) -> None:
    before = everything(estate)
    with dying_before_adoption(estate.folder, monkeypatch):
        cutline.fork("early", estate.folder, name=NAME, to="dead", inputs="replay")
    assert everything(estate)[1] == before[1]
    assert not list((store_home(str(estate.folder)) / "ingress").glob("fork-*"))
    made = cutline.fork("early", estate.folder, name=NAME, to="dead", inputs="replay")
    left = [
        key
        for key in everything(estate)[0]
        if key.startswith("dead/") and made.point.split("/")[0] not in key
    ]
    assert left and all("/fork-" in key for key in left)
    assert f"{len(left)} blobs" in run("gc", "-s", estate.folder, "-n", "dead")
    assert not set(left) & set(everything(estate)[0])
    assert cutline.load("newest", estate.folder, name="dead")["t1"].cash == 100


def test_forks_on_the_command_line(estate: Estate) -> None:
    place = ("-s", estate.folder, "-n", NAME)
    doc = asked(
        "fork", "early", *place, "--to", "b", "--function", "tests.system.test_editing:poor", "--label", "x"
    )
    assert doc["changed"] == ["t0", "t1"] and (doc["system"], doc["label"]) == ("b", "x")
    assert cutline.load("x", estate.folder, name="b")["t1"].cash == -1
    assert cutline.load("early", estate.folder, name=NAME)["t1"].cash == 100
    assert "start it by that name" in run("fork", "x", "-s", estate.folder, "-n", "b", "--to", "c").replace(
        "\n", " "
    )
    assert "there is a system 'c'" in run("fork", "x", "-s", estate.folder, "-n", "b", "--to", "c", status=1)
    docs = asked("tree", estate.folder)
    (first,), (second,), (third,) = (docs[system] for system in (NAME, "b", "c"))
    assert [each["how"] for each in (first, second, third)] == ["beginning", "fork", "fork"]
    assert (second["origin"], second["about"]["inputs"]) == (f"{first['lineage']}/2", "drop")
    assert third["origin"] == doc["checkpoint"] and third["effects"] == "block"
    lines = run("tree", estate.folder).splitlines()
    ends = [
        next(n for n, line in enumerate(lines) if each["lineage"] in line) for each in (first, second, third)
    ]
    assert ends == [1, 2, 3] and lines[0] == NAME and "fork from 2, changed t0, t1" in lines[2]
    # The fork needs nothing of its origin.
    shutil.rmtree(estate.folder / "blobs" / NAME)
    assert json.loads(run("verify", "-s", estate.folder, "-n", "c", "--json"))["c"]["faults"] == []
