"""The words of a real slurmctld: explain, status and doctor say what the table of these words says.

Jobs, nodes and partitions are brought into as many states as a slurmctld without slurmdbd has.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest

from slurm_elastic.base.hostlist import expand
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.model.slurm_words import node_states, partition_states
from slurm_elastic.model.slurm_words.rows import Fate
from slurm_elastic.policies.launch.waiting import is_counted, sentence
from slurm_elastic.sandbox.cluster import Sandbox
from tests.e2e.world import ELASTIC, Until, running_nodes

pytestmark = [pytest.mark.e2e, pytest.mark.release]
MOUNT = "NHC: check_fs_mount: /scratch not mounted"
DISK = "disk check: sda fails"
LEAST = 25


@pytest.fixture(scope="module")
def seen() -> set[str]:
    """All words that this slurmctld has shown."""
    return set()


@pytest.fixture(scope="module")
def site(sandbox: Callable[..., Sandbox]) -> Sandbox:
    return sandbox(
        static_nodes=1,
        suspend_time=3600.0,
        resume_timeout=40.0,
        # A job that is requeued with an exit code of 44 is held in the state SPECIAL_EXIT.
        slurm_conf=("Licenses=matlab:1", "RequeueExitHold=44", "RebootProgram=/bin/true"),
        elastic={"slurm": {"replace_reasons": ["disk check: *"]}},
    )


def ours(site: Sandbox, *words: str) -> str:
    wide = ("env", "COLUMNS=400")  # no word is broken in two
    command = [*wide, *ELASTIC, "--config", str(site.layout.config), *words]
    return site.run(command, check=False).stdout


def status(site: Sandbox) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(ours(site, "status", "--json"))
    return found


def doctor(site: Sandbox) -> str:
    parts = json.loads(ours(site, "doctor", "--quick", "--json"))["parts"]
    return "\n".join(f"{f['found']} do: {f['advice']}" for part in parts for f in part["findings"])


def flat(text: str) -> str:
    """Without the line breaks of a narrow screen."""
    return " ".join(text.split())


def scontrol(site: Sandbox, *words: str) -> None:
    site.run(["scontrol", *words])


def words_of(job: SlurmJob) -> set[str]:
    return {job.wait_reason.row.pattern, *job.states}


def job_of(site: Sandbox, number: int) -> SlurmJob | None:
    return next((job for job in site.jobs() if job.id == number), None)


def waits_for(site: Sandbox, number: int, *patterns: str) -> SlurmJob:
    """The job, once its reason has one of these rows."""

    def found() -> SlurmJob | None:
        job = job_of(site, number)
        shown = {job.wait_reason.row.pattern, *job.states} if job else set()
        return job if any(re.search(p, word) for p in patterns for word in shown) else None

    return site.wait_for(found, 120, f"job {number} waits for {patterns}: {job_of(site, number)}")


def check_job(site: Sandbox, job: SlurmJob, told: str, diagnosis: str) -> None:
    """By the row of its reason: in explain always, in the others if it does not start by itself."""
    row = job.wait_reason.row
    explained = flat(ours(site, "explain", job.label))
    command = job.wait_reason.advice(job.label)
    if row.fate is Fate.STARTS:
        assert f"Job {job.label} can" not in explained
        assert f"Job {job.label} is held" not in explained
        return
    words = "is held" if row.fate is Fate.HELD else "can never start"
    assert f"Job {job.label} {words}" in explained
    assert job.label in told, (job, told)
    assert job.label in diagnosis, (job, diagnosis)
    if row.fate is Fate.HELD:
        assert command in explained
        for text in (explained, told, diagnosis):
            assert sentence(job) in text


def the_jobs(site: Sandbox) -> dict[str, Callable[[], int]]:
    """By the pattern of the row, how a job gets that reason; all of them wait for long."""
    submit = partial(site.submit, "sleep 1")

    def held_by_admin() -> int:
        number = submit("--begin=now+1hour")
        scontrol(site, "hold", str(number))
        return number

    def requeued() -> int:
        until = Until(site)
        number = site.submit(until.script, "-p", "batch", "-c1")
        running_nodes(site, [number])
        scontrol(site, "requeuehold", str(number))
        return number

    def special_exit() -> int:
        return site.submit("exit 44", "-p", "batch", "-c1")

    def never() -> int:
        failed = site.submit("exit 1", "-p", "batch", "-c1")
        number = submit(f"--dependency=afterok:{failed}", "-p", "batch")
        site.wait_job(failed, "FAILED")
        return number

    def reserved() -> int:
        scontrol(
            site, "create", "reservation", "ReservationName=later", "nodes=op2",
            "starttime=now+3hours", "duration=10", "users=root", "flags=maint",
        )  # fmt: skip
        # 25.11 takes the user nobody for none.
        return submit("--reservation=later", "-p", "onprem", user="root")

    return {
        "JobHeldUser": partial(submit, "-H"),
        "JobHeldAdmin": held_by_admin,
        "job requeued in held state": requeued,
        "job requeued in special exit|SPECIAL_EXIT": special_exit,
        "BeginTime": partial(submit, "--begin=now+1hour"),
        "DependencyNeverSatisfied": never,
        "PartitionNodeLimit|PartitionConfig": partial(submit, "-p", "aws", "-N12"),
        "PartitionTimeLimit": partial(submit, "-p", "aws", "-t", "300"),
        "Reservation": reserved,
        "Dependency": lambda: submit(f"--dependency=afterok:{submit('-H')}", "-p", "batch"),
    }


def test_jobs_that_wait(site: Sandbox, seen: set[str]) -> None:
    """What each waits for is said by explain; status and doctor have those that need somebody."""
    try:
        check_jobs(site, {row: make() for row, make in the_jobs(site).items()}, seen)
    finally:
        clear(site)
        site.run(["scontrol", "delete", "reservationname=later"], check=False)


def check_jobs(site: Sandbox, jobs: Mapping[str, int], seen: set[str]) -> None:
    found = [waits_for(site, number, *p.split("|")) for p, number in jobs.items()]
    told = "\n".join(one["text"] for one in status(site)["kept"])
    diagnosis = doctor(site)
    for job in found:
        check_job(site, job, told, diagnosis)
        seen |= words_of(job)
    assert "cannot start without help" in flat(ours(site, "doctor", "--quick"))


def test_jobs_that_wait_for_others(site: Sandbox, seen: set[str]) -> None:
    """Nobody needs to do anything: no alarm."""
    until = Until(site)
    runs = site.submit(until.script, "-p", "batch", "-c2", "-L", "matlab:1")
    running_nodes(site, [runs])
    seen |= {"RUNNING"}
    licensed = site.submit("sleep 1", "-p", "onprem", "-L", "matlab:1")
    array = site.submit(until.script, "-p", "onprem", "-c1", "--array=1-2%1")
    first = site.submit("sleep 1", "-p", "batch", "-c2")
    second = site.submit("sleep 1", "-p", "batch", "-c2", "--nice=100")
    patterns = {
        licensed: "Licenses", array: "JobArrayTaskLimit", first: "Resources", second: "Priority",
    }  # fmt: skip
    found = [waits_for(site, number, pattern) for number, pattern in patterns.items()]
    for job in found:
        check_job(site, job, "", "")
        seen |= words_of(job)
    assert [one for one in status(site)["kept"] if one["kind"] == "job"] == []
    until.go()
    clear(site)


def clear(site: Sandbox) -> None:
    for job in site.jobs():
        site.run(["scancel", str(job.id)], check=False)
    site.wait_for(lambda: not site.jobs(), 120, "no job is left")


@pytest.mark.parametrize(
    ("state", "flag", "words"),
    [("drain", "DRAIN", "drained"), ("fail", "FAIL", "failing"), ("down", "DOWN", "down")],
)
def test_nodes_that_a_person_keeps(
    site: Sandbox, seen: set[str], state: str, flag: str, words: str
) -> None:
    scontrol(site, "update", "nodename=pub5", f"state={state}", f"reason={MOUNT}")
    try:
        site.wait_for(lambda: flag in site.nodes()["pub5"].states, 30, f"pub5 is {flag}")
        seen |= site.nodes()["pub5"].states
        row = node_states.row_of(flag)
        assert row is not None
        assert row.keeps_jobs
        texts = [flat(ours(site, "explain", "pub5")), flat(ours(site, "status")), doctor(site)]
        for text in texts:
            assert words in text
            assert "by root since " in text
            assert MOUNT in text
            assert "scontrol update nodename=pub5 state=idle" in text
    finally:
        scontrol(site, "update", "nodename=pub5", "state=idle")
    site.wait_for(lambda: flag not in site.nodes()["pub5"].states, 30, "the command returns it")


@pytest.mark.parametrize("state", ["INACTIVE", "DOWN", "DRAIN"])
def test_partitions_that_start_nothing(site: Sandbox, seen: set[str], state: str) -> None:
    number = site.submit("sleep 1", "-p", "onprem", "--begin=now+3")
    scontrol(site, "update", "partitionname=onprem", f"state={state}")
    try:
        row = partition_states.row_of(state)
        assert row is not None
        seen.add(f"partition {state}")
        if row.keeps_jobs:
            pattern = "PartitionInactive" if state == "INACTIVE" else "PartitionDown"
            seen |= words_of(waits_for(site, number, pattern))
        texts = [flat(ours(site, "explain", str(number))), flat(ours(site, "status")), doctor(site)]
        for text in texts[0 if row.keeps_jobs else 1 :]:
            assert row.meaning in text
            assert "scontrol update partitionname=onprem state=up" in text
    finally:
        scontrol(site, "update", "partitionname=onprem", "state=up")
        clear(site)


def test_a_reservation_that_is_in_the_way(site: Sandbox, seen: set[str]) -> None:
    scontrol(
        site, "create", "reservation", "ReservationName=fut", "nodes=pub[1-6]",
        "starttime=now+5minutes", "duration=20", "users=root", "flags=maint",
    )  # fmt: skip
    try:
        number = site.submit("sleep 1", "-p", "aws", "-t", "8")
        seen |= words_of(waits_for(site, number, "ReqNodeNotAvail"))
        for text in (flat(ours(site, "status")), doctor(site)):
            assert "(root, maintenance) will have pub[1-6] from" in text
        text = ours(site, "explain", "--all", str(number))
        assert "reservation fut (root, maintenance)" in flat(text)
        assert "fits before" in flat(text)
    finally:
        scontrol(site, "delete", "reservationname=fut")
        clear(site)


def test_a_reservation_that_has_begun(site: Sandbox, seen: set[str]) -> None:
    scontrol(
        site, "create", "reservation", "ReservationName=now", "nodes=pub6", "starttime=now",
        "duration=20", "users=root", "flags=maint",
    )  # fmt: skip
    try:
        mark = ("MAINT", "MAINTENANCE", "RESERVED")
        site.wait_for(lambda: site.nodes()["pub6"].states & set(mark), 60, "it has begun")
        seen |= site.nodes()["pub6"].states
        for text in (ours(site, "explain", "pub6"), ours(site, "status"), doctor(site)):
            assert "reservation now (root, maintenance) has pub6 from" in flat(text).lower()
    finally:
        scontrol(site, "delete", "reservationname=now")


def test_a_job_whose_nodes_are_drained(site: Sandbox, seen: set[str]) -> None:
    scontrol(site, "update", "nodename=op[1-2]", "state=drain", "reason=rack move")
    try:
        number = site.submit("sleep 1", "-p", "onprem")
        seen |= words_of(waits_for(site, number, "Nodes required", "ReqNodeNotAvail"))
        named = site.submit("sleep 1", "-p", "onprem", "-w", "op1")
        seen |= words_of(waits_for(site, named, "ReqNodeNotAvail", "UnavailableNodes"))
        assert "rack move" in flat(ours(site, "explain", str(number)))
        told = [one for one in status(site)["kept"] if one["kind"] == "node"]
        assert all("drained by root" in one["text"] for one in told)
        assert {name for one in told for name in expand(one["names"])} == {"op1", "op2"}
    finally:
        scontrol(site, "update", "nodename=op[1-2]", "state=idle")
        clear(site)


def test_a_job_whose_only_nodes_are_drained_starts_when_they_are_back(
    site: Sandbox, seen: set[str]
) -> None:
    """Slurm then gives the reason of the site's partition, which cannot hold the job."""
    scontrol(site, "update", "nodename=pub[1-6]", "state=drain", "reason=rack move")
    try:
        submit = partial(site.submit, "sleep 1", "-p", "batch,aws")
        # Slurm gives the first job in the queue another reason.
        submit("-C", "aws", "--priority=900")
        number = submit("-C", "aws")
        job = waits_for(site, number, "BadConstraints", "PartitionConfig")
        seen |= words_of(job)
        assert is_counted(job, time.time())
        assert f"Job {job.label} can" not in flat(ours(site, "explain", job.label))
        assert [row for row in status(site)["kept"] if row["kind"] == "job"] == []
    finally:
        scontrol(site, "update", "nodename=pub[1-6]", "state=idle")
    site.wait_job(number)
    clear(site)


def test_a_drain_that_the_site_declared_ends_with_the_machine(
    site: Sandbox, seen: set[str]
) -> None:
    until = Until(site)
    number = site.submit(until.script, "-p", "aws", "-c2")
    (node,) = running_nodes(site, [number])[number]
    seen |= site.nodes()[node].states
    scontrol(site, "update", f"nodename={node}", "state=drain", f"reason={DISK}")
    until.go()
    site.wait_job(number)
    site.wait_for(lambda: is_back(site, node), 240, f"{node} is back in service")
    seen |= site.nodes()[node].states
    assert DISK in flat(ours(site, "explain", node))
    ours(site, "clear")
    clear(site)


def is_back(site: Sandbox, node: str) -> bool:
    states = site.nodes()[node].states
    return "POWERED_DOWN" in states and not states & {"DRAIN", "DOWN"}


def test_a_reboot_that_times_out_is_no_lost_node(site: Sandbox, seen: set[str]) -> None:
    number = site.submit("sleep 1", "-p", "aws", "-c2")
    fields = site.wait_job(number)
    node = fields["NodeList"]
    site.wait_for(lambda: "IDLE" in site.nodes()[node].states, 60, f"{node} is idle")
    scontrol(site, "reboot", "ASAP", "nextstate=resume", "reason=kernel update", node)
    reboots = {"REBOOT_ISSUED", "REBOOT_REQUESTED"}
    site.wait_for(lambda: site.nodes()[node].states & reboots, 60, f"{node} reboots")
    seen |= site.nodes()[node].states
    assert f"node {node} reboots since" in flat(ours(site, "explain", node))
    alarms = [o["text"] for o in status(site)["attention"] if o["level"] != "note"]
    assert [text for text in alarms if node in text] == [], "an order in its ordinary course"
    site.wait_for(lambda: is_back(site, node), 300, f"{node} is back in service")


def test_a_failed_prolog_holds_its_jobs(site: Sandbox, seen: set[str]) -> None:
    """The job is requeued and held; no start time is promised."""
    number = site.submit("sleep 1", "-p", "batch", "-c1", "--begin=now+1hour")
    with prolog_fails(site):
        scontrol(site, "update", f"jobid={number}", "starttime=now")
        job = waits_for(site, number, "launch failed requeued held", "JobHeld")
        seen |= words_of(job)
        check_job(site, job, "\n".join(o["text"] for o in status(site)["kept"]), doctor(site))
        assert "Slurm starts it in" not in flat(ours(site, "explain", str(number)))
    clear(site)


class prolog_fails:  # noqa: N801
    """slurm.conf has a Prolog that fails, for the time of a with."""

    def __init__(self, site: Sandbox) -> None:
        self._site, self._conf = site, site.layout.dir / "etc" / "slurm.conf"
        self._before = self._conf.read_text()

    def __enter__(self) -> None:
        self._conf.write_text(f"{self._before}Prolog=/bin/false\n")
        scontrol(self._site, "reconfigure")

    def __exit__(self, *_: object) -> None:
        self._conf.write_text(self._before)
        scontrol(self._site, "reconfigure")
        # Slurm drained the node unless it was told not to.
        self._site.run(["scontrol", "update", "nodename=st1", "state=resume"], check=False)


def test_nodes_that_are_never_suspended(site: Sandbox) -> None:
    conf = site.layout.dir / "etc" / "slurm.conf"
    before = conf.read_text()
    conf.write_text(f"{before}SuspendExcNodes=st1,pub1\n")
    scontrol(site, "reconfigure")
    try:
        for text in (ours(site, "explain", "pub1"), ours(site, "status"), doctor(site)):
            assert "SuspendExcNodes in slurm.conf keeps the machines of pub1" in flat(text)
    finally:
        conf.write_text(before)
        scontrol(site, "reconfigure")


def test_enough_words_were_seen(seen: set[str]) -> None:
    """All of the above in one run: with one test alone there are fewer."""
    print(len(seen), sorted(seen))
    assert len(seen) >= LEAST
