"""Finds the steps of a job (srun), which run beside its batch script. Each is the child of a
slurmstepd of its own, so it is in no image of the script's processes: that would be half a job.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from .caller import program_of
from .proc import processes, status_of
from .site import Refused, Site

_TITLE = re.compile(rb"slurmstepd: \[(?:StepId=)?(\d+)(?:\+\d+)?\.([\w+]+)\]")
"""As Slurm 22.05 to 26.05 write it: 12.0, 12.batch, 12.interactive; 12+1.0 or 12.0+1 for a part of
a heterogeneous job.
"""
_OWN = (b"batch", b"extern")
"""The script itself, and the step for logins by ssh."""


def check(site: Site, job: int, tasks: Iterable[int], method: str) -> None:
    """Refused if a step of the job runs on this node, or one of its ``tasks`` is srun: its step may
    still wait for its turn, or for slurmd.
    """
    found = next(running(site, job), "")
    if any(os.path.basename(program_of(pid)) == "srun" for pid in tasks):
        found = found or "one that begins or ends"
    if found:
        raise Refused(f"it runs a step (srun), which {method} does not save: {found}")


def running(site: Site, job: int) -> Iterator[str]:
    """The steps of a job on this node other than its script, such as 12.0."""
    stepd = os.path.realpath(site.slurmstepd)
    for pid in processes():
        # By its real user, as slurmstepd takes on the rights of the job's user now and then.
        is_roots = status_of(pid).get("Uid", "").split()[:1] == ["0"]
        if program_of(pid) != stepd or not is_roots:
            continue
        with contextlib.suppress(OSError):
            found = _TITLE.match(Path(f"/proc/{pid}/cmdline").read_bytes())
            if found and int(found[1]) == job and found[2] not in _OWN:
                yield f"{job}.{found[2].decode()}"
