"""Claims: of an export one copy goes on in place of its source, and who opens it first has its answers."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from cutline.coordinator.questions import answered_as, names_before
from cutline.errors import Misuse, StoreInUse
from cutline.storage import Store, open_store
from cutline.storage.effects import EffectRow
from cutline.storage.export import Exported, export_cut
from cutline.storage.importing import claim_source, claimed_by, import_cut, open_export, place_of_claim
from tests.storage.cast import SYSTEM, Scene, lease_of
from tests.storage.conformance_filling import outcome
from tests.storage.test_export import newest, source, state, target

__all__ = ("source", "target")


def exported_twice(source: Store, tmp_path: Path) -> list[Exported]:
    return [export_cut(source, newest(source), tmp_path / name) for name in ("e", "f")]


def test_a_claim_is_recorded_at_the_source(source: Store, target: Store, tmp_path: Path) -> None:
    exported = exported_twice(source, tmp_path)[0]
    lineage = newest(source).lineage
    assert claimed_by(source, lineage) is None
    for _ in range(2):
        # Again, because its import may have died.
        claimed(source, tmp_path / "e", target)
    assert claimed_by(source, lineage) == exported.id and source.catalog.held_lease(SYSTEM) is None
    with open_store(tmp_path / "third", create=True) as third:
        for name, store in (("f", target), ("e", third)):
            with pytest.raises(Misuse, match=f"claimed by another copy .*{exported.id}"):
                claimed(source, tmp_path / name, store)
    with pytest.raises(Misuse, match="has no lineage"):
        claimed(target, tmp_path / "e", source)
    assert import_cut(target, open_export(tmp_path / "e"), claim=True).summary["imported"]["claimed"] is True


def test_of_one_export_one_copy_goes_on(source: Store, target: Store, tmp_path: Path) -> None:
    exported_twice(source, tmp_path)
    export, row = open_export(tmp_path / "e"), newest(source)
    copy = import_cut(target, export, claim=True)
    # Told later: what has come in meanwhile goes along, and there is no second one.
    answer, other = (outcome(row.lineage, "r:k", 1, f"person {number}") for number in (1, 2))
    for late in (answer, other):
        assert import_cut(target, export, claim=True, answers=[late]) == copy
    assert target.catalog.outcomes(copy.lineage, ["r:k"])["r:k"].by == "person 1"
    assert [line.lineage for line in target.catalog.lineages(SYSTEM)] == [copy.lineage]
    with pytest.raises(Misuse, match=f"goes on in .* as system '{SYSTEM}'"):
        import_cut(target, export, name="second", claim=True)
    # Two at once, who have both seen none.
    line = next(line for line in target.catalog.lineages(SYSTEM))
    lease = lease_of(target, "second")
    with pytest.raises(Misuse, match="already"):
        target.catalog.adopt(lease, replace(line, system="second"), replace(copy, system="second"))
    assert copy.lineage == place_of_claim(target, export)
    # Another export, and a fork of this one, are others.
    assert import_cut(target, open_export(tmp_path / "f"), name="f", claim=True).lineage != copy.lineage
    assert import_cut(target, export, name="fork").lineage != copy.lineage


def test_what_has_gone_on_is_not_claimed(source: Store, target: Store, tmp_path: Path) -> None:
    exported_twice(source, tmp_path)
    copy = import_cut(target, open_export(tmp_path / "e"))
    export_cut(target, copy, tmp_path / "g")
    scene = Scene.resumed(source)
    later = scene.cut(state(7))
    source.catalog.release_lease(scene.lease)
    with pytest.raises(Misuse, match=f"has gone on in .* since checkpoint 3 .* to {re.escape(str(later))}"):
        claimed(source, tmp_path / "e", target)
    assert claimed_by(source, later.lineage) is None
    # A copy goes on in what was opened of it; an opening that failed is none.
    lease = lease_of(target)
    failed = target.catalog.create_lineage(lease, copy.place, opening=True)
    target.catalog.release_lease(lease)
    claim_source(target, open_export(tmp_path / "g"), "elsewhere", now=5.0)
    export_cut(target, copy, tmp_path / "h")
    again = import_cut(source, open_export(tmp_path / "h"), name="again")
    lease = lease_of(source, "again")
    opened = source.catalog.create_lineage(lease, again.place)
    source.catalog.release_lease(lease)
    export_cut(source, again, tmp_path / "i")
    with pytest.raises(Misuse, match=f"to lineage {opened}"):
        claimed(source, tmp_path / "i", target)
    assert failed in target.catalog.unopened(SYSTEM)


def test_who_opens_a_copy_first_has_its_answers(source: Store, target: Store, tmp_path: Path) -> None:
    exported_twice(source, tmp_path)
    copy = import_cut(target, open_export(tmp_path / "e"), claim=True)
    lease = lease_of(target)
    failed, first, second = (
        target.catalog.create_lineage(lease, copy.place, opening=number == 0) for number in range(3)
    )
    names = [names_before(target.catalog, SYSTEM, line) for line in (first, second, copy.lineage)]
    assert names == [[copy.lineage, newest(source).lineage], [], []]
    assert failed in target.catalog.unopened(SYSTEM)


def claimed(source: Store, path: Path, target: Store) -> list[EffectRow]:
    export = open_export(path)
    return claim_source(source, export, place_of_claim(target, export))


def test_answers_that_come_after_the_export_go_with_the_claim(
    source: Store, target: Store, tmp_path: Path
) -> None:
    """And on from there, where nobody ran the copy in between."""
    exported_twice(source, tmp_path)
    row = newest(source)
    # By the time it is claimed; what was asked later is not the copy's.
    late, other = (outcome(row.lineage, key, since, "person 1") for key, since in (("r:k", 1), ("r:l", 99)))
    for each in (late, other):
        source.catalog.settle(SYSTEM, each)
    answers = claimed(source, tmp_path / "e", target)
    assert answers == [late]
    copy = import_cut(target, open_export(tmp_path / "e"), claim=True, answers=answers)
    assert list(target.catalog.outcomes(copy.lineage, ["r:k", "r:l"])) == ["r:k"]
    assert answered_as(copy) == [copy.lineage, row.lineage]
    export_cut(target, copy, tmp_path / "g")
    second = import_cut(source, open_export(tmp_path / "g"), name="second", claim=True)
    assert answered_as(second) == [second.lineage, copy.lineage, row.lineage]
    assert list(source.catalog.outcomes(second.lineage, ["r:k"])) == ["r:k"]
    # Without a claim it is a fork, which asks anew.
    third = import_cut(source, open_export(tmp_path / "g"), name="third", answers=answers)
    assert answered_as(third) == [third.lineage]
    assert source.catalog.outcomes(third.lineage, ["r:k"]) == {}


def test_a_running_source_is_not_claimed(source: Store, tmp_path: Path) -> None:
    exported_twice(source, tmp_path)
    lease_of(source)
    with pytest.raises(StoreInUse):
        claim_source(source, open_export(tmp_path / "e"), "elsewhere", now=5.0)
    assert claimed_by(source, newest(source).lineage) is None
