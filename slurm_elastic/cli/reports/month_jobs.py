"""The month's own job history for the report, and its replay in a process of its own."""

from __future__ import annotations

import argparse
import contextlib
import sqlite3
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from msgspec.structs import replace

from slurm_elastic.base.errors import ConfigError, SlurmElasticError, SlurmError
from slurm_elastic.base.hostlist import expand
from slurm_elastic.base.month import Month
from slurm_elastic.base.processes.bounded_process import run_within
from slurm_elastic.base.units import counted, does
from slurm_elastic.cli.operate import history as history_files
from slurm_elastic.config import Config, domain_pools
from slurm_elastic.config.machine_prices import paid_share
from slurm_elastic.features.growth.policy_chooser import own_nodes
from slurm_elastic.model.cluster import Instance, Market
from slurm_elastic.model.memory import Machine
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.policies.growth.waste import measured
from slurm_elastic.providers.base.prices.trace import PriceTrace
from slurm_elastic.simulate.boot import BootTimes
from slurm_elastic.simulate.histories import sacct
from slurm_elastic.simulate.histories.swf import History
from slurm_elastic.simulate.scenario import PoolModel
from slurm_elastic.simulate.setting import Options, setting_of, with_boots
from slurm_elastic.simulate.studies.month_replay import Replay, replay
from slurm_elastic.simulate.studies.paid_prices import paid_prices
from slurm_elastic.slurm.client.accounting import AccountingCli, jobs_between
from slurm_elastic.slurm.client.prompt import PromptCli
from slurm_elastic.state.ledger import Ledger

PAID_PRICES = (
    "spot prices are those at the launches of the month and of the month before; in between, the "
    "last one is assumed"
)
REPLAY_SHARE = 0.7
"""The part of the time limit for the replay; the remainder is for reading the history."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options for the job history."""
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--sacct", type=Path, metavar="FILE",
        help="simulate with this output of sacct (default: ask slurmdbd; without slurmdbd, the "
        "jobs that slurmctld remembers)",
    )  # fmt: skip
    source.add_argument(
        "--workload", type=Path, metavar="FILE",
        help="simulate with this history in the Standard Workload Format or the Grid Workload "
        "Format",
    )  # fmt: skip
    parser.add_argument(
        "--static", type=history_files.static_nodes, metavar="NODESxCPUS",
        help="the site's own nodes, such as 4x16 (default: as Slurm shows them)",
    )  # fmt: skip


def replay_of_month(
    config: Config,
    month: Month,
    now: float,
    seconds: float,
    *,
    workload: Path | None = None,
    sacct_file: Path | None = None,
    static: tuple[int, int] | None = None,
) -> Replay:
    """Replay the month's jobs within ``seconds``. SlurmElasticError if it cannot be replayed."""
    return run_within(
        seconds, "leave it out with --no-simulation, or use `slurm-elastic simulate`",
        _replay, config, month, now, seconds, workload, sacct_file, static,
    )  # fmt: skip


def _replay(
    config: Config,
    month: Month,
    now: float,
    seconds: float,
    workload: Path | None,
    sacct_file: Path | None,
    static: tuple[int, int] | None,
) -> Replay:
    """Read the history and replay it. It runs in the bounded process, because the jobs of a month
    can take as much memory as their simulation.
    """
    end_at = time.monotonic() + REPLAY_SHARE * seconds
    slurm, notes = PromptCli(config.slurm), []
    if workload is None and sacct_file is None:
        history, note = _own_history(config, slurm, month, now)
        notes += [note] if note else []
    else:
        history = history_files.load_file(workload, sacct_file)
    history = submitted_in(history, month)
    if static is None:
        try:
            static = own_nodes(config, slurm.nodes().values())
        except SlurmError:
            notes.append("Slurm does not answer, so the site's own nodes are unknown")
    machines = _machines(config, month)
    paid = _paid_prices(config, machines, history, month) if machines else None
    setting = setting_of(history, config, Options(static=static, paid=paid))
    setting = with_boots(setting, measured_boots(machines))
    on_demand = _spot_pools_on_demand(config, setting.configured.pools)
    if any(model.on_spot for model in setting.configured.pools):
        notes.append(PAID_PRICES)
    result = replay(setting, max(end_at - time.monotonic(), 1.0))
    return replace(
        result,
        notes=(*notes, *result.notes),
        on_demand_pools=on_demand,
    )


def _machines(config: Config, month: Month) -> Sequence[Machine]:
    """The machines launched in the month and in the month before it; none if this user may not read
    the ledger.
    """
    earlier = month.previous.begin
    try:
        path = config.state / "ledger.db"
        with config.sharing(), contextlib.closing(Ledger(path, read_only=True)) as ledger:
            machines = ledger.machines.live(ended_since=earlier, stopped=True)
    except (SlurmElasticError, sqlite3.Error, OSError):
        return ()
    return [m for m in machines if earlier <= m.instance.launched < month.end]


def measured_boots(machines: Sequence[Machine]) -> dict[str, BootTimes]:
    """The typical boot by pool, of pools where enough of these machines have booted."""
    by_pool: defaultdict[str, list[Machine]] = defaultdict(list)
    for machine in machines:
        if not machine.is_off:
            by_pool[machine.pool].append(machine)
    wastes = {pool: measured(of_pool, 0.0) for pool, of_pool in by_pool.items()}
    return {
        pool: BootTimes(((1, waste.boot_s),), measured=waste.boots)
        for pool, waste in wastes.items()
        if waste.boots
    }


def _paid_prices(
    config: Config, machines: Iterable[Machine], history: History, month: Month
) -> PriceTrace | None:
    """The published spot prices at the launches of these machines; None if there are none."""
    jobs = history.jobs
    last_s = max(submit + run for submit, run in zip(jobs.submit, jobs.run, strict=True))
    begin = min(month.begin, history.start) if history.start else month.begin
    # A second more, because the simulator asks for the price at the end of the last job.
    end = max(month.end, history.start + last_s + 1)
    return paid_prices(at_published_prices(machines, config), begin, end)


def at_published_prices(machines: Iterable[Machine], config: Config) -> Iterator[Instance]:
    """Yield the machines' instances with the prices that the clouds published. The ledger has the
    prices that the site paid, which the simulator calculates again.
    """
    clouds = {cloud.name: cloud for cloud in config.clouds}
    for machine in machines:
        instance, price = machine.instance, machine.instance.price - machine.terms.disk_price
        if instance.cloud in clouds:
            cloud = clouds[instance.cloud]
            price /= paid_share(cloud, instance.instance_type, instance.market)
        yield replace(instance, price=price)


def _spot_pools_on_demand(config: Config, models: Iterable[PoolModel]) -> tuple[str, ...]:
    """The pools that may buy spot machines, but have none in the simulation."""
    spot_pools = {p.name for p in domain_pools(config, expand) if Market.SPOT in p.markets}
    return tuple(model.name for model in models if model.name in spot_pools and not model.on_spot)


def _own_history(config: Config, slurm: PromptCli, month: Month, now: float) -> tuple[History, str]:
    """The jobs that Slurm knows, and a note if they are few."""
    accounting = AccountingCli(config.slurm)
    try:
        rows, note = jobs_between(accounting, slurm, month.begin, min(month.end, now))
    except SlurmError as error:
        raise SlurmElasticError(
            f"no job history: slurmdbd and slurmctld do not answer ({error})"
        ) from error
    if not note:
        if not rows:
            raise ConfigError(f"slurmdbd has no job of {month.name}")
    elif not any(month.begin <= float(str(row["Submit"])) < month.end for row in rows):
        raise ConfigError(_no_ended_job(slurm.jobs(), month))
    return sacct.of_rows(rows), note


def _no_ended_job(jobs: Iterable[SlurmJob], month: Month) -> str:
    """Why slurmctld knows no ended job of the month, and what helps."""
    active = sum(not job.has_ended and month.begin <= job.submit < month.end for job in jobs)
    remedy = "slurmctld keeps ended jobs for MinJobAge only; use slurmdbd, or --sacct FILE"
    if not active:
        return f"slurmctld no longer remembers a job of {month.name}. {remedy}"
    return (
        f"{counted(active, 'job')} of {month.name} {does(active, 'wait')} or "
        f"{does(active, 'run')}, and slurmctld remembers no ended job of it. If jobs have ended: "
        f"{remedy}"
    )


def submitted_in(history: History, month: Month) -> History:
    """The history with only the jobs submitted in the month. A history that does not say when it
    began is used as it is. ConfigError if it has no such job.
    """
    start, jobs = history.start, history.jobs
    if not start:
        return history
    inside = [
        index
        for index, submit in enumerate(jobs.submit)
        if month.begin <= start + submit < month.end
    ]
    if not inside:
        raise ConfigError(f"the history has no ended job that was submitted in {month.name}")
    first_submit = jobs.submit[inside[0]]
    history.jobs = jobs.only(inside)
    for index, submit in enumerate(history.jobs.submit):
        history.jobs.submit[index] = submit - first_submit
    history.header["UnixStartTime"] = str(start + first_submit)
    return history
