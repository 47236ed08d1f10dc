"""A job history on a site's pools: the whole input of a simulation except its policy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import asdict, replace

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.config import Config
from slurm_elastic.config.checkpoint_kinds import checked_policy
from slurm_elastic.config.pool_rules import bounds_of, rules_of
from slurm_elastic.config.sections.policies import WhenSpent
from slurm_elastic.policies.growth.capacity import Slurm
from slurm_elastic.policies.growth.release import AtOnce
from slurm_elastic.policies.money.bounds import Bounds
from slurm_elastic.policies.policy_text import LARGEST
from slurm_elastic.providers.base.prices.trace import PriceTrace, load_trace, series_of
from slurm_elastic.simulate.availability import HistorySpan, load_supply
from slurm_elastic.simulate.bills.billing import Billing
from slurm_elastic.simulate.bills.billing import parse as parse_billing
from slurm_elastic.simulate.bills.held import held_in
from slurm_elastic.simulate.boot import BootTimes
from slurm_elastic.simulate.checkpointed_run import Checkpoints
from slurm_elastic.simulate.histories.jobs import Jobs
from slurm_elastic.simulate.histories.swf import History
from slurm_elastic.simulate.scenario import Scenario
from slurm_elastic.simulate.scenario_config import NAME as CONFIGURED
from slurm_elastic.simulate.scenario_config import configured
from slurm_elastic.simulate.site import World, bought_as, pools_of, scenario_of

DEPTH = 500  # jobs that a pass over the queue considers, like Slurm's bf_max_job_test


NONE = "none"
"""The policy that starts no machines of public clouds, for comparison."""
INDIVIDUAL = "individual"
"""The policy without a shared cluster, for comparison: each job rents machines of its own, which
end with the job (the baseline of Niu et al., SC '13).
"""


class Options(Struct, frozen=True, kw_only=True):
    """The options of ``slurm-elastic simulate``, with their defaults. Raises ConfigError.

    ``static``: (nodes, processors per node) that the site has anyway; ``boot``: (machines that boot
    together, seconds) per batch size; ``reserved``: (pool, machines, dollars per hour of each).
    ``configure``, ``notice``, ``rebalance``, ``requeue_delay``, ``dump``, ``restart`` and
    ``checkpoint_period`` are in seconds. ``blocking``: a job stands still while it is saved.
    ``max_price``: (pool, dollars per hour), the bid instead of the configured one; ``power``:
    (pool, watts of a machine that is up). The pool None means all pools.
    ``prices``: files; ``paid``: prices that are used if there are no files. ``max_jobs``: only the
    first jobs of a history's file are read (None: all).
    """

    static: tuple[int, int] | None = None
    boot: tuple[tuple[int, float], ...] | None = None
    configure: int = 0
    billing: str | Billing | None = None
    reserved: Sequence[tuple[str, int, float]] = ()
    power: Sequence[tuple[str | None, float]] = ()
    prices: Sequence[str | Path] = ()
    paid: PriceTrace | None = None
    availability: Sequence[str] = ()
    notice: int = 120
    rebalance: int = 0
    requeue_delay: int = 0
    checkpoint: str | None = None
    dump: int = 60
    restart: int = 60
    checkpoint_period: int = 30
    blocking: bool = True
    max_price: Sequence[tuple[str | None, float]] = ()
    reservations: int = 1
    depth: int = DEPTH
    whole_nodes: bool = False
    max_jobs: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            # A seed may be any number. A bool is an int, too, and always in the range.
            if name != "seed" and isinstance(value, int) and not 0 <= value <= LARGEST:
                raise ConfigError(f"{name}: found {value}, expected a number from 0 to {LARGEST}")
        if self.checkpoint_period < 1:
            raise ConfigError("checkpoint_period: found 0, expected 1 or more")
        try:
            BootTimes(self.boot or BootTimes().points)
        except ValueError as error:
            raise ConfigError(f"boot: {error}") from None


class Setting(Struct, frozen=True, kw_only=True):
    """A history, and its scenario without a policy (``base``). ``configured``: the scenario with
    the site's own policies. ``notes``: assumptions of all simulations; ``own_notes``: further
    assumptions of the ``configured`` scenario.
    """

    history: History
    base: Scenario
    configured: Scenario
    prices: PriceTrace | None
    notes: tuple[str, ...]
    own_notes: tuple[str, ...]

    @property
    def jobs(self) -> Jobs:
        return self.history.jobs

    def notes_for(self, policies: Iterable[str]) -> tuple[str, ...]:
        """Return the assumptions in simulations of these policies."""
        return (*self.notes, *self.own_notes) if CONFIGURED in policies else self.notes

    def scenario(self, policy: str) -> Scenario:
        """Return the scenario of a policy's text. CONFIGURED: with the site's own policies; NONE:
        the same without public machines; INDIVIDUAL: each job on machines of its own. Raises
        ConfigError if the text is no policy.
        """
        if policy == NONE:
            return self._without_public()
        if policy == INDIVIDUAL:
            return self._individual()
        if policy == CONFIGURED:
            problems = self.configured.problems()
            if problems:
                raise ConfigError(*(f"policy {policy!r}: {problem}" for problem in problems))
            return self.configured
        return scenario_of(policy, self.base.pools, self.base)

    def _without_public(self) -> Scenario:
        pools = tuple(pool for pool in self.configured.pools if not pool.public)
        if not any(pool.machines for pool in pools):
            raise ConfigError(
                f"policy {NONE!r}: without public clouds there are no machines; give the site's own"
                " by --static NODESxCPUS"
            )
        return replace(self.configured, pools=pools, held=())

    def _individual(self) -> Scenario:
        pools = tuple(
            replace(pool, release=AtOnce(), min_idle=0, check=1)
            for pool in self.base.pools
            if pool.public and pool.machines > pool.standing
        )
        if not pools:
            raise ConfigError(
                f"policy {INDIVIDUAL!r}: the configuration has no public pool that can grow"
            )
        return replace(self.base, pools=pools, growth=Slurm(), reuse=False)


def setting_of(history: History, config: Config, options: Options) -> Setting:
    """Read and check all input before the first job is simulated. Raises ConfigError."""
    jobs = history.jobs
    end = max(s + r for s, r in zip(jobs.submit, jobs.run, strict=True))
    prices = _prices(options.prices) or options.paid
    span = HistorySpan(history.start, jobs.submit[0], end)
    held, held_notes = held_in(config, span)
    world = World(
        span=span,
        held=held,
        static=options.static,
        boot=options.boot,
        configure=options.configure,
        billing=_billing(options),
        reserved=tuple(options.reserved),
        max_price=tuple(options.max_price),
        power=tuple(options.power),
        prices=prices,
        availability=tuple(load_supply(text) for text in options.availability),
        notice=options.notice,
        rebalance=options.rebalance,
        whole=options.whole_nodes,
        gpus=any(jobs.gpus),
    )
    pools, notes = pools_of(config, world)
    notes += held_notes
    notes += [
        f"{number} records of the history {reason}, and are left out"
        for reason, number in history.left_out.items()
    ]
    base = Scenario(
        pools=pools,
        bounds=_bounds(config, notes),
        finishes=config.policies.budget.when_spent is WhenSpent.FINISH,
        payers=_payers(config, history, notes),
        checkpoints=_checkpoints(options),
        reservations=options.reservations,
        depth=options.depth,
        requeue_delay=options.requeue_delay,
        held=held,
        guarded=True,
        seed=options.seed,
    )
    base = bought_as(config, base)
    own_scenario, own_notes = configured(config, base, saves=options.checkpoint is None)
    return Setting(
        configured=own_scenario,
        history=history,
        base=base,
        prices=prices,
        notes=tuple(notes),
        own_notes=tuple(own_notes),
    )


def with_boots(setting: Setting, boots: Mapping[str, BootTimes]) -> Setting:
    """Return the setting with these boot times by pool. A pool whose configured policies do not
    work with its time keeps the configured one: the site's own policies must be simulated.
    """
    used = {
        pool.name: boots[pool.name]
        for pool in setting.configured.pools
        if pool.name in boots
        and not replace(
            setting.configured, pools=(replace(pool, boot=boots[pool.name]),)
        ).problems()
    }

    def booting(scenario: Scenario) -> Scenario:
        pools = (replace(pool, boot=used.get(pool.name, pool.boot)) for pool in scenario.pools)
        return replace(scenario, pools=tuple(pools))

    return replace(setting, base=booting(setting.base), configured=booting(setting.configured))


def _bounds(config: Config, notes: list[str]) -> Bounds:
    """Return the cluster's budget, and the times at which machines may be started."""
    windows = {rules_of(config, pool).windows for pool in config.pools}
    if len(windows) > 1:
        notes.append("windows are ignored, because they differ between pools")
    if any(bounds_of(cloud.policies.budget) != Bounds() for cloud in config.clouds):
        notes.append(
            "budgets of clouds are ignored; only those of the cluster, accounts and users count"
        )
    same = windows.pop() if len(windows) == 1 else ()
    return replace(bounds_of(config.policies.budget), windows=same)


def _payers(config: Config, history: History, notes: list[str]) -> dict[str, Bounds]:
    """Return the budgets of the accounts and users in the history, by the history's numbers."""
    bounds_by_payer = {}
    for scope, budget in config.policies.payer_budgets.items():
        kind, _, name = scope.partition(":")
        number = history.account(name) if kind == "account" else history.user(name)
        if number is None:
            notes.append(f"the history has no job of {kind} {name}, which has a budget")
        else:
            bounds_by_payer[f"{kind}:{number}"] = bounds_of(budget)
    return bounds_by_payer


def _billing(options: Options) -> Billing | None:
    if not isinstance(options.billing, str):
        return options.billing
    try:
        return parse_billing(options.billing)
    except ValueError as error:
        raise ConfigError(f"--billing: {error}") from None


def _checkpoints(options: Options) -> Checkpoints:
    try:
        policy = checked_policy(options.checkpoint or "none")
    except ValueError as error:
        raise ConfigError(f"--checkpoint: {error}") from None
    return Checkpoints(
        policy=policy,
        dump=options.dump,
        restart=options.restart,
        look=options.checkpoint_period,
        blocking=options.blocking,
    )


def _prices(paths: Sequence[str | Path]) -> PriceTrace | None:
    """Return the prices of all files. If several have the same offer, their points are merged."""
    points: dict[tuple[str, str], dict[float, float]] = {}
    for path in paths:
        for key, series in load_trace(Path(path)).series.items():
            points.setdefault(key, {}).update(zip(series.times, series.prices, strict=True))
    merged = {key: series_of(values) for key, values in points.items()}
    return PriceTrace(merged) if merged else None
