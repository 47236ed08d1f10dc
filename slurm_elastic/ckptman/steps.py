"""A migration at its next step: on the disk before anything else happens, and told."""

from __future__ import annotations

import logging

from msgspec.structs import replace

from slurm_elastic.ckptman.site import Site
from slurm_elastic.model.checkpoint import Image
from slurm_elastic.state.ckptstate.facts import Migration, Step

AGAIN = 2.0
"""Seconds after a save that failed, if there is time for another, or a requeue that did."""


def to(
    site: Site, move: Migration, step: Step, *, fresh: Image | None = None, **changes: object
) -> Migration:
    """The migration at its next step, with an image that is new; on the disk when this returns."""
    now = site.now()
    reached = {**move.reached, str(step): now}
    moved = replace(move, step=step, changed=now, reached=reached, **changes)
    site.state.put(moved, image=fresh)
    return moved


def say(site: Site, move: Migration, kind: str, reason: str, *, level: int = logging.INFO) -> None:
    """One step of a migration, for the journal."""
    site.journal.of_run(move.run, kind, reason, nodes=move.threatened, level=level)


def over(
    site: Site, move: Migration, end: Step, why: str, *, level: int = logging.INFO
) -> Migration:
    """The last step."""
    done = to(site, move, end, note=why)
    say(site, done, f"ckpt-{end}", why, level=level)
    site.journal.moved(done)
    return done
