"""The peer of ``resume_path``: AWS ParallelCluster's ``slurm_resume``, in its own environment.

It is installed from the Python package index that pip is set up for. Where that cannot be done
its figures of an earlier measurement stand in (aws-parallelcluster-node 3.16.1 with its default
strategy, moto 5.2.5, two cores, Slurm's commands as here; medians).
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from msgspec import Struct

from benchmarks.environments import environment
from benchmarks.peer_cloud import CLUSTER, DOMAIN, QUEUE, REGION, RESOURCE, TABLE
from benchmarks.resume_runs import LIMIT, REPO, Measured, child_env, process, resume_file
from benchmarks.stub_slurm import StubSlurm
from slurm_elastic.base.hostlist import compress

RELEASE = "3.16.1"
_PACKAGE = f"aws-parallelcluster-node=={RELEASE}"

PUBLISHED = {
    1: Measured(wall=0.303, outside=0.295, cpu=0.30, megabytes=72, launches=1, calls=3, scontrol=2),
    1000: Measured(
        wall=3.70, outside=0.82, cpu=0.78, megabytes=80, launches=2, calls=44, scontrol=11
    ),
    5000: Measured(
        wall=28.0, outside=3.18, cpu=3.0, megabytes=87, launches=10, calls=220, scontrol=51
    ),
}


class _Probed(Struct, frozen=True):
    """The output of ``peer_probe``."""

    wall: float
    outside: float
    cpu: float
    megabytes: float
    calls: dict[str, int]


class Peer:
    """An installed ParallelCluster; ``directory`` is for the runs' files."""

    def __init__(self, python: Path, directory: Path) -> None:
        self._python = python
        self._dir = directory
        self._runs = 0

    def run(self, count: int, jobs: int) -> Measured:
        """One call for ``count`` nodes; RuntimeError unless all of them got their machine."""
        self._runs += 1
        place = self._dir / f"peer{self._runs}"
        place.mkdir()
        nodes = [f"{QUEUE}-dy-{RESOURCE}-{n}" for n in range(1, count + 1)]
        stub = StubSlurm(place / "slurm")
        stub.show(nodes, powering_up=True)
        with process(place / "cloud.log", "-m", "benchmarks.peer_cloud", env=child_env()) as cloud:
            assert cloud.stdout is not None
            line = cloud.stdout.readline()
            if not line:
                raise RuntimeError(f"no cloud: {(place / 'cloud.log').read_text()[-2000:]}")
            said = json.loads(line)
            configure(place, said["zone"], nodes, jobs)
            probed = self._probe(place, said["url"], nodes)
        log = (place / "resume.log").read_text()
        if f"Successfully launched nodes (x{count})" not in log:
            raise RuntimeError(f"slurm_resume did not launch {count} nodes: {log[-2000:]}")
        return Measured(
            wall=probed.wall,
            outside=probed.outside,
            cpu=probed.cpu,
            megabytes=probed.megabytes,
            launches=probed.calls.get("RunInstances", 0),
            calls=sum(probed.calls.values()),
            scontrol=stub.calls("scontrol"),
        )

    def _probe(self, place: Path, url: str, nodes: Sequence[str]) -> _Probed:
        stub_bin = place / "slurm" / "bin"
        env = child_env(url) | {
            "PATH": f"{stub_bin}:/usr/bin:/bin",
            "SLURM_BINARIES_DIR": str(stub_bin),
            "SLURM_RESUME_FILE": str(place / "resume.json"),
            "CONFIG_FILE": str(place / "resume.conf"),
        }
        command = [str(self._python), "-m", "benchmarks.peer_probe", repr(time.time())]
        done = subprocess.run(
            [*command, compress(nodes)],
            cwd=REPO,
            env=env,
            capture_output=True,
            timeout=LIMIT,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"slurm_resume fails: {done.stderr.decode()[-2000:]}")
        return msgspec.json.decode(done.stdout, type=_Probed)


def configure(place: Path, zone: str, nodes: Sequence[str], jobs: int) -> None:
    """The files that ParallelCluster's head node has, with the defaults of its release."""
    (place / "resume.json").write_text(json.dumps(resume_file(nodes, jobs)))
    fleet = {
        QUEUE: {RESOURCE: {"Api": "run-instances", "Instances": [{"InstanceType": "c5.large"}]}}
    }
    (place / "fleet.json").write_text(json.dumps(fleet))
    now = datetime.now(tz=UTC).strftime("%Y-%m-%d %H:%M:%S.%f%z")
    (place / "heartbeat").write_text(now + "\n")
    (place / "resume.conf").write_text(
        "[slurm_resume]\n"
        f"region = {REGION}\ncluster_name = {CLUSTER}\ndynamodb_table = {TABLE}\n"
        f"hosted_zone = {zone}\ndns_domain = {DOMAIN}\n"
        "head_node_private_ip = 127.0.0.1\nhead_node_hostname = head\n"
        f"fleet_config_file = {place}/fleet.json\n"
        f"clustermgtd_heartbeat_file_path = {place}/heartbeat\n"
        f"logging_config = {place}/logging.conf\n"
    )
    # Its own, but for the place of the files.
    (place / "logging.conf").write_text(
        "[loggers]\nkeys=root\n[handlers]\nkeys=file\n[formatters]\nkeys=default\n"
        "[formatter_default]\n"
        "format=%(asctime)s - %(process)d - [%(name)s:%(funcName)s] - %(levelname)s - %(message)s\n"
        "[logger_root]\nlevel=INFO\nhandlers=file\n"
        "[handler_file]\nclass=FileHandler\nlevel=INFO\nformatter=default\n"
        f'args=("{place}/resume.log",)\n'
    )


def install() -> Path | str:
    """The peer's Python, or why there is none."""
    return environment("parallelcluster", RELEASE, _PACKAGE)
