"""The runs of ``resume_path``: the installed program, the daemon and bare calls, each a process."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec import Struct

from benchmarks.stub_slurm import StubSlurm
from slurm_elastic.base.hostlist import compress
from slurm_elastic.sandbox.ec2.control import Ec2Control
from slurm_elastic.sandbox.loopback_only import isolated_env
from slurm_elastic.state.spool import Spool

REPO = Path(__file__).resolve().parents[1]
PYTHON = "/usr/bin/python3"
"""The one of the installed programs' first line."""
LIMIT = 180.0
"""Seconds after which a run is given up."""

_CONFIG = """\
cluster: {{name: bench, uuid: 6f1d7c3e-5f0b-4f3e-9a52-6f9f0d9a7c11}}
state_dir: {state}
slurm: {{conf: /dev/null, bin_dir: {bin}}}
allow: {{accounts: [bench]}}
limits: {{dollars_per_hour: 100000}}
clouds:
  - name: aws
    provider: aws
    location: public
    region: us-east-1
    image: ami-12c6146b
    endpoint: {url}
    zones: [us-east-1a, us-east-1b]
    node_address: provider
    api_timeout: 300s
    types: {{c5.large: {{cpus: 2, memory: 4G, price: 0.085}}}}
pools:
  - name: pub
    cloud: aws
    nodes: pub[1-{nodes}]
    cpus: 2
    memory: 4G
    instance_types: [c5.large]
    markets: [spot, on-demand]
"""


class Measured(Struct, frozen=True, kw_only=True):
    """One resume request. ``wall`` runs from the start of the program that slurmctld runs to the
    end of all work, ``acknowledged`` from the file in the spool to the answer to the last launch
    call; ``outside`` is ``wall`` without waiting for the cloud. Seconds.
    """

    wall: float
    outside: float
    cpu: float
    megabytes: float
    launches: int
    calls: int
    scontrol: int
    acknowledged: float = 0.0
    sinfo: int = 0
    start_cpu: float = 0.0
    machines: int = 0


class _Served(Struct, frozen=True, kw_only=True):
    """The output of ``resume_daemon``."""

    received: float
    acknowledged: float
    finished: float
    waited: float
    cpu: float
    start_cpu: float
    megabytes: float
    calls: dict[str, int]
    slurm: dict[str, int]
    machines: int


class Ended(Struct, frozen=True):
    """A process that has ended: seconds of wall clock and of processor, and its exit code."""

    wall: float
    cpu: float
    code: int


def timed(command: list[str], env: dict[str, str]) -> Ended:
    """Run a program and wait for it, without a shell and without pipes."""
    null = (os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0)
    began = time.perf_counter()
    pid = os.posix_spawn(command[0], command, env, file_actions=[null])
    _, status, used = os.wait4(pid, 0)
    wall = time.perf_counter() - began
    return Ended(wall, used.ru_utime + used.ru_stime, os.waitstatus_to_exitcode(status))


class Program:
    """``slurm-elastic-resume`` as ``conf install`` leaves it, with a state directory."""

    def __init__(self, directory: Path) -> None:
        import slurm_elastic

        self.state = directory / "state"
        self._place = directory
        Spool(self.state).create()
        programs = directory / "programs"
        programs.mkdir()
        self._path = programs / "slurm-elastic-resume"
        shutil.copy(
            Path(slurm_elastic.__file__).parent / "machine" / "programs" / "power.py", self._path
        )
        self._path.chmod(0o755)
        (programs / "settings").write_text(f"state_dir={self.state}\n")

    def run(self, nodes: Sequence[str], jobs: int) -> Ended:
        """Ask for these nodes as slurmctld would, for so many jobs."""
        path = self._place / "resume.json"
        path.write_text(json.dumps(resume_file(nodes, jobs)))
        ended = timed(
            [str(self._path), compress(nodes)],
            {"PATH": "/sbin:/bin:/usr/sbin:/usr/bin", "SLURM_RESUME_FILE": str(path)},
        )
        if ended.code != 0:
            raise RuntimeError(f"{self._path} ends with {ended.code}")
        return ended

    def forget(self) -> None:
        """Empty the spool."""
        for path in (self.state / "requests").glob("*.json"):
            path.unlink()


def resume_file(nodes: Sequence[str], jobs: int) -> dict[str, object]:
    """SLURM_RESUME_FILE of Slurm 23.02 and later: the nodes shared out evenly among the jobs."""
    share = -(-len(nodes) // jobs)
    parts = [compress(nodes[at : at + share]) for at in range(0, len(nodes), share)]
    records = [
        {
            "extra": None,
            "features": None,
            "job_id": 1000 + number,
            "nodes_alloc": part,
            "nodes_resume": part,
            "oversubscribe": "OK",
            "partition": "aws",
            "reservation": None,
        }
        for number, part in enumerate(parts)
    ]
    return {"all_nodes_resume": compress(nodes), "jobs": records}


@contextmanager
def listening(state: Path) -> Iterator[socket.socket]:
    """The daemon's wake socket, with nobody who does anything."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as wake:
        wake.setblocking(False)
        wake.bind(str(state / "wake.sock"))
        try:
            yield wake
        finally:
            (state / "wake.sock").unlink()


def drain(wake: socket.socket) -> None:
    """Take all that has come."""
    with contextlib.suppress(BlockingIOError):
        while wake.recv(4096):
            pass


def child_env(url: str = "http://127.0.0.1:9") -> dict[str, str]:
    """For a child that talks to the emulated cloud at ``url`` and to nobody else."""
    return isolated_env(os.environ) | {"AWS_ENDPOINT_URL": url, "PYTHONPATH": str(REPO)}


def ask(module: str, *arguments: str, url: str) -> dict[str, float]:
    """Run a module that prints numbers as a JSON object; these."""
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=REPO,
        env=child_env(url),
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{module} ends with {done.returncode}: {done.stderr[-2000:]}")
    return msgspec.json.decode(done.stdout, type=dict[str, float])


@contextmanager
def process(log: Path, *arguments: str, env: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """A child with this Python, its words on stdout piped, ended at the end of the block."""
    with log.open("ab") as errors:
        child = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=REPO,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    try:
        yield child
    finally:
        child.terminate()
        try:
            child.wait(30)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        assert child.stdout is not None
        child.stdout.close()


class Bench:
    """An emulated EC2, where the runs of ours and the bare calls take place."""

    def __init__(self, directory: Path, control: Ec2Control) -> None:
        self._dir = directory
        self._control = control
        self._runs = 0

    def ours(self, nodes: Sequence[str], jobs: int) -> Measured:
        """One request through the installed program and a daemon that was at rest."""
        self._control.reset()
        place = self._new_place()
        program, stub = Program(place), StubSlurm(place / "slurm")
        stub.show(nodes, powering_up=False)
        config = self._config(place, stub, len(nodes))
        arguments = ("-m", "benchmarks.resume_daemon", str(config))
        with process(place / "daemon.log", *arguments, env=child_env(self._control.url)) as daemon:
            self._expect(daemon, place)
            stub.show(nodes, powering_up=True)
            began = time.time()
            asked = program.run(nodes, jobs)
            served = msgspec.json.decode(self._expect(daemon, place), type=_Served)
        if served.machines != len(nodes):
            raise RuntimeError(f"{served.machines} machines instead of {len(nodes)}: {place}")
        return Measured(
            wall=served.finished - began,
            outside=served.finished - began - served.waited,
            cpu=served.cpu + asked.cpu,
            megabytes=served.megabytes,
            launches=self._launches(served),
            calls=sum(served.calls.values()),
            scontrol=served.slurm.get("scontrol", 0),
            acknowledged=served.acknowledged - served.received,
            sinfo=served.slurm.get("sinfo", 0),
            start_cpu=served.start_cpu,
            machines=served.machines,
        )

    def bare(self, count: int) -> float:
        """One RunInstances for so many machines, and nothing else (s)."""
        self._control.reset()
        url = self._control.url
        return ask("benchmarks.bare_launch", url, str(count), url=url)["wall"]

    def bare_same(self, count: int) -> float:
        """One RunInstances with all that ours has in it, tags first of all (s)."""
        self._control.reset()
        place = self._new_place()
        config = self._config(place, StubSlurm(place / "slurm"), count)
        url = self._control.url
        return ask("benchmarks.bare_launch", url, str(count), str(config), url=url)["wall"]

    def _launches(self, served: _Served) -> int:
        """By the cloud's own count, and by ours: they must agree."""
        counted = self._control.state().calls.get("RunInstances", 0)
        if counted != served.calls.get("RunInstances", 0):
            raise RuntimeError(f"{counted} launches reached the cloud, {served.calls} were made")
        return counted

    def _new_place(self) -> Path:
        self._runs += 1
        place = self._dir / f"run{self._runs}"
        place.mkdir()
        return place

    def _config(self, place: Path, stub: StubSlurm, nodes: int) -> Path:
        path = place / "slurm-elastic.yaml"
        text = _CONFIG.format(
            state=place / "state", bin=stub.bin, url=self._control.url, nodes=max(nodes, 2)
        )
        path.write_text(text)
        return path

    def _expect(self, daemon: subprocess.Popen[str], place: Path) -> str:
        assert daemon.stdout is not None
        line = daemon.stdout.readline()
        if not line:
            raise RuntimeError(f"the daemon ends: {(place / 'daemon.log').read_text()[-3000:]}")
        return line


@contextmanager
def bench(directory: Path) -> Iterator[Bench]:
    """Start the sandbox's EC2 and end it."""
    place = directory / "cloud"
    place.mkdir()
    arguments = ("-P", "-m", "slurm_elastic.sandbox.ec2.serve", "--dir", str(place))
    with process(place / "log", *arguments, env=child_env()) as cloud:
        yield Bench(directory, Ec2Control(ready_url(cloud, place), timeout=LIMIT))


def ready_url(cloud: subprocess.Popen[str], place: Path) -> str:
    """Where the emulated EC2 listens, once it does."""
    until = time.monotonic() + 600  # a busy machine may take long
    ready = place / "ec2" / "ready"
    while not ready.exists():
        if cloud.poll() is not None or time.monotonic() > until:
            raise RuntimeError(f"no EC2: {(place / 'log').read_text()[-3000:]}")
        time.sleep(0.05)
    return f"http://127.0.0.1:{json.loads(ready.read_bytes())['port']}"
