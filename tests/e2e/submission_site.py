"""A small site on real Slurm, to submit jobs to: own munged, slurmctld and slurmd's, private ports.

The static nodes are real slurmd's; the cloud nodes never boot, since what counts is what becomes
of a submission. Only processes started here are stopped, by their process objects.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from patience import patience, pause

from slurm_elastic.config import Config, configfile
from slurm_elastic.slurm.conf import install
from tests.ports import free_ports

SETTLED = 60.0
"""Seconds that anything may take on a loaded machine."""

SLURM_CONF = """\
ClusterName=submissions
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=slurm
AuthType=auth/munge
AuthInfo=socket={root}/munge/socket
CryptoType=crypto/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,sched_interval=1,bf_interval=1
GresTypes=gpu
SlurmctldDebug=debug
StateSaveLocation={root}/ctld
SlurmdSpoolDir={root}/slurmd.%n
SlurmctldPidFile={root}/ctld/pid
SlurmdPidFile={root}/slurmd.%n.pid
SlurmctldLogFile={root}/ctld/log
SlurmdLogFile={root}/slurmd.%n.log
SlurmdParameters=config_overrides
ReturnToService=2
SlurmctldTimeout=10
MessageTimeout=60
BatchStartTimeout=60
MailProg=/bin/true
EnforcePartLimits={enforce}
{extra}
NodeName=st1 NodeHostname={host} NodeAddr=127.0.0.1 Port={port1} CPUs=2 RealMemory=1000 Feature=old
NodeName=st2 NodeHostname={host} NodeAddr=127.0.0.1 Port={port2} CPUs=2 RealMemory=1000 Feature=old
NodeName=sp1 NodeAddr=127.0.0.1 Port=7 CPUs=2 RealMemory=1000 Feature=big Gres=gpu:1 State=DOWN Reason=broken
PartitionName=static Nodes=st[1-2] Default=YES DefaultTime=60 MaxTime=2-00:00:00 State=UP
PartitionName=other Nodes=st[1-2] MaxTime=60 State=UP
PartitionName=special Nodes=sp1 State=UP
"""

STATICS = ("st1", "st2")


class Ran(Struct, frozen=True, kw_only=True):
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str


def wait_for(what: str, probe: Callable[[], object], seconds: float = SETTLED) -> None:
    """Poll until ``probe`` is true; a failure says what was waited for."""
    began = time.monotonic()
    deadline = began + patience(seconds)
    while not probe():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:.0f} s: {what}")
        pause(began, 0.25)  # each look is a command


class SubmissionSite:
    """The site in ``root``; ``extra`` are more lines of slurm.conf."""

    def __init__(self, root: Path, *, enforce: str, extra: str = "") -> None:
        self.root = root
        self.enforce = enforce
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._make_directories()
        port, port1, port2 = free_ports(3)
        self.conf.write_text(
            SLURM_CONF.format(
                host=socket.gethostname().split(".")[0],
                root=root,
                port=port,
                port1=port1,
                port2=port2,
                enforce=enforce,
                extra=extra,
            )
        )

    @property
    def conf(self) -> Path:
        return self.root / "etc" / "slurm.conf"

    @property
    def log_size(self) -> int:
        path = self.root / "ctld" / "log"
        return path.stat().st_size if path.exists() else 0

    def log(self, since: int = 0) -> str:
        """slurmctld's log after its first ``since`` bytes."""
        with (self.root / "ctld" / "log").open("rb") as log:
            log.seek(since)
            return log.read().decode(errors="replace")

    def _make_directories(self) -> None:
        slurm = pwd.getpwnam("slurm")
        for name in ("etc", "ctld", "munge", "home"):
            (self.root / name).mkdir(mode=0o755)
        os.chown(self.root / "ctld", slurm.pw_uid, slurm.pw_gid)
        os.chmod(self.root / "home", 0o1777)
        key = self.root / "munge" / "key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)

    def start(self) -> None:
        """munged, slurmctld and the static slurmd's; returns when the nodes are idle."""
        munge = self.root / "munge"
        if "munged" not in self._daemons:
            self._daemon(
                "munged",
                [
                    "munged",
                    "--foreground",
                    "--force",
                    f"--socket={munge}/socket",
                    f"--key-file={munge}/key",
                    f"--pid-file={munge}/pid",
                    f"--log-file={munge}/log",
                    f"--seed-file={munge}/seed",
                ],
            )
            wait_for("munged's socket", lambda: (munge / "socket").exists())
        self._daemon("slurmctld", ["slurmctld", "-D", "-f", str(self.conf)])
        wait_for("slurmctld to answer", lambda: self.run("scontrol", "ping").code == 0)
        for node in STATICS:
            if node not in self._daemons:
                self._daemon(node, ["slurmd", "-D", "-N", node, "-f", str(self.conf)])
        wait_for("static nodes to be idle", self._statics_idle)

    def install(self, config: Config) -> None:
        """``conf install``; its programs find no daemon, so what is resumed never boots."""
        path = self.root / "etc" / "slurm-elastic.yaml"
        path.write_text(configfile.dump(config))
        install.install(config, path, verify=False)

    def _statics_idle(self) -> bool:
        states = self.run("sinfo", "-h", "-N", "-p", "static", "-o", "%T").out.split()
        return states == ["idle", "idle"]

    def restart(self) -> None:
        """Stop all but munged and start again, as after a change of the node set on 22.05."""
        for name in ("slurmctld", *STATICS):
            self._stop(name)
        self.start()

    def stop(self) -> None:
        for name in reversed(list(self._daemons)):
            self._stop(name)

    def _daemon(self, name: str, command: Sequence[str]) -> None:
        program = shutil.which(command[0], path="/usr/sbin:/usr/bin")
        assert program is not None, f"{command[0]} is not installed"
        with (self.root / f"{name}.out").open("ab") as out:
            self._daemons[name] = subprocess.Popen(
                [program, *command[1:]],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd="/",
                env=self._env(),
            )

    def _stop(self, name: str) -> None:
        daemon = self._daemons.pop(name, None)
        if daemon is None:
            return
        daemon.send_signal(signal.SIGTERM)
        try:
            daemon.wait(patience(SETTLED))
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()

    def _env(self) -> dict[str, str]:
        return {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "SLURM_CONF": str(self.conf),
            "HOME": str(self.root / "home"),
            "LC_ALL": "C.UTF-8",
        }

    def popen(
        self,
        *command: str,
        user: str = "root",
        extra_env: Mapping[str, str] = {},
    ) -> subprocess.Popen[str]:
        """Start a command as a user, in a directory that everybody may write to."""
        who = pwd.getpwnam(user)
        return subprocess.Popen(
            command,
            user=who.pw_uid,
            group=who.pw_gid,
            extra_groups=[],
            env=self._env() | dict(extra_env),
            cwd=self.root / "home",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, *command: str, user: str = "root", seconds: float = SETTLED) -> Ran:
        """Run a command to its end."""
        process = self.popen(*command, user=user)
        try:
            out, err = process.communicate(timeout=patience(seconds))
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
        return Ran(code=process.returncode, out=out, err=err)
