"""The facts that are gathered of a job and its machines."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from slurm_elastic.ckptman.decide import gather, plan_all
from slurm_elastic.ckptman.snapshot import Snapshot, mean_times_to_interruption
from slurm_elastic.config.job_checkpoint import MethodChoice, policy_of
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.cluster import Instance, InstanceState, Market
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.policies.checkpoint.checkpoint import DEFAULT_MTTI
from slurm_elastic.policies.checkpoint.threat import Response, Threat, ThreatCause
from slurm_elastic.state.ledger import Machine

NOW = 1_800_000_000.0
HOUR = 3600.0


def machine(node: str, kind: str = "small") -> Machine:
    instance = Instance(
        id=f"i-{node}", cloud="pub", node=node, generation="g", instance_type=kind, zone="a",
        market=Market.SPOT, price=0.1, state=InstanceState.RUNNING, launched=NOW - HOUR,
    )  # fmt: skip
    return Machine(instance=instance, pool="burst")


def mtti(nodes: tuple[str, ...], machines: list[Machine], known: dict[str, float]) -> float | None:
    job = SlurmJob(id=7, states=frozenset({"RUNNING"}), nodes=nodes, start=NOW - HOUR)
    choice = MethodChoice(method="fake", policy=policy_of("daly"))
    world = Snapshot(
        now=NOW, jobs={7: job}, machines={m.instance.id: m for m in machines},
        machine_of={m.instance.node: m for m in machines}, threats={}, images={}, mtti=known,
        choices={7: choice},
    )  # fmt: skip
    (facts,) = gather(world)
    (found,) = {s.mtti for s in facts.situations}
    return found


def test_a_job_is_interrupted_as_often_as_all_of_its_machines_together() -> None:
    nodes = tuple(f"n{i}" for i in range(16))
    small = [machine(node) for node in nodes]
    known = mean_times_to_interruption(small, {}, NOW)
    (offer,) = known
    assert known[offer] == 16 * HOUR + DEFAULT_MTTI, "of one machine"
    assert mtti(nodes[:1], small, known) == pytest.approx(known[offer])
    assert mtti(nodes, small, known) == pytest.approx(known[offer] / 16)


@pytest.mark.parametrize(
    ("left", "known", "dump"),
    [
        (None, {}, 60.0),
        (200.0, {}, 60.0),
        (52.0, {}, 27.0),
        (52.0, {7: 40.0}, 40.0),
        (31.0, {}, 6.0),
        (29.0, {}, 5.0),
        (-5.0, {}, 5.0),
    ],
)
def test_a_first_save_is_tried_in_the_time_that_there_is(
    left: float | None, known: dict[int, float], dump: float
) -> None:
    """A guess says when it is to begin; a job that was never saved has nothing else."""
    job = SlurmJob(id=7, states=frozenset({"RUNNING"}), nodes=("n1",), start=NOW - HOUR)
    until = None if left is None else NOW + left
    notice = Threat(
        target="n1",
        cause=ThreatCause.RECLAIM,
        answer=Response.MOVE,
        reason=Quoted(text="x"),
        since=NOW,
        until=until,
    )
    world = Snapshot(
        now=NOW, jobs={7: job}, machines={}, machine_of={}, threats={"n1": (notice,)}, images={},
        mtti={}, choices={7: MethodChoice(method="fake", policy=policy_of("on_notice"))},
        saves=known, expected=60.0, slack=25.0,
    )  # fmt: skip
    (facts,) = gather(world)
    assert [situation.dump for situation in facts.situations] == [dump]
    (plan,) = plan_all([facts], 25.0)
    assert plan.saves is (left is None or left >= dump + 25.0)


def test_machines_of_several_offers_and_one_that_nothing_is_known_of() -> None:
    small, big = machine("n1"), machine("n2", "big")
    times = {small.instance.offer_key: 4 * HOUR, big.instance.offer_key: 12 * HOUR}
    assert mtti(("n1", "n2"), [small, big], times) == pytest.approx(3 * HOUR)
    alone = replace(big, instance=replace(big.instance, node="n3"))
    rates = 1 / (4 * HOUR) + 2 / DEFAULT_MTTI
    assert mtti(("n1", "n3", "own"), [small, alone], {small.instance.offer_key: 4 * HOUR}) == (
        pytest.approx(1 / rates)
    )
