"""When a reservation takes machines, and how many: filled first, never over its count."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from slurm_elastic.base.errors import CapacityError
from slurm_elastic.model.cluster import (
    Instance,
    InstanceState,
    Limits,
    Location,
    Market,
    Offer,
    Usage,
)
from slurm_elastic.model.machine_options import MachineOptions
from slurm_elastic.model.memory import Machine, PurchaseTerms
from slurm_elastic.model.reserved import BLOCK_LEAD_S, Held, ReservationKind
from slurm_elastic.policies.launch.exclusions import after_refusal, cool_down_after_refusal
from slurm_elastic.policies.launch.ranking import Scope, rank, serving, used_by
from slurm_elastic.policies.launch.reservations import SLACK_S, levelled, split_by_need
from slurm_elastic.policies.money.accounting import usage
from slurm_elastic.providers.aws.settings import AwsCloud
from slurm_elastic.providers.base.offers import paid_offer
from tests.policies.strategies import NOW, request

HOUR = 3600.0
RESERVED = Held(
    cloud="aws", name="year", kind=ReservationKind.INSTANCES, instance_type="m5.large", count=2,
    begins_at=NOW - HOUR, ends_at=NOW + 99 * HOUR, upfront=20.0, price=0.01,
)  # fmt: skip
BLOCK = replace(
    RESERVED, name="block", kind=ReservationKind.BLOCK, id="cr-1", zone="a", price=0.0, count=3
)
PLAN = Held(
    cloud="aws", name="plan", kind=ReservationKind.SAVINGS, begins_at=NOW - HOUR,
    ends_at=NOW + HOUR, commit=0.25, families={"m5": 0.3},
)  # fmt: skip
PLAIN = Offer(
    cloud="aws", location=Location.PUBLIC, instance_type="m5.large", zone="a",
    market=Market.ON_DEMAND, price=0.10, cpus=2, memory=8000, on_demand_price=0.10,
)  # fmt: skip
SPOT = replace(PLAIN, market=Market.SPOT, price=0.04)
CLOUD = AwsCloud(name="aws", location=Location.PUBLIC, region="r", image="ami-1", types={})
MARKETS = {"markets": (Market.RESERVED, Market.SPOT, Market.ON_DEMAND)}


def offer(held: Held) -> Offer:
    price = held.machine_price(0.10, "m5.large")
    return replace(PLAIN, market=Market.RESERVED, price=price, held=held)


def said(held: Held, now: float = NOW, needs_s: float = 0.0, boot_s: float = 0.0) -> str:
    asked = replace(request(**MARKETS), needs_s=needs_s)
    placement = rank(asked, [offer(held)], Scope(boot_s=boot_s), now)
    return placement.rejected[0].reason if placement.rejected else ""


def test_a_refusal_of_one_reservation_leaves_another_of_its_type_and_zone_alone() -> None:
    full = replace(BLOCK, kind=ReservationKind.CAPACITY, name="cr-a", count=2)
    offers = [offer(full), offer(replace(full, name="cr-b", id="cr-2"))]
    error = CapacityError("aws", "ReservationCapacityExceeded", "cr-1 is full")
    key, seconds, code, cause = cool_down_after_refusal(offers[0], error, 180.0, 1800.0)
    cool_down = after_refusal(key, 0, NOW, seconds, HOUR, code, cause)
    placement = rank(request(**MARKETS), offers, Scope(exclusions=(cool_down,)), NOW + 1)
    names = [row.offer.held and row.offer.held.name for row in placement.ranked]
    rejected = [row.offer.held and row.offer.held.name for row in placement.rejected]
    assert (names, rejected) == (["cr-b"], ["cr-a"])


def test_it_is_filled_first_and_the_rest_goes_to_spot_then_on_demand() -> None:
    chosen = serving(
        request(**MARKETS), [PLAIN, replace(SPOT, free=1), offer(RESERVED)], Scope(), NOW
    )
    assert [(c.offer.market, c.room) for c in chosen] == [
        (Market.RESERVED, 2), (Market.SPOT, 1), (Market.ON_DEMAND, 1),
    ]  # fmt: skip


def test_the_true_price_is_the_share_of_the_whole_and_the_marginal_price_is_nothing() -> None:
    (ranked,) = rank(request(**MARKETS), [offer(RESERVED)], Scope(), NOW).ranked
    assert ranked.offer.price == pytest.approx(20 / 2 / 100 + 0.01)
    assert ranked.offer.marginal_price == 0
    used_only = offer(replace(RESERVED, always=False))
    assert (used_only.price, used_only.marginal_price) == (pytest.approx(0.11), 0.01)
    assert offer(PLAN).price == pytest.approx(0.07)


def test_disks_are_in_the_price_the_caps_and_the_usage_of_a_reserved_machine() -> None:
    pool = replace(request(**MARKETS).pool, machine=MachineOptions(disk_price=0.05))
    for held, price, marginal in ((RESERVED, 0.16, 0.05), (PLAN, 0.12, 0.05)):
        reserved = paid_offer(offer(held), CLOUD, pool)
        assert reserved.price == pytest.approx(price)
        assert reserved.marginal_price == reserved.capped_price == pytest.approx(marginal)
        used = used_by(Usage(), pool, reserved, 2)
        assert used.dollars_per_hour[""] == pytest.approx(0.10)
        assert used.dollars_per_hour[held.key] == pytest.approx(2 * (price - 0.05))


def test_a_running_machine_on_a_reservation_counts_with_its_disks() -> None:
    instance = Instance(
        id="i-1", node="n1", cloud="aws", instance_type="m5.large", zone="a",
        market=Market.RESERVED, price=0.16, launched=NOW - HOUR, generation="g",
        state=InstanceState.RUNNING,
        reservation="year",
    )  # fmt: skip
    terms = PurchaseTerms(disk_price=0.05)
    running = Machine(instance=instance, pool="burst", worst_price=0.15, terms=terms)
    found = usage((running,), (), paid=(RESERVED,))
    assert found.dollars_per_hour[""] == pytest.approx(0.22 + 0.05)
    assert found.dollars_per_hour[RESERVED.key] == pytest.approx(0.11)


def test_a_maximum_price_compares_what_is_added_to_the_bill() -> None:
    dear = replace(RESERVED, upfront=9999.0)
    placement = rank(request(**MARKETS, max_price=0.05), [offer(dear)], Scope(), NOW)
    assert len(placement.ranked) == 1


def test_it_takes_machines_only_between_its_dates() -> None:
    assert said(RESERVED, NOW - 2 * HOUR).startswith("reservation year takes machines from 1970-")
    assert said(RESERVED, RESERVED.ends_at)
    assert not said(RESERVED, RESERVED.ends_at - 1, needs_s=math.inf)
    assert said(BLOCK, BLOCK.ends_at - BLOCK_LEAD_S)


def test_a_block_takes_no_job_that_cannot_end_before_the_cloud_ends_its_machines() -> None:
    ends_at = BLOCK.ends_at - BLOCK_LEAD_S
    left = ends_at - NOW - SLACK_S - 300
    assert not said(BLOCK, needs_s=left, boot_s=300)
    reason = said(BLOCK, needs_s=left + 1, boot_s=300)
    assert "reservation block ends its machines at" in reason
    assert "too soon for a job of up to 4d 2h" in reason
    assert "without a time limit" in said(BLOCK, needs_s=math.inf)
    assert said(BLOCK, ends_at - 100, boot_s=300).endswith("too soon for a boot")


def test_machines_and_dollars_in_use_leave_less_room() -> None:
    used = used_by(Usage(), request().pool, offer(RESERVED), 1)
    assert used.nodes["reservation:aws/year"] == 1
    assert used.dollars_per_hour[""] == 0, "the reservation is paid in any case"
    (ranked,) = rank(request(**MARKETS), [offer(RESERVED)], Scope(usage=used), NOW).ranked
    assert (ranked.room, str(ranked.bound)) == (
        1, "reservation year: 1 of 2 machines are in use",
    )  # fmt: skip
    used = used_by(Usage(), request().pool, offer(PLAN), 2)
    (ranked,) = rank(request(**MARKETS), [offer(PLAN)], Scope(usage=used), NOW).ranked
    assert ranked.room == 1, "0.25 less 2 x 0.07 is one more of 0.07"


def test_offers_of_one_plan_share_its_commitment() -> None:
    zones = [replace(offer(PLAN), zone=zone) for zone in ("a", "b", "c")]
    chosen = serving(request(**MARKETS), zones, Scope(), NOW)
    assert sum(c.room for c in chosen) == 3


def test_a_cap_counts_the_whole_price_of_a_reservation_and_no_machine_twice() -> None:
    paid = usage((), (), paid=(RESERVED,))
    assert paid.dollars_per_hour[""] == pytest.approx(0.22)
    scope = Scope(limits=Limits(dollars_per_hour=0.32), usage=paid)
    chosen = serving(request(**MARKETS), [PLAIN, offer(RESERVED)], scope, NOW)
    assert [(c.offer.market, c.room) for c in chosen] == [
        (Market.RESERVED, 2), (Market.ON_DEMAND, 1),
    ]  # fmt: skip


@given(
    st.integers(1, 6), st.integers(0, 8), st.floats(0.01, 3.0),
    st.sampled_from([RESERVED, BLOCK, PLAN]),
)  # fmt: skip
def test_no_reservation_is_ever_given_more_than_it_has(
    count: int, running: int, commit: float, held: Held
) -> None:
    held = replace(held, count=0 if held.is_savings_plan else count, commit=commit)
    used = used_by(Usage(), request().pool, offer(held), running)
    chosen = serving(request(**MARKETS), [offer(held), PLAIN], Scope(usage=used), NOW)
    launched = sum(c.room for c in chosen if c.offer.held is not None)
    plan_room = math.floor(commit / offer(held).price + 1e-9)
    limit = plan_room if held.is_savings_plan else count
    assert launched == min(max(limit - running, 0), len(request().nodes))


NODES = tuple("abcdef")


@given(
    st.dictionaries(st.integers(1, 9), st.lists(st.sampled_from(NODES), min_size=1, unique=True)),
    st.dictionaries(st.integers(1, 9), st.sampled_from([0.0, 60.0, 7200.0, math.inf])),
)
def test_a_split_keeps_jobs_whole_and_serves_the_longest_need(
    job_nodes: dict[int, list[str]], needs: dict[int, float]
) -> None:
    parts = split_by_need(NODES, job_nodes, needs)
    assert sorted(node for nodes, _ in parts for node in nodes) == list(NODES)
    assert [need for _, need in parts] == sorted({need for _, need in parts})
    for job, of_job in job_nodes.items():
        (need,) = [need for nodes, need in parts if set(of_job) <= set(nodes)]
        assert need >= needs.get(job, 0.0)
    for nodes, need in parts:
        assert need in {
            0.0,
            *(needs.get(j, 0.0) for j, n in job_nodes.items() if set(n) & set(nodes)),
        }


@given(
    st.dictionaries(st.integers(1, 9), st.floats(0, 9000) | st.just(math.inf), min_size=1),
    st.lists(st.floats(NOW, NOW + 9000), min_size=1, max_size=3),
)
def test_levels_change_for_no_job_which_reservations_serve_it(
    needs: dict[int, float], ends: list[float]
) -> None:
    def served(need: float) -> list[bool]:
        return [NOW + 300 + need + SLACK_S <= end for end in ends]

    found = levelled(needs, ends, 300, NOW)
    assert len(set(found.values())) <= len(set(ends)) + 1
    for job, need in needs.items():
        assert found[job] >= need
        assert served(found[job]) == served(need)
