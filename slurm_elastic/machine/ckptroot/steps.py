"""The steps of a job (srun), which run beside its batch script: each is the child of a slurmstepd
of its own, and so in no image of the script's processes. That would be half of the job.
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
"""As 22.05 to 26.05 write it: 12.0, 12.batch, 12.interactive; 12+1.0 or 12.0+1 of one part of a
heterogeneous job.
"""
_OWN = (b"batch", b"extern")
"""The script itself, and the step that holds what comes by ssh."""


def check(site: Site, job: int, tasks: Iterable[int], method: str) -> None:
    """Refused while a step of the job runs on this node, or one of its ``tasks`` is the srun of a
    step: that may still be waiting for its turn, or for slurmd.
    """
    found = next(running(site, job), "")
    if any(os.path.basename(program_of(pid)) == "srun" for pid in tasks):
        found = found or "one that begins or ends"
    if found:
        raise Refused(f"it runs a step (srun), which {method} does not save: {found}")


def running(site: Site, job: int) -> Iterator[str]:
    """The steps of a job on this node that are not its script, as 12.0."""
    stepd = os.path.realpath(site.slurmstepd)
    for pid in processes():
        # By its real user: slurmstepd takes on the job's user's rights now and then.
        is_roots = status_of(pid).get("Uid", "").split()[:1] == ["0"]
        if program_of(pid) == stepd and is_roots:
            found = _TITLE.match(_title(pid))
            if found and int(found[1]) == job and found[2] not in _OWN:
                yield f"{job}.{found[2].decode()}"


def _title(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""
