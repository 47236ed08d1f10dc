"""One small machine, step by step, from the launch to its end, with the evidence where it stops."""

from __future__ import annotations

import contextlib
import os
import pwd
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from slurm_elastic.base.errors import SlurmElasticError, SlurmError
from slurm_elastic.base.units import brief, money
from slurm_elastic.cli.streams import visible
from slurm_elastic.cli.trial_evidence import Evidence
from slurm_elastic.config import Config
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.cluster import Pool
from slurm_elastic.model.memory import Machine, decided_at
from slurm_elastic.model.slurm import SlurmJob, SlurmNode
from slurm_elastic.policies.launch.trial import (
    MEANING,
    SLURMCTLD,
    Diagnosis,
    Look,
    Rest,
    Step,
    diagnosis,
    is_over,
    reached,
)
from slurm_elastic.policies.nodes.node_state import Phase, is_down, is_drained, phase
from slurm_elastic.slurm.client import node_updates
from slurm_elastic.slurm.client.prompt import PromptCli
from slurm_elastic.state.audit_trail import pool_subject
from slurm_elastic.state.ledger import Decision, Ledger
from slurm_elastic.state.spool import Spool
from slurm_elastic.watch.door.orders import own_name

T = TypeVar("T")
PERIOD = 1.0
SILENCE = 60.0
"""Seconds for which slurmctld may answer nothing, as a busy one does, before it is told."""
COMMAND = 60.0
NO_USER = 67  # EX_NOUSER of sysexits.h: Slurm starts jobs of unknown users, too (22.05, measured)
JOB_TIME = 180.0
END_TIME = 300.0
CORRELATION = "try"
REFUSED = frozenset(
    {"refused", "boot-failed", "node-failed", "dropped", "key-refused", "cooled-down"}
)


class StoppedError(SlurmElasticError):
    """It got no further."""

    def __init__(self, found: Diagnosis) -> None:
        super().__init__(found.words)
        self.found = found


class Trial:
    """One machine, from its order to its end."""

    def __init__(
        self, config: Config, slurm: PromptCli, pool: Pool, user: pwd.struct_passwd,
        timeout: float | None,
    ) -> None:  # fmt: skip
        self.config, self.slurm, self.pool, self.user = config, slurm, pool, user
        self.timeout = timeout or config.resume_timeout(config.cloud(pool.cloud))
        self.began = time.time()
        self.node = ""
        self.made: tuple[Step, ...] = ()
        self.last: Machine | None = None
        self._evidence = Evidence(config)

    def run(self) -> int:
        """The exit code."""
        code = 1
        try:
            self._start()
            self._boot()
            self._run_job()
            code = 0
        except StoppedError as stopped:
            tell(stopped.found)
            self._show_console()
        except KeyboardInterrupt:
            print("\ninterrupted: ending its machine", flush=True)
            code = 130
        finally:
            ended = self._end()
        return code if ended or code else 1

    # the steps

    def _start(self) -> None:
        view = self._asked(lambda: self.slurm.nodes(self.pool.nodes))
        free = [n for n in self.pool.nodes if n in view and _is_free(view[n])]
        if not free:
            first = next((view[n] for n in self.pool.nodes if n in view), None)
            why = first.reason if first and first.reason else "all of them are up or reserved"
            words = f"pool {self.pool.name} has no node to try: {why}"
            raise StoppedError(diagnosis(Step.ASKED, [words]))
        self.node = free[0]
        self._record("tried", f"{own_name()} tries one machine of pool {self.pool.name}")
        self.began = time.time()
        try:
            node_updates.power_up(self.slurm, [self.node])
        except SlurmError as error:  # it may have been taken all the same, so it is not repeated
            raise self._silent(error) from error

    def _boot(self) -> None:
        while Step.REGISTERED not in self.made:
            seen = self._asked(self._look)
            self._note(reached(seen, self.made))
            if Step.REGISTERED in self.made:
                return
            late = time.time() - self.began > self.timeout
            if seen.refused or late or self._is_given_up(seen):
                raise StoppedError(diagnosis(self._next(), self._why(seen, late=late)))
            time.sleep(PERIOD)

    def _run_job(self) -> None:
        job = self._submit()
        try:
            self._follow(job)
        finally:
            self._sh("scancel", str(job))

    def _follow(self, job: int) -> None:
        until = time.time() + JOB_TIME
        while time.time() < until:
            jobs = self._asked(lambda: self.slurm.jobs(ended=True))
            found = next((j for j in jobs if j.id == job), None)
            if found is not None and "COMPLETED" in found.states and found.has_ended:
                self._note((*self.made, Step.JOB))
                return
            if why := self._job_trouble(found):
                logged = self._evidence.logged(self.node)
                console = self._evidence.console(self.last)
                raise StoppedError(diagnosis(Step.JOB, [*why, *logged, *reversed(console)]))
            time.sleep(PERIOD)
        raise StoppedError(diagnosis(Step.JOB, [f"job {job} did not end in {brief(JOB_TIME)}"]))

    def _end(self) -> bool:
        """Whether the machine is known to have ended; told."""
        if not self.node:
            return True
        print(f"ending {self.node} ...", flush=True)
        try:
            return self._ended()
        except KeyboardInterrupt:
            print("\nnot waited for: slurm-elasticd ends it (slurm-elastic status)", flush=True)
            raise

    def _ended(self) -> bool:
        until = time.monotonic() + END_TIME
        why = f"the machine is not ended after {brief(END_TIME)}"
        while time.monotonic() < until:
            try:
                rest = self._rest()
                if is_over(rest):
                    self._say(Step.ENDED, _ended_words(rest.machines, time.time()))
                    return True
                self._order_end(rest.node)
            except SlurmError as error:  # asked and ordered again: a busy slurmctld is no end
                why = f"{SLURMCTLD}{error}"
            time.sleep(PERIOD)
        tell(diagnosis(Step.ENDED, [why]))
        return False

    def _rest(self) -> Rest:
        """Each thing is read before what it becomes, so that none is missed in between."""
        node = self.slurm.nodes([self.node]).get(self.node)
        with self.config.sharing():
            waiting = [r for r in Spool(self.config.state).pending() if self.node in r.nodes]
        with self._ledger() as ledger, ledger.moment():
            launches = ledger.launches.open()
            machines = self._machines(ledger)
        return Rest(
            node=node,
            requested=any(request.kind == "resume" for request in waiting),
            launching=any(self.node in launch.nodes for launch in launches),
            machines=machines,
            refused=bool(self._refused()),
        )

    def _order_end(self, node: SlurmNode | None) -> None:
        """As often as Slurm has it up or coming: an order may come too early, or be lost."""
        if node is not None and phase(node) is Phase.POWERING_UP:
            reason = "slurm-elastic:hold:tried by an operator"
            node_updates.power_down_by_force(self.slurm, [self.node], reason)
        elif node is not None and phase(node) is Phase.UP and "POWER_DOWN" not in node.states:
            node_updates.power_down(self.slurm, [self.node])

    # looking

    def _asked(self, read: Callable[[], T]) -> T:
        """As Slurm answers; StoppedError where it answers nothing for a while."""
        until = time.monotonic() + SILENCE
        while True:
            try:
                return read()
            except SlurmError as error:
                if not error.unanswered or time.monotonic() > until:
                    raise self._silent(error) from error
                time.sleep(PERIOD)

    def _silent(self, error: SlurmError) -> StoppedError:
        return StoppedError(diagnosis(self._next(), [f"{SLURMCTLD}{error}"]))

    def _look(self) -> Look:
        node = self.slurm.nodes([self.node]).get(self.node)
        with self._ledger() as ledger:
            self.last = max(self._machines(ledger), key=lambda m: m.instance.launched, default=None)
        machine, refused = self.last, self._refused()
        addressed = machine is not None and bool(machine.instance.address)
        answers = self._evidence.answers(machine, node) if machine and addressed else None
        return Look(node=node, machine=machine, refused=refused, answers=answers)

    def _machines(self, ledger: Ledger) -> tuple[Machine, ...]:
        """The machines of this node since the start, by the head's clock; the ended ones, too."""
        return tuple(
            m
            for m in ledger.machines.live(ended_since=self.began, nodes=[self.node])
            if decided_at(m.instance) >= int(self.began)
        )

    def _refused(self) -> str:
        with self._ledger() as ledger:
            told = ledger.decisions.about(self.node)
        mine = [d for d in told if d.at >= self.began and d.kind in REFUSED]
        return mine[0].reason if mine else ""

    def _is_given_up(self, seen: Look) -> bool:
        """Slurm does not wait for the node any more."""
        node = seen.node
        if node is None or time.time() - self.began < 5 * PERIOD:
            return False
        return is_down(node) or phase(node) in (Phase.POWERED_DOWN, Phase.POWERING_DOWN)

    def _why(self, seen: Look, *, late: bool) -> Iterator[str]:
        """The best first."""
        yield from self._evidence.why(self.made, seen, self.node, self.pool.cloud)
        if late:
            yield f"it took longer than {brief(self.timeout)}"

    def _show_console(self) -> None:
        lines = self._evidence.console(self.last)
        if lines:
            print("the last lines of its console:")
            for line in lines:
                print(visible(f"  | {line[:160]}"))

    def _next(self) -> Step:
        return list(Step)[len(self.made)]

    # the job

    def _submit(self) -> int:
        partition = self.config.cloud(self.pool.cloud).partition_name
        words = [
            "sbatch", "--parsable", f"--partition={partition}", f"--nodelist={self.node}",
            "--nodes=1", "--ntasks=1", "--time=2", "--job-name=slurm-elastic-try",
            "--output=/dev/null", "--chdir=/", f"--wrap=id -un || exit {NO_USER}; hostname",
        ]  # fmt: skip
        done = self._sh(*words, as_user=True)
        number = done.stdout.strip().partition(";")[0]
        if done.returncode or not number.isdigit():
            raise StoppedError(
                diagnosis(Step.JOB, [f"sbatch as {self.user.pw_name}: {done.stderr}"])
            )
        return int(number)

    def _job_trouble(self, job: SlurmJob | None) -> list[str]:
        """Why it will not end well, where that is clear."""
        node = self._asked(lambda: self.slurm.nodes([self.node]).get(self.node))
        words = [node.reason] if node and (is_drained(node) or is_down(node)) else []
        if job is None:
            return words
        if job.has_ended and job.exit_code == NO_USER:
            return [f"no such user on the machine: {self.user.pw_name}, uid {self.user.pw_uid}"]
        if job.has_ended:
            return [*words, f"job {job.id} is {' '.join(sorted(job.states))}, exit {job.exit_code}"]
        if "PENDING" in job.states and job.restarts:
            words = words or list(filter(None, [self._evidence.reason(self.node)]))
            return [*words, f"job {job.id} could not be started there: {job.reason}"]
        return words

    def _sh(self, *words: str, as_user: bool = False) -> subprocess.CompletedProcess[str]:
        command = [str(Path(self.config.slurm.bin_dir) / words[0]), *words[1:]]
        env = {"SLURM_CONF": self.config.slurm.conf, "PATH": "/usr/bin:/bin"}
        other = as_user and os.geteuid() == 0
        groups = os.getgrouplist(self.user.pw_name, self.user.pw_gid) if other else None
        try:
            return subprocess.run(
                command, env=env, check=False, capture_output=True, text=True, cwd="/",
                timeout=COMMAND, user=self.user.pw_uid if other else None,
                group=self.user.pw_gid if other else None, extra_groups=groups,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(command, 124, "", f"no answer in {brief(COMMAND)}")

    # telling

    def _note(self, made: Sequence[Step]) -> None:
        for step in made[len(self.made) :]:
            self._say(step, f"{MEANING[step]}{self._detail(step)}")
        self.made = tuple(made)

    def _detail(self, step: Step) -> str:
        if step is Step.ASKED:
            return f": {self.node}"
        if step is Step.JOB:
            return f", by {self.user.pw_name}"
        if self.last is None:
            return ""
        one = self.last.instance
        if step is Step.LAUNCHED:
            return f": {one.id}, {one.instance_type} {one.zone} {one.market}, {money(one.price)}/h"
        return f": {one.address}" if step is Step.ADDRESS else ""

    def _say(self, step: Step, text: str) -> None:
        print(visible(f"{time.time() - self.began:7.1f}s  {step:<10}  {text}"), flush=True)

    @contextlib.contextmanager
    def _ledger(self) -> Iterator[Ledger]:
        path = self.config.state / "ledger.db"
        with self.config.sharing(), contextlib.closing(Ledger(path, read_only=True)) as ledger:
            yield ledger

    def _record(self, kind: str, reason: str) -> None:
        subjects = (self.node, pool_subject(self.pool.name))
        path = self.config.state / "ledger.db"
        with self.config.sharing(), contextlib.closing(Ledger(path)) as ledger:
            ledger.decisions.record(
                Decision(at=time.time(), correlation=CORRELATION, kind=kind, subjects=subjects,
                         cause=Quoted(text=reason))
            )  # fmt: skip


def _is_free(node: SlurmNode) -> bool:
    return phase(node) is Phase.POWERED_DOWN and not is_drained(node) and not is_down(node)


def _ended_words(machines: Sequence[Machine], now: float) -> str:
    if not machines:
        return "no machine was started"
    dollars = sum(machine.lease.cost(now) for machine in machines)
    return f"{MEANING[Step.ENDED]}; {money(dollars)} in all"


def tell(found: Diagnosis) -> None:
    """The step at which it stopped, the cause and what to do."""
    name = f"{found.name}: " if found.name else ""
    print(visible(f"STOPPED before {found.step!s} ({MEANING[found.step]})"))
    if found.words:
        print(visible(f"  cause: {name}{found.words[:400]}"))
    if found.remedy:
        print(f"  do: {found.remedy}")
    for line in found.usual:
        print(f"  often: {line}")
