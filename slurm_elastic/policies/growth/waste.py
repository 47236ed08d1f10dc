"""The waste of a machine, measured: the time from its launch until it can work, and the time from
the decision to end it until it is gone. Pure.

Elastic Site (CCGrid 2010) lets an administrator guess the waste. With ``waste=auto`` a growth
policy measures it on machines that came and went.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

from msgspec import Struct
from msgspec.structs import replace

from slurm_elastic.model.causes.growth import WasteMeasured
from slurm_elastic.model.machine_states import Ended, Ending
from slurm_elastic.model.memory import Machine
from slurm_elastic.policies.growth.capacity import AUTO, AnyGrowth, Bursts, SteadyStream

ENDING_S = 60
"""The assumed time to end a machine before any end was measured."""
MIN_MEASURED = 3
"""The least number of measurements. With fewer measurements the assumed time is used."""
MAX_MEASURED = 100
"""The newest measurements count, because images and clouds change."""
MIN_WASTE_S, MAX_WASTE_S = 10, 3600


class MeasuredWaste(Struct, frozen=True, kw_only=True):
    """``boot_s``, ``ending_s``: the typical times (s). ``boots``, ``ends``: how many machines they
    were measured on; 0: the time is assumed.
    """

    boot_s: float
    ending_s: float
    boots: int = 0
    ends: int = 0

    @property
    def seconds(self) -> int:
        """The seconds of boot and end together, within bounds."""
        return round(min(max(self.boot_s + self.ending_s, MIN_WASTE_S), MAX_WASTE_S))

    @property
    def cause(self) -> WasteMeasured:
        """The measurement for ``explain``."""
        return WasteMeasured(
            waste_s=self.seconds, boot_s=self.boot_s, ending_s=self.ending_s,
            boots=self.boots, ends=self.ends,
        )  # fmt: skip


def asks_waste(growth: AnyGrowth) -> bool:
    """Whether the policy wants the measured waste."""
    return isinstance(growth, Bursts | SteadyStream) and growth.waste == AUTO


def with_waste(growth: AnyGrowth, waste_s: int) -> AnyGrowth:
    """Return the policy with that waste (s) if it asks for the measured waste. Otherwise return it
    unchanged.
    """
    if isinstance(growth, Bursts | SteadyStream) and growth.waste == AUTO:
        return replace(growth, waste=waste_s)
    return growth


def measured(machines: Iterable[Machine], boot_s: float) -> MeasuredWaste:
    """Return the waste of these machines, of any age and state. ``boot_s``: the boot time (s) to
    assume if too few have booted.
    """
    by_launch = sorted(machines, key=lambda machine: machine.instance.launched)
    boots = _newest(
        machine.registered_at - machine.instance.launched
        for machine in by_launch
        if machine.registered_at is not None
    )
    # Only machines that ended at our request. A stopped machine has been off in between.
    lives = (machine.life for machine in by_launch)
    ends = _newest(
        life.ended_at - life.before.retired_at
        for life in lives
        if isinstance(life, Ended) and isinstance(life.before, Ending)
    )
    return MeasuredWaste(
        boot_s=median(boots) if boots else boot_s,
        ending_s=median(ends) if ends else ENDING_S,
        boots=len(boots),
        ends=len(ends),
    )


def _newest(times: Iterable[float]) -> Sequence[float]:
    """The newest of these times, without impossible times; empty if they are too few."""
    possible = [time for time in times if time >= 0][-MAX_MEASURED:]
    return possible if len(possible) >= MIN_MEASURED else ()
