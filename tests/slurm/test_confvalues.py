"""Values of slurm.conf as slurmctld reads them; each row was compared with `scontrol show`."""

from __future__ import annotations

import pytest

from slurm_elastic.slurm.client import confvalues


@pytest.mark.parametrize("text", ["yes", "YES", "up", "UP", "true", "True", "1"])
def test_slurms_four_words_for_yes(text: str) -> None:
    assert confvalues.is_true(text)


@pytest.mark.parametrize("text", ["no", "down", "false", "0", "y", "on", "2", ""])
def test_other_words_are_no_yes(text: str) -> None:
    assert not confvalues.is_true(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("16", 16),
        ("0x10", 16),
        ("0X1f", 31),
        ("010", 8),
        ("0", 0),
        ("2K", 2048),
        ("1m", 1048576),
        ("INFINITE", None),
        ("09", None),
        ("1.5", None),
        ("", None),
    ],
)
def test_numbers_have_a_base_and_a_unit(text: str, value: int | None) -> None:
    assert confvalues.number(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("10", 10),
        ("90:30", 91),
        ("1:30:00", 90),
        ("1-0", 1440),
        ("1-2", 1560),
        ("1-2:30", 1590),
        ("2-00:30:01", 2911),
        ("0", 0),
        ("INFINITE", None),
        ("-1", None),
        ("UNLIMITED", None),
    ],
)
def test_time_limits_are_whole_minutes(text: str, value: int | None) -> None:
    assert confvalues.minutes(text) == value


@pytest.mark.parametrize(
    ("text", "everywhere", "partition"),
    [
        ("INFINITE", True, True),
        ("-1", True, True),
        ("NONE", True, False),
        ("UNLIMITED", False, False),
        ("600", False, False),
    ],
)
def test_which_suspend_times_leave_nodes_alone(
    text: str, everywhere: bool, partition: bool
) -> None:
    assert confvalues.never_suspends(text) is everywhere
    assert confvalues.never_suspends(text, of_partition=True) is partition


def test_items_need_no_prefix() -> None:
    assert confvalues.items("JobSubmitPlugins", "job_submit/lua, all_partitions") == (
        "lua",
        "all_partitions",
    )
    assert confvalues.items("GresTypes", "gres/gpu,(null),none,") == ("gpu",)
