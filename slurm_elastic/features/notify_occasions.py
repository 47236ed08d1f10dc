"""The occasions on which somebody is told, from what ``status`` shows. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct, field

from slurm_elastic.base.units import money
from slurm_elastic.config import Config
from slurm_elastic.config.policies import Budget
from slurm_elastic.config.telling import Event
from slurm_elastic.model.cluster import Usage
from slurm_elastic.model.exclusion import Exclusion
from slurm_elastic.model.memory import REFUSED, Health
from slurm_elastic.policies.launch.exclusions import DENIED
from slurm_elastic.policies.launch.grouping import braces
from slurm_elastic.policies.money.bounds import Spent
from slurm_elastic.policies.repair.strays import CODE as STRAY
from slurm_elastic.state.ckptstate.facts import Migration, Step
from slurm_elastic.state.credentials import ending, ends_of, soon

NEAR = 0.8
"""The part of a budget, and of the cap on dollars an hour, from which on it is told."""


class Occasion(Struct, frozen=True, kw_only=True):
    """``key`` names it: the same key is the same occasion. ``values`` are for programs."""

    event: Event
    key: str
    text: str
    values: Mapping[str, str | float] = field(default_factory=dict)


def of_budget(scope: str, budget: Budget, spent: Spent) -> Iterator[Occasion]:
    """Over 80 %, and over all of it, of a day's and a month's dollars."""
    for period, bound, used in (
        ("day", budget.per_day, spent.day),
        ("month", budget.per_month, spent.month),
    ):
        if bound is None or used < NEAR * bound:
            continue
        part = 100 if used >= bound else round(100 * NEAR)
        then = "; no new machine is started for it" if part == 100 else ""
        yield Occasion(
            event=Event.BUDGET,
            key=f"budget/{scope}/{period}/{part}",
            text=f"{scope}: {money(used)} of {money(bound)} of this {period}'s budget"
            f" is spent{then}",
            values={"scope": scope, "period": period, "spent": used, "budget": bound},
        )


def of_rate(config: Config, usage: Usage) -> Iterator[Occasion]:
    """Over 80 % of a cap on dollars an hour, at worst prices as the cap counts."""
    caps = [("", "all clouds", config.limits.dollars_per_hour)]
    for cloud in config.clouds:
        limit = cloud.limits.dollars_per_hour
        caps.append((f"cloud:{cloud.name}", f"cloud {cloud.name}", limit))
    for key, name, cap in caps:
        rate = usage.dollars_per_hour.get(key, 0.0)
        if cap is not None and cap > 0 and rate >= NEAR * cap:
            yield Occasion(
                event=Event.RATE,
                key=f"rate/{key or 'cluster'}",
                text=f"{name}: machines may cost {money(rate)} an hour, the cap is {money(cap)}",
                values={"scope": key or "cluster", "rate": rate, "cap": cap},
            )


def of_breakers(breakers: Iterable[Exclusion], now: float) -> Iterator[Occasion]:
    """Pools that start nothing, as their machines do not come up."""
    for one in breakers:
        if one.until > now:
            yield Occasion(
                event=Event.PAUSED,
                key=f"paused/{one.scope}",
                text=f"pool {one.scope} is paused: {one.cause}",
                values={"pool": one.scope, "failures": float(one.count), "until": one.until},
            )


def of_denials(cool_downs: Iterable[Exclusion]) -> Iterator[Occasion]:
    """Launches for which a right is missing: dearer ones, or none, take their place meanwhile."""
    denied: dict[str, list[Exclusion]] = {}
    for one in cool_downs:
        if one.code == DENIED:
            denied.setdefault(one.scope.partition("/")[0], []).append(one)
    for cloud, found in denied.items():
        offers = ", ".join(braces(one.scope for one in found))
        yield Occasion(
            event=Event.CREDENTIALS,
            key=f"denied/{cloud}",
            text=f"cloud {cloud} denies launches of {offers}: {found[0].cause}",
            values={"cloud": cloud},
        )


def of_health(health: Iterable[Health]) -> Iterator[Occasion]:
    """Credentials that a cloud refuses, and machines that are paid and serve nobody."""
    for one in health:
        if one.error is not None and one.code == REFUSED:
            yield Occasion(
                event=Event.CREDENTIALS,
                key=f"credentials/{one.name}",
                text=f"cloud {one.name} refuses the credentials: {one.error}",
                values={"cloud": one.name},
            )
        elif one.error is not None and one.code == STRAY:
            yield Occasion(event=Event.STRAY, key="stray", text=f"paid machines: {one.error}")


def of_credentials(health: Iterable[Health], now: float) -> Iterator[Occasion]:
    """Credentials that end within a day; the end is part of the key, as renewed ones are others."""
    for cloud, ends in ends_of(health):
        if soon(ends, now):
            yield Occasion(
                event=Event.CREDENTIALS,
                key=f"credentials/{cloud}/{ends:.0f}",
                text=f"the credentials of cloud {cloud} {ending(ends, now)}: renew them",
                values={"cloud": cloud, "ends": ends},
            )


def of_moves(moves: Iterable[Migration]) -> Iterator[Occasion]:
    """Jobs that went on from their start: nothing had saved them."""
    for move in moves:
        if move.step is Step.BACK and move.image is None:
            run = move.run
            yield Occasion(
                event=Event.LOST,
                key=f"lost/{run.job}/{run.attempt}",
                text=f"job {run.label} of {run.user} lost its work and began anew: {move.reason}",
                values={"job": run.label, "user": run.user, "since": run.started},
            )
