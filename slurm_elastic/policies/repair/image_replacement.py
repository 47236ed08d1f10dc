"""Chooses the machines that make room for machines from a pool's new image. Pure.

At most ``max_unavailable`` machines of the pool leave or boot at a time. A new image is tried with
one machine first. Until a machine from it has registered, no other machine leaves, so a bad image
costs the pool one machine and never all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from slurm_elastic.model.cluster import Pool
from slurm_elastic.model.machine_states import Serving
from slurm_elastic.model.memory import Machine
from slurm_elastic.model.slurm import SlurmNode
from slurm_elastic.policies.growth.stopped import born
from slurm_elastic.policies.nodes.node_state import Phase, is_busy, is_leaving, phase
from slurm_elastic.policies.repair.departure import is_persons

_CHANGING = (Phase.POWERING_DOWN, Phase.POWERING_UP)


class ImageHistory(Struct, frozen=True, kw_only=True):
    """The earlier steps for this image of the pool. ``tried_nodes``: nodes whose machines had to
    leave for the image. ``works``: a machine from the image has registered.
    """

    tried_nodes: tuple[str, ...] = ()
    works: bool = False


class PoolImages(Struct, frozen=True, kw_only=True):
    """A pool and its live machines, except machines whose end is decided already. ``image``: the
    image that a new machine would start from. ``image_of``: by machine id, the image that it
    started from; machines of unknown images are absent. ``nodes``: all nodes of the pool.
    ``failures``: machines in a row that did not come up. ``is_closed``: nothing may start in the
    pool now, or its launches are refused.
    """

    pool: Pool
    image: str
    image_of: Mapping[str, str]
    machines: Sequence[Machine]
    nodes: Mapping[str, SlurmNode]
    history: ImageHistory
    failures: int = 0
    is_closed: bool = False


class ReplacementStep(Struct, frozen=True, kw_only=True):
    """The next step: ``power_down`` these nodes after their jobs. ``works``: a machine from the
    image has registered. ``fails``: the image's first machine did not come up.
    """

    power_down: tuple[str, ...] = ()
    works: bool = False
    fails: bool = False


def next_step(view: PoolImages) -> ReplacementStep:
    """Return the next step for the pool."""
    images = view.image_of
    works = view.history.works or any(
        images.get(m.instance.id) == view.image and isinstance(m.life, Serving)
        for m in view.machines
    )
    if works:
        return ReplacementStep(power_down=_leaving_now(view, view.pool.max_unavailable), works=True)
    tried = view.history.tried_nodes
    # If a machine was tried, wait for its successor, which starts when a job needs the node. Its
    # node is chosen again only if slurmctld never got the order.
    chosen = _leaving_now(view, 1, among=tried)
    return ReplacementStep(power_down=chosen, fails=bool(tried) and view.failures > 0)


def _leaving_now(
    view: PoolImages, max_unavailable: int, among: Sequence[str] = ()
) -> tuple[str, ...]:
    """The nodes of machines from other images, as many as may leave now: idle ones first, and the
    oldest of these. ``among``: if not empty, only these.
    """
    if view.is_closed or view.failures:
        return ()
    by_node, nodes = {m.instance.node: m for m in view.machines}, view.nodes
    # A node whose machine has ended counts until it can start again, because a job may wait for it.
    missing = sum(is_leaving(node) or phase(node) in _CHANGING for node in nodes.values())
    outdated = [
        name
        for name, node in nodes.items()
        if name in by_node
        and (name in among or not among)
        and _is_outdated(by_node[name], view)
        and not is_leaving(node)
        and not is_persons(node)
    ]
    outdated.sort(key=lambda name: (is_busy(nodes[name]), born(by_node[name]), name))
    return tuple(outdated[: max(max_unavailable - missing, 0)])


def _is_outdated(machine: Machine, view: PoolImages) -> bool:
    """Whether the machine serves and certainly started from another image. A machine that boots is
    left alone: its jobs wait for it.
    """
    image = view.image_of.get(machine.instance.id)
    serves = isinstance(machine.life, Serving)
    return serves and image is not None and image != view.image
