"""The quickstart's second act: a price spike, a notice, and a job that continues elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console

from slurm_elastic.base import writing
from slurm_elastic.base.errors import SandboxError
from slurm_elastic.base.units import money
from slurm_elastic.config import Config
from slurm_elastic.model.cluster import Instance, Location, Market
from slurm_elastic.sandbox.cluster import Sandbox
from slurm_elastic.sandbox.control import interrupt
from slurm_elastic.sandbox.quickstart_proof import costs
from slurm_elastic.state.ledger import Decision, Ledger, Machine

USER = "nobody"
SPIKE = 0.075
"""The spot price ($/h) of the spike. It is below the bid, and more than half way to it."""
SETTINGS: Mapping[str, Any] = {
    "checkpoint": {
        "policy": "first_of(on_notice, threshold)",
        "expected_duration": "5s",
        "deadline_margin": "2s",
        "notices": {"poll_interval": 1},
        "prices": {"source": "cloud", "poll_interval": 1},
    },
    "pools": [{"name": "pub", "max_price": {"of_on_demand": 1.0}}],
}
"""The part of the configuration that the act needs."""
STEPS, _DEADLINE_S, _POLL_EVERY_S = 150, 150.0, 0.2
_NAME = "walker"
SCRIPT = f"{_NAME}.sh"
"""The file of a job that saves itself, in the sandbox's work directory."""
_SCRIPT = f"""#!/bin/bash
#SBATCH --job-name={_NAME} --cpus-per-task=2 --time=5 --partition=PARTITION
#SBATCH --comment=ckpt=signal,saved=file:{_NAME}.state,stop_signal=USR2
n=$(cat {_NAME}.state 2>/dev/null || echo 0)
save() {{ echo "$n" > {_NAME}.new; mv {_NAME}.new {_NAME}.state; }}
trap save USR1                                  # save, and go on
trap 'save; held=1; while [ "$held" ]; do sleep 1; done' USR2   # save, and wait to be moved
trap 'sleep 10 && held=' CONT  # the move does not come: go on here; else SIGTERM comes with it
echo "$n" >> {_NAME}.runs
while [ "$n" -lt "${{STEPS:-{STEPS}}}" ]; do echo "$((++n))" >> {_NAME}.steps; sleep 0.2; done
"""


def ledger_of(config: Config) -> contextlib.closing[Ledger]:
    """The ledger of the sandbox's slurm-elasticd, read-only."""
    return contextlib.closing(Ledger(config.state / "ledger.db", read_only=True))


class MigrationAct:
    """The second act of the quickstart. It needs a running sandbox whose cloud has spot machines
    again.
    """

    def __init__(
        self, sandbox: Sandbox, console: Console, config: Config, story_began: float
    ) -> None:
        self.sandbox, self.console, self.config = sandbox, console, config
        self.story_began, self.began = story_began, time.time()
        self.cloud = next(c for c in config.clouds if c.location is Location.PUBLIC)
        self.job = 0

    def perform(self) -> list[str]:
        """Run and print everything. Returns the failed checks."""
        self._say("Act two: the price of a spot machine rises, then it is taken away")
        try:
            return self._perform()
        except SandboxError as error:
            return [f"act two: {error}"]
        finally:
            self.sandbox.ec2.price("*", "*", None)

    def _perform(self) -> list[str]:
        script = _SCRIPT.replace("PARTITION", self.cloud.partition_name)
        # With --keep, users can submit this script again.
        writing.replace(self.sandbox.work / SCRIPT, script.encode(), 0o644)
        self._until(self._none_on_demand, "the end of the idle on-demand machines")
        self.job = self.sandbox.submit(script, user=USER)
        self._until(lambda: len(self._steps()) >= 10, "the job does its first steps")
        first_machine = self._machine()
        self._line(
            f"job {self.job} of {USER} runs on {_bought(first_machine)}:"
            f" plain sbatch, {STEPS} steps"
        )
        self._spike(first_machine)
        self._line(f"The cloud will take {first_machine.node} in two minutes")
        interrupt(self.sandbox.ec2, first_machine.node, 120.0)
        moved = self._decision("ckpt-back")
        self._line(f"{self._decision('ckpt-saved', 1).reason}; requeued at once")
        self._line(f"{moved.reason}: {_bought(self._machine())}")
        self.sandbox.wait_job(self.job, "COMPLETED", "FAILED", "NODE_FAIL", timeout=_DEADLINE_S)
        return self._verdict(first_machine)

    def _spike(self, machine: Instance) -> None:
        self.sandbox.ec2.price(machine.instance_type, machine.zone, SPIKE)
        self._line(
            f"the spot price of {machine.instance_type} in {machine.zone} jumps from"
            f" {money(machine.price)} to {money(SPIKE)}"
        )
        self._line(str(self._decision("ckpt-saved").reason))

    def _verdict(self, first_machine: Instance) -> list[str]:
        fields = self.sandbox.job(self.job)
        steps = self._steps()
        problems = []
        if fields["JobState"] != "COMPLETED" or fields["Restarts"] != "1":
            state = f"{fields['JobState']} after {fields['Restarts']} restarts"
            problems.append(f"{_NAME} (job {self.job}) is {state}, not COMPLETED after 1")
        if steps != [str(n) for n in range(1, STEPS + 1)]:
            problems.append(f"{_NAME} did {len(steps)} steps, not each of {STEPS} once")
        if fields["NodeList"] == first_machine.node:
            problems.append(f"{_NAME} ended on {first_machine.node}, which was taken away")
        if not problems:
            begun = self._read("runs")[-1]
            self._line(
                f"completed: all {STEPS} steps done, none twice; {begun} were saved from the lost"
                f" machine; {self._saved_money()}"
            )
        return problems

    def _saved_money(self) -> str:
        prices = {name: kind.price for name, kind in self.cloud.shapes.items()}
        nodes = {node for d in self._decisions() for node in d.subjects}
        spot_machines = [
            m for m in self._machines()
            if m.instance.node in nodes and m.instance.market is Market.SPOT
        ]  # fmt: skip
        rows = costs(spot_machines, prices, time.time())
        paid, listed = sum(r.dollars for r in rows), sum(r.on_demand or 0.0 for r in rows)
        share = f" ({1 - paid / listed:.0%} saved)" if listed else ""
        return f"its spot machines cost {money(paid)}, on demand {money(listed)}{share}"

    # reading

    def _none_on_demand(self) -> bool:
        """Whether no on-demand machine lives: the job would get an idle one, without spot price."""
        with ledger_of(self.config) as ledger:
            return all(m.instance.market is not Market.ON_DEMAND for m in ledger.machines.live())

    def _machine(self) -> Instance:
        """The machine that the job runs on."""
        node = self.sandbox.job(self.job)["NodeList"]
        candidates = [m.instance for m in self._machines() if m.instance.node == node]
        if not candidates:
            raise SandboxError(f"the ledger knows no machine of node {node}")
        return max(candidates, key=lambda i: i.launched)

    def _steps(self) -> list[str]:
        return self._read("steps")

    def _read(self, name: str) -> list[str]:
        path = self.sandbox.work / f"{_NAME}.{name}"
        return path.read_text().split() if path.exists() else []

    def _machines(self) -> Sequence[Machine]:
        with ledger_of(self.config) as ledger:
            return ledger.machines.live(ended_since=self.began)

    def _decisions(self) -> Sequence[Decision]:
        with ledger_of(self.config) as ledger:
            return ledger.decisions.about(f"job:{self.job}")

    def _decision(self, kind: str, number: int = 0) -> Decision:
        """Wait for the job's decision of that kind: the first (``number`` 0), or a later one."""

        def found() -> list[Decision]:
            return [d for d in self._decisions() if d.kind == kind][number : number + 1]

        self._until(lambda: bool(found()), f"{kind} of job {self.job}")
        return found()[0]

    def _until(self, done: Callable[[], bool], awaited: str) -> None:
        self.sandbox.wait_for(done, _DEADLINE_S, awaited, period=_POLL_EVERY_S)

    def _line(self, text: str) -> None:
        self._say(f"{time.time() - self.story_began:4.0f} s {text}")

    def _say(self, text: str) -> None:
        self.console.print(text)
        sys.stdout.flush()


def _bought(machine: Instance) -> str:
    return f"{machine.node}, {machine.instance_type} in {machine.zone}, {machine.market}"
