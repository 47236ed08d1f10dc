"""The keys by which costs are summed, and the key of each part of a cost."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum

from slurm_elastic.model.cluster import Market
from slurm_elastic.model.memory import ChargedRun
from slurm_elastic.policies.money.account_budgets import NONE
from slurm_elastic.policies.money.cost_split import CostHour
from slurm_elastic.policies.money.reservations import IdleHour
from slurm_elastic.state.ledger import Machine


class By(StrEnum):
    """The keys by which costs are summed."""

    ACCOUNT = "account"
    USER = "user"
    JOB = "job"
    PARTITION = "partition"
    POOL = "pool"
    MARKET = "market"
    CLOUD = "cloud"
    TYPE = "type"
    DAY = "day"


OF_MACHINES = frozenset({By.POOL, By.MARKET, By.CLOUD, By.TYPE, By.DAY})
"""Keys of machines: the unused part of a machine has them, too."""


def key_of_run(by: By, run: ChargedRun) -> str:
    """The key of a job's run; "" if ``by`` is a key of machines."""
    if by is By.JOB:
        return run.label or str(run.job)
    if by is By.ACCOUNT:
        return run.account or NONE
    if by is By.USER:
        return run.user or NONE
    return (run.partition or NONE) if by is By.PARTITION else ""


def key_of_machine(by: By, machine: Machine, hour: CostHour) -> str:
    """The key of a machine; "" if ``by`` is a key of jobs."""
    if by is By.POOL:
        return machine.pool or NONE
    if by is By.MARKET:
        return str(machine.instance.market)
    if by is By.CLOUD:
        return machine.instance.cloud
    if by is By.TYPE:
        return f"{machine.instance.cloud}/{machine.instance.instance_type}"
    return _day(hour.begin) if by is By.DAY else ""


def _day(ms: int) -> str:
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d}"


def pool_of_idle(idle: IdleHour) -> str:
    """The text in place of a pool's name for the unused part of a reservation, which belongs to no
    pool.
    """
    return f"(reservation {idle.held.name})"


def key_of_idle(by: By, idle: IdleHour) -> str:
    """The key of the unused part of a reservation; "" if ``by`` is a key of jobs."""
    held = idle.held
    if by is By.POOL:
        return pool_of_idle(idle)
    if by is By.MARKET:
        return str(Market.RESERVED)
    if by is By.CLOUD:
        return held.cloud
    if by is By.TYPE:
        return f"{held.cloud}/{held.instance_type or held.kind}"
    return _day(idle.begin) if by is By.DAY else ""
