"""The occasions for notifications, computed from the data that ``status`` shows. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime

from msgspec import Struct, field

from slurm_elastic.base.local_time import moment
from slurm_elastic.base.units import brief, money
from slurm_elastic.config import Config
from slurm_elastic.config.sections.policies import PayerBudget
from slurm_elastic.config.sections.telling import NotifyEvent
from slurm_elastic.controller import strays
from slurm_elastic.controller.other_heads import REMEDY as OTHER_HEAD_REMEDY
from slurm_elastic.model.cluster import Usage
from slurm_elastic.model.exclusion import Exclusion
from slurm_elastic.model.memory import REFUSED, UNOPENED, Health
from slurm_elastic.policies.launch.exclusions import DENIED
from slurm_elastic.policies.launch.grouping import braces
from slurm_elastic.policies.money.bounds import Spent
from slurm_elastic.policies.repair.strays import count_of
from slurm_elastic.state.ckptstate.facts import Migration, MigrationStep
from slurm_elastic.state.credentials import ending, ends_of, soon
from slurm_elastic.state.ledger import Condition

WARN_FRACTION = 0.8
"""Notify when this fraction of a budget, or of the cap on dollars an hour, is reached."""


MAX_NAMED = 20
"""How many jobs the text of a summary names."""
SLURM_AWAY_S = 300.0
"""Notify when Slurm has failed for so long. A restart of slurmctld is shorter."""
RECORDS_AFTER_S = 60.0
"""Notify when the records could not be written for so long. Launches are refused then, too."""
FAILED_BOOTS = 3
"""Notify when so many machines of a pool in a row did not come up."""
SUMMED = frozenset({"lost"})
"""The kinds of keys of which one message reports all of a look."""
_STRAY = "stray"
SLURM = "slurm"
"""The name of Slurm among the rows of Health, and the key of its occasion."""
_IMPORTANCE = (
    NotifyEvent.OTHER_HEAD,
    NotifyEvent.SLURM,
    NotifyEvent.RECORDS,
    NotifyEvent.CREDENTIALS,
    NotifyEvent.STRAY,
    NotifyEvent.PAUSED,
    NotifyEvent.BOOT,
    NotifyEvent.BUDGET,
    NotifyEvent.RATE,
    NotifyEvent.LOST,
)
"""The first stops the whole cluster, the last concerns one user."""


class Occasion(Struct, frozen=True, kw_only=True):
    """A reason to notify. ``key`` identifies it: occasions with the same key are the same.
    ``values`` are for programs.
    """

    event: NotifyEvent
    key: str
    text: str
    values: Mapping[str, str | float] = field(default_factory=dict)


def important_first(occasions: Iterable[Occasion]) -> list[Occasion]:
    """Return the occasions in the order in which they are delivered."""
    return sorted(occasions, key=lambda occasion: _IMPORTANCE.index(occasion.event))


def of_budget(scope: str, budget: PayerBudget, spent: Spent, now: float) -> Iterator[Occasion]:
    """Yield an occasion if 80 %, or all, of a day's or month's budget (dollars) is spent."""
    today = f"{datetime.fromtimestamp(now, UTC):%Y-%m-%d}"
    for period, date, bound, used in (
        ("day", today, budget.per_day, spent.day),
        ("month", today[:7], budget.per_month, spent.month),
    ):
        if bound is None or used < WARN_FRACTION * bound:
            continue
        percent = 100 if used >= bound else round(100 * WARN_FRACTION)
        consequence = "; no new machine is started for it" if percent == 100 else ""
        yield Occasion(
            event=NotifyEvent.BUDGET,
            # With the percentage, so that 80 % and 100 % are each notified once. With the date,
            # because the budget of the next day or month is another one; so is a raised budget.
            key=f"budget/{scope}/{period}/{date}/{bound:g}/{percent}",
            text=f"{scope}: {money(used)} of {money(bound)} of this {period}'s budget"
            f" is spent{consequence}",
            values={"scope": scope, "period": period, "spent": used, "budget": bound},
        )


def of_rate(config: Config, usage: Usage) -> Iterator[Occasion]:
    """Yield an occasion for each cap on dollars an hour of which 80 % is reached. Like the cap, it
    counts machines at their worst prices.
    """
    caps = [("", "all clouds", config.limits.dollars_per_hour)]
    for cloud in config.clouds:
        limit = cloud.limits.dollars_per_hour
        caps.append((f"cloud:{cloud.name}", f"cloud {cloud.name}", limit))
    for key, name, cap in caps:
        rate = usage.dollars_per_hour.get(key, 0.0)
        if cap is not None and cap > 0 and rate >= WARN_FRACTION * cap:
            yield Occasion(
                event=NotifyEvent.RATE,
                # With the cap: a raised cap may be reached within the day, too.
                key=f"rate/{key or 'cluster'}/{cap:g}",
                text=f"{name}: machines may cost {money(rate)} an hour, the cap is {money(cap)}",
                values={"scope": key or "cluster", "rate": rate, "cap": cap},
            )


def of_breakers(breakers: Iterable[Exclusion], now: float) -> Iterator[Occasion]:
    """Yield an occasion for each pool paused because its machines do not come up, and before that
    for each pool of which several machines in a row did not.
    """
    for breaker in breakers:
        if not breaker.until and breaker.count >= FAILED_BOOTS:
            yield Occasion(
                event=NotifyEvent.BOOT,
                key=f"boot/{breaker.scope}",
                text=f"pool {breaker.scope}: {breaker.count} machines in a row did not come up:"
                f" {breaker.cause}; do: slurm-elastic try {breaker.scope}",
                values={"pool": breaker.scope, "failures": float(breaker.count)},
            )
        if breaker.until > now:
            yield Occasion(
                event=NotifyEvent.PAUSED,
                key=f"paused/{breaker.scope}",
                text=f"pool {breaker.scope} is paused: {breaker.cause}",
                values={
                    "pool": breaker.scope,
                    "failures": float(breaker.count),
                    "until": breaker.until,
                },
            )


def of_other_head(finding: Exclusion | None) -> Iterator[Occasion]:
    """Yield an occasion if another head works for this cluster."""
    if finding is not None:
        yield Occasion(
            event=NotifyEvent.OTHER_HEAD,
            # With the time: a finding after a person's decision is another one.
            key=f"other-head/{finding.since:.0f}",
            text=f"no machine starts or ends: {finding.cause}; do: {OTHER_HEAD_REMEDY}",
            values={"since": finding.since},
        )


def of_slurm(health: Iterable[Health], failing_s: float) -> Iterator[Occasion]:
    """Yield an occasion if Slurm has failed for long. ``failing_s``: for how long."""
    for row in health:
        if row.name == SLURM and row.error is not None and failing_s >= SLURM_AWAY_S:
            yield Occasion(
                event=NotifyEvent.SLURM,
                key=SLURM,
                text=f"Slurm has failed for {brief(failing_s)}: {row.unnamed_error}; until it works"
                " again, waiting jobs get no machine",
            )


def of_records(condition: Condition, now: float) -> Iterator[Occasion]:
    """Yield an occasion if the records cannot be written, as on a full disk."""
    if condition.end_only and now - condition.since >= RECORDS_AFTER_S:
        yield Occasion(
            event=NotifyEvent.RECORDS,
            # With the time, because a disk that fills up again is a new occasion.
            key=f"records/{condition.since:.0f}",
            text=f"no machine is bought: {condition.end_only}; do: {condition.remedy}",
            values={"since": condition.since},
        )


def of_denials(cool_downs: Iterable[Exclusion]) -> Iterator[Occasion]:
    """Yield an occasion for each cloud that denies launches because a permission is missing. Until
    the permission is granted, we buy more expensive offers or nothing.
    """
    denied: dict[str, list[Exclusion]] = {}
    for cool_down in cool_downs:
        if cool_down.code == DENIED:
            denied.setdefault(cool_down.scope.partition("/")[0], []).append(cool_down)
    for cloud, denials in denied.items():
        offers = ", ".join(braces(cool_down.scope for cool_down in denials))
        yield Occasion(
            event=NotifyEvent.CREDENTIALS,
            key=f"denied/{cloud}",
            text=f"cloud {cloud} denies launches of {offers}: {denials[0].cause}",
            values={"cloud": cloud},
        )


def of_health(health: Iterable[Health]) -> Iterator[Occasion]:
    """Yield occasions for clouds that refuse the credentials or cannot be opened, and for paid
    machines that serve no node.
    """
    for row in health:
        if row.error is not None and row.code in (REFUSED, UNOPENED):
            how = "refuses the credentials" if row.code == REFUSED else "cannot be opened"
            yield Occasion(
                event=NotifyEvent.CREDENTIALS,
                key=f"credentials/{row.name}",
                text=f"cloud {row.name} {how}: {row.error}",
                values={"cloud": row.name},
            )
        elif row.error is not None and count_of(row.code):
            yield Occasion(event=NotifyEvent.STRAY, key=_STRAY, text=f"paid machines: {row.error}")


def proven_over(
    health: Iterable[Health], breakers: Sequence[Exclusion], pools: Sequence[str]
) -> set[str]:
    """Return the keys of troubles that have certainly ended. The same trouble later is a new
    trouble. A cloud that does not answer, or a pause that waits for its next try, proves nothing.
    """
    sound_names = [row.name for row in health if row.error is None]
    paused_pools = {breaker.scope for breaker in breakers if breaker.until}
    keys = {f"credentials/{name}" for name in sound_names}
    keys |= {f"paused/{pool}" for pool in pools if pool not in paused_pools}
    failing_pools = {breaker.scope for breaker in breakers}
    keys |= {f"boot/{pool}" for pool in pools if pool not in failing_pools}
    keys |= {SLURM} if SLURM in sound_names else set()
    return keys | ({_STRAY} if strays.NAME in sound_names else set())


def of_credentials(health: Iterable[Health], now: float) -> Iterator[Occasion]:
    """Yield an occasion for credentials that expire soon. The key contains the end, because renewed
    credentials are a new occasion.
    """
    for cloud, ends in ends_of(health):
        if soon(ends, now):
            yield Occasion(
                event=NotifyEvent.CREDENTIALS,
                key=f"credentials/{cloud}/{ends:.0f}",
                text=f"the credentials of cloud {cloud} {ending(ends, now)}: renew them",
                values={"cloud": cloud, "ends": ends},
            )


def of_moves(moves: Iterable[Migration]) -> Iterator[Occasion]:
    """Yield an occasion for each job that started over because it had no checkpoint."""
    for move in moves:
        if move.step is MigrationStep.BACK and move.image is None:
            run = move.run
            yield Occasion(
                event=NotifyEvent.LOST,
                key=f"lost/{run.job}/{run.attempt}",
                text=f"job {run.label} of {run.user} lost its work at {moment(move.began)}"
                f" and started over: {move.reason}",
                values={
                    "job": run.label, "user": run.user, "since": run.started, "at": move.began,
                },
            )  # fmt: skip


def summarised(occasions: Iterable[Occasion]) -> Iterator[Occasion]:
    """Yield the occasions, the lost jobs of one look as one: a spot market may take a hundred
    machines in a minute.
    """
    lost: list[Occasion] = []
    for occasion in occasions:
        if occasion.event is NotifyEvent.LOST:
            lost.append(occasion)
        else:
            yield occasion
    if len(lost) == 1:
        yield lost[0]
    elif lost:
        yield _summary(lost)


def _summary(lost: Sequence[Occasion]) -> Occasion:
    times = sorted(float(occasion.values["at"]) for occasion in lost)
    jobs = [str(occasion.values["job"]) for occasion in lost]
    unnamed = f" and {len(jobs) - MAX_NAMED} more" if len(jobs) > MAX_NAMED else ""
    return Occasion(
        event=NotifyEvent.LOST,
        key=f"lost/{len(jobs)} jobs/{times[-1]:.0f}",
        text=f"{len(jobs)} jobs lost their work from {moment(times[0])} to {moment(times[-1])}"
        f" and started over: {', '.join(jobs[:MAX_NAMED])}{unnamed}",
        values={"count": float(len(jobs)), "jobs": ",".join(jobs), "at": times[-1]},
    )
