"""Causes of the growth policies' decisions, and the figures on which they are based."""

from __future__ import annotations

from msgspec import Struct

from slurm_elastic.base.units import brief, counted, format_moment
from slurm_elastic.model.causes.cause import Cause


class PoolGrowth(Struct, frozen=True, kw_only=True):
    """So many more ``machines`` in a ``pool``. ``reason``: the policy's own words."""

    pool: str
    machines: int
    reason: str

    def __str__(self) -> str:
        return f"{self.machines} more in pool {self.pool}: {self.reason}"


class GrowthPlanned(Cause, frozen=True, kw_only=True):
    """The plan of one look. ``leaving``: how many nodes may go, for a ``leave_reason`` of the
    policy. ``unserved``: why the growth gets fewer machines than the policy wanted, or the policy's
    error.
    """

    starts: tuple[PoolGrowth, ...]
    leaving: int = 0
    leave_reason: str = ""
    unserved: str = ""

    @property
    def words(self) -> str:
        leaves = [f"{self.leaving} may go: {self.leave_reason}"] if self.leaving else []
        unserved = [self.unserved] if self.unserved else []
        return "; ".join([*map(str, self.starts), *leaves, *unserved])


class WasteMeasured(Cause, frozen=True, kw_only=True):
    """The growth policy counts with ``waste_s`` of boot and end for each machine. ``boots``,
    ``ends``: how many machines the two times were measured on; 0: the time is assumed.
    """

    waste_s: float
    boot_s: float
    ending_s: float
    boots: int = 0
    ends: int = 0

    @property
    def words(self) -> str:
        boot = f"boot {brief(self.boot_s)} ({_source(self.boots)})"
        end = f"end {brief(self.ending_s)} ({_source(self.ends)})"
        return f"the growth policy counts with a waste of {brief(self.waste_s)}: {boot}, {end}"


def _source(count: int) -> str:
    return f"measured on {counted(count, 'machine')}" if count else "assumed"


class PolicyChosen(Cause, frozen=True, kw_only=True):
    """The site uses another growth ``policy``, for the ``reason`` that the comparison gave."""

    policy: str
    reason: str

    @property
    def words(self) -> str:
        return f"policy {self.policy} from now on: {self.reason}"


class OutlastsMachines(Cause, frozen=True, kw_only=True):
    """The growth policy starts no machine of its ``pools`` for a job of up to ``limit_s``: the
    cloud ends the machines of the ``reservation`` at ``ends_at`` (Unix time), and the pools have
    too few others. Pools of another growth policy may have some.
    """

    pools: tuple[str, ...]
    reservation: str
    ends_at: float
    limit_s: float

    @property
    def words(self) -> str:
        pools = f"Pool{'s' * (len(self.pools) != 1)} {', '.join(self.pools)}"
        have = "has" if len(self.pools) == 1 else "have"
        return (
            f"reservation {self.reservation} ends its machines at {format_moment(self.ends_at)},"
            f" too soon for a job of up to {brief(self.limit_s)}. {pools} {have} too few other"
            " machines, so none starts there for it now"
        )


GrowthStep = GrowthPlanned | WasteMeasured | PolicyChosen | OutlastsMachines
"""All causes of growth without another cause as a field."""
