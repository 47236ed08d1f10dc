"""Why a node takes no jobs: who keeps jobs from it, since when, and what returns it. Pure."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

from slurm_elastic.model.slurm import SlurmNode
from slurm_elastic.model.slurm_words import node_states
from slurm_elastic.model.slurm_words.node_causes import GIVEN_UP
from slurm_elastic.model.slurm_words.rows import Actor
from slurm_elastic.policies.nodes.node_reasons import ASAP, OUR_MARK, has_mark
from slurm_elastic.policies.nodes.node_state import (
    Phase,
    is_busy,
    is_down,
    is_drained,
    is_leaving,
    is_rebooting,
    phase,
)
from slurm_elastic.policies.nodes.out_of_service import DrainTerms, ill


class Keep(Enum):
    """How a node is kept from jobs. The value is shown to people."""

    REBOOT = "reboots"
    REPLACED = "was taken out of service"
    GIVEN_UP = "was given up"
    DOWN = "is down"
    FAILED = "is marked as failing"
    DRAINED = "is drained"
    OTHER = "takes no jobs"


class KeptNode(Struct, frozen=True, kw_only=True):
    """One node that takes no jobs. ``who`` keeps it since ``since`` (Unix s, 0: unknown) for
    ``reason``; ``actor`` must act. ``is_off``: no machine runs for it.
    """

    node: str
    how: Keep
    who: str
    since: float
    reason: str
    actor: Actor
    is_off: bool

    def command(self, nodes: str) -> str:
        """The command with which a person returns such ``nodes``; "" if no person must act."""
        if self.actor in (Actor.SLURM, Actor.SLURM_ELASTIC):
            return ""
        # Slurm refuses RESUME for a powered-down node, or waits for a machine there (22.05).
        return f"scontrol update nodename={nodes} state={'idle' if self.is_off else 'resume'}"


def kept_node(node: SlurmNode, terms: DrainTerms) -> KeptNode | None:
    """Why the node takes no jobs; None if it takes jobs, if slurm-elastic itself keeps it, or if it
    only waits for its jobs to power down.
    """
    ails = ill(node, terms)
    how = Keep.REPLACED if ails is not None else _how(node)
    if how is None or has_mark(node, OUR_MARK) or _powers_down_by_order(node):
        return None
    reason = node.reason if ails is None else f"{ails.slurm_reason}: {ails.meaning}"
    is_slurms = node.reason_user in ("", terms.slurm_user)
    return KeptNode(
        node=node.name,
        how=how,
        who="Slurm" if is_slurms or ails is not None else node.reason_user,
        since=node.reason_at,
        reason=reason,
        actor=_actor(how),
        is_off=phase(node) is Phase.POWERED_DOWN and not is_busy(node),
    )


def _powers_down_by_order(node: SlurmNode) -> bool:
    """Whether only an order to power down after the jobs drains the node. To resume the node would
    undo the order; its drain ends when it has powered down.
    """
    return is_leaving(node) and node.reason == ASAP


def _how(node: SlurmNode) -> Keep | None:
    # First, because slurmctld sets a node that it reboots DOWN until its slurmd is back.
    if is_rebooting(node):
        return Keep.REBOOT
    if is_down(node):
        return Keep.GIVEN_UP if has_mark(node, GIVEN_UP) else Keep.DOWN
    if is_drained(node):
        return Keep.DRAINED if "DRAIN" in node.states else Keep.FAILED
    return Keep.OTHER if _lasting_states(node) else None


def _lasting_states(node: SlurmNode) -> list[str]:
    """The meanings of further states that keep jobs from the node until a person acts."""
    rows = map(node_states.row_of, sorted(node.states))
    return [row.meaning for row in rows if row and row.keeps_jobs and not row.passes]


def _actor(how: Keep) -> Actor:
    if how is Keep.REBOOT:
        return Actor.SLURM
    if how in (Keep.REPLACED, Keep.GIVEN_UP):
        return Actor.SLURM_ELASTIC
    return Actor.SITE if how is Keep.OTHER else Actor.OPERATOR


def sentence(kept: KeptNode, nodes: str, count: int, since: str) -> str:
    """Say how ``count`` ``nodes`` are kept; ``since`` is the time as text ("" if Slurm does not
    say).
    """
    singular, plural = kept.how.value, _PLURAL[kept.how]
    text = f"node {nodes} {singular}" if count == 1 else f"nodes {nodes} {plural}"
    # After it has issued the reboot, slurmctld overwrites the name of the person who ordered it
    # (22.05).
    if kept.how is not Keep.REBOOT:
        text += f" by {kept.who}"
    if since:
        text += f" since {since}"
    text += f": {kept.reason}" if kept.reason else ""
    return f"{text}; no machine runs there" if kept.is_off else text


_PLURAL = {
    Keep.REBOOT: "reboot", Keep.REPLACED: "were taken out of service",
    Keep.GIVEN_UP: "were given up", Keep.DOWN: "are down",
    Keep.FAILED: "are marked as failing", Keep.DRAINED: "are drained", Keep.OTHER: "take no jobs",
}  # fmt: skip


def remedy(kept: KeptNode, nodes: str) -> str:
    """The command for a person, or the repair that needs none."""
    if command := kept.command(nodes):
        return f"after its repair: {command}"
    if kept.how is Keep.REBOOT:
        return "nothing: it takes jobs again when its slurmd is back"
    return "nothing: slurm-elasticd replaces the machine and returns the node to service"
