"""Turns each machine of a sandbox's clouds into a slurmd on this host, and powers it off with it.

``python -m slurm_elastic.sandbox.runner DIR``, as root. A machine that is terminated before its
boot time has passed never gets a slurmd.
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
from slurm_elastic.base.periodic import PeriodicTask
from slurm_elastic.base.signals import on_end
from slurm_elastic.machine.local.local_processes import SlurmdSettings
from slurm_elastic.sandbox import control, machine_agent
from slurm_elastic.sandbox.layout import Layout, Saved
from slurm_elastic.sandbox.processes import SlurmdMachines
from slurm_elastic.sandbox.seen import ALIVE, CloudMachine
from slurm_elastic.sandbox.spec import cloud_of

if TYPE_CHECKING:
    from slurm_elastic.sandbox.hypervisor import Hypervisor

log = logging.getLogger(__name__)

Look = Callable[[], Iterable[CloudMachine]]
PERIOD = 0.25
EC2_PREFIX = "i-"


class Runner:
    """One step at a time: ``step`` is given what a cloud has, and makes it so.

    ``prefix`` is what the ids of that cloud's machines begin with: others are left alone. With
    ``dead_man`` each machine has the agent, whose heartbeat_timeout (s) that is; its gate runs
    ``check``.
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
                # We were killed between the record and the start: begin this machine anew.
                self._machines.power_off(name)

    def step(self, seen: Iterable[CloudMachine], now: float) -> None:
        """Power off what is gone, start what has booted."""
        alive = {m.id: m for m in seen if m.state in ALIVE}
        known = set(self._machines.ids())
        for gone in sorted(name for name in known - alive.keys() if name.startswith(self._prefix)):
            self._machines.power_off(gone)
        for machine in alive.values():
            # One whose slurmd died by itself stays dead, as a crashed machine does: reconcile has
            # to find it.
            if machine.id not in known and self._booted(machine, now):
                settings = self._layout.machine(machine.id, machine.node)
                self._boot_up(settings, machine.generation)

    def _boot_up(self, machine: SlurmdSettings, launch: str) -> None:
        if self._dead_man is None:
            self._machines.start(machine)
            return
        if machine.id in self._refused:
            return
        if not machine_agent.prepare(self._layout, machine, self._dead_man, self._check, launch):
            self._refused.add(machine.id)
            return
        self._machines.start(machine)
        machine_agent.start(self._layout, machine)

    def _booted(self, machine: CloudMachine, now: float) -> bool:
        if not machine.node or machine.node in self._never:
            return False
        return now >= machine.launched + self._boot


def main(argv: list[str] | None = None) -> int:
    """Run until SIGTERM; the machines go on."""
    (directory,) = sys.argv[1:] if argv is None else argv
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    layout = Layout(dir=Path(directory))
    saved = layout.read()
    never = expand(saved.spec.never_boot) if saved.spec.never_boot else ()
    stop = threading.Event()
    clouds = [
        (_powered(layout, saved, never, prefix), look) for prefix, look in _clouds(layout, saved)
    ]
    on_end(stop.set)
    PeriodicTask("machines", partial(_step, clouds), PERIOD, first_in_s=PERIOD).run(stop)
    return 0


def _step(clouds: Iterable[tuple[Runner | Hypervisor, Look]]) -> None:
    for runner, look in clouds:
        try:
            runner.step(look(), time.time())
        except (SlurmElasticError, OSError):
            # An API that does not answer says nothing about machines: they stay as they are.
            log.exception("step failed")


def _powered(
    layout: Layout, saved: Saved, never: Iterable[str], prefix: str
) -> Runner | Hypervisor:
    """Who has the machines of the cloud whose ids begin so."""
    spec = saved.spec
    if spec.image and prefix == EC2_PREFIX:
        # Here and not above: most sandboxes do without.
        from slurm_elastic.sandbox.hypervisor import Hypervisor

        endpoint = f"http://127.0.0.1:{saved.ports.ec2}"
        return Hypervisor(layout, Path(spec.image), control.control(saved), endpoint)
    return Runner(layout, spec.boot_seconds, never, prefix, spec.dead_man, spec.check)


def _clouds(layout: Layout, saved: Saved) -> Iterable[tuple[str, Look]]:
    """The clouds of a sandbox: how their machines' ids begin, and how to look at them."""
    if cloud_of(saved.spec, "aws"):
        ec2 = control.control(saved)
        yield EC2_PREFIX, lambda: control.seen(ec2)
    if cloud_of(saved.spec, "opennebula"):
        one = control.one_control(saved)
        yield control.ONE_PREFIX, lambda: control.one_seen(one)
    if cloud_of(saved.spec, "openstack"):
        from slurm_elastic.sandbox import stack

        yield from stack.sources(layout)


if __name__ == "__main__":
    sys.exit(main())
