from __future__ import annotations

from pathlib import Path

import pytest

from slurm_elastic.base.hostlist import expand
from slurm_elastic.config import Config, blocked_clouds, configfile, domain_pools
from slurm_elastic.config.pool_rules import fail_safe, lease_of, rules_of
from slurm_elastic.config.resolve import effective

EXAMPLE = Path(__file__).parents[2] / "etc" / "slurm-elastic.yaml"
POLICIES = """
policies: {growth: on_demand, release: "idle(seconds=600)", billing_increment: 1h, start_windows: ["20:00-06:00"]}
"""


@pytest.fixture(params=["", POLICIES], ids=["shipped", "policies"])
def config(request: pytest.FixtureRequest) -> Config:
    text = EXAMPLE.read_text() + request.param
    return configfile.parse(text, "x.yaml")


def test_it_is_a_configuration_that_means_the_same(config: Config) -> None:
    shown = configfile.parse(configfile.dump(effective(config)), "shown.yaml")
    assert shown == effective(config) == effective(shown)
    assert domain_pools(shown, expand) == domain_pools(config, expand)
    assert blocked_clouds(shown) == blocked_clouds(config)
    for pool, own in zip(shown.pools, config.pools, strict=True):
        assert rules_of(shown, pool) == rules_of(config, own)
    for cloud in config.clouds:
        there = shown.cloud(cloud.name)
        assert fail_safe(shown, there) == fail_safe(config, cloud)
        assert lease_of(shown, there) == lease_of(config, cloud)
        assert shown.who_of(there) == config.who_of(cloud)


def test_nothing_is_left_open_that_a_wider_section_says(config: Config) -> None:
    for cloud in effective(config).clouds:
        open_ones = [cloud.partition, cloud.suspend_time, cloud.resume_timeout, cloud.allow]
        assert None not in [*open_ones, cloud.policies.growth, cloud.policies.expected_boot_time]
    pools = effective(config).pools
    assert [pool.real_memory for pool in pools] == [pool.slurm_memory for pool in config.pools]
    assert {p.name: p.max_age for p in pools}["compute"] == 7 * 86400
