"""The table of submissions: what becomes of a job before and after the installation, on real Slurm.

Each case is submitted to one site twice: as the site was, then with our fragment and filter. The
outcome (exit status, message, where the job starts or why it waits) must be the same, but for the
jobs that now may burst; of those the partition list is asserted in its exact order.
"""

from __future__ import annotations

import errno
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
from e2e.submission_site import SETTLED, Ran, SubmissionSite, wait_for
from msgspec import Struct
from patience import patience

from slurm_elastic.config import Cluster, Config, PoolSettings, SlurmSettings, Timings
from slurm_elastic.config.sections.access import Who
from slurm_elastic.model.cluster import Limits, Location, Market
from slurm_elastic.providers.fake.settings import FakeCloud

pytestmark = pytest.mark.e2e

MODES = (
    "NO",
    pytest.param("ANY", marks=pytest.mark.release),
    pytest.param("ALL", marks=pytest.mark.release),
)
"""EnforcePartLimits."""
PASS = "sched: Running job scheduler for full queue"
ON_PREMISES = ("static", "onprem")
EVERYWHERE = ("static", "onprem", "public")
MEMBER = "games"
"""A user of the group that may use the public cloud; nobody may not."""


class Case(Struct, frozen=True, kw_only=True):
    """``lists``: the partitions of the job afterwards (empty: it must be left alone); ``starts``:
    where it starts afterwards if that is not where it started before."""

    name: str
    args: tuple[str, ...] = ()
    command: str = "sbatch"
    user: str = "nobody"
    lists: tuple[str, ...] = ()
    starts: str | None = None
    full: bool = False
    reserved: bool = False


def cases() -> Iterator[Case]:
    yield from _left_alone()
    yield from _listed_and_started_as_before()
    yield from _only_a_cloud_can_hold()
    yield from _statics_are_full()
    yield from _interactive()


def _left_alone() -> Iterator[Case]:
    """The user chose, or nothing of ours can hold the job."""
    for name, *args in (
        ("partition", "-p", "other"),
        ("default partition by name", "-p", "static"),
        ("two partitions", "-p", "static,other"),
        ("unknown partition", "-p", "nowhere"),
        ("node list", "-w", "st2"),
        ("unknown node", "-w", "st9"),
        ("exclusion", "-x", "st1"),
        ("more nodes than any partition", "-N", "9"),
        ("more tasks than any partition", "-n", "99"),
        ("more CPUs a node than any", "-c", "5"),
        ("more memory than any node", "--mem=100G"),
        ("more memory a CPU than any node", "--mem-per-cpu=90G"),
        ("more GPUs than any node", "--gres=gpu:3"),
        ("more GPUs than any partition", "-G", "9"),
        ("unknown gres", "--gres=tpu:1"),
        ("unknown feature", "-C", "nonsense"),
        ("feature that only the site has", "-C", "old"),
        ("feature expression", "-C", "old|big"),
        ("node count of a feature", "-C", "[old*1]"),
        ("temporary disk", "--tmp=10"),
        ("contiguous nodes", "--contiguous"),
        ("sockets", "--sockets-per-node=2"),
        ("time limit over every partition's", "-t", "30-00:00:00"),
        ("partition's time limit, chosen", "-p", "other", "-t", "2:00:00"),
        ("heterogeneous job", "-n1", ":", "-n1"),
    ):
        yield Case(name=name, args=tuple(args))
    yield Case(name="reservation", args=("--reservation=later",), reserved=True)
    yield Case(name="unknown licence", args=("-L", "matlab"))
    yield Case(name="unknown reservation", args=("--reservation=nope",))
    yield Case(name="GPU, not in the allow list", args=("--gres=gpu:1",))
    yield Case(name="memory, not in the allow list", args=("--mem=4000",))
    yield Case(name="nodes, not in the allow list", args=("-N", "3"))
    yield Case(name="salloc at once", command="salloc", args=("-I", "-N", "9"))


def _listed_and_started_as_before() -> Iterator[Case]:
    """The site's own nodes are free, so the job starts there as ever."""
    for name, *args in (
        ("plain",),
        ("two nodes", "-N", "2"),
        ("tasks", "-n", "3"),
        ("CPUs a task", "-c", "2"),
        ("memory", "--mem=500"),
        ("memory of the whole node", "--mem=0"),
        ("memory a CPU", "--mem-per-cpu=400", "-n2"),
        ("exclusive", "--exclusive"),
        ("time limit", "-t", "10"),
        ("array", "-a", "1-2"),
        ("account", "-A", "physics"),
        ("no hyperthreads", "--hint=nomultithread"),
        ("hold", "-H"),
        ("later", "--begin=now+1hour"),
        ("may be requeued", "--requeue"),
    ):
        yield Case(name=name, args=tuple(args), user=MEMBER, lists=EVERYWHERE)
    # The node of the public cloud that has no spot machine can hold one node, and not two.
    once = ("--no-requeue",)
    yield Case(name="must not be requeued", args=once, user=MEMBER, lists=EVERYWHERE)
    yield Case(
        name="two nodes, must not be requeued", args=(*once, "-N2"), user=MEMBER, lists=ON_PREMISES
    )
    yield Case(name="plain, not in the allow list", lists=ON_PREMISES)
    yield Case(name="plain, by root", user="root", lists=EVERYWHERE)
    yield Case(
        name="time limit over the public cloud's",
        args=("-t", "1-12:00:00"),
        user=MEMBER,
        lists=ON_PREMISES,
    )


def _only_a_cloud_can_hold() -> Iterator[Case]:
    """Refused or waiting for ever before; now it runs."""
    for name, lists, starts, *args in (
        ("nodes of the largest", ("public",), "public", "-N", "3"),
        ("all nodes of the largest", ("public",), "public", "-N", "4"),
        ("tasks of two clouds", ("onprem", "public"), "onprem", "-n", "6"),
        ("tasks of the largest", ("public",), "public", "-n", "12"),
        ("CPUs a node", EVERYWHERE, "onprem", "-c", "3"),
        ("tasks a node", ("onprem", "public"), "onprem", "-N2", "--ntasks-per-node=3"),
        ("some memory", EVERYWHERE, "onprem", "--mem=1500"),
        ("much memory", ("static", "public"), "public", "--mem=4000"),
        ("memory a CPU beyond", EVERYWHERE, "onprem", "--mem-per-cpu=1500", "-n2"),
        ("GPU", ("static", "public"), "public", "--gres=gpu:1"),
        ("two GPUs", ("static", "public"), "public", "--gpus-per-node=2"),
        ("GPUs of the job", ("static", "public"), "public", "-G", "2"),
        ("GPU a task", ("static", "public"), "public", "-n2", "--gpus-per-task=1"),
        ("CPUs a GPU", ("static", "public"), "public", "--gpus-per-node=2", "--cpus-per-gpu=2"),
        ("feature", ("static", "public"), "public", "-C", "big"),
        ("two features", ("static", "public"), "public", "-C", "big&fast"),
        ("time limit of the on-premises cloud", ("onprem",), "onprem", "-t", "3-00:00:00"),
    ):
        yield Case(name=name, args=tuple(args), user=MEMBER, lists=lists, starts=starts)
    yield Case(
        name="tasks, not in the allow list", args=("-n", "6"), lists=("onprem",), starts="onprem"
    )


def _statics_are_full() -> Iterator[Case]:
    for name, lists, starts, *args in (
        ("plain", EVERYWHERE, "onprem"),
        ("two nodes", EVERYWHERE, "onprem", "-N", "2"),
        ("array", EVERYWHERE, "onprem", "-a", "1-2"),
        ("memory", ("static", "public"), "public", "--mem-per-cpu=2500", "-n1"),
        ("partition", (), None, "-p", "static"),
        ("node list", (), None, "-w", "st1"),
        ("exclusion", (), None, "-x", "st1"),
        ("heterogeneous job", (), None, "-n1", ":", "-n1"),
        ("feature", (), None, "-C", "old"),
    ):
        yield Case(
            name=f"full: {name}",
            args=tuple(args),
            user=MEMBER,
            lists=lists,
            starts=starts,
            full=True,
        )


def _interactive() -> Iterator[Case]:
    for command in ("srun", "salloc"):
        yield Case(name=command, command=command, user=MEMBER, lists=EVERYWHERE)
        yield Case(name=f"{command} partition", command=command, args=("-p", "static"))
        yield Case(name=f"{command} node list", command=command, args=("-w", "st1"))
        yield Case(
            name=f"{command} GPU",
            command=command,
            args=("--gres=gpu:1",),
            user=MEMBER,
            lists=("static", "public"),
            starts="public",
        )
        yield Case(
            name=f"full: {command}",
            command=command,
            user=MEMBER,
            lists=EVERYWHERE,
            starts="onprem",
            full=True,
        )
        yield Case(
            name=f"full: {command} at once", command=command, args=("-I1",), user=MEMBER, full=True
        )


FIRST = {
    *("partition", "two partitions", "node list", "exclusion", "more nodes than any partition"),
    *("more memory than any node", "unknown gres", "feature that only the site has"),
    *("time limit over every partition's", "heterogeneous job", "reservation"),
    *("GPU, not in the allow list", "plain", "two nodes", "memory", "array", "hold"),
    *("must not be requeued", "two nodes, must not be requeued", "plain, not in the allow list"),
    *("time limit over the public cloud's", "nodes of the largest", "tasks of two clouds"),
    *("much memory", "GPU", "two features", "time limit of the on-premises cloud"),
    *("full: plain", "full: heterogeneous job", "full: srun", "srun", "salloc partition"),
}
"""The cases of the first tier: each reason for a list, and each way to submit, once."""
CASES = [
    case if case.name in FIRST else pytest.param(case, marks=pytest.mark.release)
    for case in cases()
]
assert {case.name for case in cases()} >= FIRST


class Outcome(Struct, frozen=True, kw_only=True):
    """The outcome of a submission. ``listed``: the list our filter gave it, if it did."""

    refused: str | None
    state: str = ""
    reason: str = ""
    partitions: frozenset[str] = frozenset()
    nodes: str = ""
    listed: tuple[str, ...] = ()


def submissions_config(site: SubmissionSite) -> Config:
    """An on-premises cloud with less memory, and a public one with GPUs and spot machines for the
    group games.

    The nodes never boot. Their ports are ones that nobody listens on, so that what slurmctld sends
    to them fails at once: 22.05 stalls all its agents on a node name that does not resolve.
    """
    return Config(
        cluster=Cluster(name="submissions"),
        state_dir=str(site.root / "state"),
        clouds=(
            FakeCloud(
                name="public",
                location=Location.PUBLIC,
                allow=Who(groups=(MEMBER,), max_time=24 * 3600.0),
            ),
            FakeCloud(
                name="onprem",
                location=Location.ON_PREMISES,
                allow=Who(max_time=5 * 24 * 3600.0),
            ),
        ),
        pools=(
            PoolSettings(
                name="pub",
                slurmd_port=1,
                cloud="public",
                nodes="pub[1-3]",
                markets=(Market.SPOT, Market.ON_DEMAND),
                cpus=4,
                memory=8000,
                real_memory=6000,
                features=("big", "fast"),
            ),
            PoolSettings(
                name="gpu",
                slurmd_port=4,
                cloud="public",
                nodes="gpu1",
                cpus=4,
                memory=8000,
                real_memory=6000,
                gres={"gpu": 2},
            ),
            PoolSettings(
                name="op",
                slurmd_port=5,
                cloud="onprem",
                nodes="op[1-2]",
                cpus=4,
                memory=3000,
                real_memory=2000,
            ),
        ),
        limits=Limits(dollars_per_hour=10.0),
        timings=Timings(resume_timeout=450.0, suspend_time=3600.0),
        slurm=SlurmSettings(conf=str(site.conf), programs_dir=str(site.root / "programs")),
    )


@contextmanager
def running_site(**options: str) -> Iterator[SubmissionSite]:
    """A started site in a directory that every user can enter."""
    with tempfile.TemporaryDirectory(prefix="submissions-") as directory:
        os.chmod(directory, 0o755)
        site = SubmissionSite(Path(directory), **options)
        try:
            site.start()
            yield site
        finally:
            site.stop()


@pytest.fixture(scope="module", params=MODES)
def sites(request: pytest.FixtureRequest) -> Iterator[tuple[SubmissionSite, SubmissionSite]]:
    """A site as it was, and one after the installation."""
    with (
        running_site(enforce=request.param) as before,
        running_site(enforce=request.param) as after,
    ):
        install(after)
        yield before, after


def submit(site: SubmissionSite, case: Case) -> Outcome:
    """Submit, wait until Slurm has decided, look, and take it all away again."""
    if case.full:
        submit_filler(site)
    if case.reserved:
        done = site.run(
            "scontrol",
            "create",
            "reservation",
            "ReservationName=later",
            "Nodes=st2",
            "Users=nobody",
            "StartTime=now+1day",
            "Duration=10",
        )
        assert done.code == 0, done
    seen = site.log_size
    outcome = batch(site, case) if case.command == "sbatch" else interactive(site, case)
    if case.reserved:
        clear(site)
        site.run("scontrol", "delete", "ReservationName=later")
    clear(site)
    given = re.findall(r"slurm-elastic: uid=\S+ partition=(\S+)", site.log(seen))
    assert len(given) <= 1, given
    return Outcome(
        refused=outcome.refused,
        state=outcome.state,
        reason=outcome.reason,
        partitions=outcome.partitions,
        nodes=outcome.nodes,
        listed=tuple(given[0].split(",")) if given else (),
    )


def submit_filler(site: SubmissionSite) -> None:
    done = site.run(
        "sbatch",
        "--parsable",
        "-p",
        "static",
        "-N2",
        "--exclusive",
        "-o",
        "/dev/null",
        "--wrap",
        "sleep 600",
    )
    job = done.out.strip()
    wait_for("the filler to run", lambda: job_row(site, job)[0] == "RUNNING")


def batch(site: SubmissionSite, case: Case) -> Outcome:
    wrap = ("--parsable", "-o", "/dev/null", "--wrap", "sleep 600")
    if ":" in case.args:
        split = case.args.index(":")
        script = site.root / "home" / "het.sh"
        script.write_text("#!/bin/sh\nsleep 600\n")
        done = site.run(
            "sbatch",
            "--parsable",
            "-o",
            "/dev/null",
            *case.args[:split],
            ":",
            *case.args[split + 1 :],
            str(script),
            user=case.user,
        )
    else:
        done = site.run("sbatch", *wrap, *case.args, user=case.user)
    if done.code != 0:
        return Outcome(refused=message(done))
    return settled(site, done.out.strip(), case.starts)


def interactive(site: SubmissionSite, case: Case) -> Outcome:
    name = "interactive"
    # salloc leaves its command running when the allocation goes, unless told to end it.
    command = ("salloc", "-K") if case.command == "salloc" else (case.command,)
    process = site.popen(*command, "-J", name, *case.args, "sleep", "600", user=case.user)

    def queued() -> str:
        return site.run("squeue", "-h", "-n", name, "-o", "%A").out.strip()

    try:
        wait_for("srun or salloc", lambda: queued() or process.poll() is not None)
        job = queued()
        if "-I" in case.args or "-I1" in case.args:
            wait_for("an answer at once", lambda: process.poll() is not None)
        if job and process.poll() is None:
            return settled(site, job, case.starts)
        out, err = process.communicate()
        return Outcome(refused=message(Ran(code=process.returncode, out=out, err=err)))
    finally:
        clear(site, keep="wrap")
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=patience(30))
        if process.poll() is None:
            process.kill()
            process.communicate()


def message(ran: Ran) -> str:
    """The error of Slurm that the user reads, without job numbers and salloc's line on when it gave
    up; what the filter adds is tested elsewhere."""
    ours = ("has been revoked", ": slurm-elastic: ")
    lines = [line for line in ran.err.splitlines() if not any(word in line for word in ours)]
    return f"exit {ran.code}: " + re.sub(r"\d+", "N", "\n".join(lines))


def job_row(site: SubmissionSite, job: str) -> tuple[str, str, str, str]:
    """State, reason, partitions and nodes of a job (of an array or heterogeneous one: of its first)."""
    out = site.run("squeue", "-h", "-r", "-S", "i", "-t", "all", "-j", job, "-o", "%T|%r|%P|%N").out
    state, reason, partitions, nodes = (out.splitlines() or ["|||"])[0].split("|")
    return state, reason, partitions, nodes


def settled(site: SubmissionSite, job: str, starts: str | None) -> Outcome:
    """The job once it runs, or waits for machines, or was left waiting by two full scheduler passes
    (the first reason that Slurm shows is not the one that stays). One that lists the partition in
    which it ``starts`` may wait longer: for machines that an earlier job has just left."""
    since, row = site.log_size, job_row(site, job)

    def decided() -> bool:
        nonlocal row
        row = job_row(site, job)
        state, reason, partitions, nodes = row
        if state == "PENDING" and starts in partitions.split(","):
            return False
        if state == "CONFIGURING":
            return not nodes.startswith("st")
        if state == "PENDING":
            waits = reason not in ("None", "Priority") and site.log(since).count(PASS) >= 2
            return waits or reason in ("JobHeldUser", "BeginTime")
        return state != ""

    wait_for(f"job {job} to be decided upon", decided)
    state, reason, partitions, nodes = row
    return Outcome(
        refused=None,
        state=state,
        reason=reason,
        nodes=nodes,
        partitions=frozenset(partitions.split(",")),
    )


def clear(site: SubmissionSite, keep: str = "") -> None:
    """Cancel every job (but those named ``keep``) and wait until the queue is empty."""

    def left() -> list[str]:
        rows = (row.split() for row in site.run("squeue", "-h", "-o", "%A %j").out.splitlines())
        return [job for job, name in rows if name != keep]

    jobs = left()
    if jobs:
        site.run("scancel", *jobs)
        wait_for("the queue to be empty", lambda: not left())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_outcome_is_the_same_but_for_jobs_that_now_may_burst(
    case: Case, sites: tuple[SubmissionSite, SubmissionSite]
) -> None:
    with ThreadPoolExecutor(2) as pool:  # the two sites mostly wait
        before, after = pool.map(partial(submit, case=case), sites)

    assert before.listed == ()
    assert after.listed == case.lists
    if case.starts is None:
        assert (after.refused, after.state, after.reason, after.nodes) == (
            before.refused,
            before.state,
            before.reason,
            before.nodes,
        )
        pending = case.lists and after.state == "PENDING"
        assert after.partitions == (frozenset(case.lists) if pending else before.partitions)
    else:
        assert before.state not in ("RUNNING", "CONFIGURING")
        assert after.refused is None
        assert after.state == "CONFIGURING"
        assert after.partitions == {case.starts}


def install(site: SubmissionSite) -> None:
    site.install(submissions_config(site))
    site.restart()


def replace_script(site: SubmissionSite, name: str, text: str) -> None:
    """Write a Lua file; slurmctld loads job_submit.lua again when its time stamp is newer."""
    (site.conf.parent / name).write_text(text)
    script = site.conf.parent / "job_submit.lua"
    later = script.stat().st_mtime + 10
    os.utime(script, (later, later))


@pytest.mark.release
def test_who_could_not_see_the_jobs_of_others_still_cannot() -> None:
    """PrivateData is a list of which the last line wins: ours must hold the site's values too."""
    with running_site(enforce="NO", extra="PrivateData=jobs,users") as site:
        seen = []
        for step in (lambda: None, lambda: install(site)):
            step()
            submit_filler(site)
            seen.append((queue_of(site, "nobody"), queue_of(site, "root")))
            clear(site)
    assert seen == [([], ["static"]), ([], ["static"])]


def queue_of(site: SubmissionSite, user: str) -> list[str]:
    return site.run("squeue", "-h", "-a", "-o", "%P", user=user).out.split()


def test_errors_in_the_filter_never_fail_a_submission() -> None:
    plain = Case(name="plain", args=("-H",))
    with running_site(enforce="ALL") as site:
        install(site)
        filter_text = (site.conf.parent / "slurm_elastic.lua").read_text()
        assert submit(site, plain).listed == ON_PREMISES

        for broken in (
            "this is no Lua",
            filter_text.replace("local function chosen(job)", "local function chosen(job) error()"),
            filter_text.replace("job_desc.partition = list", "job_desc.partition = {}"),
        ):
            replace_script(site, "slurm_elastic.lua", broken)
            seen = site.log_size
            outcome = submit(site, plain)
            assert (outcome.refused, outcome.partitions) == (None, {"static"})
            assert "slurm-elastic: job" in site.log(seen)

        (site.conf.parent / "slurm_elastic.lua").unlink()
        site.restart()
        assert submit(site, plain).partitions == {"static"}

        (site.conf.parent / "slurm_elastic.lua").write_text(filter_text)
        site.restart()
        assert submit(site, plain).listed == ON_PREMISES


SITE_SCRIPT = """\
local directory = string.match(debug.getinfo(1, "S").source, "^@(.*/)") or ""
pcall(dofile, directory .. "slurm_elastic.lua")

function slurm_job_submit(job_desc, part_list, submit_uid)
  if job_desc.comment == "short" then
    job_desc.partition = "other"
  end
  if job_desc.comment == "forbidden" then
    slurm.log_user("not here")
    return slurm.ERROR
  end
  if slurm_elastic_submit then
    slurm_elastic_submit(job_desc, part_list, submit_uid)
  end
  return slurm.SUCCESS
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
  return slurm.SUCCESS
end
"""
"""As docs/submission.md tells a site with a script of its own."""


def test_sites_own_script_decides_first_and_calls_ours() -> None:
    with running_site(enforce="NO") as site:
        install(site)
        replace_script(site, "job_submit.lua", SITE_SCRIPT)

        short = submit(site, Case(name="short", args=("--comment=short", "-H")))
        forbidden = submit(site, Case(name="forbidden", args=("--comment=forbidden",)))
        plain = submit(site, Case(name="plain", args=("-H",)))

    assert (short.listed, short.partitions) == ((), {"other"})
    assert "not here" in (forbidden.refused or "")
    assert (plain.listed, plain.partitions) == (ON_PREMISES, set(ON_PREMISES))


@pytest.mark.release
def test_changing_a_pending_job_works_as_before() -> None:
    with running_site(enforce="NO") as site:
        install(site)
        job = site.run("sbatch", "--parsable", "-H", "--wrap", "true", user="nobody").out.strip()
        for change in ("comment=hello", "partition=static", "timelimit=5"):
            assert changed(site, job, change).code == 0
        assert job_row(site, job)[2] == "static"


def changed(site: SubmissionSite, job: str, change: str) -> Ran:
    """A user's change; 24.11 may answer with a left-over errno, with any filter or none."""
    until = time.monotonic() + patience(SETTLED)
    while True:
        done = site.run("scontrol", "update", f"jobid={job}", change, user="nobody")
        left_over = any(os.strerror(number) in done.err for number in errno.errorcode)
        if not left_over or time.monotonic() > until:
            return done
        time.sleep(0.5)


@pytest.mark.release
def test_asking_in_vain_for_what_only_a_cloud_has_is_refused_in_other_words() -> None:
    """The one difference that no list can take away: the feature exists now, though not for all."""
    fast = Case(name="feature", args=("-C", "fast"))
    with running_site(enforce="NO") as site:
        before = submit(site, fast)
        install(site)
        after = submit(site, fast)
    assert "Invalid feature specification" in (before.refused or "")
    assert "Requested node configuration is not available" in (after.refused or "")
