"""Arrays and tables of pyarrow: exact, over the memory they were over, not written when nothing changed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pa: Any = pytest.importorskip("pyarrow", reason="pyarrow is not installed")

from cutline.participant.capture import Capturer  # noqa: E402
from cutline.participant.kernel_pages import PAGE  # noqa: E402
from tests.participant.images import WAYS, Images, Way, ways  # noqa: E402


class Agent:
    """A participant."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


def values() -> list[Any]:
    texts = [str(n) if n % 7 else None for n in range(2000)]
    columns = {"n": range(2000), "t": texts}
    return [
        pa.array(range(2000)),
        pa.array([1, None, 3] * 500),
        pa.array([True, False, None] * 500),
        pa.array(texts),
        pa.array(range(2000))[10:50],
        pa.array([[1], [2, 3], None] * 500),
        pa.array([{"a": 1, "b": "x"}] * 500),
        pa.array(["a", "b", "a"] * 500).dictionary_encode(),
        pa.array([], pa.float64()),
        pa.nulls(5),
        pa.array([1, 2, 3]).cast(pa.timestamp("us")),
        pa.chunked_array([[1, 2], [3]]),
        pa.record_batch(columns),
        pa.table(columns, metadata={"k": "v"}),
        pa.table(columns).slice(5, 9),
        pa.schema([("a", pa.int64())]),
        pa.py_buffer(b"x" * 5000),
        pa.scalar(5),
    ]


@ways
def test_exact(way: Way) -> None:
    for value in values():
        restored = way(value)
        assert type(restored) is type(value) and restored.equals(value)
        if hasattr(value, "validate"):
            restored.validate(full=True)
    table = values()[13]
    assert way(table).schema.equals(table.schema, check_metadata=True)


@ways
def test_memory_stays_shared(way: Way) -> None:
    memory = np.arange(3000.0)
    table = pa.table({"a": range(3000)})
    restored = way({"memory": memory, "array": pa.array(memory), "table": table, "column": table["a"]})
    restored["memory"][5] = -1
    assert restored["array"][5].as_py() == -1 and memory[5] == 5
    places = [each.chunk(0).buffers()[1].address for each in (restored["table"]["a"], restored["column"])]
    assert places[0] == places[1]
    bytes_of_array = np.asarray(restored["column"].chunk(0))
    assert bytes_of_array[7] == 7 and not bytes_of_array.flags.writeable


@ways
def test_who_could_write_still_can(way: Way) -> None:
    mutable, sealed = pa.allocate_buffer(5000), pa.py_buffer(bytes(5000))
    np.frombuffer(mutable, np.uint8)[:] = 3
    restored = way([mutable, sealed])
    assert [each.is_mutable for each in restored] == [True, False]
    np.frombuffer(restored[0], np.uint8)[7] = 4
    assert restored[0].to_pybytes()[6:9] == bytes([3, 4, 3])


@pytest.mark.parametrize("tracking", WAYS)
def test_a_table_that_did_not_change_is_not_written(tracking: str) -> None:
    count = 200_000
    agent: Any = Agent(table=pa.table({"a": np.arange(count * 1.0), "b": np.arange(count)}), n=0)
    capturer, images = Capturer("p", tracking=tracking), Images()
    captured = capturer.capture(agent, number=1, against=None)
    assert captured.tracked == {tracking: 16 * count}
    images.put(captured, None)
    agent.n = 1
    agent.part = agent.table.slice(5, 10)
    captured = capturer.capture(agent, number=2, against=1)
    assert captured.changed_bytes <= 8 * PAGE
    images.put(captured, 1)
    agent.table = agent.table.append_column("c", [range(count)])
    captured = capturer.capture(agent, number=3, against=2)
    assert 8 * count <= captured.changed_bytes <= 8 * count + 8 * PAGE
    images.put(captured, 2)
    assert images.restore(3).table.equals(agent.table) and images.restore(2).part.equals(agent.part)
