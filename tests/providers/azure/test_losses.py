"""Launches behind drawn faults: no node gets two machines, and in the end nothing is left."""

from __future__ import annotations

import random

import pytest
from providers.azure.bed import AzureBed

from slurm_elastic.base.errors import CapacityError, ProviderError, QuotaError
from slurm_elastic.config import Cluster
from slurm_elastic.model.cluster import Instance, LaunchSpec
from slurm_elastic.model.protocols import list_tidily
from slurm_elastic.providers.azure.provider import AzureProvider
from slurm_elastic.providers.azure.remains import ORPHAN_S
from slurm_elastic.sandbox.ec2.faults import Fault, FaultKind
from slurm_elastic.testing.contract import UUID, first_offer

LAUNCHES = 300
TRIES = 12
KINDS = (
    FaultKind.THROTTLE, FaultKind.INTERNAL, FaultKind.INTERNAL_AFTER, FaultKind.RESET_BEFORE,
    FaultKind.RESET_AFTER, FaultKind.GARBAGE, FaultKind.AUTH, FaultKind.CAPACITY,
)  # fmt: skip
ACTIONS = ("create", "list", "delete", "get", "instanceView", "networkInterfaces", "disks")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def opened(bed: AzureBed, clock: Clock) -> AzureProvider:
    cluster = Cluster(name="site", uuid=UUID)
    settings = bed.settings(launch_wait=0.01)
    return AzureProvider(settings, cluster, monotonic=clock, poll_every_s=0.005)


def launched(
    bed: AzureBed, provider: AzureProvider, spec: LaunchSpec, clock: Clock, rng: random.Random
) -> tuple[AzureProvider, list[Instance]]:
    """The launch, repeated as the daemon repeats it, sometimes by a new process."""
    for attempt in range(TRIES):
        try:
            return provider, [*provider.launch(spec)]
        except (CapacityError, QuotaError):
            return provider, []
        except ProviderError:
            clock.now += 10
        if attempt > TRIES // 2:
            bed.heal()
        if rng.random() < 0.3:
            provider = opened(bed, clock)
            spec = LaunchSpec(
                generation=spec.generation, pool=spec.pool, nodes=spec.nodes, offer=spec.offer,
                is_repeated=True,
            )  # fmt: skip
    raise AssertionError("the launch never ended")


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.release)])
def test_drawn_faults_double_and_leave_nothing(bed: AzureBed, seed: int) -> None:
    rng, clock = random.Random(seed), Clock()
    provider = opened(bed, clock)
    offer = first_offer(bed, provider)
    for number in range(LAUNCHES // 2):
        bed.world.leaves_parts = rng.random() < 0.2
        bed.world.capacity_late = rng.random() < 0.5
        bed.limit(1 if rng.random() < 0.1 else 10**6)
        for _ in range(rng.randint(0, 3)):
            fault = Fault(kind=rng.choice(KINDS), action=rng.choice(ACTIONS), count=1)
            bed.emulator.faults.add(fault)
        nodes = bed.pool.nodes[2 * number : 2 * number + 2]
        spec = LaunchSpec(generation=f"g{number}", pool=bed.pool, nodes=nodes, offer=offer)
        provider, machines = launched(bed, provider, spec, clock, rng)
        bed.heal()
        of_launch = [m for m in provider.instances() if m.generation == spec.generation]
        named = [m.node for m in of_launch]
        assert len(named) == len(set(named)), "no node has two machines"
        assert {m.id for m in machines} <= {m.id for m in of_launch}
        provider.terminate([m.id for m in of_launch])
        list_tidily(provider)
        clock.now += 60
    for _ in range(3):
        clock.now += ORPHAN_S
        list_tidily(provider)
    assert bed.alive() == set()
    assert bed.world.cards == bed.world.disks == {}
    assert bed.world.made > LAUNCHES // 2
