"""``slurm-elastic quickstart``: run ten jobs on a sandbox, until the last machine has ended."""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.base.hostlist import expand
from slurm_elastic.base.processes.signals import ended_like_ctrl_c
from slurm_elastic.cli.helptext import examples
from slurm_elastic.cli.operate.console import Output
from slurm_elastic.cli.setting_up.quickstart_migration import (
    SCRIPT,
    SETTINGS,
    MigrationAct,
    ledger_of,
)
from slurm_elastic.cli.setting_up.quickstart_view import Progress, cost_table, job_table
from slurm_elastic.config import Config, configfile
from slurm_elastic.model.cluster import Location
from slurm_elastic.providers import open_provider
from slurm_elastic.sandbox.cluster import Sandbox
from slurm_elastic.sandbox.ec2.faults import Fault, FaultKind
from slurm_elastic.sandbox.quickstart_proof import (
    JobWatch,
    RehearsedPartition,
    costs,
    job_problems,
    market_problems,
    parse_jobs,
    refused_and_next,
)
from slurm_elastic.sandbox.spec import DEFAULT_DIR, PARTITION, SandboxSpec, static_names
from slurm_elastic.state.ledger import Decision, Machine

USER = "nobody"
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SPOT_STOCK = 4  # of the emulated EC2: fewer than needed, so that on-demand machines are bought too
_JOB_RUN_S, _JOBS_DEADLINE_S, _SHRINK_DEADLINE_S, _POLL_EVERY_S = 15, 300.0, 150.0, 0.5
_ONE_NODE_COMMAND, _TWO_NODE_COMMAND = (
    "sleep {seconds}",
    "srun --kill-on-bad-exit sh -c 'hostname; sleep {seconds}'",
)
JOBS: Sequence[tuple[str, int, str]] = (
    *((f"sim-{n}", 1, _ONE_NODE_COMMAND) for n in range(1, 5)),
    ("mpi-1", 2, _TWO_NODE_COMMAND),
    ("sim-5", 1, _ONE_NODE_COMMAND),
    ("mpi-2", 2, _TWO_NODE_COMMAND),
    *((f"sim-{n}", 1, _ONE_NODE_COMMAND) for n in range(6, 9)),
)


def add(subparsers: Any) -> None:  # noqa: ANN401 - argparse's type has no public name
    parser = subparsers.add_parser(
        "quickstart",
        description="Start a hybrid cluster on this machine, submit ten jobs, show their progress "
        "and check the results. The exit code is 0 only if every check passed.",
        epilog=examples("slurm-elastic quickstart --keep"),
    )
    parser.add_argument("--keep", action="store_true", help="leave the cluster up at the end")
    parser.add_argument(
        "--dir",
        type=Path,
        default=DEFAULT_DIR,
        help="keep the cluster in this directory (default: %(default)s)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the demonstration. Exit 1 if a check failed."""
    console = Output(highlight=False, markup=False, soft_wrap=True)
    sandbox = Sandbox(
        SandboxSpec(
            dir=args.dir.resolve(),
            boot_seconds=3.0,
            suspend_time=10.0,
            elastic=dict(SETTINGS),
        )
    )
    with ended_like_ctrl_c():
        console.print("A cluster on this machine: real slurmctld and slurmd's, emulated clouds")
        sandbox.up(lambda step: console.print(f"  {step}"))
        kept = False
        try:
            problems = Demonstration(sandbox, console).perform()
            kept = args.keep
            if problems:
                _print_logs(sandbox)
        except SlurmElasticError:
            kept = args.keep
            _print_logs(sandbox)
            raise
        finally:
            if not kept:
                _clear_up(sandbox, console)
    for line in verdict(problems):
        console.print(line)
    if kept:
        for line in _hints(sandbox, args.dir):
            console.print(line)
    return 1 if problems else 0


def verdict(problems: Sequence[str]) -> list[str]:
    """The last lines: the summary, or all failed checks."""
    if problems:
        return [*(f"NOT AS IT SHOULD BE: {problem}" for problem in problems), "quickstart failed"]
    count = len(JOBS) + 1  # the job of the second act, too
    summary = f"{count} of {count} jobs completed, 0 instances left, on-premises used first"
    return [f"{summary}, multi-node jobs inside one partition"]


def _print_logs(sandbox: Sandbox) -> None:
    print(sandbox.log_tails(10), file=sys.stderr)


def _clear_up(sandbox: Sandbox, console: Console) -> None:
    # Ignore a second Ctrl-C: it would interrupt the clean-up and leave daemons running.
    for number in _ENDING:
        signal.signal(number, signal.SIG_IGN)
    console.print("Clearing up: daemons, machines and files of the sandbox")
    sandbox.down()


def _hints(sandbox: Sandbox, directory: Path) -> Iterator[str]:
    where = "" if directory == DEFAULT_DIR else f" --dir {shlex.quote(str(directory))}"
    yield "The cluster keeps running. Try this, as root, in a new shell:"
    yield "  bash"
    yield f"  export PATH={Path(sys.executable).parent}:$PATH"
    yield f'  eval "$(slurm-elastic sandbox env{where})"; cd {sandbox.work}'
    # Keep this order: the refusal below needs that no machine is idle, and then spot cools down.
    yield "A job that saves itself: when squeue shows it on a node, that machine is taken away"
    yield f"  rm -f walker.st* walker.runs; STEPS=900 sbatch {SCRIPT}; squeue"
    yield f"  slurm-elastic sandbox interrupt $(squeue -h -n walker -o %N) --notice 30{where}"
    yield "  slurm-elastic ckpt list; squeue"
    yield "No spot machine is available: the next offer is taken, and explain shows why"
    yield f"  slurm-elastic sandbox fail capacity --market spot{where}"
    yield "  j=$(sbatch --parsable -p aws -N 2 --wrap 'sleep 5')"
    yield "  sleep 10; slurm-elastic explain $j"
    yield f"  slurm-elastic sandbox heal{where}"
    yield "A job of three nodes, by plain sbatch"
    yield "  sbatch -N 3 --wrap 'srun hostname; sleep 60'; squeue"
    yield "  slurm-elastic status --watch 2      # until Ctrl-C"
    yield "  slurm-elastic explain pub1"
    yield "At the end"
    yield f"  slurm-elastic sandbox down{where}; exit"


class Demonstration:
    """Ten jobs on a running sandbox."""

    def __init__(self, sandbox: Sandbox, console: Console) -> None:
        self.sandbox = sandbox
        self.console = console
        self.config: Config = configfile.load(sandbox.layout.config)
        self.began = time.time()
        self.watch = JobWatch(self._places())
        self.progress = Progress(console)

    def perform(self) -> list[str]:
        """Run and print everything. Returns the failed checks."""
        self._obstacles()
        submitted = [self._submit(*job) for job in JOBS]
        self.console.print(
            f"Submitted as user {USER}, by plain sbatch: jobs {submitted[0]} to {submitted[-1]}"
        )
        with self.progress:
            self._until(self._jobs_over, _JOBS_DEADLINE_S)
        # The second act needs spot machines again.
        self.sandbox.ec2.heal()
        self.sandbox.ec2.stock("*/*/spot", None)
        act = MigrationAct(self.sandbox, self.console, self.config, self.began).perform()
        with self.progress:
            self.console.print("All jobs have ended; idle nodes are suspended after 10 s")
            leftovers = self._until(self._shrunk, _SHRINK_DEADLINE_S)
        machines = self._machines()
        self._tables(machines)
        problems = job_problems(self.watch, submitted) + leftovers
        decisions = self._decisions(machines)
        if refused_then_bought := refused_and_next(decisions):
            for word, decision in zip(
                ("Refused", "In the same request"), refused_then_bought, strict=True
            ):
                self.console.print(f"{word}: {decision.reason}")
        return problems + market_problems(machines, decisions) + act

    def _places(self) -> list[RehearsedPartition]:
        static = RehearsedPartition(
            partition=PARTITION,
            cloud="site",
            nodes=tuple(static_names(self.sandbox.spec)),
            own=True,
        )
        return [static, *(self._place(cloud.name) for cloud in self.config.clouds)]

    def _place(self, cloud: str) -> RehearsedPartition:
        settings = self.config.cloud(cloud)
        return RehearsedPartition(
            partition=settings.partition_name,
            cloud=cloud,
            nodes=tuple(n for p in self.config.pools if p.cloud == cloud for n in expand(p.nodes)),
            own=settings.location is Location.ON_PREMISES,
        )

    def _obstacles(self) -> None:
        ec2 = self.sandbox.ec2
        ec2.fail(Fault(kind=FaultKind.CAPACITY, action="RunInstances", market="spot", count=1))
        ec2.stock("*/*/spot", SPOT_STOCK)
        self.console.print(
            f"The public cloud has {SPOT_STOCK} spot machines, and refuses the first request for"
            " one: no capacity"
        )

    def _submit(self, name: str, nodes: int, command: str) -> int:
        script = (
            f"#!/bin/sh\n#SBATCH --job-name={name} --nodes={nodes} --ntasks-per-node=1\n"
            f"#SBATCH --cpus-per-task=2 --time=5\n{command.format(seconds=_JOB_RUN_S)}\n"
        )
        return self.sandbox.submit(script, user=USER)

    def _until(self, done: Callable[[], list[str]], deadline: float) -> list[str]:
        """Poll until ``done`` returns nothing. Return what ``done`` still misses after ``deadline``
        seconds.
        """
        until = time.monotonic() + deadline
        while True:
            answer = self.sandbox.run(["scontrol", "--oneliner", "show", "job"]).stdout
            self.watch.see(parse_jobs(answer))
            machines = [m.instance.market for m in self._machines() if not m.has_ended]
            self.progress.show(self.watch, machines, time.time() - self.began)
            missing = done()
            if not missing or time.monotonic() > until:
                return missing
            time.sleep(_POLL_EVERY_S)

    def _jobs_over(self) -> list[str]:
        return [job.name for job in self.watch.jobs.values() if not job.over]

    def _shrunk(self) -> list[str]:
        """The machines that clouds still list, else the nodes that Slurm has not powered down."""
        machines = [
            f"{m.id} ({m.node})"
            for m in self.sandbox.ec2.state().machines
            if m.state != "terminated"
        ]
        for cloud in self.config.clouds:
            # The public cloud's emulator was asked above, also for machines of other owners.
            if cloud.location is not Location.PUBLIC:
                provider = open_provider(cloud, self.config.cluster)
                machines += [f"{i.id} ({i.node})" for i in provider.instances()]
        if machines:
            return [f"still there: {name}" for name in machines]
        nodes = self.sandbox.nodes()
        own_nodes = [n for p in self.config.pools for n in expand(p.nodes)]
        up = [n for n in own_nodes if n not in nodes or "POWERED_DOWN" not in nodes[n].states]
        return [f"node {name} is not powered down" for name in up]

    def _machines(self) -> Sequence[Machine]:
        with ledger_of(self.config) as ledger:
            return ledger.machines.live(ended_since=self.began - 1)

    def _decisions(self, machines: Sequence[Machine]) -> list[Decision]:
        with ledger_of(self.config) as ledger:
            return [
                d
                for node in {m.instance.node for m in machines}
                for d in ledger.decisions.about(node)
            ]

    def _tables(self, machines: Sequence[Machine]) -> None:
        prices = {
            name: kind.price
            for cloud in self.config.clouds
            if cloud.location is Location.PUBLIC
            for name, kind in cloud.shapes.items()
        }
        self.console.print(job_table(self.watch, machines))
        self.console.print(cost_table(costs(machines, prices, time.time())))
