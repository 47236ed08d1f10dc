"""Defects of slurm.conf, the submit filter, Slurm's answers and the commands about them."""

from __future__ import annotations

import re
from typing import Any

from slurm_elastic.cli.setting_up import conf_upgrade
from slurm_elastic.model import directive, gres
from slurm_elastic.simulate.histories import jobs
from slurm_elastic.slurm.client import command, requested_job
from slurm_elastic.slurm.conf import check, gresconf, topology
from slurm_elastic.slurm.conf.checks import default_memory
from slurm_elastic.slurm.hooks import sbatch_rules
from slurm_elastic.watch import view
from slurm_elastic.watch.doctor import head
from tests.chaos.defects.registry import found_by
from tests.chaos.rewriting import rewrite, rewrite_file


@found_by(
    "tests/slurm/test_check.py::test_slurmctld_starts_with_the_printed_lines_also_after_a_pool_grew"
)
def a_switch_is_printed_beside_its_old_line(_stage: Any) -> None:
    """slurmctld does not start with two switches of one name."""
    rewrite(topology._missing, ('replaces = locations.get(name, "")', 'replaces = ""'))


@found_by(
    "tests/slurm/test_conf_cli.py::test_check_fails_for_a_site_on_which_slurmctld_does_not_start"
)
def an_install_restarts_into_a_fatal_error(_stage: Any) -> None:
    """The throw-away slurmctld has shown the error, and it counts as a lesser check."""
    report = "replace(_lesser(lines, reason), failure=before.failure)"
    rewrite(check.check, (report, "_lesser(lines, reason)"))


@found_by("tests/model/test_gres.py::test_each_gres_has_its_name_and_count")
def a_type_of_gpus_begins_with_a_letter(_stage: Any) -> None:
    """Nobody understands gpu:3090 and 3g.20gb."""
    gres._NAME = re.compile(r"[\w.-]+(?::[A-Za-z_][\w.-]*)?", re.ASCII)


@found_by("tests/slurm/test_requested_job.py::test_gpus_in_any_option_need_nodes_with_them")
def gpus_of_a_node_are_a_gres_without_a_name(_stage: Any) -> None:
    """price reads --gpus-per-node=1 as a gres called 1."""
    rewrite(requested_job._node_gres, ("*map(gpu_request, gpus)", "*gpus"))


@found_by(
    "tests/e2e/test_request_grammar.py::"
    "test_price_and_explain_name_the_clouds_that_the_filter_lists"
)
def price_names_clouds_that_may_lose_the_job(_stage: Any) -> None:
    """The filter gives no spot machine to a job that may not be requeued."""
    rewrite(sbatch_rules.open_clouds, ("_has_nodes_for(config, cloud, job)", "True"))


@found_by(
    "tests/config/test_renamed_keys.py::"
    "test_a_file_that_the_services_would_still_refuse_is_not_written"
)
def an_upgrade_writes_what_no_service_accepts(_stage: Any) -> None:
    """The services end at their next start."""
    conf_upgrade._require_valid = lambda *_: None


@found_by(
    "tests/cli/test_printed_commands.py::"
    "test_the_command_that_an_order_prints_ends_exactly_this_order"
)
def a_printed_command_names_two_things(_stage: Any) -> None:
    """A cloud and its pool share a name, and no printed command ends the order."""
    rewrite(
        directive._Word.argument,
        ("self.scope or", 'self.scope.removeprefix("cloud:").removeprefix("pool:") or'),
    )


@found_by(
    "tests/slurm/test_submit_never.py::test_no_never_follows_from_a_limit_that_operators_can_raise"
)
def a_job_can_never_start_because_of_a_limit(_stage: Any) -> None:
    """An operator raises the limit, and the job starts at once."""
    fitting = "fitting(data.pools, need, part)"
    rewrite_file("job_never.lua", f"without_limits({fitting})", fitting)


@found_by("tests/watch/test_view.py::test_a_cap_that_an_operator_orders_opens_no_cloud")
def an_ordered_cap_seems_to_open_a_cloud(_stage: Any) -> None:
    """It stays closed, and no screen says why."""
    limits = "    config = with_limits(config, limit_changes(facts.directives, facts.now))\n"
    rewrite(view.status_view, (limits, f"{limits}    blocked = blocked_clouds(config)\n"))


@found_by("tests/slurm/test_command_times.py::test_times_of_slurms_answers_are_right_in_every_zone")
def times_of_slurm_are_read_in_our_own_zone(_stage: Any) -> None:
    """Under another TZ reservations begin hours early."""
    rewrite(command.unix_time, (".replace(tzinfo=UTC)", ""))


@found_by(
    "tests/slurm/test_gresconf.py::"
    "test_a_line_with_files_for_all_nodes_is_refused_without_gpus_in_the_pools"
)
def devices_for_all_nodes_end_every_cloud_machine(_stage: Any) -> None:
    """slurmd ends, and no cloud machine ever joins."""
    rewrite(gresconf._for_all, ("elif has_files and is_read:", "elif False:"))


@found_by(
    "tests/watch/test_doctor.py::"
    "test_an_include_line_that_was_taken_out_after_the_install_is_the_first_thing_wrong"
)
def a_missing_include_line_means_not_installed(_stage: Any) -> None:
    """doctor finds nothing broken while slurmctld drops the cloud nodes."""
    head.lacks_include = lambda *_: False


@found_by("tests/slurm/test_submit_filter.py::test_partition_list_of_a_job")
def cpus_of_gpus_of_a_whole_job_keep_it_at_home(_stage: Any) -> None:
    """Nobody says which node has how many of them, so the filter leaves the job alone."""
    kinds = (f"gres_of(need.{of}_gres, kind)" for of in ("node", "job", "task"))
    rewrite_file("slurm_elastic.lua", " + ".join(kinds), "gres_of(need.node_gres, kind)")


@found_by("tests/slurm/test_small_sites.py::test_a_default_memory_that_no_cloud_node_has_is_named")
def a_default_memory_keeps_all_jobs_from_a_cloud(_stage: Any) -> None:
    """conf check has no word about it."""
    default_memory._above_all_nodes = lambda *_: iter(())


@found_by("tests/simulate/test_swf.py::test_users_may_have_numbers_as_large_as_hashes")
def jobs_of_users_with_large_numbers_are_left_out(_stage: Any) -> None:
    """All jobs of a history count as implausible."""
    jobs._NUMBERS = frozenset()


@found_by(
    "tests/playbook/test_installed_again.py::"
    "test_pip_runs_if_another_release_or_other_extras_are_there"
)
def the_playbook_installs_no_other_extras(_stage: Any) -> None:
    """A cloud's SDK never comes, and the playbook says ok."""
    sources = "{{ slurm_elastic_sources.checksum }}"
    rewrite_file("main.yml", f"{sources} {{{{ slurm_elastic_extras }}}}", sources)
