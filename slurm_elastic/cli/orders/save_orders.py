"""Orders to save a job from the page: the argument, the effects, and the order itself."""

from __future__ import annotations

import argparse
import os
import time

from msgspec import Struct

from slurm_elastic.cli.jobs import ckpt
from slurm_elastic.cli.orders.subjects import queued_job_number
from slurm_elastic.config import Config
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.slurm.client.prompt import PromptCli
from slurm_elastic.state.heartbeat import CKPTMAN
from slurm_elastic.watch.door.client import save_job
from slurm_elastic.watch.door.questions import trusted
from slurm_elastic.watch.door.rights import Person
from slurm_elastic.watch.door.saves import SaveLimit, Saver, require_savable, save_now
from slurm_elastic.watch.view.job_saves import choice_of, how


class PlannedSave(Struct, frozen=True, kw_only=True):
    """A save that was not ordered yet. ``basis``: the job's owner, nodes and start."""

    job: SlurmJob
    saver: Saver
    preview: tuple[str, ...]
    basis: tuple[object, ...]


def add(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``ckpt now``."""
    ckpt.add_job(parser, "a running job")


def plan(config: Config, label: str, person: Person) -> PlannedSave:
    """How the job would be saved. SlurmElasticError if this person may not save it, or if it cannot
    be saved.
    """
    saver = Saver(
        uid=person.uid, name=person.name, is_trusted=person.uid in trusted(config)
    )  # fmt: skip
    slurm = PromptCli(config.slurm)
    number = queued_job_number(config, slurm, label)
    found = next((job for job in slurm.jobs() if job.id == number), None)
    job = require_savable(config, number, found, saver)
    choice = choice_of(config, job)
    return PlannedSave(
        job=job,
        saver=saver,
        preview=(
            f"Job {number} of {job.user} on {', '.join(job.nodes)} {how(choice)}.",
            "It is saved now, and continues afterwards.",
        ),
        basis=(job.uid, job.nodes, job.start, choice.method),
    )


def carry_out(config: Config, planned: PlannedSave, limit: SaveLimit) -> tuple[str, ...]:
    """Ask slurm-elastic-ckptman to save the job for this person. Returns lines about the order."""
    if os.geteuid() not in trusted(config):  # a user's own page: slurm-elasticd checks the owner
        return save_job(config, PromptCli(config.slurm), planned.job.id, time.time())
    with config.sharing():
        lines = save_now(
            config, [planned.job], planned.job.id, planned.saver, time.time(), limit
        )  # fmt: skip
    if ckpt.service_runs(config):
        return lines
    return (*lines, f"{CKPTMAN} is NOT RUNNING: it does this when it starts")
