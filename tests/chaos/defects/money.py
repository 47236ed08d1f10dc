"""Defects of costs, caps, budgets and of how many machines are started."""

from __future__ import annotations

from typing import Any

from slurm_elastic.features.files.copy_ages import CopyAges
from slurm_elastic.features.power import stopping
from slurm_elastic.model import cluster
from slurm_elastic.policies.growth import counted_once
from slurm_elastic.policies.launch.pool_order import PoolTerms
from slurm_elastic.policies.money import accounting, reservations
from slurm_elastic.policies.repair import hold_rules, stopped_repairs
from slurm_elastic.state.ledger import retention
from slurm_elastic.state.ledger.books import BookRows
from slurm_elastic.state.ledger.decisions import Decisions
from tests.chaos.defects.registry import found_by
from tests.chaos.rewriting import rewrite


@found_by(
    "tests/controller/test_stopped.py::"
    "test_a_stop_without_effect_is_paid_as_a_running_machine_until_it_ends_beside_the_fresh_one"
)
def a_stopped_machine_runs_on_beside_another(_stage: Any) -> None:
    """No rule minds a stopped machine that runs if another machine serves its node."""
    beside = "any(other.node == machine.node for other in view.tracked)"
    comment = "    # No job runs on it"
    rewrite(
        stopped_repairs.runs_though_stopped,
        (comment, f"    if {beside}:\n        return None\n{comment}"),
    )


@found_by(
    "tests/controller/test_stopped.py::"
    "test_a_machine_that_is_not_ours_any_more_is_no_stopped_machine_and_a_person_reads_it"
)
def a_machine_that_the_cloud_left_alone_counts_as_stopped(_stage: Any) -> None:
    """It may run at its full price."""
    call = "_stops(site, cloud).stop(ids)"
    rewrite(stopping.stop_again, (f"left_alone = {call}", f"left_alone = {call} and ()"))


@found_by(
    "tests/policies/test_reserved_costs.py::"
    "test_disks_are_billed_beside_the_reservation_that_covers_a_machine"
)
def disks_on_reserved_capacity_are_not_billed(_stage: Any) -> None:
    """The reservation's price takes the place of all that the machine costs."""
    price = "held.marginal_price"
    rewrite(reservations._Bills.cover, (f"{price} + hour.disk_price", price))


@found_by(
    "tests/policies/test_reserved_launches.py::"
    "test_a_running_machine_on_a_reservation_counts_with_its_disks"
)
def disks_on_reserved_capacity_are_in_no_cap(_stage: Any) -> None:
    """Caps see the reservation's price alone."""
    rewrite(
        accounting._Counts.add_reserved, (".marginal_price + disk_price if", ".marginal_price if")
    )


@found_by(
    "tests/policies/test_reserved_launches.py::"
    "test_a_refusal_of_one_reservation_leaves_another_of_its_type_and_zone_alone"
)
def two_reservations_of_a_type_have_one_key(_stage: Any) -> None:
    """A refusal of one cools the other down."""
    rewrite(cluster.offer_key_of, ('if reservation else ""', "if False else ''"))


@found_by(
    "tests/policies/test_scaling.py::test_a_growth_that_a_bound_cuts_serves_the_first_jobs_only"
)
def a_growth_that_a_bound_cuts_serves_all_jobs(_stage: Any) -> None:
    """Jobs that got no machine count no longer."""
    rewrite(counted_once._served_entries, ("started >= answer.machines", "started > 0"))


@found_by(
    "tests/controller/test_daemon.py::"
    "test_a_start_with_a_clock_far_ahead_keeps_the_costs_and_the_history"
)
def deletions_go_by_the_clock(_stage: Any) -> None:
    """A clock that is years ahead for one tick deletes the books."""
    retention.advance_record_time = lambda _db, now: now


@found_by("tests/state/ledger/test_marks.py::test_a_message_of_a_clock_ahead_silences_nothing")
def messages_of_the_future_silence_others(_stage: Any) -> None:
    """Until the clock gets there."""
    known = "known_age_s(sent_at, now, kept_s)"
    rewrite(Decisions._known_ages, (known, "now - sent_at if now - sent_at <= kept_s else None"))


@found_by(
    "tests/features/test_copying.py::test_files_have_their_time_whatever_is_done_to_the_clock"
)
def files_have_their_time_by_the_clock(_stage: Any) -> None:
    """A step of the clock loses a job's files, or keeps a machine for as long as the step."""
    CopyAges.age_s = lambda self, row: self._site.now() - row.since  # type: ignore[method-assign]


@found_by(
    "tests/test_recorded_reservations.py::test_the_entry_of_an_ended_reservation_may_be_removed"
)
def reservations_without_an_entry_cost_nothing(_stage: Any) -> None:
    """The past costs what the present configuration says."""
    recorded = "self.recorded_reservations(), entries"
    rewrite(BookRows.counted_reservations, (recorded, "(), entries"))


@found_by("tests/policies/test_pool_order.py::test_whole_leases_are_paid")
def clouds_are_compared_by_the_second(_stage: Any) -> None:
    """The order of the clouds does not know whole leases."""
    rewrite(PoolTerms.billed_hours, ("self.lease_s", "1.0"))


@found_by("tests/policies/test_cluster.py::test_a_node_that_has_its_machine_takes_up_no_room")
def nodes_with_a_machine_take_up_room_of_the_offers(_stage: Any) -> None:
    """Warm machines are replaced although nothing lacks them."""
    rewrite(
        hold_rules._pool_holds,
        ("served = [n for n in able if n in machines]", "served = []"),
        ("if n in due and n not in machines][:room]", "if n in due][:room]"),
    )
