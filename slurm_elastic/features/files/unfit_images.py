"""Images of runs whose files did not come back (``data: copy``). A restored program would find the
directory as it was before its run.
"""

from __future__ import annotations

import contextlib
import sqlite3

from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.config.validation.validate_checkpoint import SHARED
from slurm_elastic.controller.context import Site
from slurm_elastic.model.copying import CopyState, JobCopy
from slurm_elastic.slurm.client.job_files import JobFiles
from slurm_elastic.state.ckptstate import CheckpointState
from slurm_elastic.state.ckptstate.schema import FILE
from slurm_elastic.state.store.shared_journal import is_there

READ_ERRORS = (sqlite3.Error, SlurmElasticError)
"""The errors of ``reason_against_image``. They prove nothing about the image, so ask again."""
_ENDS = frozenset({CopyState.BACK, CopyState.LOST})
_REFUSALS = frozenset({CopyState.UNSENT, CopyState.REFUSED})


def reason_against_image(site: Site, files: JobFiles) -> str:
    """Return why the image of the job's last run does not fit its files; "" if it fits, if there is
    none, or if the job was held for this reason before and a person has released it. Raises
    READ_ERRORS if ckptman's records cannot be read.
    """
    rows = [
        row
        for row in site.ledger.copies.of(files.job)
        if row.uid == files.uid and row.restarts < files.restarts
    ]
    last_run = max((row.restarts for row in rows if row.state in _ENDS), default=-1)
    lost = next((r for r in rows if r.restarts == last_run and r.state is CopyState.LOST), None)
    if lost is None or not _has_image(site, lost):
        return ""
    reason = (
        f"the files of its last run are lost with {lost.machine}, and its image needs them; "
        "submit the job again, or release it to continue from the image with the files as they are"
    )
    is_known = any(
        row.restarts > last_run and row.state in _REFUSALS and row.reason == reason for row in rows
    )
    return "" if is_known else reason


def _has_image(site: Site, lost: JobCopy) -> bool:
    path = site.config.state / FILE
    if not is_there(path):
        return False
    with contextlib.closing(CheckpointState(path, read_only=True)) as state:
        return any(
            image.attempt == lost.restarts and image.uid == lost.uid and image.method in SHARED
            for image in state.images(lost.job)
        )
