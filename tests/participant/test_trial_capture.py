"""The capture on trial at a birth tells the kernel of nothing: account would split huge pages for good."""

from __future__ import annotations

import numpy as np
import pytest

from cutline.participant.capture import Capturer, check_capturable
from cutline.participant.kernel_pages import KernelRefused
from cutline.participant.memory import span
from cutline.participant.page_tracker import process_pages, rounded


class Holder:
    """Has an array that is tracked by the kernel where that can be."""

    def __init__(self) -> None:
        self.array = np.arange(1 << 19)


def test_a_trial_leaves_the_memory_alone() -> None:
    pages = process_pages()
    if isinstance(pages, KernelRefused):
        pytest.skip(f"the kernel keeps no account here: {pages}")
    holder = Holder()
    place = rounded(*span(holder.array))
    check_capturable(holder, "p")
    assert pages.serial(place) is None
    # A capture that others follow does tell it.
    capturer = Capturer("p")
    capturer.capture(holder, number=1, against=None)
    assert pages.serial(place) is not None


def test_a_capture_that_none_follows_has_everything() -> None:
    holder = Holder()
    capturer = Capturer("p", tracking="whole")
    for number in (1, 2):
        captured = capturer.capture(holder, number=number, against=number - 1 or None)
        assert captured.tracked == {"whole": holder.array.nbytes}
        runs = [len(run) for region in captured.regions for _, run in region.extents]
        assert sum(runs) == holder.array.nbytes
