"""Slurm's reasons for taking a node out of service, each with its meaning, whether it counts
against the pool or the machine, and its remedy. Pure.

The reasons are from Slurm 22.05 to 26.05. slurmctld joins several reasons with a comma.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum

from msgspec import Struct


class Strike(Enum):
    """Whether a failure counts against the pool or only against the machine."""

    POOL = "pool"
    MACHINE = "machine"


class NodeTrouble(Struct, frozen=True):
    """One row. ``pattern``: a pattern for Slurm's whole text. ``meaning``: its meaning. ``remedy``:
    returns the action for a person, "" if none is needed.
    """

    pattern: str
    meaning: str
    strike: Strike
    remedy: Callable[[re.Match[str]], str]


GIVEN_UP = ("ResumeTimeout reached", "Not responding")
"""The begins of slurmctld's reasons for nodes that it sets DOWN because no machine answers."""
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


def _gres(match: re.Match[str]) -> str:
    device_count = f": the machines have {match['there']}" if match["there"] else ""
    return f"set the pool's `gres` to what its machines have, or repair their driver{device_count}"


def _fixed_text(text: str) -> Callable[[re.Match[str]], str]:
    return lambda _found: text


_CPUS = _fixed_text("set the pool's `cpus` to what `slurmd -C` prints on a machine of its types")
_LOGS = _fixed_text("look into slurmd's log on a machine of the pool")
_PROLOG = _fixed_text("the site's Prolog fails on these machines: slurmd's log there says how")

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
        _fixed_text("lower TmpDisk of these nodes in slurm.conf, or give the image a larger disk"),
    ),
    NodeTrouble(
        r"gres/\S+ count (?:reported lower than configured|too low)"
        r"(?: \((?P<there>\d+) < \d+\))?",
        "the machine has fewer devices than its pool promises", Strike.POOL, _gres,
    ),
    NodeTrouble(
        r"Could not unpack gres data",
        "slurmctld cannot read what the machine says of its devices", Strike.POOL,
        _fixed_text("install the head node's release of Slurm in the image"),
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
        _fixed_text("run join.check on a machine of the pool"),
    ),
    NodeTrouble(
        r"SlurmdSpoolDir is full",
        "the machine's disk is full", Strike.MACHINE,
        _fixed_text("give the image a larger disk, or clean up what jobs leave there"),
    ),
    NodeTrouble(
        r"Node unexpectedly rebooted",
        "the machine rebooted, which ended its jobs", Strike.MACHINE, _fixed_text(""),
    ),
    NodeTrouble(
        # The words of the person who ordered the reboot stand before Slurm's.
        r"(?:.* : )?reboot timed out",
        "the machine did not come back from a reboot", Strike.MACHINE, _fixed_text(""),
    ),
    NodeTrouble(
        r"Kill task failed",
        "a job's processes could not be ended", Strike.MACHINE, _fixed_text(""),
    ),
    NodeTrouble(
        r"batch job complete failure|Duplicate jobid",
        "slurmd could not start a job or end it", Strike.MACHINE, _LOGS,
    ),
)  # fmt: skip
