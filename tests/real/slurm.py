"""What users of a real site do with Slurm's own commands, and Slurm's answers to the run."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from slurm_elastic.base.errors import SlurmElasticError, SlurmError
from slurm_elastic.config import SlurmSettings
from slurm_elastic.model.slurm import SlurmJob, SlurmNode
from slurm_elastic.slurm.client.cli import SlurmCli

if TYPE_CHECKING:
    from tests.real.stage import RealStage

LONGEST_TEXT = 1000
FRESH_S = 0.3
"""Seconds for which an answer stands for the present."""


class UsersSlurm(SlurmCli):
    """As ``tests.chaos.fakes.Controller`` for those who draw a run: ``after`` has the job that each waits
    for, ``by_users`` those that users have held, suspended or put off.
    """

    trouble = ""

    def __init__(self, stage: RealStage, conf: str) -> None:
        super().__init__(SlurmSettings(conf=conf))
        self.stage = stage
        self.by_users: set[int] = set()
        self.after: dict[int, int] = {}
        self._wishes: dict[int, Sequence[str]] = {}
        self._read_at = 0.0
        self._last_nodes: Mapping[str, SlurmNode] = {}
        self._last_queue: Mapping[int, SlurmJob] = {}

    def look(self) -> None:
        """Read nodes and jobs; if slurmctld does not answer, they are what they were."""
        try:
            nodes, jobs = self.nodes(), self.jobs()
        except SlurmError:
            return
        self._last_nodes, self._last_queue = nodes, {job.id: job for job in jobs}
        self._read_at = time.monotonic()

    def _look_again(self) -> None:
        if time.monotonic() - self._read_at > FRESH_S:
            self.look()

    def node(self, name: str) -> SlurmNode:
        self._look_again()
        return self._last_nodes[name]

    def queue(self) -> Mapping[int, SlurmJob]:
        self._look_again()
        return self._last_queue

    def wish(self, job: int) -> Sequence[str]:
        """The nodes that a job may use."""
        return self._wishes.get(job, ())

    # what users do

    def submit(self, job: int, among: Sequence[str], count: int, seconds: float, **of: Any) -> int:
        """Its number by Slurm. SlurmElasticError if sbatch refuses it."""
        words = options(of, count, self.after.pop(job, 0), self.stage.now())
        was_put_off = job in self.by_users
        self.by_users.discard(job)
        command = ["sbatch", "--parsable", "--output=/dev/null", *words]
        script = f"#!/bin/sh\nsleep {seconds:.1f}\n"
        done = self.stage.site.run(command, user=of["user"], stdin=script)
        number = int(done.stdout.strip().partition(";")[0])
        self._wishes[number] = among
        if was_put_off:
            self.by_users.add(number)
        self._read_at = 0.0
        return number

    def finish(self, job: int) -> None:
        """Its user cancels it."""
        self._run("scancel", self._label(job))

    def change(self, job: int, **fields: Any) -> None:
        """As scontrol update of its user."""
        words = []
        if "limit" in fields:
            limit = fields["limit"]
            words.append(f"timelimit={'UNLIMITED' if limit is None else limit // 60}")
        if "requeue" in fields:
            words.append(f"requeue={int(fields['requeue'])}")
        if "name" in fields:
            words += [f"jobname={fields['name']}", f"comment={fields['comment']}"]
        self._run("scontrol", "update", f"jobid={self._label(job)}", *words)

    def let_go(self) -> None:
        """Users release what they have held, suspended or put off, and what a requeue puts off."""
        for job in self.queue().values():
            try:
                self._let_go(job)
            except SlurmElasticError as error:
                self.stage.note(f"job {job.id} is not released: {error}")

    def _let_go(self, job: SlurmJob) -> None:
        if job.is_suspended:
            self.resume(job.id)
        elif "PENDING" in job.states and job.is_held:
            self.release(job.id)
        elif "PENDING" in job.states and job.begin > self.stage.now() + 1:
            self.start_now(job.id)


def options(of: Mapping[str, Any], count: int, after: int, now: float) -> list[str]:
    """The words of sbatch for a drawn job."""
    words = [f"--nodes={count}", "--ntasks-per-node=1", f"--partition={','.join(of['partitions'])}"]
    words.append("--requeue" if of["requeue"] else "--no-requeue")
    plain = {
        "account": "--account", "name": "--job-name", "comment": "--comment",
        "features": "--constraint", "node_memory": "--mem", "cpu_memory": "--mem-per-cpu",
        "cpus": "--cpus-per-task",
    }  # fmt: skip
    # Slurm takes no longer names and comments.
    words += [
        f"{option}={str(of[key])[:LONGEST_TEXT]}" for key, option in plain.items() if of.get(key)
    ]
    if of.get("limit"):
        words.append(f"--time={of['limit'] // 60}")
    if of.get("gres"):
        words.append(f"--gres={of['gres'].removeprefix('gres:')}")
    if of.get("job_gres"):
        words.append(f"--gpus={int(of['job_gres'].rpartition(':')[2]) * count}")
    if of.get("excluded"):
        words.append(f"--exclude={','.join(of['excluded'])}")
    if of.get("required"):
        words.append(f"--nodelist={','.join(of['required'])}")
    if of.get("tasks", 1) > 1:
        most = of.get("max_running_tasks")
        words.append(f"--array=0-{of['tasks'] - 1}{f'%{most}' if most else ''}")
    if of.get("start"):
        words.append(f"--begin=now+{math.ceil(of['start'] - now)}")
    if after:
        words.append(f"--dependency=afterany:{after}")
    return words
