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


class SimulationResult(Struct, frozen=True, eq=False, dict=True):
    """The results of all policies as tables. Money is in dollars; waits and runs are in seconds.
    Points in time are Unix time, or seconds of the history if its begin is unknown. In each table
    ``policy`` names the row's policy. None: the value is unknown, or the event never happened.

    Only the tables, ``notes`` and ``complaints`` are a stable interface.
    """

    setting: Setting
    runs: tuple[tuple[str, RunResult], ...]

    def __repr__(self) -> str:
        return f"<Result of {', '.join(policy for policy, _ in self.runs)}>"

    @cached_property
    def totals(self) -> Rows:
        """One row per policy: the numbers of ``Figures``, such as ``cost`` and ``mean_wait``."""
        figures_by_policy = [(policy, asdict(run.figures)) for policy, run in self.runs]
        return [
            {"policy": policy} | {name: row[name] for name in row if name != "pools"}
            for policy, row in figures_by_policy
        ]

    @cached_property
    def pools(self) -> Rows:
        """One row per pool: the numbers of ``PoolFigures``; ``on_demand`` and ``spot`` are
        dollars.
        """
        return [
            {"policy": policy, "pool": pool.name}
            | {name: value for name, value in asdict(pool).items() if name != "name"}
            for policy, run in self.runs
            for pool in run.figures.pools
        ]

    @cached_property
    def jobs(self) -> Rows:
        """One row per job, in the order of submission: its number, ``submit``, its first ``start``,
        and its ``end``; the ``wait`` until that start; the ``run`` that it needs; its ``cpus``; the
        last ``pool`` in which it ran; ``user`` and ``account`` (numbers if the history has no
        names).
        """
        return [row for policy, run in self.runs for row in self._jobs(policy, run)]

    @cached_property
    def machines(self) -> Rows:
        """One row for each ``time`` at which the number of a pool's machines changes. ``machines``:
        the paid and standing machines from then on.
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
        """One row for each ``time`` at which a job arrives or first starts. ``waiting``: the jobs
        that wait from then on, without jobs that never start.
        """
        origin = self.setting.history.start
        return [
            {"policy": policy, "time": origin + when, "waiting": round(count)}
            for policy, run in self.runs
            for when, count in series.queue(run)
        ]

    @property
    def notes(self) -> tuple[str, ...]:
        """The command's notes: assumptions, omitted jobs, and jobs that did not run."""
        cancelled, ran = self.setting.history.cancelled, len(self.setting.jobs)
        left_out = f"{cancelled:,} of {cancelled + ran:,} jobs were cancelled before they ran"
        return (
            *self.setting.notes_for(policy for policy, _ in self.runs),
            *([f"{left_out}, and are left out"] if cancelled else []),
            *(note for policy, run in self.runs for note in unserved(policy, run.figures)),
        )

    @property
    def complaints(self) -> tuple[str, ...]:
        """The parts of the history that could not be used, and the reasons."""
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
