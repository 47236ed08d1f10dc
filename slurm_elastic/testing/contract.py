"""The duties of every provider, according to protocols.Provider. Each cloud brings a test bed.

A cloud's tests inherit the classes that its bed supports, and define the fixture ``bed``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import pytest
from msgspec.structs import replace

from slurm_elastic.base.errors import (
    AuthError,
    CapacityError,
    ProviderError,
    QuotaError,
    TransientError,
)
from slurm_elastic.config import Cluster
from slurm_elastic.config.sections.reservations import Reservation
from slurm_elastic.model.cluster import (
    STANDING,
    EndAnswer,
    InstanceState,
    LaunchSpec,
    Market,
    Offer,
    Pool,
)
from slurm_elastic.model.protocols import LooksUp, Provider, list_tidily
from slurm_elastic.testing.patience import awake, stretched

UUID = "7d1f0c52-4d8e-4f5b-9a3e-0f6c1f5f0a11"
CLUSTER = Cluster(name="site", uuid=UUID)
OTHER_UUID = "11111111-2222-3333-4444-555555555555"
FIVE = (CapacityError, QuotaError, AuthError, TransientError)


class CloudBed(Protocol):
    """A cloud for one test, and control over it."""

    pool: Pool

    def open(self, uuid: str = UUID, timeout: float = 60.0) -> Provider:
        """Open a provider of the cloud, as a new daemon does."""
        ...

    def alive(self) -> set[str]:
        """Return the ids of all machines in the cloud, of all owners, without the provider's
        help.
        """
        ...

    def add_foreign(self) -> set[str]:
        """Start machines without our tags, and without tags of another cluster. Returns their
        ids.
        """
        ...


class ScarceBed(CloudBed, Protocol):
    def limit(self, count: int) -> None:
        """Limit the machines of the cloud to ``count`` in total."""
        ...


class FaultyBed(CloudBed, Protocol):
    def fail(self, error: type[ProviderError]) -> None:
        """Refuse every call until ``heal``."""
        ...

    def heal(self) -> None: ...

    def lose_answers(self) -> None:
        """Carry out calls without an answer until ``heal``."""
        ...

    def fall_silent(self) -> None:
        """Answer no call until ``heal``."""
        ...


class ProtectingBed(CloudBed, Protocol):
    def protect(self, machine: str) -> None:
        """Refuse the termination of this machine permanently."""
        ...

    def unprotect(self, machine: str) -> None: ...


class DelayedBed(CloudBed, Protocol):
    def hide_fresh(self, seconds: float) -> None:
        """Hide new machines from lists for so many seconds after their launch."""
        ...

    def wait(self, seconds: float) -> None: ...


class ReservingBed(CloudBed, Protocol):
    def open_reserved(self, reservation: Reservation) -> Provider:
        """Open a provider whose settings have this reservation."""
        ...


class CrowdedBed(CloudBed, Protocol):
    def crowd(self, count: int) -> set[str]:
        """Start so many machines of other owners. Returns the ids."""
        ...


class ZonedBed(CloudBed, Protocol):
    def silence(self, zone: str) -> None:
        """Let lists lack this zone until ``heal``, in the way in which the cloud reports it."""
        ...

    def heal(self) -> None: ...


class FailingBed(CloudBed, Protocol):
    def fail_late(self, node: str) -> Callable[[], None]:
        """Make the cloud accept the machine of this node and report its failure later. The test
        calls this before the launch. After the launch it calls the returned function, which waits
        until the machine has failed.
        """
        ...


def spec_for(
    bed: CloudBed, provider: Provider, count: int, *, generation: str = "g1"
) -> LaunchSpec:
    return LaunchSpec(
        generation=generation,
        pool=bed.pool,
        nodes=bed.pool.nodes[:count],
        offer=first_offer(bed, provider),
        jobs=(7, 8),
        owner={"account": "physics", "user": "ann"},
    )


def first_offer(bed: CloudBed, provider: Provider) -> Offer:
    return provider.offers(bed.pool)[0]


class LaunchContract:
    """Machines are started in bulk, found by tag and ended by id."""

    def test_offers_are_of_the_pool(self, bed: CloudBed) -> None:
        offers = bed.open().offers(bed.pool)
        assert offers
        for offer in offers:
            assert offer.market in bed.pool.markets
            assert offer.instance_type in bed.pool.instance_types
            assert offer.price >= 0
            assert offer.cpus >= 1

    def test_a_launch_starts_a_machine_for_each_node(self, bed: CloudBed) -> None:
        provider = bed.open()
        spec = spec_for(bed, provider, 3)
        machines = provider.launch(spec)
        assert tuple(m.node for m in machines) == spec.nodes
        assert len({m.id for m in machines}) == 3
        for machine in machines:
            assert machine.cloud == provider.name
            assert machine.generation == "g1"
            assert machine.offer_key == spec.offer.key
            assert machine.price == pytest.approx(spec.offer.price)
            assert abs(machine.launched - time.time()) < 120
            assert machine.state in (InstanceState.PENDING, InstanceState.RUNNING)

    def test_a_restarted_daemon_finds_the_same_machines(self, bed: CloudBed) -> None:
        provider = bed.open()
        started = provider.launch(spec_for(bed, provider, 3))
        listed = bed.open().instances()
        assert {(m.id, m.node, m.generation, m.market) for m in listed} == {
            (m.id, m.node, m.generation, m.market) for m in started
        }
        assert {m.offer_key for m in listed} == {m.offer_key for m in started}

    def test_nodes_keep_their_machines_when_they_are_not_in_order(self, bed: CloudBed) -> None:
        provider = bed.open()
        nodes = (bed.pool.nodes[2], bed.pool.nodes[0], bed.pool.nodes[1])
        spec = LaunchSpec(
            generation="g1", pool=bed.pool, nodes=nodes, offer=first_offer(bed, provider)
        )
        started = provider.launch(spec)
        assert tuple(m.node for m in started) == nodes
        assert {m.id: m.node for m in provider.instances()} == {m.id: m.node for m in started}

    def test_a_repeated_launch_returns_the_first_ones_machines(self, bed: CloudBed) -> None:
        provider = bed.open()
        spec = spec_for(bed, provider, 2)
        original = provider.launch(spec)
        repeated = bed.open().launch(spec)
        assert [m.id for m in repeated] == [m.id for m in original]
        assert len(bed.alive()) == 2

    def test_another_generation_is_another_launch(self, bed: CloudBed) -> None:
        provider = bed.open()
        provider.launch(spec_for(bed, provider, 1))
        other = LaunchSpec(
            generation="g2",
            pool=bed.pool,
            nodes=bed.pool.nodes[1:2],
            offer=first_offer(bed, provider),
        )
        provider.launch(other)
        assert len(bed.alive()) == 2

    def test_terminate_ends_exactly_these(self, bed: CloudBed) -> None:
        provider = bed.open()
        machines = provider.launch(spec_for(bed, provider, 3))
        ended_ids = [m.id for m in machines[:2]]
        assert provider.terminate(ended_ids) == dict.fromkeys(ended_ids, EndAnswer.ENDED)
        assert bed.alive() == {machines[2].id}
        remaining = [m for m in provider.instances() if m.state is not InstanceState.STOPPING]
        assert [m.id for m in remaining] == [machines[2].id]

    def test_terminating_twice_or_what_never_was_is_no_error(self, bed: CloudBed) -> None:
        provider = bed.open()
        machines = provider.launch(spec_for(bed, provider, 2))
        ids = [m.id for m in machines]
        provider.terminate(ids[:1])
        never = "i-00000000000000000"
        answers = provider.terminate([*ids, *ids, never])
        assert answers.keys() == {*ids, never}
        assert answers[ids[1]] is EndAnswer.ENDED
        assert answers[never] is EndAnswer.GONE
        assert bed.alive() == set()
        assert EndAnswer.NOT_OURS not in bed.open().terminate(ids).values()

    def test_terminating_nothing_is_no_error(self, bed: CloudBed) -> None:
        bed.open().terminate([])

    def test_only_a_machine_that_the_cloud_does_not_have_is_gone(self, bed: CloudBed) -> None:
        provider = bed.open()
        if not isinstance(provider, LooksUp):
            return  # its list is all that is known of a machine
        foreign, never = bed.add_foreign(), "i-00000000000000000"
        ids = {m.id for m in provider.launch(spec_for(bed, provider, 1))}
        assert set(provider.gone([*ids, *foreign, never])) == {never}
        assert bed.alive() == ids | foreign
        assert list(provider.gone([])) == []

    def test_machines_of_others_are_neither_listed_nor_touched(self, bed: CloudBed) -> None:
        foreign = bed.add_foreign()
        other = bed.open(OTHER_UUID)
        other_ids = {m.id for m in other.launch(spec_for(bed, other, 1, generation="theirs"))}
        provider = bed.open()
        assert list(provider.instances()) == []
        answers = provider.terminate([*foreign, *other_ids])
        assert answers == dict.fromkeys(foreign | other_ids, EndAnswer.NOT_OURS)
        assert bed.alive() == foreign | other_ids
        assert {m.id for m in other.instances()} == other_ids

    def test_clusters_that_share_an_account_share_no_generation(self, bed: CloudBed) -> None:
        provider, other_provider = bed.open(), bed.open(OTHER_UUID)
        machines = provider.launch(spec_for(bed, provider, 1))
        other = LaunchSpec(
            generation="g1",
            pool=bed.pool,
            nodes=bed.pool.nodes[1:2],
            offer=first_offer(bed, other_provider),
        )
        assert other_provider.launch(other)[0].id != machines[0].id

    def test_a_launch_whose_machine_is_gone_is_not_answered_with_it(self, bed: CloudBed) -> None:
        provider = bed.open()
        spec = spec_for(bed, provider, 1)
        machine = provider.launch(spec)[0]
        provider.terminate([machine.id])
        with pytest.raises(CapacityError):
            provider.launch(spec)
        assert bed.alive() == set()

    def test_check_and_notices_answer(self, bed: CloudBed) -> None:
        provider = bed.open()
        provider.check()
        assert list(provider.notices()) == []


class ScarceContract:
    """The cloud has fewer machines than requested."""

    def test_a_launch_may_be_partial(self, bed: ScarceBed) -> None:
        bed.limit(2)
        provider = bed.open()
        spec = spec_for(bed, provider, 5)
        nodes = [m.node for m in provider.launch(spec)]
        # A bulk call, and calls beside each other, do not choose which machines they make.
        assert nodes == [node for node in spec.nodes if node in nodes]
        assert len(nodes) == len(bed.alive()) == 2

    def test_none_left_is_a_capacity_error(self, bed: ScarceBed) -> None:
        bed.limit(0)
        provider = bed.open()
        with pytest.raises(CapacityError):
            provider.launch(spec_for(bed, provider, 1))

    def test_an_answered_launch_is_answered_again_when_nothing_is_left(
        self, bed: ScarceBed
    ) -> None:
        bed.limit(2)
        provider = bed.open()
        spec = spec_for(bed, provider, 5)
        original_ids = [m.id for m in provider.launch(spec)]
        assert [m.id for m in provider.launch(spec)] == original_ids

    def test_what_is_ended_can_be_had_again(self, bed: ScarceBed) -> None:
        bed.limit(1)
        provider = bed.open()
        machines = provider.launch(spec_for(bed, provider, 1))
        provider.terminate([machines[0].id])
        assert provider.launch(spec_for(bed, provider, 1, generation="g2"))


class FaultContract:
    """Each failure is an error in ``FIVE``, and leaves no machine behind.

    ``asks_for_notices``: False if the provider reads its notices from elsewhere, or has none.
    """

    asks_for_notices = True

    @pytest.mark.parametrize("error", FIVE)
    def test_a_refused_launch_is_one_of_the_five_and_starts_nothing(
        self, bed: FaultyBed, error: type[ProviderError]
    ) -> None:
        provider = bed.open()
        spec = spec_for(bed, provider, 2)
        bed.fail(error)
        with pytest.raises(error) as caught:
            provider.launch(spec)
        assert caught.value.cloud == provider.name
        assert caught.value.code
        bed.heal()
        assert bed.alive() == set()
        assert len(provider.launch(spec)) == 2

    @pytest.mark.parametrize("error", [AuthError, TransientError])
    def test_reads_fail_as_one_of_the_five(
        self, bed: FaultyBed, error: type[ProviderError]
    ) -> None:
        provider = bed.open()
        machine = provider.launch(spec_for(bed, provider, 1))[0]
        bed.fail(error)
        calls = [provider.instances, provider.check, lambda: provider.terminate([machine.id])]
        for call in [*calls, provider.notices] if self.asks_for_notices else calls:
            with pytest.raises(error):
                call()
        bed.heal()
        assert bed.alive() == {machine.id}
        assert len(provider.instances()) == 1

    def test_a_lost_answer_is_found_by_repeating_the_launch(self, bed: FaultyBed) -> None:
        provider = bed.open()
        spec = spec_for(bed, provider, 3)
        bed.lose_answers()
        with pytest.raises(TransientError):
            provider.launch(spec)
        bed.heal()
        started = bed.alive()
        assert len(started) == 3
        assert {m.id for m in provider.launch(spec)} == started
        assert bed.alive() == started

    def test_a_lost_answer_is_found_by_tag(self, bed: FaultyBed) -> None:
        provider = bed.open()
        spec = spec_for(bed, provider, 3)
        bed.lose_answers()
        with pytest.raises(TransientError):
            provider.launch(spec)
        bed.heal()
        listed = bed.open().instances()
        assert {(m.node, m.generation) for m in listed} == {(n, "g1") for n in spec.nodes}

    def test_a_silent_cloud_blocks_no_call_for_longer_than_the_time_out(
        self, bed: FaultyBed
    ) -> None:
        timeout = 2.0
        provider = bed.open(timeout=timeout)
        spec = spec_for(bed, bed.open(), 1)
        bed.fall_silent()
        for call in (
            provider.instances,
            provider.check,
            lambda: provider.launch(spec),
            lambda: provider.terminate(["i-00000000000000001"]),
        ):
            with awake() as took:
                with pytest.raises(TransientError):
                    call()
                assert took() < stretched(timeout)
        bed.heal()


class ProtectedContract:
    """A machine whose termination is refused."""

    def test_one_that_cannot_be_ended_does_not_keep_the_others(self, bed: ProtectingBed) -> None:
        provider = bed.open()
        ids = [m.id for m in provider.launch(spec_for(bed, provider, 4))]
        bed.protect(ids[1])
        for _ in range(2):
            with pytest.raises(ProviderError) as caught:
                provider.terminate(ids)
            assert ids[1] in caught.value.message
            assert bed.alive() == {ids[1]}
        bed.unprotect(ids[1])
        provider.terminate(ids)
        assert bed.alive() == set()


class DelayedContract:
    """Lists lack new machines for a while."""

    def test_a_fresh_machine_is_answered_at_once_and_listed_later(self, bed: DelayedBed) -> None:
        bed.hide_fresh(1.5)
        provider = bed.open()
        machines = provider.launch(spec_for(bed, provider, 2))
        assert len(machines) == 2
        bed.wait(1.6)
        assert {m.id for m in provider.instances()} == {m.id for m in machines}

    def test_a_machine_that_is_not_listed_yet_can_be_ended(self, bed: DelayedBed) -> None:
        bed.hide_fresh(60)
        provider = bed.open()
        machines = provider.launch(spec_for(bed, provider, 2))
        assert list(provider.instances()) == []
        provider.terminate([m.id for m in machines])
        assert bed.alive() == set()


class LateFailureContract:
    """The cloud accepts a machine and reports its failure after the launch was answered. No job can
    use the machine, and its disk and address cost money until it is ended.
    """

    def test_a_machine_that_fails_after_its_launch_is_ended(self, bed: FailingBed) -> None:
        provider = bed.open()
        spec = spec_for(bed, provider, 2)
        fail = bed.fail_late(spec.nodes[0])
        alive = {m.node: m.id for m in provider.launch(spec)}
        fail()
        failed_id, living = alive[spec.nodes[0]], bed.alive()
        bed.open().instances()
        assert bed.alive() == living, "a list ends nothing"
        listed = [(m.id, m.state) for _ in range(2) for m in list_tidily(provider)]
        assert bed.alive() == {alive[spec.nodes[1]]}
        failed = [state for id_, state in listed if id_ == failed_id]
        assert all(state not in STANDING for state in failed), "it serves no node"
        assert failed.count(InstanceState.TERMINATED) <= 1, "its end is news once"
        assert {m.node for m in provider.instances() if m.state in STANDING} == {spec.nodes[1]}

    def test_a_restarted_daemon_ends_it_too(self, bed: FailingBed) -> None:
        provider = bed.open()
        spec = spec_for(bed, provider, 2)
        fail = bed.fail_late(spec.nodes[0])
        alive = {m.node: m.id for m in provider.launch(spec)}
        fail()
        list_tidily(bed.open())
        assert bed.alive() == {alive[spec.nodes[1]]}

    def test_a_repeated_launch_is_not_answered_with_it(self, bed: FailingBed) -> None:
        provider = bed.open()
        spec = spec_for(bed, provider, 2)
        fail = bed.fail_late(spec.nodes[0])
        launched = {m.node: m.id for m in provider.launch(spec)}
        fail()
        list_tidily(provider)
        again = {m.node: m.id for m in provider.launch(spec)}
        assert again == {spec.nodes[1]: launched[spec.nodes[1]]}, "nor with another one"


class OfferContract:
    """The parts of a price beside the type's own. ``price_of_disks`` ($/h) is what a site types."""

    price_of_disks = 0.5

    def test_an_offer_has_the_price_of_the_pools_disks(self, bed: CloudBed) -> None:
        provider = bed.open()
        plain = {o.key: o.price for o in provider.offers(bed.pool)}
        options = replace(bed.pool.machine, disk_price=self.price_of_disks)
        offers = provider.offers(replace(bed.pool, machine=options))
        assert {o.key for o in offers} == plain.keys()
        for offer in offers:
            assert offer.price == pytest.approx(plain[offer.key] + self.price_of_disks)
            assert offer.disk_price == pytest.approx(self.price_of_disks)

    def test_a_spot_offer_reports_what_the_type_costs_on_demand(self, bed: CloudBed) -> None:
        """The ranking takes spot only while it is cheaper."""
        offers = bed.open().offers(bed.pool)
        for offer in (o for o in offers if o.market is Market.SPOT):
            assert offer.on_demand_price is not None
            assert offer.on_demand_price > 0


class ReservedContract:
    """Capacity that the site has reserved in the cloud."""

    def test_a_reservation_is_an_offer_of_its_own(self, bed: ReservingBed) -> None:
        reservation = Reservation(
            name="contract", begins_at=0.0, ends_at=4e9, type=bed.pool.instance_types[0], count=2
        )
        provider = bed.open_reserved(reservation)
        pool = replace(bed.pool, markets=(Market.RESERVED, *bed.pool.markets))
        offers = provider.offers(pool)
        reserved = [o for o in offers if o.market is Market.RESERVED]
        assert reserved
        assert {o.held.name for o in reserved if o.held} == {"contract"}
        assert {o.instance_type for o in reserved} == {reservation.type}
        assert {o.market for o in offers} >= set(bed.pool.markets), "the others stay"
        assert not [o for o in provider.offers(bed.pool) if o.market is Market.RESERVED]


class CrowdedContract:
    """Lists are longer than one page, and most of their machines are of others."""

    others = 600

    def test_our_machines_are_found_among_many_of_others(self, bed: CrowdedBed) -> None:
        provider = bed.open()
        early = provider.launch(spec_for(bed, provider, 1))
        foreign = bed.crowd(self.others)
        late = LaunchSpec(
            generation="g2", pool=bed.pool, nodes=bed.pool.nodes[1:2],
            offer=first_offer(bed, provider),
        )  # fmt: skip
        ours = {m.id for m in (*early, *provider.launch(late))}
        assert {m.id for m in bed.open().instances()} == ours
        provider.terminate(list(ours))
        assert bed.alive() == foreign


class ZonedContract:
    """A part of a list is missing, such as a zone that does not answer. Its machines are not gone,
    so the whole list is an error.
    """

    def test_a_list_without_a_zone_is_an_error(self, bed: ZonedBed) -> None:
        provider = bed.open()
        (machine,) = provider.launch(spec_for(bed, provider, 1))
        bed.silence(machine.zone)
        with pytest.raises(TransientError):
            provider.instances()
        with pytest.raises(TransientError):
            list_tidily(provider)
        with pytest.raises(TransientError):
            bed.open().terminate([machine.id, "i-00000000000000000"])
        bed.heal()
        assert [m.id for m in provider.instances()] == [machine.id]


class BulkContract:
    """Launches of more than a thousand machines."""

    def test_a_launch_of_more_than_a_thousand(self, bed: CloudBed) -> None:
        provider = bed.open(timeout=600)
        spec = spec_for(bed, provider, 1050)
        machines = provider.launch(spec)
        assert tuple(m.node for m in machines) == spec.nodes
        listed = bed.open(timeout=600).instances()
        assert {(m.id, m.node) for m in listed} == {(m.id, m.node) for m in machines}
        provider.terminate([m.id for m in machines])
        assert bed.alive() == set()
