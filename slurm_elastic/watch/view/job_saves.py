"""How jobs are saved: the method of each, its newest image, or why it has none. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping

from slurm_elastic.ckptman.site import pools_by_node
from slurm_elastic.config import Config, PoolSettings
from slurm_elastic.config.job_checkpoint import MethodChoice, resolve_for, why_no_method
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.watch.view.checkpoints import CheckpointsView, MoveView, SavedView, UnsavableView
from slurm_elastic.watch.view.own_jobs import JobSave


def choice_of(
    config: Config, job: SlurmJob, pools: Mapping[str, PoolSettings] | None = None
) -> MethodChoice:
    """How this job is saved, according to its comment, its pool and the site's settings.

    ``pools``: ``pools_by_node`` of the configuration, for callers with many jobs.
    """
    pools = pools_by_node(config) if pools is None else pools
    pool = pools.get(job.nodes[0]) if job.nodes else None
    return resolve_for(job, pool, config)


def how(choice: MethodChoice, be: str = "is") -> str:
    """The words for this plan, to stand after "Job 7 "; ``be``: "is" or "would be"."""
    if choice.method == "none":
        negated = "would NOT be" if be == "would be" else "is NOT"
        return f"{negated} saved: {why_no_method(choice)}"
    options = "".join(f", {key}={value}" for key, value in choice.options.items())
    when = "only to be moved, because the save ends it" if choice.move_only else "by policy"
    if choice.copied:
        when = "only to be moved, because its files come back with the end of its run"
    text = f"{be} saved: by {choice.method}{options}, {when}"
    if choice.renewals:
        text += f"; at its time limit it continues, at most {choice.renewals} times"
    return text


class JobSaves:
    """The saves of many jobs. ``view``: None if slurm-elastic-ckptman has never run, or if its
    records cannot be read (``has_error``).
    """

    def __init__(
        self, config: Config, view: CheckpointsView | None, now: float, *, has_error: bool = False
    ) -> None:
        self._config, self._now, self._view, self._has_error = config, now, view, has_error
        self._pools = pools_by_node(config)
        self._saved: dict[int, SavedView] = {}
        self._unsavable: dict[int, UnsavableView] = {}
        self._moves: dict[int, MoveView] = {}
        if view is not None:
            self._saved = {row.job: row for row in view.saved}
            self._unsavable = {row.job: row for row in view.unsavable}
            self._moves = {row.job: row for row in view.moves if not row.over}

    def of(self, job: SlurmJob) -> JobSave:
        """The saves of the running or waiting job."""
        image, move = self._saved.get(job.id), self._moves.get(job.id)
        choice = choice_of(self._config, job, self._pools)
        return JobSave(
            method="" if choice.method == "none" else choice.method,
            number=image.number if image else None,
            at=self._now - image.age if image else None,
            reason=self._reason(job, choice),
            is_known=choice.method == "none" or not self._has_error,
            move=move.step if move else "",
        )

    def _reason(self, job: SlurmJob, choice: MethodChoice) -> str:
        if choice.method == "none":
            return str(why_no_method(choice))
        if (verdict := self._unsavable.get(job.id)) is not None:
            remedy = f". It would help to {verdict.remedy}" if verdict.remedy else ""
            return f"{verdict.why}{remedy}"
        if self._has_error:
            return "the records of saves cannot be read"
        if self._view is None or not self._view.alive:
            return "slurm-elastic-ckptman does not run"
        return ""
