"""Faults of the emulated EC2: which calls fail, how, at which stage and how often."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from enum import StrEnum
from fnmatch import fnmatchcase
from threading import Event, Lock
from typing import ClassVar

from msgspec import Struct
from msgspec.structs import replace

from slurm_elastic.base.errors import SandboxError
from slurm_elastic.base.guards import Guarded, GuardedBy

log = logging.getLogger(__name__)


class FaultKind(StrEnum):
    """The ways in which a call fails. ``reset`` drops the connection; ``timeout`` does not answer
    for ``seconds``; ``slow`` answers after ``seconds``. Kinds with ``after``, and ``garbage``,
    carry the call out before they fail. ``garbage`` answers with an HTML page, as a proxy may.
    """

    CAPACITY = "capacity"
    QUOTA = "quota"
    AUTH = "auth"
    THROTTLE = "throttle"
    INTERNAL = "internal"
    INTERNAL_AFTER = "internal-after"
    RESET_BEFORE = "reset-before"
    RESET_AFTER = "reset-after"
    TIMEOUT_BEFORE = "timeout-before"
    TIMEOUT_AFTER = "timeout-after"
    SLOW = "slow"
    GARBAGE = "garbage"


DELAYED = (FaultKind.TIMEOUT_BEFORE, FaultKind.TIMEOUT_AFTER, FaultKind.SLOW)
"""The kinds that wait for ``Fault.seconds``."""
PAGE = b"<html><body>Sign in to continue</body></html>"
"""The answer of ``garbage``."""


class Stage(StrEnum):
    """The stage of a call at which a fault strikes. EC2 throttles before it looks up a client
    token, and lacks capacity after it.
    """

    ENTRY = "entry"
    STOCK = "stock"
    ANSWER = "answer"


_STAGES = {
    FaultKind.CAPACITY: Stage.STOCK,
    FaultKind.QUOTA: Stage.STOCK,
    FaultKind.AUTH: Stage.ENTRY,
    FaultKind.THROTTLE: Stage.ENTRY,
    FaultKind.INTERNAL: Stage.ENTRY,
    FaultKind.INTERNAL_AFTER: Stage.ANSWER,
    FaultKind.RESET_BEFORE: Stage.ENTRY,
    FaultKind.TIMEOUT_BEFORE: Stage.ENTRY,
    FaultKind.RESET_AFTER: Stage.ANSWER,
    FaultKind.TIMEOUT_AFTER: Stage.ANSWER,
    FaultKind.SLOW: Stage.ENTRY,
    FaultKind.GARBAGE: Stage.ANSWER,
}


class Ec2Error(Struct, frozen=True):
    """An error of EC2: its code, HTTP status and message."""

    code: str
    status: int
    message: str


_INTERNAL = Ec2Error("InternalError", 500, "An internal error has occurred")
_ERRORS = {
    FaultKind.CAPACITY: Ec2Error(
        "InsufficientInstanceCapacity",
        500,
        "There is no Spot or On-Demand capacity available that matches your request.",
    ),
    FaultKind.QUOTA: Ec2Error(
        "VcpuLimitExceeded", 400, "You have requested more vCPU capacity than your limit allows."
    ),
    FaultKind.AUTH: Ec2Error(
        "AuthFailure", 401, "AWS was not able to validate the provided access credentials"
    ),
    FaultKind.THROTTLE: Ec2Error("RequestLimitExceeded", 503, "Request limit exceeded."),
    FaultKind.INTERNAL: _INTERNAL,
    FaultKind.INTERNAL_AFTER: _INTERNAL,
}
_SPOT_QUOTA = Ec2Error("MaxSpotInstanceCountExceeded", 400, "Max spot instance count exceeded")


class Fault(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A fault. ``action``, ``market``, ``type`` and ``zone`` are shell patterns.

    ``count``: the number of calls that it strikes (None: all, until cleared); ``seconds``: how long
    a time-out lasts; ``code``: the error code, if not the usual code of the kind.
    """

    kind: FaultKind
    action: str = "*"
    market: str = "*"
    type: str = "*"
    zone: str = "*"
    count: int | None = None
    seconds: float = 60.0
    code: str | None = None

    def error(self, market: str) -> Ec2Error | None:
        """Return the error that a call gets; None if it gets no error (reset, time-out)."""
        error = _ERRORS.get(self.kind)
        if self.kind is FaultKind.QUOTA and market == "spot":
            error = _SPOT_QUOTA
        if error and self.code:
            error = replace(error, code=self.code)
        return error


class FaultTarget(Struct, frozen=True, kw_only=True):
    """The properties of a call by which faults and stock select it."""

    action: str
    market: str = ""
    type: str = ""
    zone: str = ""


class Faults:
    """The active faults. The oldest matching fault strikes a call. Thread-safe."""

    guarded_by: ClassVar[GuardedBy] = {"_lock": Guarded("_faults")}

    def __init__(self) -> None:
        self._faults: list[Fault] = []
        self._lock = Lock()

    def add(self, fault: Fault) -> None:
        """Activate a fault. Raises SandboxError if its count is less than 1."""
        if fault.count is not None and fault.count < 1:
            raise SandboxError(f"a fault cannot strike {fault.count} times")
        with self._lock:
            self._faults.append(fault)

    def clear(self) -> None:
        """Remove all faults."""
        with self._lock:
            self._faults.clear()

    def standing(self) -> tuple[Fault, ...]:
        """Return the active faults, each with its remaining count."""
        with self._lock:
            return tuple(self._faults)

    def take(self, target: FaultTarget, stage: Stage) -> Fault | None:
        """Return the fault that strikes this call at this stage, and count it down; None if
        none.
        """
        with self._lock:
            for index, fault in enumerate(self._faults):
                if _STAGES[fault.kind] is stage and _matches(fault, target):
                    self._count_down(index, fault)
                    return fault
        return None

    def strike(self, target: FaultTarget, stage: Stage, stopped: Event) -> Fault | None:
        """Take a fault, log it, and wait for its delay or until the cloud is ``stopped``. Returns
        None if there is no fault, or if the delay was all of it.
        """
        fault = self.take(target, stage)
        if fault is None:
            return None
        log.info("fault action=%s kind=%s", target.action, fault.kind)
        if fault.kind in DELAYED:
            stopped.wait(fault.seconds)
        return None if fault.kind is FaultKind.SLOW else fault

    def _count_down(self, index: int, fault: Fault) -> None:
        if fault.count is None:
            return
        if fault.count == 1:
            del self._faults[index]
        else:
            self._faults[index] = replace(fault, count=fault.count - 1)


class Stock:
    """The cloud's machines by pattern ``type/zone/market``. Without a matching pattern there is no
    limit.
    """

    def __init__(self) -> None:
        self.limits: dict[str, int] = {}

    def limit(self, pattern: str, count: int | None) -> None:
        """Limit the machines that match the pattern to ``count`` in total; None: no limit. Raises
        SandboxError.
        """
        if pattern.count("/") != 2:
            raise SandboxError(f"stock pattern {pattern!r} is not of the form type/zone/market")
        if count is None:
            self.limits.pop(pattern, None)
        elif count < 0:
            raise SandboxError(f"stock of {pattern!r} cannot be {count}")
        else:
            self.limits[pattern] = count

    def free(self, target: FaultTarget, alive: Iterable[FaultTarget]) -> int | None:
        """Return how many more machines are available beside those ``alive``; None: any number."""
        bounds = {p: n for p, n in self.limits.items() if fnmatchcase(_kind(target), p)}
        if not bounds:
            return None
        kinds = [_kind(machine) for machine in alive]
        remaining = [
            n - sum(fnmatchcase(k, pattern) for k in kinds) for pattern, n in bounds.items()
        ]
        return max(min(remaining), 0)


def _kind(target: FaultTarget) -> str:
    return f"{target.type}/{target.zone}/{target.market}"


def _matches(fault: Fault, target: FaultTarget) -> bool:
    return (
        fnmatchcase(target.action, fault.action)
        and fnmatchcase(target.market, fault.market)
        and fnmatchcase(target.type, fault.type)
        and fnmatchcase(target.zone, fault.zone)
    )
