"""Nodes and partitions that take no jobs, reservations, SuspendExc*, and jobs that do not run.

The jobs either do not start by themselves, or ask to be saved but are not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.base.pages import page
from slurm_elastic.ckptman.site import pools_by_node
from slurm_elastic.config import Config
from slurm_elastic.config.job_checkpoint import resolve_for
from slurm_elastic.model.causes.save_refusals import SaveRefusal
from slurm_elastic.model.finding import Finding
from slurm_elastic.model.protocols import Slurm
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.watch.door.records import read_facts
from slurm_elastic.watch.view.kept import GIVEN_UP, REPLACED, kept_views
from slurm_elastic.watch.view.rows import Facts, KeptView

MAX_NAMES = 5  # jobs that a finding names
_SUBJECTS = {
    "job": ("waiting jobs", "jobs that start by themselves"),
    "node": ("nodes", "nodes in service"),
    GIVEN_UP: ("nodes", "nodes in service"),
    "partition": ("partitions", "a partition that is UP"),
    "reservation": ("reservations", ""),
    "suspend": ("power saving", "machines that end when no job needs them"),
}


def examine(config: Config, slurm: Slurm, now: float) -> tuple[tuple[Finding, ...], int]:
    """Return the findings, and how many jobs are stuck.

    Return none if Slurm does not answer, because another check reports that.
    """
    try:
        facts = Facts(
            now=now, nodes=slurm.nodes(), jobs=slurm.jobs(), reservations=slurm.reservations(),
            partition_states=slurm.partition_states(), max_times=slurm.max_times(),
            suspend_exclusions=slurm.suspend_exclusions(),
        )  # fmt: skip
    except SlurmError:
        return (), 0
    # Slurm does not know why slurm-elasticd holds a job.
    views = kept_views(config, replace(facts, obstacles=read_facts(config, now).obstacles))
    stuck = sum(view.count for view in views if view.kind == "job" and view.stuck)
    return (*_findings(views), *_unsaved(config, facts.jobs)), stuck


def _unsaved(config: Config, jobs: Sequence[SlurmJob]) -> Iterator[Finding]:
    """Yield the jobs that ask for a way to be saved and are not saved, by reason."""
    pools = pools_by_node(config)
    by_cause: dict[SaveRefusal, list[str]] = {}
    for job in jobs:
        pool = pools.get(job.nodes[0]) if job.nodes else None
        plan = resolve_for(job, pool, config)
        if plan.refused and not job.has_ended:
            by_cause.setdefault(plan.refused, []).append(job.label)
    for cause, labels in by_cause.items():
        and_others = f" and {len(labels) - MAX_NAMES} more" if len(labels) > MAX_NAMES else ""
        noun = "job" if len(labels) == 1 else "jobs"
        verb = "is" if len(labels) == 1 else "are"
        yield Finding.note(
            "saves of jobs",
            f"{noun} {', '.join(labels[:MAX_NAMES])}{and_others} {verb} NOT saved: {cause}",
            expected="jobs that are saved as they ask (--comment=ckpt=METHOD)",
            advice=f"set what is missing ({page('checkpointing')}), or tell their users",
        )


def _findings(views: tuple[KeptView, ...]) -> Iterator[Finding]:
    for view in views:
        if view.kind != REPLACED:  # ``head`` reports these with a remedy
            subject, expected = _SUBJECTS[view.kind]
            yield Finding.note(subject, view.text, expected=expected, advice=view.do)
