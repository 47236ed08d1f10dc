"""Starts each daemon of a sandbox and waits until it is ready."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from slurm_elastic.base.errors import SandboxError
from slurm_elastic.machine.local.local_processes import Process
from slurm_elastic.sandbox.build import USER
from slurm_elastic.sandbox.control import control, one_control
from slurm_elastic.sandbox.layout import Layout, Saved
from slurm_elastic.sandbox.processes import Processes
from slurm_elastic.state.heartbeat import CKPTMAN_MARK, read_mark

MUNGED = "munged"
SLURMCTLD = "slurmctld"
EC2 = "ec2"
ONE = "opennebula"
RUNNER = "runner"
AGENT = "local-agent"
ELASTICD = "slurm-elasticd"
CKPTMAN = "slurm-elastic-ckptman"

START_TIMEOUT_S = 60.0
"""Seconds a daemon may take to start. It needs far less, but the machine may be busy."""
NO_MARK_S = 10.0
"""Seconds after which slurm-elastic-ckptman counts as started if it has not ended. It cannot leave
a mark on a disk without room, or while its head stands by.
"""


class Daemons:
    """Starts the daemons of a sandbox. Each method returns when the daemon answers, and raises
    SandboxError if it does not.
    """

    def __init__(self, layout: Layout, processes: Processes) -> None:
        self._layout = layout
        self._processes = processes
        self._run = layout.dir / "run"

    def munged(self) -> None:
        """Start munged as root, with a key and a socket of its own. The host's munged is not
        used.
        """
        self._processes.start(
            MUNGED,
            [
                "munged",
                "--foreground",
                "--num-threads=4",
                f"--socket={self._run}/munge.socket",
                f"--key-file={self._layout.dir}/etc/munge.key",
                f"--pid-file={self._run}/munged.pid",
                f"--seed-file={self._run}/munged.seed",
                f"--log-file={self._layout.log}/munged.log",
            ],
            self._layout.daemon_env(),
        )
        self._wait(MUNGED, lambda: listens(self._run / "munge.socket"))

    def slurmctld(self) -> None:
        """Start slurmctld as SlurmUser, in the foreground of a session of its own."""
        self._processes.start(
            SLURMCTLD,
            ["slurmctld", "-D", "-f", str(self._layout.slurm_conf)],
            self._layout.daemon_env(),
            user=USER,
        )
        self._wait(SLURMCTLD, self.slurmctld_answers)

    def slurmctld_answers(self) -> bool:
        """Return True if ``scontrol ping`` shows slurmctld as up."""
        try:
            done = subprocess.run(
                ["scontrol", "ping"],
                env=self._layout.daemon_env(),
                capture_output=True,
                text=True,
                timeout=20,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return False
        return "is UP" in done.stdout

    def ec2(self, saved: Saved) -> None:
        """Start the emulated EC2."""
        argv = [
            *(sys.executable, "-P", "-m", "slurm_elastic.sandbox.ec2.serve"),
            *("--dir", str(self._layout.dir), "--port", str(saved.ports.ec2)),
            *("--speed", str(saved.spec.price_speed)),
        ]
        if saved.spec.prices:
            argv += ["--prices", saved.spec.prices]
        self._processes.start(EC2, argv, self._layout.daemon_env(), user=USER)
        self._wait(EC2, (self._layout.dir / "ec2" / "ready").exists)
        control(saved).wait_ready(START_TIMEOUT_S)

    def one(self, saved: Saved) -> None:
        """Start the emulated OpenNebula. It reads its accounts and templates from a file."""
        place = self._layout.dir / "one"
        argv = [
            *(sys.executable, "-P", "-m", "slurm_elastic.sandbox.opennebula"),
            *("--dir", str(self._layout.dir), "--port", str(saved.ports.one)),
            *("--world", str(place / "world.json")),
        ]
        self._processes.start(ONE, argv, self._layout.daemon_env(), user=USER)
        self._wait(ONE, (place / "ready").exists)
        one_control(saved).wait_ready(START_TIMEOUT_S)

    def runner(self) -> None:
        """Start the process that runs a slurmd for each emulated machine, as root."""
        argv = [sys.executable, "-P", "-m", "slurm_elastic.sandbox.runner", str(self._layout.dir)]
        self._processes.start(RUNNER, argv, self._layout.daemon_env())

    def agent(self, saved: Saved, name: str, cloud: Mapping[str, object]) -> None:
        """Start the agent of a local cloud as root, under this name."""
        argv = [
            *(sys.executable, "-P", "-m", "slurm_elastic.cli.services.local_agent"),
            *("--config", str(self._layout.config)),
            *("--cloud", str(cloud["name"])),
            *("--log-dir", str(self._layout.log)),
            *("--boot", str(saved.spec.local_boot_seconds)),
            *("--never-boot", saved.spec.never_boot),
        ]
        self._processes.start(name, argv, self._layout.daemon_env())
        self._wait(name, lambda: listens(Path(str(cloud["socket"]))))

    def elasticd(self, extra: Mapping[str, str]) -> None:
        """Start slurm-elasticd as SlurmUser. ``extra``: further environment, such as fault
        points.
        """
        self._service(ELASTICD, "daemon", extra)
        self._wait(ELASTICD, lambda: listens(self._layout.dir / "state" / "prolog.sock"))

    def ckptman(self, extra: Mapping[str, str]) -> None:
        """Start slurm-elastic-ckptman as SlurmUser. ``extra``: further environment."""
        process = self._service(CKPTMAN, "ckptman", extra)
        began, state = time.monotonic(), self._layout.dir / "state"

        def works() -> bool:
            # Other files in the directory may be of the process before.
            mark = read_mark(state, CKPTMAN_MARK)
            has_left_mark = mark is not None and mark.pid == process.pid
            return has_left_mark or time.monotonic() - began > NO_MARK_S

        self._wait(CKPTMAN, works)

    def _service(self, name: str, module: str, extra: Mapping[str, str]) -> Process:
        argv = [sys.executable, "-m", f"slurm_elastic.cli.services.{module}"]
        argv += ["--config", str(self._layout.config)]
        environment = self._layout.daemon_env() | dict(extra)
        return self._processes.start(name, argv, environment, user=USER)

    def _wait(self, name: str, ready: Callable[[], bool]) -> None:
        give_up_at = time.monotonic() + START_TIMEOUT_S
        while not ready():
            if not self._processes.alive(name):
                raise SandboxError(f"{name} ended at once; see {self._processes.log(name)}")
            if time.monotonic() > give_up_at:
                raise SandboxError(f"{name} does not answer after {START_TIMEOUT_S:g} s")
            time.sleep(0.1)


def listens(path: Path) -> bool:
    """Return True if a process accepts connections at a unix socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True
