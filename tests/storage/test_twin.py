"""Random histories against a dumb twin that writes everything down, every time."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from cutline.storage import CheckpointRow, ImageRef, memory_store
from tests.storage.cast import SYSTEM, Scene, states

State = dict[str, dict[str, str]]
values = st.dictionaries(st.sampled_from("xyz"), st.text("ab", max_size=3), max_size=3)


class Histories(RuleBasedStateMachine):
    """Lines of cuts, overlapping attempts, aborts, forks, restarts, sweeps."""

    lines = Bundle("lines")
    attempts = Bundle("attempts")

    def __init__(self) -> None:
        super().__init__()
        self.store = memory_store()
        self.scenes: list[Scene] = [Scene.new(self.store)]
        self.lease = self.scenes[0].lease
        self.twin: dict[tuple[str, int], State] = {}
        self.labels: set[tuple[str, int]] = set()
        self.clock = 0.0

    @initialize(target=lines)
    def the_first(self) -> int:
        return 0

    @rule(
        target=attempts,
        line=lines,
        a=values,
        b=values,
        full=st.booleans(),
        label=st.booleans(),
        both=st.booleans(),
    )
    def begin(
        self, line: int, a: dict[str, str], b: dict[str, str], full: bool, label: bool, both: bool
    ) -> object:
        """Begun, and its packs written, with the newest committed cut as the base."""
        scene = self.scenes[line]
        if len(self.store.catalog.undecided(scene.lineage)) > 2:
            return multiple()
        state: State = {"a": a, "b": b} if both else {"a": a}
        name = f"label {len(self.twin)} {self.clock}" if label else None
        checkpoint = scene.begin(full, name, list(state))
        self.clock += 1
        refs = {each: scene.write(checkpoint, each, state[each], full) for each in state}
        return line, checkpoint, state, refs, name

    @rule(attempt=consumes(attempts))
    def commit(self, attempt: tuple[int, int, State, dict[str, ImageRef], str | None]) -> None:
        line, checkpoint, state, refs, label = attempt
        scene = self.scenes[line]
        if self.store.catalog.fate(scene.lineage, checkpoint) != "begun":
            return
        older = [place for place in self.twin if place[0] == scene.lineage and place[1] > checkpoint]
        row = self.store.commit_cut(scene.lease, scene.manifest(checkpoint, refs, label), {}, self.clock)
        self.twin[row.place] = state
        if label:
            self.labels.add(row.place)
        if not older:
            scene.refs, scene.known = refs, {name: dict(each) for name, each in state.items()}

    @rule(attempt=consumes(attempts))
    def abort(self, attempt: tuple[int, int, State, dict[str, ImageRef], str | None]) -> None:
        scene = self.scenes[attempt[0]]
        if self.store.catalog.fate(scene.lineage, attempt[1]) == "begun":
            self.store.catalog.abort(scene.lease, scene.lineage, attempt[1], "wish", self.clock)

    @rule(target=lines, chance=st.randoms(use_true_random=False))
    def fork(self, chance: object) -> object:
        rows = self.store.catalog.checkpoints(SYSTEM)
        if not rows or len(self.scenes) > 4:
            return multiple()
        self.scenes.append(self.scenes[0].fork(chance.choice(rows)))  # type: ignore[attr-defined]
        return len(self.scenes) - 1

    @rule()
    def restart(self) -> None:
        """A new owner decides everything and goes on from the newest whole cuts."""
        self.clock += 10_000
        scene = Scene.resumed(self.store, now=self.clock)
        for each in self.scenes:
            each.lease = scene.lease
            for checkpoint in self.store.catalog.undecided(each.lineage):
                self.store.catalog.abort(each.lease, each.lineage, checkpoint, "restart", self.clock)

    @rule(keep=st.integers(1, 3))
    def sweep(self, keep: int) -> None:
        swept = self.store.sweep(self.scenes[0].lease, self.clock, keep=keep)
        assert swept.missing == {}
        left = {row.place for row in self.store.catalog.checkpoints(SYSTEM)}
        assert self.labels <= left
        for scene in self.scenes:
            mine = [place for place in self.twin if place[0] == scene.lineage]
            assert not mine or max(mine) in left
            assert len([place for place in mine if place in left]) >= min(keep, len(mine))
        self.twin = {place: state for place, state in self.twin.items() if place in left}

    @invariant()
    def every_listed_cut_is_the_twins(self) -> None:
        rows: list[CheckpointRow] = self.store.catalog.checkpoints(SYSTEM)
        assert {row.place: states(self.store, row) for row in rows} == self.twin

    @invariant()
    def each_line_finds_its_newest(self) -> None:
        for scene in self.scenes:
            mine = [place for place in self.twin if place[0] == scene.lineage]
            if mine:
                assert self.store.newest_whole(SYSTEM, scene.lineage).place == max(mine)

    def teardown(self) -> None:
        scene = self.scenes[0]
        for each in self.scenes:
            for checkpoint in self.store.catalog.undecided(each.lineage):
                self.store.catalog.abort(scene.lease, each.lineage, checkpoint, "end", self.clock)
        self.store.sweep(scene.lease, self.clock, keep=1)
        rows = self.store.catalog.checkpoints(SYSTEM)
        needed = {key for row in rows for key in (*row.blobs, f"{row.manifest_key}.commit")}
        assert set(self.store.blobs.list()) == needed
        self.store.close()


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
