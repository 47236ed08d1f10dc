"""From a notice to the job's running again, by stage; and a thousand notices at the same moment.

The stages are measured on a sandbox with a real slurmctld, beside the same requeue made by hand
with the two scontrol commands that it takes at least. The thousand are 1000 jobs on 1000 machines
over a Slurm and a checkpoint method in memory that take their time, beside the bare 2000 calls
(save and requeue) from a thread pool of the same size; once alone and once while as many slow
periodic saves run as may.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
from msgspec.structs import replace

from benchmarks.report import Report, Row, compared, median, noted, report
from slurm_elastic.checkpointers.fake import FakeCheckpointer
from slurm_elastic.ckptman.executor import KeyedExecutor
from slurm_elastic.ckptman.poller import Poller
from slurm_elastic.ckptman.recorder import BufferedRecorder
from slurm_elastic.ckptman.service import Service
from slurm_elastic.ckptman.site import (
    OUTPUT_WRITERS,
    CheckpointSite,
    JobList,
    pools_by_node,
)
from slurm_elastic.ckptman.sources import SourceReading
from slurm_elastic.config import Cluster, Config, PoolSettings
from slurm_elastic.config.clouds import InstanceType
from slurm_elastic.config.sections.checkpoint import CheckpointSettings, PoolCheckpoint
from slurm_elastic.model.checkpoint import Image, JobRun
from slurm_elastic.model.cluster import (
    Instance,
    InstanceState,
    LaunchSpec,
    Location,
    Market,
    Notice,
    NoticeKind,
    Offer,
    Pool,
)
from slurm_elastic.model.slurm import SlurmJob, SlurmNode
from slurm_elastic.providers.fake.settings import FakeCloud
from slurm_elastic.sandbox.cluster import Sandbox
from slurm_elastic.sandbox.control import interrupt
from slurm_elastic.sandbox.quickstart_proof import parse_jobs
from slurm_elastic.sandbox.spec import SandboxSpec
from slurm_elastic.slurm.client.fake import FakeSlurm
from slurm_elastic.state.ckptstate import CheckpointState
from slurm_elastic.state.ckptstate.facts import Migration, MigrationStep
from slurm_elastic.state.ckptstate.schema import FILE
from slurm_elastic.state.ledger import Ledger

SAVE, COMMAND = 0.2, 0.002
"""Seconds that a save and a Slurm command take in memory."""
SLOW = 20.0
"""Seconds that a periodic save takes."""
CREW = 32
GOAL = 3.0
_JOB = """#!/bin/bash
#SBATCH --cpus-per-task=2 --partition=aws --comment=ckpt=signal,saved=file:state-%j
trap 'date +%s.%N > new; mv new state-$SLURM_JOB_ID' USR1
while :; do sleep 0.1; done
"""


def main(arguments: Sequence[str]) -> Report:
    parser = argparse.ArgumentParser(prog="scripts/bench notice")
    parser.add_argument("--quick", action="store_true", help="one interruption, 50 notices at once")
    parser.add_argument("--no-slurm", action="store_true", help="without the sandbox")
    options = parser.parse_args(arguments)
    rows = many(50 if options.quick else 1000)
    rows += while_others_are_saved(50 if options.quick else 1000)
    if not options.no_slurm:
        rows += stages(1 if options.quick else 5)
    return report("notice", rows)


# a thousand at once


class Quick(FakeSlurm):
    """Starts a requeued job as soon as it may."""

    def start_now(self, job: int) -> None:
        super().start_now(job)
        with self._lock:
            old = self._jobs[job]
            self._jobs[job] = replace(old, states=frozenset({"RUNNING"}), nodes=(f"s{job}",))


class AllAtOnce:
    """A source that tells everything with its first reading."""

    name = "all at once"

    def __init__(self, notices: Sequence[Notice]) -> None:
        self._notices = notices

    def read(self, now: float) -> Sequence[SourceReading]:  # noqa: ARG002
        return [SourceReading(notice=notice) for notice in self._notices]

    def done(self, handles: Sequence[str]) -> None:
        pass


def many(count: int) -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="bench-notice-") as name, world(name, count) as site:
        bare = bare_calls(count)
        slurm = site.slurm
        assert isinstance(slurm, FakeSlurm)
        ours, took = timed_service(site, count)
        calls = sum(slurm.calls.values())
    return [
        compared(f"{count} notices at once", ours, bare, "s", at_most=GOAL),
        compared("Slurm commands a job", calls / count, 1.0, "commands"),
        noted("the last image, from the notices on", max(t["saved"] for t in took), "s"),
        noted("the last requeue, from the notices on", max(t["requeued"] for t in took), "s"),
    ]


class SlowInBetween(FakeCheckpointer):
    """Periodic saves take their time; ``go_on`` ends those that run."""

    def __init__(self) -> None:
        super().__init__(seconds=SAVE)
        self.go_on = threading.Event()
        self.running = threading.Semaphore(0)

    def checkpoint(self, run: JobRun, *, deadline: float, stop: bool) -> Image:
        if not stop:
            self.running.release()
            self.go_on.wait(SLOW)
        return super().checkpoint(run, deadline=deadline, stop=stop)


def while_others_are_saved(count: int) -> list[Row]:
    """The same with CREW jobs more, which nothing threatens and whose policy has them saved."""
    with (
        tempfile.TemporaryDirectory(prefix="bench-notice-") as name,
        world(name, count, periodic=CREW) as site,
    ):
        saver = site.checkpointers["fake"]
        assert isinstance(saver, SlowInBetween)
        ours, _ = timed_service(site, count, saver)
    label = f"{count} notices while {CREW} jobs are saved for {SLOW:.0f} s each"
    return [compared(label, ours, bare_calls(count), "s", at_most=GOAL)]


def bare_calls(count: int) -> float:
    slurm, saver = Quick(jobs=jobs(count)), FakeCheckpointer(seconds=SAVE)
    slurm.latency = COMMAND

    def both(job: SlurmJob) -> None:
        saver.checkpoint(run_of(job), deadline=time.time() + 600, stop=True)
        slurm.requeue(job.id)

    began = time.perf_counter()
    with ThreadPoolExecutor(CREW) as pool:
        list(pool.map(both, jobs(count)))
    return time.perf_counter() - began


def timed_service(
    site: CheckpointSite, count: int, busy: SlowInBetween | None = None
) -> tuple[float, list[dict[str, float]]]:
    """With ``busy`` from the moment on at which as many periodic saves run as may."""
    service = Service(site, KeyedExecutor(CREW))
    now = time.time()
    notices = [
        Notice(instance=f"i-{n}", kind=NoticeKind.INTERRUPTION, seen=now, deadline=now + 120)
        for n in range(count)
    ]
    poller = Poller(
        site, AllAtOnce(notices), 60.0, service.reader.machines, service.wake, service.orders
    )  # fmt: skip
    thread = threading.Thread(target=service.run)
    thread.start()
    if busy is not None:
        for _ in range(CREW // 2):
            if not busy.running.acquire(timeout=60):
                raise SystemExit("the periodic saves did not begin")
    began, clock = time.time(), time.perf_counter()
    try:
        poller.poll()
        while len(back := [r for r in site.state.migrations(since=0.0) if r.is_over]) < count:
            if time.perf_counter() - clock > 300:
                raise SystemExit(f"{len(back)} of {count} came back")
            time.sleep(0.02)
        took = time.perf_counter() - clock
    finally:
        if busy is not None:
            busy.go_on.set()
        service.stop()
        thread.join()
    lost = [r for r in back if r.step is not MigrationStep.BACK or r.image is None]
    if lost:
        raise SystemExit(f"{len(lost)} jobs did not come back from an image")
    if len(back) > count:
        raise SystemExit(f"{len(back)} jobs were moved for {count} notices")
    return took, [{k: at - began for k, at in r.reached.items()} for r in back]


@contextlib.contextmanager
def world(directory: str, count: int, periodic: int = 0) -> Iterator[CheckpointSite]:
    """``count`` jobs that are saved on notice, and ``periodic`` ones that are due for a save."""
    state, every = Path(directory), count + periodic
    due = PoolCheckpoint(policy="daly(mtti=1, least=1)")
    config = Config(
        cluster=Cluster(name="bench", uuid="bench"),
        clouds=(FakeCloud(name="pub", location=Location.PUBLIC,
                          types={"t": InstanceType(cpus=2, memory=4096, price=0.1)}),),
        pools=(PoolSettings(name="p", cloud="pub", nodes=f"n[0-{count - 1}]", cpus=2,
                            memory=4096, markets=(Market.SPOT,)),
               PoolSettings(name="q", cloud="pub", nodes=f"n[{count}-{every}]", cpus=2,
                            memory=4096, markets=(Market.SPOT,), checkpoint=due)),
        state_dir=directory,
        checkpoint=CheckpointSettings(
            method="fake", policy="on_notice", expected_duration=5.0, probe_after=1e9,
        ),
    )  # fmt: skip
    ledger, memory = Ledger(state / "ledger.db"), CheckpointState(state / FILE)
    buy(ledger, every)
    nodes = [
        SlurmNode(name=f"n{n}", states=frozenset({"ALLOCATED", "CLOUD"})) for n in range(every)
    ]
    slurm = Quick(nodes, jobs(every))
    slurm.latency = COMMAND
    site = CheckpointSite(
        config=config, slurm=slurm, ledger=ledger, state=memory,
        recorder=BufferedRecorder(ledger, memory, time.time), jobs=JobList(slurm),
        checkpointers={"fake": SlowInBetween()}, providers={},
        pool_of=pools_by_node(config), now=time.time,
        output_writers=KeyedExecutor(OUTPUT_WRITERS),
    )  # fmt: skip
    try:
        yield site
    finally:
        memory.close()
        ledger.close()


def buy(ledger: Ledger, count: int) -> None:
    nodes = tuple(f"n{n}" for n in range(count))
    pool = Pool(name="p", cloud="pub", nodes=nodes, cpus=2, real_memory=4000)
    offer = Offer(
        cloud="pub", location=Location.PUBLIC, instance_type="t", zone="z", market=Market.SPOT,
        price=0.03, cpus=2, memory=4096,
    )  # fmt: skip
    now = time.time()
    launch = f"g{now * 1000:013.0f}-bench"  # the machines' age is counted from this time
    ledger.launches.record_intent(
        LaunchSpec(generation=launch, pool=pool, nodes=nodes, offer=offer), "r1", now
    )
    machines = [
        Instance(
            id=f"i-{n}", cloud="pub", node=f"n{n}", generation=launch, instance_type="t", zone="z",
            market=Market.SPOT, price=0.03, state=InstanceState.RUNNING, launched=now,
        )
        for n in range(count)
    ]  # fmt: skip
    ledger.machines.record_launch(launch, machines, now)


def jobs(count: int) -> list[SlurmJob]:
    started = time.time() - 600
    return [
        SlurmJob(id=n + 1, states=frozenset({"RUNNING"}), nodes=(f"n{n}",), start=started)
        for n in range(count)
    ]


def run_of(job: SlurmJob) -> JobRun:
    return JobRun(
        job=job.id, label=job.label, attempt=0, user="", uid=-1, gid=-1, nodes=job.nodes,
        partition="", started=job.start,
    )  # fmt: skip


# one, on real Slurm


def stages(count: int) -> list[Row]:
    directory = Path(tempfile.mkdtemp(prefix="se-", dir="/tmp"))
    directory.chmod(0o755)
    spec = SandboxSpec(
        dir=directory, static_nodes=1, suspend_time=60.0,
        elastic={"checkpoint": {
            "policy": "on_notice", "expected_duration": "5s", "notices": {"poll_interval": 1},
        }},
    )  # fmt: skip
    site = Sandbox(spec)
    site.up()
    try:
        # Nodes that are up already: a boot is the cloud's time, not ours.
        site.wait_job(site.submit("true", "--nodes=4", "--partition=aws"), "COMPLETED")
        by_hand = [hand(site) for _ in range(count)]
        took = [one(site) for _ in range(count)]
    finally:
        site.down()
    rows = [
        compared("requeue to running again", median([t["back"] - t["saved"] for t in took]),
                 median(by_hand), "s"),
        noted("announced to noticed", median([t["noticed"] for t in took]), "s"),
    ]  # fmt: skip
    for first, then, name in (
        ("planned", "saving", "noticed to save begun (nodes drained)"),
        ("saving", "saved", "save begun to image verified"),
        ("saved", "requeued", "image verified to requeued"),
        ("requeued", "back", "requeued to running again"),
        ("planned", "back", "noticed to running again"),
    ):
        rows.append(noted(name, median([t[then] - t[first] for t in took]), "s"))
    return rows


def hand(site: Sandbox) -> float:
    """The two commands at once, in a loop that looks as often as it can. Its node is drained, as
    one that is taken away is: slurmd refuses a job that comes back to it within two seconds.
    """
    job = _start(site)
    node = site.job(job)["NodeList"]
    site.run(["scontrol", "update", f"nodename={node}", "state=drain", "reason=benchmark"])
    began = time.time()
    site.run(["scontrol", "requeue", str(job)])
    site.wait_for(lambda: _held(site, job), 60, "pending, with its time to start", period=0.05)
    site.run(["scontrol", "update", f"jobid={job}", "starttime=now"])
    site.wait_for(lambda: site.job(job)["JobState"] == "RUNNING", 60, "running", period=0.05)
    took = time.time() - began
    _cancel(site, job)
    site.run(["scontrol", "update", f"nodename={node}", "state=resume"])
    return took


def _held(site: Sandbox, job: int) -> bool:
    """Before that, Slurm would put its hold on the job after all."""
    answer = site.run(["scontrol", "--oneliner", "show", "job", str(job)]).stdout
    row = parse_jobs(answer)[job]
    return row.state == "PENDING" and row.started > time.time()


def one(site: Sandbox) -> dict[str, float]:
    job = _start(site)
    announced = time.time()
    interrupt(site.ec2, site.job(job)["NodeList"], 120.0)
    move = site.wait_for(lambda: _moved_back(site, job), 120, f"job {job} is back")
    _cancel(site, job)
    assert move is not None
    reached = dict(move.reached)
    return reached | {"noticed": move.began - announced}


def _moved_back(site: Sandbox, job: int) -> Migration | None:
    state = CheckpointState(site.layout.dir / "state" / FILE, read_only=True)
    try:
        found = [r for r in state.migrations(since=0.0) if r.run.job == job and r.is_over]
    finally:
        state.close()
    if found and found[0].step is not MigrationStep.BACK:
        raise SystemExit(msgspec.json.encode(found[0]).decode())
    return found[0] if found else None


def _start(site: Sandbox) -> int:
    job = site.submit(_JOB)
    site.wait_job(job, "RUNNING")
    time.sleep(6.0)  # a run that has only just begun is not signalled at once
    return job


def _cancel(site: Sandbox, job: int) -> None:
    site.run(["scancel", str(job)])
    site.wait_job(job, "CANCELLED")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]).ok is False)
