"""Objects of a bucket: the contract, in a real S3 server and in obstore's memory; connections that break."""

from __future__ import annotations

import os
import secrets
import traceback
from collections.abc import Iterator
from pathlib import Path

import obstore
import pytest
from obstore.store import MemoryStore

from cutline.errors import (
    BlobExists,
    BlobNotFound,
    NotAStore,
    RefusedOption,
    StoreForbidden,
    StoreNotWritable,
    StoreUnreachable,
)
from cutline.storage import BlobStore
from cutline.storage.blobs import encode_name
from cutline.storage.location import locate
from cutline.storage.objects import PARALLEL, PART, ObjectBlobs, bucket_blobs
from tests.storage.conformance import BlobStoreTests
from tests.storage.proxy import Proxy, proxy
from tests.storage.servers import S3


def opened(url: str) -> ObjectBlobs:
    """The blobs at a bucket's URL."""
    where = locate(url)
    return bucket_blobs(where.place, where.options, "")


@pytest.fixture
def s3(s3_server: S3, monkeypatch: pytest.MonkeyPatch) -> S3:
    for name, value in s3_server.environment().items():
        monkeypatch.setenv(name, value)
    return s3_server


@pytest.fixture
def prefix() -> str:
    return secrets.token_hex(6)


class TestObjectsInMemory(BlobStoreTests):
    @pytest.fixture
    def blobs(self) -> BlobStore:
        return ObjectBlobs(MemoryStore(), "memory")

    def back_door(self, blobs: BlobStore, key: str) -> bytes:
        assert isinstance(blobs, ObjectBlobs)
        return bytes(obstore.get(blobs._store, key).bytes())


class TestObjectsInS3(BlobStoreTests):
    @pytest.fixture
    def blobs(self, s3: S3, prefix: str) -> BlobStore:
        return opened(s3.url(prefix))

    def back_door(self, blobs: BlobStore, key: str) -> bytes:
        assert isinstance(blobs, ObjectBlobs)
        return bytes(obstore.get(blobs._store, key).bytes())


@pytest.mark.parametrize(
    "name", ["a b", "caf\N{LATIN SMALL LETTER E WITH ACUTE}", "%2F", "..", "a/b", "\0", "+"]
)
def test_names_come_back_as_they_went(s3: S3, prefix: str, name: str) -> None:
    blobs = opened(s3.url(prefix))
    key = f"{encode_name(name)}/l/0/1/{encode_name(name)}.pack"
    blobs.create(key, [b"x"])
    assert list(blobs.list()) == list(blobs.list(f"{encode_name(name)}/")) == [key]
    assert blobs.read(key) == b"x"


# Connections that break


@pytest.fixture
def line(s3: S3) -> Iterator[Proxy]:
    with proxy(s3.port) as made:
        yield made


@pytest.fixture
def blobs(line: Proxy, s3: S3, prefix: str) -> ObjectBlobs:
    """Through the line."""
    return opened(s3.url(prefix, port=line.port))


def test_a_lost_answer_is_not_a_conflict(blobs: ObjectBlobs, line: Proxy) -> None:
    line.cut(b"PUT /", "answer")
    assert blobs.create("s/a", [b"mine"]) == 4
    assert line.cut_count == 1 and blobs.read("s/a") == b"mine"


def test_a_conflict_stays_one_when_its_answer_is_lost(blobs: ObjectBlobs, line: Proxy) -> None:
    blobs.create("s/a", [b"first"])
    line.cut(b"PUT /", "answer")
    with pytest.raises(BlobExists, match="s/a"):
        blobs.create("s/a", [b"other"])
    assert line.cut_count == 1 and blobs.read("s/a") == b"first"


@pytest.mark.parametrize(
    ("sign", "how"),
    [
        (b"POST /", "request"),
        (b"POST /", "answer"),
        (b"partNumber=2", "request"),
        (b"partNumber=2", "answer"),
        (b"<CompleteMultipartUpload", "answer"),
        (b"HEAD /", "answer"),
    ],
)
def test_a_large_blob_over_a_line_that_breaks(blobs: ObjectBlobs, line: Proxy, sign: bytes, how: str) -> None:
    content = secrets.token_bytes(2 * PART + 7)
    line.cut(sign, "request" if how == "request" else "answer")
    assert blobs.create("s/a", [content]) == len(content)
    assert line.cut_count == 1 and blobs.read("s/a") == content


def test_a_put_cut_in_the_middle_is_sent_again(blobs: ObjectBlobs, line: Proxy) -> None:
    content = secrets.token_bytes(3_000_000)
    # What is behind the first chunk: the server has a part of the body by then.
    line.cut(content[2_000_000:2_000_016], "request")
    assert blobs.create("s/a", [content]) == len(content)
    assert line.cut_count <= 1 and blobs.read("s/a") == content


def test_a_line_that_stays_cut(blobs: ObjectBlobs, line: Proxy) -> None:
    blobs.create("s/old", [b"old"])
    line.cut(b"PUT /", "request", times=100)
    with pytest.raises(StoreUnreachable, match="s/a failed.*Committed checkpoints are whole") as caught:
        blobs.create("s/a", [b"x"])
    assert caught.value.facts["unchanged"] is False
    line.heal()
    assert list(blobs.list()) == ["s/old"]
    assert blobs.create("s/a", [b"x"]) == 1


def test_a_read_is_tried_again(blobs: ObjectBlobs, line: Proxy) -> None:
    content = secrets.token_bytes(PART + 5)
    blobs.create("s/a", [content])
    line.cut(b"GET /", "answer")
    assert blobs.read("s/a") == content and line.cut_count == 1


# What cannot be used


def test_a_missing_bucket(s3: S3, prefix: str) -> None:
    blobs = opened(s3.url(prefix, bucket="nobody-has-this"))
    for verb in (lambda: blobs.create("s/a", [b""]), lambda: list(blobs.list())):
        with pytest.raises(NotAStore, match="no bucket s3://nobody-has-this: make it"):
            verb()


def test_credentials_that_may_only_read(s3: S3, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opened(s3.url(prefix)).create("s/a", [b"x"])
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3.reader)
    blobs = opened(s3.url(prefix))
    assert blobs.read("s/a") == b"x" and list(blobs.list()) == ["s/a"]
    for verb in (
        lambda: blobs.create("s/b", [b"x"]),
        lambda: blobs.create("s/b", [b"x" * (PART + 1)]),
        lambda: blobs.delete("s/a"),
    ):
        with pytest.raises(StoreNotWritable, match="may not write there. What is stored is whole"):
            verb()
    assert list(blobs.list()) == ["s/a"]


@pytest.mark.parametrize(("key", "secret"), [("nobody", ""), ("tests", "not-the-secret-key")])
def test_wrong_credentials(
    s3: S3, prefix: str, monkeypatch: pytest.MonkeyPatch, key: str, secret: str
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret or s3.secret)
    with pytest.raises(StoreForbidden, match="AWS_ACCESS_KEY_ID") as caught:
        opened(s3.url(prefix)).create("s/a", [b"x"])
    told = "".join(traceback.format_exception(caught.value))
    assert s3.secret not in told and "not-the-secret-key" not in told


def test_a_server_that_is_not_there(prefix: str, s3: S3) -> None:
    with proxy(s3.port) as gone:
        port = gone.port
    with pytest.raises(StoreUnreachable, match="cannot be reached"):
        opened(s3.url(prefix, port=port)).read("s/a")


def test_what_is_not_there_has_a_name(s3: S3, prefix: str) -> None:
    with pytest.raises(BlobNotFound, match=f"s3://{s3.bucket}/{prefix}/s/a"):
        opened(s3.url(prefix)).size("s/a")


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("s3://b/x?account=a", "account"),
        ("gs://b/x?region=r", "region"),
    ],
)
def test_options_of_another_service(url: str, what: str) -> None:
    with pytest.raises(RefusedOption, match=what):
        opened(url)


@pytest.mark.parametrize("url", ["gs://bucket/x", "az://container/x?account=someone"])
def test_other_services_can_be_named(url: str) -> None:
    """Nothing of them runs here: only that the client takes what it is given."""
    assert opened(url).place == locate(url).place


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no /proc to read memory from")
def test_an_upload_takes_bounded_memory(s3: S3, prefix: str) -> None:
    """Parts are taken from their source as they are sent: those under way are in memory, and no more."""
    in_memory: list[int] = []

    def parts() -> Iterator[bytes]:
        piece = secrets.token_bytes(PART // 4)
        for _ in range(4 * 12):
            in_memory.append(
                int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            )
            yield piece

    store = opened(s3.url(prefix))
    assert store.create("s/a", parts()) == store.size("s/a") == 12 * PART
    assert max(in_memory) - in_memory[0] < (PARALLEL + 4) * PART
