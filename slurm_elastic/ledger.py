"""The memory of what was intended, launched, paid and decided: one sqlite file in WAL mode.

SCHEMA-DOC
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from slurm_elastic.model import CoolDown, Instance, LaunchSpec, Lease, Offer


class Launch(Struct, frozen=True, kw_only=True):
    """A launch row. ``state``: ``intent`` (call not known to have answered), ``done``, ``failed``.

    ``offer`` is what was asked; ``error`` the cloud's words where it failed.
    """

    generation: str
    request: str
    pool: str
    cloud: str
    nodes: tuple[str, ...]
    jobs: tuple[int, ...]
    offer: Offer
    minimum: int
    state: str
    created: float
    finished: float | None = None
    error: str | None = None


class Machine(Struct, frozen=True, kw_only=True):
    """An instance row: the instance as last seen and what we know beyond the cloud.

    ``misses`` counts consecutive reads of the cloud without it; ``suspending`` is set (time) when
    its termination was decided (intent), ``ended`` when it is known to be gone; ``why`` says why.
    """

    instance: Instance
    pool: str
    jobs: tuple[int, ...] = ()
    last_seen: float = 0.0
    misses: int = 0
    suspending: float | None = None
    ended: float | None = None
    why: str | None = None

    @property
    def lease(self) -> Lease:
        """What is paid for this machine."""
        i = self.instance
        return Lease(instance=i.id, node=i.node, start=i.launched, end=self.ended, price=i.price)


class Hold(Struct, frozen=True, kw_only=True):
    """Nodes that are kept from Slurm (DRAIN with our reason) until ``until``. One row a node."""

    node: str
    pool: str
    reason: str
    since: float
    until: float


class Decision(Struct, frozen=True, kw_only=True):
    """One entry of the decision chain that ``explain`` prints. ``subjects``: node names and
    ``job:ID``; ``detail`` is free-form (ranked and rejected offers, errors)."""

    at: float
    correlation: str
    kind: str
    subjects: tuple[str, ...]
    reason: str
    detail: dict[str, object] | None = None


class Health(Struct, frozen=True, kw_only=True):
    """How a cloud (or ``slurm``) last answered; ``error`` is None when it did."""

    name: str
    checked: float
    error: str | None = None
    code: str | None = None


class Ledger:
    """All methods are one transaction each. sqlite3.Error passes through: a daemon that cannot
    remember must not spend. Safe for several threads and processes (busy time-out 10 s)."""

    def __init__(self, path: Path) -> None: ...
    def close(self) -> None: ...

    # launches
    def intend(self, spec: LaunchSpec, request: str, now: float) -> None: ...
    def launched(self, generation: str, instances: Sequence[Instance], now: float) -> None: ...
    def failed(self, generation: str, error: str, now: float) -> None: ...
    def open_launches(self) -> tuple[Launch, ...]: ...
    def launch(self, generation: str) -> Launch | None: ...
    def launches_for(self, request: str) -> tuple[Launch, ...]: ...

    # machines
    def machines(self, *, ended_since: float | None = None) -> tuple[Machine, ...]: ...
    def observe(self, cloud: str, seen: Sequence[Instance], now: float) -> None: ...
    def adopt(self, instance: Instance, pool: str, now: float) -> None: ...
    def suspending(self, ids: Sequence[str], why: str, now: float) -> None: ...
    def ended(self, ids: Sequence[str], why: str, now: float) -> None: ...

    # cool-downs and holds
    def cool_down(self, cool_down: CoolDown) -> None: ...
    def cool_downs(self, now: float) -> tuple[CoolDown, ...]: ...
    def strikes(self, key: str) -> int: ...
    def clear_cool_down(self, key: str) -> bool: ...
    def hold(self, holds: Sequence[Hold]) -> None: ...
    def holds(self) -> tuple[Hold, ...]: ...
    def release(self, nodes: Sequence[str]) -> None: ...

    # decisions, heartbeat, health
    def record(self, decision: Decision) -> None: ...
    def decisions(self, subject: str, limit: int = 200) -> tuple[Decision, ...]: ...
    def beat(self, service: str, now: float, pid: int) -> None: ...
    def heartbeat(self, service: str) -> tuple[float, int] | None: ...
    def report_health(self, health: Health) -> None: ...
    def health(self) -> tuple[Health, ...]: ...
    def prune(self, before: float) -> int: ...
