"""What Slurm or a person keeps from jobs: shown with who, since when and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from status_cases import NOW, config

from slurm_elastic.config import Config
from slurm_elastic.config.sections.access import Who
from slurm_elastic.config.sections.checkpoint import CheckpointSettings
from slurm_elastic.features.waits.wait_situation import WaitFacts, situation_of
from slurm_elastic.model.finding import FindingLevel
from slurm_elastic.model.slurm import Reservation, SlurmJob, SlurmNode, SuspendExclusions
from slurm_elastic.policies.waits.wait import Waits
from slurm_elastic.slurm.client.fake import FakeSlurm
from slurm_elastic.watch.doctor import kept as doctor
from slurm_elastic.watch.view import status_view
from slurm_elastic.watch.view.attention import kept as told
from slurm_elastic.watch.view.kept import KeptView, kept_views, waits_of, when
from slurm_elastic.watch.view.rows import AttentionLevel, Facts

OFF = ("IDLE", "CLOUD", "POWERED_DOWN")
UP = ("IDLE", "CLOUD")
SMALLER = "submit again with a smaller request, after scancel 7"


@pytest.fixture
def site(tmp_path: Path) -> Config:
    return config(tmp_path)


def node(name: str, *states: str, reason: str = "", user: str = "", at: float = 0.0) -> SlurmNode:
    return SlurmNode(
        name=name, states=frozenset(states), reason=reason, reason_user=user, reason_at=at
    )


def waiting(number: int = 7, **fields: object) -> SlurmJob:
    base = SlurmJob(
        id=number, states=frozenset({"PENDING"}), user="ann", reason="Resources",
        partitions=("burst",), limit=480,
    )  # fmt: skip
    return replace(base, **fields)


def views(site: Config, *nodes: SlurmNode, **facts: object) -> tuple[KeptView, ...]:
    return kept_views(site, Facts(now=NOW, nodes={n.name: n for n in nodes}, **facts))  # type: ignore[arg-type]


def only(found: tuple[KeptView, ...]) -> KeptView:
    (one,) = found
    return one


@pytest.mark.parametrize(
    ("states", "reason", "user", "words", "do"),
    [
        ((*OFF, "DRAIN"), "NHC: no /scratch", "root", "drained by root", "state=idle"),
        ((*UP, "DRAIN"), "NHC: no /scratch", "root", "drained by root", "state=resume"),
        ((*OFF, "FAIL"), "bad fan", "eve", "marked as failing by eve", "state=idle"),
        (("DOWN", "CLOUD"), "gone", "root", "down by root", "state=resume"),
        (("DOWN", "CLOUD", "POWERED_DOWN"), "", "slurm", "down by Slurm", "state=idle"),
        (("DOWN", "CLOUD", "REBOOT_ISSUED"), "new kernel : reboot issued", "root",
         "reboots since", "nothing"),
        ((*UP, "REBOOT_REQUESTED"), "new kernel", "root", "reboots since", "nothing"),
        (("DOWN", "CLOUD"), "Not responding", "slurm", "given up by Slurm", "nothing"),
        ((*UP, "DRAIN"), "Kill task failed", "slurm", "taken out of service", "nothing"),
        (("FUTURE",), "", "", "takes no jobs", "scontrol update nodename=pub3 state=resume"),
    ],
)  # fmt: skip
def test_a_node_is_shown_with_who_keeps_it_since_when_and_what_returns_it(
    site: Config, states: tuple[str, ...], reason: str, user: str, words: str, do: str
) -> None:
    found = only(views(site, node("pub3", *states, reason=reason, user=user, at=NOW - 600)))
    assert found.text.startswith("node pub3 ")
    assert words in found.text
    assert f"since {when(NOW - 600, NOW)}" in found.text
    assert reason in found.text
    assert do in found.do
    assert ("no machine runs there" in found.text) is ("state=idle" in do)


def test_nodes_in_service_and_our_own_holds_are_no_news(site: Config) -> None:
    assert (
        views(site, node("pub1", *UP), node("pub2", *OFF), node("pub3", "MIXED", "PLANNED")) == ()
    )
    assert views(site, node("pub1", *OFF, "DRAIN", reason="slurm-elastic:hold:no room")) == ()


def test_a_node_that_only_waits_for_its_jobs_to_power_down_is_no_news(site: Config) -> None:
    """slurmctld 22.05 replaces the reason of the order, and so our mark, by the order's name."""
    going = ("ALLOCATED", "CLOUD", "DRAIN", "POWER_DOWN")
    assert views(site, node("pub1", *going, reason="POWER_DOWN_ASAP", user="slurm")) == ()
    found = only(views(site, node("pub1", *going, reason="bad fan", user="eve")))
    assert "drained by eve" in found.text
    stays = ("ALLOCATED", "CLOUD", "DRAIN")
    assert len(views(site, node("pub1", *stays, reason="POWER_DOWN_ASAP", user="slurm"))) == 1


def test_nodes_of_one_order_are_one_line(site: Config) -> None:
    nodes = [node(f"pub{n}", *OFF, "DRAIN", reason="rack move", user="root") for n in (1, 2, 3)]
    found = only(views(site, *nodes))
    assert found.text.startswith("nodes pub[1-3] are drained by root: rack move")
    assert found.do.endswith("scontrol update nodename=pub[1-3] state=idle")


@pytest.mark.parametrize(
    ("state", "stuck"), [("INACTIVE", True), ("DOWN", True), ("DRAIN", False), ("UP", None)]
)
def test_a_partition_that_starts_no_jobs_is_shown(
    site: Config, state: str, stuck: bool | None
) -> None:
    site = replace(site, clouds=site.clouds)
    found = views(site, partition_states={"burst": state, "batch": "DOWN"})
    if stuck is None:
        assert found == ()
        return
    assert only(found).do == "scontrol update partitionname=burst state=up"
    assert only(found).stuck is stuck


def test_a_reservation_is_shown_with_its_nodes_and_times(site: Config) -> None:
    row = Reservation(
        name="fut", start=NOW + 240, end=NOW + 1440, nodes=("st1", "pub1", "pub2"),
        flags=frozenset({"MAINT"}), owners=("root",),
    )  # fmt: skip
    over = replace(row, name="old", start=NOW - 100, end=NOW - 1)
    nodes = [node("pub1", *OFF), node("pub2", *OFF), node("pub3", *OFF)]
    found = only(views(site, *nodes, reservations=[row, over]))
    begin, end = when(NOW + 240, NOW), when(NOW + 1440, NOW)
    assert found.text == (
        f"reservation fut (root, maintenance) will have pub[1-2] from {begin} to {end}"
    )


def test_nodes_that_slurm_conf_keeps_up_are_shown_and_not_suspended(site: Config) -> None:
    nodes = [node("pub1", *UP), node("pub2", *OFF), node("op1", *OFF)]
    kept = SuspendExclusions(nodes=("st1", "pub1", "pub2"), partitions=("onprem",))
    by_parts, by_nodes = views(site, *nodes, suspend_exclusions=kept)
    assert by_nodes.text.startswith("SuspendExcNodes in slurm.conf keeps the machines of pub[1-2]")
    assert by_nodes.text.endswith("pub1 stay paid")
    assert "SuspendExcParts" in by_parts.text
    restart = "take these nodes out of SuspendExcNodes, then systemctl restart slurmctld"
    assert by_nodes.do == restart, "a reconfigure ends 22.05 while an install waits for the restart"
    assert only(views(site, *nodes, suspend_exclusions=SuspendExclusions(states=("POWERED_DOWN",))))


@pytest.mark.parametrize(
    ("job", "words", "do", "stuck"),
    [
        (waiting(node_count=9), "7 can never start: the job asks for 9 nodes, and 8",
         "scontrol update jobid=7 numnodes=8", True),
        (waiting(features="vax"), "7 can never start: its nodes lack the feature vax",
         "scontrol update jobid=7 features=", True),
        (waiting(reason="PartitionTimeLimit"), "can never start: PartitionTimeLimit",
         "scontrol update jobid=7 timelimit=", True),
        (waiting(reason="DependencyNeverSatisfied"), "can never start", "scancel 7", True),
        (waiting(reason="launch failed requeued held"), "is held: launch failed",
         "scontrol release 7", True),
        (waiting(reason="JobHeldUser", states=frozenset({"PENDING", "SPECIAL_EXIT"}), exit_code=44),
         "is held: Slurm holds it since its script ended with 44", "scontrol release 7", True),
        (waiting(reason="JobHeldUser"), "is held: JobHeldUser", "scontrol release 7", False),
        (waiting(reason="JobHeldAdmin"), "is held: JobHeldAdmin", "scontrol release 7", False),
        (waiting(reason="JobHeldUser", array=7, tasks=40), "40 tasks of job 7 are held",
         "scontrol release 7", False),
        # With the array's number the command would also change or end its tasks that run.
        (waiting(reason="PartitionTimeLimit", array=7, tasks=4, task_list="3-6"),
         "4 tasks of job 7 can never start", "scontrol update jobid='7_[3-6]' timelimit=", True),
        (waiting(reason="BadConstraints", array=7, tasks=4, task_list="3-6"),
         "4 tasks of job 7 can never start",
         "submit again with a smaller request, after scancel '7_[3-6]'", True),
    ],
)  # fmt: skip
def test_a_job_that_does_not_start_by_itself_is_shown(
    site: Config, job: SlurmJob, words: str, do: str, stuck: bool
) -> None:
    found = only(views(site, jobs=[job]))
    assert words in found.text
    assert found.do.startswith(do)
    assert found.stuck is stuck


@pytest.mark.parametrize(
    ("reason", "do"),
    [
        ("PartitionTimeLimit", "scontrol update jobid='7_[3,5]',9 timelimit="),
        # scancel refuses a list with brackets before a comma.
        ("DeadLine", "scancel '7_[3,5]' 9"),
    ],
)
def test_jobs_with_one_reason_share_a_command_that_slurm_takes(
    site: Config, reason: str, do: str
) -> None:
    jobs = [waiting(array=7, tasks=2, task_list="3,5", reason=reason), waiting(9, reason=reason)]
    assert only(views(site, jobs=jobs)).do.startswith(do)


@pytest.mark.parametrize(
    "job",
    [
        waiting(), waiting(reason="Priority"), waiting(reason="Licenses"),
        waiting(reason="PartitionTimeLimit", partitions=("batch", "burst")),
        # Slurm shows these of the site's partition for as long as nodes of ours are held.
        waiting(reason="BadConstraints", partitions=("batch", "burst")),
        waiting(reason="PartitionConfig", partitions=("batch", "burst")),
        waiting(node_count=9, partitions=("batch", "burst")),
        waiting(reason="QOSMaxCpuPerUserLimit"), waiting(reason="MoonPhase"),
        waiting(states=frozenset({"RUNNING"}), reason="JobHeldUser"),
    ],
)  # fmt: skip
def test_never_is_said_only_of_jobs_of_which_it_is_proven(site: Config, job: SlurmJob) -> None:
    """Slurm gives the reason of one partition of several, and the site's own are Slurm's."""
    assert views(site, jobs=[job]) == ()


@pytest.mark.parametrize(
    ("job", "is_stuck"),
    [
        (waiting(limit=9000, reason="PartitionTimeLimit"), True),
        (waiting(limit=9000, min_limit=7260, reason="PartitionTimeLimit"), True),
        # Slurm has admitted the limit, such as by a QOS.
        (waiting(limit=9000, reason="Resources"), False),
        # Slurm's backfill may start it with a shorter limit.
        (waiting(limit=9000, min_limit=1800, reason="PartitionTimeLimit"), False),
        (waiting(limit=9000, min_limit=1800), False),
        # The partition that could hold the job has too small nodes.
        (waiting(limit=9000, partitions=("onprem", "burst"), node_count=4), True),
        # Slurm shows the MaxTime of onprem, at which it looked last, for a job without a limit.
        (waiting(limit=36_000, partitions=("onprem", "burst"), node_count=4), False),
    ],
)
def test_a_job_is_stuck_for_its_time_if_no_limit_that_slurm_may_give_it_fits(
    site: Config, job: SlurmJob, *, is_stuck: bool
) -> None:
    onprem, aws = site.clouds
    site = replace(
        site,
        clouds=(
            replace(onprem, allow=Who(max_time=36_000)), replace(aws, allow=Who(max_time=7200)),
        ),
    )  # fmt: skip
    found = views(site, jobs=[job], max_times={"batch": None})
    assert [row.stuck for row in found] == [True] * is_stuck


@pytest.mark.parametrize(
    ("job", "words", "do"),
    [
        (waiting(reason="PartitionConfig", partitions=("batch",), node_count=4),
         "; partition burst can hold it", "scontrol update jobid=7 partition=burst"),
        (waiting(reason="PartitionNodeLimit", partitions=("batch",), node_count=2),
         "; partitions onprem,burst can hold it",
         "scontrol update jobid=7 partition=onprem,burst"),
        (waiting(reason="PartitionConfig", partitions=("onprem",), node_count=4),
         "and 2 such can be up together at most; partition burst can hold it",
         "scontrol update jobid=7 partition=burst"),
        (waiting(reason="PartitionConfig", partitions=("batch",), node_count=9),
         "; no other cloud can hold it (aws: the job asks for 9 nodes, and 8 such can be up",
         SMALLER),
        # Slurm would refuse the job in our partitions, which are for account physics.
        (waiting(reason="PartitionConfig", partitions=("batch",), node_count=4, account="arts"),
         "; no other cloud takes it (onprem: account arts is not in allow.accounts", SMALLER),
        (waiting(reason="AccountNotAllowed", partitions=("burst",), account="arts"),
         "may not use the partition; no other cloud takes it (onprem: account arts is not in",
         "scontrol update jobid=7 account=ACCOUNT"),
    ],
)  # fmt: skip
def test_a_job_that_its_partition_cannot_hold_is_told_which_can(
    site: Config, job: SlurmJob, words: str, do: str
) -> None:
    found = only(views(site, jobs=[replace(job, account=job.account or "physics")]))
    assert words in found.text
    assert found.do == do


@pytest.mark.parametrize(
    ("changes", "facts", "groups"),
    [
        ({}, {"partition_states": {"burst": "DOWN"}}, ()),
        ({"requeue": False}, {}, ()),
        ({}, {}, ("chemists",)),
        ({"limit": 7200}, {"max_times": {"burst": 3600}}, ()),
    ],
    ids=["shut", "spot machines", "other groups", "inherited MaxTime"],
)
def test_no_partition_is_named_that_would_not_start_the_job(
    site: Config, changes: dict[str, Any], facts: dict[str, Any], groups: tuple[str, ...]
) -> None:
    who = Who(accounts=("physics",), groups=groups)
    clouds = tuple(replace(c, allow=who) if c.name == "aws" else c for c in site.clouds)
    job = waiting(
        reason="PartitionConfig", partitions=("batch",), node_count=4, account="physics", **changes
    )
    known = WaitFacts(now=NOW, groups=frozenset({"staff"}), **facts)
    wait = Waits(situation_of(replace(site, clouds=clouds), known)).of(job)
    assert "; no other cloud can hold it (onprem: " in wait.text
    assert wait.command == SMALLER


def test_jobs_of_one_cause_are_one_line_with_one_command(site: Config) -> None:
    jobs = [waiting(n, reason="JobHoldMaxRequeue") for n in range(1, 4)]
    found = only(views(site, jobs=jobs))
    assert found.text.startswith("jobs 1, 2, 3 are held: ")
    assert found.do == "scontrol release 1,2,3"
    many = only(views(site, jobs=[waiting(n, reason="JobHoldMaxRequeue") for n in range(20)]))
    assert (many.count, many.do) == (20, "scontrol release JOBID")


def test_jobs_that_ask_for_the_same_are_judged_once(site: Config) -> None:
    waits = waits_of(site, Facts(now=NOW))
    assert waits.of(waiting(1)) == waits.of(waiting(2))
    first, second = (waits.of(waiting(n, reason="JobHeldUser")) for n in (1, 2))
    assert (first.command, second.command) == ("scontrol release 1", "scontrol release 2")


def test_status_says_it_first_and_is_calm_only_without_a_stuck_job(site: Config) -> None:
    facts = Facts(now=NOW, nodes={"pub1": node("pub1", *OFF)}, jobs=[waiting(node_count=9)])
    view = status_view(site, facts)
    (line,) = told(view)
    assert (line.level, line.text.startswith("Job 7 can never start")) == (
        AttentionLevel.WARN,
        True,
    )
    assert view.queue is not None
    assert view.queue.jobs[0].stuck
    held = status_view(site, replace(facts, jobs=[waiting(reason="JobHeldUser")]))
    assert [one.level for one in told(held)] == [AttentionLevel.NOTE], "its user meant it"


def test_a_reboot_by_a_person_is_no_alarm(site: Config) -> None:
    row = node("pub1", "DOWN", "CLOUD", "REBOOT_ISSUED", reason="kernel : reboot issued")
    view = status_view(site, Facts(now=NOW, nodes={"pub1": row}))
    states = {state for one in view.clouds for state in one.states}
    assert "rebooting" in states
    assert "down" not in states
    assert [one.level for one in told(view)] == [AttentionLevel.NOTE]


def test_doctor_says_the_same_and_counts_the_jobs_that_are_stuck(site: Config) -> None:
    slurm = FakeSlurm()
    slurm.set_node("pub1", *OFF, "DRAIN", reason="NHC: disk")
    slurm.set_job(7, "PENDING", reason="Resources", partitions=("burst",), node_count=9)
    slurm.set_job(8, "PENDING", reason="JobHeldUser", partitions=("burst",))
    slurm.partitions = {"burst": "INACTIVE"}
    findings, stuck = doctor.examine(site, slurm, NOW)
    assert stuck == 1
    assert sorted({one.subject for one in findings}) == ["nodes", "partitions", "waiting jobs"]
    assert all(one.advice for one in findings)


def test_a_drain_by_a_health_check_that_outlives_its_machine_is_no_silence(site: Config) -> None:
    slurm = FakeSlurm()
    slurm.set_node("pub3", *OFF, "DRAIN", reason="NHC: /scratch", reason_user="root")
    (found,) = doctor.examine(site, slurm, NOW)[0]
    assert found.observed.startswith("node pub3 is drained by root: NHC: /scratch")
    assert found.observed.endswith("; no machine runs there")
    assert found.advice == "after its repair: scontrol update nodename=pub3 state=idle"
    assert found.level is FindingLevel.NOTE, "so the conclusion is not that all is well"


def test_doctor_names_jobs_that_ask_to_be_saved_and_are_not(site: Config) -> None:
    slurm = FakeSlurm()
    for number in range(1, 8):
        slurm.set_job(number, "RUNNING", comment="x;ckpt=criu", nodes=("st1",))
    slurm.set_job(8, "PENDING", comment="ckpt=signal")
    slurm.set_job(9, "COMPLETED", comment="ckpt=criu", nodes=("st1",))
    findings, _ = doctor.examine(site, slurm, NOW)
    (found,) = (one for one in findings if one.subject == "saves of jobs")
    assert found.observed == (
        "jobs 1, 2, 3, 4, 5 and 2 more are NOT saved: method criu keeps images in "
        "checkpoint.directory, which is not set here"
    )
    assert str(found.level) == "note"
    there = replace(site, checkpoint=CheckpointSettings(directory="/shared/images"))
    findings, _ = doctor.examine(there, slurm, NOW)
    assert "saves of jobs" not in {one.subject for one in findings}
