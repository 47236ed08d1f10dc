"""Defects of the rules that end, keep and count machines, and of the heads that act."""

from __future__ import annotations

from typing import Any

from slurm_elastic.checkpointers.signal import SignalCheckpointer
from slurm_elastic.ckptman import ended_by_save
from slurm_elastic.controller import ending, machine_losers, reconcile
from slurm_elastic.controller.apply import _Apply
from slurm_elastic.controller.launching import boots, open_launches
from slurm_elastic.controller.launching.awaited_nodes import AwaitedNodes
from slurm_elastic.policies.repair import reconcile_rules
from slurm_elastic.state.ledger import decisions
from slurm_elastic.state.ledger.decisions import Decisions
from tests.chaos.defects.registry import found_by
from tests.chaos.rewriting import rewrite


@found_by(
    "tests/controller/test_other_heads.py::"
    "test_a_head_whose_copy_begins_to_launch_stops_and_says_so"
)
def two_heads_end_each_others_machines(_stage: Any) -> None:
    """Nobody looks whether another head launches."""
    reconcile.look_for_other_head = lambda *_: None


@found_by(
    "tests/controller/test_boot_breaker.py::test_machines_that_others_end_soon_pause_their_pool"
)
def machines_that_others_end_pause_no_pool(_stage: Any) -> None:
    """The same job gets machine after machine."""
    first = "    since = site.now() - SOON_S"
    rewrite(boots.record_ended_by_others, (first, f"    return\n{first}"))


@found_by(
    "tests/controller/test_machine_losers.py::test_a_job_that_loses_machine_after_machine_is_held"
)
def a_job_takes_each_machine_with_it(_stage: Any) -> None:
    """Nobody counts the losses of a job."""
    count = ">= max(most_losses, MAX_LOSSES)"
    rewrite(machine_losers.hold_machine_losers, (count, "> 10**9"))


@found_by("tests/state/ledger/test_marks.py::test_each_kind_of_message_has_its_own_bound")
def one_bound_for_all_messages(_stage: Any) -> None:
    """A night of lost jobs silences refused credentials."""
    decisions._kind_of = lambda _key: "any"


@found_by("tests/features/test_telling.py::test_credentials_refused_again_are_reported_again")
def trouble_that_comes_back_is_not_told(_stage: Any) -> None:
    """A new outage within a day counts as the old one."""
    rewrite(
        Decisions.claim_messages,
        ("(return_after_s if key in ended else repeat_after_s)", "repeat_after_s"),
    )


@found_by(
    "tests/controller/test_suspend.py::test_a_failed_end_is_repeated_while_the_clouds_list_fails"
)
def ends_wait_for_the_clouds_list(_stage: Any) -> None:
    """A machine that must end runs on while its cloud's list cannot be read."""
    reconcile_rules._unread = lambda _machine: None


@found_by(
    "tests/controller/test_strays.py::"
    "test_a_machine_that_lost_its_tags_before_its_end_stays_counted_and_is_reported"
)
def a_list_without_the_machine_proves_its_end(_stage: Any) -> None:
    """It also lacks a machine that has lost its tags and runs."""
    answer = "answers.get(m.instance.id) in _ACCEPTED"
    rewrite(ending.confirm_ends, (answer, "m.instance.id in answers"))


@found_by(
    "tests/controller/test_suspend.py::"
    "test_an_error_that_one_machine_is_gone_proves_no_end_of_the_others"
)
def one_gone_machine_proves_that_all_are_gone(_stage: Any) -> None:
    """The others run on in no book."""
    rewrite(ending._request_ends, ("if len(machines) > 1:", "if not machines:"))


@found_by(
    "tests/policies/test_reconcile_rules.py::"
    "test_the_table[too old, and another one of the node is young]"
)
def the_age_of_a_second_machine_powers_the_node_down(_stage: Any) -> None:
    """This ends the node's own machine, too."""
    rewrite(reconcile_rules._aged, ("machine.node in view.crowded and not is_nodes_own", "False"))


@found_by(
    "tests/controller/test_apply.py::"
    "test_an_action_without_a_doer_keeps_no_other_kind_from_its_repair"
)
def an_action_without_a_doer_stops_the_round(_stage: Any) -> None:
    """The repairs after it are not done."""
    lookup = "    do = self.doers[type(batch[0])]\n"
    rewrite(_Apply.do, (f"    try:\n    {lookup}", f"{lookup}    try:\n"))


@found_by(
    "tests/checkpointers/test_signal.py::test_a_script_that_would_die_of_the_signal_gets_none"
)
def a_script_dies_of_the_signal_to_save_itself(_stage: Any) -> None:
    """Slurm signals the batch shell alone, which dies of it."""
    rewrite(SignalCheckpointer._check_script, ("and dies_of_signals(script)", "and False"))


@found_by(
    "tests/ckptman/test_ended_by_save.py::test_an_ordered_save_that_kills_the_job_requeues_it"
)
def a_job_that_died_of_a_save_stays_ended(_stage: Any) -> None:
    """Its work is lost, and nobody requeues it."""
    rewrite(ended_by_save.requeue_ended_runs, ("        if ended_by_save:", "        if False:"))


@found_by(
    "tests/controller/test_awaited_nodes.py::"
    "test_a_request_that_many_offers_refuse_slowly_ends_in_time"
)
def a_machine_starts_after_slurm_has_given_its_node_up(_stage: Any) -> None:
    """Nobody asks how long a request has taken."""
    AwaitedNodes.find_lateness = lambda _self: None  # type: ignore[method-assign]


@found_by(
    "tests/controller/test_awaited_nodes.py::test_without_a_node_of_its_job_no_other_one_gets_a_machine"
)
def a_node_gets_a_machine_that_nobody_waits_for(_stage: Any) -> None:
    """Slurm is asked once, before the first offer."""
    AwaitedNodes.whole = lambda _self, gangs: gangs  # type: ignore[method-assign]


@found_by(
    "tests/controller/test_repeated_calls.py::"
    "test_a_launch_that_is_forbidden_by_now_is_settled_without_a_call"
)
def a_forbidden_launch_is_repeated(_stage: Any) -> None:
    """It may be the first call that reaches the cloud."""
    open_launches.find_stop = lambda *_: None
