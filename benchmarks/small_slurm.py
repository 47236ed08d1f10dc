"""A private slurmctld with slurmd's, for measurements and tests: real Slurm, no site touched.

Needs root (slurmd, and munged under its own user) and Debian's slurmctld, slurmd and munge. All
files are below one directory, ports are free ones on loopback, and only own processes are ended.
The "cloud" is a thread that carries out the requests of the real slurm-elastic-resume program.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

import slurm_elastic
from slurm_elastic.config import SlurmSettings
from slurm_elastic.model.slurm import Request
from slurm_elastic.slurm.client.cli import SlurmCli
from slurm_elastic.state.spool import Spool
from slurm_elastic.testing.patience import patience, pause

PORTS = range(10_000, 20_000)
PROGRAMS = Path(slurm_elastic.__file__).parent / "machine" / "programs"
INSTALLED = {
    "slurm-elastic-resume": "power.py",
    "slurm-elastic-suspend": "power.py",
    "slurm-elastic-resume-fail": "power.py",
    "slurm-elastic-prolog": "slurm-elastic-prolog",
    "slurm-elastic-epilog": "slurm-elastic-epilog",
    "slurm-elastic-wait": "slurm-elastic-wait",
}

_CONF = """\
ClusterName=small
SlurmctldHost={host}(127.0.0.1)
SlurmUser=slurm
SlurmctldPort={port}
AuthType=auth/munge
AuthInfo=socket={dir}/munge/socket
CryptoType=crypto/munge
StateSaveLocation={dir}/slurmctld
SlurmdSpoolDir={dir}/spool/%n
SlurmctldPidFile={dir}/run/slurmctld.pid
SlurmdPidFile={dir}/run/slurmd-%n.pid
SlurmctldLogFile={dir}/log/slurmctld.log
SlurmdLogFile={dir}/log/slurmd-%n.log
SlurmctldDebug=debug
SlurmdDebug=verbose
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=5
SlurmdParameters=config_overrides
SlurmctldParameters=cloud_reg_addrs,power_save_interval=1,power_save_min_interval=0
PrivateData=cloud
ReturnToService=2
MailProg=/bin/true
ResumeProgram={dir}/programs/slurm-elastic-resume
SuspendProgram={dir}/programs/slurm-elastic-suspend
ResumeFailProgram={dir}/programs/slurm-elastic-resume-fail
ResumeRate=0
SuspendRate=0
ResumeTimeout=120
MessageTimeout=60
SuspendTimeout=5
"""


def free_port() -> int:
    """A TCP port that nobody listens on, below those that the kernel gives out to clients."""
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError("no TCP port is free on loopback")


def wait_until(what: Callable[[], object], timeout: float = 180.0, every: float = 0.05) -> None:
    """Poll until ``what`` is true, ``every`` so many seconds at first; TimeoutError otherwise. A
    busy machine gets more time than ``timeout``.
    """
    began = time.monotonic()
    until = began + patience(timeout)
    while not what():
        if time.monotonic() > until:
            raise TimeoutError(f"not within {until - began:.0f} s: {what}")
        pause(began, every)


class SmallSlurm:
    """A context manager: a cluster with ``static`` nodes st1.. and ``cloud`` nodes pub1...

    ``settings`` go into the programs' settings file, ``conf`` into slurm.conf; ``prolog`` sets our
    PrologSlurmctld. ``boot`` is how many seconds the machines of the cloud take to start.
    """

    def __init__(
        self,
        *,
        static: int = 2,
        cloud: int = 4,
        prolog: bool = True,
        boot: float = 0.5,
        conf: Sequence[str] = (),
        settings: Sequence[str] = (),
    ) -> None:
        self.dir = Path(tempfile.mkdtemp(prefix="small-slurm-"))
        self.state = self.dir / "state"
        self.boot = boot
        self.requests: list[Request] = []
        self._static = [f"st{i + 1}" for i in range(static)]
        self._cloud = [f"pub{i + 1}" for i in range(cloud)]
        self._port = free_port()
        self._prolog = prolog
        self._extra = conf
        self._settings = settings
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._stop = threading.Event()
        self._agent = threading.Thread(target=self._play_cloud, daemon=True)

    # Set-up.

    def __enter__(self) -> SmallSlurm:
        try:
            self._lay_out()
            self._start_munge()
            self.start_slurmctld()
            for node in self._static:
                self._start_slurmd(node)
            self._agent.start()
            wait_until(lambda: self._states(self._static) == {"idle"})
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all processes, jobs included, and remove the directory."""
        self._stop.set()
        if self._agent.is_alive():
            self._agent.join(10)
        if "slurmctld" in self._processes:
            subprocess.run(
                ["scancel", "--quiet", "-u", "root"],
                env=self.environment(),
                check=False,
                timeout=patience(30),
            )
            time.sleep(0.3)
        for process in reversed(self._processes.values()):
            _end(process)
        for pid in self._steps():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.dir, ignore_errors=True)

    def _lay_out(self) -> None:
        user = pwd.getpwnam("slurm")
        self.dir.chmod(0o755)
        for name in ("munge", "slurmctld", "spool", "run", "log", "programs", "state", "out"):
            (self.dir / name).mkdir()
        Spool(self.state).create()
        for path in (self.state, *self.state.rglob("*"), *map(self.dir.joinpath, _SLURMS)):
            os.chown(path, user.pw_uid, user.pw_gid)
        for name, source in INSTALLED.items():
            shutil.copy(PROGRAMS / source, self.dir / "programs" / name)
            (self.dir / "programs" / name).chmod(0o755)
        self.write_settings(*self._settings)
        self.conf.write_text(self._render())

    def write_settings(self, *lines: str) -> None:
        """The programs' settings; later lines win."""
        text = f"state_dir={self.state}\npartitions=cloud\nprolog_timeout=120\n"
        text += "python=/usr/bin/python3\n" + "".join(f"{line}\n" for line in lines)
        (self.dir / "programs" / "settings").write_text(text)

    @property
    def conf(self) -> Path:
        """slurm.conf"""
        return self.dir / "slurm.conf"

    @property
    def log(self) -> Path:
        """slurmctld's log"""
        return self.dir / "log" / "slurmctld.log"

    def _render(self) -> str:
        host = socket.gethostname().split(".")[0]
        lines = [_CONF.format(host=host, port=self._port, dir=self.dir)]
        if self._prolog:
            lines.append(f"PrologSlurmctld={self.dir}/programs/slurm-elastic-prolog\n")
        lines += [line.format(dir=self.dir) + "\n" for line in self._extra]
        for node in (*self._static, *self._cloud):
            state = " State=CLOUD" if node in self._cloud else ""
            where = f"NodeHostname={host} NodeAddr=127.0.0.1 Port={free_port()}"
            lines.append(f"NodeName={node} CPUs=1 RealMemory=100 {where}{state}\n")
        lines.append(f"PartitionName=static Nodes={','.join(self._static)} Default=YES\n")
        lines.append(f"PartitionName=cloud Nodes={','.join(self._cloud)} SuspendTime=60\n")
        return "".join(lines)

    # Processes.

    def _start_munge(self) -> None:
        directory = self.dir / "munge"
        (directory / "key").write_bytes(os.urandom(128))
        (directory / "key").chmod(0o400)
        shutil.chown(directory / "key", "munge", "munge")
        shutil.chown(directory, "munge", "munge")
        options = {"socket": "socket", "key-file": "key", "pid-file": "pid"}
        options |= {"log-file": "log", "seed-file": "seed"}
        self._spawn(
            "munged",
            [
                *["setpriv", "--reuid", "munge", "--regid", "munge", "--clear-groups"],
                *["/usr/sbin/munged", "-F", "--num-threads=2"],
                *[f"--{option}={directory / name}" for option, name in options.items()],
            ],
        )
        wait_until((directory / "socket").exists)

    def start_slurmctld(self) -> None:
        """Start slurmctld and wait until it answers."""
        self._spawn("slurmctld", ["/usr/sbin/slurmctld", "-D", "-f", str(self.conf)])
        wait_until(lambda: self._run("scontrol", "ping").returncode == 0)

    def stop_slurmctld(self) -> None:
        """Stop slurmctld as its service would."""
        _end(self._processes.pop("slurmctld"), 60)

    def _start_slurmd(self, node: str) -> None:
        """Start a node, if it does not run: slurmctld asks twice when it is restarted between."""
        if node in self._processes and self._processes[node].poll() is None:
            return
        self._spawn(node, ["/usr/sbin/slurmd", "-D", "-b", "-N", node, "-f", str(self.conf)])

    def _spawn(self, name: str, command: Sequence[str]) -> None:
        with open(self.dir / "log" / f"{name}.out", "ab") as output:
            self._processes[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self.environment(),
                start_new_session=True,
                cwd=self.dir,
            )

    def _steps(self) -> list[int]:
        """Processes that jobs left: they have this cluster's slurm.conf in their environment."""
        mark = f"SLURM_CONF={self.conf}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal() and int(entry.name) != os.getpid():
                try:
                    if mark in (entry / "environ").read_bytes().split(b"\0"):
                        found.append(int(entry.name))
                except OSError:
                    continue
        return found

    def _play_cloud(self) -> None:
        spool = Spool(self.state)
        due: list[tuple[float, str]] = []
        while not self._stop.wait(0.05):
            for request in spool.pending():
                self.requests.append(request)
                spool.remove(request.id)
                if request.kind == "resume":
                    due += [(time.monotonic() + self.boot, node) for node in request.nodes]
                for node in request.nodes if request.kind == "suspend" else ():
                    if node in self._processes:
                        _end(self._processes.pop(node))
            for item in [item for item in due if item[0] <= time.monotonic()]:
                due.remove(item)
                self._start_slurmd(item[1])

    # What tests and benchmarks use.

    def environment(self) -> dict[str, str]:
        """For Slurm's commands."""
        return {"SLURM_CONF": str(self.conf), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}

    def client(self) -> SlurmCli:
        """Our client of this cluster."""
        return SlurmCli(SlurmSettings(conf=str(self.conf), command_timeout=30))

    def _run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, env=self.environment(), capture_output=True, text=True, check=False,
            timeout=patience(60),
        )  # fmt: skip

    def command(self, *command: str) -> str:
        """The output of one of Slurm's commands; CalledProcessError where it fails."""
        done = self._run(*command)
        if done.returncode != 0:
            raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)
        return done.stdout.strip()

    def submit(self, *options: str, seconds: int = 60) -> int:
        """A batch job that notes when it starts; its id."""
        script = f"date +%s.%N > {self.dir}/out/$SLURM_JOB_ID; exec sleep {seconds}"
        out = f"--output={self.dir}/out/%j.log"
        answer = self.command("sbatch", "--parsable", out, *options, f"--wrap={script}")
        return int(answer.split(";")[0])

    def started(self, job: int) -> float | None:
        """When the job's script began to run (Unix time), None before that."""
        try:
            text = (self.dir / "out" / str(job)).read_text()
        except FileNotFoundError:
            return None
        return float(text) if text.endswith("\n") else None

    def job_state(self, job: int) -> str:
        """As ``scontrol show job`` has it; empty when Slurm knows no such job."""
        words = self._run("scontrol", "-o", "show", "job", str(job)).stdout.split()
        return next((w.removeprefix("JobState=") for w in words if w.startswith("JobState=")), "")

    def node_of(self, job: int) -> str:
        """The node (list) of a job."""
        return self.command("squeue", "-h", "-j", str(job), "-o", "%N")

    def _states(self, nodes: Sequence[str]) -> set[str]:
        answer = self._run("sinfo", "-h", "-N", "-n", ",".join(nodes), "-o", "%T")
        return set(answer.stdout.split())


_SLURMS = ("slurmctld", "log", "run")


def _end(process: subprocess.Popen[bytes], timeout: float = 5.0) -> None:
    process.terminate()
    try:
        process.wait(timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
