"""The docker provider keeps the contract, on a real engine."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from docker_proxy import Fault, running_proxy

from slurm_elastic.base.errors import CapacityError, ProviderError, TransientError
from slurm_elastic.model.cluster import InstanceState
from slurm_elastic.model.protocols import Console
from slurm_elastic.providers.docker.requests import CLUSTER
from slurm_elastic.testing.contract import (
    FaultContract,
    LateFailureContract,
    LaunchContract,
    ScarceContract,
    spec_for,
)

from .bed import DockerBed
from .engine import Engine
from .world import wait_for


@pytest.fixture
def bed(docker_engine: Engine, trixie: str, tmp_path: Path) -> Iterator[DockerBed]:
    with running_proxy(tmp_path / "engine.sock", docker_engine.socket) as proxy:
        made = DockerBed(docker_engine, proxy, trixie)
        yield made
        made.close()


class TestDockerLaunches(LaunchContract): ...


@pytest.mark.release
class TestDockerScarcity(ScarceContract): ...


class TestDockerLateFailures(LateFailureContract): ...


@pytest.mark.release
def test_a_start_whose_answer_is_lost_is_found_running(bed: DockerBed) -> None:
    provider = bed.open()
    spec = spec_for(bed, provider, 2)
    bed.proxy.fail(Fault(drop=True, after=True, match="/start$"))
    with pytest.raises(TransientError):
        provider.launch(spec)
    bed.heal()
    bed.running(2)
    assert {m.id for m in bed.open().launch(spec)} == bed.alive()
    assert len(bed.alive()) == 2


@pytest.mark.release
def test_one_made_but_never_started_is_started_by_the_repetition(bed: DockerBed) -> None:
    provider = bed.open()
    spec = spec_for(bed, provider, 2)
    bed.proxy.fail(Fault(drop=True, match="/start$"))
    with pytest.raises(TransientError):
        provider.launch(spec)
    bed.heal()
    assert {m.state for m in provider.instances()} == {InstanceState.PENDING}
    assert {m.state for m in bed.open().launch(spec)} == {InstanceState.RUNNING}
    assert len(bed.alive()) == 2


@pytest.mark.release
def test_an_end_whose_answer_is_lost_can_be_asked_for_again(bed: DockerBed) -> None:
    provider = bed.open()
    ids = [m.id for m in provider.launch(spec_for(bed, provider, 2))]
    bed.proxy.fail(Fault(drop=True, after=True, match="/kill"))
    with pytest.raises(TransientError):
        provider.terminate(ids)
    bed.heal()
    provider.terminate(ids)
    assert bed.alive() == set()
    wait_for(lambda: not provider.instances(), "they are no machines any more", lambda: "")


def test_a_missing_image_starts_nothing_and_says_so(bed: DockerBed) -> None:
    provider = bed.open(image="nobody/has:it")
    with pytest.raises(ProviderError, match="No such image: nobody/has:it") as caught:
        provider.launch(spec_for(bed, provider, 2))
    assert caught.value.code == "NoImage"
    assert bed.alive() == set()


@pytest.mark.release
def test_a_missing_network_leaves_no_container_behind(bed: DockerBed) -> None:
    mine = str(uuid4())
    provider = bed.open(mine, network="nowhere")
    with pytest.raises(ProviderError, match="nowhere") as caught:
        provider.launch(spec_for(bed, provider, 1))
    assert caught.value.code == "NoNetwork"
    labelled = {"label": f"{CLUSTER}={mine}"}
    assert bed.client.containers.list(all=True, filters=labelled, ignore_removed=True) == []


@pytest.mark.release
def test_a_program_that_ends_at_once_is_soon_no_machine(bed: DockerBed) -> None:
    provider = bed.open(command=("/no/such/program",))
    with contextlib.suppress(CapacityError):  # where it has ended before the launch looks
        provider.launch(spec_for(bed, provider, 1))
    wait_for(lambda: not provider.instances(), "it is no machine any more", lambda: "")
    assert bed.alive() == set()


@pytest.mark.release
def test_what_a_container_printed_is_its_console_also_when_it_has_ended(bed: DockerBed) -> None:
    said = "echo to the left; echo to the right >&2"
    provider = bed.open(command=("sh", "-c", f"{said}; exec sleep infinity"))
    (machine,) = provider.launch(spec_for(bed, provider, 1))
    both = {"to the left", "to the right"}
    for ended in (False, True):
        if ended:
            provider.terminate([machine.id])
        asked = bed.open()  # one that has not started it
        assert isinstance(asked, Console)
        wait_for(lambda a=asked: set(a.console(machine.id).split("\n")) >= both, "all is said", str)
    assert asked.console("0123456789ab") == ""


@pytest.mark.release
class TestDockerFaults(FaultContract):
    asks_for_notices = False
