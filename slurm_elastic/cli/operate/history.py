"""The common part of ``simulate`` and ``plan``: replay a job history on the configured pools."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.base.pages import page
from slurm_elastic.base.units import brief
from slurm_elastic.cli.arguments import count, seconds
from slurm_elastic.cli.reports import billed
from slurm_elastic.config import Config
from slurm_elastic.config.configfile import load as load_config
from slurm_elastic.simulate import core
from slurm_elastic.simulate.engine import Progress as Told
from slurm_elastic.simulate.histories import sacct, swf
from slurm_elastic.simulate.histories.swf import History
from slurm_elastic.simulate.histories.workload import Format
from slurm_elastic.simulate.histories.workload import load as load_workload
from slurm_elastic.simulate.setting import DEPTH, Options, Setting, setting_of

MIN_JOBS_FOR_BAR = 20_000  # shorter simulations show no progress
LINE_EVERY_S = 30.0  # between lines about the progress if stderr is no terminal


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options for the history, the machines and the queue."""
    _add_history(parser.add_argument_group("the job history"))
    machines = parser.add_argument_group("machines")
    _add_machines(machines)
    _add_power(machines)
    _add_spot(parser.add_argument_group("spot machines and checkpoints"))
    queue = parser.add_argument_group("the queue")
    queue.add_argument(
        "--reservations", type=count, default=1, metavar="K",
        help="reserve machines for the first K waiting jobs, and backfill around them (default: 1)",
    )  # fmt: skip
    queue.add_argument(
        "--depth", type=count, default=DEPTH, metavar="N",
        help=f"stop scanning the queue after N jobs that cannot start (default: {DEPTH}, as Slurm)",
    )  # fmt: skip
    queue.add_argument(
        "--whole-nodes", action="store_true",
        help="give each job whole nodes, as select/linear and OverSubscribe=EXCLUSIVE do "
        "(default: jobs share a node by cores, memory and GPUs, as with CR_Core_Memory)",
    )  # fmt: skip
    queue.add_argument(
        "--seed", type=int, default=0, metavar="N", help="seed of random choices (default: 0)"
    )


def _add_history(group: argparse._ArgumentGroup) -> None:
    source = group.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--workload", type=Path, metavar="FILE",
        help="replay this history in the Standard Workload Format or the Grid Workload Format, "
        "packed (.gz) or not; - reads standard input",
    )  # fmt: skip
    source.add_argument(
        "--sacct", type=Path, metavar="FILE",
        help="replay this cluster's own history: the output of sacct -X -a --json, or of the sacct "
        f"command in {page('simulate')}; - reads standard input",
    )  # fmt: skip
    group.add_argument(
        "--format", type=Format, choices=tuple(Format), metavar="|".join(Format),
        help="read --workload in this format (default: the format that its first line shows)",
    )  # fmt: skip
    group.add_argument("--max-jobs", type=count, metavar="N", help="read only the first N jobs")


def _add_machines(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--static", type=static_nodes, metavar="NODESxCPUS",
        help="the site's own nodes, such as 4x16: they cost nothing and are used first",
    )  # fmt: skip
    group.add_argument(
        "--boot", type=billed.boot, metavar="S",
        help="seconds that a machine takes to boot, or the seconds by number of machines that "
        "boot together, such as 1:90,16:150 (default: as configured, else 120)",
    )  # fmt: skip
    group.add_argument(
        "--configure", type=seconds, default=0, metavar="S",
        help="seconds from booted to ready (default: 0)",
    )  # fmt: skip
    group.add_argument(
        "--billing", type=billed.billing, metavar="HOW",
        help="how the cloud bills: 'per_second(minimum=60)' or 'hourly(refund=true, seconds=3600)' "
        "(default: from the configured lease, else per_second)",
    )  # fmt: skip
    group.add_argument(
        "--reserved", type=billed.reserved, action="append", default=[], metavar="POOL=N@PRICE",
        help="N machines of the pool always run and are always paid, at PRICE dollars an hour "
        "each; may be given again",
    )  # fmt: skip


def _add_power(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--power", type=billed.by_pool, action="append", default=[], metavar="[POOL=]W",
        help="a machine that is up takes W watts, so show the energy; may be given again for "
        "another pool; the nodes of --static are the pool static",
    )  # fmt: skip


def _add_spot(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--prices", type=Path, action="append", default=[], metavar="CSV",
        help="spot prices over time; may be given again (default: pools run on demand only)",
    )  # fmt: skip
    group.add_argument(
        "--availability", action="append", default=[], metavar="[POOL=]JSON",
        help="a trace of how many spot machines were available; may be given again",
    )  # fmt: skip
    group.add_argument(
        "--max-price", type=billed.by_pool, action="append", default=[], metavar="[POOL=]$",
        help="the bid in dollars an hour, instead of the configured max_price; may be given again "
        "for another pool",
    )  # fmt: skip
    group.add_argument(
        "--notice", type=seconds, default=120, metavar="S",
        help="the cloud warns S seconds before it takes a machine (default: 120)",
    )  # fmt: skip
    group.add_argument(
        "--rebalance", type=seconds, default=0, metavar="S",
        help="the cloud recommends to move S seconds before it takes a machine (default: never)",
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
    group.add_argument(
        "--restart", type=seconds, default=60, metavar="S",
        help="seconds from the start of a saved job until it works again (default: 60)",
    )  # fmt: skip
    group.add_argument(
        "--checkpoint-period", type=count, default=30, metavar="S",
        help="ckptman asks the checkpoint policy each S seconds (default: 30)",
    )  # fmt: skip
    group.add_argument(
        "--no-blocking", dest="blocking", action="store_false",
        help="a job works on while it is saved (default: it stands still)",
    )  # fmt: skip


def read(args: argparse.Namespace) -> Setting:
    """Read and check everything before the first job is simulated.

    Raises ConfigError for a wrong option, history or configuration.
    """
    return setting_of(*read_inputs(args))


def read_inputs(args: argparse.Namespace) -> tuple[History, Config, Options]:
    """Read the history and the configuration that the options of ``add_arguments`` name."""
    config = load_config(Path(args.config))
    history = load_file(args.workload, args.sacct, args.max_jobs, args.format)
    # Python alone has further options, such as the prices that were paid.
    given = {name: value for name, value in vars(args).items() if name in Options.__struct_fields__}
    options = Options(**given)
    return history, config, options


def load_file(
    workload: Path | None,
    sacct_file: Path | None,
    max_jobs: int | None = None,
    form: Format | None = None,
) -> History:
    """Read the history. ConfigError if the file has the format of the other option."""
    path = sacct_file or workload
    is_of_sacct = path is not None and str(path) != "-" and sacct.is_of_sacct(path)
    if workload and is_of_sacct:
        raise ConfigError(f"--workload: {path} is the output of sacct: use --sacct {path}")
    if workload:
        return load_workload(workload, max_jobs, form)
    if sacct_file is None:
        raise ConfigError("found no job history, expected --workload or --sacct")
    if str(path) != "-" and not is_of_sacct and swf.is_of_swf(sacct_file):
        raise ConfigError(
            f"--sacct: {path} is in the Standard Workload Format: use --workload {path}"
        )
    return sacct.load(sacct_file, max_jobs)


@contextmanager
def progress(total: int) -> Iterator[Told | None]:
    """Show the progress of a long simulation on stderr: a bar on a terminal, elsewhere a line each
    ``LINE_EVERY_S``. Say once why it is slow if the compiled part is missing.

    Yields a function that takes the number of jobs done since its last call, or None if the
    simulation is short.
    """
    console = Console(stderr=True)
    if total >= MIN_JOBS_FOR_BAR and core.compiled() is None:
        console.print(core.MISSING, soft_wrap=True)
    if total < MIN_JOBS_FOR_BAR:
        yield None
        return
    if not console.is_terminal:
        yield ProgressLines(total, lambda line: console.print(line, soft_wrap=True)).advance
        return
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("simulating", total=total)
        yield lambda jobs: bar.advance(task, jobs)


class ProgressLines:
    """Prints a line about a simulation of ``total`` jobs each ``LINE_EVERY_S`` seconds."""

    def __init__(
        self,
        total: int,
        print_line: Callable[[str], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total, self._print, self._clock = total, print_line, clock
        self._done, self._begun_at = 0, clock()
        self._printed_at = self._begun_at

    def advance(self, jobs: int) -> None:
        """Take the number of jobs done since the last call."""
        self._done += jobs
        now = self._clock()
        if now - self._printed_at < LINE_EVERY_S or not self._done:
            return
        self._printed_at = now
        left_s = (now - self._begun_at) * max(self._total - self._done, 0) / self._done
        self._print(
            f"simulated {self._done:,} of about {self._total:,} jobs;"
            f" about {brief(round(left_s))} left"
        )


@contextmanager
def spinner(text: str) -> Iterator[None]:
    """Show ``text`` with a spinner on stderr, if that is a terminal, until the block ends."""
    console = Console(stderr=True)
    with console.status(text) if console.is_terminal else nullcontext():
        yield


def static_nodes(text: str) -> tuple[int, int]:
    """Parse ``4x16``, for argparse."""
    nodes, _, procs = text.partition("x")
    try:
        return count(nodes), count(procs or "1")
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"{text[:24]!r} is not NODESxCPUS, such as 4x16") from None
