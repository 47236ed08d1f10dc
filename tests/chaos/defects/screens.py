"""Defects of what people read: status, explain, doctor, the page and the commands."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from slurm_elastic.cli.jobs import explain
from slurm_elastic.config import Config, fresh
from slurm_elastic.config.fresh import FreshConfig
from slurm_elastic.features.money import cost_sums
from slurm_elastic.model import requeued_jobs
from slurm_elastic.policies.launch import trial
from slurm_elastic.policies.nodes import kept_nodes
from slurm_elastic.policies.waits import wait
from slurm_elastic.watch.doctor import bursting
from slurm_elastic.watch.door import own_jobs
from slurm_elastic.watch.view import StatusView
from slurm_elastic.watch.view.own_job_rows import OwnJobsReading
from slurm_elastic.watch.view.own_jobs import WAITS, OwnJob
from slurm_elastic.watch.watchdog import Watchdog
from tests.chaos.defects.registry import found_by
from tests.chaos.rewriting import rewrite


@found_by("tests/cli/test_web_configuration.py::test_a_change_of_the_file_is_on_the_page_at_once")
def the_page_reads_its_file_once(_stage: Any) -> None:
    """It shows the configuration of its start for as long as it runs."""
    rewrite(FreshConfig.get, ("is not None and is_same:", "is not None:"))


@found_by("tests/watch/test_watchdog.py::test_a_cloud_that_is_added_while_it_runs_is_watched")
def the_watchdog_reads_its_file_once(_stage: Any) -> None:
    """Machines of a cloud that is added later are not ended."""
    rewrite(Watchdog.look, ("self._renew() or self._watched", "self._watched"))


@found_by(
    "tests/watch/test_kept.py::test_a_node_that_only_waits_for_its_jobs_to_power_down_is_no_news"
)
def our_own_order_is_shown_as_a_persons_drain(_stage: Any) -> None:
    """The printed command undoes the order."""
    kept_nodes._powers_down_by_order = lambda _node: False


@found_by(
    "tests/policies/test_trial.py::"
    "test_a_pool_that_cools_down_is_a_cause_only_before_a_machine_was_launched"
)
def our_own_cool_down_is_a_lack_of_capacity(_stage: Any) -> None:
    """The hold was set because the machine did not register."""
    rewrite(trial.diagnosis, ("if not cause.steps or step in cause.steps", ""))


@found_by(
    "tests/watch/test_doctor_bursting.py::test_a_cloud_whose_nodes_take_no_job_for_now_is_no_fault"
)
def a_cool_down_is_a_fault_to_doctor(_stage: Any) -> None:
    """A monitor of its exit status pages every sold-out night."""
    bursting._closed_nodes = lambda *_: ""


@found_by(
    "tests/controller/test_holds.py::"
    "test_a_job_that_is_refused_again_and_again_waits_since_its_first_submission"
)
def a_wait_begins_at_each_requeue(_stage: Any) -> None:
    """A job that is refused all night has waited for less than a minute."""
    rewrite(
        requeued_jobs.waits_since,
        ("    return min(requeue.waits_since, job.submit)", "    return job.submit"),
    )


@found_by(
    "tests/watch/test_view.py::"
    "test_a_plain_job_shows_that_its_cloud_is_sold_out_though_its_sites_nodes_are_only_busy"
)
def plain_jobs_are_not_told_why_no_cloud_serves_them(_stage: Any) -> None:
    """Slurm's reason for the last partition stands in its place."""
    passing = ("predicates <= OURS | PASSING.keys()", "predicates <= OURS")
    rewrite(wait._obstacles, passing)


@found_by(
    "tests/cli/test_giving_orders.py::test_an_operator_can_look_and_brake_while_the_file_is_wrong"
)
def a_wrong_file_leaves_neither_view_nor_brake(_stage: Any) -> None:
    """Machines cost money meanwhile."""
    caught = "    except ConfigError as error:\n"
    rewrite(fresh.load_or_installed, (caught, f"{caught}        raise\n"))


@found_by("tests/cli/test_explain.py::test_a_boot_that_failed_has_the_next_step")
def a_machine_that_was_taken_out_did_not_register(_stage: Any) -> None:
    """A person is sent to try the pool, which shows nothing new."""
    rewrite(explain._about_last_machine, ("if not failure.is_after_registration:", "if True:"))


@found_by("tests/test_costs.py::test_machines_that_never_became_nodes_are_not_normal")
def failed_boots_are_normal_costs(_stage: Any) -> None:
    """cost calls machines normal that never served."""
    cost_sums._has_failed = lambda _machine: False


@found_by(
    "tests/watch/door/test_own_jobs.py::"
    "test_a_job_for_which_slurm_has_found_no_nodes_does_not_start_now"
)
def a_job_starts_now_that_slurm_has_refused(_stage: Any) -> None:
    """The forecast counts processors alone."""
    own_jobs._is_refuted = lambda *_: False


@found_by("tests/cli/test_same_wait.py::test_all_screens_say_the_same_of_a_job_that_waits[300]")
def own_jobs_are_judged_by_holds_alone(_stage: Any) -> None:
    """mine knows only the nodes that are held, and explain the whole ledger."""
    rows_of = own_jobs.own_job_rows

    def rows(config: Config, reading: OwnJobsReading, view: StatusView) -> list[OwnJob]:
        made = rows_of(config, reading, view)
        return [
            replace(row, reason=_by_holds(config, view, row)) if _waits_freely(row) else row
            for row in made
        ]

    def _waits_freely(row: OwnJob) -> bool:
        return row.state == WAITS and not row.stuck

    own_jobs.own_job_rows = rows


def _by_holds(config: Config, view: StatusView, row: OwnJob) -> str:
    """The reasons of the pools whose nodes are all held, in place of the pools' obstacles."""
    partition_of = {cloud.name: cloud.partition_name for cloud in config.clouds}
    held: dict[str, list[str]] = {}
    for pool in view.pools:
        held.setdefault(partition_of[pool.cloud], []).append(pool.shut)
    shut = {name: held[name] for name in row.partitions if name in held and all(held[name])}
    texts = list(dict.fromkeys(reason for reasons in shut.values() for reason in reasons))
    if set(shut) == set(row.partitions):
        return "; ".join(texts)
    return "; ".join(("Resources: it waits for nodes that are busy, or on their way", *texts))
