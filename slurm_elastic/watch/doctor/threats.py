"""Machines that their clouds take away, and whether their jobs can be saved before that."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterator

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.base.pages import page
from slurm_elastic.config import Config
from slurm_elastic.model.finding import Finding
from slurm_elastic.model.protocols import Slurm
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.watch.door.records import read_facts
from slurm_elastic.watch.view.checkpoints import checkpoints_view
from slurm_elastic.watch.view.departing import UNSAVABLE, taken_phrases


def examine(config: Config, slurm: Slurm, now: float) -> Iterator[Finding]:
    """Yield a finding for each machine. Yield none if the records cannot be read, because another
    check reports that.
    """
    facts = read_facts(config, now)
    if facts.checkpoints is None:
        return
    stale = config.timings.daemon_timeout
    view = checkpoints_view(facts.checkpoints, facts.machines, now, stale)
    jobs_of: defaultdict[str, list[SlurmJob]] = defaultdict(list)
    with contextlib.suppress(SlurmError):
        for job in slurm.jobs() if view.threats else ():
            for node in job.nodes:
                jobs_of[node].append(job)
    for node, fate in taken_phrases(view, jobs_of).items():
        yield _lost(node, fate) if UNSAVABLE in fate else _kept(node, fate)


def _lost(node: str, fate: str) -> Finding:
    return Finding.wrong(
        f"node {node}",
        fate,
        expected="jobs that are saved before their machine goes",
        advice="inform the job's user at once: work that the program does not save by then is "
        f"lost, and the job starts over elsewhere; {page('checkpointing')} has the ways to save it",
    )


def _kept(node: str, fate: str) -> Finding:
    return Finding.note(
        f"node {node}",
        fate,
        expected="its jobs are saved and continue elsewhere",
        advice="slurm-elastic ckpt list shows how far they are; "
        f"if the machine stays: slurm-elastic ckpt notice {node} --withdraw",
    )
