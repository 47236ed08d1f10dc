"""A Slurm cluster in containers whose nodes can checkpoint: what an installation does, in short."""

from __future__ import annotations

import contextlib
import itertools
import json
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm_elastic.base.hostlist import expand
from slurm_elastic.config import Cluster, Config, PoolSettings, domain_pools
from slurm_elastic.config.sections.checkpoint import CheckpointSettings, PoolCheckpoint
from slurm_elastic.machine.ckptroot import bundle
from slurm_elastic.model.cluster import Location
from slurm_elastic.policies.repair.requeue import SETTLING
from slurm_elastic.providers.fake.settings import FakeCloud
from slurm_elastic.slurm.hooks.launcher import PROGRAM
from slurm_elastic.slurm.hooks.submit_filter import render

from .engine import REPO, Engine
from .world import HEAD, ContainerWorld, Host

SUDOERS = REPO / "etc" / "sudoers.d-slurm-elastic"
CONF = "KillWait=10\nSlurmdTimeout=180\nBatchStartTimeout=180\nMinJobAge=600\n"
"""A host that stands still for half a minute, on a busy machine, is no host that is lost: tests that
count restarts say themselves that one is.
"""

COUNTER = """\
#!/bin/bash
echo "start restart=${SLURM_RESTART_COUNT:-0} args=$*"
trap 'echo got USR1' USR1
for ((step = 0; ; step++)); do
    [ ! -e "end-$SLURM_JOB_ID" ] || break
    echo "step $step"
    sleep 0.2
done
echo finished
exit CODE
"""

UNSAVABLE = COUNTER.replace("CODE", "0").replace("for", "exec 3<>/dev/tcp/head/6817 || exit 9\nfor")
"""A connection that is open cannot be moved."""

EQUIPPED = "/run/equipped"

SYSLOG = """
import os, socket
log = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
log.bind("/dev/log")
os.chmod("/dev/log", 0o666)
while True:
    print(log.recv(8192).decode(errors="replace"))
"""

SLURM_COMMAND = """\
#!/bin/sh
if [ -e /shared/silent ] && tr '\\0' ' ' <"/proc/$PPID/cmdline" | grep -qf /shared/silent; then
    echo 'Unable to contact slurm controller (connect failure)' >&2
    exit 1
fi
exec "/usr/bin/${0##*/}" "$@"
"""
"""Gets no answer for the root part's commands that the file ``silent`` has, such as ``ckpt-root run``."""

ASK = """
import json, sys, time
from pathlib import Path
import msgspec
from slurm_elastic.checkpointers.node_helper_client import LaunchedCheckpointer
from slurm_elastic.base.errors import CheckpointError
from slurm_elastic.model.checkpoint import JobRun
run = msgspec.json.decode(sys.argv[1], type=JobRun)
ways = LaunchedCheckpointer("criu", Path("/shared/ckpt/containers"))
try:
    match sys.argv[2]:
        case "images":
            found = list(ways.images(run))
            for image in found:
                ways.verify(image)
        case "release":
            found = ways.release(run)
        case "remove":
            found = ways.remove(run.job)
        case stop:
            found = ways.checkpoint(run, deadline=time.time() + 150, stop=stop == "stop")
            ways.verify(found)
    print(msgspec.json.encode({"ok": found}).decode())
except CheckpointError as error:
    print(json.dumps({"error": str(error)}))
"""


def config() -> Config:
    """Jobs of partition ``static`` are checkpointed by CRIU, others where they ask for it."""
    return Config(
        cluster=Cluster(name="containers"),
        clouds=(FakeCloud(name="onprem", partition="static", location=Location.ON_PREMISES),),
        pools=(
            PoolSettings(name="rack", cloud="onprem", nodes="n[1-9]", cpus=2, memory=1000,
                         real_memory=1000, checkpoint=PoolCheckpoint(method="criu")),
        ),
        checkpoint=CheckpointSettings(directory="/shared/ckpt"),
    )  # fmt: skip


class CriuWorld(ContainerWorld):
    """Nodes with the root part, its configuration, its sudo rule and its key.

    ``conf`` is appended to slurm.conf; ``options`` are those of ContainerWorld.
    """

    conf_lines = CONF + "JobSubmitPlugins=lua\n"
    stage = ""
    """A directory on the nodes' own disks, to which periodic images are written first."""
    awaited = (*ContainerWorld.awaited, EQUIPPED, "/dev/log")
    uptimes = (500_000, 0, 9_000)
    """Seconds for which the nodes have run longer than this machine, in turn: a job's next machine
    is a younger one or an older one.
    """
    poll = 0.2
    """Seconds between two looks of a job's root part for a request."""

    def __init__(
        self, engine: Engine, image: str, *, nodes: int = 3, hold: float = 300.0, conf: str = "",
        **options: Any,
    ) -> None:  # fmt: skip
        conf = self.conf_lines + conf
        super().__init__(engine, image, nodes=nodes, criu=True, conf=conf, **options)
        self.hold = hold
        self.labels: dict[int, str] = {}

    def __enter__(self) -> CriuWorld:
        super().__enter__()
        return self

    def _start(self, name: str, **options: Any) -> Host:
        host = super()._start(name, **options)
        if name == HEAD:
            self.set_up_head(host)
        return host

    def set_up_head(self, host: Host) -> None:
        """Write the files without which slurmctld does not start."""
        for file, text in render(config(), domain_pools(config(), expand)).items():
            host.put(f"/etc/slurm/{file}", text)

    def _lay_out(self) -> None:
        super()._lay_out()
        (self.shared / "ckpt").mkdir(mode=0o755)
        (self.shared / "ckpt-root").write_bytes(bundle.build())
        (self.shared / "ckpt-root").chmod(0o755)
        for name in ("scontrol", "squeue", "srun"):
            (self.shared / name).write_text(SLURM_COMMAND)
            (self.shared / name).chmod(0o755)
        keys = self.directory / "keys"
        self.set_hold(self.hold)
        (keys / "ckpt.key").touch(mode=0o600)
        (keys / "ckpt.key").write_bytes(secrets.token_bytes(64))

    def set_hold(self, seconds: float) -> None:
        """How long the jobs that start from now on stand still when nobody requeues them.

        Their scontrol answers unless ``silence`` says otherwise.
        """
        text = f"directory = /shared/ckpt\ncluster = containers\nhold = {seconds}\n"
        text += f"poll = {self.poll}\n"
        text += "scontrol = /shared/scontrol\n"
        text += f"stage = {self.stage}\n" if self.stage else ""
        (self.directory / "keys" / "ckpt-root.conf").write_text(text)

    def start_node(self, name: str, *, hostname: str | None = None) -> Host:
        """A host with the root part, before its slurmd starts: a job may be waiting for the node."""
        host = super().start_node(name, hostname=hostname)
        host.put("/etc/sudoers.d/slurm-elastic", SUDOERS.read_text(), mode=0o440)
        host.run(["install", "-m", "755", "/shared/ckpt-root", PROGRAM])
        host.start(["python3", "-uc", SYSLOG], f"{name}.syslog")
        host.run(["touch", EQUIPPED])
        return host

    def clocks(self, name: str) -> str:
        """A container has its host's clocks otherwise, of which every move would be between equals."""
        number = int("".join(filter(str.isdigit, name)) or 0)
        more = self.uptimes[number % len(self.uptimes)]
        return f"unshare --time --monotonic {more} --boottime {more}" if more else ""

    @contextlib.contextmanager
    def silence(self, *commands: str) -> Iterator[None]:
        """slurmctld does not answer these commands of the root part: ready, run."""
        new = self.shared / "silent.new"
        new.write_text("".join(f"ckpt-root {command} \n" for command in commands))
        new.rename(self.shared / "silent")
        try:
            yield
        finally:
            (self.shared / "silent").unlink()

    # jobs

    def name(self, job: int) -> str:
        """For Slurm's commands: a task of an array by its label, as its number may be the array's."""
        return self.labels.get(job, str(job))

    def job(self, number: int) -> dict[str, str]:
        done = self.slurm("scontrol", "-o", "show", "job", self.name(number), check=False)
        words = (word.partition("=") for word in done.stdout.split())
        return {key: value for key, sign, value in words if sign}

    def tasks(self, array: int) -> list[int]:
        """The numbers of an array's running tasks."""
        form = ("-h", "-t", "R", "-o", "%A %F_%K", "-j", str(array))
        rows = (line.split() for line in self.slurm("squeue", *form).stdout.splitlines())
        found = {int(number): label for number, label in rows}
        self.labels |= found
        return sorted(found)

    def counter(self, *options: str, code: int = 0) -> int:
        """Submit the counter by plain sbatch; its output is ``out-JOB``. It counts until ``end``."""
        return self.sbatch(COUNTER.replace("CODE", str(code)), "-o", "out-%j", *options)

    def end(self, job: int, state: str = "COMPLETED") -> dict[str, str]:
        """Let the job come to its end; every step is there, once and in order."""
        (self.shared / "jobs" / f"end-{job}").touch()
        shown = self.wait_job(job, state)
        steps = self.steps(job)
        assert steps == list(range(len(steps)))
        assert self.own_output(job)[0] == "start restart=0 args="
        assert self.output(job)[-1] == "finished"
        return shown

    def wait_more(self, job: int) -> None:
        """Wait until the job has done some more steps."""
        done = len(self.steps(job))
        self.wait_for(lambda: len(self.steps(job)) >= done + 3, f"job {job} goes on")

    def output(self, job: int) -> list[str]:
        path = self.shared / "jobs" / f"out-{job}"
        return path.read_text().splitlines() if path.exists() else []

    def own_output(self, job: int) -> list[str]:
        """The lines that the job itself wrote. Ours come before or after its first one."""
        return [line for line in self.output(job) if "slurm-elastic: " not in line]

    def steps(self, job: int) -> list[int]:
        lines = self.output(job)
        return [int(line.split()[1]) for line in lines if line.startswith("step ")]

    def run_of(self, job: int) -> dict[str, Any]:
        """The job's run as the service would see it."""
        shown = self.wait_for(lambda: self.job(job), f"slurmctld knows job {job}")
        return {
            "job": job, "label": self.name(job), "attempt": int(shown["Restarts"]), "user": "alice",
            "uid": 2000, "gid": 2000, "nodes": [shown["NodeList"]], "partition": "static",
            "started": 0.0,
        }  # fmt: skip

    def ask(self, job: int, verb: str, **options: str) -> dict[str, Any]:
        """A call of the method as SlurmUser on the head: stop, go, images, release or remove; with
        the job's own options of the method.
        """
        run = json.dumps({**self.run_of(job), "options": options})
        words = ["env", "PYTHONPATH=/opt/slurm-elastic", "PYTHONDONTWRITEBYTECODE=1",
                 "/usr/bin/python3", "-c", ASK, run, verb]  # fmt: skip
        found: dict[str, Any] = json.loads(self.head.run(words, user="slurm", timeout=300.0).stdout)
        return found

    def state_of(self, job: int) -> str:
        """The state that the job's launcher tells: running, held; empty if it tells none."""
        path = self.directory_of(job) / "status.json"
        try:
            return str(json.loads(path.read_text())["state"])
        except FileNotFoundError:
            return ""

    def standing(self, job: int) -> None:
        """Wait until the job's launcher drives it."""
        self.wait_for(lambda: self.state_of(job) == "running", f"job {job} is under the launcher")

    def move(self, job: int) -> str:
        """Requeue a job to another node, as the service does; the node it leaves."""
        old = self.job(job)["NodeList"]
        self.slurm("scontrol", "update", f"nodename={old}", "state=drain", "reason=test")
        self.slurm("scontrol", "requeue", self.name(job), user="slurm")
        self.hurry(job)
        return old

    def lose(self, job: int) -> str:
        """A power cut of the job's node, and the job runs again; the node."""
        lost = self.job(job)["NodeList"]
        self.nodes()[lost].kill()
        self.slurm("scontrol", "update", f"nodename={lost}", "state=down", "reason=lost")
        self.hurry(job)
        return lost

    def all_up(self) -> None:
        """All nodes take jobs, whatever became of them before."""
        self.resume("n1", "n2", "n3")
        self.wait_for(
            lambda: self.slurm("sinfo", "-h", "-t", "idle,mix", "-o", "%D").stdout.split() == ["3"],
            "all nodes are up",
        )

    def hurry(self, job: int) -> None:
        """Take the wait for BeginTime off a requeued job, and see it run.

        Not at once: slurmd refuses a job whose requeue is not a second old (policies/repair/requeue.py).
        """
        pending: list[float] = []

        def runs() -> bool:
            state = self.job(job).get("JobState", "")
            if state == "PENDING":
                pending.append(time.monotonic())
            if state == "PENDING" and pending[-1] - pending[0] >= SETTLING:
                words = ("scontrol", "update", f"jobid={self.name(job)}", "starttime=now")
                self.slurm(*words, user="slurm", check=False)
            return state in ("RUNNING", "COMPLETED", "FAILED")

        self.wait_for(runs, f"job {job} runs again")

    def resume(self, *nodes: str) -> None:
        for node in nodes:
            self.slurm("scontrol", "update", f"nodename={node}", "state=resume", check=False)

    def launcher_said(self, job: int) -> list[str]:
        """The lines of the job's launchers in the nodes' syslogs."""
        lines = itertools.chain.from_iterable(
            path.read_text(errors="replace").splitlines()
            for path in sorted((self.shared / "log").glob("*.syslog"))
        )
        return [line.partition(f" job {job}: ")[2] for line in lines if f" job {job}: " in line]

    def directory_of(self, job: int) -> Path:
        """The job's directory of images, as seen from here."""
        return self.shared / "ckpt" / "containers" / str(job)

    def left(self, job: int) -> list[str]:
        """The remains of a job: its directory, and processes on any node."""
        path = self.directory_of(job)
        found = [str(p) for p in [path, *path.rglob("*")] if p.exists()]
        for name, host in self.nodes().items():
            done = host.run(
                ["pgrep", "-af", f"[c]ontainers/{job}/script|[j]ob{job:05}"], check=False
            )
            found += [f"{name}: {line}" for line in done.stdout.splitlines()]
        return found


def needed(world: CriuWorld) -> None:
    """Skip where this machine's containers cannot do what CRIU needs (`criu check` asks for more)."""
    probe = ["unshare", "--pid", "--mount", "--fork", "--mount-proc", "true"]
    found = world.nodes()["n1"].run(probe, check=False)
    if found.returncode != 0:
        pytest.skip(f"containers cannot have namespaces of their own here: {found.stderr.strip()}")
    yama = Path("/proc/sys/kernel/yama/ptrace_scope")
    if yama.exists() and yama.read_text().strip() != "0":
        pytest.skip(
            "kernel.yama.ptrace_scope is not 0: nothing can be restored with a user's rights"
        )


def gone(world: CriuWorld, job: int) -> None:
    world.wait_for(lambda: not world.left(job), f"nothing is left of job {job}")


def started(world: CriuWorld, *options: str, code: int = 0) -> int:
    """A job that counts, under the launcher."""
    job = world.counter(*options, code=code)
    world.standing(job)
    world.wait_more(job)
    return job


def announced(world: CriuWorld, moves: int) -> set[str]:
    """A job is stopped by an image and moved, that many times; the hosts that it was on."""
    job = started(world, code=7)
    nodes = set()
    for _ in range(moves):
        saved = world.ask(job, "stop")
        assert saved.get("ok", {}).get("size", 0) > 0, saved
        assert world.job(job)["JobState"] == "RUNNING"  # held: Slurm sees no end
        nodes.add(world.move(job))
        world.standing(job)
        world.wait_more(job)
    shown = world.end(job, "FAILED")
    assert shown["ExitCode"] == "7:0"
    assert shown["Restarts"] == str(moves)
    gone(world, job)
    return nodes | {shown["NodeList"]}


def power_cut(world: CriuWorld) -> None:
    """A job goes on from its last periodic image after its host is gone; the host comes back."""
    job = started(world)
    for number in (1, 2):
        assert world.ask(job, "go")["ok"]["number"] == number
        world.wait_more(job)
    assert [image["number"] for image in world.ask(job, "images")["ok"]] == [2, 1]
    lost = world.lose(job)
    world.standing(job)
    world.end(job)
    world.start_node(lost)
    gone(world, job)
