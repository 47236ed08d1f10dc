"""The contract of clouds that can stop machines and start them again."""

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
from slurm_elastic.testing.contract import OTHER_UUID, Bed, FaultyBed, spec_for
from slurm_elastic.testing.patience import eventually


class StopContract:
    """The duties of clouds whose machines can be stopped and started again (protocols.Stops)."""

    def test_a_stopped_machine_starts_again_as_what_it_was(self, bed: Bed) -> None:
        provider = bed.open()
        one, other = provider.launch(_lasting(bed, provider, 2))
        before = _reached(provider, one.id, InstanceState.RUNNING)
        _stops(provider).stop([one.id])
        off = _reached(bed.open(), one.id, InstanceState.STOPPED)
        assert _what(off) == _what(before)
        assert bed.alive() - {one.id} == {other.id}, "a bed may count what runs"
        _stops(provider).stop([one.id])  # it is no error
        _stops(bed.open()).start(one.id)
        again = _reached(provider, one.id, InstanceState.RUNNING)
        assert _what(again) == _what(before)
        _stops(provider).start(one.id)  # nor is this
        states = {m.id: m.state for m in provider.instances()}
        assert states == dict.fromkeys((one.id, other.id), InstanceState.RUNNING)

    def test_it_can_be_stopped_once_more(self, bed: Bed) -> None:
        provider = bed.open()
        (one,) = provider.launch(_lasting(bed, provider, 1))
        for _ in range(2):
            _reached(provider, one.id, InstanceState.RUNNING)
            _stops(provider).stop([one.id])
            _reached(provider, one.id, InstanceState.STOPPED)
            _stops(provider).start(one.id)
        _reached(provider, one.id, InstanceState.RUNNING)

    def test_a_stopped_machine_can_be_ended_and_is_not_started_then(self, bed: Bed) -> None:
        provider = bed.open()
        (one,) = provider.launch(_lasting(bed, provider, 1))
        _reached(provider, one.id, InstanceState.RUNNING)
        _stops(provider).stop([one.id])
        _reached(provider, one.id, InstanceState.STOPPED)
        provider.terminate([one.id])
        eventually(lambda: one.id not in bed.alive())
        with pytest.raises(ProviderError) as caught:
            _stops(provider).start(one.id)
        assert not isinstance(caught.value, TransientError)
        assert all(m.state is not InstanceState.STOPPED for m in bed.open().instances())

    def test_machines_of_others_are_neither_stopped_nor_started(self, bed: Bed) -> None:
        foreign = bed.add_foreign()
        theirs = bed.open(OTHER_UUID)
        (one,) = theirs.launch(_lasting(bed, theirs, 1, generation="theirs"))
        _reached(theirs, one.id, InstanceState.RUNNING)
        ours = _stops(bed.open())
        ours.stop([*foreign, one.id])
        with pytest.raises(InstanceNotFound):
            ours.start(one.id)
        _reached(theirs, one.id, InstanceState.RUNNING)
        assert bed.alive() == foreign | {one.id}

    def test_the_recipe_is_the_same_until_something_changes(self, bed: Bed) -> None:
        word = _stops(bed.open()).recipe(bed.pool)
        assert word
        assert _stops(bed.open()).recipe(bed.pool) == word
        assert _stops(bed.open()).recipe(structs.replace(bed.pool, name="other")) != word


class StopFaultContract:
    """Each failure of it is one of the five."""

    @pytest.mark.parametrize("error", [AuthError, TransientError])
    def test_stops_and_starts_fail_as_one_of_the_five(
        self, bed: FaultyBed, error: type[ProviderError]
    ) -> None:
        provider = bed.open()
        (one,) = provider.launch(_lasting(bed, provider, 1))
        _reached(provider, one.id, InstanceState.RUNNING)
        bed.fail(error)
        with pytest.raises(error):
            _stops(provider).stop([one.id])
        with pytest.raises(error):
            _stops(provider).start(one.id)
        bed.heal()
        _reached(provider, one.id, InstanceState.RUNNING)


def _lasting(bed: Bed, provider: Provider, count: int, *, generation: str = "g1") -> LaunchSpec:
    """Spot machines cannot be stopped."""
    offer = next(o for o in provider.offers(bed.pool) if o.market is not Market.SPOT)
    return structs.replace(spec_for(bed, provider, count, generation=generation), offer=offer)


def _stops(provider: Provider) -> Stops:
    assert isinstance(provider, Stops)
    return provider


def _what(one: Instance) -> tuple[object, ...]:
    return one.id, one.node, one.generation, one.offer_key, one.price


def _reached(provider: Provider, machine: str, state: InstanceState) -> Instance:
    """The machine, once its cloud has it so. A connection may still be broken by what was wrong."""

    def look() -> Instance | None:
        with contextlib.suppress(TransientError):
            for found in provider.instances():
                if found.id == machine and found.state is state:
                    return found
        return None

    found = eventually(look, told=lambda: [m for m in provider.instances() if m.id == machine])
    assert found is not None
    return found
