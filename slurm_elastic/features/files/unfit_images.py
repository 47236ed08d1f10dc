"""What the images of a job need of its files (``data: copy``). A restored program would find the
directory as it was before its run if the files of that run did not come back. Its machine has the
output of the saved run, too.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Mapping, Sequence

from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.config.validation.validate_checkpoint import SHARED
from slurm_elastic.controller.context import Site
from slurm_elastic.model.checkpoint import Image
from slurm_elastic.model.copying import REFUSALS, JobCopy, find_lost_run
from slurm_elastic.slurm.client.job_files import JobFiles
from slurm_elastic.state.ckptstate import CheckpointState
from slurm_elastic.state.ckptstate.schema import FILE
from slurm_elastic.state.store.shared_journal import is_there

READ_ERRORS = (sqlite3.Error, SlurmElasticError)
"""The errors of ``reason_against_image``. They prove nothing about the image, so ask again."""


def reason_against_image(site: Site, files: JobFiles) -> str:
    """Return why the image of the job's last run does not fit its files; "" if it fits, if there is
    none, if slurm-elastic-ckptman has forgotten it (``ckptman.lost_files``), or if the job was held
    for this reason before and a person has released it. Raises READ_ERRORS if ckptman's records
    cannot be read.
    """
    lost = find_lost_run(site.ledger.copies.of(files.job), files.uid, files.restarts)
    if lost is None or not _has_image(site, lost):
        return ""
    return lost.cause_to_hold


def saved_outputs(site: Site, files: JobFiles) -> Mapping[str, int]:
    """Return, for each output file of the run whose image this run continues from, where the output
    of that run begins on the head; empty if the job has no image. A restore writes the output of
    the saved run into the machine's file once more, so the output of this run begins there, too. A
    run that starts over after all has another output, which is appended. Raises READ_ERRORS.
    """
    rows = [row for row in site.ledger.copies.of(files.job) if _is_earlier(row, files)]
    attempts = {image.attempt for image in _images(site, rows[0])} if rows else set()
    begins: dict[str, int] = {}
    saved = max(attempts & {row.restarts for row in rows}, default=None)
    for row in rows:
        if row.restarts == saved:
            # Only the node that writes the output moves its beginning behind what others wrote.
            begins |= {path: max(base, begins.get(path, 0)) for path, base in row.outputs.items()}
    return begins


def _is_earlier(row: JobCopy, files: JobFiles) -> bool:
    return row.uid == files.uid and row.restarts < files.restarts and row.state not in REFUSALS


def _has_image(site: Site, lost: JobCopy) -> bool:
    return any(image.attempt == lost.restarts for image in _images(site, lost))


def _images(site: Site, row: JobCopy) -> Sequence[Image]:
    """The images of the row's job that a restore can use."""
    path = site.config.state / FILE
    if not is_there(path):
        return ()
    with contextlib.closing(CheckpointState(path, read_only=True)) as state:
        return [i for i in state.images(row.job) if i.uid == row.uid and i.method in SHARED]
