"""Each fault x each call: afterwards, with the cloud healed and the call repeated, there is exactly
one machine for each node or none, and no error was anything but one of ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from emulated import running_one
from providers.opennebula.bed import INSTANTIATE, OneBed

from slurm_elastic.base.errors import (
    AuthError,
    CapacityError,
    ProviderError,
    QuotaError,
    TransientError,
)
from slurm_elastic.config import Cluster
from slurm_elastic.model.cluster import InstanceState
from slurm_elastic.model.protocols import Provider
from slurm_elastic.providers import open_provider
from slurm_elastic.providers.opennebula.errors import is_refusal
from slurm_elastic.sandbox.ec2_faults import Fault, FaultKind
from slurm_elastic.sandbox.one_control import OneControl
from slurm_elastic.testing.contract import UUID, spec_for
from tests.ports import free_ports

TIMEOUT = 3.0
ACTION = "one.vm.action"
LIST = "one.vmpool.*"
ANYWHERE: dict[FaultKind, type[ProviderError]] = {
    FaultKind.AUTH: AuthError,
    FaultKind.THROTTLE: TransientError,
    FaultKind.INTERNAL: TransientError,
    FaultKind.RESET_BEFORE: TransientError,
    FaultKind.RESET_AFTER: TransientError,
    FaultKind.TIMEOUT_BEFORE: TransientError,
    FaultKind.TIMEOUT_AFTER: TransientError,
}
SILENT = (FaultKind.TIMEOUT_BEFORE, FaultKind.TIMEOUT_AFTER)
LAUNCHING = ANYWHERE | {FaultKind.CAPACITY: CapacityError, FaultKind.QUOTA: QuotaError}


@pytest.fixture(scope="module")
def control(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OneControl]:
    with running_one(tmp_path_factory.mktemp("one")) as running:
        yield running


@pytest.fixture
def bed(control: OneControl, tmp_path: Path) -> OneBed:
    return OneBed(control, tmp_path, user="elastic")


def opened(bed: OneBed, kind: FaultKind) -> Provider:
    """With a time-out that is reached where ``kind`` is one, and not on a busy machine."""
    return bed.open(timeout=TIMEOUT if kind in SILENT else 60.0)


def strike(bed: OneBed, kind: FaultKind, action: str, count: int | None = None) -> None:
    bed.control.fail(Fault(kind=kind, action=action, count=count, seconds=2 * TIMEOUT))


def settled(bed: OneBed, provider: Provider, count: int) -> None:
    """The provider and the cloud agree on so many machines, each of a node of its own."""
    found = [m for m in provider.instances() if m.state is not InstanceState.STOPPING]
    assert {m.id for m in found} == bed.alive()
    assert len({m.node for m in found}) == len(found) == count


@pytest.mark.parametrize("kind", LAUNCHING)
@pytest.mark.parametrize("every", [True, False], ids=["every call", "one call"])
def test_launch(bed: OneBed, kind: FaultKind, every: bool) -> None:
    provider = opened(bed, kind)
    spec = spec_for(bed, provider, 3)
    strike(bed, kind, INSTANTIATE, None if every else 1)
    if not every and LAUNCHING[kind] is not TransientError:
        assert len(provider.launch(spec)) == 2, "the other machines are the answer"
        settled(bed, provider, 2)
        return
    with pytest.raises(LAUNCHING[kind]) as caught:
        provider.launch(spec)
    bed.heal()
    if not isinstance(caught.value, TransientError):
        settled(bed, provider, 0)
    bed.running(len(bed.alive()))
    assert len(bed.open().launch(spec)) == 3
    settled(bed, provider, 3)


def test_without_a_connection_nothing_was_sent(bed: OneBed) -> None:
    (port,) = free_ports(1)
    closed = bed.settings(endpoint=f"http://127.0.0.1:{port}/RPC2")
    provider = open_provider(closed, Cluster(name="site", uuid=UUID))
    with pytest.raises(TransientError) as caught:
        provider.check()
    assert caught.value.code == "NotConnected"
    assert is_refusal(caught.value)


@pytest.mark.parametrize("kind", ANYWHERE)
def test_the_look_up_before_a_launch(bed: OneBed, kind: FaultKind) -> None:
    provider = opened(bed, kind)
    spec = spec_for(bed, provider, 2)
    strike(bed, kind, LIST)
    with pytest.raises(ANYWHERE[kind]):
        provider.launch(spec)
    bed.heal()
    settled(bed, provider, 0)
    assert len(provider.launch(spec)) == 2


@pytest.mark.parametrize("kind", ANYWHERE)
def test_list(bed: OneBed, kind: FaultKind) -> None:
    provider = opened(bed, kind)
    provider.launch(spec_for(bed, provider, 2))
    strike(bed, kind, LIST)
    with pytest.raises(ANYWHERE[kind]):
        provider.instances()
    bed.heal()
    settled(bed, provider, 2)


@pytest.mark.parametrize("kind", ANYWHERE)
@pytest.mark.parametrize("every", [True, False], ids=["every call", "one call"])
def test_terminate(bed: OneBed, kind: FaultKind, every: bool) -> None:
    provider = opened(bed, kind)
    ids = [m.id for m in provider.launch(spec_for(bed, provider, 3))]
    bed.running(3)
    strike(bed, kind, ACTION, None if every else 1)
    with pytest.raises(ANYWHERE[kind]):
        provider.terminate(ids)
    bed.heal()
    provider.terminate(ids)
    assert bed.alive() == set()
    settled(bed, bed.open(), 0)
