"""Nodes and partitions that take no jobs, reservations, SuspendExc*, and jobs that do not start by
themselves.
"""

from __future__ import annotations

from collections.abc import Iterator

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.config import Config
from slurm_elastic.model.finding import Finding
from slurm_elastic.model.protocols import Slurm
from slurm_elastic.watch.view.kept import GIVEN_UP, REPLACED, kept_views
from slurm_elastic.watch.view.rows import Facts, KeptView

_SUBJECTS = {
    "job": ("waiting jobs", "jobs that start by themselves"),
    "node": ("nodes", "nodes in service"),
    GIVEN_UP: ("nodes", "nodes in service"),
    "partition": ("partitions", "a partition that is UP"),
    "reservation": ("reservations", ""),
    "suspend": ("power saving", "machines that end when no job needs them"),
}


def examine(config: Config, slurm: Slurm, now: float) -> tuple[tuple[Finding, ...], int]:
    """The findings, and how many jobs are stuck; none if Slurm does not answer, which others
    report.
    """
    try:
        facts = Facts(
            now=now, nodes=slurm.nodes(), jobs=slurm.jobs(), reservations=slurm.reservations(),
            partition_states=slurm.partition_states(),
            suspend_exclusions=slurm.suspend_exclusions(),
        )  # fmt: skip
    except SlurmError:
        return (), 0
    views = kept_views(config, facts)
    stuck = sum(view.count for view in views if view.kind == "job" and view.stuck)
    return tuple(_findings(views)), stuck


def _findings(views: tuple[KeptView, ...]) -> Iterator[Finding]:
    for view in views:
        if view.kind != REPLACED:  # ``head`` reports these with the change that the pool needs
            what, expected = _SUBJECTS[view.kind]
            yield Finding.note(what, view.text, expected=expected, advice=view.do)
