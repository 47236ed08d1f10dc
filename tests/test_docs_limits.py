"""Each row of the limits in docs/checkpoint-criu.md has a test that keeps it true, and each capability
there a reason.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from slurm_elastic.machine.ckptroot import capabilities

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "checkpoint-criu.md"
MATRIX = TESTS / "realcloud" / "docker" / "matrix" / "programs.toml"
IN_DOCKER, IN_ROOT_PART = "realcloud/docker/test_criu", "machine/ckptroot/test_"

KEPT = {
    "a job on several nodes": "DOCKER_steps::test_who_starts_steps_or_asks_for_two_nodes_reads_at_submission_what_is_not_saved",
    "a step": "DOCKER_steps::test_a_job_is_saved_between_its_steps_and_never_during_one"
    " DOCKER_steps::test_a_step_from_elsewhere_is_one_of_the_job_too",
    "a GPU": "checkpointers/test_refused_saves::test_a_save_is_refused_in_words_that_are_understood",
    "`mpirun` on one node": "matrix::openmpi matrix::mpich",
    "a TCP connection": "matrix::connected-tcp matrix::reconnecting-tcp",
    "sockets that listen, UDP": "ROOT_limits::test_a_listener_is_there_again_unless_its_port_is_taken"
    " ROOT_sockets::test_a_datagram_that_is_not_read_yet_is_in_no_image matrix::udp-socat policies/test_unsavable::test_the_reason_is_one_sentence_with_what_would_help",
    "the next node has another": "ROOT_limits::test_a_listener_is_there_again_unless_its_port_is_taken",
    "a socket that is bound": "ROOT_sockets::test_a_socket_at_an_address_of_its_node_stays_here",
    "a set-user-ID program": "ROOT_task_rights::test_a_task_with_more_than_its_users_rights_is_told"
    " DOCKER_rights::test_what_its_user_could_not_restore_is_not_stopped",
    "files that are used": "ROOT_limits::test_an_image_is_not_used_where_its_files_are_not_as_they_were",
    "files in /tmp": "ROOT_savable::test_files_of_its_node_travel_open_or_closed"
    " ROOT_savable::test_an_open_file_of_this_node_alone_is_told matrix::tmp-closed",
    "locks on files": "ROOT_savable::test_locks_are_held_again_after_the_move"
    " ROOT_savable::test_a_locked_file_that_changed_meanwhile_is_not_gone_on_with",
    "databases in mapped files": "DOCKER_kept::test_a_mutex_in_a_file_stays_that_of_the_process_that_holds_it"
    " DOCKER_kept::test_no_job_goes_back_to_before_what_it_wrote_in_a_locked_file matrix::lmdb",
    "locks of fcntl(2) on a mapped": "DOCKER_kept::test_locks_on_a_file_that_is_mapped_are_held_again"
    " ROOT_locks::test_it_has_them_again_and_goes_on_as_if_nothing_had_been",
    "an open file that was deleted": "ROOT_savable::test_a_large_file_that_was_deleted_is_in_the_image",
    "an open file that never": "DOCKER_kept::test_a_file_without_a_name_comes_back_and_gets_none"
    " checkpointers/test_refused_saves::test_a_save_is_refused_in_words_that_are_understood",
    "daemons that the job starts": "ROOT_savable::test_a_daemon_of_the_job_goes_on_with_it"
    " ROOT_savable::test_a_process_that_left_the_tree_is_told",
    "a process that is not dumpable": "ROOT_task_rights::test_what_cannot_come_back_is_not_saved matrix::ssh-agent",
    "a seccomp filter": "ROOT_task_rights::test_what_cannot_come_back_is_not_saved"
    " ROOT_task_rights::test_a_filter_can_be_set_by_what_may_administer_the_system",
    "a user namespace": "ROOT_task_rights::test_a_task_in_a_user_namespace_of_its_own_is_told matrix::bubblewrap",
    "a process that has confined itself": "matrix::xz",
    "a user with more than 128": "ROOT_task_rights::test_what_cannot_come_back_is_not_saved",
    "inotify": "checkpointers/test_refused_saves::test_a_save_is_refused_in_words_that_are_understood",
    "`kernel.yama.ptrace_scope`": "ROOT_criu::test_a_kernel_that_lets_users_trace_only_descendants_is_refused",
    "CLOCK_MONOTONIC": "matrix::java-scheduler matrix::go-ticker DOCKER_unnoticed::test_what_waits_by_the_clock_waits_as_long_as_on_one_machine"
    " ROOT_criu::test_a_job_whose_clocks_cannot_go_on_is_not_saved",
    "the next node's processor lacks": "ROOT_session::test_an_image_is_not_used_where_its_programs_would_meet_unknown_instructions",
    "the processor's own cycles": "DOCKER_kept::test_its_environment_stays_and_the_time_of_day_goes_on",
    "a parent that asks": "ROOT_limits::test_a_parent_is_told_of_its_child_and_finds_none_stopped",
    "the environment": "DOCKER_kept::test_its_environment_stays_and_the_time_of_day_goes_on",
    "`ProctrackType=proctrack/pgid`": "DOCKER_cgroup::test_the_jobs_processes_are_seen_by_linuxproc_and_not_by_pgid"
    " DOCKER_cgroup::test_a_moved_job_is_in_its_steps_group_and_goes_with_it",
    "CPUs that the program chose": "DOCKER_kept::test_threads_stay_bound_to_the_cpus_that_the_program_chose"
    " ROOT_cpu_binding::test_what_the_new_step_has_no_place_for_keeps_all_of_it",
    "NUMA memory policy": "ROOT_limits::test_it_is_not_kept",
    "Kerberos tickets": "DOCKER_kept::test_what_would_not_work_elsewhere_is_refused_and_goes_on",
    "other keys": "ROOT_limits::test_it_is_not_kept",
    "`valgrind`": "ROOT_unrestorable::test_so_is_valgrind_itself",
    "a program that takes an interrupted": "ROOT_savable::test_who_waits_by_poll_waits_on matrix::tail-follow",
    "`script`": "ROOT_savable::test_what_would_take_a_save_for_a_stop_of_its_child_is_told",
    "System V shared memory": "ROOT_savable::test_system_v_ipc_is_there_again_under_its_numbers",
    "System V semaphores": "ROOT_sysv::test_what_is_to_be_undone_is_known",
    "the program dies of SIGILL": "ROOT_unfit_node::"
    "test_a_program_that_dies_on_another_processor_continues_on_a_third",
    "io_uring": "checkpointers/test_refused_saves::test_a_save_is_refused_in_words_that_are_understood matrix::fio-io-uring",
    "a job that is suspended": "DOCKER_suspended::test_at_a_notice_it_is_saved_and_suspended_where_it_goes_on"
    " ckptman/test_suspended::test_one_that_cannot_be_saved_goes_on_from_its_older_save_and_is_suspended",
    "a process that another one traces": "matrix::strace matrix::gdb",
    "a POSIX message queue": "checkpointers/test_refused_saves::test_a_save_is_refused_in_words_that_are_understood matrix::message-queue",
}
"""How a row begins, and its tests: a file's with a name, or a program of the matrix."""


def test_each_capability_of_criu_has_a_reason() -> None:
    """In parentheses, in what is trusted; CAP_SYS_TIME is the root part's own."""
    text = PAGE.read_text().partition("## What is trusted")[2]
    named = {name[1:] for name in vars(capabilities) if re.fullmatch("_[A-Z]+(_[A-Z]+)*", name)}
    assert len(named) >= 10
    assert {n for n in named | {"SYS_TIME"} if not re.search(rf"CAP_{n}\s+\(", text)} == set()


def rows() -> list[str]:
    text = PAGE.read_text().partition("## Limits of CRIU")[2].partition("\n### ")[0]
    return re.findall(r"^\| (.*?) \|", text, re.MULTILINE)[1:]


def test_each_row_of_the_limits_names_its_tests() -> None:
    found = {row: [key for key in KEPT if row.startswith(key)] for row in rows()}
    assert len(found) > 30
    assert [row for row, keys in found.items() if len(keys) != 1] == []
    assert {key for keys in found.values() for key in keys} == KEPT.keys()


@pytest.mark.parametrize(
    "name", sorted({name for names in KEPT.values() for name in names.split()})
)
def test_a_test_of_the_limits_is_there(name: str) -> None:
    name = name.replace("DOCKER_", f"{IN_DOCKER}_").replace("ROOT_", IN_ROOT_PART)
    file, _, test = name.partition("::")
    if file == "matrix":
        assert test in tomllib.loads(MATRIX.read_text())
    else:
        assert f"\ndef {test}(" in (TESTS / f"{file}.py").read_text()
