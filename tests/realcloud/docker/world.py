"""A Slurm cluster in containers: a head and compute nodes as hosts of their own.

Each container has its own address and name in the world's network, where Docker resolves the names.
``/shared`` is one directory for all of them and for the test; ``/opt/slurm-elastic`` is the package.
"""

from __future__ import annotations

import contextlib
import io
import json
import secrets
import shlex
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, TypeVar

import docker
from patience import patience as allowed
from patience import pause

from .engine import REPO, Engine

T = TypeVar("T")
PATIENCE = 180.0
BUSY_TRIES = 3
USER, UID = "alice", 2000
HEAD = "head"
CONFIG = "/etc/elastic/slurm-elastic.yaml"
OPEN = ("shared/log", "shared/jobs")
"""Where everybody may write."""
LABEL = "slurm-elastic-test-world"
CRIU_CAPS = ("SYS_ADMIN", "SYS_PTRACE", "SYS_TIME", "NET_ADMIN", "IPC_OWNER", "DAC_READ_SEARCH")

SITE_CONF = """\
ClusterName=containers
SlurmctldHost=head
SlurmUser=slurm
AuthType=auth/munge
StateSaveLocation=/var/spool/slurmctld
SlurmdSpoolDir=/var/spool/slurmd
SlurmctldPidFile=/run/slurm/slurmctld.pid
SlurmdPidFile=/run/slurm/slurmd.pid
SlurmctldLogFile=/shared/log/slurmctld.log
SlurmdLogFile=/shared/log/slurmd.%n.log
ProctrackType=proctrack/linuxproc
SelectType=select/cons_tres
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
SlurmctldParameters=enable_configless
MessageTimeout=60
BatchStartTimeout=60
"""
"""Every Slurm in containers needs this: no cgroups, configless nodes; and limits longer than a
machine that runs them all stands still, so that no answer is too late and no job is launched anew.
"""


_BY_FILES = """\
answer=$1 limit=$2; shift 2
mkdir "$answer" && exec timeout -k 5 "$limit" "$@" >"$answer/out" 2>"$answer/err"
"""
GONE = "137"


class CommandFailed(AssertionError):  # noqa: N818 - read as a word
    """A command in a container did not exit with 0."""


class Host:
    """A container of the world, by its name."""

    def __init__(self, container: Any) -> None:
        self.container = container
        self.name: str = container.labels.get("node", container.name)

    def run(
        self,
        command: Sequence[str],
        *,
        user: str = "root",
        check: bool = True,
        timeout: float = 120.0,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in it and wait; ``timeout`` ends it there (exit code 124).

        Its output comes by files: the engine's stream is empty now and then when the machine is
        busy (seen with 20.10).
        """
        answer = f"/tmp/{secrets.token_hex(8)}"
        words = ["sh", "-c", _BY_FILES, "sh", answer, f"{timeout:g}", *command]
        api = self.container.client.api
        call = api.exec_create(self.container.id, words, user=user)["Id"]
        api.exec_start(call, detach=True)
        code = wait_for(
            lambda: self._ended(call),
            f"{self.name} has run {shlex.join(command)}",
            lambda: "",
            timeout + PATIENCE,
            least=0.02,
        )
        done = subprocess.CompletedProcess(list(command), int(code), *self._texts(answer))
        if check and done.returncode != 0:
            raise CommandFailed(
                f"{self.name}: {shlex.join(command)}: exit {code}: {done.stdout}{done.stderr}"
            )
        return done

    def _ended(self, call: str) -> str:
        """The exit code of a call, once it has ended."""
        try:
            shown = self.container.client.api.exec_inspect(call)
        except docker.errors.NotFound:  # with its container
            return GONE
        return "" if shown["Running"] or shown["ExitCode"] is None else str(shown["ExitCode"])

    def _texts(self, directory: str) -> tuple[str, str]:
        """The content of the files out and err, through the container's first process: a copy by
        the engine takes a process of its own each time, a tenth of a second of work.
        """
        with contextlib.suppress(OSError, docker.errors.NotFound):
            pid = self.container.client.api.inspect_container(self.container.id)["State"]["Pid"]
            place = Path(f"/proc/{pid}/root{directory}")
            return (place / "out").read_text(), (place / "err").read_text()
        return self._copied(directory)

    def _copied(self, directory: str) -> tuple[str, str]:
        """The same by the engine, also of a container that has ended."""
        try:
            data = b"".join(self.container.get_archive(directory)[0])
        except docker.errors.NotFound:
            return "", ""
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            found = {Path(m.name).name: tar.extractfile(m) for m in tar.getmembers() if m.isfile()}
            out, err = (
                file.read().decode() if (file := found.get(name)) else "" for name in ("out", "err")
            )
        return out, err

    def start(self, command: Sequence[str], log: str, *, user: str = "root") -> None:
        """Start a daemon in it; ``log`` (below /shared/log) gets what it says."""
        line = f"exec {shlex.join(command)} >>/shared/log/{log} 2>&1"
        self.container.exec_run(["sh", "-c", line], user=user, detach=True)

    def put(self, path: str, text: str, *, mode: int = 0o644) -> None:
        """Write a file in it, owned by root."""
        data = io.BytesIO()
        with tarfile.open(fileobj=data, mode="w") as tar:
            entry = tarfile.TarInfo(path.lstrip("/"))
            entry.size, entry.mode, entry.mtime = len(text.encode()), mode, int(time.time())
            tar.addfile(entry, io.BytesIO(text.encode()))
        assert self.container.put_archive("/", data.getvalue())

    def kill(self) -> None:
        """End it as a power cut does, and remove it."""
        self.container.remove(force=True, v=True)


class ContainerWorld:
    """``with ContainerWorld(engine, image, nodes=2) as world``: slurmctld answers then.

    ``nodes`` are static ones, named n1.. of partition ``static``; ``conf`` is appended to slurm.conf.
    ``criu`` gives nodes what CRIU needs. ``socket`` mounts the engine's socket into the head, for a
    daemon there that starts containers.
    """

    capabilities = CRIU_CAPS
    """The capabilities of nodes where CRIU is wanted."""
    cgroup_conf = "CgroupPlugin=disabled\n"
    awaited: Sequence[str] = ("/shared/head-is-up",)
    """Files that a node waits for before its slurmd starts."""
    before_slurmd = "true"
    """The shell of a node runs this first."""
    node_options: Mapping[str, Any] = {}
    """More options of Docker's create call for a node."""
    node_mounts: Mapping[str, Any] = {}
    """The mounts of nodes besides those of all hosts, as Docker's SDK takes volumes."""

    def __init__(
        self,
        engine: Engine,
        image: str,
        *,
        nodes: int = 0,
        cpus: int = 2,
        conf: str = "",
        criu: bool = False,
        socket: bool = False,
    ) -> None:
        self.engine, self.image, self.criu, self.socket = engine, image, criu, socket
        self.id = f"se{secrets.token_hex(4)}"
        self.directory = Path(tempfile.mkdtemp(prefix="se-containers-", dir="/tmp"))
        self.shared = self.directory / "shared"
        self.client = engine.client(timeout=120.0)
        self._static = [f"n{n}" for n in range(1, nodes + 1)]
        self.conf = SITE_CONF + conf + _static_lines(self._static, cpus)

    def __enter__(self) -> ContainerWorld:
        try:
            self._lay_out()
            self._make_network()
            # Before slurmctld, which looks up their names; they wait for it.
            for name in self._static:
                self.start_node(name)
            self.head = self._start_head()
            # Its log, as a command that finds nobody takes ten seconds to say so.
            log = self.shared / "log" / "slurmctld.log"
            self.wait_for(
                lambda: log.exists() and "Running as primary" in log.read_text(), "slurmctld runs"
            )
            (self.shared / "head-is-up").touch()
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
        if error is not None:
            error.add_note(self.logs())
        self.close()

    def close(self) -> None:
        """Remove all containers of the world's network, whoever started them, and the rest."""
        with contextlib.ExitStack() as rest:
            rest.callback(shutil.rmtree, self.directory, ignore_errors=True)
            rest.callback(self.client.close)
            for container in self.containers():
                container.remove(force=True, v=True)
            for network in self.client.networks.list(filters={"label": f"{LABEL}={self.id}"}):
                network.remove()

    # slurm-elastic on the head

    def start_daemon(self, config: Mapping[str, Any], *environment: str) -> None:
        """Install slurm-elastic with this configuration; slurm-elasticd serves on return."""
        self.head.run(["mkdir", "-p", str(Path(CONFIG).parent)])
        self.head.put(CONFIG, json.dumps(config))
        self.head.run(["slurm-elastic", "--config", CONFIG, "conf", "install"])
        daemon = [*environment, "slurm-elasticd", "--config", CONFIG]
        self.head.start(daemon, "slurm-elasticd.log", user="slurm")
        log = self.shared / "log" / "slurm-elasticd.log"
        self.wait_for(lambda: log.exists() and "serving" in log.read_text(), "the daemon serves")

    def elastic(self, *words: str) -> str:
        """``slurm-elastic ...``, as an operator."""
        out: str = self.head.run(["slurm-elastic", "--config", CONFIG, *words], user="slurm").stdout
        return out

    # hosts

    def start_node(self, name: str, *, hostname: str | None = None) -> Host:
        """A host that boots as that node: munged and a configless slurmd."""
        log = f"/shared/log/{name}.boot"
        criu = criu_options(self.capabilities) if self.criu else {}
        options: dict[str, Any] = {**criu, **self.node_options}
        there = " && ".join(f"[ -e {file} ]" for file in self.awaited)
        wait = f"until {there}; do sleep 0.1; done"
        boot = f"{_ADD_USER}; {wait}; {{ {self.before_slurmd}; }} >>{log} 2>&1"
        return self._start(
            hostname or name,
            environment={"SLURM_ELASTIC_NODE": name, "SLURM_ELASTIC_HEAD": HEAD},
            command=["sh", "-c", f"{boot}; exec {self.clocks(name)} slurm-node >>{log} 2>&1"],
            labels={"node": name},
            mounts=self.node_mounts,
            **options,
        )

    def clocks(self, name: str) -> str:
        """The words before a command of the node for clocks other than this machine's."""
        return ""

    def nodes(self) -> dict[str, Host]:
        """The hosts that run now, by node name; those that a daemon started, too."""
        hosts = [Host(c) for c in self.containers() if c.name != f"{self.id}-{HEAD}"]
        return {h.container.labels.get("slurm-elastic.node", h.name): h for h in hosts}

    def containers(self) -> list[Any]:
        """All containers that are attached to the network."""
        return self.client.containers.list(
            all=True, filters={"network": self.id}, ignore_removed=True
        )

    # Slurm

    def slurm(self, *command: str, user: str = "root", check: bool = True) -> Any:
        """A Slurm command on the head; asked again where slurmctld was too busy to answer it.

        Not sbatch and requeue, which may have taken effect.
        """
        once = command[0] == "sbatch" or "requeue" in command
        for _ in range(1 if once else BUSY_TRIES):
            done = self.head.run(command, user=user, check=False)
            if done.returncode == 0 or "timed out" not in done.stderr:
                break
        if check and done.returncode != 0:
            raise CommandFailed(f"{shlex.join(command)}: {done.stdout}{done.stderr}")
        return done

    def sbatch(self, script: str, *options: str, user: str = USER) -> int:
        """Submit as a user does, from /shared/jobs; the job's number."""
        name = f"{self.id}-{secrets.token_hex(4)}.sh"
        path = self.shared / "jobs" / name
        path.write_text(script if script.startswith("#!") else f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        words = ["sbatch", "--parsable", "--chdir=/shared/jobs", *options, f"/shared/jobs/{name}"]
        return int(self.slurm(*words, user=user).stdout.strip().partition(";")[0])

    def job(self, number: int) -> dict[str, str]:
        """``scontrol show job``, as pairs; empty where Slurm has forgotten it."""
        done = self.slurm("scontrol", "-o", "show", "job", str(number), check=False)
        words = (word.partition("=") for word in done.stdout.split())
        return {key: value for key, sign, value in words if sign}

    def wait_job(
        self, number: int, state: str = "COMPLETED", patience: float = PATIENCE
    ) -> dict[str, str]:
        """Wait until a job is in that state; what Slurm says of it."""

        def there() -> dict[str, str] | None:
            job = self.job(number)
            return job if job.get("JobState") == state else None

        return self.wait_for(there, f"job {number} is {state}", patience)

    def wait_for(self, condition: Callable[[], T], what: str, patience: float = PATIENCE) -> T:
        """Wait until ``condition`` is true, and return it."""
        return wait_for(condition, what, self.state, patience)

    def state(self) -> str:
        """The nodes and jobs as Slurm shows them now, for a failure's report."""
        return (
            "\n".join(
                self.slurm(*shlex.split(words), check=False).stdout
                for words in ("sinfo -N -o '%N %P %T %E'", "squeue --all -o '%i %P %T %N %r %S'")
            )
            if hasattr(self, "head")
            else "no head yet"
        )

    def logs(self, lines: int = 40) -> str:
        """The end of every log below /shared/log."""
        tails = (
            (path.name, path.read_text(errors="replace").splitlines()[-lines:])
            for path in sorted((self.shared / "log").glob("*"))
        )
        return "\n".join(f"--- {name}\n" + "\n".join(tail) for name, tail in tails)

    # the parts

    def _lay_out(self) -> None:
        self.directory.chmod(0o755)
        for name in ("shared", *OPEN, "keys", "etc", "opt"):
            (self.directory / name).mkdir()
            (self.directory / name).chmod(0o1777 if name in OPEN else 0o755)
        key = self.directory / "keys" / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(128))
        # A copy: user slurm shall be able to read it whatever the clone's modes are.
        package = self.directory / "opt" / "slurm_elastic"
        shutil.copytree(
            REPO / "slurm_elastic", package, ignore=shutil.ignore_patterns("__pycache__")
        )
        subprocess.run(["chmod", "-R", "go+rX", str(package)], check=True)

    def _make_network(self) -> None:
        self.network = self.client.networks.create(self.id, labels={LABEL: self.id})

    def site_conf(self, head: Host) -> str:
        """slurm.conf as the head begins with it."""
        return self.conf

    def _start_head(self) -> Host:
        mounts = {}
        if self.socket:
            mounts[self.engine.socket] = {"bind": "/var/run/docker.sock", "mode": "rw"}
        # conf check starts a throw-away slurmctld in a network namespace of its own.
        head = self._start(
            HEAD,
            cap_add=["SYS_ADMIN", "NET_ADMIN"],
            security_opt=["seccomp=unconfined"],
            command=["sleep", "infinity"],
            mounts=mounts,
        )
        head.run(["sh", "-c", _ADD_USER])
        head.put("/etc/slurm/slurm.conf", self.site_conf(head))
        head.put("/etc/slurm/cgroup.conf", self.cgroup_conf)
        head.start(["slurm-head"], "head.boot")
        return head

    def _start(
        self, name: str, *, mounts: Mapping[str, Any] = MappingProxyType({}), **options: Any
    ) -> Host:
        volumes = {
            str(self.shared): {"bind": "/shared", "mode": "rw"},
            str(self.directory / "keys"): {"bind": "/etc/slurm-elastic", "mode": "ro"},
            str(self.directory / "opt"): {"bind": "/opt/slurm-elastic", "mode": "ro"},
        } | dict(mounts)
        endpoint = self.client.api.create_endpoint_config(aliases=[name])
        container = self.client.containers.create(
            self.image,
            name=f"{self.id}-{name}",
            hostname=name,
            init=True,
            volumes=volumes,
            network=self.id,
            networking_config={self.id: endpoint},
            **options,
        )
        container.start()
        return Host(container)


def wait_for(
    condition: Callable[[], T],
    what: str,
    state: Callable[[], str],
    patience: float = PATIENCE,
    least: float = 0.25,
) -> T:
    """Wait until ``condition`` is true, and return it; ``state`` goes into the failure."""
    began = time.monotonic()
    deadline = began + allowed(patience)
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not in {patience:g} s: {what}\n{state()}")
        pause(began, least)
    return value


_ADD_USER = f"id {USER} >/dev/null 2>&1 || useradd -u {UID} -m -s /bin/bash {USER}"


def criu_options(capabilities: Sequence[str] = CRIU_CAPS) -> dict[str, Any]:
    """The options of a container in which CRIU can dump and restore."""
    return {
        "cap_add": list(capabilities),
        "security_opt": ["seccomp=unconfined"],
        "tmpfs": {"/run": "mode=755"},
        "sysctls": {"net.ipv4.ip_nonlocal_bind": "1"},
    }


def _static_lines(names: Sequence[str], cpus: int) -> str:
    if not names:
        return ""
    listed = ",".join(names)
    return (
        f"NodeName={listed} CPUs={cpus} RealMemory=1000 State=UNKNOWN\n"
        f"PartitionName=static Nodes={listed} Default=YES State=UP\n"
    )


@contextlib.contextmanager
def container_world(engine: Engine, image: str, **options: Any) -> Iterator[ContainerWorld]:
    """The same as ``with ContainerWorld(...)``; for fixtures."""
    with ContainerWorld(engine, image, **options) as world:
        yield world
