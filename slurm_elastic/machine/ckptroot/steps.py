"""Find the steps of a job (srun), which run beside its batch script.

Each step is the child of a slurmstepd of its own, so it is not in an image of the script's
processes. Such an image would contain half a job.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from .caller import program_of
from .proc import processes, status_of
from .site import HelperSite, RequestRefused

_TITLE = re.compile(rb"slurmstepd: \[(?:StepId=)?(\d+)(?:\+\d+)?\.([\w+]+)\]")
"""The title in Slurm 22.05 to 26.05: 12.0, 12.batch, 12.interactive; 12+1.0 or 12.0+1 for a
component of a heterogeneous job.
"""
_OWN = (b"batch", b"extern")
"""The script itself, and the step for logins by ssh."""


def check(site: HelperSite, job: int, tasks: Iterable[int], method: str) -> None:
    """RequestRefused if a step of the job runs on this node, or if a task is srun.

    The step of such an srun may still wait for resources or for slurmd.
    """
    step = next(running(site, job), "")
    if any(os.path.basename(program_of(pid)) == "srun" for pid in tasks):
        step = step or "one that begins or ends"
    if step:
        raise RequestRefused(f"it runs a step (srun), which {method} does not save: {step}")


def running(site: HelperSite, job: int) -> Iterator[str]:
    """Yield the job's steps on this node except its script, such as 12.0."""
    stepd = os.path.realpath(site.slurmstepd)
    for pid in processes():
        # The real uid: slurmstepd sometimes sets its effective uid to the job's user.
        is_roots = status_of(pid).get("Uid", "").split()[:1] == ["0"]
        if program_of(pid) != stepd or not is_roots:
            continue
        with contextlib.suppress(OSError):
            title = _TITLE.match(Path(f"/proc/{pid}/cmdline").read_bytes())
            if title and int(title[1]) == job and title[2] not in _OWN:
                yield f"{job}.{title[2].decode()}"
