"""When spot machines were to be had, by traces in files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.simulate.availability import (
    Availability,
    HistorySpan,
    Supply,
    available,
    load_availability,
    load_supply,
    supplies_of,
)

SPAN = HistorySpan(0, 100, 160)


def test_a_trace_goes_on_and_on() -> None:
    supply = Supply("a", Availability(20, (2, 5)))
    assert available([supply], SPAN) == [(100, 2), (120, 5), (140, 2), (160, 5)]


def test_several_traces_are_added_up() -> None:
    one, other = Supply("a", Availability(20, (2, 5))), Supply("b", Availability(30, (3, 4)))
    assert available([one, other], SPAN) == [(100, 5), (120, 8), (130, 9), (140, 6), (160, 8)]
    assert available([], SPAN) == []


def test_lifetimes_follow_one_another(tmp_path: Path) -> None:
    file = tmp_path / "lives.json"
    file.write_text(json.dumps({"a": {"time_in_sec": 130.4, "other": 1}, "b": {"time_in_sec": 5}}))
    assert load_availability(file) == Availability(60, (1, 1, 0, 1, 0))


def test_what_is_neither_form_is_refused_with_both_reasons(tmp_path: Path) -> None:
    file = tmp_path / "odd.json"
    file.write_text('{"a": {"lived": 5}}')
    with pytest.raises(ConfigError, match=r"missing required field `metadata`.*`time_in_sec`"):
        load_availability(file)


def test_a_pool_goes_by_its_own_else_its_zones_else_all(tmp_path: Path) -> None:
    names = ["2022-10_us-west-2a_v100_1.json", "2023-04_us-east-1b_x.json", "plain.json"]
    for name in names:
        (tmp_path / name).write_text('{"metadata": {"gap_seconds": 60}, "data": [1]}')
    west, east, plain = (load_supply(str(tmp_path / name)) for name in names)
    own = load_supply(f"gold={tmp_path / names[0]}")
    assert (west.zone, east.zone, plain.zone, own.pool) == (
        "us-west-2a",
        "us-east-1b",
        None,
        "gold",
    )
    given = [west, east, plain, own]
    assert supplies_of("gold", "us-east-1b", given) == [own]
    assert supplies_of("iron", "us-east-1b", given) == [east]
    assert supplies_of("iron", "eu-west-1a", given) == [west, east, plain]
