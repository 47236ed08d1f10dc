"""Discounts and fees of a cloud from the offer to the bill: ranking, caps, budgets and ``cost``."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from slurm_elastic.config import Config, configfile
from slurm_elastic.config.clouds import InstanceType
from slurm_elastic.config.sections.discounts import Discount
from slurm_elastic.config.sections.policies import Budget, SitePolicies
from slurm_elastic.controller.launching.budget import find_stops, read_spending
from slurm_elastic.features.money.books import charges, read_books, report
from slurm_elastic.features.money.cost_keys import By
from slurm_elastic.model.cluster import Limits, Market
from slurm_elastic.model.machine_options import MachineOptions
from slurm_elastic.watch.view import focus
from tests.controller.world import World, make_config

TYPES = {
    "small": InstanceType(cpus=2, memory=4096, price=0.10),
    "other": InstanceType(cpus=2, memory=4096, price=0.12),
}
OTHER_IS_CHEAPER = (Discount(types=("oth*",), discount=0.5), Discount(fee=0.01))
"""$0.07 for the type other, $0.11 for the type small."""
HOUR = 3600.0


def config_with(directory: Path, *discounts: Discount, cap: float = 9.0) -> Config:
    plain = make_config(directory)
    onp, pub = plain.clouds
    limits = Limits(dollars_per_hour=cap)
    pub = replace(pub, types=TYPES, limits=limits, discounts=discounts)
    burst = replace(plain.pools[1], markets=(Market.ON_DEMAND,))
    policies = SitePolicies(budget=Budget(per_day=0.119))
    return replace(plain, clouds=(onp, pub), pools=(plain.pools[0], burst), policies=policies)


def bought(directory: Path, *discounts: Discount, cap: float = 9.0) -> World:
    config = config_with(directory, *discounts, cap=cap)
    world = World(directory, clouds=config.clouds, pools=config.pools, policies=config.policies)
    for number, node in enumerate(("pub1", "pub2"), 1):
        world.slurm.submit(number, (node,))
    world.advance(60)
    return world


def prices(world: World) -> list[tuple[str, float]]:
    return [(m.instance_type, round(m.price, 6)) for m in world.alive("pub")]


def test_a_discount_changes_which_type_is_bought_and_a_fee_is_added(tmp_path: Path) -> None:
    world = bought(tmp_path, *OTHER_IS_CHEAPER)
    assert prices(world) == [("other", 0.07), ("other", 0.07)]
    assert world.site.usage().dollars_per_hour["cloud:pub"] == pytest.approx(0.14)
    world.close()


def test_without_discounts_the_published_prices_decide(tmp_path: Path) -> None:
    world = bought(tmp_path)
    assert prices(world) == [("small", 0.10), ("small", 0.10)]
    world.close()


@pytest.mark.parametrize(("cap", "machines"), [(0.14, 2), (0.13, 1)])
def test_the_cap_counts_the_prices_that_are_paid(tmp_path: Path, cap: float, machines: int) -> None:
    world = bought(tmp_path, *OTHER_IS_CHEAPER, cap=cap)
    assert len(world.alive("pub")) == machines
    world.close()


@pytest.mark.parametrize("discounts", [(), OTHER_IS_CHEAPER])
def test_the_budget_and_the_bill_count_the_prices_that_are_paid(
    tmp_path: Path, discounts: tuple[Discount, ...]
) -> None:
    """Two machines for 36 minutes: $0.12 at the published price, $0.084 with the discount."""
    world = bought(tmp_path, *discounts)
    launched = min(machine.launched for machine in world.alive("pub"))
    now = launched + 0.6 * HOUR
    spent = read_spending(world.config, world.ledger, now)
    costs = report(read_books(world.config, world.ledger, launched - HOUR, now, now), By.CLOUD)
    world.close()
    assert {line.key: line.micro for line in costs.lines} == {
        "pub": pytest.approx(84_000 if discounts else 120_000, rel=0.01)
    }
    assert spent[""].month == pytest.approx(costs.micro / 1e6)


def test_the_terms_of_a_purchase_keep_the_fee_and_the_price_on_demand(tmp_path: Path) -> None:
    world = bought(tmp_path, *OTHER_IS_CHEAPER)
    terms = [machine.terms for machine in world.ledger.machines.live()]
    world.close()
    assert [row.disk_price for row in terms] == [pytest.approx(0.01)] * 2
    assert [row.on_demand_price for row in terms] == [pytest.approx(0.07)] * 2


@pytest.mark.parametrize(
    ("discounts", "listed", "paid"), [((), 0.10, 0.10), (OTHER_IS_CHEAPER, 0.13, 0.07)]
)
def test_the_list_price_of_focus_is_before_discounts_and_has_the_fee(
    tmp_path: Path, discounts: tuple[Discount, ...], listed: float, paid: float
) -> None:
    world = bought(tmp_path, *discounts)
    now = min(machine.launched for machine in world.alive("pub")) + HOUR
    # A later contract changes no list price of the past.
    later = config_with(tmp_path, Discount(discount=0.9))
    books = read_books(later, world.ledger, now - 2 * HOUR, now, now)
    found = list(focus.rows(charges(books), books.runs, "alps"))
    world.close()
    assert {round(float(row["ListUnitPrice"]), 6) for row in found} == {listed}
    assert {round(float(row["ContractedUnitPrice"]), 6) for row in found} == {paid}
    billed = sum(float(row["BilledCost"]) for row in found)
    assert sum(float(row["ListCost"]) for row in found) == pytest.approx(billed * listed / paid)


def test_a_machine_whose_tags_lost_its_price_is_paid_with_disks_and_fees(tmp_path: Path) -> None:
    config = config_with(tmp_path, *OTHER_IS_CHEAPER)
    rack, burst = config.pools
    burst = replace(burst, machine=MachineOptions(disk_price=0.03))
    world = World(tmp_path, clouds=config.clouds, pools=(rack, burst), policies=config.policies)
    world.slurm.submit(1, ("pub1",))
    world.advance(60)
    (machine,) = world.alive("pub")
    assert machine.price == pytest.approx(0.10)
    world.accounts["pub"].machines[machine.id].instance = replace(
        machine, price=0.0, is_price_known=False
    )
    world.lose_ledger()
    world.advance(60)
    (row,) = world.ledger.machines.live()
    world.close()
    # Half of $0.12 for the type other, $0.01 for the fee, $0.03 for the disks.
    assert row.instance.price == pytest.approx(0.10)


SITE = """\
cluster: {{name: alps, uuid: 7d1f0c52-8f7e-4d5d-9d5e-111111111111}}
allow: {{accounts: [physics]}}
limits: {{dollars_per_hour: 9}}
clouds:
  - name: pub
    provider: fake
    location: public
    types: {{small: {{cpus: 2, memory: 4G, price: 0.10}}}}
    discounts:
      - {{discount: {discount}, markets: [on-demand]}}
      - {{fee: {fee}, types: [sm*]}}
      - {{discount: 0.9, markets: [spot]}}
pools:
  - {{name: burst, cloud: pub, nodes: "pub[1-3]", cpus: 2, memory: 4G, markets: [on-demand]}}
policies: {{budget: {{per_day: {budget}, when_spent: keep}}}}
"""


@settings(max_examples=8, deadline=None)
@given(
    discount=st.integers(1, 9).map(lambda tenths: tenths / 10),
    fee=st.integers(1, 9).map(lambda cents: cents / 100),
    budget=st.integers(2, 20).map(lambda cents: cents / 100),
)  # fmt: skip
def test_a_budget_stops_when_the_prices_that_are_paid_have_used_it(
    discount: float, fee: float, budget: float
) -> None:
    """From the configuration's file to the stop: earlier than by the published price because of
    the fee, or later because of the discount.
    """
    paid = 0.10 * (1 - discount) + fee
    spent_after_s = budget / paid * HOUR
    # A machine is billed for a minute at least, and the budget's day has 15 hours left.
    assume(300.0 < spent_after_s < 6 * HOUR)
    text = SITE.format(discount=discount, fee=fee, budget=budget)
    file = configfile.parse(text, "site.yaml")
    world = World(clouds=file.clouds, pools=file.pools, policies=file.policies, limits=file.limits)
    with contextlib.closing(world):
        world.slurm.submit(1, ("pub1",))
        world.advance(60)
        (machine,) = world.alive("pub")
        assert machine.price == pytest.approx(paid)

        def is_stopped(age_s: float) -> bool:
            now = machine.launched + age_s
            return "burst" in find_stops(world.config, world.ledger, world.site.rules, now)

        assert (is_stopped(spent_after_s - 30), is_stopped(spent_after_s + 30)) == (False, True)
        world.advance(machine.launched + spent_after_s + 30 - world.now, step=60)
        world.slurm.submit(2, ("pub2",))
        world.advance(60)
        assert [m.node for m in world.alive("pub")] == ["pub1"]
