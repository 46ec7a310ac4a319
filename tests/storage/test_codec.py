"""One encoding per document; compression only where it pays."""

from __future__ import annotations

import math
import os
import threading
import time
from typing import Any

import msgpack
import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from cutline.errors import Misuse
from cutline.storage.codec import LZ4, RAW, canonical, decode, digest_of, expand, squeeze

documents = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc\0\u00fc"), inner, max_size=4),
    max_leaves=20,
)


@given(documents)
def test_a_document_comes_back_and_has_one_encoding(value: Any) -> None:
    packed = canonical(value)
    assert decode(packed) == value
    assert canonical(decode(packed)) == packed
    assert msgpack.unpackb(packed) == value


@given(st.dictionaries(st.text("abcdef", max_size=3), st.integers(0, 9)))
def test_order_of_keys_does_not_matter(value: dict[str, int]) -> None:
    assert canonical(dict(reversed(value.items()))) == canonical(value)


@pytest.mark.parametrize(
    "value",
    [{1: 2}, {"a": {(): 1}}, object(), {1, 2}, 1 << 64, "\udc80", [float], math],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_document_is_refused(value: Any) -> None:
    with pytest.raises(Misuse):
        canonical(value)


@given(st.binary(max_size=200))
def test_decoding_anything_is_a_value_or_a_value_error(packed: bytes) -> None:
    try:
        decode(packed)
    except ValueError as error:
        assert "no document" in str(error)


def test_deep_nesting_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="no document"):
        decode(b"\x91" * 100_000)


def test_digest_is_blake3() -> None:
    assert digest_of(b"abc") == blake3(b"abc").digest()
    assert digest_of(bytearray(b"abc")) == digest_of(memoryview(b"abc")) == digest_of(b"abc")


@given(st.binary(max_size=3000), st.integers(1, 60))
def test_squeeze_and_expand(content: bytes, times: int) -> None:
    content *= times
    codec, stored = squeeze(content)
    assert len(stored) <= len(content)
    assert expand(codec, bytes(stored), len(content)) == content


def test_compression_has_to_pay() -> None:
    noise = os.urandom(1 << 18)
    assert squeeze(noise) == (RAW, noise)
    codec, stored = squeeze(b"a long text, " * 20_000)
    assert codec == LZ4
    assert len(stored) < 13 * 20_000 / 10


@pytest.mark.parametrize(
    ("codec", "stored", "size"),
    [
        (RAW, b"abc", 4),
        (LZ4, b"\xff" * 20, 30),
        (LZ4, b"", 3),
        (7, b"", 0),
        (LZ4, b"\0", -1),
        (LZ4, b"x", 1 << 40),
    ],
)
def test_expanding_nonsense(codec: int, stored: bytes, size: int) -> None:
    with pytest.raises(ValueError):
        expand(codec, stored, size)


def test_hashing_lets_other_threads_run() -> None:
    content = os.urandom(64 << 20)
    done = threading.Event()
    longest = 0.0

    def tick() -> None:
        nonlocal longest
        last = time.perf_counter()
        while not done.is_set():
            now = time.perf_counter()
            longest = max(longest, now - last)
            last = now

    ticker = threading.Thread(target=tick)
    ticker.start()
    began = time.perf_counter()
    for _ in range(4):
        digest_of(content)
    took = time.perf_counter() - began
    done.set()
    ticker.join()
    assert longest < took / 2
