"""A whole cluster on one machine: real munged, slurmctld and slurmd processes, and emulated
clouds.
"""

from __future__ import annotations

import logging
import pwd
import shutil
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from slurm_elastic.base.errors import SandboxError, SlurmError
from slurm_elastic.config import configfile
from slurm_elastic.machine.local import local_processes
from slurm_elastic.machine.local import records as local_records
from slurm_elastic.sandbox import build
from slurm_elastic.sandbox.control import control, one_control
from slurm_elastic.sandbox.daemons import (
    AGENT,
    CKPTMAN,
    EC2,
    ELASTICD,
    MUNGED,
    ONE,
    RUNNER,
    SLURMCTLD,
    Daemons,
)
from slurm_elastic.sandbox.ec2.control import Ec2Control
from slurm_elastic.sandbox.hypervisor import MachineNetwork
from slurm_elastic.sandbox.layout import MARKER, Layout, Saved
from slurm_elastic.sandbox.nebula.control import OneControl
from slurm_elastic.sandbox.processes import Processes, SlurmdMachines
from slurm_elastic.sandbox.shell import Shell
from slurm_elastic.sandbox.sources import needs_runner
from slurm_elastic.sandbox.spec import (
    SandboxSpec,
    cloud_of,
    clouds_of,
    providers_of,
    static_names,
)
from slurm_elastic.slurm.conf import install

log = logging.getLogger(__name__)

_NOT_READY = frozenset({"NOT_RESPONDING", "DOWN", "DRAIN", "UNKNOWN"})
Progress = Callable[[str], None]
RESTARTABLE = (SLURMCTLD, ELASTICD, CKPTMAN)
"""Processes that keep their state on the disk, in the order of their start."""


class Sandbox(Shell):
    """A sandbox. All its files are below ``spec.dir``. ``attach`` opens an existing sandbox."""

    def __init__(self, spec: SandboxSpec) -> None:
        super().__init__(Layout(dir=spec.dir.resolve()))
        self.spec = spec
        self.processes = Processes(self.layout.dir)
        self.machines = SlurmdMachines(self.layout.machines)
        self._daemons = Daemons(self.layout, self.processes)

    @classmethod
    def attach(cls, directory: Path) -> Sandbox:
        """Open the sandbox in ``directory``. Raises SandboxError if there is none."""
        return cls(Layout(dir=directory.resolve()).read().spec)

    def up(self, progress: Progress = lambda _: None) -> None:
        """Start all processes. If only RESTARTABLE ones are dead, restart them with their state. If
        other processes are dead, say so, and remove the old sandbox first.

        Raises SandboxError, and removes what was started of a new sandbox.
        """
        if self._restart_services(progress):
            return
        build.require_host(self.spec, self.layout)
        self._remove_incomplete(progress)
        try:
            self._start(progress)
        except BaseException as error:
            # Read the logs before ``down`` removes the directory.
            log_text = self.log_tails(4) if isinstance(error, (SandboxError, SlurmError)) else ""
            if self.layout.marker.exists():
                self.down()
            if log_text:
                raise SandboxError(f"{error}\n{log_text}") from error
            raise

    def _start(self, progress: Progress) -> None:
        layout, ports = self.layout, build.free_ports(self.spec)
        # Write the marker first: a directory without a marker is never removed.
        layout.dir.mkdir(mode=0o755, exist_ok=True)
        # Check again: in /tmp another user may have made the directory after the first check.
        layout.require_own()
        layout.save(Saved(spec=self.spec, ports=ports))
        build.make_directories(layout)
        build.require_python(layout)
        build.write_files(self.spec, ports, layout)
        if self.spec.image:
            progress("the network of virtual machines")
            MachineNetwork(layout.dir).up()
        progress("munged")
        self._daemons.munged()
        if self._cloud("aws"):
            progress("emulated EC2")
            self._daemons.ec2(self.layout.read())
        if self._cloud("opennebula"):
            progress("emulated OpenNebula")
            self._daemons.one(self.layout.read())
        if not self.spec.bare:
            progress("slurm-elastic conf install")
            self._install()
        progress("slurmctld and static nodes")
        self._daemons.slurmctld()
        slurm_config = self.run(["scontrol", "show", "config"]).stdout
        build.require_several_slurmds(slurm_config, build.slurm_version())
        for node in static_names(self.spec):
            self.machines.start(self.layout.machine(node, node))
        progress("the clouds' machines")
        self._start_clouds()
        if not self.spec.bare:
            progress("slurm-elasticd and slurm-elastic-ckptman")
            self.daemon_start()
            self.ckptman_start()
        self.wait_for(self._static_idle, 60.0, "the static nodes are idle")

    def _start_clouds(self) -> None:
        if not self.spec.bare:
            for name, cloud in self._agents().items():
                self._daemons.agent(self.layout.read(), name, cloud)
        if self._needs_runner():
            self._daemons.runner()

    def _static_idle(self) -> bool:
        nodes = self.slurm.nodes(static_names(self.spec)) if self.spec.static_nodes else {}
        ready = [n for n in nodes.values() if "IDLE" in n.states and not n.states & _NOT_READY]
        return len(ready) == self.spec.static_nodes

    def _install(self) -> None:
        config = configfile.load(self.layout.config)
        # No verification, which would start a throw-away slurmctld for a throw-away site.
        install.install(config, self.layout.config, verify=False)

    def down(self) -> None:
        """End all processes of the sandbox and remove its directory. A second call does nothing."""
        if not self.layout.dir.exists():
            return
        # By the saved clouds: ours may be the defaults, or those of the sandbox that comes next.
        agents = Sandbox.attach(self.layout.dir)._agents()
        for name in (CKPTMAN, ELASTICD, *agents, RUNNER, EC2, ONE):
            self.processes.stop(name, 5.0)
        self.processes.stop(SLURMCTLD, 10.0)
        for name in self.machines.ids():
            self.machines.power_off(name)
        for cloud in agents.values():
            machines = Path(f"{cloud['socket']}.machines")
            for record in local_records.read_records(machines):
                directory = local_records.workdir(machines, record)
                local_processes.power_off(directory, slurmd=record.process)
        self.processes.stop(MUNGED, 5.0)
        self._end_unrecorded()
        if self.layout.read().spec.image:
            MachineNetwork(self.layout.dir).down()
        shutil.rmtree(self.layout.dir)

    def _end_unrecorded(self) -> None:
        """End unrecorded processes of the sandbox: children, and processes started before a
        crash.
        """
        mark, uids = str(self.layout.dir), {0, pwd.getpwnam(build.USER).pw_uid}
        give_up_at = time.monotonic() + 10.0
        while (
            remaining := local_processes.carrying(MARKER, mark, uids)
        ) and time.monotonic() < give_up_at:
            for process in remaining:
                local_processes.send(process, signal.SIGKILL)
            local_processes.wait_gone(remaining, 1.0)

    def _remove_incomplete(self, progress: Progress) -> None:
        if not self.layout.dir.exists():
            return
        self.layout.require_own()
        if self.is_up():
            raise SandboxError(f"a sandbox is already up in {self.layout.dir}")
        if any(self.layout.dir.iterdir()):
            dead = [name for name, alive in Sandbox.attach(self.layout.dir).status().items()
                    if not alive]  # fmt: skip
            progress(f"removing the old sandbox with its jobs and records: {', '.join(dead)} ended")
            self.down()

    def _restart_services(self, progress: Progress) -> bool:
        """Restart the dead services if all of them are RESTARTABLE. Returns whether it has
        restarted them.
        """
        if not self.layout.marker.exists():
            return False
        self.layout.require_own()
        existing = Sandbox.attach(self.layout.dir)
        dead = [name for name, alive in existing.status().items() if not alive]
        if not dead or not set(RESTARTABLE).issuperset(dead):
            return False
        for name in RESTARTABLE:  # slurmctld first, which the others ask
            if name in dead:
                progress(f"{name}, which was dead; all other processes still run")
                existing.service_start(name)
        return True

    def service_start(self, name: str) -> None:
        """Start a RESTARTABLE process with its state. SandboxError if it runs already."""
        self._require_service(name)
        if self.processes.alive(name):
            raise SandboxError(f"{name} runs already")
        starts = {
            SLURMCTLD: self.slurmctld_start, ELASTICD: self.daemon_start,
            CKPTMAN: self.ckptman_start,
        }  # fmt: skip
        starts[name]()

    def service_stop(self, name: str, *, crash: bool = False) -> None:
        """End a RESTARTABLE process, in a ``crash`` by SIGKILL. SandboxError if it does not run."""
        self._require_service(name)
        if not self.processes.alive(name):
            raise SandboxError(f"{name} does not run")
        if crash:
            self.processes.kill(name)
        else:
            self.processes.stop(name, 60.0)

    def _require_service(self, name: str) -> None:
        if name not in RESTARTABLE or name not in self._names():
            names = ", ".join(service for service in RESTARTABLE if service in self._names())
            raise SandboxError(f"{name} is no service that starts again; expected {names}")

    def is_up(self) -> bool:
        """Return True if a sandbox exists in the directory and all its daemons run."""
        return self.layout.marker.exists() and all(
            Sandbox.attach(self.layout.dir).status().values()
        )

    def status(self) -> dict[str, bool]:
        """Return for each daemon of this sandbox whether it runs."""
        return {name: self.processes.alive(name) for name in self._names()}

    def _names(self) -> list[str]:
        names = [MUNGED, SLURMCTLD]
        if not self.spec.bare:
            names += [ELASTICD, CKPTMAN, *self._agents()]
        emulated = {"aws": EC2, "opennebula": ONE}
        emulators = [name for provider, name in emulated.items() if self._cloud(provider)]
        return names + emulators + ([RUNNER] if self._needs_runner() else [])

    def _needs_runner(self) -> bool:
        return needs_runner(providers_of(self.spec))

    def _agents(self) -> dict[str, dict[str, Any]]:
        """Return the local clouds by the name of their agent's process."""
        clouds = clouds_of(self.spec, "local")
        return {AGENT if i == 0 else f"{AGENT}-{c['name']}": c for i, c in enumerate(clouds)}

    def _cloud(self, provider: str) -> dict[str, Any] | None:
        return cloud_of(self.spec, provider)

    @property
    def ec2(self) -> Ec2Control:
        """The control of the emulated EC2."""
        return control(self.layout.read())

    @property
    def opennebula(self) -> OneControl:
        """The control of the emulated OpenNebula."""
        return one_control(self.layout.read())

    def slurmctld_start(self) -> None:
        """Start slurmctld and wait until it answers."""
        self._daemons.slurmctld()

    def slurmctld_stop(self) -> None:
        """End slurmctld by SIGTERM, so that it saves its state. Jobs continue."""
        self.processes.stop(SLURMCTLD, 60.0)

    def daemon_start(self, env_extra: Mapping[str, str] | None = None) -> None:
        """Start slurm-elasticd."""
        self._daemons.elasticd(env_extra or {})

    def daemon_stop(self) -> None:
        """End slurm-elasticd by SIGTERM."""
        self.processes.stop(ELASTICD, 30.0)

    def daemon_kill(self) -> None:
        """End slurm-elasticd by SIGKILL, as a crash would."""
        self.processes.kill(ELASTICD)

    def ckptman_start(self, env_extra: Mapping[str, str] | None = None) -> None:
        """Start slurm-elastic-ckptman."""
        self._daemons.ckptman(env_extra or {})

    def ckptman_stop(self) -> None:
        """End slurm-elastic-ckptman by SIGTERM."""
        self.processes.stop(CKPTMAN, 30.0)

    def ckptman_kill(self) -> None:
        """End slurm-elastic-ckptman by SIGKILL, as a crash would."""
        self.processes.kill(CKPTMAN)
