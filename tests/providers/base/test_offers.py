"""A cloud's offers to a pool: types, zones and markets that both have."""

from __future__ import annotations

from typing import Any

import pytest

from slurm_elastic.config.clouds import CloudSettings, InstanceType, SpotType
from slurm_elastic.model.cluster import Location, Market, Pool
from slurm_elastic.model.machine_options import MachineOptions
from slurm_elastic.providers.aws.settings import AwsCloud
from slurm_elastic.providers.base.offers import (
    PublishedPrices,
    offers_with,
    plain_offers,
    typed_offer,
)

CLOUD = AwsCloud(
    name="aws", location=Location.PUBLIC, region="r", image="ami-1", subnets={"a": "s-1", "b": "s-2"},
    types={
        "small": InstanceType(cpus=2, memory=4096, price=0.1),
        "large": InstanceType(cpus=8, memory=16384, price=0.5, gres="gpu:1"),
    },
)  # fmt: skip
THERE = frozenset({"small", "large"})


def pool(**changes: Any) -> Pool:
    had: dict[str, Any] = {
        "name": "p", "cloud": "aws", "nodes": ("n1", "n2"), "cpus": 2, "real_memory": 4000,
        "markets": (Market.SPOT, Market.ON_DEMAND), "instance_types": (), "zones": (),
    }  # fmt: skip
    return Pool(**(had | changes))


@pytest.mark.parametrize(
    ("changes", "there", "keys"),
    [
        ({"markets": (Market.SPOT,)}, THERE,
         ["small/a/spot", "small/b/spot", "large/a/spot", "large/b/spot"]),
        ({"instance_types": ("large",), "zones": ("b",)}, THERE,
         ["large/b/spot", "large/b/on-demand"]),
        ({"instance_types": ("large", "small"), "zones": ("a",), "markets": (Market.ON_DEMAND,)},
         THERE, ["large/a/on-demand", "small/a/on-demand"]),
        ({"zones": ("a",), "markets": (Market.SPOT,)}, frozenset({"large"}), ["large/a/spot"]),
        ({"instance_types": ("huge",)}, frozenset({"huge"}), []),
        ({"zones": ("c",)}, THERE, []),
    ],
)  # fmt: skip
def test_the_offers_are_what_pool_and_cloud_both_have(
    changes: dict[str, Any], there: frozenset[str], keys: list[str]
) -> None:
    asked: list[str] = []

    def room(name: str) -> tuple[int, str] | None:
        asked.append(name)
        return (3, "full") if name in there else None

    found = offers_with(CLOUD, pool(**changes), room)
    assert [f"{o.instance_type}/{o.zone}/{o.market}" for o in found] == keys
    assert {(o.free, o.free_reason) for o in found} <= {(3, "full")}
    assert len(asked) == len(set(asked)), "once"
    assert keys or not asked
    plain = plain_offers(CLOUD, pool(**changes), there, 3)
    assert [(o.key, o.free) for o in plain] == [(o.key, 3) for o in found]


def test_an_offer_has_its_type_as_the_configuration_has_it() -> None:
    one = typed_offer(("aws", Location.PUBLIC), "large", CLOUD.types["large"], "a", Market.SPOT)
    assert (one.cloud, one.location, one.zone, one.market) == (
        "aws", Location.PUBLIC, "a", Market.SPOT,
    )  # fmt: skip
    assert (one.price, one.on_demand_price) == (0.5, 0.5)
    assert (one.cpus, one.memory, one.gres) == (8, 16384, "gpu:1")
    assert (one.free, one.free_reason) == (None, "")


class MistCloud(CloudSettings, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="mist"):
    """A cloud whose spot prices the site types."""

    types: dict[str, SpotType]


def test_a_spot_offer_has_the_spot_price_and_a_type_without_one_is_not_bought_as_spot() -> None:
    cloud = MistCloud(
        name="mist", location=Location.PUBLIC,
        types={
            "a": SpotType(cpus=2, memory=4096, price=0.5, spot_price=0.2),
            "b": SpotType(cpus=2, memory=4096, price=0.4),
        },
    )  # fmt: skip
    offers = offers_with(cloud, pool(cloud="mist"), lambda _: (None, ""))
    assert [(o.instance_type, o.market, o.price, o.on_demand_price) for o in offers] == [
        ("a", Market.SPOT, 0.2, 0.5), ("a", Market.ON_DEMAND, 0.5, 0.5),
        ("b", Market.ON_DEMAND, 0.4, 0.4),
    ]  # fmt: skip


def test_published_prices_replace_spot_prices_and_check_the_others() -> None:
    """A published price below the configured one on demand must not make the caps count less."""
    cloud = MistCloud(
        name="mist", location=Location.PUBLIC,
        types={
            "a": SpotType(cpus=2, memory=4096, price=0.5, spot_price=0.2),
            "b": SpotType(cpus=2, memory=4096, price=0.4),
        },
    )  # fmt: skip
    published = PublishedPrices(
        prices={("a", Market.ON_DEMAND): 0.3, ("b", Market.SPOT): 0.1, ("c", Market.SPOT): 0.1},
        source="a list",
    )
    offers = offers_with(cloud, pool(cloud="mist"), lambda _: (None, ""), published)
    assert [(o.key, o.price, o.reference_price, o.reference) for o in offers] == [
        ("mist/a/default/spot", 0.2, 0.3, "a list"),
        ("mist/a/default/on-demand", 0.5, 0.3, "a list"),
        ("mist/b/default/spot", 0.1, None, ""),
        ("mist/b/default/on-demand", 0.4, None, ""),
    ]
    assert [o.worst_price for o in offers] == [0.5, 0.5, 0.4, 0.4]


def test_an_offer_has_the_price_of_the_pools_disks() -> None:
    with_disks = pool(machine=MachineOptions(disk_price=0.05))
    offers = offers_with(CLOUD, with_disks, lambda _: (None, ""))
    assert {(o.instance_type, round(o.price, 9), o.disk_price) for o in offers} == {
        ("small", 0.15, 0.05), ("large", 0.55, 0.05)
    }  # fmt: skip
