from __future__ import annotations

import pytest
from slurm_elastic_lowcarbon import KEY, carbon

from slurm_elastic.config.ranking_kinds import checked_key
from slurm_elastic.model.cluster import Location, Market, Offer
from slurm_elastic.policies.launch.ranking import KEYS, Scope, rank
from slurm_elastic.testing.ranking import NOW, REQUEST, RankingContract


@pytest.fixture
def kind():
    return KEY


class TestCarbon(RankingContract):
    pass


def offer(zone, price):
    return Offer(
        cloud="mist", location=Location.PUBLIC, instance_type="t", zone=zone,
        market=Market.ON_DEMAND, price=price, cpus=2, memory=4096,
    )  # fmt: skip


def test_a_configuration_finds_it_by_its_entry_point():
    assert "carbon" in KEYS
    assert checked_key("carbon") is carbon


def test_clean_electricity_comes_before_a_low_price():
    offers = [offer("us-east-1a", 0.1), offer("eu-north-1b", 0.3), offer("moon-1", 0.01)]
    ranked = rank(REQUEST, offers, Scope(), NOW, ("carbon", "price")).ranked
    assert [row.offer.zone for row in ranked] == ["eu-north-1b", "us-east-1a", "moon-1"]
