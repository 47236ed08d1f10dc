"""``slurm-elastic try``: one machine of a cloud, from the order to its end, each step told.

The machine comes the way that all machines come: slurmctld is told to power a node up, calls
ResumeProgram, and slurm-elasticd buys it within the site's caps. So whatever becomes of this
command, the daemon ends the machine when it is idle.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pwd
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from slurm_elastic.audit_trail import pool_subject
from slurm_elastic.cli import offers
from slurm_elastic.cli.arguments import count
from slurm_elastic.cli.directing import is_alive, pools_in, require_trusted
from slurm_elastic.cli.helptext import examples
from slurm_elastic.cli.service_environment import as_the_services
from slurm_elastic.cli.streams import visible
from slurm_elastic.cli.trial_evidence import Evidence
from slurm_elastic.config import Config, domain_pools
from slurm_elastic.config.changed import scope_named
from slurm_elastic.config.configfile import load
from slurm_elastic.door.orders import own_name
from slurm_elastic.door.records import read_facts
from slurm_elastic.errors import ConfigError, SlurmElasticError, SlurmError
from slurm_elastic.hostlist import expand
from slurm_elastic.ledger import Decision, Ledger
from slurm_elastic.model import Pool
from slurm_elastic.model_ledger import Machine, decided_at
from slurm_elastic.model_slurm import SlurmJob, SlurmNode
from slurm_elastic.policies.first_light import (
    MEANING,
    SLURMCTLD,
    Diagnosis,
    Rest,
    Seen,
    Step,
    diagnosis,
    is_over,
    reached,
)
from slurm_elastic.policies.node_state import Phase, is_down, is_drained, phase
from slurm_elastic.slurm import node_updates
from slurm_elastic.slurm.prompt import PromptCli
from slurm_elastic.spool import Spool

T = TypeVar("T")
PERIOD = 1.0
SILENCE = 60.0
"""Seconds for which slurmctld may answer nothing, as a busy one does, before it is told."""
COMMAND = 60.0
NO_USER = 67
"""The exit code of the job whose user the machine does not know (EX_NOUSER of sysexits.h): Slurm
starts it all the same, as slurmctld tells slurmd the name (measured on 22.05).
"""
JOB_TIME = 180.0
END_TIME = 300.0
LOOKED_FOR = 600.0
"""Seconds of paid time that the estimate counts."""
CORRELATION = "try"
REFUSED = frozenset({"refused", "boot-failed", "node-failed", "dropped", "key-refused", "rests"})


class StoppedError(SlurmElasticError):
    """It got no further."""

    def __init__(self, found: Diagnosis) -> None:
        super().__init__(found.words)
        self.found = found


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the sub-command."""
    parser = subparsers.add_parser(
        "try",
        description="Start one machine of a cloud or a pool as a job would, follow it through "
        "every step to a job on it, end it, and say how long each step took or what broke and "
        "what to do. Says first what it costs. Ctrl-C ends the machine. For root and SlurmUser.",
        epilog=examples("slurm-elastic try aws", "slurm-elastic try burst --yes"),
    )
    parser.add_argument("subject", metavar="POOL|CLOUD", help="the pool or cloud to try")
    parser.add_argument("--yes", action="store_true", help="do not ask before anything is paid")
    parser.add_argument(
        "--user", metavar="NAME",
        help="run the job as this user (default: who runs this command, also behind sudo)",
    )  # fmt: skip
    parser.add_argument(
        "--timeout", type=count, metavar="SECONDS",
        help="give up after this time without registration (default: the cloud's resume_timeout)",
    )  # fmt: skip
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """0 when every step was made; 1 where one was not, 2 for wrong use, 130 after Ctrl-C."""
    config = load(Path(args.config))
    require_trusted(config)
    scope = scope_named(config, args.subject)
    user = _user(args.user)
    facts = read_facts(config, time.time())
    if not is_alive(config, facts):
        raise SlurmElasticError("slurm-elasticd does not run: nothing would be started")
    slurm = PromptCli(config.slurm)
    with as_the_services(args.config, config):
        try:
            pool = _offered(config, slurm, pools_in(config, scope))
        except StoppedError as stopped:
            _tell(stopped.found)
            return 1
        if not args.yes and not _agreed():
            print("nothing was started")
            return 2
        return Trial(config, slurm, pool, user, args.timeout).run()


def _user(name: str | None) -> pwd.struct_passwd:
    wanted = name or (os.environ.get("SUDO_USER") if os.geteuid() == 0 else None)
    try:
        return pwd.getpwnam(wanted) if wanted else pwd.getpwuid(os.getuid())
    except KeyError:
        raise ConfigError(f"--user: this host has no user {wanted!r}") from None


def _agreed() -> bool:
    if not sys.stdin.isatty():
        print("say --yes where nobody can be asked", file=sys.stderr)
        return False
    return input("Start it? [y/N] ").strip().lower() in ("y", "yes")


def _offered(config: Config, slurm: PromptCli, names: Sequence[str]) -> Pool:
    """The first pool with an offer, having said what it is and costs. StoppedError where there is
    none.
    """
    reasons: list[str] = []
    for name in names:
        (found,) = offers.gather(config, slurm, time.time(), pool=name, nodes=1).pools
        if found.error:
            reasons.append(found.error)
        elif found.ranked:
            best = found.ranked[0]
            price, worst = best.price or 0.0, best.worst or best.price or 0.0
            most = worst * LOOKED_FOR / 3600
            print(f"One machine of pool {name}: {best.offer}")
            print(f"${price:.4f}/h now, ${worst:.4f}/h at worst: about ${most:.4f} for 10 minutes.")
            return next(p for p in domain_pools(config, expand) if p.name == name)
        else:
            reasons += [row.reason for row in found.rejected] or ["the cloud has no offers"]
    raise StoppedError(diagnosis(Step.LAUNCHED, reasons))


class Trial:
    """One machine, from its order to its end."""

    def __init__(
        self, config: Config, slurm: PromptCli, pool: Pool, user: pwd.struct_passwd,
        timeout: float | None,
    ) -> None:  # fmt: skip
        self.config, self.slurm, self.pool, self.user = config, slurm, pool, user
        cloud = config.cloud(pool.cloud)
        self.timeout = timeout or config.resume_timeout(cloud)
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
            _tell(stopped.found)
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
        raise StoppedError(diagnosis(Step.JOB, [f"job {job} did not end in {JOB_TIME:.0f} s"]))

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
        why = f"the machine is not ended after {END_TIME:.0f} s"
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
        _tell(diagnosis(Step.ENDED, [why]))
        return False

    def _rest(self) -> Rest:
        """Each thing is read before what it becomes, so that none is missed in between."""
        node = self.slurm.nodes([self.node]).get(self.node)
        waiting = [r for r in Spool(self.config.state).pending() if self.node in r.nodes]
        with self._ledger() as ledger:
            launches = ledger.open_launches()
            machines = self._machines(ledger)
        return Rest(
            node=node,
            requested=any(request.kind == "resume" for request in waiting),
            launching=any(self.node in launch.nodes for launch in launches),
            machines=machines,
            refused=bool(self._refused()),
        )

    def _order_end(self, node: SlurmNode | None) -> None:
        """As often as Slurm has it on its way up, or up: an order may have come too early, or be
        lost.
        """
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

    def _look(self) -> Seen:
        node = self.slurm.nodes([self.node]).get(self.node)
        with self._ledger() as ledger:
            self.last = max(self._machines(ledger), key=lambda m: m.instance.launched, default=None)
        machine, refused = self.last, self._refused()
        addressed = machine is not None and bool(machine.instance.address)
        answers = self._evidence.answers(machine, node) if machine and addressed else None
        return Seen(node=node, machine=machine, refused=refused, answers=answers)

    def _machines(self, ledger: Ledger) -> tuple[Machine, ...]:
        """The machines of this node since the start, by the head's clock; the ended ones, too."""
        return tuple(
            m
            for m in ledger.machines(ended_since=self.began, nodes=[self.node])
            if decided_at(m.instance) >= int(self.began)
        )

    def _refused(self) -> str:
        with self._ledger() as ledger:
            told = ledger.decisions(self.node)
        mine = [d for d in told if d.at >= self.began and d.kind in REFUSED]
        return mine[0].reason if mine else ""

    def _is_given_up(self, seen: Seen) -> bool:
        """Slurm does not wait for the node any more."""
        node = seen.node
        if node is None or time.time() - self.began < 5 * PERIOD:
            return False
        return is_down(node) or phase(node) in (Phase.POWERED_DOWN, Phase.POWERING_DOWN)

    def _why(self, seen: Seen, *, late: bool) -> Iterator[str]:
        """The best first."""
        yield from self._evidence.why(self.made, seen, self.node, self.pool.cloud)
        if late:
            yield f"it took longer than {self.timeout:.0f} s"

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
            silent = f"no answer in {COMMAND:.0f} s"
            return subprocess.CompletedProcess(command, 124, "", silent)

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
            return f": {one.id}, {one.instance_type} {one.zone} {one.market}, ${one.price:.4f}/h"
        return f": {one.address}" if step is Step.ADDRESS else ""

    def _say(self, step: Step, text: str) -> None:
        print(visible(f"{time.time() - self.began:7.1f}s  {step:<10}  {text}"), flush=True)

    @contextlib.contextmanager
    def _ledger(self) -> Iterator[Ledger]:
        with contextlib.closing(Ledger(self.config.state / "ledger.db", read_only=True)) as ledger:
            yield ledger

    def _record(self, kind: str, reason: str) -> None:
        subjects = (self.node, pool_subject(self.pool.name))
        with contextlib.closing(Ledger(self.config.state / "ledger.db")) as ledger:
            ledger.record(
                Decision(at=time.time(), correlation=CORRELATION, kind=kind, subjects=subjects,
                         reason=reason)
            )  # fmt: skip


def _is_free(node: SlurmNode) -> bool:
    return phase(node) is Phase.POWERED_DOWN and not is_drained(node) and not is_down(node)


def _ended_words(machines: Sequence[Machine], now: float) -> str:
    if not machines:
        return "no machine was started"
    dollars = sum(machine.lease.cost(now) for machine in machines)
    return f"{MEANING[Step.ENDED]}; ${dollars:.4f} in all"


def _tell(found: Diagnosis) -> None:
    """The step at which it stopped, the cause and what to do."""
    name = f"{found.name}: " if found.name else ""
    print(visible(f"STOPPED before {found.step!s} ({MEANING[found.step]})"))
    if found.words:
        print(visible(f"  cause: {name}{found.words[:400]}"))
    if found.remedy:
        print(f"  do: {found.remedy}")
    for line in found.usual:
        print(f"  often: {line}")
