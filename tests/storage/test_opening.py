"""Where a URL leads; stores whose catalog is not in their folder; what must not be told."""

from __future__ import annotations

import json
import secrets
import threading
from pathlib import Path

import obstore
import pytest

from cutline.errors import (
    Corrupt,
    CutlineError,
    FateDecided,
    NewerFormat,
    NotAStore,
    NotRunning,
    RefusedOption,
    StoreInUse,
)
from cutline.storage import Owner, Store, locate, open_blobs, open_store, store_home
from cutline.storage.objects import ObjectBlobs
from tests.storage.cast import SYSTEM, Scene, lease_of, states
from tests.storage.proxy import proxy
from tests.storage.servers import S3, Postgres

SECRET = "sEcReT"
PG = f"postgresql://me:{SECRET}@db:5433/base"
BASE = "me@db:5433/base"
STATE = {"a": {"x": "1"}}


@pytest.mark.parametrize(
    ("url", "place", "options", "catalog"),
    [
        (f"s3://b/p?catalog={PG}", "s3://b/p", {}, "me@db:5433/base?schema=cutline"),
        (f"s3://b?region=r&catalog={PG}?schema=x", "s3://b", {"region": "r"}, "me@db:5433/base?schema=x"),
        (f"s3://b/p/q/?catalog={PG}&region=r", "s3://b/p/q", {"region": "r"}, f"{BASE}?schema=cutline"),
        (
            "s3://b?endpoint=http://h:1&allow_http=true&catalog=postgres://db/base&schema=y&sslmode=require",
            "s3://b",
            {"endpoint": "http://h:1", "allow_http": "true"},
            "db/base?schema=y",
        ),
        ("gs://b/p?catalog=postgresql:///base", "gs://b/p", {}, "/base?schema=cutline"),
        ("az://c?account=a&catalog=postgres%3A%2F%2Fh%2Fx", "az://c", {"account": "a"}, "h/x?schema=cutline"),
        (f"/a b/c?catalog={PG}", "/a b/c", {}, "me@db:5433/base?schema=cutline"),
        (f"file:///a%20b?catalog={PG}", "/a b", {}, "me@db:5433/base?schema=cutline"),
    ],
)  # fmt: skip
def test_where_a_url_leads(url: str, place: str, options: dict[str, str], catalog: str) -> None:
    where = locate(url)
    assert (where.place, dict(where.options)) == (place, options)
    assert str(where.catalog) == f"postgresql://{catalog}"
    assert SECRET not in f"{where} {where!r} {where.catalog!r} {where.blobs_url}"
    # Whoever is told where the blobs are finds them.
    again = locate(where.blobs_url)
    assert (again.place, dict(again.options), again.catalog) == (place, options, None)
    # Absolute, and the same when it is read once more.
    assert locate(where.url) == where


def test_a_password_is_taken_as_it_is_quoted() -> None:
    catalog = locate("s3://b?catalog=postgresql://m%40e:a%2Fb%3Fc%26d%25@db/base").catalog
    assert catalog is not None
    assert (catalog.options["user"], catalog.options["password"]) == ("m@e", "a/b?c&d%")


@pytest.mark.parametrize(
    ("url", "text"),
    [
        (f"s3://key:{SECRET}@b/x?catalog={PG}", "credentials come from the environment"),
        (f"s3://b?secret_access_key={SECRET}&catalog={PG}", "credentials come from the environment"),
        (f"s3://b?colour=red&catalog={PG}", "leave out the option 'colour'"),
        (f"s3://b?region=&catalog={PG}", "region=VALUE"),
        (f"s3://b?region=a&region=b&catalog={PG}", "once"),
        (f"s3://b/../c?catalog={PG}", "BUCKET/PREFIX"),
        (f"s3://b/x//c?catalog={PG}", "BUCKET/PREFIX"),
        (f"s3://?catalog={PG}", "BUCKET/PREFIX"),
        (f"s3://b?endpoint=http://h&catalog={PG}", "allow_http=true"),
        (f"s3://b?catalog=mysql://me:{SECRET}@db/base", "a catalog is postgresql://"),
        (f"s3://b?catalog={SECRET}", "a catalog is postgresql://"),
        (f"s3://b?catalog=postgresql://me:{SECRET}/x@db/base", "quote what is special"),
        (f"s3://b?catalog=postgresql://me:12/{SECRET}@db/base", "quote / and #"),
        (f"s3://b?catalog=postgresql://me:{SECRET}#x@db/base", "quote"),
        (f"s3://b?catalog={PG}?schema=Robert'); DROP", "small letters"),
        (f"/x?catalog={PG}&region=r", "no options but catalog="),
        (f"ftp://me:{SECRET}@h/x", "a store is a folder"),
    ],
)
def test_urls_that_are_refused_tell_no_secret(url: str, text: str) -> None:
    with pytest.raises(RefusedOption, match=text) as caught:
        locate(url)
    error: BaseException | None = caught.value
    while error is not None:
        assert SECRET not in f"{error} {vars(error)}"
        error = error.__cause__


def test_a_bucket_needs_a_catalog() -> None:
    with pytest.raises(
        RefusedOption, match=r"s3://b/p has no catalog.*Write s3://b/p\?catalog=postgresql://"
    ):
        open_store("s3://b/p", create=True)


def test_the_home_of_what_is_not_in_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUTLINE_HOME", str(tmp_path))
    assert store_home(tmp_path / "x") == store_home(f"{tmp_path / 'x'}?catalog={PG}") == tmp_path / "x"
    homes = {
        store_home(url)
        for url in (
            f"s3://b/p?catalog={PG}",
            f"s3://b/p2?catalog={PG}",
            f"s3://b/p?endpoint=https://h&catalog={PG}",
            f"gs://b/p?catalog={PG}",
        )
    }
    assert len(homes) == 4 and all(home.parent == tmp_path for home in homes)
    # What is connected with may change.
    assert store_home(f"s3://b/p/?catalog={PG}x&region=r") in homes
    with pytest.raises(RefusedOption, match="use a folder"):
        store_home("memory:")


def test_memory() -> None:
    with open_store("memory:", create=True) as store:
        Scene.new(store).cut(STATE)
    with pytest.raises(NotAStore):
        open_store("memory:", create=False)
    with pytest.raises(RefusedOption, match="its own process"):
        open_blobs("memory:")


# Stores with a catalog in PostgreSQL


@pytest.fixture
def name() -> str:
    return secrets.token_hex(6)


@pytest.fixture
def s3(s3_server: S3, monkeypatch: pytest.MonkeyPatch) -> S3:
    for key, value in s3_server.environment().items():
        monkeypatch.setenv(key, value)
    return s3_server


@pytest.fixture(params=["folder", "bucket"])
def url(request: pytest.FixtureRequest, name: str, tmp_path: Path, postgres_server: Postgres) -> str:
    if request.param == "folder":
        return f"{tmp_path / name}?catalog={postgres_server.url(f's_{name}')}"
    s3: S3 = request.getfixturevalue("s3")
    return f"{s3.url(name)}&catalog={postgres_server.url(f's_{name}')}"


def test_a_store_is_made_once_and_opened_often(url: str) -> None:
    with pytest.raises(NotAStore, match="no store at"):
        open_store(url, create=False)
    with open_store(url, create=True) as store:
        row = Scene.new(store).cut(STATE)
    with open_store(url, create=True) as again, open_store(url, create=False) as third:
        assert third.catalog.find(SYSTEM, "newest") == row
        assert states(again, row) == STATE
        assert again.verify(SYSTEM).faults == []
        assert open_blobs(locate(url).blobs_url).size(row.manifest_key or "") > 0


def test_many_make_the_same_store(url: str) -> None:
    made: list[Store] = []
    gate = threading.Barrier(4)

    def make() -> None:
        gate.wait()
        made.append(open_store(url, create=True))

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lease = lease_of(made[0])
    assert len(made) == 4
    for store in made[1:]:
        with pytest.raises(StoreInUse):
            lease_of(store)
        assert store.catalog.lease_holder(SYSTEM) == lease.owner
    for store in made:
        store.close()


def test_collection_in_a_bucket(url: str) -> None:
    with open_store(url, create=True) as store:
        scene = Scene.new(store)
        for number in range(6):
            scene.cut({"a": {"x": str(number)}}, full=number % 3 == 0)
        store.sweep(scene.lease, 0.0, keep=2)
        kept = store.catalog.checkpoints(SYSTEM)
        assert states(store, kept[-1]) == {"a": {"x": "5"}}
        needed = {key for row in kept for key in row.blobs}
        assert (
            needed <= set(store.blobs.list()) < needed | {f"{row.manifest_key}.commit" for row in kept} | {""}
        )


def test_one_schema_is_of_one_place(tmp_path: Path, name: str, postgres_server: Postgres) -> None:
    """Of those that would make a store of it at once, one does."""
    urls = [f"{tmp_path / str(number)}?catalog={postgres_server.url(f's_{name}')}" for number in range(3)]
    outcomes: list[str] = []
    gate = threading.Barrier(3)

    def make(url: str) -> None:
        gate.wait()
        try:
            open_store(url, create=True).close()
        except RefusedOption as error:
            outcomes.append(str(error))
        else:
            outcomes.append("made")

    threads = [threading.Thread(target=make, args=(url,)) for url in urls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcome == "made" for outcome in outcomes) == [False, False, True]
    assert all("schema=NAME" in outcome for outcome in outcomes if outcome != "made")


def test_what_does_not_belong_together(tmp_path: Path, name: str, postgres_server: Postgres) -> None:
    schema = f"s_{name}"
    here, there = tmp_path / "here", tmp_path / "there"
    open_store(f"{here}?catalog={postgres_server.url(schema)}", create=True).close()
    open_store(f"{there}?catalog={postgres_server.url(f'{schema}_b')}", create=True).close()
    with pytest.raises(Corrupt, match=f"is the catalog of {there}, not of {here}"):
        open_store(f"{here}?catalog={postgres_server.url(f'{schema}_b')}", create=True)
    with pytest.raises(Corrupt, match="has no catalog in .* name the one it was made with"):
        open_store(f"{here}?catalog={postgres_server.url(f'{schema}_c')}", create=True)
    with pytest.raises(
        RefusedOption, match=r"has its catalog in postgresql: write .*\?catalog=postgresql://"
    ):
        open_store(here, create=True)
    open_store(tmp_path / "plain", create=True).close()
    with pytest.raises(RefusedOption, match="leave out catalog="):
        open_store(f"{tmp_path / 'plain'}?catalog={postgres_server.url(f'{schema}_d')}", create=True)


def test_a_lost_marker_is_not_a_fresh_start(tmp_path: Path, name: str, postgres_server: Postgres) -> None:
    url = f"{tmp_path / name}?catalog={postgres_server.url(f's_{name}')}"
    with open_store(url, create=True) as store:
        Scene.new(store).cut(STATE)
    (tmp_path / name / "cutline.json").unlink()
    with pytest.raises(Corrupt, match="cutline.json is missing, there are blobs"):
        open_store(url, create=True)


@pytest.mark.parametrize(
    ("marker", "kind"), [(b'{"format": 99, "store": "x"}', NewerFormat), (b'{"format"', Corrupt)]
)
def test_a_marker_in_a_bucket(
    s3: S3, name: str, postgres_server: Postgres, marker: bytes, kind: type[Exception]
) -> None:
    url = f"{s3.url(name)}&catalog={postgres_server.url(f's_{name}')}"
    open_store(url, create=True).close()
    blobs = open_blobs(locate(url).blobs_url)
    assert isinstance(blobs, ObjectBlobs)
    top = open_blobs_at_top(url)
    assert json.loads(top.read("cutline.json"))["catalog"] == "postgresql"
    obstore.put(top._store, "cutline.json", marker)
    with pytest.raises(kind, match=f"s3://{s3.bucket}/{name}"):
        open_store(url, create=True)


def open_blobs_at_top(url: str) -> ObjectBlobs:
    """Where the marker is."""
    from cutline.storage.objects import bucket_blobs

    where = locate(url)
    return bucket_blobs(where.place, where.options, "")


def test_a_cut_over_lines_that_break(s3: S3, name: str, postgres_server: Postgres) -> None:
    """Each write of a commit and its answer is lost in turn; each cut is there once, and whole."""
    with proxy(s3.port) as objects, proxy(postgres_server.port) as tables:
        catalog = postgres_server.url(f"s_{name}", port=tables.port)
        with open_store(f"{s3.url(name, port=objects.port)}&catalog={catalog}", create=True) as store:
            scene = Scene.new(store)
            lost: list[int] = []
            for line, sign in ((objects, b"PUT /"), (objects, b"manifest-"), (tables, b"COMMIT\0")):
                for how in ("request", "answer"):
                    before = line.cut_count
                    line.cut(sign, "request" if how == "request" else "answer")
                    row = scene.cut({"a": {"x": f"{sign!r} {how}"}}, full=True)
                    assert store.catalog.find(SYSTEM, "newest") == row
                    lost.append(line.cut_count - before)
            assert lost == [1] * 6
            assert store.verify(SYSTEM).faults == []
            assert [row.checkpoint for row in store.catalog.checkpoints(SYSTEM)] == [1, 2, 3, 4, 5, 6]
            with pytest.raises(FateDecided):
                store.catalog.abort(scene.lease, scene.lineage, 6, "too late", 0.0)


def test_a_system_elsewhere_is_named(
    tmp_path: Path, name: str, postgres_server: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cutline.coordinator.client import connected

    url = f"{tmp_path / name}?catalog={postgres_server.url(f's_{name}')}"
    with open_store(url, create=True) as store:
        with pytest.raises(NotRunning, match="no system 'market' is running in"):
            connected(url, SYSTEM)
        store.catalog.acquire_lease(SYSTEM, Owner("other/boot", 7, 0.0, 1, "coordinator"), 1000.0, 0.0)
    with pytest.raises(NotRunning, match="run by process 7 on other .*ask it on that machine") as caught:
        connected(url, SYSTEM)
    assert isinstance(caught.value, CutlineError) and postgres_server.password not in str(caught.value)
