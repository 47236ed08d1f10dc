"""The fault matrix's words as the sandbox's own faults."""

from __future__ import annotations

from slurm_elastic.sandbox.ec2.faults import Fault, FaultKind
from slurm_elastic.testing.matrix import FOR_GOOD, times

TIMEOUT = 6.0
"""Seconds; of a busy machine even an emulator takes its time."""
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


def emulated(fault: str, call: str, action: str) -> Fault | None:
    """The sandbox's fault; None where no call but a launch is refused so."""
    if fault in FOR_GOOD and call != "launch":
        return None
    seconds = 0.2 if fault == "slow answer" else 2 * TIMEOUT
    count = None if fault in FOR_GOOD else times(fault, call)
    return Fault(kind=KINDS[fault], action=action, count=count, seconds=seconds)
