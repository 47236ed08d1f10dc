"""The facts that checkpoint policies decide on. Pure."""

from __future__ import annotations

from msgspec import Struct

from slurm_elastic.model.cluster import Notice


class Situation(Struct, frozen=True, kw_only=True):
    """The facts that a checkpoint policy may know about one job on machines that a cloud may take
    away.

    Times are Unix s. ``launched``: the machine's billing began. ``started``: this run of the job
    began. ``last``: its last good checkpoint was complete (None: none in this run). ``dump`` and
    ``restart``: expected seconds of a checkpoint and of a recovery. ``prices``: (since, $/h),
    ascending, if possible from ten minutes before the launch. ``bid``: the price at which the
    machine is lost (None: prices take no machine). ``mtti``: observed mean seconds to an
    interruption of the job, by any of its machines. ``lease``: seconds paid at a time (1: by the
    second). ``blocking``: the job stands still during a save. ``cost``: duration of the last save
    (s).
    """

    job: str
    now: float
    launched: float
    started: float
    last: float | None = None
    dump: float = 60.0
    restart: float = 0.0
    prices: tuple[tuple[float, float], ...] = ()
    bid: float | None = None
    notices: tuple[Notice, ...] = ()
    mtti: float | None = None
    lease: float = 1.0
    blocking: bool = True
    cost: float = 0.0

    @property
    def since(self) -> float:
        """The time from which work would be lost."""
        if self.last is None:
            return self.started
        # A save during which the job works on contains the state at the save's beginning.
        return max(self.started, self.last if self.blocking else self.last - self.cost)
