"""The parts of the ledger that a round of repair reads."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.controller.snapshot import (
    CloudReader,
    add_offers,
    build_terms,
    read_all_nodes,
    take_snapshot,
)
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.exclusion import CAPACITY, COOL_DOWN, Exclusion
from slurm_elastic.policies.repair.cluster import cloud_view
from slurm_elastic.providers.fake.settings import FakeCloud
from tests.controller.world import World


@pytest.fixture
def site(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


def test_no_launch_is_read_whole_for_a_missing_machine(
    site: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with an empty list of thousands, of launches of thousands."""
    for number in (1, 2):
        site.slurm.submit(number, (f"pub{number}",))
    site.advance(60)
    site.advance(1)
    site.ledger.machines.observe("pub", (), site.now)
    read: list[str] = []
    monkeypatch.setattr(site.ledger.launches, "get", read.append)
    view = cloud_view(
        take_snapshot(site.site, build_terms(site.site, "pub"), read_all_nodes(site.site), ())
    )
    assert [(m.missed_listings, m.was_listed) for m in view.tracked] == [(1, True)] * 2
    assert read == []


def test_a_machine_that_no_read_has_had_is_not_shown(site: World) -> None:
    site.clouds["pub"].visible_after = 1000.0
    site.slurm.submit(1, ("pub1",))
    site.advance(10)
    site.advance(1)
    site.ledger.machines.observe("pub", (), site.now)
    view = cloud_view(
        take_snapshot(site.site, build_terms(site.site, "pub"), read_all_nodes(site.site), ())
    )
    assert [m.was_listed for m in view.tracked] == [False]


def test_no_node_at_all_is_no_answer_and_no_failure_of_the_command(
    site: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site.slurm, "nodes", lambda *_: {})
    with pytest.raises(SlurmError, match=r"^sinfo: Slurm lists no node at all"):
        read_all_nodes(site.site)


def test_a_list_that_the_file_does_not_take_is_kept_in_memory(
    site: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    error, real = sqlite3.OperationalError("disk I/O error"), site.ledger.machines.observe
    taken: list[Any] = []

    def observe(*args: Any, **settings: Any) -> None:
        taken.append(args)
        if len(taken) == 1:
            raise error
        real(*args, **settings)

    given_up: list[Exception] = []
    monkeypatch.setattr(site.ledger.machines, "observe", observe)
    monkeypatch.setattr(site.ledger, "give_up", given_up.append)
    CloudReader(site.site, "pub").read(partial(read_all_nodes, site.site))
    assert given_up == [error]
    assert taken == [("pub", (), site.now, site.site.pool_of)] * 2


def test_held_nodes_are_looked_at_though_an_offer_cools_down(site: World) -> None:
    site.advance(1)
    for kind, scope in ((CAPACITY, "pub1"), (COOL_DOWN, "pub/a/b/c")):
        site.ledger.exclusions.add(
            Exclusion(
                kind=kind, scope=scope, pool="burst", until=site.now - 1, cause=Quoted(text="x")
            )
        )
    site.slurm.set_node(
        "pub1", "IDLE", "DRAIN", "POWERED_DOWN", "CLOUD", reason="slurm-elastic:hold:x"
    )
    view = take_snapshot(site.site, build_terms(site.site, "pub"), read_all_nodes(site.site), ())
    found = add_offers(site.site, view)
    assert {pool: len(offers) for pool, offers in found.offers.items()} == {"burst": 2}


@pytest.mark.parametrize(("flat", "price"), [(0.07, 0.07), (None, 0.10)])
def test_a_listed_machine_costs_what_the_configuration_says_of_its_cloud_or_type(
    site: World, monkeypatch: pytest.MonkeyPatch, flat: float | None, price: float
) -> None:
    site.slurm.submit(1, ("pub1",))
    site.advance(5)
    (machine,) = site.alive()
    monkeypatch.setattr(FakeCloud, "flat_price", flat)
    assert CloudReader(site.site, "pub").listed_price(machine) == pytest.approx(price)
