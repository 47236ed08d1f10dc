"""Whether processes of a job still run on the machine."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

_TITLE = re.compile(rb"slurmstepd: \[(?:StepId=)?(\d+)(?:\+(\d+))?\.\w+(?:\+(\d+))?\]")
"""The title in Slurm 22.05 to 26.05: 12.0, 12.batch, 12.interactive; 12+1.0 or 12.0+1 for a
component of a heterogeneous job, by the number of its leader.
"""


def has_steps(job: int) -> bool:
    """Whether a slurmstepd of the job runs on this machine."""
    host = _host_of("self")
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            # The host, because containers on this machine may be nodes of their own.
            if (
                entry.name.isdecimal()
                and job in jobs_of((entry / "cmdline").read_bytes())
                and _is_slurmstepd(entry)
                and _host_of(entry.name) == host
            ):
                return True
    return False


def jobs_of(title: bytes) -> frozenset[int]:
    """The jobs that a process with this title may belong to. Empty if it is no slurmstepd.

    Slurm numbers the components of a heterogeneous job one after the other, beginning with the
    leader. Orders name a component by its own number.
    """
    match = _TITLE.match(title)
    if match is None:
        return frozenset()
    leader, job_offset, step_offset = (int(number or 0) for number in match.groups())
    # An offset of the job names the component. With one of the step the number may be either job's.
    return frozenset({leader + job_offset, leader + job_offset + step_offset})


def _is_slurmstepd(process: Path) -> bool:
    """Whether root has started the program: everybody may give a process its title."""
    # Debian's program is slurmstepd-wlm. The real user counts, because slurmstepd sometimes sets
    # its effective uid to the job's user.
    return (
        "slurmstepd" in os.path.basename(os.readlink(process / "exe"))
        and re.search(rb"^Uid:\t0\t", (process / "status").read_bytes(), re.MULTILINE) is not None
    )


def _host_of(pid: str) -> str:
    return os.readlink(f"/proc/{pid}/ns/uts")
