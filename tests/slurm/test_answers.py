"""Slurm's JSON in the forms of 22.05 and of 23.02 and later."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import msgspec
import pytest

from slurm_elastic.model.slurm import SlurmJob, SlurmNode
from slurm_elastic.policies.nodes.node_state import Phase, is_drained, phase
from slurm_elastic.policies.nodes.out_of_service import DrainTerms, ill
from slurm_elastic.slurm.client import answers


def node_of(raw: dict[str, object]) -> SlurmNode:
    return answers.node(msgspec.convert(raw, answers.RawNode))


def job_of(raw: dict[str, object]) -> SlurmJob:
    return answers.job(msgspec.convert(raw, answers.RawJob))


def num(value: int) -> dict[str, object]:
    return {"set": True, "infinite": False, "number": value}


OLD_NODE = {
    "name": "pub1", "state": "allocated", "state_flags": ["CLOUD", "POWERING_UP"], "reason": "",
    "reason_set_by_user": None, "partitions": ["public"], "address": "10.0.0.9",
    "port": 6818, "cpus": 2,
    "real_memory": 1000, "last_busy": 1700000000, "boot_time": 0,
}  # fmt: skip
NEW_NODE = OLD_NODE | {
    "state": ["ALLOCATED", "CLOUD", "POWERING_UP"], "reason_set_by_user": "",
    "last_busy": num(1700000000), "boot_time": num(0),
    "port": num(6818),
}  # fmt: skip
OLD_JOB = {
    "job_id": 7, "job_state": "PENDING", "user_name": "ann", "account": "", "nodes": "",
    "partition": "batch,onprem", "state_reason": "BeginTime", "start_time": 1700000121,
    "submit_time": 1700000000, "requeue": True, "restart_cnt": 1, "name": "j",
}  # fmt: skip
NEW_JOB = OLD_JOB | {
    "job_state": ["PENDING"], "start_time": num(1700000121), "submit_time": num(1700000000),
}  # fmt: skip


def test_both_forms_of_a_node_are_one_value() -> None:
    old, new = (
        node_of(OLD_NODE),
        node_of({k: v for k, v in NEW_NODE.items() if k != "state_flags"}),
    )
    assert old == new
    assert old.states == {"ALLOCATED", "CLOUD", "POWERING_UP"}


def test_both_forms_of_a_job_are_one_value() -> None:
    assert job_of(OLD_JOB) == job_of(NEW_JOB)
    assert job_of(OLD_JOB).partitions == ("batch", "onprem")
    assert job_of(OLD_JOB | {"nodes": "n[1-2]"}).nodes == ("n1", "n2")


def test_when_a_job_may_start_and_when_it_is_thought_to() -> None:
    """As 22.05 gives them for a job that waits for nodes, and for one that is held."""
    waits = {"state_reason": "Resources", "start_time": 1826713878, "eligible_time": 1795177882}
    job = job_of(OLD_JOB | waits)
    assert (job.start, job.begin) == (1826713878, 1795177882)
    held = {"state_reason": "JobHeldAdmin", "start_time": 1826713878, "eligible_time": 0}
    assert job_of(OLD_JOB | held).begin == 0.0
    requeued = NEW_JOB | {"eligible_time": num(1700000121)}
    assert job_of(requeued).is_requeue_hold(1700000000.0)
    failed = job_of(requeued | {"state_description": "launch failed requeued held"})
    assert failed.description == "launch failed requeued held"
    assert not failed.is_requeue_hold(1700000000.0), "it is held: no time ends that"


def test_when_slurm_ends_a_run_that_it_preempts() -> None:
    """24.11, with a GraceTime of 25 s: measured."""
    runs = {"job_state": ["RUNNING"], "start_time": num(1795299433), "end_time": num(1795300033)}
    chosen = runs | {"preempt_time": num(1795299437), "end_time": num(1795299462)}
    requeued = {"job_state": ["PENDING", "COMPLETING"], "preempt_time": num(1795299490),
                "start_time": num(0), "end_time": num(0)}  # fmt: skip
    again = runs | {"preempt_time": num(1795299430)}
    found = [job_of(NEW_JOB | one).preempted for one in (runs, chosen, requeued, again)]
    assert found == [0.0, 1795299462.0, 0.0, 0.0]
    assert job_of(NEW_JOB | runs | {"preempt_time": num(0)}).preempted == 0.0


def test_the_end_of_a_running_jobs_limit_is_slurms_own() -> None:
    """22.05: it has moved by the 22 s for which the job was suspended, and means nothing without a
    limit: measured.
    """
    runs = {"job_state": "RUNNING", "start_time": 1795975245, "time_limit": 2,
            "suspend_time": 1795975268, "end_time": 1795975387}  # fmt: skip
    resumed = job_of(OLD_JOB | runs)
    assert (resumed.limit_ends_at, resumed.end) == (1795975387.0, 0.0)
    assert resumed.ends_at_latest == 1795975387.0, "120 s after its start, and 22 s"
    new = {"job_state": ["RUNNING"], "time_limit": num(2), "start_time": num(1795975245),
           "end_time": num(1795975387)}  # fmt: skip
    assert job_of(NEW_JOB | new) == resumed
    endless = job_of(OLD_JOB | runs | {"time_limit": None, "end_time": 1827511245})
    assert (endless.limit_ends_at, endless.ends_at_latest) == (0.0, None)
    suspended = job_of(OLD_JOB | runs | {"job_state": "SUSPENDED", "end_time": 1795975365})
    assert (suspended.limit_ends_at, suspended.ends_at_latest) == (0.0, None)
    completing = job_of(OLD_JOB | runs | {"job_state": "COMPLETING", "end_time": 1795975249})
    assert completing.limit_ends_at == 0.0
    preempted = job_of(NEW_JOB | new | {"preempt_time": num(1795975280)})
    assert (preempted.preempted, preempted.limit_ends_at) == (1795975387.0, 0.0)
    assert job_of(OLD_JOB | runs | {"end_time": 0}).ends_at_latest == 1795975245 + 120


def test_since_when_a_job_is_suspended_and_by_whom() -> None:
    """24.11 keeps the time of the last resume in the same field: measured."""
    person = {"job_state": ["SUSPENDED"], "priority": num(0), "suspend_time": num(1795560762)}
    slurm = person | {"priority": num(7)}
    jobs = [job_of(NEW_JOB | one) for one in (person, slurm, person | {"job_state": ["RUNNING"]})]
    assert [job.suspended for job in jobs] == [1795560762.0, 1795560762.0, 0.0]
    assert [job.is_suspended for job in jobs] == [True, True, False]
    assert [job.is_suspended_by_person for job in jobs] == [True, False, False]


def test_what_a_checkpoint_needs_of_a_job() -> None:
    old = {"user_id": 1001, "group_id": 100, "comment": "ckpt=signal", "required_nodes": "n1",
           "array_job_id": 5, "array_task_id": 2, "exit_code": 10, "batch_flag": True}  # fmt: skip
    new = old | {
        "array_job_id": num(5), "array_task_id": num(2),
        "exit_code": {"status": ["SIGNALED"], "signal": {"id": num(10), "name": "SIGUSR1"}},
    }  # fmt: skip
    job = job_of(OLD_JOB | old)
    assert job == job_of(NEW_JOB | new)
    assert (job.uid, job.gid, job.label, job.killed_by) == (1001, 100, "5_2", 10)
    assert (job.comment, job.required) == ("ckpt=signal", ("n1",))
    unset = {"set": False, "infinite": False, "number": 0}
    failed = {"exit_code": {"return_code": num(85), "signal": {"id": unset}}}
    assert job_of(NEW_JOB | failed).exit_code == 85
    assert job_of(OLD_JOB | {"exit_code": 85 << 8}).exit_code == 85
    assert job_of(NEW_JOB | {"array_job_id": num(0), "array_task_id": unset}).label == "7"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (3, 3.0), (None, None), (num(4), 4.0), ({"set": False, "number": 0}, None),
        ({"set": True, "infinite": True, "number": 0}, None), (True, None), ("7", None),
    ],
)  # fmt: skip
def test_numbers(value: object, expected: float | None) -> None:
    assert answers.number(value) == expected


@pytest.mark.parametrize(
    ("text", "expected"), [("slurm-wlm 22.05.8\n", (22, 5)), ("slurm 24.11.5", (24, 11))]
)
def test_versions(text: str, expected: tuple[int, int]) -> None:
    assert answers.version(text) == expected


@pytest.mark.parametrize("text", ["", "slurm", "slurm x.y"])
def test_what_is_no_version(text: str) -> None:
    with pytest.raises(ValueError, match="does not end in a Slurm version"):
        answers.version(text)


@pytest.mark.parametrize(
    ("text", "tasks", "at_a_time"),
    [
        ("", 1, 1),
        ("7", 1, 1),
        ("0-9", 10, 10),
        ("0-9,20", 11, 11),
        ("0-99%4", 100, 4),
        ("[0-9%4]", 10, 4),
        ("[0-9]%4", 10, 4),
        ("0-3%8", 4, 4),
        ("[1-100:10]", 10, 10),
        ("1-3,5-7,...", 6, 6),
        ("1-3,5-7,...%4", 6, 4),
        ("what", 1, 1),
        ("9-1", 1, 1),
    ],
)
def test_tasks_of_an_array(text: str, tasks: int, at_a_time: int) -> None:
    job = job_of({"job_id": 3, "job_state": ["PENDING"], "array_task_string": text})
    assert (job.tasks, job.tasks_at_a_time) == (tasks, at_a_time)


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("", "3"),
        ("what", "3"),
        ("7", "'3_[7]'"),
        ("0-9,20%4", "'3_[0-9,20]'"),
        ("[1-10:3]", "'3_[1,4,7,10]'"),
        ("1-3,5-7,44...", "'3_[1-3,5-7]'"),  # it may be 445
    ],
)
def test_the_waiting_tasks_of_an_array_have_a_name_of_their_own_in_commands(
    text: str, label: str
) -> None:
    job = job_of({"job_id": 3, "array_job_id": 3, "array_task_string": text})
    assert (job.label, job.shell_label) == ("3", label)


@pytest.mark.parametrize(
    ("text", "names"),
    [("", ()), ("pub", ("pub",)), ("own,pub", ("own", "pub")), (",pub,", ("pub",))],
)
def test_a_list_of_partitions_has_no_partition_without_a_name(
    text: str, names: tuple[str, ...]
) -> None:
    assert answers.partitions(text) == names


def test_what_a_growth_policy_needs_of_a_job() -> None:
    raw = {
        "job_id": 3,
        "job_state": ["PENDING"],
        "node_count": {"set": True, "infinite": False, "number": 2},
        "cpus": {"set": True, "infinite": False, "number": 8},
        "time_limit": {"set": True, "infinite": False, "number": 10},
        "priority": {"set": True, "infinite": False, "number": 4},
        "tres_per_node": "gres:gpu:1",
        "tres_per_job": "gres:gpu:2",
        "features": "cloud&fast",
    }
    job = job_of(raw)
    assert job.job_gres == "gres:gpu:2"
    assert (job.node_count, job.cpus, job.limit, job.priority) == (2, 8, 600, 4)
    assert (job.gres, job.features, job.tasks) == ("gres:gpu:1", "cloud&fast", 1)
    unlimited = {"set": False, "infinite": True, "number": 0}
    assert job_of(raw | {"time_limit": unlimited}).limit is None
    shortest = {"set": True, "infinite": False, "number": 5}
    assert (job.min_limit, job.least_limit) == (0, 600)
    assert job_of(raw | {"time_minimum": shortest}).least_limit == 300
    assert job_of(raw | {"time_minimum": 5}).min_limit == 300, "as 22.05 writes it"


RECORDED = Path(__file__).parents[1] / "data" / "slurm-26.05.json"
"""Jobs and nodes as squeue and scontrol of 26.05.5 wrote them."""


class Recorded(msgspec.Struct):
    jobs: list[answers.RawJob]
    nodes: list[answers.RawNode]


def test_a_recording_of_26_05_is_read_with_all_that_is_new_in_it() -> None:
    """A node's own SuspendTime, its instance, flags of jobs: what we do not ask for disturbs nothing."""
    found = msgspec.json.decode(RECORDED.read_bytes(), type=Recorded)
    first, second, *_ = (answers.node(raw) for raw in found.nodes)
    assert (first.name, first.states, first.memory) == ("n1", {"MIXED", "CLOUD"}, 1000)
    assert (second.states, second.reason) == ({"IDLE", "CLOUD", "DRAIN"}, "test drain")
    running, waiting, *_ = (answers.job(raw) for raw in found.jobs)
    assert (running.id, running.states, running.node_count) == (5, {"RUNNING"}, 2)
    assert (waiting.states, waiting.reason) == ({"PENDING"}, "BeginTime")


def test_a_hold_of_slurms_own_is_no_users_hold() -> None:
    """Both have the reason JobHeldUser: a script that failed with --requeue=expedite, and
    ``scontrol requeuehold``.
    """
    found = msgspec.json.decode(RECORDED.read_bytes(), type=Recorded)
    *_, expedited, requeued = (answers.job(raw) for raw in found.jobs)
    assert expedited.reason == requeued.reason == "JobHeldUser"
    assert (expedited.is_held_by_slurm, expedited.exit_code) == (True, 3)
    assert not requeued.is_held_by_slurm
    assert not expedited.has_ended
    by_admin = msgspec.structs.replace(expedited, reason="JobHeldAdmin")
    assert not by_admin.is_held_by_slurm


def test_one_word_for_a_job_that_slurm_holds_means_that_it_is_pending() -> None:
    assert states_of("REQUEUE_HOLD") == {"PENDING", "REQUEUE_HOLD"}
    assert states_of("SPECIAL_EXIT") == {"PENDING", "SPECIAL_EXIT"}
    assert states_of(["PENDING", "REQUEUE_HOLD"]) == {"PENDING", "REQUEUE_HOLD"}
    assert states_of("RUNNING", nodes="n1") == {"RUNNING"}


def states_of(value: object, nodes: str = "") -> frozenset[str]:
    return job_of(OLD_JOB | {"job_state": value, "nodes": nodes}).states


@pytest.mark.parametrize(("nodes", "base"), [("n[1-2]", "RUNNING"), ("", "PENDING")])
def test_one_word_for_a_job_that_is_sent_a_signal_does_not_mean_that_it_has_ended(
    nodes: str, base: str
) -> None:
    assert states_of("SIGNALING", nodes) == {base, "SIGNALING"}
    assert states_of(["SUSPENDED", "SIGNALING"], nodes) == {"SUSPENDED", "SIGNALING"}


def test_the_reason_of_a_power_command_is_no_drain_and_no_illness() -> None:
    """``scontrol power down asap`` drains until the node has powered down, as ever."""
    found = msgspec.json.decode(RECORDED.read_bytes(), type=Recorded)
    *_, down, asap = (answers.node(raw) for raw in found.nodes)
    assert (down.reason, phase(down)) == ("and again", Phase.POWERING_DOWN)
    assert not is_drained(down)
    assert ill(down, DrainTerms()) is None
    assert (asap.reason, phase(asap)) == ("slurm-elastic:release", Phase.POWERING_DOWN)
    assert ill(asap, DrainTerms()) is None


def test_states_of_releases_to_come_are_kept_and_mean_nothing_yet() -> None:
    """As 25.11 has EXPEDITING for a job that is requeued with precedence: it is pending."""
    one = job_of(NEW_JOB | {"job_state": ["PENDING", "EXPEDITING"], "state_reason": "Resources"})
    assert "PENDING" in one.states
    assert not one.has_ended
    raw = {key: value for key, value in NEW_NODE.items() if key != "state_flags"}
    states = ["IDLE", "CLOUD", "POWERED_DOWN", "BLOCKED"]
    node = node_of(raw | {"state": states, "reason": "saves power", "suspend_time": num(300)})
    assert phase(node) is Phase.POWERED_DOWN
    assert not is_drained(node), "the reason of a power command is no drain"


def test_the_nodes_that_jobs_exclude_are_read() -> None:
    rows = answers.rows_by_job("<m>7|pub[1-2],st1\n<m>8|\n<m>9|(null)\n<m>10|st1\n", "<m>")
    assert answers.excluded_nodes(rows) == {7: ("pub1", "pub2", "st1"), 10: ("st1",)}
    assert answers.rows_by_job("", "<m>") == {}
    for broken in ("7|pub1\n", "<m>|pub1\n", "error\n<m>7|\n"):
        with pytest.raises(ValueError, match=r"begins with|invalid literal"):
            answers.rows_by_job(broken, "<m>")


def test_lists_that_a_user_wrote_leave_the_queue_readable() -> None:
    written = {"required_nodes": "pub1,,pub2", "excluded_nodes": "st1, st2,"}
    for record in (OLD_JOB, NEW_JOB):
        job = job_of(record | written)
        assert (job.required, job.excluded) == (("pub1", "pub2"), ("st1", "st2"))
    # Job 9 writes a row of job 10, which comes before it.
    text = "<m>10|st1\n<m>7|pub1,\n<m>8|pub1 pub2\n<m>9|pub1\npub2\n10|st9\n"
    rows = answers.rows_by_job(text, "<m>")
    assert (rows[9], rows[10]) == ("pub1\npub2\n10|st9", "st1")
    assert answers.excluded_nodes({**rows, 9: "pub1\npub2"}) == {
        7: ("pub1",), 8: ("pub1", "pub2"), 9: ("pub1", "pub2"), 10: ("st1",),
    }  # fmt: skip


def test_the_limits_of_partitions_are_read() -> None:
    text = (
        "PartitionName=a AllowGroups=ALL MaxNodes=UNLIMITED MaxTime=1-02:03:04 MinNodes=0\n"
        "PartitionName=b MaxTime=UNLIMITED\nPartitionName=c MaxTime=00:30:00\n"
    )
    assert answers.max_times(text) == {"a": 93784.0, "b": None, "c": 1800.0}


def test_partitions_without_a_default_time_are_left_out() -> None:
    text = (
        "PartitionName=a DefaultTime=00:10:00 MaxTime=1-02:03:04\n"
        "PartitionName=b DefaultTime=NONE MaxTime=UNLIMITED\n"
        "PartitionName=c DefaultTime=UNLIMITED\n"
    )
    assert answers.default_times(text) == {"a": 600.0, "c": None}


def test_free_licences_are_read() -> None:
    text = (
        "LicenseName=matlab Total=5 Used=2 Free=3 Reserved=0 Remote=no\n"
        "LicenseName=ansys@flex Total=1 Used=1 Free=0 Reserved=0 Remote=yes\n"
    )
    assert answers.free_licenses(text) == {"matlab": 3, "ansys@flex": 0}
    assert answers.free_licenses("No licenses configured in Slurm.\n") == {}


def test_a_reservation_of_some_cores_is_partial() -> None:
    line = "ReservationName=r StartTime=2026-11-28T04:30:09 EndTime=2026-11-28T04:50:09 Nodes=pub1"
    whole, part = answers.reservations(f"{line} CoreCnt=2\n{line} NodeName=pub1 CoreIDs=0\n")
    assert (whole.is_partial, part.is_partial) == (False, True)


PARTITIONS = """\
PartitionName=batch AllowGroups=ALL Default=YES Nodes=st1 State=UP TotalCPUs=2 TotalNodes=1
PartitionName=aws AllowGroups=nogroup,root Nodes=pub[1-6] State=INACTIVE TotalCPUs=12
"""
CONFIG = """\
SuspendExcNodes         = pub[1-2]:1,st1
SuspendExcParts         = batch
SuspendExcStates        = (null)
SuspendProgram          = /bin/true
"""
RESERVATION = (
    "ReservationName=fut StartTime=2026-11-28T04:39:36 EndTime=2026-11-28T04:59:36 Nodes=pub[1-4]"
    " Flags=MAINT,SPEC_NODES Users=root,ann Groups=(null) Accounts=physics State=INACTIVE\n"
)


def test_states_of_partitions() -> None:
    assert answers.partition_states(PARTITIONS) == {"batch": "UP", "aws": "INACTIVE"}


def test_the_default_partition() -> None:
    assert answers.default_partition(PARTITIONS) == "batch"
    assert answers.default_partition(PARTITIONS.replace("Default=YES", "Default=NO")) == ""


def test_when_slurmctld_was_started() -> None:
    text = "Configuration data as of 2026-11-28T09:21:20\nBOOT_TIME               = 2026-11-28T09:21:12\n"
    assert (
        answers.slurmctld_started(text) == datetime.fromisoformat("2026-11-28T09:21:12").timestamp()
    )
    with pytest.raises(ValueError, match="isoformat"):
        answers.slurmctld_started("BatchStartTimeout = 10 sec\n")


def test_what_slurm_conf_keeps_from_power_saving() -> None:
    found = answers.suspend_exclusions(CONFIG)
    assert (found.nodes, found.partitions, found.states) == (
        ("pub1", "pub2", "st1"),
        ("batch",),
        (),
    )
    nothing = answers.suspend_exclusions("SuspendExcNodes = (null)\nSuspendExcParts = (null)\n")
    assert (nothing.nodes, nothing.partitions, nothing.states) == ((), (), ())


def test_who_may_use_a_reservation() -> None:
    (found,) = answers.reservations(RESERVATION)
    assert (found.name, found.owners) == ("fut", ("root", "ann", "physics"))


def test_when_a_reason_was_given() -> None:
    assert node_of(OLD_NODE | {"reason_changed_at": 1795840535}).reason_at == 1795840535
    assert node_of(NEW_NODE | {"reason_changed_at": num(1795840535)}).reason_at == 1795840535
