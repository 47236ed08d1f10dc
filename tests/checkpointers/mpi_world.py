"""MPI jobs of several nodes under a real DMTCP, on hosts of their own, moved by slurm-elastic-ckptman."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import slurm_hosts
from patience import patience
from slurm_hosts import HEAD, PATH, Hosts, run

from slurm_elastic.checkpointers.node_helper_client import LaunchedCheckpointer
from slurm_elastic.model.checkpoint import JobRun, Origin
from slurm_elastic.state.ckptstate.orders import DROPS
from tests.checkpointers.real_dmtcp import unpacked

MPIS = ("mpich", "openmpi")
STEPS, PAUSE_MS, NEXT_STEPS, NEXT_PAUSE_MS = 400, 150, 20, 100
_CONFIG = """\
cluster: {{name: t, uuid: 3f0a5c1e-7f6c-4c0a-9d51-0b1d2f3a4b5c}}
state_dir: {home}/elastic
slurm: {{conf: {home}/slurm.conf, programs_dir: {home}/programs}}
users: {{socket: {home}/run/read.sock}}
checkpoint:
  method: dmtcp
  directory: {home}/shared
  expected_duration: 60
  notices: {{poll_interval: 1.0, poll_clouds: false}}
clouds: [{{name: onprem, provider: local, location: on-premises, socket: {home}/run/local.sock}}]
pools: [{{name: far, cloud: onprem, nodes: "far[1-2]", cpus: 2, memory: 4096, slurmd_port: 29000}}]
"""
_SCRIPT = """#!/bin/bash
mpirun.{mpi} -n {ranks} ./ring-{mpi} {steps} {pause} {result}
echo "code $?"
# Also on the nodes of a later run, which this script's variables do not name.
mpirun.{mpi} -n {ranks} ./ring-{mpi} {next_steps} {next_pause} next-result >next-output 2>&1
echo "code $?"
"""


@contextlib.contextmanager
def dmtcp(*, is_changed: bool) -> Iterator[Path]:
    """A real DMTCP, without or with the two changes for several hosts; the directory of its commands."""
    home = Path(tempfile.mkdtemp(prefix="se-dmtcp-", dir="/var/tmp"))
    home.chmod(0o755)
    try:
        commands = unpacked(home)
        if is_changed:
            changed = next(home.glob("libdmtcp_ipc-*.so"))
            shutil.copy(changed, home / "dmtcp" / "lib" / "dmtcp" / "libdmtcp_ipc.so")
        yield commands
    finally:
        shutil.rmtree(home)


class MpiWorld:
    """Jobs of two ranks a node, and ckptman on the head."""

    def __init__(self, hosts: Hosts, mpi: str) -> None:
        self.hosts = hosts
        self.mpi = mpi
        self.checkpointer = LaunchedCheckpointer("dmtcp", hosts.home / "shared" / "t")
        source = Path(slurm_hosts.__file__).with_name("mpi_ring.c").read_text()
        slurm_hosts.compiled(source, f"mpicc.{mpi}", hosts.user / f"ring-{mpi}")
        self._config = hosts.home / "site.yaml"
        self._config.write_text(_CONFIG.format(home=hosts.home))

    def expected(self, ranks: int) -> str:
        """The result of as many ranks without Slurm and saves."""
        words = [f"./ring-{self.mpi}", str(STEPS), "0", "alone"]
        alone = ["env", "OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
                 "HWLOC_COMPONENTS=-linux:io", f"mpirun.{self.mpi}", "-n", str(ranks)]  # fmt: skip
        if self.mpi == "openmpi":
            alone.append("--oversubscribe")
        subprocess.run([*alone, *words], cwd=self.hosts.user, check=True, capture_output=True,
                       env={"PATH": PATH}, timeout=patience(300))  # fmt: skip
        return (self.hosts.user / "alone").read_text()

    def submit(self, nodes: int, *options: str) -> int:
        """A job on that many nodes."""
        script = _SCRIPT.format(mpi=self.mpi, ranks=2 * nodes, steps=STEPS, pause=PAUSE_MS,
                                next_steps=NEXT_STEPS, next_pause=NEXT_PAUSE_MS, result="result")  # fmt: skip
        return self.hosts.submit(
            script, f"--nodes={nodes}", "--ntasks-per-node=2", "--comment=ckpt=dmtcp", *options
        )

    def lines(self) -> int:
        """How many steps the job has written."""
        path = self.hosts.user / "result"
        return path.read_text().count("\n") if path.exists() else 0

    def wait(self, condition: Callable[[], object], what: str, within: float = 240.0) -> None:
        until = time.monotonic() + patience(within)
        while not condition():
            assert time.monotonic() < until, f"not in {within:g} s: {what}\n{self.told()}"
            time.sleep(0.2)

    def told(self) -> str:
        """What jobs, root parts and ckptman said."""
        jobs = (path.name for path in (self.hosts.home / "shared" / "t").glob("[0-9]*"))
        texts = [self.hosts.log(int(job)) for job in jobs]
        log = self.hosts.home / "log" / "ckptman.out"
        return "\n".join([*texts, log.read_text()[-4000:] if log.exists() else ""])

    def works(self, more: int = 3) -> None:
        """Wait until the job has done some more steps."""
        target = self.lines() + more
        self.wait(lambda: self.lines() >= target, f"{target} steps")

    def nodes(self, job: int) -> set[str]:
        """The nodes on which it runs."""
        shown = self.hosts.job(job).get("NodeList", "")
        return set(run(*self.hosts.on(HEAD), "scontrol", "show", "hostnames", shown).split())

    def attempt(self, job: int) -> int:
        return int(self.hosts.job(job).get("Restarts", "0"))

    def run_of(self, job: int) -> JobRun:
        """The job's present run."""
        nodes = tuple(sorted(self.nodes(job)))
        return JobRun(
            job=job, label=str(job), attempt=self.attempt(job), user="nobody", uid=slurm_hosts.UID,
            gid=slurm_hosts.UID, nodes=nodes, partition="all", started=0.0,
        )  # fmt: skip

    def origin(self, job: int) -> Origin | None:
        """Where the present run says that it began."""
        return self.checkpointer.origin(self.run_of(job))

    def attends(self, node: str) -> bool:
        """Whether the attendant of a node runs."""
        shown = run(*self.hosts.on(node), "ps", "-eo", "args", check=False)
        return "ckpt-root attend" in shown

    def status(self, job: int) -> dict[str, object]:
        path = self.hosts.home / "shared" / "t" / str(job) / "status.json"
        content: dict[str, object] = json.loads(path.read_text()) if path.exists() else {}
        return content

    @contextlib.contextmanager
    def ckptman(self) -> Iterator[None]:
        """slurm-elastic-ckptman on the head."""
        (self.hosts.home / "elastic").mkdir(exist_ok=True)
        words = [sys.executable, "-P", "-m", "slurm_elastic.cli.services.ckptman", "--config",
                 str(self._config)]  # fmt: skip
        with (self.hosts.home / "log" / "ckptman.out").open("ab") as log:
            service = subprocess.Popen(
                [*self.hosts.on(HEAD), *self._python(), *words], stdin=subprocess.DEVNULL,
                stdout=log, stderr=log,
            )  # fmt: skip
        try:
            drops = self.hosts.home / "elastic" / DROPS
            self.wait(lambda: drops.exists() or service.poll() is not None, "ckptman")
            assert service.poll() is None, self.told()
            yield
        finally:
            service.terminate()
            service.wait(patience(60))

    def _python(self) -> list[str]:
        return ["env", f"PYTHONPATH={os.pathsep.join(sys.path)}"]

    def notice(self, nodes: Collection[str]) -> None:
        """``ckpt notice`` for each of them: they go in ten minutes."""
        for node in nodes:
            run(*self.hosts.on(HEAD), *self._python(), sys.executable, "-P", "-m",
                "slurm_elastic.cli.main", "--config", str(self._config), "ckpt", "notice", node,
                "--in", "10m")  # fmt: skip

    def withdraw(self, nodes: Collection[str]) -> None:
        """The nodes stay, and are there for jobs again."""
        for node in nodes:
            run(*self.hosts.on(HEAD), *self._python(), sys.executable, "-P", "-m",
                "slurm_elastic.cli.main", "--config", str(self._config), "ckpt", "notice", node,
                "--withdraw")  # fmt: skip
        self.wait(lambda: self.hosts.idle() >= len(nodes), "the nodes are idle again")

    def requeue(self, job: int, away: Collection[str]) -> None:
        """Have Slurm start the job again now, without these nodes."""
        attempt = self.attempt(job)
        self.hosts.scontrol("requeuehold", str(job))
        self.wait(lambda: self.attempt(job) > attempt, "the requeue")
        self.hosts.wait_for(job, "PENDING")
        self.hosts.scontrol("update", f"jobid={job}", f"excnodelist={','.join(away)}")
        self.now(job)

    def now(self, job: int) -> None:
        """Slurm starts a job that was requeued only two minutes later."""
        self.hosts.scontrol("release", str(job))
        self.hosts.scontrol("update", f"jobid={job}", "starttime=now")
        self.hosts.wait_for(job, "RUNNING")

    def move(self, job: int, nodes: Collection[str]) -> None:
        """Have these nodes of the job announced to go; it continues from its image elsewhere."""
        attempt = self.attempt(job)
        self.notice(nodes)
        self.wait(lambda: self.attempt(job) > attempt, "the requeue")
        self.wait(lambda: self.origin(job) is not None, "the next run")
        origin = self.origin(job)
        assert origin is not None
        assert (origin.image > 0, origin.why) == (True, ""), self.told()
        assert not self.nodes(job) & set(nodes)
        self.works()
