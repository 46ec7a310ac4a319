"""A death at the last step: all is stored, and the catalog was not told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cutline.storage import open_store

__all__ = ("dying_before_adoption",)


class _Died(BaseException):
    """A process ends here."""


@contextmanager
def dying_before_adoption(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """What is done inside comes to where the catalog of this store takes a lineage in, and no further."""

    def dies(*_: Any) -> None:
        raise _Died

    with open_store(folder, create=False) as store:
        kind = type(store.catalog)
    with patch.context() as patched, pytest.raises(_Died):
        patched.setattr(kind, "adopt", dies)
        yield
