"""A simulation's result as tables: lists of rows, each a dict of numbers and text."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from msgspec import Struct
from msgspec.structs import asdict

from slurm_elastic.simulate import series
from slurm_elastic.simulate.outcome import RunResult, unserved
from slurm_elastic.simulate.setting import Setting

Rows = list[dict[str, int | float | str | None]]


class Result(Struct, frozen=True, eq=False, dict=True):
    """What each policy comes to. Money is in dollars; waits and runs are in seconds. Points in time
    are Unix time, or the history's own seconds where it does not say when it began. In each table
    ``policy`` names the row's policy; None is what is not known or never was.

    Other names than those of the tables, ``notes`` and ``complaints`` are no promise.
    """

    setting: Setting
    runs: tuple[tuple[str, RunResult], ...]

    def __repr__(self) -> str:
        return f"<Result of {', '.join(policy for policy, _ in self.runs)}>"

    @cached_property
    def totals(self) -> Rows:
        """A row a policy: the numbers of ``Figures``, such as ``cost`` and ``mean_wait``."""
        found = [(policy, asdict(run.figures)) for policy, run in self.runs]
        return [
            {"policy": policy} | {name: row[name] for name in row if name != "pools"}
            for policy, row in found
        ]

    @cached_property
    def pools(self) -> Rows:
        """A row a pool: the numbers of ``PoolFigures``; ``on_demand`` and ``spot`` are dollars."""
        return [
            {"policy": policy, "pool": pool.name}
            | {name: value for name, value in asdict(pool).items() if name != "name"}
            for policy, run in self.runs
            for pool in run.figures.pools
        ]

    @cached_property
    def jobs(self) -> Rows:
        """A row a job, in the order of submission: its number, ``submit``, its first ``start``, and
        its ``end``; the ``wait`` until that start; the ``run`` that it needs; its ``cpus``; the
        ``pool`` in which it ran last; ``user`` and ``account``, numbers in a history without names.
        """
        return [row for policy, run in self.runs for row in self._jobs(policy, run)]

    @cached_property
    def machines(self) -> Rows:
        """A row for each ``time`` at which machines of a pool come or go, and how many ``machines``
        are paid or stand from then on.
        """
        return [
            {"policy": policy, "pool": machines.pool.name}
            | {"time": self.setting.history.start + when, "machines": round(count)}
            for policy, run in self.runs
            for machines in run.pools
            for when, count in series.machines(machines)
        ]

    @cached_property
    def queue(self) -> Rows:
        """A row for each ``time`` at which a job comes or starts first, and how many are
        ``waiting`` from then on; those that never start are left out.
        """
        origin = self.setting.history.start
        return [
            {"policy": policy, "time": origin + when, "waiting": round(count)}
            for policy, run in self.runs
            for when, count in series.queue(run)
        ]

    @property
    def notes(self) -> tuple[str, ...]:
        """What was assumed, and which jobs are missing: the command's notes."""
        cancelled, ran = self.setting.history.cancelled, len(self.setting.jobs)
        left_out = f"{cancelled:,} of {cancelled + ran:,} jobs were cancelled before they ran"
        return (
            *self.setting.told(policy for policy, _ in self.runs),
            *([f"{left_out}, and are left out"] if cancelled else []),
            *(note for policy, run in self.runs for note in unserved(policy, run.figures)),
        )

    @property
    def complaints(self) -> tuple[str, ...]:
        """What could not be used of the history, and why."""
        return tuple(self.setting.history.complaints.sentences())

    def _jobs(self, policy: str, run: RunResult) -> Rows:
        history = self.setting.history
        origin, users, accounts = history.start, _names(history.users), _names(history.accounts)
        rows: Rows = []
        for index in range(len(run.jobs)):
            job = run.jobs[index]
            start, end, pool = run.starts[index], run.ends[index], run.where[index]
            rows.append(
                {
                    "policy": policy,
                    "job": job.number,
                    "submit": origin + job.submit,
                    "start": None if start < 0 else origin + start,
                    "end": None if end < 0 else origin + end,
                    "wait": None if start < 0 else start - job.submit,
                    "run": job.run,
                    "cpus": job.procs,
                    "user": users.get(job.user, None if job.user < 0 else job.user),
                    "account": accounts.get(job.account, None if job.account < 0 else job.account),
                    "pool": None if pool < 0 else run.pools[pool].pool.name,
                }
            )
        return rows


def _names(numbers: Mapping[str, int] | None) -> dict[int, str]:
    return {number: name for name, number in (numbers or {}).items()}
