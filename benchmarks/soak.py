"""Memory of slurm-elasticd for each job that it has seen, over thousands of jobs on a sandbox.

Jobs of a second run on machines that stay; a machine is given back and bought again all the time.
Both services keep history for ten minutes. Growth is counted from the thousandth job on: the
median of the memory around the last jobs against that around the thousandth.
"""

from __future__ import annotations

import argparse
import json
import pwd
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.report import Report, Row, at_least, bounded, noted, report
from slurm_elastic.sandbox import control
from slurm_elastic.sandbox.cluster import Sandbox
from slurm_elastic.sandbox.daemons import CKPTMAN, ELASTICD
from slurm_elastic.sandbox.spec import SandboxSpec

REPOSITORY = Path(__file__).parents[1]
FIRST = 1000
MOST_KB_A_JOB = 0.2
SERVICES = {
    ELASTICD: "slurm_elastic.cli.services.daemon",
    CKPTMAN: "slurm_elastic.cli.services.ckptman",
}
NODES = "pub"
LISTED_AFTER_END_S = 60.0
"""Seconds for which EC2 lists an ended machine; less than the first thousand jobs take."""
_SPAN_S = 120.0
_ASK_EVERY = 30
BATCH = 20
"""Jobs that wait at most, and are sent at a time."""


def main(arguments: Sequence[str]) -> Report:
    """A sandbox of its own, which goes at the end."""
    parser = argparse.ArgumentParser(prog="scripts/bench soak")
    parser.add_argument("--jobs", type=int, default=5000)
    parser.add_argument("--launches", type=int, default=300, help="at least")
    parser.add_argument("--history", type=float, default=600.0, metavar="S")
    parser.add_argument("--dir", type=Path, default=Path("/tmp/slurm-elastic-soak"))
    parser.add_argument("--traced", action="store_true", help="by tracemalloc; some times slower")
    options = parser.parse_args(arguments)
    sandbox = Sandbox(SandboxSpec(
        dir=options.dir, static_nodes=1, boot_seconds=0.5, suspend_time=3600.0,
        slurm_conf=("MinJobAge=60", "SlurmctldDebug=error", "SlurmdDebug=error"),
        elastic={"limits": {"dollars_per_hour": 1000.0}},
    ))  # fmt: skip
    sandbox.up(lambda what: print(what, file=sys.stderr))
    try:
        soak = Soak(sandbox, options)
        soak.serve()
        soak.run()
        return report("soak", soak.rows())
    finally:
        sandbox.down()


class Soak:
    """``done``: when so many jobs had ended, as (time, jobs)."""

    def __init__(self, sandbox: Sandbox, options: argparse.Namespace) -> None:
        self._sandbox, self._options = sandbox, options
        self._notes = {name: sandbox.layout.dir / "state" / f"{name}.memory" for name in SERVICES}
        self._sent = self._told = 0
        self.done: list[tuple[float, int]] = []

    def serve(self) -> None:
        """Both services again, with their memory noted."""
        sandbox, options = self._sandbox, self._options
        # With an hour, as EC2's, the list of machines would grow during the whole soak, and with it
        # the memory that reading the list takes at most.
        control.attached(options.dir).forget_ended(LISTED_AFTER_END_S)
        sandbox.daemon_stop()
        sandbox.ckptman_stop()
        traced = "traced" if options.traced else "plain"
        environment = sandbox.layout.daemon_env() | {"PYTHONPATH": str(REPOSITORY)}
        for name, module in SERVICES.items():
            argv = [sys.executable, "-m", "benchmarks.soak_service", str(self._notes[name])]
            argv += [str(options.history), traced, module, "--config", str(sandbox.layout.config)]
            sandbox.processes.start(name, argv, environment, user=pwd.getpwnam("slurm").pw_name)

    def run(self) -> None:
        """Send jobs as others end, and give a machine back every few jobs."""
        options = self._options
        every = max(1, options.jobs // options.launches)
        given_back = 0
        while (ended := self._ended()) < options.jobs or self.launches() < options.launches:
            self.done.append((time.time(), ended))
            if self._sent - ended < BATCH:
                self._send()
            while given_back * every < ended:
                given_back += 1
                self._give_back(given_back)
            if len(self.done) % _ASK_EVERY == 0:
                self._ask()
            time.sleep(1.0)
            self._tell(ended)
        self.done.append((time.time(), ended))

    def _send(self) -> None:
        self._sandbox.run(
            ["sbatch", "-p", "aws", "-c1", "-t1", "-o", "/dev/null", f"--array=1-{BATCH}",
             "--wrap", "sleep 1"]
        )  # fmt: skip
        self._sent += BATCH

    def _ask(self) -> None:
        """As users and operators do, and what collects metrics."""
        program = str(Path(sys.executable).with_name("slurm-elastic"))
        command = [program, "--config", str(self._sandbox.layout.config)]
        for words in (["status", "--json"], ["cost"]):
            self._sandbox.run([*command, *words], check=False)

    def _ended(self) -> int:
        waiting = self._sandbox.run(["squeue", "-h", "-r", "-t", "PD,R,CG,CF,S", "-o", "%i"]).stdout
        return self._sent - len(waiting.split())

    def _give_back(self, number: int) -> None:
        node = f"{NODES}{number % 6 + 1}"
        self._sandbox.run(
            ["scontrol", "update", f"nodename={node}", "state=power_down"], check=False
        )

    def launches(self) -> int:
        """Machines that the cloud has started so far."""
        lines = self._sandbox.processes.log(ELASTICD).read_text(errors="replace")
        return lines.count("launched ")

    def _tell(self, ended: int) -> None:
        if ended // 100 == self._told:
            return
        self._told = ended // 100
        last = self._memory(ELASTICD)[-1:]
        print(f"{ended} jobs, {self.launches()} launches, {last}", file=sys.stderr, flush=True)

    def _memory(self, name: str) -> list[dict[str, float]]:
        if not self._notes[name].exists():
            return []
        return [json.loads(line) for line in self._notes[name].read_text().splitlines()]

    def rows(self) -> list[Row]:
        """The figures of both services."""
        first = next(at for at, jobs in self.done if jobs >= FIRST)
        jobs, launches = self.done[-1][1], self.launches()
        rows = [
            at_least("jobs", jobs, self._options.jobs, "jobs", 1.0),
            at_least("launches", launches, self._options.launches, "machines", 1.0),
        ]
        for name in SERVICES:
            for kind in ("own", "used"):
                before, after = self._around(name, kind, first), self._around(name, kind, None)
                rows.append(noted(f"{name}, {kind}, job {FIRST}", before / 1024, "MiB"))
                rows.append(noted(f"{name}, {kind}, job {jobs}", after / 1024, "MiB"))
                grown = (after - before) / max(jobs - FIRST, 1)
                rows.append(bounded(f"{name}, {kind}", grown, MOST_KB_A_JOB, "KiB a job"))
            blocks = self._around(name, "blocks", None) - self._around(name, "blocks", first)
            grown = blocks / max(jobs - FIRST, 1)
            rows.append(noted(f"{name}, blocks of Python", grown, "a job"))
        return rows

    def _around(self, name: str, kind: str, at: float | None) -> float:
        """The median of two minutes: a reading of a long list may be under way in any second."""
        notes = self._memory(name)
        end = notes[-1]["at"] if at is None else at + _SPAN_S
        values = [
            note[kind] for note in notes if end - _SPAN_S <= note["at"] <= end and kind in note
        ]
        return statistics.median(values)


if __name__ == "__main__":
    main(sys.argv[1:]).show()
