"""The rows about reserved capacity paid now. Pure, except for the head's time zone."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from slurm_elastic.base.local_time import minute
from slurm_elastic.base.units import money
from slurm_elastic.config import Config
from slurm_elastic.config.pool_rules import paid_reservations
from slurm_elastic.model.memory import Machine
from slurm_elastic.policies.money.reserved_use import ReservedUse, reserved_use


class ReservedView(
    Struct, frozen=True, kw_only=True, rename={"begins": "begins_at", "ends": "ends_at"}
):
    """A reservation: ``used`` of ``count`` machines of ``instance_type``.

    Of a savings plan ``used_per_hour`` of ``commit_per_hour`` dollars count instead. ``text``: the
    same as a line. ``begins``, ``ends``: Unix time.
    """

    cloud: str
    name: str
    kind: str
    instance_type: str
    used: int
    count: int
    begins: float
    ends: float
    text: str
    used_per_hour: float = 0.0
    commit_per_hour: float = 0.0


def reserved_views(
    config: Config, machines: Iterable[Machine], now: float
) -> tuple[ReservedView, ...]:
    """A row for each reservation paid now."""
    uses = reserved_use(paid_reservations(config, now), machines)
    return tuple(map(_view, uses))


def _view(use: ReservedUse) -> ReservedView:
    held = use.held
    count = f"{use.machines} of {held.count} {held.instance_type}"
    if held.is_savings_plan:
        count = f"{money(use.dollars)} of {money(held.commit)}/h"
    return ReservedView(
        cloud=held.cloud,
        name=held.name,
        kind=str(held.kind),
        instance_type=held.instance_type,
        used=use.machines,
        count=held.count,
        begins=held.begins_at,
        ends=held.ends_at,
        text=f"{held.name} of {held.cloud}: {count} in use until {minute(held.ends_at)}",
        used_per_hour=use.dollars,
        commit_per_hour=held.commit,
    )
