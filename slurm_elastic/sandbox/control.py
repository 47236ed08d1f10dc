"""A rehearsal's calls to the emulated clouds of a sandbox, in the words of its nodes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from slurm_elastic.base.errors import SandboxError
from slurm_elastic.sandbox.ec2_cloud import MachineView
from slurm_elastic.sandbox.ec2_control import Ec2Control
from slurm_elastic.sandbox.ec2_faults import Fault, FaultKind
from slurm_elastic.sandbox.layout import Layout, Saved
from slurm_elastic.sandbox.one_control import OneControl
from slurm_elastic.sandbox.seen import ALIVE, CloudMachine

ONE_PREFIX = "one-"
ONE_RUNNING = (3, 3)


def control(saved: Saved) -> Ec2Control:
    """The control API of the sandbox's EC2."""
    return Ec2Control(f"http://127.0.0.1:{saved.ports.ec2}")


def one_control(saved: Saved) -> OneControl:
    """The control API of the sandbox's OpenNebula."""
    return OneControl(f"http://127.0.0.1:{saved.ports.one}")


def one_seen(one: OneControl) -> Sequence[CloudMachine]:
    """All its machines, as the runner wants to know them: on only while their LCM says RUNNING."""
    return tuple(
        CloudMachine(
            id=f"{ONE_PREFIX}{m.id}",
            node=m.node,
            state="running" if (m.state, m.lcm) == ONE_RUNNING else "off",
            launched=m.launched,
        )
        for m in one.state().machines
    )


def attached(directory: Path) -> Ec2Control:
    """The control API of the sandbox in ``directory``; SandboxError if there is none."""
    return control(Layout(dir=directory.resolve()).read())


def seen(ec2: Ec2Control) -> Sequence[CloudMachine]:
    """All machines, as the runner wants to know them."""
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
    """The living machine of that id or node; SandboxError if there is none."""
    living = [m for m in ec2.state().machines if m.state in ALIVE]
    found = [m for m in living if name in (m.id, m.node)]
    if not found:
        there = ", ".join(sorted(f"{m.node or '?'} ({m.id})" for m in living)) or "none"
        raise SandboxError(f"no emulated machine {name!r} runs; running: {there}")
    return found[0]


def interrupt(ec2: Ec2Control, name: str, notice: float) -> MachineView:
    """Have the spot machine of that id or node taken in ``notice`` seconds."""
    taken = machine(ec2, name)
    ec2.interrupt([taken.id], notice)
    return taken


def fault(kind: str, **where: str | int | None) -> Fault:
    """A fault of that kind; SandboxError names the kinds there are."""
    try:
        chosen = FaultKind(kind)
    except ValueError:
        kinds = ", ".join(FaultKind)
        raise SandboxError(f"there is no failure {kind!r}; there are: {kinds}") from None
    given = {name: value for name, value in where.items() if value is not None}
    return Fault(kind=chosen, **given)  # type: ignore[arg-type]
