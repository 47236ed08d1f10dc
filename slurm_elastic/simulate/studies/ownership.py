"""Own or rent: the same jobs on machines that the site owns, on rented machines, and on both."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from msgspec import Struct
from msgspec.structs import replace

from slurm_elastic.simulate.engine import Progress, simulate
from slurm_elastic.simulate.outcome import Figures, PoolFigures, RunResult
from slurm_elastic.simulate.scenario import PoolModel, Scenario
from slurm_elastic.simulate.setting import Setting
from slurm_elastic.simulate.shared_machines import machines_needed

OWN = "own"
"""The name of the pool of owned machines in the figures."""
SHARES = (1.0, 1.25, 1.5, 1.75, 2.0)
"""The default numbers of owned machines, in mean numbers of busy rented machines."""


class Ownership(Struct, frozen=True, kw_only=True):
    """One way to run the jobs: on ``owned`` machines, on rented machines (``rents``), or on both.

    ``pays_below``: the price of an owned machine-hour ($) below which this costs less than renting
    alone; None if nothing is owned, or no price would be low enough.
    """

    owned: int
    rents: bool
    figures: Figures
    pays_below: float | None = None

    @property
    def name(self) -> str:
        """Its name for people."""
        names = ([f"own {self.owned:,}"] if self.owned else []) + ["rent"] * self.rents
        return " + ".join(names)


def default_sizes(setting: Setting, rented: RunResult, pool: int) -> tuple[int, ...]:
    """Return numbers of owned machines to compare, by the mean use of the rented pool. All of them
    are enough for the largest job that ran there.
    """
    jobs, figures = setting.jobs, rented.figures
    needs = machines_needed(jobs, rented.pools[pool].pool)
    largest_need = max(
        (need for need, where in zip(needs, rented.where, strict=True) if where == pool), default=1
    )
    mean = figures.pools[pool].busy_hours * 3600 / max(figures.makespan, 1)
    return tuple(dict.fromkeys(max(ceil(share * mean), largest_need, 1) for share in SHARES))


def own_or_rent(
    setting: Setting,
    scenario: Scenario,
    rented: RunResult,
    pool: int,
    sizes: Sequence[int],
    price: float,
    progress: Progress | None = None,
) -> list[Ownership]:
    """Return the comparison, renting alone first.

    ``rented``: the run of ``scenario`` as it is. The owned machines are as its pool number
    ``pool`` has them. They are used first and cost ``price`` ($/h each) at all times.
    """
    bare = rented.figures
    rows = [Ownership(owned=0, rents=True, figures=bare)]
    for size in sizes:
        owned_pool = _owned(scenario.pools[pool], size, price)
        private = tuple(model for model in scenario.pools if not model.public)
        for pools in ((*private, owned_pool), (owned_pool, *scenario.pools)):
            rents = len(pools) > len(private) + 1
            # A site that rents nothing holds no reservations.
            site = replace(scenario, pools=pools, held=scenario.held if rents else ())
            run = simulate(setting.jobs, site, setting.history.start, progress)
            rows.append(
                Ownership(
                    owned=size,
                    rents=rents,
                    figures=run.figures,
                    pays_below=_pays_below(bare.cost, run.figures),
                )
            )
    return rows


def _owned(like: PoolModel, machines: int, price: float) -> PoolModel:
    return PoolModel(
        name=OWN,
        machines=machines,
        standing=machines,
        procs=like.procs,
        memory=like.memory,
        gpus=like.gpus,
        shared=like.shared,
        by_user=like.by_user,
        public=False,
        limited=False,
        price=price,
    )


def _pays_below(rent: float, figures: Figures) -> float | None:
    owned = next(pool for pool in figures.pools if pool.name == OWN)
    bought = figures.cost - _dollars(owned)
    return (rent - bought) / owned.hours if owned.hours and rent > bought else None


def _dollars(pool: PoolFigures) -> float:
    return pool.on_demand + pool.spot
