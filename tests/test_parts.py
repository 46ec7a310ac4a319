"""The suite in parts: nothing is left out, and a failure in any of them is one of the whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.parts import HERE, compile_product, main, parts, status_of, total

PASSES, FAILS = "def test_it() -> None:\n    assert True\n", "def test_it() -> None:\n    assert False\n"
ENDS = "import os\n\ndef test_it() -> None:\n    os._exit(0)\n"
KILLED = "import os\n\ndef test_it() -> None:\n    os.kill(os.getpid(), 9)\n"
NAMED = (("one",), ("other",))


def _suite(folder: Path, **modules: str) -> Path:
    root = folder / "tests"
    for name, text in modules.items():
        (root / name).mkdir(parents=True)
        (root / name / f"test_{name}.py").write_text(text)
    return root


def test_nothing_is_left_out_and_nothing_is_run_twice() -> None:
    given = parts()
    assert all(given)
    every = [
        module
        for part in given
        for each in part
        for module in ([each] if each.is_file() else each.rglob("test_*.py"))
    ]
    assert sorted(every) == sorted(HERE.rglob("test_*.py"))


def test_what_nobody_named_is_in_the_part_of_the_rest(tmp_path: Path) -> None:
    root = _suite(tmp_path, one=PASSES, other=PASSES, third=PASSES)
    (root / "test_beside.py").write_text(PASSES)
    assert parts(root, NAMED, "other") == [
        [root / "one"],
        [root / "other", root / "third", root / "test_beside.py"],
    ]


@pytest.mark.parametrize(
    ("named", "rest", "told"),
    (
        ((("participant", "nowhere"),), "participant", "nowhere"),
        ((("participant",), ("ray", "participant")), "ray", "participant, participant"),
        ((("participant",),), "ray", "ray"),
    ),
    ids=("gone", "twice", "no rest"),
)
def test_parts_that_do_not_fit_the_folders_are_told(
    named: tuple[tuple[str, ...], ...], rest: str, told: str
) -> None:
    with pytest.raises(ValueError, match=f"no tests in {told} of tests, or twice"):
        parts(HERE, named, rest)


@pytest.mark.parametrize(
    ("one", "other", "status", "counts"),
    (
        (FAILS, PASSES, 1, "1 failed, 1 passed"),
        (PASSES, KILLED, 137, "1 passed"),
        (ENDS, PASSES, 70, "1 passed"),
        ("", PASSES, 0, "1 passed"),
    ),
    ids=("fails", "is killed", "ends by itself", "has none"),
)
def test_a_failure_of_any_part_is_one_of_the_whole(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    one: str,
    other: str,
    status: int,
    counts: str,
) -> None:
    # Half of the start of a pytest is plugins that these tests do not need.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    root = _suite(tmp_path, one=one, other=other)
    assert main(["-p", "no:cacheprovider"], root, NAMED, "other") == status
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("all 2 parts: ")
    assert sorted(last[len("all 2 parts: ") :].partition(" in ")[0].split(", ")) == counts.split(", ")


def test_only_a_closing_line_of_pytest_is_an_end() -> None:
    assert status_of(0, "....\n4 passed in 0.2s") == 0
    assert status_of(0, "....\n1 passed, 2 skipped in 75.20s (0:01:15)\n") == 0
    assert status_of(0, "....  [ 50%]\n") == 70
    assert status_of(0, "") == 70
    assert status_of(5, "no tests ran in 0.01s") == 5
    assert status_of(-9, "...") == -9


def test_counts_are_added() -> None:
    first = "....\n12 failed, 2545 passed, 3 skipped in 520.01s (0:08:40)\n"
    assert total((first, "x\n1647 passed, 25 skipped in 800.00s")) == "12 failed, 4192 passed, 28 skipped"


def test_the_product_is_compiled_and_nothing_else(tmp_path: Path) -> None:
    for name in ("barrier", "cutline", "tests"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "module.py").write_text("x = 1\n")
    compile_product(tmp_path)
    made = sorted(path.parent.parent.name for path in tmp_path.rglob("*.pyc"))
    assert made == ["barrier", "cutline"]
