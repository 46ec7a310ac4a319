"""What the driver is told of its log: what all cuts have behind them that a recovery may go to."""

from __future__ import annotations

from typing import Any

import pytest

from cutline.coordinator.input_retention import behind_all, input_options
from cutline.errors import RefusedOption
from cutline.storage import CheckpointRow


def cut(checkpoint: int, label: str | None = None, **summary: Any) -> CheckpointRow:
    """A committed one."""
    return CheckpointRow(
        system="s",
        lineage="line",
        checkpoint=checkpoint,
        label=label,
        kind="delta",
        fate="committed",
        epoch=0,
        begun_at=0.0,
        decided_at=0.0,
        parent=None,
        summary=summary,
    )


@pytest.mark.parametrize(
    ("cuts", "behind"),
    [
        ([], 0),
        ([cut(1, input=4)], 4),
        ([cut(1, input=4), cut(2, input=9)], 4),
        # A savepoint counts as long as it is among the newest, and the oldest plain one always.
        ([cut(1, "old", input=1), cut(2, input=4), cut(3, input=9), cut(4, input=9)], 4),
        ([cut(1, "old", input=1), cut(2, "new", input=4), cut(3, "newest", input=9)], 4),
        ([cut(1, input=1), cut(2, "new", input=4), cut(3, "newest", input=9)], 1),
        # Of an older version, and of another lineage: nobody knows.
        ([cut(1), cut(2, input=4)], 0),
        ([cut(1, input=7, edited={}), cut(2, input=4)], 0),
        ([cut(1, input=7, imported={}), cut(2, input=4)], 0),
    ],
)
def test_what_is_behind_all(cuts: list[CheckpointRow], behind: int) -> None:
    assert behind_all(cuts, keep=2) == behind


@pytest.mark.parametrize(("seconds", "inputs"), [(0.0, 1), (-1.0, 1), (float("nan"), 1), (1.0, 0)])
def test_options_that_cannot_be_meant(seconds: float, inputs: int) -> None:
    with pytest.raises(RefusedOption, match="remember_keys"):
        input_options(seconds, inputs)
    assert input_options(1.0, 1) == {"remember_keys": 1.0, "waiting_inputs": 1}
