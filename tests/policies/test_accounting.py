from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from ledger_cases import T0, instance, offer, pool, spec
from machine_cases import changed

from slurm_elastic.model.cluster import Market, Usage
from slurm_elastic.policies.money.accounting import usage
from slurm_elastic.state.ledger import Machine
from slurm_elastic.state.ledger.launches import launch_of_spec

SPOT = offer()
ON_DEMAND = offer(market=Market.ON_DEMAND, price=0.12, on_demand=None)
LOCAL = offer(cloud="onprem", market=Market.RESERVED, price=0.01, on_demand=None)


def machine(id_: str, bought: object = SPOT, pool: str = "burst", worst: float = 0.0) -> Machine:
    return Machine(instance=instance(id_, bought=bought), pool=pool, worst_price=worst)


def test_nothing_is_nothing() -> None:
    assert usage([], []) == Usage(nodes={}, dollars_per_hour={})


def test_machines_and_open_intents_count_in_every_scope() -> None:
    machines = [machine("i-1", worst=0.12), machine("l-1", LOCAL, "rack")]
    intent = launch_of_spec(spec("g2", ("pub2", "pub3"), bought=ON_DEMAND), "r", T0, {})
    found = usage(machines, [intent])
    assert found.nodes == {
        "": 4,
        "cloud:aws": 3,
        "cloud:onprem": 1,
        "pool:burst": 3,
        "pool:rack": 1,
        "market:spot": 1,
        "market:on-demand": 2,
        "market:reserved": 1,
        "cloud:aws:spot": 1,
        "cloud:aws:on-demand": 2,
        "cloud:onprem:reserved": 1,
    }
    assert {k: round(v, 9) for k, v in found.dollars_per_hour.items()} == {
        "": 0.37,
        "cloud:aws": 0.36,
        "cloud:onprem": 0.01,
    }


def test_ended_machines_are_not_paid_and_suspending_ones_are() -> None:
    ended = changed(machine("i-1"), ended=T0)
    suspending = changed(machine("i-2"), suspending=T0)
    assert usage([ended, suspending], []).nodes[""] == 1


def test_spot_counts_at_what_it_may_come_to() -> None:
    assert usage([machine("i-1")], []).dollars_per_hour[""] == 0.04
    assert usage([machine("i-1", worst=0.12)], []).dollars_per_hour[""] == 0.12
    assert usage([machine("i-1", worst=0.12)], [], {SPOT.key: 0.2}).dollars_per_hour[""] == 0.2
    intent = launch_of_spec(spec("g2", ("pub2",)), "r", T0, {})
    assert usage([], [intent]).dollars_per_hour[""] == 0.12
    assert usage([], [intent], {SPOT.key: 0.2}).dollars_per_hour[""] == 0.2


def test_an_intent_whose_machines_are_partly_known_counts_once() -> None:
    intent = launch_of_spec(spec("g1", ("pub1", "pub2", "pub3")), "r", T0, {})
    assert usage([machine("i-1"), machine("i-2")], [intent]).nodes[""] == 3
    full = [machine(f"i-{n}") for n in range(5)]
    assert usage(full, [intent]).nodes[""] == 5


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([SPOT, ON_DEMAND, LOCAL]), st.booleans())),
    st.lists(st.tuples(st.sampled_from([SPOT, ON_DEMAND, LOCAL]), st.integers(1, 5))),
)
def test_scopes_add_up(bought: list, intents: list) -> None:
    machines = [
        changed(machine(f"i-{n}", o), ended=T0 if over else None)
        for n, (o, over) in enumerate(bought)
    ]
    launches = [
        launch_of_spec(
            spec(f"x{n}", tuple(f"n{k}" for k in range(count)), pool(cloud=o.cloud), o), "r", T0, {}
        )
        for n, (o, count) in enumerate(intents)
    ]
    found = usage(machines, launches)
    total = found.nodes.get("", 0)
    assert total == sum(1 for _, over in bought if not over) + sum(c for _, c in intents)

    def scopes(prefix: str, colons: int) -> int:
        return sum(
            count
            for key, count in found.nodes.items()
            if key.startswith(prefix) and key.count(":") == colons
        )

    assert scopes("cloud:", 1) == scopes("cloud:", 2) == scopes("pool:", 1) == total
    assert scopes("market:", 1) == total
    dollars = found.dollars_per_hour
    clouds = sum(value for key, value in dollars.items() if key)
    assert abs(dollars.get("", 0.0) - clouds) < 1e-9
