"""``conf check`` says where the file's order of clouds disagrees with its prices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from slurm_elastic.config import Cluster, Config, PoolSettings
from slurm_elastic.config.clouds import InstanceType
from slurm_elastic.model.cluster import Location, Market
from slurm_elastic.policies.launch.ranking import DEFAULT_KEYS
from slurm_elastic.providers.fake.settings import FakeCloud
from slurm_elastic.slurm.conf.checks.cloud_prices import notices

NOTHING = "; you need to do nothing: jobs use the cheaper cloud first"


def notes(
    prices: dict[str, float],
    ranking: Sequence[str] = DEFAULT_KEYS,
    locations: dict[str, Location] | None = None,
    pools: dict[str, dict[str, Any]] | None = None,
) -> list[str]:
    clouds = tuple(
        FakeCloud(
            name=name, location=(locations or {}).get(name, Location.PUBLIC),
            types={"s": InstanceType(cpus=4, memory=8192, price=price),
                   "xl": InstanceType(cpus=64, memory=819200, price=9.0 * price)},
        )
        for name, price in prices.items()
    )  # fmt: skip
    rows = tuple(
        PoolSettings(**{
            "name": f"{name}-pool", "cloud": name, "nodes": f"{name}[1-2]", "cpus": 4,
            "memory": 8192, **(pools or {}).get(name, {}),
        })
        for name in prices
    )  # fmt: skip
    cluster = Cluster(name="test")
    return list(notices(Config(cluster=cluster, clouds=clouds, pools=rows, ranking=tuple(ranking))))


def test_price_decides_so_nothing_has_to_be_done() -> None:
    (note,) = notes({"east": 0.4, "west": 0.1})
    assert note.startswith(
        "clouds: east stands before west, but a node of 4 CPUs costs $0.40/h in pool east-pool and "
        "$0.10/h in pool west-pool" + NOTHING
    )
    assert notes({"west": 0.1, "east": 0.4}) == []
    assert notes({"west": 0.1, "east": 0.1}) == []


@pytest.mark.parametrize("ranking", [("location",), ("location", "market", "waste")])
def test_without_a_price_in_the_ranking_the_order_decides(ranking: tuple[str, ...]) -> None:
    (note,) = notes({"east": 0.4, "west": 0.1}, ranking)
    assert note.endswith(
        "; the order of the file decides, because `ranking` has no price: add price to ranking, or "
        "move the cheaper cloud up"
    )
    (note,) = notes({"east": 0.4, "west": 0.1}, ("risk",))
    assert NOTHING in note


def test_each_cloud_has_one_sentence_about_the_cheapest() -> None:
    found = notes({"a": 0.4, "b": 0.3, "c": 0.1, "d": 0.2})
    assert [note.split(", but")[0] for note in found] == [
        "clouds: a stands before c",
        "clouds: b stands before c",
    ]


@pytest.mark.parametrize(
    "pool",
    [
        {"cpus": 2},
        {"memory": 4096},
        {"markets": (Market.SPOT,)},
        {"instance_types": ("xl",)},
    ],
)
def test_only_the_same_nodes_are_compared(pool: dict[str, Any]) -> None:
    assert notes({"east": 0.4, "west": 0.1}, pools={"west": pool}) == []
    assert len(notes({"east": 0.4, "west": 0.1}, pools={"west": {"memory": 7900}})) == 1


def test_own_clouds_and_clouds_without_a_price_say_nothing() -> None:
    own = {"east": Location.ON_PREMISES}
    assert notes({"east": 0.4, "west": 0.1}, locations=own) == []
    assert notes({"east": 0.4, "west": 0.0}) == []
