"""Slurm's commands as scripts that answer at once: what a caller costs, without slurmctld.

``sinfo --json`` and ``scontrol show nodes`` answer in the form and length of Slurm 22.05's, with
one record a node; updates are counted and not carried out.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from slurm_elastic.model.slurm import NOWHERE

_SCRIPT = """\
#!/bin/sh
echo "${0##*/} $1" >>DIR/calls
case "$1 $2" in
--version*) echo "slurm-wlm 22.05.8" ;;
"show nodes") exec cat DIR/nodes.txt ;;
"show config") echo "BOOT_TIME = 2026-01-01T00:00:00" ;;
*--json*) exec cat DIR/nodes.json ;;
esac
"""
_SUDO = '#!/bin/sh\nexec "$@"\n'

_JSON_NODE: dict[str, object] = {
    "architecture": "",
    "burstbuffer_network_address": "",
    "boards": 1,
    "boot_time": 0,
    "comment": "",
    "cores": 1,
    "cpu_binding": 0,
    "cpu_load": 4294967294,
    "extra": "",
    "free_memory": -2,
    "cpus": 2,
    "last_busy": 0,
    "features": "",
    "active_features": "",
    "gres": "",
    "gres_drained": "N/A",
    "gres_used": "",
    "mcs_label": "",
    "next_state_after_reboot": "invalid",
    "next_state_after_reboot_flags": [],
    "operating_system": "",
    "owner": None,
    "partitions": ["aws"],
    "port": 6818,
    "real_memory": 3840,
    "reason": "",
    "reason_changed_at": 0,
    "reason_set_by_user": None,
    "slurmd_start_time": 0,
    "sockets": 2,
    "threads": 1,
    "temporary_disk": 0,
    "weight": 1000,
    "tres": "cpu=2,mem=3840M,billing=2",
    "slurmd_version": "",
    "alloc_memory": 0,
    "alloc_cpus": 2,
    "idle_cpus": 0,
    "tres_used": "cpu=2",
    "tres_weighted": 2.0,
}

_TEXT_NODE = """\
NodeName={name} CoresPerSocket=1
   CPUAlloc=2 CPUEfctv=2 CPUTot=2 CPULoad=N/A
   AvailableFeatures=(null)
   ActiveFeatures=(null)
   Gres=(null)
   NodeAddr={name} NodeHostName={name}
   RealMemory=3840 AllocMem=0 FreeMem=N/A Sockets=2 Boards=1
   State=ALLOCATED+CLOUD+NOT_RESPONDING+POWERING_UP ThreadsPerCore=1 TmpDisk=0 Weight=1000 Owner=N/A MCS_label=N/A
   Partitions=aws
   BootTime=None SlurmdStartTime=None
   LastBusyTime=Unknown
   CfgTRES=cpu=2,mem=3840M,billing=2
   AllocTRES=cpu=2
   CapWatts=n/a
   CurrentWatts=0 AveWatts=0
   ExtSensorsJoules=n/s ExtSensorsWatts=0 ExtSensorsTemp=n/s

"""  # noqa: E501


def json_node(name: str, state: str, flags: Sequence[str]) -> dict[str, object]:
    """A record of ``sinfo --json``. The address is that of our fragment for 22.05."""
    names = {"name": name, "address": NOWHERE, "hostname": name}
    return {**_JSON_NODE, **names, "state": state, "state_flags": list(flags)}


class StubSlurm:
    """``directory/bin`` has the commands, and a ``sudo`` for a peer that wants one."""

    def __init__(self, directory: Path) -> None:
        self._dir = directory
        self.bin = directory / "bin"
        self.bin.mkdir(parents=True)
        script = _SCRIPT.replace("DIR", str(directory))
        texts = {"sinfo": script, "scontrol": script, "squeue": script, "sudo": _SUDO}
        for name, text in texts.items():
            (self.bin / name).write_text(text)
            (self.bin / name).chmod(0o755)

    def show(self, nodes: Sequence[str], *, powering_up: bool) -> None:
        """Set the commands' answers from now on."""
        state = ("allocated", ["CLOUD", "NOT_RESPONDING", "POWERING_UP"])
        if not powering_up:
            state = ("idle", ["CLOUD", "POWERED_DOWN"])
        records = [json_node(n, *state) for n in nodes]
        answer = {"meta": {}, "errors": [], "nodes": records}
        self._replace("nodes.json", json.dumps(answer, indent=1))
        self._replace("nodes.txt", "".join(_TEXT_NODE.format(name=n) for n in nodes))

    def calls(self, command: str) -> int:
        """How often a command was run."""
        try:
            lines = (self._dir / "calls").read_text().splitlines()
        except FileNotFoundError:
            return 0
        return sum(line.split()[0] == command for line in lines)

    def _replace(self, name: str, text: str) -> None:
        draft = self._dir / f"{name}.new"
        draft.write_text(text)
        os.replace(draft, self._dir / name)
