"""Runs the agent (programs/agent.py) of an emulated machine, and stands in for its ``shutdown``.

``python -m slurm_elastic.sandbox.machine_agent DIR ID`` is the agent's stop command. It makes the
emulated cloud treat the machine as powered off by itself.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import slurm_elastic
from slurm_elastic.machine.local import local_processes
from slurm_elastic.sandbox import control, sources
from slurm_elastic.sandbox.layout import Layout
from slurm_elastic.sandbox.seen import CloudMachine
from slurm_elastic.sandbox.spec import cloud_of

_PROGRAM = Path(slurm_elastic.__file__).parent / "machine" / "programs" / "agent.py"


def prepare(
    layout: Layout,
    machine: local_processes.SlurmdSettings,
    heartbeat_timeout: float,
    check: str,
    seen: CloudMachine,
) -> bool:
    """Write the agent's settings, and run its check. Returns True if slurmd may start."""
    settings = Path(machine.directory) / "agent"
    settings.parent.mkdir(parents=True, exist_ok=True)
    values = {
        "node": machine.node,
        "heartbeat_timeout": f"{heartbeat_timeout:g}",
        "stop_command": f"{sys.executable} -m {__spec__.name} {layout.dir} {machine.id}",
        # All machines share this host, and so its processes.
        "workdir": machine.directory,
        "check": check,
        "generation": seen.generation,
        "metadata": seen.metadata,
    }
    settings.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
    command = [sys.executable, "-I", str(_PROGRAM), str(settings), "check"]
    return subprocess.run(command, env=layout.daemon_env(), check=False).returncode == 0


def start(layout: Layout, machine: local_processes.SlurmdSettings) -> None:
    """Start the agent beside the machine's slurmd. It ends with the machine."""
    settings = Path(machine.directory) / "agent"
    local_processes.spawn(
        [sys.executable, "-I", str(_PROGRAM), str(settings)],
        layout.daemon_env() | {local_processes.MARKER: machine.directory},
        log=str(layout.log / f"agent-{machine.node}.out"),
        directory=machine.directory,
    )


def shut_down(layout: Layout, name: str) -> None:
    """Let the machine with that id power itself off in the emulated cloud."""
    saved = layout.read()
    if name.startswith(control.ONE_PREFIX):
        control.one_control(saved).shut_down([int(name.removeprefix(control.ONE_PREFIX))])
    elif not sources.end(layout, name) and cloud_of(saved.spec, "aws"):
        control.control(saved).shut_down([name])


if __name__ == "__main__":
    shut_down(Layout(dir=Path(sys.argv[1])), sys.argv[2])
