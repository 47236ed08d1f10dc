"""Orders that people, agents and slurm-elasticd leave for slurm-elastic-ckptman."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from slurm_elastic.state.ckptstate.orders import (
    AnyOrder,
    NoticeOrder,
    Order,
    SaveOrder,
    WithdrawOrder,
    drop,
)


@pytest.mark.parametrize(
    ("order", "text"),
    [
        (SaveOrder(job=7), '{"kind":"save","job":7}'),
        (WithdrawOrder(node="n1"), '{"kind":"withdraw","node":"n1"}'),
        (NoticeOrder(node="n1", deadline=5.0, rebalance=True),
         '{"kind":"notice","node":"n1","reason":"","deadline":5.0,"rebalance":true,"departure":false}'),
    ],
)  # fmt: skip
def test_an_order_is_one_file_that_is_there_whole(
    tmp_path: Path, order: AnyOrder, text: str
) -> None:
    path = drop(tmp_path, order, 1_800_000_000.5)
    assert list(tmp_path.iterdir()) == [path], "no draft is left"
    assert path.name.startswith("1800000000500000000-")
    assert path.suffix == ".json"
    assert path.read_text() == text
    assert msgspec.json.decode(text, type=NoticeOrder | SaveOrder | WithdrawOrder) == order


def test_the_least_of_a_notice_is_its_node() -> None:
    found = msgspec.json.decode('{"kind":"notice","node":"n1"}', type=NoticeOrder)
    assert found == NoticeOrder(node="n1", reason="", deadline=None, rebalance=False)
    with pytest.raises(msgspec.ValidationError, match="unknown field"):
        msgspec.json.decode('{"kind":"save","job":7,"node":"n1"}', type=SaveOrder)
    assert issubclass(NoticeOrder, Order)


def test_several_at_one_moment_are_several_in_order(tmp_path: Path) -> None:
    paths = [drop(tmp_path, SaveOrder(job=n), 5.0) for n in range(3)]
    numbers = [int(path.stem.rpartition("-")[2]) for path in paths]
    assert numbers == list(range(numbers[0], numbers[0] + 3))
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_an_order_of_root_belongs_to_the_service(tmp_path: Path) -> None:
    os.chown(tmp_path, 64030, 64031)
    found = drop(tmp_path, SaveOrder(job=7), 5.0).stat()
    assert (found.st_uid, found.st_gid) == (64030, 64031)


def test_where_the_directory_is_missing_the_caller_is_told(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        drop(tmp_path / "left", SaveOrder(job=7), 5.0)
