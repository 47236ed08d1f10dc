"""Launches behind drawn faults: no node gets two machines, and in the end nothing is left."""

from __future__ import annotations

import random

import pytest
from providers.gcp.bed import GcpBed

from slurm_elastic.base.errors import CapacityError, ProviderError, QuotaError
from slurm_elastic.model.cluster import Instance, LaunchSpec
from slurm_elastic.model.protocols import Provider, list_tidily
from slurm_elastic.sandbox.ec2.faults import Fault, FaultKind
from slurm_elastic.testing.contract import first_offer

LAUNCHES = 150
TRIES = 12
KINDS = (
    FaultKind.THROTTLE, FaultKind.INTERNAL, FaultKind.INTERNAL_AFTER, FaultKind.RESET_BEFORE,
    FaultKind.RESET_AFTER, FaultKind.GARBAGE, FaultKind.AUTH, FaultKind.CAPACITY,
)  # fmt: skip
ACTIONS = (
    "instances.bulkInsert", "instances.list", "instances.delete", "instances.get", "operations.get",
    "operations.list", "images.worker", "regions.get", "token",
)  # fmt: skip


def launched(
    bed: GcpBed, provider: Provider, spec: LaunchSpec, rng: random.Random
) -> tuple[Provider, list[Instance]]:
    """The launch, repeated as the daemon repeats it, sometimes by a new process."""
    for attempt in range(TRIES):
        try:
            return provider, [*provider.launch(spec)]
        except (CapacityError, QuotaError):
            return provider, []
        except ProviderError:
            pass
        if attempt > TRIES // 2:
            bed.heal()
        if rng.random() < 0.3:
            provider = bed.open()
            spec = LaunchSpec(
                generation=spec.generation, pool=spec.pool, nodes=spec.nodes, offer=spec.offer,
                is_repeated=True,
            )  # fmt: skip
    raise AssertionError("the launch never ended")


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.release)])
def test_drawn_faults_double_and_leave_nothing(bed: GcpBed, seed: int) -> None:
    rng = random.Random(seed)
    provider = bed.open()
    offer = first_offer(bed, provider)
    for number in range(LAUNCHES):
        bed.limit(1 if rng.random() < 0.1 else 10**6)
        for _ in range(rng.randint(0, 3)):
            fault = Fault(kind=rng.choice(KINDS), action=rng.choice(ACTIONS), count=1)
            bed.control.fail(fault)
        nodes = bed.pool.nodes[2 * number : 2 * number + 2]
        spec = LaunchSpec(generation=f"g{number}", pool=bed.pool, nodes=nodes, offer=offer)
        provider, machines = launched(bed, provider, spec, rng)
        bed.heal()
        of_launch = [m for m in provider.instances() if m.generation == spec.generation]
        named = [m.node for m in of_launch]
        assert len(named) == len(set(named)), "no node has two machines"
        assert {m.id for m in machines} == {m.id for m in of_launch}, "no machine is unknown"
        provider.terminate([m.id for m in of_launch])
    list_tidily(provider)
    assert bed.alive() == set()
    made = bed.control.state().made
    assert len(made) == len(set(made)) > LAUNCHES, "no name was used twice"
