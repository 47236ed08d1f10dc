"""Why Slurm itself takes a node out of service: its words, whose fault it is, the remedy. Pure.

The words are those of 22.05 to 26.05. slurmctld joins several with a comma.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum

from msgspec import Struct


class Strike(Enum):
    """The party that a failure counts against."""

    POOL = "pool"
    MACHINE = "machine"


class NodeTrouble(Struct, frozen=True):
    """One row: ``words`` is a pattern of Slurm's whole text, ``remedy`` what a person can do."""

    words: str
    why: str
    strike: Strike
    remedy: Callable[[re.Match[str]], str]


GIVEN_UP = ("ResumeTimeout reached", "Not responding")
"""How slurmctld's reasons begin for a node that it sets DOWN because no machine answers there."""
ROUND = 100
"""MiB to which a value of ``real_memory`` is rounded down, as one machine reports a little less
than the next.
"""


def _memory(match: re.Match[str]) -> str:
    reported = int(match["reported"] or 0)
    if not reported:
        return "set the pool's `real_memory` to less than `slurmd -C` prints on a machine"
    value = reported // ROUND * ROUND if reported > ROUND else reported
    return f"set `real_memory: {value}` in the pool (slurmd reports {reported} MiB)"


def _gres(found: re.Match[str]) -> str:
    there = f": the machines have {found['there']}" if found["there"] else ""
    return f"set the pool's `gres` to what its machines have, or repair their driver{there}"


def _says(text: str) -> Callable[[re.Match[str]], str]:
    return lambda _found: text


_CPUS = _says("set the pool's `cpus` to what `slurmd -C` prints on a machine of its types")
_LOGS = _says("look into slurmd's log on a machine of the pool")
_PROLOG = _says("the site's Prolog fails on these machines: slurmd's log there says how")

CAUSES: tuple[NodeTrouble, ...] = (
    NodeTrouble(
        r"Low RealMemory(?: \(reported:(?P<reported>\d+) < .*?(?:of )?configured:\d+\))?",
        "the machine has less memory than its pool promises", Strike.POOL, _memory,
    ),
    NodeTrouble(
        r"Low socket\*core\*thread count|Low socket\*core count|Low CPUs|CoreSpec differ",
        "the machine has fewer CPUs than its pool promises", Strike.POOL, _CPUS,
    ),
    NodeTrouble(
        r"Low TmpDisk(?: \(.*?\))?",
        "the machine has less temporary disk than slurm.conf promises", Strike.POOL,
        _says("lower TmpDisk of these nodes in slurm.conf, or give the image a larger disk"),
    ),
    NodeTrouble(
        r"gres/\S+ count (?:reported lower than configured|too low)"
        r"(?: \((?P<there>\d+) < \d+\))?",
        "the machine has fewer devices than its pool promises", Strike.POOL, _gres,
    ),
    NodeTrouble(
        r"Could not unpack gres data",
        "slurmctld cannot read what the machine says of its devices", Strike.POOL,
        _says("install the head node's release of Slurm in the image"),
    ),
    NodeTrouble(
        r"Prolog error|Job env setup error",
        "the site's Prolog failed on the machine", Strike.POOL, _PROLOG,
    ),
    NodeTrouble(
        r"Prolog/Epilog failure|Epilog error",
        "the site's Epilog failed on the machine", Strike.MACHINE, _LOGS,
    ),
    NodeTrouble(
        r"slurm-elastic gate: .*",
        "the site's check of the machine failed after a job", Strike.POOL,
        _says("run join.check on a machine of the pool"),
    ),
    NodeTrouble(
        r"SlurmdSpoolDir is full",
        "the machine's disk is full", Strike.MACHINE,
        _says("give the image a larger disk, or clean up what jobs leave there"),
    ),
    NodeTrouble(
        r"Node unexpectedly rebooted",
        "the machine was started anew, which ended its jobs", Strike.MACHINE, _says(""),
    ),
    NodeTrouble(
        # The words of the person who ordered the reboot stand before Slurm's.
        r"(?:.* : )?reboot timed out",
        "the machine did not come back from a reboot", Strike.MACHINE, _says(""),
    ),
    NodeTrouble(
        r"Kill task failed",
        "a job's processes could not be ended", Strike.MACHINE, _says(""),
    ),
    NodeTrouble(
        r"batch job complete failure|Duplicate jobid",
        "slurmd could not start a job or end it", Strike.MACHINE, _LOGS,
    ),
)  # fmt: skip
