"""Faults of the emulated EC2: what goes wrong, when, for which calls and how often."""

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
    """The ways in which a call fails. ``reset`` drops the connection, ``timeout`` says nothing for
    ``seconds``. ``slow`` answers after ``seconds``; ``garbage`` carries the call out and answers
    with a page that is no answer, as a proxy in between may. ``internal-after`` carries it out,
    too.
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
"""Kinds that wait for ``Fault.seconds``."""
PAGE = b"<html><body>Sign in to continue</body></html>"
"""The answer of ``garbage``."""


class Stage(StrEnum):
    """Where in a call a fault strikes: EC2 throttles before it looks a client token up."""

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
    """An error as EC2 answers it: its code, HTTP status and message."""

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
    """One thing to go wrong. ``action``, ``market``, ``type`` and ``zone`` are shell patterns.

    ``count`` is how many calls it strikes (None: all, until cleared); ``seconds`` how long a
    time-out lasts; ``code`` answers another error code of EC2 than the kind's usual one.
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
        """The answer it makes of a call; None where it makes none (reset, time-out)."""
        error = _ERRORS.get(self.kind)
        if self.kind is FaultKind.QUOTA and market == "spot":
            error = _SPOT_QUOTA
        if error and self.code:
            error = replace(error, code=self.code)
        return error


class Target(Struct, frozen=True, kw_only=True):
    """The subject of a call, as far as faults and stock tell calls apart."""

    action: str
    market: str = ""
    type: str = ""
    zone: str = ""


class Faults:
    """The faults in force; the first one added that fits a call strikes it. Thread-safe."""

    guarded_by: ClassVar[GuardedBy] = {"_lock": Guarded("_faults")}

    def __init__(self) -> None:
        self._faults: list[Fault] = []
        self._lock = Lock()

    def add(self, fault: Fault) -> None:
        """Put a fault in force."""
        if fault.count is not None and fault.count < 1:
            raise SandboxError(f"a fault cannot strike {fault.count} times")
        with self._lock:
            self._faults.append(fault)

    def clear(self) -> None:
        """Nothing goes wrong any more."""
        with self._lock:
            self._faults.clear()

    def standing(self) -> tuple[Fault, ...]:
        """The faults in force, with how often each will strike yet."""
        with self._lock:
            return tuple(self._faults)

    def take(self, target: Target, stage: Stage) -> Fault | None:
        """The fault that strikes this call at this stage, counted down."""
        with self._lock:
            for index, fault in enumerate(self._faults):
                if _STAGES[fault.kind] is stage and _fits(fault, target):
                    self._count_down(index, fault)
                    return fault
        return None

    def strike(self, target: Target, stage: Stage, stopped: Event) -> Fault | None:
        """The same, told of, and waited for until the cloud is ``stopped``; None where there is
        nothing else to it.
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
    """How many machines the cloud has, by pattern ``type/zone/market``; no pattern, no bound."""

    def __init__(self) -> None:
        self.limits: dict[str, int] = {}

    def limit(self, pattern: str, count: int | None) -> None:
        """Have ``count`` machines (in all, not more) where the pattern fits; None: no bound."""
        if pattern.count("/") != 2:
            raise SandboxError(f"stock pattern {pattern!r} is not of the form type/zone/market")
        if count is None:
            self.limits.pop(pattern, None)
        elif count < 0:
            raise SandboxError(f"stock of {pattern!r} cannot be {count}")
        else:
            self.limits[pattern] = count

    def free(self, target: Target, alive: Iterable[Target]) -> int | None:
        """How many machines can still be had beside those ``alive``; None: any number."""
        bounds = {p: n for p, n in self.limits.items() if fnmatchcase(_kind(target), p)}
        if not bounds:
            return None
        kinds = [_kind(machine) for machine in alive]
        left = [n - sum(fnmatchcase(k, pattern) for k in kinds) for pattern, n in bounds.items()]
        return max(min(left), 0)


def _kind(target: Target) -> str:
    return f"{target.type}/{target.zone}/{target.market}"


def _fits(fault: Fault, target: Target) -> bool:
    return (
        fnmatchcase(target.action, fault.action)
        and fnmatchcase(target.market, fault.market)
        and fnmatchcase(target.type, fault.type)
        and fnmatchcase(target.zone, fault.zone)
    )
