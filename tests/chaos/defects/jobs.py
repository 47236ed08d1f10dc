"""Defects that lose work of jobs, or let one user reach what is another's."""

from __future__ import annotations

import fcntl
import re
from typing import Any

from msgspec.structs import replace

from slurm_elastic.checkpointers.node_helper_client import LaunchedCheckpointer
from slurm_elastic.checkpointers.signal_book import Book
from slurm_elastic.features.files.shared_outputs import SharedOutputs
from slurm_elastic.machine.ckptroot import caller, job_init, kernel, proc, restoring, starting
from slurm_elastic.machine.ckptroot.hold import JobHold
from slurm_elastic.machine.ckptroot.saving import RunSaves
from slurm_elastic.machine.ckptroot.session import Session
from slurm_elastic.machine.ckptroot.store import JobStore
from slurm_elastic.machine.hub.link import Link
from slurm_elastic.machine.jobfiles import head, node
from slurm_elastic.machine.programs.tunnel import TunnelInterface
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.slurm.client import job_files
from tests.chaos.defects.registry import found_by
from tests.chaos.rewriting import rewrite, rewrite_file


@found_by(
    "tests/slurm/test_contract.py::TestCommandLine::test_no_name_of_a_job_stands_for_its_user_or_its_files"
)
def a_jobs_name_stands_for_its_user(_stage: Any) -> None:
    """Root copies files as the user whom the name of the job names."""
    real = job_files.files_of

    def files_of(job: SlurmJob) -> job_files.JobFiles:
        named = re.search(r"UserId=\S*\((\d+)\)", job.name)
        return real(job if named is None else replace(job, uid=int(named[1])))

    job_files.files_of = files_of


@found_by(
    "tests/machine/jobfiles/test_jobfiles.py::test_a_directory_that_both_ends_share_keeps_its_files"
)
def a_copy_of_a_shared_directory_removes_it(_stage: Any) -> None:
    """What a machine removes is the user's own if head and machine share the directory."""
    node._check_different = lambda *_: None
    rewrite(node._take_in, ('if book.directory in header["shared"]:', "if False:"))
    rewrite(
        node._give_back,
        ('if book.has_run and book.directory not in header["shared"]:', "if book.has_run:"),
    )


@found_by(
    "tests/machine/jobfiles/test_jobfiles.py::test_files_that_the_machine_had_before_are_left"
)
def a_copy_removes_files_that_it_did_not_bring(_stage: Any) -> None:
    """All that is in the directory counts as the job's."""
    rewrite(node._send_changes, ("if path not in book.own:", "if True:"))


@found_by(
    "tests/machine/ckptroot/test_proc.py::"
    "test_a_family_has_the_children_that_other_threads_have_started"
)
def children_of_other_threads_are_not_seen(_stage: Any) -> None:
    """Their files are not protected, and they outlive a set that is given up."""
    rewrite(proc.family, ("for thread in threads_of(parent):", "for thread in [parent]:"))


@found_by(
    "tests/machine/ckptroot/test_identity.py::"
    "test_a_job_does_not_continue_from_the_images_of_an_earlier_job_with_its_number"
)
def a_job_continues_from_an_earlier_job_with_its_number(_stage: Any) -> None:
    """It runs the script of the earlier job, too."""
    rewrite(
        starting.meta_of,
        (
            "(before.key(site.cluster), before.method) == (key, method)",
            "(before.uid, before.gid, before.method) == (caller.uid, caller.gid, method)",
        ),
    )


@found_by(
    "tests/checkpointers/test_signal.py::test_the_saves_of_an_earlier_job_with_this_number_are_none"
)
def saves_by_a_signal_belong_to_a_number(_stage: Any) -> None:
    """A later job with the number is requeued from the saves of the earlier one."""
    Book.is_of = lambda *_: True  # type: ignore[method-assign]


@found_by(
    "tests/machine/ckptroot/test_session.py::test_an_image_needs_the_processors_of_all_its_runs"
)
def an_image_needs_the_processor_of_its_first_run_alone(_stage: Any) -> None:
    """Programs that began after a move die on a lesser processor."""
    rewrite(
        restoring.restore,
        ("sorted({*started_with, *instructions.of_node()})", "sorted(started_with)"),
    )


@found_by(
    "tests/machine/ckptroot/test_unfit_node.py::"
    "test_an_image_needs_the_processors_of_the_jobs_other_nodes"
)
def an_image_needs_the_processor_of_the_first_node_alone(_stage: Any) -> None:
    """Ranks on other nodes are not compared."""
    rewrite(
        RunSaves._complete,
        ("{*run.instructions, *method.other_instructions()}", "{*run.instructions}"),
    )


@found_by(
    "tests/machine/ckptroot/test_unfit_node.py::"
    "test_a_program_that_dies_on_another_processor_continues_on_a_third"
)
def a_program_that_dies_on_another_processor_has_ended(_stage: Any) -> None:
    """Its images are removed."""
    rewrite(Session._has_died_of_processor, ("is_young and", "False and"))


@found_by("tests/machine/jobfiles/test_jobfiles.py::test_a_reader_of_an_output_holds_up_no_copy")
def a_copy_waits_for_whoever_locks_an_output(_stage: Any) -> None:
    """Everybody who may read a file may lock it."""
    lock = "        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
    held = "    with locks.held(status"
    head.fcntl = fcntl  # type: ignore[attr-defined]
    rewrite(head._write_output, (f"    {held}", f"{lock}    {held}"))


@found_by(
    "tests/machine/jobfiles/test_jobfiles.py::"
    "test_no_output_is_written_over_the_output_of_another_job"
)
def an_output_whose_beginning_fits_is_written_whole(_stage: Any) -> None:
    """It is written over the output of another job, which stands behind the beginning."""
    rewrite(head._find_place, ("if block.startswith(present):", "if differs_at > base:"))


@found_by(
    "tests/features/test_copying.py::test_tasks_that_write_one_file_of_a_machine_have_one_base"
)
def each_task_begins_at_the_end_of_the_heads_file(_stage: Any) -> None:
    """The text of all earlier tasks of an array is appended with each task."""
    rewrite(SharedOutputs.put, ("if _shares(other, row):", "if False:"))


@found_by(
    "tests/checkpointers/test_launcher_status.py::"
    "test_a_directory_that_cannot_be_read_is_no_verdict_about_its_jobs"
)
def a_directory_that_is_away_has_no_launcher(_stage: Any) -> None:
    """While a file server restarts, users are told that their jobs cannot be saved."""
    unreadable = "raise self._unreadable(error) from error"
    rewrite(
        LaunchedCheckpointer._status,
        (f"        if not self._is_readable():\n            {unreadable}\n", ""),
        (unreadable, "return None"),
    )


@found_by("tests/machine/ckptroot/test_store.py::test_images_that_cannot_be_listed_are_not_none")
def images_that_cannot_be_listed_are_none(_stage: Any) -> None:
    """The job starts over, and its last good image is deleted later."""
    rewrite(JobStore.images, ("except FileNotFoundError:", "except OSError:"))


@found_by(
    "tests/machine/programs/test_tunnel.py::"
    "test_a_tunnel_is_up_if_data_comes_whatever_the_clock_shows"
)
def a_tunnel_is_up_by_the_clock(_stage: Any) -> None:
    """A machine whose clock was set back takes a dead tunnel for a live one."""
    rewrite(
        TunnelInterface.is_up,
        ("time.monotonic() - self.heard_at", "time.time() - self.heard_at"),
        ("self.heard_at = time.monotonic()", "self.heard_at = time.time()"),
    )


@found_by(
    "tests/machine/hub/test_calling.py::"
    "test_a_machine_that_opens_the_tunnel_and_falls_silent_is_configured_from_scratch_once"
)
def a_silent_machine_keeps_its_peer(_stage: Any) -> None:
    """The head refuses its handshakes until the machine's clock has caught up."""
    rewrite(Link.call_silent, ("now - heard[peer.key][1] >= silent_s", "False"))


@found_by(
    "tests/machine/ckptroot/test_identity.py::"
    "test_a_replaced_run_does_not_carry_out_the_next_runs_request"
)
def a_replaced_run_saves_over_the_next_one(_stage: Any) -> None:
    """Its stale image becomes the newest."""
    JobStore.require_ours = lambda _: None  # type: ignore[method-assign]


@found_by(
    "tests/machine/jobfiles/test_jobfiles.py::"
    "test_a_job_reads_its_users_file_and_no_file_of_a_job_that_was_given_up"
)
def a_job_computes_with_a_file_of_a_dead_job(_stage: Any) -> None:
    """Its user's newer file does not come."""
    others = "book.has_others_at(path) and not book.has_come"
    rewrite(node._take_in, (f"keep = {others}", "keep = path in book.base and not book.has_come"))


@found_by(
    "tests/machine/ckptroot/test_caller.py::test_a_job_has_the_groups_of_sudo_except_roots_groups"
)
def jobs_have_the_groups_that_the_node_knows(_stage: Any) -> None:
    """Not those that Slurm gave them."""
    rewrite(caller.slurms_groups, ("if 0 not in groups:", "if False:"))


@found_by(
    "tests/machine/ckptroot/test_restarts.py::"
    "test_a_failed_save_of_a_restarted_run_leaves_the_image_good"
)
def a_failed_save_cuts_the_outputs_of_the_image_before(_stage: Any) -> None:
    """A good image is refused for its copies, and the job starts over for good."""
    rewrite(
        RunSaves._keep_outputs, ("    if lines.leaves_line(", "    if False and lines.leaves_line(")
    )


@found_by(
    "tests/machine/ckptroot/test_restarts.py::"
    "test_the_image_of_more_work_stays_until_the_new_images_have_as_much"
)
def the_highest_numbers_are_the_best_images(_stage: Any) -> None:
    """A run that began over drops the image with days of work."""
    rewrite(
        JobStore._drop_unneeded,
        ("lines.needed(images, self.site.keep)", "sorted(images)[-self.site.keep:]"),
    )


@found_by("tests/providers/base/test_joining.py::test_a_job_that_has_not_ended_keeps_its_files")
def a_wipe_takes_the_files_of_a_job_that_configures(_stage: Any) -> None:
    """The job starts without its input."""
    rewrite_file(
        "slurm-elastic-wipe", '"--format=%A %T"]',
        '"--states=RUNNING,SUSPENDED,STOPPED", "--format=%A %T"]',
    )  # fmt: skip


@found_by(
    "tests/machine/ckptroot/test_job_init.py::"
    "test_a_message_about_any_number_of_tasks_arrives_whole"
)
def a_message_about_many_tasks_ends_the_job(_stage: Any) -> None:
    """Process 1 reads a part of it, and dies after a good save."""
    rewrite(job_init.receive, ("json.load(file)", "json.loads(file.read(65536))"))


@found_by("tests/machine/ckptroot/test_hold.py::test_a_hold_that_the_head_renews_does_not_end")
def a_held_job_continues_while_its_image_is_read(_stage: Any) -> None:
    """The next run begins from less work."""
    JobHold.extend = lambda _self: None  # type: ignore[method-assign]


@found_by(
    "tests/machine/ckptroot/test_way_in.py::"
    "test_a_job_with_images_waits_until_its_directory_is_no_longer_read_only"
)
def a_job_starts_over_in_a_read_only_directory(_stage: Any) -> None:
    """It has images, and they could be read."""
    endless = "isinstance(error, OSError) and _has_images(store)"
    rewrite(starting.take, (endless, "False"))


@found_by(
    "tests/machine/ckptroot/test_unfit_node.py::"
    "test_images_that_cannot_be_listed_are_not_taken_for_none"
)
def an_unreadable_list_of_images_starts_the_job_over(_stage: Any) -> None:
    """An error of the file server counts as a fault of the images."""
    waiting = "        self._wait_elsewhere()\n        return\n    may_go"
    rewrite(Session._continue_or_start, (waiting, "        images = []\n    may_go"))


@found_by(
    "tests/machine/ckptroot/test_payload.py::"
    "test_a_users_small_file_system_runs_nothing_and_has_few_files"
)
def jobs_of_many_nodes_have_no_room_for_their_commands(_stage: Any) -> None:
    """mpirun ends the job, because it cannot start a program on each node."""
    rewrite(
        kernel.mount_small, ("(16 << 20) + nodes * (256 << 10), 256 + 8 * nodes", "16 << 20, 256")
    )
