"""The steps of a migration. A step is on the disk before its effect, and every step is recorded."""

from __future__ import annotations

import logging

from msgspec.structs import replace

from slurm_elastic.ckptman.site import CheckpointSite
from slurm_elastic.model.causes import AnyCause
from slurm_elastic.model.checkpoint import Image
from slurm_elastic.state.ckptstate.facts import Migration, MigrationStep

MAX_TRIES = 3
"""The number of times that a run is saved for a move."""
RETRY_AFTER_S = 2.0
"""Seconds after a failed save (if there is time for another) or a failed requeue."""


def enter_step(
    site: CheckpointSite,
    move: Migration,
    step: MigrationStep,
    *,
    fresh: Image | None = None,
    **changes: object,
) -> Migration:
    """Move the migration to ``step`` and change the given fields. Step and ``fresh`` (a new image)
    are on the disk when this returns.
    """
    now = site.now()
    reached = {**move.reached, str(step): now}
    changed_move = replace(move, step=step, changed=now, reached=reached, **changes)
    site.state.put(changed_move, image=fresh)
    return changed_move


def record_step(
    site: CheckpointSite, move: Migration, kind: str, cause: AnyCause, *, level: int = logging.INFO
) -> None:
    """Record one step of a migration as a decision about its run."""
    site.recorder.record_run(move.run, kind, cause, nodes=move.threatened, level=level)


def finish(
    site: CheckpointSite,
    move: Migration,
    last_step: MigrationStep,
    cause: AnyCause,
    *,
    level: int = logging.INFO,
) -> Migration:
    """Enter one of the last steps, record it and count the migration."""
    done = enter_step(site, move, last_step, note=cause)
    record_step(site, done, f"ckpt-{last_step}", cause, level=level)
    site.recorder.count_move(done)
    return done
