"""The fixture `cutline_point`, in runs of pytest as users have them."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest_plugins = ("pytester",)

PROGRAM = """
import cutline

class Trader:
    def __init__(self, cash): self.cash = cash
    def earn(self, amount): self.cash += amount; return self.cash

if __name__ == "__main__":
    with cutline.start("cuts", name="market", interval=None, quiet=True) as system:
        t0 = system.spawn("t0", Trader, 5)
        system.savepoint("before-release")
        cutline.get(t0.earn.remote(1))
"""
TESTS = """
import cutline, market, pytest

def test_it(cutline_point):
    cut = cutline_point("before-release", main=market)
    assert cut["t0"].cash == 5 and type(cut["t0"]) is market.Trader
    cut["t0"].earn(10)
    assert cutline_point("before-release", main=market)["t0"].cash == 5
    newest = cutline_point(main=market, only=["t0"])
    assert newest["t0"].cash == 6
    newest["t0"].earn(1)
    with pytest.raises(cutline.errors.Misuse, match="loaded with main="):
        newest.fork()
"""
PLAIN = """
import sys

def test_plain():
    loaded = {name for name in sys.modules if name.startswith("cutline")}
    assert loaded <= {"cutline", "cutline.coordinator", "cutline.coordinator.pytest_plugin"}, loaded
    assert "cutline.coordinator.pytest_plugin" in loaded and "numpy" not in sys.modules
"""


@pytest.fixture
def market(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makepyfile(market=PROGRAM, test_market=TESTS)
    return pytester


def test_a_point_in_a_test(market: pytest.Pytester) -> None:
    subprocess.run([sys.executable, "market.py"], cwd=market.path, check=True, timeout=60)
    market.makeini("[pytest]\ncutline_store = cuts\ncutline_name = market\n")
    market.mkdir("below")
    market.runpytest_subprocess("-q", "-rA").assert_outcomes(passed=1)
    # The command line counts more, and says what is wrong with it.
    done = market.runpytest_subprocess("-q", "--cutline-store", "elsewhere")
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(["*NotAStore: no store at *elsewhere*"])


def test_no_store_is_known(market: pytest.Pytester) -> None:
    done = market.runpytest_subprocess("-q", "-k", "test_it")
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(["*Misuse: cutline_point does not know which store to read*--cutline-store*"])


def test_who_does_not_use_it_pays_nothing(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(PLAIN)
    pytester.runpytest_subprocess("-q").assert_outcomes(passed=1)
    helped = pytester.runpytest_subprocess("--help")
    helped.stdout.fnmatch_lines(["*--cutline-store=STORE*", "*cutline_store (string)*"])
