"""Two heads: a real pair of slurmctld, each with our services, in namespaces of their own.

Both see one directory with Slurm's state and ours; each has its own host name, address and
``state_dir``. Their clouds, machines and munged are the sandbox's.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from e2e.conftest import PatientSandbox, calm
from patience import patience

from slurm_elastic.machine.local import local_processes
from slurm_elastic.machine.local.local_processes import Process
from slurm_elastic.sandbox.daemons import CKPTMAN, ELASTICD, SLURMCTLD, Daemons
from slurm_elastic.sandbox.processes import Processes
from slurm_elastic.sandbox.spec import SandboxSpec
from slurm_elastic.state.heads import Epochs

HEADS = ("heada", "headb")
TIMEOUT = int(os.environ.get("SLURM_ELASTIC_HEADS_TIMEOUT", "10"))
"""SlurmctldTimeout (s): the least that Slurm takes, or what a slow machine needs."""
_PYTHON = sys.executable
OWN = (SLURMCTLD, ELASTICD, CKPTMAN)
SERVICES = (ELASTICD, CKPTMAN)
AS_SLURM = ("setpriv", "--reuid=slurm", "--regid=slurm", "--init-groups")
SLURM_CONF = (
    "SlurmctldHost=heada(127.0.0.2)",
    "SlurmctldHost=headb(127.0.0.3)",
    f"SlurmctldTimeout={TIMEOUT}",
    "SlurmdTimeout=60",  # by it a job is found to be over whose end was told to a head that died
    "CommunicationParameters=NoCtldInAddrAny",
    "SlurmctldPidFile=/dev/null",
)


Share = Callable[[Path, str], str]
"""The shell command by which a head has the directory that both see, on a disk of that directory."""


def _same_disk(_: Path, __: str) -> str:
    return "true"


def settings(directory: Path) -> dict[str, Any]:
    """What the configuration of a pair has besides."""
    return {"ha": {"directory": f"{directory}/slurmctld/slurm-elastic"}}


class PairProcesses(Processes):
    """Those of ``OWN`` as HEAD-NAME, in the head's namespaces."""

    def __init__(self, directory: Path, share: Share = _same_disk) -> None:
        super().__init__(directory)
        self.directory, self.share = directory, share

    def hold(self, head: str, environment: Mapping[str, str]) -> None:
        """A process that keeps the head's namespaces."""
        own = self.directory / "heads" / head
        for name in ("state", "door"):
            (own / name).mkdir(parents=True, exist_ok=True)
            os.chown(own / name, *_owner(self.directory / name))
            (own / name).chmod(0o700 if name == "state" else 0o755)
        hosts = self.directory / "heads" / "hosts"
        hosts.write_text("127.0.0.1 localhost\n127.0.0.2 heada\n127.0.0.3 headb\n")
        root = shlex.quote(str(self.directory))
        setup = f"hostname {head} && mount --make-rprivate / && "
        setup += " && ".join(f"mount --bind {own}/{n} {root}/{n}" for n in ("state", "door"))
        setup += f" && mount --bind {hosts} /etc/hosts && {self.share(self.directory, head)}"
        shell = ["sh", "-c", f"{setup} && touch {own}/ready && exec sleep infinity"]
        super().start(f"{head}-host", ["unshare", "--uts", "--mount", *shell], environment)

    def ready(self, head: str) -> bool:
        return (self.directory / "heads" / head / "ready").exists()

    def on(
        self, head: str, name: str, argv: Sequence[str], environment: Mapping[str, str]
    ) -> Process:
        """Start one of ``OWN`` there."""
        inside = [*self.inside(head), *AS_SLURM, *argv]
        return super().start(f"{head}-{name}", inside, environment)

    def inside(self, head: str) -> list[str]:
        """What runs a command there."""
        host = self.get(f"{head}-host")
        assert host is not None
        return ["nsenter", "-t", str(host.pid), "--uts", "--mount", "--wd=/"]

    def alive(self, name: str) -> bool:
        names = [f"{head}-{name}" for head in HEADS] if name in OWN else [name]
        return any(super(PairProcesses, self).alive(one) for one in names)

    def stop(self, name: str, deadline: float = 20.0) -> None:
        for one in [f"{head}-{name}" for head in HEADS] if name in OWN else [name]:
            super().stop(one, deadline)


class PairDaemons(Daemons):
    """Each of ``OWN`` on both heads."""

    def __init__(self, layout: Any, processes: PairProcesses) -> None:
        super().__init__(layout, processes)
        self.pair = processes

    def slurmctld(self) -> None:
        for head in HEADS:
            self.pair.hold(head, self._layout.daemon_env())
            self._wait(f"{head}-host", lambda head=head: self.pair.ready(head))
            self.begin(head, SLURMCTLD)
            self._wait(SLURMCTLD, self.slurmctld_answers)

    def elasticd(self, extra: Mapping[str, str]) -> None:
        for head in HEADS:
            self.begin(head, ELASTICD, extra)

    def ckptman(self, extra: Mapping[str, str]) -> None:
        for head in HEADS:
            self.begin(head, CKPTMAN, extra)

    def begin(
        self, head: str, name: str, extra: Mapping[str, str] | None = None, module: str = ""
    ) -> None:
        """Start it there; slurm-elasticd by another ``module`` where one is named."""
        env = self._layout.daemon_env() | {"PYTHONFAULTHANDLER": "1"} | dict(extra or {})
        if name == SLURMCTLD:
            argv = ["slurmctld", "-D", "-f", str(self._layout.slurm_conf)]
        else:
            own = f"slurm_elastic.cli.services.{'daemon' if name == ELASTICD else 'ckptman'}"
            argv = [_PYTHON, "-m", module or own]
            argv += ["--config", str(self._layout.config)]
        self.pair.on(head, name, argv, env)


class Pair:
    """A sandbox whose heads are two; ``strike`` one of them."""

    def __init__(self, sandbox: Any, share: Share = _same_disk) -> None:
        self.sandbox = sandbox
        self.processes = PairProcesses(sandbox.layout.dir, share)
        self.daemons = PairDaemons(sandbox.layout, self.processes)
        sandbox.processes, sandbox._daemons = self.processes, self.daemons

    @property
    def shared(self) -> Path:
        return self.sandbox.layout.dir / "slurmctld" / "slurm-elastic"

    def strike(self, head: str, names: Sequence[str] = OWN, number: int = signal.SIGKILL) -> None:
        """Send the signal to these of the head; after SIGKILL they are gone on return."""
        found = [p for name in names if (p := Processes.get(self.processes, f"{head}-{name}"))]
        for process in found:
            local_processes.send(process, number)
        if number == signal.SIGKILL:
            local_processes.wait_gone(found, 10.0)

    def begin(self, head: str, names: Sequence[str] = OWN) -> None:
        for name in names:
            self.daemons.begin(head, name)

    def place(self) -> int:
        """Of the slurmctld that wrote the last heartbeat."""
        with contextlib.suppress(OSError, struct.error):
            raw = (self.sandbox.layout.dir / "slurmctld" / "heartbeat").read_bytes()
            return int(struct.unpack(">QQ", raw)[1])
        return -1

    def acting(self) -> str:
        """The head both of whose services say that they act, in the newest epoch."""
        last = Epochs(self.shared).newest() if self.shared.exists() else None
        if last is None:
            return ""
        said = f"acting host={last.host} epoch={last.number}\n"
        return last.host if all(said in self.log(last.host, n) for n in SERVICES) else ""

    def given_back(self) -> int:
        """Wait until the first head acts, what is dead begun, and the other slurmctld writes no
        heartbeat: one that was asked to give back may hang in that (22.05), and is begun anew, as
        an administrator would. How often that was.
        """
        for head in HEADS:
            self.begin(head, [name for name in OWN if not self.lives(head, name)])
        hung, since = 0, time.monotonic()
        again = until = since + 6 * TIMEOUT
        while time.monotonic() - since < TIMEOUT:
            if self.acting() != HEADS[0] or self.place() != 0:
                since = time.monotonic()
            if time.monotonic() > again:
                late = time.monotonic() > until + patience(600.0)
                assert not late, f"the first head never acts\n{self.told()}"
                hung, again = hung + 1, time.monotonic() + 6 * TIMEOUT
                self.strike(HEADS[1], [SLURMCTLD])
                self.begin(HEADS[1], [SLURMCTLD])
            time.sleep(0.1)
        return hung

    def told(self) -> str:
        """The last words of each service of each head, for a failure: where it stands is the very
        last, as it is aborted for that.
        """
        for head in HEADS:
            self.strike(head, SERVICES, signal.SIGABRT)
        time.sleep(1.0)
        ends = [f"{n} on {h}:\n{self.log(h, n)[-8000:]}" for h in HEADS for n in OWN]
        return "\n".join(ends)

    def lives(self, head: str, name: str) -> bool:
        return Processes.alive(self.processes, f"{head}-{name}")

    def log(self, head: str, name: str = ELASTICD) -> str:
        return self.processes.log(f"{head}-{name}").read_text(errors="replace")

    def run(self, head: str, *words: str) -> str:
        """A command of ours, as root on that head."""
        inside = [
            *self.processes.inside(head),
            _PYTHON,
            "-P",
            "-m",
            "slurm_elastic.cli.main",
            *words,
        ]
        return self.sandbox.run(inside, check=False, timeout=90.0).stdout


def up(share: Share = _same_disk, **overrides: Any) -> Iterator[Pair]:
    """A pair that runs, in a sandbox of its own; all of it is gone at the end."""
    directory = Path(tempfile.mkdtemp(prefix="se-", dir="/tmp"))
    directory.chmod(0o755)
    elastic = {**overrides.pop("elastic", {}), **settings(directory)}
    given = {"static_nodes": 1, **overrides, "slurm_conf": SLURM_CONF, "elastic": elastic}
    spec = calm(given)
    sandbox = PatientSandbox(SandboxSpec(dir=directory, **spec))
    made = Pair(sandbox, share)
    sandbox.up()
    try:
        # A third place, which reads as a head that stands by.
        (directory / "state" / "journal").symlink_to(made.shared / "journal")
        yield made
    finally:
        sandbox.down()


def _owner(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_uid, found.st_gid
