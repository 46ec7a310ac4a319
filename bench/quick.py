"""What `python -m bench --quick` measures, and how small: all of it in under ten minutes on two cores.

A row that is not here takes too long, or says nothing when it is small (the growth from 1,000 to 10,000
participants, a percentile of few triggers, a first full image over few checkpoints). Five rounds are the
fewest that a verdict can come from (`bench.verdict.FEW`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ("QUICK",)

QUICK: Mapping[str, Mapping[str, Any]] = {
    "catalog_flat": {"rounds": 5, "many": 10_000},
    "channel_vs_ray": {"rounds": 5, "messages": 100_000, "plain": 2_000},
    "channel_vs_transport": {"rounds": 8, "messages": 100_000},
    "commit_vs_publish": {"rounds": 9},
    "effect_latency": {"rounds": 8, "times": 5},
    "latency_vs_ray": {"rounds": 8, "questions": 300},
    "log_vs_list": {"rounds": 8, "values": 50_000},
    "map_get": {"entries": 200_000, "touched": 50_000, "rounds": 8},
    "map_restore": {"entries": 200_000, "rounds": 5},
    "messages_appended": {"rounds": 9},
    "overhead": {"rounds": 5, "spell": 1.0, "quick": True},
    "peers_bytewax": {"spell": 1.5},
    "peers_capture": {"scale": 0.1},
    "peers_channel": {"messages": 20_000, "slow": 2_000, "ray": False},
    "peers_recovery": {"sizes": (("recovery_all_1mb", 1 << 20),), "bare": 0},
    "peers_store": {"steps": 200, "rounds": 5},
    "peers_store_postgres": {"steps": 200, "rounds": 5},
    "puts_per_commit": {"rounds": 3},
    "restore_vs_read": {"rounds": 5, "mebibytes": 64, "checkpoints": 20},
    "same_vs_same": {"rounds": 20},
    "step_vs_append": {"rounds": 8, "steps": 100},
    "throughput_kept": {"rounds": 8, "spell": 2.0, "mebibytes": 256},
    "throughput_kept_10": {"rounds": 8, "spell": 2.0, "mebibytes": 256},
    "write_bandwidth": {"rounds": 5, "mebibytes": 128},
    "written_per_changed": {"rounds": 5, "mebibytes": 64},
}
