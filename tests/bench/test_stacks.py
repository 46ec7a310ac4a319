"""Profiles of rows: sampled stacks as a table, and the verb that takes them."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from bench import profiled
from bench.stacks import processes, table

PARENT = 'process 7:"/somewhere/bin/python -m bench --only latency_vs_ray --quick"'
CHILD = 'process 9:"/somewhere/bin/python -W ignore -m cutline.participant.zygote serve 7 10 numpy"'
LINES = [
    f"{PARENT};<module> (/srv/app/cutline/bench/row.py:1);rate (/srv/app/cutline/bench/row.py:20) 30",
    f"{PARENT};_find_and_load (<frozen importlib._bootstrap>:1176);<module> (/x/y.py:1) 10",
    f"{PARENT};{CHILD};run (/v/lib/python3.11/threading.py:9);again (/srv/app/participant/desk.py:5);"
    "again (/srv/app/participant/desk.py:5);packb (/v/lib/python3.11/site-packages/msgpack/a.py:30) 60",
    f"{PARENT};{CHILD} 2",
]


def test_samples_are_told_apart_by_process_and_function() -> None:
    child, parent = processes(LINES)
    assert (child.role, child.samples, child.importing) == ("cutline.participant.zygote serve", 62, 0)
    assert child.own == {"packb (msgpack/a.py:30)": 60, "(no Python frame)": 2}
    # A function on the stack twice had the sample once.
    assert child.all["again (participant/desk.py:5)"] == 60
    assert child.all["run (threading.py:9)"] == 60
    assert (parent.role, parent.samples, parent.importing) == ("bench", 40, 10)
    assert parent.own == {"rate (bench/row.py:20)": 30} and parent.all["<module> (bench/row.py:1)"] == 30


def test_the_table_has_shares_and_no_path_of_the_machine() -> None:
    text = table(processes(LINES))
    assert "## bench: 40 samples, 25 % of them importing" in text
    assert " 96.8  96.8  packb (msgpack/a.py:30)\n" in text
    assert " 75.0  75.0  rate (bench/row.py:20)\n" in text
    assert "/srv" not in text and "/somewhere" not in text and "/v/lib" not in text
    assert "again" not in table(processes(LINES), functions=1)
    assert "(fewer samples: bench, 40)" in table(processes(LINES), least=0.5)


def test_a_command_line_that_the_profiler_has_cut() -> None:
    (process,) = processes(['process 3:"python -c \'from bench imp";f (a.py:1) 1'])
    assert process.role == "python"


@pytest.mark.parametrize("line", ["", "f (a.py:1) 3", PARENT + ";f (a.py:1)", "nothing at all"])
def test_a_line_that_is_no_stack_of_a_process(line: str) -> None:
    with pytest.raises(ValueError, match="not a sampled stack of a process: .*--subprocesses"):
        processes([line])


def test_a_row_is_profiled(tmp_path: Path) -> None:
    if shutil.which("py-spy") is None and not (Path(sys.executable).parent / "py-spy").exists():
        pytest.skip("py-spy is not installed")
    try:
        assert profiled.main(["log_vs_list", "--quick", "--into", str(tmp_path)]) == 0
    except RuntimeError as error:
        if "ermission" not in str(error):
            raise
        pytest.skip("this machine lets nobody look at another process")
    text = (tmp_path / "log_vs_list.txt").read_text()
    assert text.startswith("# log_vs_list: where its processor time goes\n")
    assert "## bench: " in text and "(bench/row.py" in text


def test_the_process_that_was_looked_at_too_early_has_a_name() -> None:
    lines = ['process 7:"";main (bench/row.py) 3', 'process 7:"";process 8:"";main (bench/row.py) 2']
    assert [each.role for each in processes(lines, started="bench")] == ["bench", "unknown"]


def test_a_row_that_does_not_exist(capsys: pytest.CaptureFixture[str]) -> None:
    assert profiled.main(["latency_vs_rey"]) == 2
    assert "no row latency_vs_rey; there are: " in capsys.readouterr().err


@pytest.fixture
def profiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What is found instead of py-spy: a script, to be written."""
    spy = tmp_path / "py-spy"
    spy.touch(0o755)
    monkeypatch.setattr(shutil, "which", lambda name, path=None: str(spy))
    return spy


def test_a_run_that_fails_says_what_was_said(profiler: Path) -> None:
    profiler.write_text("#!/bin/sh\necho no such luck\nexit 3\n")
    with pytest.raises(RuntimeError, match="log_vs_list: no profile was taken; .*\nno such luck"):
        profiled.profile("log_vs_list", quick=True)


def test_a_run_that_hangs_is_ended(profiler: Path) -> None:
    profiler.write_text("#!/bin/sh\nsleep 600\n")
    with pytest.raises(RuntimeError, match="log_vs_list: its run under py-spy has not ended in 0.2 s"):
        profiled.profile("log_vs_list", quick=True, patience=0.2)


def test_without_the_profiler_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name, path=None: None)
    with pytest.raises(FileNotFoundError, match="pip install py-spy"):
        profiled.profile("log_vs_list", quick=True)
