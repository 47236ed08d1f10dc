"""Start one machine step by step until its end, and report the evidence if a step fails."""

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
from slurm_elastic.base.units import brief, counted, money
from slurm_elastic.cli.setting_up.trial_evidence import Evidence
from slurm_elastic.cli.streams import visible
from slurm_elastic.config import Config
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.cluster import Pool
from slurm_elastic.model.job_key import JobKey
from slurm_elastic.model.memory import Machine, decided_at
from slurm_elastic.model.slurm import SlurmJob, SlurmNode
from slurm_elastic.policies.launch.trial import (
    MEANING,
    SBATCH,
    SLURMCTLD,
    Rest,
    TrialDiagnosis,
    TrialLook,
    TrialStep,
    diagnosis,
    is_over,
    reached,
    waiting_words,
)
from slurm_elastic.policies.nodes.node_state import Phase, is_down, is_drained, phase
from slurm_elastic.slurm.client.commands import node_updates
from slurm_elastic.slurm.client.commands.sbatch_test_only import joined
from slurm_elastic.slurm.client.prompt import PromptCli
from slurm_elastic.state.audit_trail import pool_subject
from slurm_elastic.state.ledger import Decision, Ledger
from slurm_elastic.state.spool import Spool
from slurm_elastic.watch.door.orders import own_name

T = TypeVar("T")
POLL_EVERY_S = 1.0
WAIT_SHOWN_EVERY_S = 30.0
"""A step that takes longer is shown with the evidence so far, at these intervals."""
MAX_SILENCE_S = 60.0
"""A busy slurmctld may give no answer for this long before we report it."""
COMMAND_TIMEOUT_S = 60.0
# EX_NOUSER of sysexits.h. The job itself must check: Slurm 22.05 also starts jobs of users whom
# the machine does not know.
NO_USER = 67
JOB_TIMEOUT_S = 180.0
END_TIMEOUT_S = 300.0
MAX_NAMED_JOBS = 3
CORRELATION = "try"
ACCOUNT_VARIABLES = ("SBATCH_ACCOUNT", "SBATCH_QOS")
"""The variables of sbatch(1) that the trial's job follows. Others, such as SBATCH_ARRAY_INX, would
make another job of it.
"""
REFUSED = frozenset(
    {"refused", "boot-failed", "node-failed", "dropped", "key-refused", "cooled-down"}
)


class StoppedError(SlurmElasticError):
    """The trial cannot go past this step; ``diagnosed``: the step, the cause and the remedy."""

    def __init__(self, diagnosed: TrialDiagnosis) -> None:
        super().__init__(diagnosed.words)
        self.diagnosed = diagnosed


class Trial:
    """The trial of one machine, from its order to its end."""

    def __init__(
        self, config: Config, slurm: PromptCli, pool: Pool, user: pwd.struct_passwd,
        timeout: float | None, account: str = "",
    ) -> None:  # fmt: skip
        self.config, self.slurm, self.pool, self.user = config, slurm, pool, user
        self.account = account
        self.timeout = timeout or config.resume_timeout(config.cloud(pool.cloud))
        self.began = time.time()
        self.node = ""
        self.steps_done: tuple[TrialStep, ...] = ()
        self.last: Machine | None = None
        self._job: JobKey | None = None
        self._shown_at = time.monotonic()
        self._evidence = Evidence(config)

    def require_job(self) -> None:
        """StoppedError if Slurm would refuse the job of the trial. Nothing is bought."""
        tested = self._sbatch("--test-only", node=self._free_node())
        if tested.returncode:
            raise StoppedError(diagnosis(TrialStep.ASKED, [self._refusal(tested)]))

    def run(self) -> int:
        """Run the trial and return the exit code: 0, 1 or 130 (see ``trial.run``)."""
        code = 1
        try:
            self._start()
            self._boot()
            self._run_job()
            code = 0
        except StoppedError as stopped:
            print_stop(stopped.diagnosed)
            self._show_console()
        except KeyboardInterrupt:
            print("\ninterrupted: ending its machine", flush=True)
            code = 130
        finally:
            ended = self._end()
        return code if ended or code else 1

    # the steps

    def _free_node(self) -> str:
        view = self._asked(lambda: self.slurm.nodes(self.pool.nodes))
        free = [n for n in self.pool.nodes if n in view and _is_free(view[n])]
        if not free:
            first_node = next((view[n] for n in self.pool.nodes if n in view), None)
            reason = (
                first_node.reason
                if first_node and first_node.reason
                else "all of them are up or reserved"
            )
            text = f"pool {self.pool.name} has no node to try: {reason}"
            raise StoppedError(diagnosis(TrialStep.ASKED, [text]))
        return free[0]

    def _start(self) -> None:
        self.node = self._free_node()
        self._record("tried", f"{own_name()} tries one machine of pool {self.pool.name}")
        self.began = time.time()
        try:
            node_updates.power_up(self.slurm, [self.node])
        except SlurmError as error:
            # No retry: slurmctld may have executed the order although its answer was lost.
            raise self._silent(error) from error

    def _boot(self) -> None:
        while TrialStep.REGISTERED not in self.steps_done:
            # One look may show several steps: the cloud is faster than POLL_EVERY_S.
            look = self._asked(self._look)
            self._note(reached(look, self.steps_done))
            if TrialStep.REGISTERED in self.steps_done:
                return
            late = time.time() - self.began > self.timeout
            if look.refused or late or self._is_given_up(look):
                raise StoppedError(diagnosis(self._next(), self._why(look, late=late)))
            self._show_wait(look)
            time.sleep(POLL_EVERY_S)

    def _run_job(self) -> None:
        job = self._submit()
        try:
            self._follow(job)
        finally:
            self._sh("scancel", str(job))

    def _follow(self, job: int) -> None:
        until = time.time() + JOB_TIMEOUT_S
        while time.time() < until:
            jobs = self._asked(lambda: self.slurm.jobs(ended=True))
            current = next((j for j in jobs if j.id == job), None)
            if current is not None:
                self._job = current.key
            if current is not None and "COMPLETED" in current.states and current.has_ended:
                self._note((*self.steps_done, TrialStep.JOB))
                return
            if reasons := self._job_trouble(current):
                logged = self._evidence.logged(self.node)
                console = self._evidence.console(self.last)
                raise StoppedError(
                    diagnosis(TrialStep.JOB, [*reasons, *logged, *reversed(console)])
                )
            time.sleep(POLL_EVERY_S)
        raise StoppedError(
            diagnosis(TrialStep.JOB, [f"job {job} did not end in {brief(JOB_TIMEOUT_S)}"])
        )

    def _end(self) -> bool:
        """End the machine and report it. Returns whether it has provably ended, or has to stay for
        jobs of others.
        """
        if not self.node:
            return True
        print(f"ending {self.node} ...", flush=True)
        try:
            return self._ended()
        except KeyboardInterrupt:
            print(
                "\nnot waiting: slurm-elasticd ends the machine (see slurm-elastic status)",
                flush=True,
            )
            raise

    def _ended(self) -> bool:
        until = time.monotonic() + END_TIMEOUT_S
        reason = f"the machine has not ended after {brief(END_TIMEOUT_S)}"
        while time.monotonic() < until:
            try:
                leftover = self._rest()
                if is_over(leftover):
                    self._say(TrialStep.ENDED, _ended_words(leftover.machines))
                    return True
                if jobs := self._jobs_of_others():
                    print(visible(_left_to(self.node, jobs)), flush=True)
                    return True
                self._order_end(leftover.node)
            except SlurmError as error:  # retry: slurmctld may only be busy
                reason = f"{SLURMCTLD}{error}"
            time.sleep(POLL_EVERY_S)
        print_stop(diagnosis(TrialStep.ENDED, [reason]))
        return False

    def _rest(self) -> Rest:
        """The requests, launches and machines of the trial that still exist.

        Keep the order: a request becomes a launch, and a launch becomes a machine. Each is read
        before the thing that it becomes, so that none is missed between two reads.
        """
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

    def _jobs_of_others(self) -> list[SlurmJob]:
        """The jobs on the node, except for the trial's own job.

        Slurm may give the node to any job as soon as it powers up. To power it down by force would
        requeue that job.
        """
        return [
            job
            for job in self.slurm.jobs()
            if self.node in job.nodes
            and not (self._job is not None and job.key.may_follow(self._job))
        ]

    def _order_end(self, node: SlurmNode | None) -> None:
        """Order the node's power-down again, as long as it is up or powering up.

        An earlier order may have been lost, or was too early for slurmctld to accept it.
        """
        if node is not None and phase(node) is Phase.POWERING_UP:
            reason = "slurm-elastic:hold:tried by an operator"
            node_updates.power_down_by_force(self.slurm, [self.node], reason)
        elif node is not None and phase(node) is Phase.UP and "POWER_DOWN" not in node.states:
            node_updates.power_down(self.slurm, [self.node])

    # reading

    def _asked(self, read: Callable[[], T]) -> T:
        """Slurm's answer. StoppedError if it gives none for MAX_SILENCE_S."""
        until = time.monotonic() + MAX_SILENCE_S
        while True:
            try:
                return read()
            except SlurmError as error:
                if not error.unanswered or time.monotonic() > until:
                    raise self._silent(error) from error
                time.sleep(POLL_EVERY_S)

    def _silent(self, error: SlurmError) -> StoppedError:
        return StoppedError(diagnosis(self._next(), [f"{SLURMCTLD}{error}"]))

    def _look(self) -> TrialLook:
        node = self.slurm.nodes([self.node]).get(self.node)
        with self._ledger() as ledger:
            self.last = max(self._machines(ledger), key=lambda m: m.instance.launched, default=None)
        machine, refused = self.last, self._refused()
        addressed = machine is not None and bool(machine.instance.address)
        answers = self._evidence.answers(machine, node) if machine and addressed else None
        return TrialLook(node=node, machine=machine, refused=refused, answers=answers)

    def _machines(self, ledger: Ledger) -> tuple[Machine, ...]:
        """The machines of this node that were ordered since the start, also ended ones."""
        return tuple(
            m
            for m in ledger.machines.live(ended_since=self.began, nodes=[self.node])
            if decided_at(m.instance) >= int(self.began)
        )

    def _refused(self) -> str:
        with self._ledger() as ledger:
            decisions = ledger.decisions.about(self.node)
        refusals = [d for d in decisions if d.at >= self.began and d.kind in REFUSED]
        return str(refusals[0].reason) if refusals else ""

    def _is_given_up(self, look: TrialLook) -> bool:
        """Whether Slurm no longer waits for the node."""
        node = look.node
        if node is None or time.time() - self.began < 5 * POLL_EVERY_S:
            return False
        return is_down(node) or phase(node) in (Phase.POWERED_DOWN, Phase.POWERING_DOWN)

    def _why(self, look: TrialLook, *, late: bool) -> Iterator[str]:
        """Yield the possible causes, the most likely first."""
        yield from self._evidence.why(self.steps_done, look, self.node, self.pool.cloud)
        if late:
            yield f"it took longer than {brief(self.timeout)}"

    def _show_console(self) -> None:
        lines = self._evidence.console(self.last)
        if lines:
            print("the last lines of its console:")
            for line in lines:
                print(visible(f"  | {line[:160]}"))

    def _next(self) -> TrialStep:
        return list(TrialStep)[len(self.steps_done)]

    # the job

    def _submit(self) -> int:
        done = self._sbatch("--parsable", node=self.node)
        number = done.stdout.strip().partition(";")[0]
        if done.returncode or not number.isdigit():
            raise StoppedError(diagnosis(TrialStep.JOB, [self._refusal(done)]))
        # Its submit time is known only when Slurm shows the job.
        self._job = JobKey(number=int(number), uid=self.user.pw_uid)
        return int(number)

    def _sbatch(self, option: str, *, node: str) -> subprocess.CompletedProcess[str]:
        partition = self.config.cloud(self.pool.cloud).partition_name
        account = [f"--account={self.account}"] if self.account else []
        return self._sh(
            "sbatch", option, f"--partition={partition}", f"--nodelist={node}", *account,
            "--nodes=1", "--ntasks=1", "--time=2", "--job-name=slurm-elastic-try",
            "--output=/dev/null", "--chdir=/", f"--wrap=id -un || exit {NO_USER}; hostname",
            as_user=True,
        )  # fmt: skip

    def _refusal(self, done: subprocess.CompletedProcess[str]) -> str:
        return f"{SBATCH}{self.user.pw_name}: {joined(done.stderr)}"

    def _job_trouble(self, job: SlurmJob | None) -> list[str]:
        """Why the job fails or will never start; empty if it may still succeed."""
        node = self._asked(lambda: self.slurm.nodes([self.node]).get(self.node))
        reasons = [node.reason] if node and (is_drained(node) or is_down(node)) else []
        if job is None:
            return reasons
        if job.has_ended and job.exit_code == NO_USER:
            return [f"no such user on the machine: {self.user.pw_name}, uid {self.user.pw_uid}"]
        if job.has_ended:
            return [
                *reasons,
                f"job {job.id} is {' '.join(sorted(job.states))}, exit {job.exit_code}",
            ]
        if "PENDING" in job.states and job.restarts:
            reasons = reasons or list(filter(None, [self._evidence.reason(self.node)]))
            return [*reasons, f"job {job.id} could not be started there: {job.reason}"]
        return reasons

    def _sh(self, *arguments: str, as_user: bool = False) -> subprocess.CompletedProcess[str]:
        command = [str(Path(self.config.slurm.bin_dir) / arguments[0]), *arguments[1:]]
        env = {"SLURM_CONF": self.config.slurm.conf, "PATH": "/usr/bin:/bin"}
        env |= {name: os.environ[name] for name in ACCOUNT_VARIABLES if name in os.environ}
        as_other_user = as_user and os.geteuid() == 0
        groups = os.getgrouplist(self.user.pw_name, self.user.pw_gid) if as_other_user else None
        try:
            return subprocess.run(
                command, env=env, check=False, capture_output=True, text=True, cwd="/",
                timeout=COMMAND_TIMEOUT_S, user=self.user.pw_uid if as_other_user else None,
                group=self.user.pw_gid if as_other_user else None, extra_groups=groups,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(
                command, 124, "", f"no answer in {brief(COMMAND_TIMEOUT_S)}"
            )

    # reporting

    def _note(self, steps_done: Sequence[TrialStep]) -> None:
        for step in steps_done[len(self.steps_done) :]:
            self._say(step, f"{MEANING[step]}{self._detail(step)}")
        self.steps_done = tuple(steps_done)

    def _show_wait(self, look: TrialLook) -> None:
        # Not at each look: the evidence includes the console, which is a call of the cloud.
        if time.monotonic() - self._shown_at >= WAIT_SHOWN_EVERY_S:
            step = self._next()
            self._say(step, waiting_words(diagnosis(step, self._why(look, late=False))))

    def _detail(self, step: TrialStep) -> str:
        if step is TrialStep.ASKED:
            return f": {self.node}"
        if step is TrialStep.JOB:
            return f", by {self.user.pw_name}"
        if self.last is None:
            return ""
        instance = self.last.instance
        if step is TrialStep.LAUNCHED:
            return (
                f": {instance.id}, {instance.instance_type} {instance.zone} {instance.market}"
                f", {money(instance.price)}/h"
            )
        return f": {instance.address}" if step is TrialStep.ADDRESS else ""

    def _say(self, step: TrialStep, text: str) -> None:
        print(visible(f"{time.time() - self.began:7.1f}s  {step:<10}  {text}"), flush=True)
        self._shown_at = time.monotonic()

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


def _ended_words(machines: Sequence[Machine]) -> str:
    if not machines:
        return "no machine was started"
    now = time.time()
    dollars = sum(machine.lease.cost(now) for machine in machines)
    return f"{MEANING[TrialStep.ENDED]}; {money(dollars)} in all"


def _left_to(node: str, jobs: Sequence[SlurmJob]) -> str:
    """The sentence that names the jobs for which the machine stays."""
    named = ", ".join(f"job {job.id} of {job.user or job.uid}" for job in jobs[:MAX_NAMED_JOBS])
    unnamed_count = len(jobs) - MAX_NAMED_JOBS
    named += f" and {counted(unnamed_count, 'other job')}" if unnamed_count > 0 else ""
    return f"{node} stays: {named} runs there. slurm-elasticd ends the machine when it is idle"


def print_stop(stop: TrialDiagnosis) -> None:
    """Print the step before which the trial stopped, the cause and what to do."""
    print(visible(f"STOPPED before {stop.step!s} ({MEANING[stop.step]})"))
    if stop.name:
        print(visible(f"  cause: {stop.name}: {stop.words:.400}"))
    elif stop.words:
        # A line that matches no pattern may be harmless, as the last line of a console often is.
        print(visible(f"  cause: not known; seen last: {stop.words:.400}"))
    if stop.remedy:
        print(f"  do: {stop.remedy}")
    for line in stop.usual:
        print(f"  often: {line}")
