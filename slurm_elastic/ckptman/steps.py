"""A migration at its next step: on the disk before anything else happens, and told."""

from __future__ import annotations

import logging

from msgspec.structs import replace

from slurm_elastic.ckptman.site import CheckpointSite
from slurm_elastic.model.checkpoint import Image
from slurm_elastic.state.ckptstate.facts import Migration, Step

RETRY_AFTER_S = 2.0
"""Seconds after a save that failed, if there is time for another, or a requeue that did."""


def enter_step(
    site: CheckpointSite,
    move: Migration,
    step: Step,
    *,
    fresh: Image | None = None,
    **changes: object,
) -> Migration:
    """The migration at its next step, with an image that is new; on the disk when this returns."""
    now = site.now()
    reached = {**move.reached, str(step): now}
    moved = replace(move, step=step, changed=now, reached=reached, **changes)
    site.state.put(moved, image=fresh)
    return moved


def record_step(
    site: CheckpointSite, move: Migration, kind: str, reason: str, *, level: int = logging.INFO
) -> None:
    """One step of a migration, for the journal."""
    site.recorder.record_run(move.run, kind, reason, nodes=move.threatened, level=level)


def finish(
    site: CheckpointSite, move: Migration, end: Step, why: str, *, level: int = logging.INFO
) -> Migration:
    """The last step."""
    done = enter_step(site, move, end, note=why)
    record_step(site, done, f"ckpt-{end}", why, level=level)
    site.recorder.count_move(done)
    return done
