"""The suite in two halves: nothing is left out, and a failure in either is one of the whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.halves import HERE, halves, main, total

PASSES, FAILS = "def test_it() -> None:\n    assert True\n", "def test_it() -> None:\n    assert False\n"


def _suite(folder: Path, **modules: str) -> Path:
    root = folder / "tests"
    for name, text in modules.items():
        (root / name).mkdir(parents=True)
        (root / name / f"test_{name}.py").write_text(text)
    return root


def test_nothing_is_left_out_and_nothing_is_run_twice() -> None:
    one, other = halves()
    found = set(HERE.rglob("test_*.py"))
    for half in (one, other):
        assert half
    every = [
        module
        for each in (*one, *other)
        for module in ([each] if each.is_file() else each.rglob("test_*.py"))
    ]
    assert sorted(every) == sorted(found)


def test_a_folder_that_is_gone_is_told() -> None:
    with pytest.raises(ValueError, match="no tests in nowhere"):
        halves(HERE, ("participant", "nowhere"))


@pytest.mark.parametrize(
    ("one", "other", "status", "counts"),
    (
        (FAILS, PASSES, 1, "1 failed, 1 passed"),
        (PASSES, FAILS, 1, "1 passed, 1 failed"),
        ("", PASSES, 0, "1 passed"),
    ),
)
def test_a_failure_in_either_is_one_of_the_whole(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], one: str, other: str, status: int, counts: str
) -> None:
    root = _suite(tmp_path, one=one, other=other)
    assert main(["-p", "no:cacheprovider"], root, ("one",)) == status
    printed = capfd.readouterr().out
    assert f"both halves: {counts} in " in printed
    assert printed.count("test_it") >= (FAILS in (one, other))


def test_counts_are_added() -> None:
    first = "....\n12 failed, 2545 passed, 3 skipped in 520.01s (0:08:40)\n"
    assert total((first, "x\n1647 passed, 25 skipped in 800.00s")) == "12 failed, 4192 passed, 28 skipped"
