"""Orders to save a job: the rights, the effects, and the order itself."""

from __future__ import annotations

import argparse
import os
import time

from msgspec import Struct

from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.cli import ckpt
from slurm_elastic.config import Config
from slurm_elastic.slurm.client.prompt import PromptCli
from slurm_elastic.state.ckptstate.orders import DROPS, SaveOrder, drop
from slurm_elastic.state.heartbeat import CKPTMAN
from slurm_elastic.watch.door.questions import trusted
from slurm_elastic.watch.door.rights import NoRightError, Person, require_saver


class PlannedSave(Struct, frozen=True, kw_only=True):
    """A save that was not ordered yet. ``basis``: the job's owner, nodes and start."""

    job: int
    preview: tuple[str, ...]
    basis: tuple[object, ...]


def add(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``ckpt now``."""
    parser.add_argument("job", type=int, metavar="JOB", help="the number of a running job")


def plan(config: Config, number: int, person: Person) -> PlannedSave:
    """How the job would be saved. SlurmElasticError if it cannot be saved, NoRightError if this
    person may not order it.
    """
    job = next((job for job in PromptCli(config.slurm).jobs() if job.id == number), None)
    if job is None and person.uid not in trusted(config):
        # PrivateData may hide other users' jobs: do not say whether there is such a job.
        raise NoRightError(f"job {number} is not one of your running jobs")
    if job is not None:
        require_saver(config, person, job.uid)
    if job is None or not ("RUNNING" in job.states or job.is_suspended_by_person):
        raise SlurmElasticError(f"job {number} is not running")
    choice = ckpt.choice_of(config, job)
    if choice.method == "none":
        raise SlurmElasticError(f"job {number} {ckpt.how(choice)}")
    if choice.move_only:
        raise SlurmElasticError(f"job {number} is not saved now: it {ckpt.how(choice)}")
    where = ", ".join(job.nodes)
    return PlannedSave(
        job=number,
        preview=(
            f"Job {number} of {job.user} on {where} {ckpt.how(choice)}.",
            "It is saved now, and continues afterwards.",
        ),
        basis=(job.uid, job.nodes, job.start, choice.method),
    )


def carry_out(config: Config, planned: PlannedSave, person: Person) -> tuple[str, ...]:
    """Ask slurm-elastic-ckptman to save the job for this person."""
    if os.geteuid() not in trusted(config):
        raise NoRightError(f"this is for root and {config.slurm.user}")
    place = config.state / DROPS
    try:
        with config.sharing():
            drop(place, SaveOrder(job=planned.job, who=person.name), time.time())
    except FileNotFoundError:
        raise SlurmElasticError(f"{CKPTMAN} has never run: {place} does not exist") from None
    see = f"slurm-elastic ckpt explain {planned.job}"
    lines = (f"{CKPTMAN} is asked to save job {planned.job}; see: {see}",)
    if ckpt.service_runs(config):
        return lines
    return (*lines, f"{CKPTMAN} is NOT RUNNING: it does this when it starts")
