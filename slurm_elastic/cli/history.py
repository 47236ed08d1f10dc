"""The common part of ``simulate`` and ``plan``: a job history on the configuration's pools."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace
from rich.console import Console
from rich.progress import Progress

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.cli import billed
from slurm_elastic.cli.arguments import count, seconds
from slurm_elastic.config import Config
from slurm_elastic.config.configfile import load as load_config
from slurm_elastic.config.policies import Budget
from slurm_elastic.config.rules import bounds_of, rules_of
from slurm_elastic.policies.checkpoint.checkpoint import parse as parse_checkpoint
from slurm_elastic.policies.growth.capacity import Bounds
from slurm_elastic.providers.base.prices.trace import PriceTrace, load_trace, series_of
from slurm_elastic.simulate import sacct, swf
from slurm_elastic.simulate.availability import Span, load_supply
from slurm_elastic.simulate.checkpointed_run import Checkpoints
from slurm_elastic.simulate.engine import Progress as Told
from slurm_elastic.simulate.jobs import Jobs
from slurm_elastic.simulate.scenario import Scenario
from slurm_elastic.simulate.scenario_config import NAME as CONFIGURED
from slurm_elastic.simulate.scenario_config import configured
from slurm_elastic.simulate.site import World, bought_as, pools_of, scenario_of
from slurm_elastic.simulate.swf import History

LONG = 20_000
DEPTH = 500
"""Jobs that one look at the queue considers; Slurm's bf_max_job_test."""


NONE = "none"
"""The policy that starts no machine of a public cloud: the site as it would be without."""


class Setting(Struct, frozen=True, kw_only=True):
    """A history, and the scenario that it runs in but for the policy; ``configured`` is the one of
    the site itself. ``notes`` say what was assumed in any simulation, ``own_notes`` what was in
    that of the site itself; ``source`` is the file of the history.
    """

    source: str
    history: History
    base: Scenario
    configured: Scenario
    prices: PriceTrace | None
    notes: tuple[str, ...]
    own_notes: tuple[str, ...]

    @property
    def jobs(self) -> Jobs:
        """The jobs of the history."""
        return self.history.jobs

    def told(self, policies: Iterable[str]) -> tuple[str, ...]:
        """The assumptions in simulations of these policies."""
        return (*self.notes, *self.own_notes) if CONFIGURED in policies else self.notes

    def scenario(self, policy: str) -> Scenario:
        """The scenario of a policy's text; of CONFIGURED: the site as it is configured; of NONE:
        the same without public machines. Raises ConfigError for any other text.
        """
        if policy == NONE:
            return self._without_public()
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
        return replace(self.configured, pools=pools)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that say which history and how the machines are."""
    _add_history(parser.add_argument_group("the job history"))
    _add_machines(parser.add_argument_group("machines"))
    _add_spot(parser.add_argument_group("spot machines and checkpoints"))
    queue = parser.add_argument_group("the queue")
    queue.add_argument(
        "--reservations", type=count, default=1, metavar="K",
        help="reserve machines for the first K waiting jobs, and backfill around them (default: 1)",
    )  # fmt: skip
    queue.add_argument(
        "--depth", type=count, default=DEPTH, metavar="N",
        help=f"end a look at the queue after N jobs that cannot start (default: {DEPTH}, as Slurm)",
    )  # fmt: skip
    queue.add_argument(
        "--whole-nodes", action="store_true",
        help="give each job its nodes alone, as select/linear and OverSubscribe=EXCLUSIVE do "
        "(default: jobs share a node by cores, memory and GPUs, as CR_Core_Memory has it)",
    )  # fmt: skip
    queue.add_argument(
        "--seed", type=int, default=0, metavar="N", help="seed of random choices (default: 0)"
    )


def _add_history(group: argparse._ArgumentGroup) -> None:
    source = group.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--workload", type=Path, metavar="FILE",
        help="replay this history in the Standard Workload Format, packed (.gz) or not; - reads "
        "standard input",
    )  # fmt: skip
    source.add_argument(
        "--sacct", type=Path, metavar="FILE",
        help="replay this cluster's own history: the output of sacct -X -a --json, or of the sacct "
        "command in docs/simulate.md; - reads standard input",
    )  # fmt: skip
    group.add_argument("--max-jobs", type=count, metavar="N", help="read only the first N jobs")


def _add_machines(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--static", type=_static, metavar="NODESxCPUS",
        help="nodes that the site has anyway, such as 4x16: they cost nothing and are used first",
    )  # fmt: skip
    group.add_argument(
        "--boot", type=billed.boot, metavar="S",
        help="seconds that a machine takes to boot, also by how many boot together, such as "
        "1:90,16:150 (default: as configured, else 120)",
    )  # fmt: skip
    group.add_argument(
        "--configure", type=seconds, default=0, metavar="S",
        help="seconds from booted to ready (default: 0)",
    )  # fmt: skip
    group.add_argument(
        "--billing", type=billed.billing, metavar="HOW",
        help="how the cloud bills: 'per_second(minimum=60)' or 'hourly(refund=true, seconds=3600)' "
        "(default: by the configured lease, else per_second)",
    )  # fmt: skip
    group.add_argument(
        "--reserved", type=billed.reserved, action="append", default=[], metavar="POOL=N@PRICE",
        help="N machines of the pool run and are paid at all times, at PRICE dollars an hour each; "
        "may be given again",
    )  # fmt: skip


def _add_spot(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--prices", type=Path, action="append", default=[], metavar="CSV",
        help="spot prices over time; may be given again (default: pools run on demand only)",
    )  # fmt: skip
    group.add_argument(
        "--availability", action="append", default=[], metavar="[POOL=]JSON",
        help="a trace of how many spot machines there were; may be given again",
    )  # fmt: skip
    group.add_argument(
        "--notice", type=seconds, default=120, metavar="S",
        help="the cloud warns S seconds before it takes a machine (default: 120)",
    )  # fmt: skip
    group.add_argument(
        "--rebalance", type=seconds, default=0, metavar="S",
        help="the cloud recommends to move S seconds before it takes a machine (default: it never "
        "does)",
    )  # fmt: skip
    group.add_argument(
        "--requeue-delay", type=seconds, default=0, metavar="S",
        help="a job that lost its machine may start again after S seconds (default: 0)",
    )  # fmt: skip
    group.add_argument(
        "--checkpoint", metavar="POLICY",
        help="save jobs on spot machines by this policy, such as 'first_of(on_notice, daly)' "
        "(default: none; the configured policy has its own)",
    )  # fmt: skip
    group.add_argument(
        "--dump", type=count, default=60, metavar="S",
        help="seconds that it takes to save a job (default: 60)",
    )  # fmt: skip


def read(args: argparse.Namespace) -> Setting:
    """Everything is read and checked here, before the first job is simulated."""
    config = load_config(Path(args.config))
    history = (
        sacct.load(args.sacct, args.max_jobs)
        if args.sacct
        else swf.load(args.workload, args.max_jobs)
    )
    jobs = history.jobs
    last = max(s + r for s, r in zip(jobs.submit, jobs.run, strict=True))
    prices = _prices(args.prices)
    world = World(
        span=Span(history.start, jobs.submit[0], last),
        static=args.static,
        boot=args.boot,
        configure=args.configure,
        billing=args.billing,
        reserved=tuple((one.pool, one.machines, one.price) for one in args.reserved),
        prices=prices,
        availability=tuple(load_supply(text) for text in args.availability),
        notice=args.notice,
        rebalance=args.rebalance,
        whole=args.whole_nodes,
        gpus=any(jobs.gpus),
    )
    pools, notes = pools_of(config, world)
    base = Scenario(
        pools=pools,
        bounds=_bounds(config, notes),
        payers=_payers(config, history, notes),
        checkpoints=_checkpoints(args),
        reservations=args.reservations,
        depth=args.depth,
        requeue_delay=args.requeue_delay,
        seed=args.seed,
    )
    base = bought_as(config, base)
    own, more = configured(config, base, saves=args.checkpoint is None)
    return Setting(
        configured=own,
        source=str(args.sacct or args.workload),
        history=history,
        base=base,
        prices=prices,
        notes=tuple(notes),
        own_notes=tuple(more),
    )


@contextmanager
def progress(total: int) -> Iterator[Told | None]:
    """A bar on the terminal's error side, for what takes a while; calls back with jobs done."""
    console = Console(stderr=True)
    if total < LONG or not console.is_terminal:
        yield None
        return
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("simulating", total=total)
        yield lambda jobs: bar.advance(task, jobs)


def _bounds(config: Config, notes: list[str]) -> Bounds:
    """The cluster's budget, and the times at which machines may be started."""
    windows = {rules_of(config, pool).windows for pool in config.pools}
    if len(windows) > 1:
        notes.append("windows are not looked at: they are not the same in all pools")
    if any(cloud.policies.budget != Budget() for cloud in config.clouds):
        notes.append(
            "budgets of clouds are not looked at, only the cluster's, accounts' and users'"
        )
    same = windows.pop() if len(windows) == 1 else ()
    return replace(bounds_of(config.policies.budget), windows=same)


def _payers(config: Config, history: History, notes: list[str]) -> dict[str, Bounds]:
    """The budgets of those accounts and users that the history has jobs of, by its numbers."""
    found = {}
    for scope, budget in config.policies.payer_budgets.items():
        kind, _, name = scope.partition(":")
        number = history.account(name) if kind == "account" else history.user(name)
        if number is None:
            notes.append(f"the history has no job of {kind} {name}, which has a budget")
        else:
            found[f"{kind}:{number}"] = bounds_of(budget)
    return found


def _checkpoints(args: argparse.Namespace) -> Checkpoints:
    try:
        policy = parse_checkpoint(args.checkpoint or "none")
    except ValueError as error:
        raise ConfigError(f"--checkpoint: {error}") from None
    return Checkpoints(policy=policy, dump=args.dump)


def _prices(paths: Sequence[Path]) -> PriceTrace | None:
    """The prices of all files; where two have the same offer, the points of both."""
    points: dict[tuple[str, str], dict[float, float]] = {}
    for path in paths:
        for key, series in load_trace(path).series.items():
            points.setdefault(key, {}).update(zip(series.times, series.prices, strict=True))
    merged = {key: series_of(values) for key, values in points.items()}
    return PriceTrace(merged) if merged else None


def _static(text: str) -> tuple[int, int]:
    nodes, _, procs = text.partition("x")
    try:
        return count(nodes), count(procs or "1")
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"{text[:24]!r} is not NODESxCPUS, as 4x16") from None
