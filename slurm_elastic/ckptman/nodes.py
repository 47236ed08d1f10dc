"""The effects of threats on nodes: they are drained, their offers cool down, empty nodes are
powered down, and nodes are released again.

We drain a node with our own reason and never replace another reason; an administrator's drain is
enough for us. When the last job has left a cloud node, we power the node down, which ends its
lease.
"""

from __future__ import annotations

import logging
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from msgspec.structs import replace

from slurm_elastic.base.backoff import Backoff
from slurm_elastic.base.errors import SlurmError
from slurm_elastic.ckptman.site import CheckpointSite
from slurm_elastic.ckptman.snapshot import Snapshot
from slurm_elastic.model.causes import AnyCause
from slurm_elastic.model.causes.checkpoints import (
    MachineTaken,
    NodeThreatened,
    NoJobLeft,
    NoticedMachineGone,
    NoticedNodeBack,
    NoticedNodeDown,
    NoticedNodeGone,
    NoticedNodeResumed,
    NoticeProvedWrong,
    NoticeWithdrawn,
)
from slurm_elastic.model.causes.threats import JobThreat
from slurm_elastic.model.cluster import Instance
from slurm_elastic.model.slurm import NOWHERE, SlurmNode
from slurm_elastic.policies.checkpoint.threat import EXPIRING, LEAVING, Threat, is_false
from slurm_elastic.policies.launch.exclusions import after_interruption
from slurm_elastic.policies.nodes.node_reasons import NOTICE_MARK, OUR_MARK, has_mark
from slurm_elastic.policies.nodes.node_state import (
    Phase,
    is_anothers_address,
    is_answering,
    is_busy,
    is_down,
    is_drained,
    is_rebooting,
    may_take_jobs,
    phase,
)
from slurm_elastic.slurm.client.commands import node_updates
from slurm_elastic.state.ckptstate.facts import RecordedNotice
from slurm_elastic.state.ledger import Machine

log = logging.getLogger(__name__)

MARK = NOTICE_MARK
LOST_REASON = f"{OUR_MARK}lost: taken away"
"""The reason of a lost node of a pool. slurm-elasticd returns such a node to service."""
LOST_NODE_OF_SITE = f"{MARK}taken away"
"""The reason of a lost node of the site. It has the mark of a notice, because only the end of the
notice returns this node to service.
"""
MISSING_MACHINE_TTL_S = 3600.0
"""Seconds that a notice is kept while the ledger has no record of its machine. The ledger may list
a new machine a little later, and a ledger that was lost or restored lacks machines that run.
"""
CLOCK_MARGIN_S = 86400.0
"""Seconds by which the recorded end of a machine may lie before its notice."""
CORRELATION = "notices"
RELEASE_BACKOFF = Backoff(2.0, 30.0)
"""Seconds until a refused release is tried again; at most 30, so that a healthy node is not idle
for long.
"""
_RELEASING = (NoticeProvedWrong, NoticedNodeBack, NoticedNodeResumed)
"""The ends of a notice after which its node takes jobs again."""
ALL_NODES = ""
"""The key of a refusal that concerns all nodes: Slurm's nodes could not be read."""


def newest_machine_of(node: str, machines: Mapping[str, Machine]) -> Machine | None:
    """The newest live machine of a node."""
    machines_of_node = [
        machine
        for machine in machines.values()
        if machine.instance.node == node and machine.is_wanted
    ]
    return max(machines_of_node, key=lambda machine: machine.instance.launched, default=None)


def apply_threats(
    site: CheckpointSite,
    snapshot: Snapshot,
    nodes_to_empty: frozenset[str],
    released_nodes: Collection[str] = (),
) -> None:
    """Drain nodes that will be taken away, set lost nodes down, power empty nodes down.

    ``nodes_to_empty``: nodes that jobs must still be moved off. ``released_nodes``: nodes whose
    notice has ended since the snapshot was read.
    """
    view = snapshot.nodes or {}
    now = site.now()
    leaving = {
        name: threat
        for name in view
        if name not in released_nodes
        and (
            threat := _threat_to_drain_for(
                snapshot.threats.get(name, ()), view[name], nodes_to_empty
            )
        )
    }
    late_names = [
        name for name, threat in leaving.items() if threat.until is not None and now > threat.until
    ]
    names_without_moves = [name for name in leaving if name not in nodes_to_empty]
    steps: tuple[tuple[Collection[str], Callable[[], None]], ...] = (
        # Drain first. `_power_down` looks at the snapshot from before this drain, so a node powers
        # down in a later tick at the earliest, when no new job can have started on it.
        (leaving, lambda: _drain(site, view, leaving)),
        (
            late_names,
            lambda: _set_lost_nodes_down(
                site, view, late_names, [machine.instance for machine in snapshot.machines.values()]
            ),
        ),
        (names_without_moves, lambda: _power_down(site, view, names_without_moves)),
    )
    for names, step in steps:
        try:
            if names:
                step()
        # If Slurm refuses one step, still try the next.
        except SlurmError as error:
            log.warning("nodes cannot be changed, the next tick tries again: %s", error)


def _threat_to_drain_for(
    threats: Sequence[Threat], node: SlurmNode, nodes_to_empty: Collection[str]
) -> Threat | None:
    """The threat that we drain the node for: its machine goes away, or reaches its planned end and
    jobs are moved off for that. Plans of Slurm or of administrators drain the node themselves.
    """
    planned = node.name in nodes_to_empty or has_mark(node, MARK)
    causes = LEAVING | EXPIRING if planned else LEAVING
    return next((threat for threat in threats if threat.cause in causes), None)


def _drain(
    site: CheckpointSite, view: Mapping[str, SlurmNode], leaving: Mapping[str, Threat]
) -> None:
    names_by_cause: defaultdict[JobThreat, list[str]] = defaultdict(list)
    for name, threat in leaving.items():
        node = view[name]
        if may_take_jobs(node):
            names_by_cause[threat.reason].append(name)
    for cause, names in names_by_cause.items():
        text = f"{MARK}{cause}".replace('"', "'")  # scontrol quotes it
        node_updates.drain(site.slurm, names, " ".join(text.split())[:200])
        site.recorder.record(CORRELATION, "ckpt-drained", names, NodeThreatened(cause=cause))


def _set_lost_nodes_down(
    site: CheckpointSite,
    view: Mapping[str, SlurmNode],
    late_names: Iterable[str],
    machines: Collection[Instance],
) -> None:
    """Requeue the jobs of nodes whose deadline is over and that do not answer."""
    lost_names = [name for name in late_names if _is_lost(view[name])]
    if lost_names:
        # Read the nodes again: if slurmctld was slow, another machine may have come up since the
        # snapshot.
        view = site.slurm.nodes(lost_names)
        lost_names = [name for name in lost_names if name in view and _is_lost(view[name])]
    # Only nodes of pools: slurm-elasticd does not restore the address of a site's own node.
    pool_names = [name for name in lost_names if name in site.pool_of]
    names_without_address = [
        name for name in pool_names if is_anothers_address(view[name], machines)
    ]
    # A machine that does not answer may still run, for example during maintenance of its network.
    # It must hear that its job is killed, so its node keeps its address.
    names_with_address = [name for name in pool_names if name not in names_without_address]
    site_names = [name for name in lost_names if name not in site.pool_of]
    for names, reason, address in (
        (names_without_address, LOST_REASON, NOWHERE),
        (names_with_address, LOST_REASON, None),
        (site_names, LOST_NODE_OF_SITE, None),
    ):
        if names:
            # DOWN makes slurmctld requeue the jobs now, not after SlurmdTimeout.
            node_updates.set_down(site.slurm, names, reason, address=address)
    if lost_names:
        site.recorder.record(CORRELATION, "ckpt-node-lost", lost_names, MachineTaken())


def _is_lost(node: SlurmNode) -> bool:
    # If an administrator drained the node, the reason and the decision are theirs.
    is_ours = has_mark(node, OUR_MARK)
    return is_busy(node) and not is_down(node) and is_ours and "NOT_RESPONDING" in node.states


def _power_down(
    site: CheckpointSite, view: Mapping[str, SlurmNode], leaving: Iterable[str]
) -> None:
    """Power down empty nodes. Their machines go away in any case and would only cost money."""
    empty_names = [
        name
        for name in leaving
        if name in site.pool_of
        and phase(view[name]) is Phase.UP
        # Only nodes that we have drained: an administrator may still need the others.
        and has_mark(view[name], MARK)
        and is_drained(view[name])
        and not is_busy(view[name])
        and not is_down(view[name])
    ]
    if empty_names:
        node_updates.power_down(site.slurm, empty_names)
        site.recorder.record(CORRELATION, "ckpt-powered-down", empty_names, NoJobLeft())


def cool_down(site: CheckpointSite, new_notices: Sequence[RecordedNotice]) -> None:
    """Stop buying, for a while, the offers whose machines are taken away."""
    now, seconds = site.now(), site.config.timings.capacity_cooldown
    # Once per offer: a cloud often takes many machines of an offer at the same time.
    for recorded in {notice.offer: notice for notice in new_notices if notice.takes}.values():
        cooling = after_interruption(recorded.offer, recorded.notice.instance, now, seconds)
        try:
            cool_down_ends = {
                exclusion.scope: exclusion.until
                for exclusion in site.ledger.exclusions.cool_downs(now)
            }
            # Do not shorten a longer cool-down, such as one after refusals.
            if cool_down_ends.get(recorded.offer, 0.0) < cooling.until:
                site.ledger.exclusions.add(cooling)
        except sqlite3.Error as error:
            log.warning(
                "the cool-down of an offer cannot be written to the ledger key=%s error=%s",
                recorded.offer,
                error,
            )


class NoticeEnds:
    """Closes notices whose machine is gone, whose node is back, and notices that proved wrong. It
    remembers in memory since when (monotonic) the machine of a notice is missing.
    """

    def __init__(self, site: CheckpointSite) -> None:
        self._site = site
        self._missing_since: dict[str, float] = {}

    def close(self, snapshot: Snapshot) -> frozenset[str]:
        """Close the notices that have ended. Returns the nodes that this releases."""
        site, released_nodes = self._site, set[str]()
        notices = [_note_node(site, recorded, snapshot) for recorded in snapshot.notices]
        clock = site.monotonic()
        self._missing_since = {
            recorded.key: self._missing_since.get(recorded.key, clock)
            for recorded in notices
            if recorded.notice.instance and recorded.notice.instance not in snapshot.machines
        }
        ended_ids = self._ended_ids(notices)
        for recorded in notices:
            cause = self._why_ended(recorded, snapshot, ended_ids)
            if cause is None:
                continue
            machine = snapshot.machines.get(recorded.notice.instance)
            node = machine.instance.node if machine else recorded.notice.node
            is_released = isinstance(cause, _RELEASING)
            site.state.close_notice(recorded, site.now(), release=node if is_released else "")
            if is_released:
                released_nodes.add(node)
            subject = recorded.notice.node or recorded.notice.instance
            site.recorder.record(CORRELATION, "ckpt-notice-over", (subject,), cause)
        return frozenset(released_nodes)

    def _ended_ids(self, notices: Sequence[RecordedNotice]) -> frozenset[str]:
        """The missing machines of which the ledger has recorded an end or a stop since their
        notice.
        """
        # Also of notices without an offer: the ledger may have got their machine later.
        missing = [recorded for recorded in notices if recorded.key in self._missing_since]
        if not missing:
            return frozenset()
        # The id proves the end. A clock that was set back may show it before the notice.
        since = min(recorded.notice.seen for recorded in missing) - CLOCK_MARGIN_S
        try:
            lives = self._site.ledger.machines.live(ended_since=since, stopped=True)
        except sqlite3.Error:
            return frozenset()
        running_ids = {m.instance.id for m in lives if m.ended_at is None and not m.is_off}
        return frozenset(life.instance.id for life in lives) - running_ids

    def _why_ended(
        self, recorded: RecordedNotice, snapshot: Snapshot, ended_ids: Collection[str]
    ) -> AnyCause | None:
        notice, now = recorded.notice, self._site.now()
        if not notice.instance:
            return _why_node_notice_ended(recorded, snapshot, now)
        missing_since = self._missing_since.get(recorded.key)
        if missing_since is None:
            return NoticeProvedWrong() if is_false(notice, now) else None
        # A list without the machine proves no end. If the machine was listed again later, its
        # notice would be no news.
        is_long_missing = self._site.monotonic() - missing_since > MISSING_MACHINE_TTL_S
        is_gone = is_long_missing or notice.instance in ended_ids
        return NoticedMachineGone() if is_gone else None


def _note_node(
    site: CheckpointSite, recorded: RecordedNotice, snapshot: Snapshot
) -> RecordedNotice:
    """Remember whether the node that the notice names was drained, and whether it was away."""
    node = (snapshot.nodes or {}).get(recorded.notice.node)
    if node is None or recorded.notice.instance:
        return recorded
    noted = replace(
        recorded,
        was_drained=recorded.was_drained or is_drained(node),
        was_away=recorded.was_away or not is_answering(node),
    )
    # On the disk: the node may come back while no service runs.
    if noted != recorded:
        site.state.update_notice(noted)
    return noted


def _why_node_notice_ended(
    recorded: RecordedNotice, snapshot: Snapshot, now: float
) -> AnyCause | None:
    """Why the notice about a node that has no machine of ours has ended; None if it stands."""
    notice = recorded.notice
    if snapshot.nodes is None:
        return None
    node = snapshot.nodes.get(notice.node)
    if node is None:
        return NoticedNodeGone() if is_false(notice, now) else None
    if phase(node) is Phase.POWERED_DOWN:
        return NoticedNodeDown()
    is_late = notice.deadline is not None and now > notice.deadline
    if is_late and recorded.was_drained and may_take_jobs(node):
        return NoticedNodeResumed()
    # A node that still answers does not prove the notice wrong, because the person may be late with
    # the announced work. Jobs that started on it would then be lost.
    is_back = recorded.was_away and _has_returned(node, notice.seen)
    return NoticedNodeBack() if is_back and is_false(notice, now) else None


def _has_returned(node: SlurmNode, announced_at: float) -> bool:
    """Whether the slurmd of a node that was away has registered again."""
    if is_rebooting(node):
        return False
    if not is_down(node):
        return is_answering(node)
    # With ReturnToService 0 and 1 slurmctld leaves a node DOWN that has our reason, although its
    # slurmd has registered. A restarted slurmctld shows a DOWN node without NOT_RESPONDING although
    # it is still away (22.05, measured), so only the boot proves that the node has registered.
    # DOWN with another reason is an administrator's.
    has_booted = node.boot_time > announced_at and "NOT_RESPONDING" not in node.states
    return has_booted and has_mark(node, MARK) and phase(node) is Phase.UP


def withdraw_notices(site: CheckpointSite, node: str, machines: Mapping[str, Machine]) -> None:
    """Close the notices of a node because a person withdrew them."""
    machine = newest_machine_of(node, machines)
    instance = machine.instance.id if machine else ""
    notices = [
        recorded for recorded in site.state.notices()
        if recorded.notice.node == node or (instance and recorded.notice.instance == instance)
    ]  # fmt: skip
    for recorded in notices:
        site.state.close_notice(recorded, site.now(), release=node)
    if notices:
        site.recorder.record(CORRELATION, "ckpt-withdrawn", (node,), NoticeWithdrawn())
