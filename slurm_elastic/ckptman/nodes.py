"""The consequences of threats for nodes: drained, cooling down, powered down, let go again.

A node is drained with our reason and never with another's in its place; an admin's own drain is
enough for us. When its last job has left, a cloud node is powered down, which ends its lease.
"""

from __future__ import annotations

import logging
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from slurm_elastic.base.backoff import Backoff
from slurm_elastic.base.errors import SlurmError
from slurm_elastic.ckptman.site import CheckpointSite
from slurm_elastic.ckptman.snapshot import Snapshot
from slurm_elastic.model.cluster import Instance
from slurm_elastic.model.slurm import NOWHERE, SlurmNode
from slurm_elastic.policies.checkpoint.threat import LEAVING, Cause, Threat, is_false
from slurm_elastic.policies.launch.exclusions import after_interruption
from slurm_elastic.policies.nodes.node_reasons import NOTICE_MARK, OUR_MARK, has_mark
from slurm_elastic.policies.nodes.node_state import (
    Phase,
    is_anothers_address,
    is_busy,
    is_down,
    is_drained,
    may_take_jobs,
    phase,
)
from slurm_elastic.slurm.client import node_updates
from slurm_elastic.state.ckptstate.facts import RecordedNotice
from slurm_elastic.state.ledger import Machine

log = logging.getLogger(__name__)

MARK = NOTICE_MARK
LOST_REASON = f"{OUR_MARK}lost: taken away"
UNKNOWN_NOTICE_TTL_S = 3600.0
"""Seconds that a notice about a machine of nobody's is kept: ours may be known a little later."""
CORRELATION = "notices"
RELEASE_BACKOFF = Backoff(2.0, 30.0)
"""Seconds after a refusal. At most 30: a node that could work again is not kept idle for longer."""
ALL_NODES = ""
"""The key of a refusal that is not about one node: Slurm's nodes could not be read."""


def newest_machine_of(node: str, machines: Mapping[str, Machine]) -> Machine | None:
    """The newest live machine of a node."""
    mine = [m for m in machines.values() if m.instance.node == node and m.is_wanted]
    return max(mine, key=lambda m: m.instance.launched, default=None)


def apply_threats(site: CheckpointSite, seen: Snapshot, moving: frozenset[str]) -> None:
    """Drain what is taken away, power down what is empty by now, give up what is lost already.

    ``moving``: nodes that a job is still to be moved off.
    """
    view = seen.nodes or {}
    now = site.now()
    leaving = {
        n: t for n in view if (t := _threat_to_drain_for(seen.threats.get(n, ()), view[n], moving))
    }
    late = [n for n, t in leaving.items() if t.until is not None and now > t.until]
    left = [n for n in leaving if n not in moving]
    steps: tuple[tuple[Collection[str], Callable[[], None]], ...] = (
        (leaving, lambda: _drain(site, view, leaving)),
        (
            late,
            lambda: _set_lost_nodes_down(
                site, view, late, [m.instance for m in seen.machines.values()]
            ),
        ),
        (left, lambda: _power_down(site, view, left)),
    )
    for names, step in steps:
        try:
            if names:
                step()
        # What Slurm refuses in one step keeps the next one from nothing.
        except SlurmError as error:
            log.warning("nodes cannot be changed, again with the next look: %s", error)


def _threat_to_drain_for(
    threats: Sequence[Threat], node: SlurmNode, moving: Collection[str]
) -> Threat | None:
    """The one for which a node is to be drained: its machine goes; or it comes to its planned end,
    and jobs are moved off for that. Plans of Slurm's and of administrators are theirs.
    """
    planned = node.name in moving or has_mark(node, MARK)
    causes = LEAVING | {Cause.PLANNED_END} if planned else LEAVING
    return next((t for t in threats if t.cause in causes), None)


def _drain(
    site: CheckpointSite, view: Mapping[str, SlurmNode], leaving: Mapping[str, Threat]
) -> None:
    by_reason: defaultdict[str, list[str]] = defaultdict(list)
    for name, threat in leaving.items():
        node = view[name]
        if may_take_jobs(node):
            by_reason[threat.why].append(name)
    for reason, names in by_reason.items():
        text = f"{MARK}{' '.join(reason.replace(chr(34), chr(39)).split())}"[:200]
        node_updates.drain(site.slurm, names, text)
        site.recorder.record(CORRELATION, "ckpt-drained", names, reason)


def _set_lost_nodes_down(
    site: CheckpointSite,
    view: Mapping[str, SlurmNode],
    late: Iterable[str],
    machines: Collection[Instance],
) -> None:
    """Its time is over and it does not answer: its jobs are requeued now."""
    gone = [name for name in late if _is_lost(view[name])]
    if gone:
        # Once more: with a slow slurmctld another machine may have come up since the look.
        view = site.slurm.nodes(gone)
        gone = [name for name in gone if name in view and _is_lost(view[name])]
    # Only nodes of pools: nobody would give a site's own node its address back.
    cut = [n for n in gone if n in site.pool_of and is_anothers_address(view[n], machines)]
    kept = [name for name in gone if name not in cut]
    # What does not answer may still run, as at a maintenance of its network, and has to hear that
    # its job is killed: it keeps its address.
    for names, address in ((cut, NOWHERE), (kept, None)):
        if names:
            # DOWN has Slurm requeue its jobs now, not when SlurmdTimeout is over.
            node_updates.set_down(site.slurm, names, LOST_REASON, address=address)
    if gone:
        site.recorder.record(CORRELATION, "ckpt-node-lost", gone, "its machine was taken away")


def _is_lost(node: SlurmNode) -> bool:
    # Not where an admin has drained it: the reason is theirs.
    is_ours = has_mark(node, OUR_MARK)
    return is_busy(node) and not is_down(node) and is_ours and "NOT_RESPONDING" in node.states


def _power_down(
    site: CheckpointSite, view: Mapping[str, SlurmNode], leaving: Iterable[str]
) -> None:
    """An empty machine that is going anyway costs money for nothing."""
    empty = [
        name
        for name in leaving
        if name in site.pool_of
        and phase(view[name]) is Phase.UP
        and has_mark(view[name], MARK)
        and is_drained(view[name])
        and not is_busy(view[name])
        and not is_down(view[name])
    ]
    if empty:
        node_updates.power_down(site.slurm, empty)
        site.recorder.record(CORRELATION, "ckpt-powered-down", empty, "no job is left on it")


def cool_down(site: CheckpointSite, fresh: Sequence[RecordedNotice]) -> None:
    """The offers of machines that are taken away are not asked for a while."""
    now, seconds = site.now(), site.config.timings.capacity_cooldown
    for one in {w.offer: w for w in fresh if w.takes}.values():
        cooling = after_interruption(one.offer, one.notice.instance, now, seconds)
        try:
            standing = {c.scope: c.until for c in site.ledger.exclusions.cool_downs(now)}
            # A longer one, as after refusals, is not cut short.
            if standing.get(one.offer, 0.0) < cooling.until:
                site.ledger.exclusions.add(cooling)
        except sqlite3.Error as error:
            log.warning("offer does not cool down key=%s error=%s", one.offer, error)


def close_ended_notices(site: CheckpointSite, seen: Snapshot) -> None:
    """Notices whose machine is gone, and those that were wrong: its node is let go again."""
    over = {w.key: why for w in seen.warned if (why := _why_ended(site, w, seen)) is not None}
    for one in (w for w in seen.warned if w.key in over):
        machine = seen.machines.get(one.notice.instance)
        site.state.close_notice(one, site.now(), release=machine.instance.node if machine else "")
        subject = one.notice.node or one.notice.instance
        site.recorder.record(CORRELATION, "ckpt-notice-over", (subject,), over[one.key])


def _why_ended(site: CheckpointSite, one: RecordedNotice, seen: Snapshot) -> str | None:
    notice, now = one.notice, site.now()
    if notice.instance:
        machine = seen.machines.get(notice.instance)
        if machine is None:
            known = one.offer or now - notice.seen > UNKNOWN_NOTICE_TTL_S
            return "its machine is gone" if known else None
        late = is_false(notice, now)
        return "its machine is still there long after the deadline" if late else None
    node = (seen.nodes or {}).get(notice.node)
    if node is not None and phase(node) is Phase.POWERED_DOWN:
        return "its node is powered down"
    return None


def withdraw_notices(site: CheckpointSite, node: str, machines: Mapping[str, Machine]) -> None:
    """A person takes back what was said of a node."""
    machine = newest_machine_of(node, machines)
    instance = machine.instance.id if machine else ""
    mine = [
        w for w in site.state.notices()
        if w.notice.node == node or (instance and w.notice.instance == instance)
    ]  # fmt: skip
    for one in mine:
        site.state.close_notice(one, site.now(), release=node)
    if mine:
        site.recorder.record(CORRELATION, "ckpt-withdrawn", (node,), "an operator took it back")
