"""Budgets, windows, operators' words and a ledger that cannot be written stop new machines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ledger_cases import instance, offer
from msgspec.structs import replace

from slurm_elastic.config.sections.policies import Budget, CloudPolicies, SitePolicies
from slurm_elastic.controller.launching.budget import (
    apply_directives,
    build_launch_scope,
    find_stops,
    read_spending,
    stopped_by_operators,
)
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.directive import Directive, LimitChange, Pause, Word
from slurm_elastic.policies.money.bounds import begin_of_day_and_month
from tests.controller.world import T0, World, make_config

DAY = T0 - T0 % 86400
HOUR = 3600.0


def build(directory: Path, pub: Budget | None = None, **site: Any) -> World:
    plain = make_config(directory)
    onp, public = plain.clouds
    clouds = (onp, replace(public, policies=CloudPolicies(budget=pub or Budget())))
    made = World(directory, clouds=clouds, policies=SitePolicies(**site))
    made.now = DAY + 12 * HOUR
    return made


def paid(
    world: World, cloud: str, hours: float, *, ended: float | None = None, price: float = 0.10
) -> None:
    """A machine that has cost so much by now."""
    launched = world.now - hours * HOUR
    one = instance(
        f"{cloud}-{hours}", "pub1", f"g-{cloud}-{hours}", launched=launched,
        bought=offer(cloud=cloud, price=price),
    )  # fmt: skip
    world.ledger.machines.adopt(one, "burst", launched)
    if ended is not None:
        world.ledger.machines.record_end(cloud, [one.id], Quoted(text="gone"), ended)


def stops(world: World) -> dict[str, str]:
    found = find_stops(world.config, world.ledger, world.site.rules, world.now)
    return {pool: str(cause) for pool, cause in found.items()}


def bars(world: World, pool: str) -> dict[str, str]:
    site = world.site
    found = build_launch_scope(
        site.config, site.ledger, site.rules, site.pools[pool], world.now, {"x": "y"}, {}
    )
    assert found.blocked["x"] == "y"
    return {cloud: str(why) for cloud, why in found.blocked.items() if cloud != "x"}


def direct(world: World, word: Word) -> None:
    world.ledger.directives.give(
        Directive(word=word, who="alice", since=world.now, starts=world.now)
    )


@pytest.mark.parametrize(
    ("now", "day", "month"),
    [
        (1_800_000_000.0, 1_799_971_200.0, 1_798_761_600.0),
        (1_799_971_200.0, 1_799_971_200.0, 1_798_761_600.0),
        (1_798_761_600.0, 1_798_761_600.0, 1_798_761_600.0),
        (1_798_761_599.9, 1_798_675_200.0, 1_796_083_200.0),
    ],
)
def test_days_and_months_begin_at_midnight_of_utc(now: float, day: float, month: float) -> None:
    assert begin_of_day_and_month(now) == (day, month)


def test_the_clusters_budget_stops_public_clouds_alone(tmp_path: Path) -> None:
    world = build(tmp_path, budget=Budget(per_day=0.5))
    paid(world, "pub", 4.9)
    assert stops(world) == {}
    assert bars(world, "burst") == {}
    paid(world, "onp", 2.0)
    assert stops(world) == {"burst": "the budget of $0.50 a day is spent"}
    assert bars(world, "burst") == {"pub": "the budget of $0.50 a day is spent"}
    assert bars(world, "rack") == {}
    world.close()


def test_a_clouds_own_budget_stops_that_cloud_alone(tmp_path: Path) -> None:
    world = build(tmp_path, pub=Budget(per_month=1.0))
    paid(world, "onp", 100.0)
    paid(world, "pub", 9.9)
    assert stops(world) == {}
    paid(world, "pub", 0.2)
    assert stops(world) == {"burst": "cloud pub: the budget of $1.00 a month is spent"}
    assert read_spending(world.config, world.ledger, world.now).keys() == {"pub"}
    world.close()


def test_without_a_budget_nothing_is_summed_up(tmp_path: Path) -> None:
    world = build(tmp_path)
    paid(world, "pub", 100.0)
    assert read_spending(world.config, world.ledger, world.now) == {}
    assert stops(world) == {}
    world.close()


def test_what_a_former_cloud_cost_counts_in_all_together(tmp_path: Path) -> None:
    world = build(tmp_path, pub=Budget(per_day=9.0), budget=Budget(per_day=9.0, per_month=9.0))
    paid(world, "pub", 2.0)
    paid(world, "former", 3.0)
    paid(world, "earlier", 40.0, ended=world.now - 20 * HOUR)
    found = read_spending(world.config, world.ledger, world.now)
    assert found.keys() == {"pub", ""}
    assert (found["pub"].day, found["pub"].month) == pytest.approx((0.2, 0.2))
    assert found[""].day == pytest.approx(0.5)
    assert found[""].month == pytest.approx(0.5 + 2.0)
    world.close()


def test_a_window_stops_a_pool_outside_of_it(tmp_path: Path) -> None:
    world = build(tmp_path, start_windows=("10:00-12:00",))
    assert set(stops(world)) == {"burst", "rack"}
    world.now -= 1
    assert stops(world) == {}
    world.close()


def test_an_operators_word_comes_first_and_is_of_its_pools(tmp_path: Path) -> None:
    world = build(tmp_path, budget=Budget(per_day=0.1))
    paid(world, "pub", 5.0)
    assert "is spent" in stops(world)["burst"]
    direct(world, Pause(scope="cloud:pub"))
    assert stops(world) == {"burst": "cloud pub is paused by alice"}
    assert bars(world, "burst") == {"pub": "cloud pub is paused by alice"}
    assert bars(world, "rack") == {}
    told = stopped_by_operators(world.config, world.ledger.directives.all(), world.now)
    assert {pool: str(cause) for pool, cause in told.items()} == {
        "burst": "cloud pub is paused by alice"
    }
    world.close()


def test_a_limit_that_an_operator_changed_is_the_one_that_holds(tmp_path: Path) -> None:
    world = build(tmp_path)
    assert apply_directives(world.config, world.ledger, world.now) is world.config
    direct(world, LimitChange(scope="cloud:pub", key="dollars_per_hour", value=7.0))
    changed = apply_directives(world.config, world.ledger, world.now)
    assert changed.cloud("pub").limits.dollars_per_hour == 7.0
    site = world.site
    found = build_launch_scope(
        site.config, site.ledger, site.rules, site.pools["burst"], world.now, {}, {}
    )
    assert found.cloud_limits["pub"].dollars_per_hour == 7.0
    world.close()


def test_a_ledger_that_cannot_be_written_stops_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = build(tmp_path)
    monkeypatch.setattr(type(world.ledger), "end_only", "the disk is full")
    assert stops(world) == {"burst": "the disk is full", "rack": "the disk is full"}
    state = world.ledger.state()
    monkeypatch.setattr(world.ledger, "state", lambda: replace(state, writable=False))
    assert bars(world, "rack") == {"onp": "the disk is full"}
    world.close()
