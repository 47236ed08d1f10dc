"""Chooses the cluster's growth and release policy among ``policies.choose.among``, by their costs
and waits in a simulation of the last weeks.

The simulation runs in a bounded process, which alone imports the simulator. A choice is a file of
the state directory; the daemon then restarts inside its process.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import threading
import time
from collections.abc import Callable, Iterable

from slurm_elastic.base.errors import SlurmElasticError, SlurmError
from slurm_elastic.base.hostlist import expand
from slurm_elastic.base.processes.bounded_process import run_within
from slurm_elastic.base.processes.periodic import PeriodicTask, PeriodicThread
from slurm_elastic.base.report_once import ReportOnce
from slurm_elastic.config import Config, domain_pools
from slurm_elastic.config import policy_choice as choices
from slurm_elastic.config.policy_choice import PolicyChoice, candidates, own_policy
from slurm_elastic.model.causes.growth import PolicyChosen
from slurm_elastic.model.memory import Decision
from slurm_elastic.model.slurm import SlurmNode
from slurm_elastic.policies.planning.choice import PolicyOutcome, next_policy
from slurm_elastic.slurm.client.accounting import AccountingCli, jobs_between
from slurm_elastic.slurm.client.prompt import PromptCli
from slurm_elastic.state.audit_trail import pool_subject

log = logging.getLogger(__name__)

KIND = "policy-choice"
CHECK_EVERY_S = 3600.0
FIRST_CHECK_S = 600.0
"""Seconds after a start until the first check, because the daemon has more urgent work then."""
TIMEOUT_S = 900.0
READING_SHARE = 0.3
"""The part of the time for reading the history."""
_SIMULATOR = "slurm_elastic.simulate.studies.policy_choice"


class PolicyChooser:
    """Chooses for ``plain``, the configuration as it was read. It calls ``changed`` once, when
    another policy is chosen. ``record`` stores a decision for ``explain``.
    """

    def __init__(
        self,
        plain: Config,
        record: Callable[[Decision], object],
        changed: Callable[[], None],
        clock: Callable[[], float] = time.time,
        first_in_s: float = FIRST_CHECK_S,
    ) -> None:
        self._plain, self._record, self._changed, self._clock = plain, record, changed, clock
        self._ended = threading.Event()
        self._reports = ReportOnce[str]()
        every_s = min(CHECK_EVERY_S, plain.policies.choose.interval)
        self._task = PeriodicTask("policy choice", self.check, every_s, first_in_s=first_in_s)
        self._thread = PeriodicThread(self._task, self._ended)

    def start(self) -> None:
        """Start checking, until ``stop``."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread, without waiting for a simulation."""
        self._ended.set()

    def check(self) -> None:
        """Simulate and choose, if it is time."""
        plain, now = self._plain, self._clock()
        last = choices.kept(plain)
        if last is not None and 0 <= now - last.checked_at < plain.policies.choose.interval:
            return
        try:
            outcomes = run_within(
                TIMEOUT_S, "give policies.choose a shorter history", outcomes_of, plain, now
            )
        # Deliberately broad: the present policy is good enough, whatever fails.
        except Exception as error:  # noqa: BLE001
            if self._reports.is_news("simulation", str(error)):
                log.warning("policies cannot be compared, the present one stays: %s", error)
            return
        if self._ended.is_set():
            # The daemon restarts or this head no longer acts. With our choice in the file, the next
            # daemon would use the earlier policy, and everybody else the new one.
            return
        self._reports.clear("simulation")
        self._choose(outcomes, last, now)

    def _choose(
        self, outcomes: tuple[PolicyOutcome, ...], last: PolicyChoice | None, now: float
    ) -> None:
        plain = self._plain
        own = own_policy(plain.policies)
        present = own if last is None else last.policy
        chosen = next_policy(outcomes, present, own, plain.policies.choose.max_wait)
        is_change = chosen.policy != present
        choice = PolicyChoice(
            policy=chosen.policy, own=own, checked_at=now, reason=chosen.reason,
            chosen_at=now if last is None or is_change else last.chosen_at,
        )  # fmt: skip
        try:
            choices.keep(plain, choice)
        except OSError as error:
            log.warning("the chosen policy cannot be written, the present one stays: %s", error)
            return
        if last is None or is_change:
            cause = PolicyChosen(policy=chosen.policy, reason=chosen.reason)
            subjects = tuple(pool_subject(pool.name) for pool in plain.pools)
            self._record(
                Decision(at=now, correlation=KIND, kind=KIND, subjects=subjects, cause=cause)
            )
            log.info("%s", cause)
        if is_change:
            # The caller restarts the daemon with the new policy, so this task has done its work.
            self._task.end()
            self._changed()


def outcomes_of(plain: Config, now: float) -> tuple[PolicyOutcome, ...]:
    """Read the cluster's history and simulate each candidate. Called in the bounded process."""
    slurm, span_s = PromptCli(plain.slurm), plain.policies.choose.history
    rows, _ = jobs_between(AccountingCli(plain.slurm), slurm, now - span_s, now)
    if not rows:
        raise SlurmElasticError("Slurm knows no ended job")
    static = None
    with contextlib.suppress(SlurmError):  # a busy slurmctld is no reason to compare nothing
        static = own_nodes(plain, slurm.nodes().values())
    # By its name: no service imports the simulator.
    simulator = importlib.import_module(_SIMULATOR)
    seconds = (1 - READING_SHARE) * TIMEOUT_S
    outcomes: tuple[PolicyOutcome, ...] = simulator.outcomes(
        plain, rows, static, candidates(plain.policies), seconds
    )
    return outcomes


def own_nodes(config: Config, nodes: Iterable[SlurmNode]) -> tuple[int, int] | None:
    """The number of the site's own nodes, and their processors on average; None without nodes."""
    pooled = {node for pool in domain_pools(config, expand) for node in pool.nodes}
    cpus = [node.cpus for node in nodes if node.name not in pooled and node.cpus]
    return (len(cpus), max(round(sum(cpus) / len(cpus)), 1)) if cpus else None
