"""A month of a real history on the simulator: costs by each key sum to the simulator's bill.

The simulator only counts machines of a batch; here each gets a name when it begins, and jobs get
machines by name, in the order in which things happen.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from cost_cases import config_file, machine
from msgspec.structs import replace

from benchmarks.traces import history
from slurm_elastic.base.hostlist import compress
from slurm_elastic.cli.main import main
from slurm_elastic.cli.reports import cost
from slurm_elastic.features.money.cost_keys import By
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.memory import ChargedRun
from slurm_elastic.policies.growth.release import Idle
from slurm_elastic.policies.money.cost_split import WHOLE
from slurm_elastic.simulate import core
from slurm_elastic.simulate.boot import BootTimes
from slurm_elastic.simulate.engine import simulate
from slurm_elastic.simulate.histories.jobs import Job, Jobs
from slurm_elastic.simulate.histories.swf import load
from slurm_elastic.simulate.machines import PoolMachines
from slurm_elastic.simulate.outcome import RunResult
from slurm_elastic.simulate.runs import Runs
from slurm_elastic.simulate.scenario import PoolModel, Scenario
from slurm_elastic.state.ledger import Ledger

START = 1_790_000_000
MONTH = 30 * 86400
SYNTHETIC = Path(__file__).parent / "data" / "synthetic.swf"
PRICE = 0.36
"""$/h: a hundred micro-dollars a second, so that the simulator's own sum is exact."""


class Named:
    """Machines and runs by name, as the simulation goes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.free: defaultdict[int, list[int]] = defaultdict(list)
        self.begun: dict[int, int] = {}
        self.ended: dict[int, int] = {}
        self.held: dict[int, list[tuple[int, int]]] = {}
        self.runs: list[tuple[int, int, int, list[int]]] = []
        self._follow(monkeypatch)

    def _follow(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(core.SWITCH, "0")  # the machines and runs of the engine in Python
        made, ended, begun = PoolMachines._batch, PoolMachines.end, Runs.begin
        finished = Runs.finish

        def batch(this: PoolMachines, start: int, count: int, offer: int, ready: int = -1) -> int:
            number = made(this, start, count, offer, ready)
            for _ in range(count):
                name = len(self.begun)
                self.begun[name] = start
                self.free[number].append(name)
            return number

        def end(this: PoolMachines, number: int, count: int, now: int, **how: Any) -> None:
            for _ in range(count):
                self.ended[self.free[number].pop()] = now
            ended(this, number, count, now, **how)

        def begin(this: Runs, job: int, pool: int, pieces: Any, *rest: Any) -> tuple[int, int]:
            took = [(number, self.free[number].pop()) for number, n in pieces for _ in range(n)]
            self.held[job] = took
            return begun(this, job, pool, pieces, *rest)

        def finish(this: Runs, run: Any, now: int) -> None:
            took = self.held.pop(run.job)
            self.runs.append((run.job, run.ready, now, [name for _, name in took]))
            for number, name in took:
                self.free[number].append(name)
            finished(this, run, now)

        monkeypatch.setattr(PoolMachines, "_batch", batch)
        monkeypatch.setattr(PoolMachines, "end", end)
        monkeypatch.setattr(Runs, "begin", begin)
        monkeypatch.setattr(Runs, "finish", finish)

    def write(self, ledger: Ledger, jobs: Jobs) -> None:
        """Each machine is a node of its own here: names of nodes do not matter to the sums."""
        with ledger.together():
            for name, begin in self.begun.items():
                node, at = f"pub{name}", float(START + begin)
                one = replace(machine(node, at, PRICE), id=f"i-{name}", generation=f"g-{name}")
                ledger.machines.adopt(one, "burst", at)
                ledger.machines.record_registration("aws", [one.id], at + 120)
                ledger.machines.record_end(
                    "aws", [one.id], Quoted(text="idle"), float(START + self.ended[name])
                )
        ledger.usage.write([
            ChargedRun(
                job=job, begin=START + ready, end=START + end, label=str(job),
                user=f"user{jobs.user[job]}", uid=jobs.user[job],
                account=f"account{jobs.user[job] % 7}", partition=f"queue{jobs.partition[job]}",
                shares=((compress([f"pub{name}" for name in names]), WHOLE),),
            )
            for job, ready, end, names in self.runs
        ])  # fmt: skip


def month(path: Path) -> tuple[Jobs, int]:
    """The first thirty days, and the largest job."""
    read = load(path).jobs
    rows = [Job(*row) for row in zip(*(getattr(read, f) for f in Job._fields), strict=True)]
    some = [job for job in rows if job.submit < rows[0].submit + MONTH]
    return Jobs(some), max(job.procs for job in some)


def simulated(jobs: Jobs, nodes: int, named: Named, ledger: Ledger) -> RunResult:
    pool = PoolModel(
        name="burst", machines=nodes, price=PRICE, boot=BootTimes(((1, 120),)), release=Idle(600)
    )
    found = simulate(jobs, Scenario(pools=(pool,)))
    named.write(ledger, jobs)
    return found


@pytest.mark.parametrize(
    "name", ["synthetic", pytest.param("SDSC-SP2-1998-4.2-cln", marks=pytest.mark.release)]
)
def test_costs_of_a_month_sum_to_the_simulators_bill(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = SYNTHETIC if name == "synthetic" else history(name)
    if path is None:
        pytest.skip(f"the history {name} is not here: set SLURM_ELASTIC_DATA")
    jobs, most = month(path)
    file = config_file(tmp_path)
    ledger = Ledger(tmp_path / "state" / "ledger.db")
    found = simulated(jobs, max(most, 8), Named(monkeypatch), ledger)
    ledger.close()
    bill = round(found.figures.cost * 1_000_000)
    assert abs(bill - found.figures.cost * 1_000_000) < 0.01, "a whole number of micro-dollars"
    monkeypatch.setattr(cost.time, "time", lambda: START + 6 * MONTH)
    sums = {}
    for by in By:
        since = cost.datetime.fromtimestamp(START - 86400, cost.UTC).isoformat()
        words = ["cost", "--by", by, "--since", since, "--format", "json"]
        assert main(["--config", str(file), *words]) == 0
        document = json.loads(capsys.readouterr().out)
        assert document["problems"] == []
        assert sum(line["micro_dollars"] for line in document["lines"]) == bill
        sums[by] = document
    assert len(sums[By.JOB]["lines"]) > len(jobs) * 0.9
    used = sum(x["micro_dollars"] for x in sums[By.USER]["lines"] if not x["unused"])
    seconds = sum((end - ready) * len(names) for _, ready, end, names in _runs(tmp_path))
    assert abs(used - seconds * 100) <= sums[By.USER]["pieces_checked"]


def _runs(directory: Path) -> list[tuple[int, int, int, list[str]]]:
    from slurm_elastic.base.hostlist import expand

    ledger = Ledger(directory / "state" / "ledger.db", read_only=True)
    rows = ledger.usage.runs(0, 3e9)
    ledger.close()
    return [(r.job, int(r.begin), int(r.end or 0), expand(r.shares[0][0])) for r in rows]
