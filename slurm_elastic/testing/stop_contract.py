"""The duties of a provider that can stop machines and start them again (protocols.Stops)."""

from __future__ import annotations

import contextlib

import pytest
from msgspec import structs

from slurm_elastic.base.errors import (
    AuthError,
    InstanceNotFound,
    ProviderError,
    TransientError,
)
from slurm_elastic.model.cluster import Instance, InstanceState, LaunchSpec, Market
from slurm_elastic.model.protocols import Provider, Stops
from slurm_elastic.testing.contract import OTHER_UUID, CloudBed, FaultyBed, spec_for
from slurm_elastic.testing.patience import eventually


class StopContract:
    """Stopped machines keep their identity, and start, stop and end as running machines do."""

    def test_a_stopped_machine_starts_again_as_what_it_was(self, bed: CloudBed) -> None:
        provider = bed.open()
        machine, other = provider.launch(_stoppable_spec(bed, provider, 2))
        running = _wait_for_state(provider, machine.id, InstanceState.RUNNING)
        _stops(provider).stop([machine.id])
        stopped = _wait_for_state(bed.open(), machine.id, InstanceState.STOPPED)
        assert _identity(stopped) == _identity(running)
        assert bed.alive() - {machine.id} == {other.id}, "a bed may count what runs"
        _stops(provider).stop([machine.id])  # it is no error
        _stops(bed.open()).start(machine.id)
        restarted = _wait_for_state(provider, machine.id, InstanceState.RUNNING)
        assert _identity(restarted) == _identity(running)
        _stops(provider).start(machine.id)  # nor is this
        states = {m.id: m.state for m in provider.instances()}
        assert states == dict.fromkeys((machine.id, other.id), InstanceState.RUNNING)

    def test_it_can_be_stopped_once_more(self, bed: CloudBed) -> None:
        provider = bed.open()
        (machine,) = provider.launch(_stoppable_spec(bed, provider, 1))
        for _ in range(2):
            _wait_for_state(provider, machine.id, InstanceState.RUNNING)
            _stops(provider).stop([machine.id])
            _wait_for_state(provider, machine.id, InstanceState.STOPPED)
            _stops(provider).start(machine.id)
        _wait_for_state(provider, machine.id, InstanceState.RUNNING)

    def test_a_stopped_machine_can_be_ended_and_is_not_started_then(self, bed: CloudBed) -> None:
        provider = bed.open()
        (machine,) = provider.launch(_stoppable_spec(bed, provider, 1))
        _wait_for_state(provider, machine.id, InstanceState.RUNNING)
        _stops(provider).stop([machine.id])
        _wait_for_state(provider, machine.id, InstanceState.STOPPED)
        provider.terminate([machine.id])
        eventually(lambda: machine.id not in bed.alive())
        with pytest.raises(ProviderError) as caught:
            _stops(provider).start(machine.id)
        assert not isinstance(caught.value, TransientError)
        assert all(m.state is not InstanceState.STOPPED for m in bed.open().instances())

    def test_machines_of_others_are_neither_stopped_nor_started(self, bed: CloudBed) -> None:
        foreign = bed.add_foreign()
        other_provider = bed.open(OTHER_UUID)
        (other_machine,) = other_provider.launch(
            _stoppable_spec(bed, other_provider, 1, generation="theirs")
        )
        _wait_for_state(other_provider, other_machine.id, InstanceState.RUNNING)
        provider = _stops(bed.open())
        assert set(provider.stop([*foreign, other_machine.id])) == {*foreign, other_machine.id}
        with pytest.raises(InstanceNotFound):
            provider.start(other_machine.id)
        _wait_for_state(other_provider, other_machine.id, InstanceState.RUNNING)
        assert bed.alive() == foreign | {other_machine.id}

    def test_the_recipe_is_the_same_until_something_changes(self, bed: CloudBed) -> None:
        word = _stops(bed.open()).recipe(bed.pool)
        assert word
        assert _stops(bed.open()).recipe(bed.pool) == word
        assert _stops(bed.open()).recipe(structs.replace(bed.pool, name="other")) != word


class StopFaultContract:
    """Each failure of a stop or start is an error in ``contract.FIVE``."""

    @pytest.mark.parametrize("error", [AuthError, TransientError])
    def test_stops_and_starts_fail_as_one_of_the_five(
        self, bed: FaultyBed, error: type[ProviderError]
    ) -> None:
        provider = bed.open()
        (machine,) = provider.launch(_stoppable_spec(bed, provider, 1))
        _wait_for_state(provider, machine.id, InstanceState.RUNNING)
        bed.fail(error)
        with pytest.raises(error):
            _stops(provider).stop([machine.id])
        with pytest.raises(error):
            _stops(provider).start(machine.id)
        bed.heal()
        _wait_for_state(provider, machine.id, InstanceState.RUNNING)


def _stoppable_spec(
    bed: CloudBed, provider: Provider, count: int, *, generation: str = "g1"
) -> LaunchSpec:
    """Return a launch of machines that can be stopped, which spot machines cannot."""
    offer = next(o for o in provider.offers(bed.pool) if o.market is not Market.SPOT)
    return structs.replace(spec_for(bed, provider, count, generation=generation), offer=offer)


def _stops(provider: Provider) -> Stops:
    assert isinstance(provider, Stops)
    return provider


def _identity(machine: Instance) -> tuple[object, ...]:
    return machine.id, machine.node, machine.generation, machine.offer_key, machine.price


def _wait_for_state(provider: Provider, machine: str, state: InstanceState) -> Instance:
    """Wait until the cloud lists the machine in that state, and return it. The first lists may
    fail, because a connection may still be broken by an earlier fault.
    """

    def look() -> Instance | None:
        with contextlib.suppress(TransientError):
            for listed in provider.instances():
                if listed.id == machine and listed.state is state:
                    return listed
        return None

    listed = eventually(look, told=lambda: [m for m in provider.instances() if m.id == machine])
    assert listed is not None
    return listed
