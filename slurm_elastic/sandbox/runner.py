"""Runs a slurmd on this host for each machine of a sandbox's clouds, and ends it with the machine.

Usage: ``python -m slurm_elastic.sandbox.runner DIR``, as root. If a machine is terminated before
its boot time has passed, it never gets a slurmd.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.base.hostlist import expand
from slurm_elastic.base.processes.periodic import PeriodicTask
from slurm_elastic.base.processes.signals import on_end
from slurm_elastic.machine.local.local_processes import SlurmdSettings
from slurm_elastic.sandbox import control, machine_agent
from slurm_elastic.sandbox.layout import Layout, Saved
from slurm_elastic.sandbox.processes import SlurmdMachines
from slurm_elastic.sandbox.seen import ALIVE, CloudMachine
from slurm_elastic.sandbox.sources import EC2_PREFIX, sources

if TYPE_CHECKING:
    from slurm_elastic.sandbox.hypervisor import Hypervisor

log = logging.getLogger(__name__)

Look = Callable[[], Iterable[CloudMachine]]
PERIOD_S = 0.25


class Runner:
    """Runs the machines of one cloud. ``step`` makes them match the cloud's list.

    ``prefix``: the prefix of the ids of the cloud's machines; other machines are not touched.
    ``dead_man``: the heartbeat_timeout (s) of each machine's agent (None: no agent). ``check``: the
    command of the agent's gate.
    """

    def __init__(
        self,
        layout: Layout,
        boot_seconds: float,
        never_boot: Iterable[str] = (),
        prefix: str = "i-",
        dead_man: float | None = None,
        check: str = "",
    ) -> None:
        self._layout = layout
        self._machines = SlurmdMachines(layout.machines)
        self._boot = boot_seconds
        self._never = frozenset(never_boot)
        self._prefix = prefix
        self._dead_man = dead_man
        self._check = check
        self._refused: set[str] = set()
        for name in list(self._machines.ids()):
            started = self._machines.get(name)
            if started is None or started.process is None:
                # The last runner was killed between the record and the start. Start this machine
                # again.
                self._machines.power_off(name)

    def step(self, machines: Iterable[CloudMachine], now: float) -> None:
        """Power off machines that the cloud no longer has, and start those that have booted."""
        alive = {m.id: m for m in machines if m.state in ALIVE}
        started_ids = set(self._machines.ids())
        for ended_id in sorted(
            name for name in started_ids - alive.keys() if name.startswith(self._prefix)
        ):
            self._machines.power_off(ended_id)
        for machine in alive.values():
            # A machine whose slurmd died stays dead, like a crashed machine, because slurm-elasticd
            # must find it.
            if machine.id not in started_ids and self._has_booted(machine, now):
                settings = self._layout.machine(machine.id, machine.node)
                self._boot_up(settings, machine)

    def _boot_up(self, machine: SlurmdSettings, seen: CloudMachine) -> None:
        if self._dead_man is None:
            self._machines.start(machine)
            return
        if machine.id in self._refused:
            return
        if not machine_agent.prepare(self._layout, machine, self._dead_man, self._check, seen):
            self._refused.add(machine.id)
            return
        self._machines.start(machine)
        machine_agent.start(self._layout, machine)

    def _has_booted(self, machine: CloudMachine, now: float) -> bool:
        if not machine.node or machine.node in self._never:
            return False
        return now >= machine.launched + self._boot


def main(argv: list[str] | None = None) -> int:
    """Run until SIGTERM. The machines continue to run."""
    (directory,) = sys.argv[1:] if argv is None else argv
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    layout = Layout(dir=Path(directory))
    saved = layout.read()
    never = expand(saved.spec.never_boot) if saved.spec.never_boot else ()
    stop = threading.Event()
    clouds = [
        (_runner_of(layout, saved, never, prefix), look) for prefix, look in sources(layout, saved)
    ]
    on_end(stop.set)
    PeriodicTask("machines", partial(_step, clouds), PERIOD_S, first_in_s=PERIOD_S).run(stop)
    return 0


def _step(clouds: Iterable[tuple[Runner | Hypervisor, Look]]) -> None:
    for runner, look in clouds:
        try:
            runner.step(look(), time.time())
        except (SlurmElasticError, OSError):
            # If the API does not answer, we know nothing about the machines and leave them alone.
            log.exception("step failed")


def _runner_of(
    layout: Layout, saved: Saved, never: Iterable[str], prefix: str
) -> Runner | Hypervisor:
    """Return the runner for a cloud: virtual machines for EC2 with an image, else processes."""
    spec = saved.spec
    if spec.image and prefix == EC2_PREFIX:
        # Imported here, because most sandboxes do not need it.
        from slurm_elastic.sandbox.hypervisor import Hypervisor

        endpoint = f"http://127.0.0.1:{saved.ports.ec2}"
        return Hypervisor(layout, Path(spec.image), control.control(saved), endpoint)
    return Runner(layout, spec.boot_seconds, never, prefix, spec.dead_man, spec.check)


if __name__ == "__main__":
    sys.exit(main())
