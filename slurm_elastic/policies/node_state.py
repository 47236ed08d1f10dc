"""Where a cloud node stands in its life, read off Slurm's state words. Pure."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Mapping
from enum import Enum

from msgspec import Struct

from slurm_elastic.model import Instance
from slurm_elastic.model_slurm import SlurmNode

_BUSY = frozenset({"ALLOCATED", "MIXED", "COMPLETING"})


class Phase(Enum):
    """A cloud node's life (power_save.html): powered down, up, and the two ways between."""

    POWERED_DOWN = "powered down"
    POWERING_UP = "powering up"
    UP = "up"
    POWERING_DOWN = "powering down"


def phase(node: SlurmNode) -> Phase:
    """The phase of ``node``, by the flags slurmctld sets (measured on 22.05 to 26.05).

    POWERING_UP wins: a node asked for again while it was going down is wanted up. POWER_DOWN on a
    busy node (``allocated!``) only announces what follows its jobs, so the node is up.
    """
    return _phase(node.states)


@functools.lru_cache(maxsize=1024)
def _phase(states: frozenset[str]) -> Phase:
    """Tens of thousands of nodes have few of them."""
    if states & {"POWERING_UP", "POWER_UP"}:
        return Phase.POWERING_UP
    if "POWERING_DOWN" in states or ("POWER_DOWN" in states and not states & _BUSY):
        return Phase.POWERING_DOWN
    if "POWERED_DOWN" in states:
        return Phase.POWERED_DOWN
    return Phase.UP


def is_down(node: SlurmNode) -> bool:
    """Base state DOWN: Slurm has given the node up."""
    return "DOWN" in node.states


def is_answering(node: SlurmNode) -> bool:
    """Up, and somebody answers slurmctld's pings at its address."""
    silent = is_down(node) or "NOT_RESPONDING" in node.states
    return phase(node) is Phase.UP and not silent


def may_take_jobs(node: SlurmNode) -> bool:
    """Up, and nobody keeps jobs off it."""
    return phase(node) is Phase.UP and not is_down(node) and not is_drained(node)


def is_drained(node: SlurmNode) -> bool:
    """The DRAIN flag: no new jobs."""
    return "DRAIN" in node.states


def is_busy(node: SlurmNode) -> bool:
    """Some job holds the node (COMPLETING counts: its processes may still run)."""
    return not node.states.isdisjoint(_BUSY)


def is_unneeded(node: SlurmNode) -> bool:
    """Whether no job is on the node's machine, nor will be: Slurm has powered the node down."""
    return phase(node) is Phase.POWERED_DOWN and not is_busy(node)


def is_anothers_address(
    node: SlurmNode, machines: Collection[Instance], nodes: Collection[SlurmNode] = ()
) -> bool:
    """Whether another node, or machine of ours, has the address of ``node``, which is lost, by now.

    slurmctld tells a node that goes DOWN to kill its jobs, which would reach that machine, and the
    very job if it runs there by then; and its answer has slurmctld take the node for one that is
    back (22.05). A lost node whose address nobody has keeps it for this order, as a machine that
    cannot be seen, but runs, has to hear it; it is set to nowhere with the next round ("clear").
    """
    return node.name in at_anothers_address(machines, (node, *nodes))


def at_anothers_address(
    machines: Collection[Instance], nodes: Collection[SlurmNode]
) -> frozenset[str]:
    """All nodes of which ``is_anothers_address`` is true. On one host each has a port of its own; a
    machine has its node's, and any where that is not among ``nodes``.
    """
    ports = {node.name: node.port for node in nodes}
    holders: dict[tuple[str, int | None], set[str]] = {}
    for node in nodes:
        holders.setdefault((node.address, node.port), set()).add(node.name)
    for machine in machines:
        place = (machine.address or "", ports.get(machine.node))
        holders.setdefault(place, set()).add(machine.node)
    return frozenset(
        node.name
        for node in nodes
        if node.address
        and (
            len(holders[node.address, node.port]) > 1
            or not holders.get((node.address, None), set()) <= {node.name}
        )
    )


# Nodes that Slurm itself has taken out of service: why, whose fault it is, what to do. Pure.
#
# slurmctld drains a node, or sets it DOWN, with one of a few fixed texts (src/slurmctld/node_mgr.c,
# proc_req.c, agent.c; src/slurmd/slurmstepd), as SlurmUser, or as root where slurmstepd asks for
# it. A cloud node leaves that state by nobody's doing: its machine is paid until SuspendTime, and
# then the node is lost. So it counts as a machine that has failed. A drain with any other text, or
# by any other user, is a person's and stays.
#
# ``strike``: ``POOL`` counts against the breaker of the machine's pool, as every machine of it
# would fail so; ``MACHINE`` against nobody, the next one may be well. Where jobs still run on the
# node they end first, unless Slurm has them killed (DOWN). docs/node-health.md has the table for
# people.


class Strike(Enum):
    """The party that a failure counts against."""

    POOL = "pool"
    MACHINE = "machine"


class Cause(Struct, frozen=True):
    """One row: ``words`` is a pattern of Slurm's whole text, ``remedy`` what a person can do."""

    words: str
    why: str
    strike: Strike
    remedy: Callable[[re.Match[str]], str]


class Ill(Struct, frozen=True, kw_only=True):
    """The illness of one node: Slurm's words, and the first cause that counts against its pool."""

    words: str
    why: str
    strike: Strike
    remedy: str

    def __str__(self) -> str:
        return f"{self.words}: {self.why}" + (f"; do: {self.remedy}" if self.remedy else "")


ROUND = 100
"""MiB to which a value of ``real_memory`` is rounded down, as one machine reports a little less
than the next.
"""


def _memory(found: re.Match[str]) -> str:
    reported = int(found["reported"] or 0)
    if not reported:
        return "set the pool's `real_memory` to less than `slurmd -C` prints on a machine"
    value = reported // ROUND * ROUND if reported > ROUND else reported
    return f"set `real_memory: {value}` in the pool (slurmd reports {reported} MiB)"


def _gres(found: re.Match[str]) -> str:
    there = f": the machines have {found['there']}" if found["there"] else ""
    return f"set the pool's `gres` to what its machines have, or repair their driver{there}"


def _says(text: str) -> Callable[[re.Match[str]], str]:
    return lambda _found: text


_CPUS = _says("set the pool's `cpus` to what `slurmd -C` prints on a machine of its types")
_LOGS = _says("look into slurmd's log on a machine of the pool")
_PROLOG = _says("the site's Prolog fails on these machines: slurmd's log there says how")

CAUSES: tuple[Cause, ...] = (
    Cause(
        r"Low RealMemory(?: \(reported:(?P<reported>\d+) < .*?(?:of )?configured:\d+\))?",
        "the machine has less memory than its pool promises", Strike.POOL, _memory,
    ),
    Cause(
        r"Low socket\*core\*thread count|Low socket\*core count|Low CPUs|CoreSpec differ",
        "the machine has fewer CPUs than its pool promises", Strike.POOL, _CPUS,
    ),
    Cause(
        r"Low TmpDisk(?: \(.*?\))?",
        "the machine has less temporary disk than slurm.conf promises", Strike.POOL,
        _says("lower TmpDisk of these nodes in slurm.conf, or give the image a larger disk"),
    ),
    Cause(
        r"gres/\S+ count (?:reported lower than configured|too low)"
        r"(?: \((?P<there>\d+) < \d+\))?",
        "the machine has fewer devices than its pool promises", Strike.POOL, _gres,
    ),
    Cause(
        r"Could not unpack gres data",
        "slurmctld cannot read what the machine says of its devices", Strike.POOL,
        _says("install the head node's release of Slurm in the image"),
    ),
    Cause(
        r"Prolog error|Job env setup error",
        "the site's Prolog failed on the machine", Strike.POOL, _PROLOG,
    ),
    Cause(
        r"Prolog/Epilog failure|Epilog error",
        "the site's Epilog failed on the machine", Strike.MACHINE, _LOGS,
    ),
    Cause(
        r"slurm-elastic gate: .*",
        "the site's check of the machine failed after a job", Strike.POOL,
        _says("run join.check on a machine of the pool"),
    ),
    Cause(
        r"SlurmdSpoolDir is full",
        "the machine's disk is full", Strike.MACHINE,
        _says("give the image a larger disk, or clean up what jobs leave there"),
    ),
    Cause(
        r"Node unexpectedly rebooted",
        "the machine was started anew, which ended its jobs", Strike.MACHINE, _says(""),
    ),
    Cause(
        r"Kill task failed",
        "a job's processes could not be ended", Strike.MACHINE, _says(""),
    ),
    Cause(
        r"batch job complete failure|Duplicate jobid",
        "slurmd could not start a job or end it", Strike.MACHINE, _LOGS,
    ),
)  # fmt: skip
"""In Slurm's own words: of 22.05 to 26.05. slurmctld joins several with a comma."""
_COMPILED = tuple((cause, re.compile(cause.words)) for cause in CAUSES)


def ill(node: SlurmNode, slurm_user: str) -> Ill | None:
    """The illness of a node that Slurm keeps from jobs; None where a person or nobody does."""
    if not (is_down(node) or is_drained(node)):
        return None
    if node.reason_user not in ("", "root", slurm_user):
        return None
    return told_by(node.reason)


def told_by(reason: str) -> Ill | None:
    """The cause that a reason of Slurm's own tells; None of any other text, and of one that is in
    part.
    """
    found = [_cause(part) for part in reason.split(", ")]
    known = [one for one in found if one is not None]
    if not known or len(known) < len(found):
        return None
    first = next((one for one in known if one.strike is Strike.POOL), known[0])
    remedies = "; ".join(dict.fromkeys(one.remedy for one in known if one.remedy))
    return Ill(words=reason, why=first.why, strike=first.strike, remedy=remedies)


def _cause(words: str) -> Ill | None:
    for cause, pattern in _COMPILED:
        if found := pattern.fullmatch(words.strip()):
            remedy = cause.remedy(found)
            return Ill(words=words, why=cause.why, strike=cause.strike, remedy=remedy)
    return None


# both, for many nodes


class NodeState(Struct, frozen=True, gc=False):
    """The meaning of Slurm's words for a node: where it is in its life, whether Slurm has given it
    up, whether it answers (``is_answering``), whether a machine of it is of use (``is_unneeded``),
    and what ails it.
    """

    phase: Phase
    down: bool
    answers: bool
    unneeded: bool
    ails: Ill | None


def states_of(nodes: Mapping[str, SlurmNode], slurm_user: str) -> dict[str, NodeState]:
    """By name, what Slurm's words for each node mean."""
    return {
        name: NodeState(
            phase(node),
            is_down(node),
            is_answering(node),
            is_unneeded(node),
            ill(node, slurm_user),
        )
        for name, node in nodes.items()
    }
