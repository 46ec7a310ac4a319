"""What every blob store and every catalog must do; a backend subclasses these in a few lines."""

from __future__ import annotations

import random
import threading
from abc import abstractmethod
from collections.abc import Iterator

import pytest

from cutline.errors import (
    BlobExists,
    BlobNotFound,
    CheckpointNotFound,
    Corrupt,
    DuplicateLabel,
    FateDecided,
    Fenced,
    RefusedOption,
    StoreInUse,
)
from cutline.storage import BlobStore, Catalog, Lease
from tests.storage.cast import owner
from tests.storage.conformance_filling import FillingTests, adoptable
from tests.storage.conformance_holding import HoldingTests

HOSTILE_KEYS = [
    "../x",
    "/etc/x",
    "a/../../x",
    "..\\x",
    "a//b",
    "",
    "a/",
    ".",
    "a/.hidden",
    "a/b\0c",
    "a b",
    "x" * 300,
    "a/\N{LATIN SMALL LETTER E WITH ACUTE}",
]
HOSTILE_LABELS = [
    "a' OR '1'='1",
    'a") --',
    "$.x",
    "\N{LEFT SINGLE QUOTATION MARK}x",
    "1; drop table",
    "a\u2028b",
]


class BlobStoreTests(HoldingTests):
    """``back_door`` reads a blob without the verb under test; ``blobs`` is made anew for each test."""

    @pytest.fixture
    @abstractmethod
    def blobs(self) -> BlobStore | Iterator[BlobStore]: ...

    @abstractmethod
    def back_door(self, blobs: BlobStore, key: str) -> bytes: ...

    def test_create_joins_the_parts(self, blobs: BlobStore) -> None:
        parts: list[bytes | bytearray | memoryview] = [
            b"ab",
            bytearray(b""),
            memoryview(b"cd"),
            b"e" * 3_000_000,
        ]
        assert blobs.create("a/b", parts) == 3_000_004
        assert self.back_door(blobs, "a/b") == b"abcd" + b"e" * 3_000_000

    def test_many_small_parts(self, blobs: BlobStore) -> None:
        parts = [bytes([n % 256]) * (n % 7) for n in range(5000)]
        blobs.create("a", parts)
        assert self.back_door(blobs, "a") == b"".join(parts)

    def test_a_large_blob(self, blobs: BlobStore) -> None:
        """Larger than what is sent, or read, in one go: parts that lie across the seams of the pieces."""
        content = random.Random(7).randbytes(21_000_001)
        cuts = sorted(random.Random(8).sample(range(len(content)), 9))
        view = memoryview(content)
        parts = [view[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(content)], strict=True)]
        assert blobs.create("s/large", parts) == blobs.size("s/large") == len(content)
        assert self.back_door(blobs, "s/large") == content
        assert blobs.read("s/large") == content
        target = bytearray(18_000_000)
        assert blobs.read_into("s/large", 1_000_000, memoryview(target)) == len(target)
        assert target == content[1_000_000:19_000_000]
        assert blobs.read_into("s/large", 11_000_000, memoryview(target)) == 10_000_001
        assert target[:10_000_001] == content[11_000_000:]
        with pytest.raises(BlobExists, match="s/large"):
            blobs.create("s/large", [view])

    def test_a_large_blob_whose_source_breaks(self, blobs: BlobStore) -> None:
        def parts() -> Iterator[bytes]:
            for _ in range(5):
                yield b"x" * 4_000_000
            raise RuntimeError("the source broke")

        with pytest.raises(RuntimeError, match="the source broke"):
            blobs.create("a/b", parts())
        assert [*blobs.list(), *blobs.unfinished()] == []

    def test_an_empty_blob(self, blobs: BlobStore) -> None:
        assert blobs.create("a", []) == 0
        assert (blobs.read("a"), blobs.size("a"), list(blobs.list())) == (b"", 0, ["a"])

    def test_create_is_conditional(self, blobs: BlobStore) -> None:
        blobs.create("s/a", [b"first"])
        with pytest.raises(BlobExists, match="s/a"):
            blobs.create("s/a", [b"second"])
        assert self.back_door(blobs, "s/a") == b"first"

    def test_one_of_many_creates_wins(self, blobs: BlobStore) -> None:
        won: list[int] = []
        gate = threading.Barrier(8)

        def create(number: int) -> None:
            gate.wait()
            try:
                blobs.create("s/l/a", [b"%d" % number] * 1000)
            except BlobExists:
                return
            won.append(number)

        threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1
        assert self.back_door(blobs, "s/l/a") == b"%d" % won[0] * 1000
        assert list(blobs.unfinished()) == []

    def test_an_error_on_the_way_leaves_nothing(self, blobs: BlobStore) -> None:
        def parts() -> Iterator[bytes]:
            yield b"x" * 3_000_000
            raise RuntimeError("the source broke")

        with pytest.raises(RuntimeError, match="the source broke"):
            blobs.create("a/b", parts())
        assert [*blobs.list(), *blobs.unfinished()] == []
        blobs.create("a/b", [b"again"])

    def test_read_ranges(self, blobs: BlobStore) -> None:
        blobs.create("a", [b"0123456789"])
        assert blobs.read("a", 3) == b"3456789"
        assert blobs.read("a", 3, 4) == b"3456"
        assert blobs.read("a", 8, 4) == b"89"
        assert blobs.read("a", 20, 4) == b""
        target = bytearray(4)
        assert blobs.read_into("a", 8, memoryview(target)) == 2
        assert target == b"89\0\0"

    def test_what_is_not_there(self, blobs: BlobStore) -> None:
        blobs.create("a/b", [b"x"])
        for key in ("b", "a/c", "a", "a/b/c"):
            with pytest.raises(Exception) as caught:
                blobs.read(key)
            assert isinstance(caught.value, BlobNotFound) or key in ("a", "a/b/c")
        with pytest.raises(BlobNotFound, match="c/d"):
            blobs.size("c/d")
        blobs.delete("c/d")
        blobs.delete("c/d", durable=True)

    def test_list_is_by_prefix_and_in_order(self, blobs: BlobStore) -> None:
        keys = ["s/l/0/10/x", "s/l/0/2/x", "s/l2/0/1/x", "t/l/0/1/x"]
        for key in keys:
            blobs.create(key, [b""])
        assert sorted(blobs.list()) == sorted(keys)
        assert list(blobs.list("s/l/")) == ["s/l/0/10/x", "s/l/0/2/x"]
        assert sorted(blobs.list("s/l")) == sorted(keys[:3])
        assert list(blobs.list("nobody/")) == []

    def test_delete(self, blobs: BlobStore) -> None:
        blobs.create("s/a", [b""])
        blobs.create("s/b", [b""])
        blobs.delete("s/a")
        assert list(blobs.list()) == ["s/b"]
        for _ in range(2):
            blobs.delete("s/b", durable=True)
        assert list(blobs.list()) == []
        blobs.create("s/a", [b"again"])
        assert self.back_door(blobs, "s/a") == b"again"

    @pytest.mark.parametrize("key", HOSTILE_KEYS, ids=repr)
    def test_hostile_keys(self, blobs: BlobStore, key: str) -> None:
        for verb in (lambda: blobs.create(key, [b"x"]), lambda: blobs.read(key), lambda: blobs.size(key)):
            with pytest.raises(RefusedOption):
                verb()
        assert list(blobs.list()) == []


class CatalogTests(FillingTests):
    """The contract of `Catalog`."""

    @pytest.fixture
    @abstractmethod
    def catalog(self) -> Iterator[Catalog]: ...

    @pytest.fixture
    def lease(self, catalog: Catalog) -> Lease:
        return catalog.acquire_lease("s", owner(), 10.0, 0.0)

    @pytest.fixture
    def line(self, catalog: Catalog, lease: Lease) -> str:
        return catalog.create_lineage(lease, None)

    def begin(self, catalog: Catalog, lease: Lease, line: str, label: str | None = None) -> int:
        return catalog.begin(lease, line, kind="full", label=label, roster=["t0"], now=5.0)

    def commit(self, catalog: Catalog, lease: Lease, line: str, checkpoint: int, *blobs: str) -> None:
        catalog.commit(
            lease,
            line,
            checkpoint,
            manifest_key=f"m{checkpoint}",
            manifest_digest=bytes([checkpoint]) * 32,
            blobs=blobs,
            summary={"took": 0.5},
            now=6.0,
        )

    def cut(self, catalog: Catalog, lease: Lease, line: str, label: str | None = None) -> int:
        checkpoint = self.begin(catalog, lease, line, label)
        self.commit(catalog, lease, line, checkpoint)
        return checkpoint

    def test_a_lease_is_exclusive(self, catalog: Catalog) -> None:
        first = catalog.acquire_lease("s", owner(7, "the first"), 10.0, 0.0)
        with pytest.raises(StoreInUse, match=r"process 7 on elsewhere \(the first\)"):
            catalog.acquire_lease("s", owner(8), 10.0, 9.9)
        catalog.acquire_lease("other", owner(8), 10.0, 0.0)
        catalog.renew_lease(first, 10.0, 9.0)
        with pytest.raises(StoreInUse):
            catalog.acquire_lease("s", owner(8), 10.0, 18.0)
        second = catalog.acquire_lease("s", owner(8), 10.0, 19.0)
        assert second.token > first.token
        with pytest.raises(Fenced, match="process 8"):
            catalog.renew_lease(first, 10.0, 20.0)

    def test_a_released_lease_is_free(self, catalog: Catalog, lease: Lease) -> None:
        catalog.release_lease(lease)
        assert catalog.lease_holder("s") is None
        with pytest.raises(Fenced, match="by nobody"):
            catalog.renew_lease(lease, 10.0, 0.0)
        later = catalog.acquire_lease("s", owner(9), 10.0, 0.0)
        catalog.release_lease(lease)
        assert catalog.lease_holder("s") == later.owner

    def test_a_fenced_owner_changes_nothing(self, catalog: Catalog, lease: Lease, line: str) -> None:
        begun = self.begin(catalog, lease, line)
        done = self.cut(catalog, lease, line)
        catalog.acquire_lease("s", owner(2), 10.0, 100.0)
        before = catalog.checkpoints("s", fates=("begun", "committed", "aborted"))
        for verb in (
            lambda: self.begin(catalog, lease, line),
            lambda: self.commit(catalog, lease, line, begun),
            lambda: catalog.abort(lease, line, begun, "x", 1.0),
            lambda: catalog.bump_epoch(lease, line),
            lambda: catalog.next_birth(lease, line),
            lambda: catalog.rule_effects(lease, line, "live"),
            lambda: catalog.put_effects(lease, []),
            lambda: catalog.create_lineage(lease, None),
            lambda: catalog.put_member(lease, line, "t", 1, {}),
            lambda: catalog.remove_member(lease, line, "t"),
            lambda: catalog.count_failure(lease, line, "k"),
            lambda: catalog.pin(lease, line, done, "l"),
            lambda: catalog.unpin(lease, line, done, "l"),
            lambda: catalog.condemn(lease, lambda lines, rows: {(line, done)}),
            lambda: catalog.drop(lease, [(line, done)]),
            lambda: catalog.raise_horizon(lease, line, done),
            lambda: catalog.adopt(lease, *adoptable(catalog, line, done)),
        ):
            with pytest.raises(Fenced):
                verb()
        assert catalog.checkpoints("s", fates=("begun", "committed", "aborted")) == before
        assert catalog.epoch(line) == 0
        assert catalog.members(line) == {}
        assert catalog.failures(line) == {}

    def test_a_lease_is_for_one_system(self, catalog: Catalog, lease: Lease, line: str) -> None:
        other = catalog.acquire_lease("t", owner(), 10.0, 0.0)
        with pytest.raises(CheckpointNotFound, match="no lineage"):
            self.begin(catalog, other, line)
        self.cut(catalog, lease, line)
        assert catalog.checkpoints("t") == []

    def test_ids_and_births_are_never_reused(self, catalog: Catalog, lease: Lease, line: str) -> None:
        ids = [self.begin(catalog, lease, line) for _ in range(3)]
        for checkpoint in ids:
            catalog.abort(lease, line, checkpoint, "x", 1.0)
        catalog.drop(lease, [(line, checkpoint) for checkpoint in ids])
        assert self.begin(catalog, lease, line) == ids[-1] + 1
        births = [catalog.next_birth(lease, line) for _ in range(3)]
        assert births == sorted(set(births))
        assert [catalog.bump_epoch(lease, line), catalog.bump_epoch(lease, line)] == [1, 2]

    def test_no_two_lineages_have_had_one_epoch(self, catalog: Catalog, lease: Lease, line: str) -> None:
        at = self.cut(catalog, lease, line)
        forks = [catalog.create_lineage(lease, (line, at)) for _ in range(2)]
        other = catalog.acquire_lease("t", owner(), 10.0, 0.0)
        there = catalog.create_lineage(other, None)
        lines = [(lease, line), *((lease, fork) for fork in forks), (other, there)]
        epochs = [catalog.bump_epoch(*each) for _ in range(3) for each in lines]
        assert sorted(set(epochs)) == sorted(epochs)
        assert [catalog.epoch(each) for _, each in lines] == epochs[-4:]

    def test_a_fate_is_decided_once(self, catalog: Catalog, lease: Lease, line: str) -> None:
        first, second = self.begin(catalog, lease, line), self.begin(catalog, lease, line)
        assert catalog.undecided(line) == [first, second]
        self.commit(catalog, lease, line, second)
        catalog.abort(lease, line, first, "timeout", 7.0)
        catalog.abort(lease, line, first, "again", 8.0)
        assert (catalog.fate(line, first), catalog.fate(line, second)) == ("aborted", "committed")
        with pytest.raises(FateDecided, match="was aborted before"):
            self.commit(catalog, lease, line, first)
        with pytest.raises(FateDecided, match="was committed before"):
            catalog.abort(lease, line, second, "x", 9.0)
        with pytest.raises(FateDecided):
            self.commit(catalog, lease, line, second)
        with pytest.raises(CheckpointNotFound):
            catalog.fate(line, 99)
        assert catalog.undecided(line) == []

    def test_a_row_holds_what_was_said(self, catalog: Catalog, lease: Lease, line: str) -> None:
        catalog.bump_epoch(lease, line)
        first = self.cut(catalog, lease, line)
        second = self.begin(catalog, lease, line, "label")
        self.commit(catalog, lease, line, second, "m2")
        (_, row) = catalog.checkpoints("s")
        assert (row.system, row.lineage, row.checkpoint, row.kind) == ("s", line, second, "full")
        assert (row.label, row.fate, row.begun_at, row.decided_at) == ("label", "committed", 5.0, 6.0)
        assert (row.epoch, row.parent, row.roster) == (1, (line, first), ("t0",))
        assert (row.manifest_key, row.manifest_digest) == (f"m{second}", bytes([second]) * 32)
        assert (row.blobs, row.summary) == (("m2",), {"took": 0.5})
        catalog.abort(lease, line, self.begin(catalog, lease, line), "timeout", 9.0)
        (row,) = catalog.checkpoints("s", fates=("aborted",))
        assert (row.reason, row.decided_at, row.blobs) == ("timeout", 9.0, ())

    def test_forks_count_on(self, catalog: Catalog, lease: Lease, line: str) -> None:
        for _ in range(3):
            self.cut(catalog, lease, line)
        birth = catalog.next_birth(lease, line)
        fork = catalog.create_lineage(lease, (line, 2))
        assert catalog.head_lineage("s") == fork
        assert [row.lineage for row in catalog.lineages("s")] == [line, fork]
        assert self.begin(catalog, lease, fork) == 3
        (row,) = catalog.checkpoints("s", lineage=fork, fates=("begun",))
        assert row.parent == (line, 2)
        assert catalog.next_birth(lease, fork) > birth
        for place in ((line, 99), (fork, 3), ("nowhere", 1)):
            with pytest.raises(CheckpointNotFound):
                catalog.create_lineage(lease, place)

    def test_find(self, catalog: Catalog, lease: Lease, line: str) -> None:
        with pytest.raises(CheckpointNotFound, match="none yet"):
            catalog.find("s", "newest")
        for label in (None, "two", None, None):
            self.cut(catalog, lease, line, label)
        fork = catalog.create_lineage(lease, (line, 3))
        assert catalog.find("s", "newest").place == (line, 3)
        self.cut(catalog, lease, fork)
        assert catalog.find("s", "newest").place == (fork, 4)
        assert catalog.find("s", "newest", line).place == (line, 4)
        assert catalog.find("s", "4").place == (fork, 4)
        assert catalog.find("s", "4", line).place == (line, 4)
        assert catalog.find("s", f"{line}/4").place == (line, 4)
        assert catalog.find("s", "2").place == catalog.find("s", "two").place == (line, 2)
        with pytest.raises(CheckpointNotFound, match=f"there is .*{line}/2 'two'.*{fork}/4"):
            catalog.find("s", "nobody")
        with pytest.raises(CheckpointNotFound):
            catalog.find("t", "2")

    def test_newest_is_by_number_not_by_time(self, catalog: Catalog, lease: Lease, line: str) -> None:
        times = [100.0, 101.0, 102.0, 50.0, 50.0] + [60.0] * 7
        for now in times:
            checkpoint = catalog.begin(lease, line, kind="full", label=None, roster=[], now=now)
            catalog.commit(
                lease, line, checkpoint, manifest_key="m", manifest_digest=b"", blobs=(), summary={}, now=now
            )
        assert [row.checkpoint for row in catalog.checkpoints("s")] == list(range(1, 13))
        assert catalog.find("s", "newest").checkpoint == 12

    def test_a_later_id_may_commit_first(self, catalog: Catalog, lease: Lease, line: str) -> None:
        first, second = self.begin(catalog, lease, line), self.begin(catalog, lease, line)
        self.commit(catalog, lease, line, second)
        self.commit(catalog, lease, line, first)
        assert catalog.find("s", "newest").checkpoint == second

    def test_labels(self, catalog: Catalog, lease: Lease, line: str) -> None:
        first = self.cut(catalog, lease, line, "release")
        with pytest.raises(DuplicateLabel, match=f"checkpoint {first}"):
            self.begin(catalog, lease, line, "release")
        second = self.cut(catalog, lease, line)
        with pytest.raises(DuplicateLabel):
            catalog.pin(lease, line, second, "release")
        catalog.pin(lease, line, second, "later")
        catalog.pin(lease, line, second, "later")
        with pytest.raises(CheckpointNotFound):
            catalog.unpin(lease, line, first, "later")
        catalog.unpin(lease, line, first, "release")
        third = self.begin(catalog, lease, line, "release")
        catalog.abort(lease, line, third, "x", 1.0)
        self.cut(catalog, lease, line, "release")
        with pytest.raises(CheckpointNotFound):
            catalog.pin(lease, line, third, "aborted")

    @pytest.mark.parametrize(
        "label", ["", " x", "12", "newest", "a/b", "a\nb", "\udc80", "x" * 500], ids=repr
    )
    def test_refused_labels(self, catalog: Catalog, lease: Lease, line: str, label: str) -> None:
        with pytest.raises(RefusedOption):
            self.begin(catalog, lease, line, label)
        assert catalog.undecided(line) == []

    @pytest.mark.parametrize("label", HOSTILE_LABELS)
    def test_hostile_labels_are_only_labels(
        self, catalog: Catalog, lease: Lease, line: str, label: str
    ) -> None:
        self.cut(catalog, lease, line, "secret")
        other = catalog.acquire_lease(label, owner(), 10.0, 0.0)
        self.cut(catalog, other, catalog.create_lineage(other, None), "other")
        with pytest.raises(CheckpointNotFound):
            catalog.find("s", label)
        mine = self.cut(catalog, lease, line, label)
        assert catalog.find("s", label).checkpoint == mine
        assert [row.label for row in catalog.checkpoints(label)] == ["other"]
        assert catalog.checkpoints("s", lineage=label) == []
        assert len(catalog.checkpoints("s")) == 2

    def test_names_that_no_text_can_have(self, catalog: Catalog) -> None:
        with pytest.raises(RefusedOption, match="characters"):
            catalog.acquire_lease("\udc80", owner(), 10.0, 0.0)

    def test_members(self, catalog: Catalog, lease: Lease, line: str) -> None:
        catalog.put_member(lease, line, "b", 1, {"class": "m:B"})
        catalog.put_member(lease, line, "a", 2, {})
        catalog.put_member(lease, line, "b", 3, {"class": "m:C"})
        assert catalog.members(line) == {"a": (2, {}), "b": (3, {"class": "m:C"})}
        catalog.remove_member(lease, line, "a")
        assert list(catalog.members(line)) == ["b"]
        assert catalog.members(catalog.create_lineage(lease, None)) == {}

    def test_failures(self, catalog: Catalog, lease: Lease, line: str) -> None:
        assert [catalog.count_failure(lease, line, key) for key in "aba"] == [1, 1, 2]
        assert catalog.failures(line) == {"a": 2, "b": 1}

    def test_a_failure_that_is_told_twice_counts_once(
        self, catalog: Catalog, lease: Lease, line: str
    ) -> None:
        told = [("a", "x"), ("a", "x"), ("b", "x"), ("a", "y"), ("a", "x"), ("a", ""), ("a", "")]
        counts = [catalog.count_failure(lease, line, key, occurrence) for key, occurrence in told]
        assert counts == [1, 1, 1, 2, 2, 3, 4]
        assert catalog.failures(line) == {"a": 4, "b": 1}

    def test_a_cut_borrows_only_from_living_cuts(self, catalog: Catalog, lease: Lease, line: str) -> None:
        def key(checkpoint: int) -> str:
            return f"s/{line}/0/{checkpoint}/p.pack"

        first, second, third, fourth = (self.begin(catalog, lease, line) for _ in range(4))
        self.commit(catalog, lease, line, first, key(first))
        self.commit(catalog, lease, line, second, key(first), key(second))
        catalog.condemn(lease, lambda lines, rows: {(line, first)})
        self.commit(catalog, lease, line, third, key(first), key(third))
        catalog.condemn(lease, lambda lines, rows: {(line, second), (line, third)})
        with pytest.raises(Corrupt, match="take a full one"):
            self.commit(catalog, lease, line, fourth, key(first), key(fourth))
        assert catalog.undecided(line) == [fourth]

    def test_what_is_given_up_is_gone(self, catalog: Catalog, lease: Lease, line: str) -> None:
        first, second = self.cut(catalog, lease, line, "a"), self.cut(catalog, lease, line)
        begun = self.begin(catalog, lease, line)
        lines, rows = catalog.condemn(lease, lambda lines, rows: {(line, first), (line, begun)})
        assert [row.condemned for row in rows] == [True, False, False]
        assert [row.checkpoint for row in catalog.checkpoints("s")] == [second]
        for point in ("1", "a"):
            with pytest.raises(CheckpointNotFound):
                catalog.find("s", point)
        with pytest.raises(CheckpointNotFound):
            catalog.create_lineage(lease, (line, first))
        catalog.drop(lease, [(line, first), (line, second), (line, begun)])
        _, rows = catalog.condemn(lease, lambda lines, rows: set())
        assert [row.checkpoint for row in rows] == [second, begun]

    def test_threads_share_it(self, catalog: Catalog, lease: Lease, line: str) -> None:
        got: list[int] = []

        def births() -> None:
            got.extend(catalog.next_birth(lease, line) for _ in range(20))

        threads = [threading.Thread(target=births) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(got)) == 80
