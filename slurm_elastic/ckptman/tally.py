"""The metrics count saves and moves of jobs, and what these came to."""

from __future__ import annotations

from slurm_elastic.ckptman.site import Site
from slurm_elastic.ckptstate import Migration, Step
from slurm_elastic.model import Image


def saved(site: Site, image: Image) -> None:
    """A checkpoint is complete."""
    site.journal.count("ckpt_saves_total", method=image.method, outcome="saved")
    site.journal.observe("checkpoint_seconds", image.seconds, method=image.method)


def moved(site: Site, move: Migration) -> None:
    """A move is over; one whose job runs again also has its duration, and what it lost."""
    site.journal.count("ckpt_rescues_total", outcome=str(move.step), method=move.method)
    if move.step is Step.BACK:
        cause = str(move.cause)
        took = max(move.reached.get(str(Step.BACK), move.began) - move.began, 0.0)
        site.journal.observe("rescue_seconds", took, cause=cause)
        site.journal.count("lost_node_seconds_total", lost_node_seconds(move), cause=cause)


def lost_node_seconds(move: Migration) -> float:
    """The work of the run that the next one does again: from what that goes on from, an image of
    the run or its start, until it was stopped for a save or put back into the queue.
    """
    run, image = move.run, move.image
    stops = [move.reached[str(s)] for s in (Step.SAVED, Step.REQUEUED) if str(s) in move.reached]
    since = image.taken if image is not None and image.attempt == run.attempt else run.started
    return max(min(stops, default=move.changed) - since, 0.0) * max(len(run.nodes), 1)
