"""Replaces machines when their pool has a new image (``replace: when_changed``): they leave after
their jobs, a few at a time, and jobs start new ones.

The images of machines come from the clouds' lists, so a restarted daemon knows them after its first
round. The recorded decisions say which images were tried, and which work.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import Executor

from slurm_elastic.base.errors import ProviderError
from slurm_elastic.base.hostlist import compress
from slurm_elastic.base.report_once import ReportOnce
from slurm_elastic.base.shared_dict import SharedDict
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.extensions import Extensions, Part
from slurm_elastic.controller.launching.boots import is_cooling
from slurm_elastic.controller.launching.budget import find_stops
from slurm_elastic.controller.periodic import SiteTask
from slurm_elastic.model.boot_image import Replacement
from slurm_elastic.model.causes.image_changes import ImageChanged, NewImageFails, NewImageWorks
from slurm_elastic.model.cluster import Instance, Pool
from slurm_elastic.model.directive import MAINTENANCE, Departure
from slurm_elastic.model.exclusion import CAPACITY, offer_scope
from slurm_elastic.model.image_naming import NamesImages
from slurm_elastic.model.memory import Health
from slurm_elastic.policies.repair.departure import concerned
from slurm_elastic.policies.repair.image_replacement import ImageHistory, PoolImages, next_step
from slurm_elastic.slurm.client.commands import node_updates
from slurm_elastic.state.audit_trail import image_subject, pool_subject
from slurm_elastic.state.ledger import LedgerState

log = logging.getLogger(__name__)

PERIOD_S = 15.0
STEADY_S = 180.0
"""An image that the pool had before counts once each look has found it for so long. A cloud's list
may lack the newest image once, and the answer is cached for a minute, so an older image would take
the place of a newer one, and the newer one its place again.
"""
CORRELATION = "images"


def join(site: Site) -> Extensions | None:
    """Join if a pool replaces its machines by itself."""
    pools = [p for p in site.pools.values() if p.replacement is Replacement.WHEN_CHANGED]
    if not pools:
        return None
    images = SharedDict[str, str]()

    def note_images(cloud: str, machines: Sequence[Instance]) -> tuple[Instance, ...]:
        del cloud
        images.update({m.id: m.image for m in machines if m.image})
        return tuple(machines)

    def part(worker: Executor) -> ImageReplacement:
        return ImageReplacement(site, pools, images, worker)

    return Extensions(parts=[("images", part)], complete_listed=[note_images])


class ImageReplacement(Part):
    """``task``: the periodic task that the daemon runs. ``images``: by machine id, the image that
    the cloud's last lists showed.
    """

    def __init__(
        self, site: Site, pools: Sequence[Pool], images: SharedDict[str, str], worker: Executor
    ) -> None:
        self._site = site
        self._pools = pools
        self._images = images
        self._histories: dict[tuple[str, str], ImageHistory] = {}
        self._failures = ReportOnce[str]()
        self._found_since: dict[str, tuple[str, float]] = {}
        self._earlier_images: defaultdict[str, set[str]] = defaultdict(set)
        self.task = SiteTask(site, worker, self.look, "images", period=PERIOD_S, idle=self._is_idle)

    def _is_idle(self, state: LedgerState) -> bool:
        """Whether the pools have no machine."""
        names = {pool.name for pool in self._pools}
        return not any(m.pool in names for m in state.machines)

    def look(self) -> None:
        """Take the next step in each pool."""
        live = {m.instance.id for m in self._site.ledger.machines.live()}
        self._images.keep(live)
        for pool in self._pools:
            # No machine may leave while its successor cannot be ordered or listed.
            if self._site.ledger.end_only or pool.cloud in self._site.unreadable.snapshot():
                continue
            image = self._new_image(pool)
            if image:
                self._advance(pool, image)

    def _is_steady(self, pool: Pool, image: str) -> bool:
        """Whether the image counts. A new image counts at once. After a restart we do not know
        which images are new.
        """
        now, earlier = self._site.monotonic(), self._earlier_images[pool.name]
        before, since = self._found_since.get(pool.name, ("", now))
        if image != before:
            is_new = bool(before) and image not in earlier
            since = now - STEADY_S if is_new else now
            self._found_since[pool.name] = image, since
        earlier.add(image)
        return now - since >= STEADY_S

    def _new_image(self, pool: Pool) -> str:
        """The image of a new machine; "" if it is not known now."""
        provider = self._site.providers[pool.cloud]
        if not isinstance(provider, NamesImages):
            return ""
        try:
            return provider.image_for(pool)
        except ProviderError as error:
            log.info("image not known pool=%s error=%s", pool.name, error)
            return ""

    def _advance(self, pool: Pool, image: str) -> None:
        site = self._site
        machines = [m for m in site.serving_machines() if m.pool == pool.name]
        if not machines:
            return
        is_steady = self._is_steady(pool, image)
        history = self._history(pool, image)
        breakers = {b.scope: b.count for b in site.ledger.exclusions.breakers()}
        step = next_step(
            PoolImages(
                pool=pool,
                image=image,
                image_of=self._images.snapshot(),
                machines=machines,
                nodes=site.slurm.nodes(pool.nodes),
                history=history,
                failures=breakers.get(pool.name, 0),
                is_closed=not is_steady or is_closed(site, pool),
            )
        )
        if step.works and not history.works:
            self._record(pool, image, "image-works", (), NewImageWorks(pool=pool.name, image=image))
        self._report_failure(pool, image, breakers.get(pool.name, 0) if step.fails else 0)
        if step.power_down:
            self._replace(pool, image, step.power_down, is_first=not step.works)

    def _replace(self, pool: Pool, image: str, nodes: Sequence[str], *, is_first: bool) -> None:
        cause = ImageChanged(pool=pool.name, image=image, is_first=is_first)
        # Before the call: if we end in between, the image counts as tried, and no second machine
        # leaves for it.
        self._record(pool, image, "replaced", nodes, cause)
        reason = f"{MAINTENANCE} {cause}"[:200]
        node_updates.power_down_when_idle(self._site.slurm, nodes, reason)
        log.info("new image pool=%s image=%s nodes=%s", pool.name, image, compress(nodes))

    def _report_failure(self, pool: Pool, image: str, failures: int) -> None:
        """Report in the log, ``status`` and ``explain`` that the image does not work."""
        site, name = self._site, f"image of pool {pool.name}"
        if not failures:
            if any(health.name == name and health.error for health in site.ledger.health.all()):
                site.ledger.health.report(Health(name=name, checked=site.now()))
            return
        cause = NewImageFails(pool=pool.name, image=image, failures=failures)
        health = Health(name=name, checked=site.now(), error=str(cause), code="image")
        site.ledger.health.report(health)
        if self._failures.is_news(pool.name, image):
            subjects = (pool_subject(pool.name), image_subject(pool.name))
            site.record(CORRELATION, "image-fails", subjects, cause)
            log.error("%s", cause)

    def _history(self, pool: Pool, image: str) -> ImageHistory:
        """The image's history according to the recorded decisions. They are read once."""
        key = (pool.name, image)
        if key not in self._histories:
            decisions = self._site.ledger.decisions.about(image_subject(pool.name))
            self._histories[key] = ImageHistory(
                tried_nodes=tuple(
                    subject
                    for d in decisions
                    if isinstance(d.cause, ImageChanged) and d.cause.image == image
                    for subject in d.subjects
                    if subject in pool.nodes
                ),
                works=any(
                    isinstance(d.cause, NewImageWorks) and d.cause.image == image for d in decisions
                ),
            )
        return self._histories[key]

    def _record(
        self, pool: Pool, image: str, kind: str, nodes: Sequence[str],
        cause: ImageChanged | NewImageWorks,
    ) -> None:  # fmt: skip
        subjects = (*nodes, pool_subject(pool.name), image_subject(pool.name))
        self._site.record(CORRELATION, kind, subjects, cause)
        # The next look reads the decisions again, with this one among them.
        self._histories.pop((pool.name, image), None)


def is_closed(site: Site, pool: Pool) -> bool:
    """Whether a machine that leaves now might not come back: an operator, a budget, a time window
    or a refusal lets nothing start in the pool. Also if machines of the pool already leave by an
    operator's order.
    """
    now = site.now()
    machines = [m for m in site.serving_machines() if m.pool == pool.name]
    departing = any(
        isinstance(d.word, Departure) and d.holds(now) and concerned(machines, d.word, d.starts)
        for d in site.ledger.directives.all()
    )
    # Other holds close no pool: a growth policy holds each of its nodes that is off, and an
    # operator may have closed a single node.
    lacks_capacity = any(
        row.kind == CAPACITY and row.scope in pool.nodes for row in site.ledger.exclusions.holds()
    )
    refused = any(
        offer_scope(row.scope).touches(pool) for row in site.ledger.exclusions.cool_downs(now)
    )
    return (
        departing
        or lacks_capacity
        or refused
        or pool.cloud in site.blocked
        or is_cooling(site, pool)
        # Not the holds that a stop causes: a pool whose nodes are all up has none.
        or pool.name in find_stops(site.config, site.ledger, site.rules, now)
    )
