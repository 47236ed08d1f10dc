"""Calls to the emulated clouds of a sandbox, by names of nodes, for rehearsals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from slurm_elastic.base.errors import SandboxError
from slurm_elastic.sandbox.ec2.cloud import MachineView
from slurm_elastic.sandbox.ec2.control import Ec2Control
from slurm_elastic.sandbox.ec2.faults import Fault, FaultKind
from slurm_elastic.sandbox.layout import Layout, Saved
from slurm_elastic.sandbox.nebula.control import OneControl
from slurm_elastic.sandbox.seen import ALIVE, CloudMachine

ONE_PREFIX = "one-"
ONE_RUNNING = (3, 3)


def control(saved: Saved) -> Ec2Control:
    """Return the control API of the sandbox's EC2."""
    return Ec2Control(f"http://127.0.0.1:{saved.ports.ec2}")


def one_control(saved: Saved) -> OneControl:
    """Return the control API of the sandbox's OpenNebula."""
    return OneControl(f"http://127.0.0.1:{saved.ports.one}")


def opennebula_machines(opennebula: OneControl) -> Sequence[CloudMachine]:
    """Return all machines of OpenNebula for the runner. They are on only in the LCM state
    RUNNING.
    """
    return tuple(
        CloudMachine(
            id=f"{ONE_PREFIX}{vm.id}",
            node=vm.node,
            state="running" if (vm.state, vm.lcm) == ONE_RUNNING else "off",
            launched=vm.launched,
        )
        for vm in opennebula.state().machines
    )


def attached(directory: Path) -> Ec2Control:
    """Return the control API of the sandbox in ``directory``. Raises SandboxError if there is
    none.
    """
    return control(Layout(dir=directory.resolve()).read())


def seen(ec2: Ec2Control) -> Sequence[CloudMachine]:
    """Return all machines of EC2 for the runner."""
    return tuple(
        CloudMachine(
            id=m.id,
            node=m.node,
            state=m.state,
            launched=m.launched,
            generation=m.tags.get("slurm-elastic:generation", ""),
        )
        for m in ec2.state().machines
    )


def machine(ec2: Ec2Control, name: str) -> MachineView:
    """Return the living machine with that id or node. Raises SandboxError if there is none."""
    living = [m for m in ec2.state().machines if m.state in ALIVE]
    matches = [m for m in living if name in (m.id, m.node)]
    if not matches:
        names = ", ".join(sorted(f"{m.node or '?'} ({m.id})" for m in living)) or "none"
        raise SandboxError(f"no emulated machine {name!r} runs; running: {names}")
    return matches[0]


def interrupt(ec2: Ec2Control, name: str, notice: float) -> MachineView:
    """Make EC2 reclaim the spot machine with that id or node in ``notice`` seconds."""
    target = machine(ec2, name)
    ec2.interrupt([target.id], notice)
    return target


def fault(kind: str, **where: str | int | None) -> Fault:
    """Return a fault of that kind. Raises SandboxError with all kinds if there is no such kind."""
    try:
        chosen = FaultKind(kind)
    except ValueError:
        kinds = ", ".join(FaultKind)
        raise SandboxError(f"unknown failure {kind!r}, expected one of: {kinds}") from None
    patterns = {name: value for name, value in where.items() if value is not None}
    return Fault(kind=chosen, **patterns)  # type: ignore[arg-type]
