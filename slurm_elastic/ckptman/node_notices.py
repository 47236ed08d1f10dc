"""The notices, and their consequences for nodes: drained, cooling down, powered down.

A node is drained with our reason and never with another's in its place; an admin's own drain is
enough for us. When its last job has left, a cloud node is powered down, which ends its lease.
"""

from __future__ import annotations

import logging
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from msgspec import Struct

from slurm_elastic.ckptman.context import Site
from slurm_elastic.ckptstate import RecordedNotice
from slurm_elastic.errors import SlurmError
from slurm_elastic.ledger import Machine
from slurm_elastic.model import Instance, Notice, NoticeKind
from slurm_elastic.model_slurm import NOWHERE, SlurmNode
from slurm_elastic.policies.cool_downs import after_interruption
from slurm_elastic.policies.node_state import (
    Phase,
    is_anothers_address,
    is_busy,
    is_down,
    is_drained,
    phase,
)
from slurm_elastic.policies.reconcile_rules import OUR_MARK
from slurm_elastic.slurm import node_updates

log = logging.getLogger(__name__)

MARK = f"{OUR_MARK}notice:"
LOST = f"{OUR_MARK}lost: taken away"
FALSE_AFTER = 600.0
"""Seconds after its deadline after which a machine that is still there was warned of wrongly."""
FORGET_UNKNOWN = 3600.0
"""Seconds that a notice about a machine of nobody's is kept: ours may be known a little later."""
CORRELATION = "notices"


class NodeThreat(Struct, frozen=True, kw_only=True):
    """What stands against one node: all of its ``notices``, and ``leaving``, the ones that say that
    it is really taken away, not only in danger. ``deadline``: when at the earliest, None where
    nobody says. ``reason``: in one line, the same for all that a cloud takes, so that a thousand
    nodes are one command.
    """

    node: str
    notices: tuple[Notice, ...]
    leaving: tuple[Notice, ...]
    deadline: float | None
    reason: str


def threat(node: str, warned: Iterable[RecordedNotice]) -> NodeThreat:
    """What these say together; at least one."""
    notices = tuple(w.notice for w in sorted(warned, key=_end))
    leaving = tuple(n for n in notices if n.kind is NoticeKind.INTERRUPTION)
    first = (leaving or notices)[0]
    return NodeThreat(
        node=node,
        notices=notices,
        leaving=leaving,
        deadline=min((n.deadline for n in leaving if n.deadline is not None), default=None),
        reason=first.reason or f"{first.kind} notice",
    )


def threats(
    warned: Sequence[RecordedNotice], machines: Mapping[str, Machine]
) -> Mapping[str, NodeThreat]:
    """By node, the earliest deadline first. ``machines``: the live ones by id."""
    by_node: defaultdict[str, list[RecordedNotice]] = defaultdict(list)
    for one in warned:
        machine = machines.get(one.notice.instance)
        node = machine.instance.node if machine else one.notice.node
        if node:
            by_node[node].append(one)
    return {node: threat(node, some) for node, some in by_node.items()}


def _end(warned: RecordedNotice) -> float:
    deadline = warned.notice.deadline
    return float("inf") if deadline is None else deadline


def machine_of(node: str, machines: Mapping[str, Machine]) -> Machine | None:
    """The newest live machine of a node."""
    mine = [m for m in machines.values() if m.instance.node == node and m.suspending is None]
    return max(mine, key=lambda m: m.instance.launched, default=None)


def settle_nodes(
    site: Site,
    view: Mapping[str, SlurmNode],
    found: Mapping[str, NodeThreat],
    moving: frozenset[str],
    machines: Collection[Machine],
) -> None:
    """Drain what is taken away, power down what is empty by now, give up what is lost already.

    ``moving``: nodes that a job is still to be moved off. ``machines``: the live ones.
    """
    leaving = {n: t for n, t in found.items() if t.leaving and n in view}
    empty = {n: t for n, t in leaving.items() if n not in moving}
    steps: tuple[Callable[[], None], ...] = (
        lambda: _drain(site, view, leaving),
        lambda: _give_up(site, view, leaving, [machine.instance for machine in machines]),
        lambda: _power_down(site, view, empty),
    )
    for step in steps:
        try:
            step()
        except SlurmError as error:
            log.warning("nodes cannot be changed, again with the next look: %s", error)


def _drain(site: Site, view: Mapping[str, SlurmNode], leaving: Mapping[str, NodeThreat]) -> None:
    by_reason: defaultdict[str, list[str]] = defaultdict(list)
    for name, threat in leaving.items():
        node = view[name]
        if not is_drained(node) and not is_down(node) and phase(node) is Phase.UP:
            by_reason[threat.reason].append(name)
    for reason, names in by_reason.items():
        text = f"{MARK}{' '.join(reason.replace(chr(34), chr(39)).split())}"[:200]
        node_updates.drain(site.slurm, names, text)
        site.journal.note(CORRELATION, "ckpt-drained", names, reason)


def _give_up(
    site: Site,
    view: Mapping[str, SlurmNode],
    leaving: Mapping[str, NodeThreat],
    machines: Collection[Instance],
) -> None:
    """Its time is over and it does not answer: DOWN has Slurm requeue its jobs now, not when
    SlurmdTimeout is over. Not where an admin has drained it: the reason is theirs.

    What does not answer may still run, as at a maintenance of its network, and has to hear that
    its job is killed; so it keeps its address, unless that is another machine's by now.
    """
    now = site.now()
    gone = [
        name
        for name, threat in leaving.items()
        if threat.deadline is not None
        and now > threat.deadline
        and is_busy(view[name])
        and not is_down(view[name])
        and view[name].reason.startswith(OUR_MARK)
        and "NOT_RESPONDING" in view[name].states
    ]
    # Only nodes of pools: nobody would give a site's own node its address back.
    cut = [n for n in gone if n in site.pool_of and is_anothers_address(view[n], machines)]
    kept = [name for name in gone if name not in cut]
    for names, address in ((cut, NOWHERE), (kept, None)):
        if names:
            node_updates.set_down(site.slurm, names, LOST, address=address)
    if gone:
        site.journal.note(CORRELATION, "ckpt-node-lost", gone, "its machine was taken away")


def _power_down(
    site: Site, view: Mapping[str, SlurmNode], leaving: Mapping[str, NodeThreat]
) -> None:
    """An empty machine that is going anyway costs money for nothing."""
    empty = [
        name
        for name in leaving
        if name in site.pool_of
        and phase(view[name]) is Phase.UP
        and view[name].reason.startswith(MARK)
        and is_drained(view[name])
        and not is_busy(view[name])
        and not is_down(view[name])
    ]
    if empty:
        node_updates.power_down(site.slurm, empty)
        site.journal.note(CORRELATION, "ckpt-powered-down", empty, "no job is left on it")


def cool_down(site: Site, fresh: Sequence[RecordedNotice]) -> None:
    """The offers of machines that are taken away are not asked for a while."""
    now, seconds = site.now(), site.config.timings.capacity_cooldown
    for one in {w.offer: w for w in fresh if w.takes}.values():
        cooling = after_interruption(one.offer, one.notice.instance, now, seconds)
        try:
            standing = {c.key: c.until for c in site.ledger.cool_downs(now)}
            if standing.get(one.offer, 0.0) < cooling.until:
                site.ledger.cool_down(cooling)
        except sqlite3.Error as error:
            log.warning("offer does not cool down key=%s error=%s", one.offer, error)


def close_over(
    site: Site, warned: Sequence[RecordedNotice], view: Mapping[str, SlurmNode] | None,
    machines: Mapping[str, Machine],
) -> None:  # fmt: skip
    """Notices whose machine is gone, and those that were wrong: its node is let go again."""
    over = {w.key: why for w in warned if (why := _over(site, w, view, machines)) is not None}
    for one in (w for w in warned if w.key in over):
        machine = machines.get(one.notice.instance)
        site.state.close_notice(one, site.now(), release=machine.instance.node if machine else "")
        subject = one.notice.node or one.notice.instance
        site.journal.note(CORRELATION, "ckpt-notice-over", (subject,), over[one.key])


def _over(
    site: Site,
    one: RecordedNotice,
    view: Mapping[str, SlurmNode] | None,
    machines: Mapping[str, Machine],
) -> str | None:
    notice, now = one.notice, site.now()
    if notice.instance:
        machine = machines.get(notice.instance)
        if machine is None:
            known = one.offer or now - notice.seen > FORGET_UNKNOWN
            return "its machine is gone" if known else None
        late = notice.deadline is not None and now > notice.deadline + FALSE_AFTER
        return "its machine is still there long after the deadline" if late else None
    node = (view or {}).get(notice.node)
    if node is not None and phase(node) is Phase.POWERED_DOWN:
        return "its node is powered down"
    return None


def withdraw(site: Site, node: str, machines: Mapping[str, Machine]) -> int:
    """A person takes back what was said of a node; how many notices that were."""
    machine = machine_of(node, machines)
    instance = machine.instance.id if machine else ""
    mine = [
        w for w in site.state.notices()
        if w.notice.node == node or (instance and w.notice.instance == instance)
    ]  # fmt: skip
    for one in mine:
        site.state.close_notice(one, site.now(), release=node)
    if mine:
        site.journal.note(CORRELATION, "ckpt-withdrawn", (node,), "an operator took it back")
    return len(mine)
