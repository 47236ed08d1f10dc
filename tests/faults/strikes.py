"""What goes wrong in the fault matrix: its words, how often, and the sandbox's own faults."""

from __future__ import annotations

from providers.contract import UUID

from slurm_elastic.config import Cluster
from slurm_elastic.sandbox.ec2_faults import Fault, FaultKind

CLUSTER = Cluster(name="site", uuid=UUID)
TIMEOUT = 6.0
"""Seconds; of a busy machine even an emulator takes its time."""
SHORT = {"throttle": 3, "internal": 3, "auth": 2}
OF_LISTS = {
    "throttle": 6,
    "internal": 6,
    "auth": 6,
    "reset before": 6,
    "reset after": 6,
    "wrong data": 6,
}
"""How many calls it strikes, once where it is not here: lists more often than a machine may be
missing. A refusal stands until it is healed.
"""
FOR_GOOD = ("capacity", "quota")
KINDS = {
    "capacity": FaultKind.CAPACITY,
    "quota": FaultKind.QUOTA,
    "throttle": FaultKind.THROTTLE,
    "auth": FaultKind.AUTH,
    "internal": FaultKind.INTERNAL,
    "reset before": FaultKind.RESET_BEFORE,
    "reset after": FaultKind.RESET_AFTER,
    "time-out": FaultKind.TIMEOUT_AFTER,
    "slow answer": FaultKind.SLOW,
    "wrong data": FaultKind.GARBAGE,
}


def times(fault: str, call: str) -> int:
    return (OF_LISTS if call == "list" else SHORT).get(fault, 1)


def emulated(fault: str, call: str, action: str) -> Fault | None:
    """The sandbox's fault; None where no call but a launch is refused so."""
    if fault in FOR_GOOD and call != "launch":
        return None
    seconds = 0.2 if fault == "slow answer" else 2 * TIMEOUT
    count = None if fault in FOR_GOOD else times(fault, call)
    return Fault(kind=KINDS[fault], action=action, count=count, seconds=seconds)
