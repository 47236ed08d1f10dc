"""Words for the state of a node and for what happens to a machine next. Pure functions."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence

from slurm_elastic.base.units import brief
from slurm_elastic.config import Config
from slurm_elastic.config.clouds import CloudSettings
from slurm_elastic.config.pool_rules import fail_safe, rules_of
from slurm_elastic.model.exclusion import CAPACITY, Exclusion
from slurm_elastic.model.memory import Machine
from slurm_elastic.model.slurm import SlurmJob, SlurmNode
from slurm_elastic.policies.growth.release import Flagged, OwnRelease
from slurm_elastic.policies.growth.scaling import PoolRules
from slurm_elastic.policies.launch.boots import given_up_after
from slurm_elastic.policies.nodes.node_reasons import HOLD_MARK, has_mark
from slurm_elastic.policies.nodes.node_state import (
    Phase,
    is_answering,
    is_busy,
    is_down,
    is_drained,
    is_rebooting,
    phase,
)
from slurm_elastic.policies.nodes.out_of_service import ill
from slurm_elastic.policies.policy_text import text_of
from slurm_elastic.policies.repair.cloud_view import Thresholds

HELD, DOWN, DRAINED, BOOTING = "held", "down", "drained", "booting"
REBOOTING = "rebooting"
POWERING_DOWN, POWERED_DOWN, IN_USE, IDLE = "powering down", "powered down", "in use", "idle"
NO_MACHINE, UNKNOWN = "no machine", "unknown to Slurm"

_NEVER_S = 10**8  # slurm.conf's "never": a suspend time of at least this


def node_state(node: SlurmNode | None, hold: Exclusion | None, *, has_machine: bool) -> str:
    """Return one or two words for a node's state, from Slurm and the ledger."""
    if node is None:
        return UNKNOWN
    power_phase = phase(node)
    if power_phase is Phase.POWERING_UP:
        return DOWN if is_down(node) else BOOTING
    if power_phase is Phase.POWERING_DOWN:
        return POWERING_DOWN
    held = is_drained(node) and (hold is not None or has_mark(node, HOLD_MARK))
    if held:
        return HELD
    if is_rebooting(node):
        return REBOOTING
    if is_down(node):
        return DOWN
    if power_phase is Phase.POWERED_DOWN:
        return DRAINED if is_drained(node) else POWERED_DOWN
    if is_busy(node):
        return IN_USE
    if is_drained(node):
        return DRAINED
    return IDLE if has_machine else NO_MACHINE


def node_states(
    names: Iterable[str],
    nodes: Mapping[str, SlurmNode] | None,
    holds: Mapping[str, Exclusion],
    with_machine: Container[str],
) -> dict[str, str]:
    """Return the ``node_state`` of each name; empty if Slurm's ``nodes`` are not known."""
    if nodes is None:
        return {}
    states: dict[str, str] = {}
    state_by_key: dict[tuple[frozenset[str], bool], str] = {}
    for name in names:
        node, hold, has_machine = nodes.get(name), holds.get(name), name in with_machine
        # Of many thousand nodes nearly all have no hold and no reason. Their state depends only on
        # the key, so it is computed once for each key.
        if node is None or hold is not None or node.reason:
            states[name] = node_state(node, hold, has_machine=has_machine)
            continue
        key = (node.states, has_machine)
        state = state_by_key.get(key)
        if state is None:
            state = state_by_key[key] = node_state(node, None, has_machine=has_machine)
        states[name] = state
    return states


def node_note(state: str, node: SlurmNode | None, hold: Exclusion | None, now: float) -> str:
    """Return why a node is in that state; "" if there is nothing to say."""
    if state == HELD and hold is not None:
        if hold.kind != CAPACITY:
            return str(hold.cause)
        left_s = hold.until - now
        when = f"released in {brief(left_s)}" if left_s > 0 else "about to be released"
        return f"{hold.cause}; {when}"
    if state == NO_MACHINE:
        return "Slurm has it up, but slurm-elasticd knows no machine for it"
    if state == UNKNOWN:
        return "configured, but Slurm does not list it: is the fragment installed?"
    if node is not None and state in (HELD, DOWN, DRAINED, REBOOTING):
        return node.reason
    return ""


CALM = (
    "in use", "suspends", "idle", "reboots", "kept ", "goes", "leaves", "booting: times",
    "powering down",    "terminating", "unknown: Slurm ",
)  # fmt: skip
"""First words of the phrases about machines that need no action by a person."""


class Outlook:
    """Tells what happens next to the machines of one cloud."""

    def __init__(
        self,
        config: Config,
        cloud: CloudSettings | None,
        now: float,
        never_suspended: Mapping[str, str] | None = None,
    ) -> None:
        """``never_suspended``: for each node that Slurm never powers down, the option of slurm.conf
        that is the reason.
        """
        self._never_suspended = never_suspended or {}
        self._timings = config.timings
        self._terms = config.slurm.drain_terms
        self._now = now
        self._suspend = fail_safe(config, cloud) if cloud else 0.0
        self._rules = {pool.name: rules_of(config, pool) for pool in config.pools} if cloud else {}
        self._boot = given_up_after(config.resume_timeout(cloud)) if cloud else 0.0

    def of(
        self,
        machine: Machine,
        node: SlurmNode | None,
        jobs: Sequence[SlurmJob],
        max_age: float | None,
        leaves: str = "",
    ) -> str:
        """Return a phrase for the machine with Slurm's ``node`` and ``jobs``.

        ``leaves``: the phrase of a machine on its way out. The tests run from the surest fact to
        the weakest: what the ledger has decided goes before what Slurm says of the node.
        """
        if machine.retired_at is not None:
            return (
                f"terminating: {machine.cause_text}"
                if machine.cause_text is not None
                else "terminating"
            )
        if machine.missed_listings > 0:
            return _unlisted(machine.missed_listings, node)
        if node is None:
            return "orphan: Slurm has no such node; will be deleted"
        power_phase = phase(node)
        if power_phase is Phase.UP and (illness := ill(node, self._terms)) is not None:
            return (
                f"Slurm took it out of service ({illness.slurm_reason}):"
                " another machine replaces it"
            )
        if is_rebooting(node) or is_down(node):
            return _given_up(node)
        if power_phase is Phase.POWERED_DOWN:
            return "orphan: will be deleted"
        if power_phase is Phase.POWERING_DOWN:
            return "powering down: Slurm will ask to end it"
        if leaves:
            return leaves
        if power_phase is Phase.POWERING_UP:
            return self._booting(machine)
        return self._up(machine, node, jobs, max_age)

    def _by_policy(self, rules: PoolRules, launched: float, idle_since: float) -> str:
        """Return the phrase for an idle machine: when its release policy lets it go. Slurm itself
        would act much later.
        """
        if rules.release is None or isinstance(rules.release, Flagged):
            return "idle: goes when the growth policy has too many"
        if isinstance(rules.release, OwnRelease):  # only slurm-elasticd bounds its answer
            return f"idle: goes by release policy {text_of(rules.release)}"
        now = int(self._now)
        release_at = rules.release.due(
            int(launched), int(idle_since), now, rules.lease, public=rules.public
        )
        kept_warm = " or kept warm" if rules.min_idle else ""
        when = f"in {brief(release_at - now)}" if release_at > now else "now"
        return f"goes {when} unless used{kept_warm}, by policy"

    def _booting(self, machine: Machine) -> str:
        left_s = machine.instance.launched + self._boot - self._now
        if left_s <= 0:
            return f"booting: overdue by {brief(-left_s)}, it is given up"
        return f"booting: times out in {brief(left_s)}"

    def _up(
        self, machine: Machine, node: SlurmNode, jobs: Sequence[SlurmJob], max_age: float | None
    ) -> str:
        age = self._now - machine.instance.launched
        too_old = max_age is not None and age > max_age
        if jobs or is_busy(node):
            if too_old:
                return "ends after its jobs: over the maximum age"
            return f"in use; drained: {node.reason}" if is_drained(node) else "in use"
        if too_old:
            return "powers down: over the maximum age"
        if key := self._never_suspended.get(node.name):
            return f"kept by {key} in slurm.conf"
        # A node that never ran a job has no LastBusyTime. Slurm then counts from its registration.
        idle_since = max(node.last_busy, node.boot_time, machine.instance.launched)
        rules = self._rules.get(machine.pool)
        if rules is not None and rules.release is not None:
            return self._by_policy(rules, machine.instance.launched, idle_since)
        if not 0 <= self._suspend < _NEVER_S:
            return "idle: is never suspended"
        left_s = idle_since + self._suspend - self._now
        if left_s <= 0:
            return "suspends now unless used"
        return f"suspends in {brief(left_s)} unless used"


def _given_up(node: SlurmNode) -> str:
    """Return the phrase of a down or rebooting node."""
    if is_rebooting(node):
        return f"reboots: {node.reason}"
    return f"down: {node.reason}" if node.reason else "down"


def _unlisted(misses: int, node: SlurmNode | None) -> str:
    """Return the phrase of a machine that its cloud no longer lists.

    A node that still answers slurmctld is proof that the listing is wrong, so its machine stays.
    """
    needed = Thresholds().max_missed_listings
    if misses >= needed and node is not None and is_answering(node):
        return "not listed by the cloud, but slurmctld hears it: stays"
    return f"not listed by the cloud ({misses} of {needed} reads): then gone"
