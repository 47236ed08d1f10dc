"""Discounts and fees of a cloud: what they may be, and the prices that they leave."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.config import configfile
from slurm_elastic.config.machine_prices import configured_price, extra_price, paid_share
from slurm_elastic.config.pool_rules import bid_of
from slurm_elastic.model.cluster import Market, Pool
from slurm_elastic.model.machine_options import NO_OPTIONS, MachineOptions

SITE = """
cluster: {name: demo}
limits: {dollars_per_hour: 5}
allow: {accounts: [physics], max_time: 7d}
clouds:
  - name: aws
    provider: aws
    location: public
    region: us-east-1
    image: ami-0123456789abcdef0
    types: {c5.large: {cpus: 2, memory: 4G, price: 0.1}, m5.large: {cpus: 2, memory: 8G, price: 0.2}}
    discounts:
      - {discount: 0.1}
      - {types: [c5.*], markets: [spot], discount: 0.5, fee: 0.01}
pools:
  - {name: pool, cloud: aws, nodes: "c[1-2]", cpus: 2, memory: 4G, instance_types: [c5.large]}
"""


@pytest.mark.parametrize(
    ("name", "market", "share", "fee"),
    [
        ("c5.large", Market.SPOT, 0.45, 0.01),
        ("c5.large", Market.ON_DEMAND, 0.9, 0.0),
        ("c5.large", Market.RESERVED, 0.9, 0.0),
        ("m5.large", Market.SPOT, 0.9, 0.0),
    ],
)
def test_all_entries_that_fit_a_machine_count(
    name: str, market: Market, share: float, fee: float
) -> None:
    (cloud,) = configfile.parse(SITE, "site.yaml").clouds
    assert paid_share(cloud, name, market) == pytest.approx(share)
    assert extra_price(cloud, NO_OPTIONS, name, market) == fee


@pytest.mark.parametrize(
    ("name", "market", "price"),
    [
        ("c5.large", Market.SPOT, 0.045 + 0.01 + 0.02),
        ("c5.large", Market.ON_DEMAND, 0.09 + 0.02),
        ("gone", Market.ON_DEMAND, 0.18 + 0.02),
    ],
)
def test_a_machine_of_unknown_price_costs_its_type_with_discounts_fees_and_disks_or_the_dearest(
    name: str, market: Market, price: float
) -> None:
    (cloud,) = configfile.parse(SITE, "site.yaml").clouds
    disks = MachineOptions(disk_price=0.02)
    assert configured_price(cloud, disks, name, market) == pytest.approx(price)


def test_a_machine_of_a_cloud_without_types_costs_its_disks_alone() -> None:
    (cloud,) = configfile.parse(SITE, "site.yaml").clouds
    bare = replace(cloud, types={}, discounts=())
    assert configured_price(bare, MachineOptions(disk_price=0.02), "x", Market.SPOT) == 0.02


def test_a_bid_is_sent_as_the_cloud_publishes_prices() -> None:
    """The site pays at most $0.055: less the fee, that is 45 % of a published price of $0.10."""
    (cloud,) = configfile.parse(SITE, "site.yaml").clouds
    pool = Pool(
        name="pool", cloud="aws", nodes=("c1",), cpus=2, real_memory=4096, max_price=0.055,
        markets=(Market.SPOT,), instance_types=("c5.large",),
    )  # fmt: skip
    assert bid_of(cloud, pool, "c5.large") == pytest.approx(0.1)


def test_entries_are_written_back() -> None:
    config = configfile.parse(SITE, "site.yaml")
    assert configfile.parse(configfile.dump(config), "site.yaml") == config


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("{discount: 0.1}", "{discount: 1.5}",
         "[0].discount: found 1.5, expected a number from 0 to 1"),
        ("{discount: 0.1}", "{discount: -0.1}",
         "[0].discount: found -0.1, expected a number from 0 to 1"),
        ("{discount: 0.1}", "{discount: 1}", "[0].discount: found 1, expected below 1"),
        ("{discount: 0.1}", "{types: [c5.large]}",
         "[0]: found neither discount nor fee, expected one of them above 0"),
        ("fee: 0.01", "fee: -1", "[1].fee: found -1, expected a number of at least 0"),
        ("types: [c5.*]", "types: [c5.larg]",
         "[1].types[0]: found 'c5.larg', expected a type of cloud aws or a pattern: one of c5.large,"),
        ("markets: [spot]", "markets: [spott]", "[1].markets[0]: found 'spott'"),
        ("markets: [spot]", "markets: [reserved]",
         "[1].markets[0]: found 'reserved', expected one of on-demand, spot"),
    ],
)  # fmt: skip
def test_wrong_entries_are_reported_with_place_and_expectation(
    before: str, after: str, said: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        configfile.parse(SITE.replace(before, after, 1), "site.yaml")
    text = "\n".join(caught.value.problems)
    assert f"clouds[0] (aws).discounts{said}" in text, text
    assert "site.yaml:" in text


def test_a_cloud_of_the_site_has_no_discounts() -> None:
    own = SITE.replace("location: public", "location: on-premises\n    endpoint: http://x")
    with pytest.raises(ConfigError) as caught:
        configfile.parse(own, "site.yaml")
    assert any("discounts: found discounts, expected none" in p for p in caught.value.problems)
