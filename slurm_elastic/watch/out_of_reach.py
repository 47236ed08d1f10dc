"""Sentences about paid machines that cannot be ended.

Their cloud refuses the credentials, cannot be opened here, or does not answer. Pure functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from slurm_elastic.base.pages import page
from slurm_elastic.base.units import counted, money
from slurm_elastic.model.memory import REFUSED, UNOPENED, UNREADABLE, Health, Machine

RENEW = (
    f"renew the credentials, or give SlurmUser a copy ({page('install')}); slurm-elasticd reads "
    "them without a restart"
)
MAX_NAMES = 8  # machines that a sentence names


def advice(health: Health | None, machines: Sequence[Machine], reach: str) -> str:
    """Return what to do about a cloud with this health and these machines; "" if nothing.

    ``reach``: how to find out why the cloud does not answer.
    """
    if health is None or health.code not in (REFUSED, UNOPENED, UNREADABLE):
        return ""
    if health.code == UNREADABLE:
        return reach
    remedies = [RENEW] if health.code == REFUSED else []  # why a cloud cannot be opened has its own
    if machines:
        remedies.append("until then end machines in the cloud's console")
    return "; ".join(remedies)


def unendable(health: Health | None, machines: Sequence[Machine]) -> str:
    """Return the sentence about machines that cannot be ended; "" if there are none."""
    if health is None or not health.error or not machines:
        return ""
    dollars_per_hour = sum(machine.instance.price for machine in machines)
    subject = (
        f"{counted(len(machines), 'machine')} of cloud {health.name} ({money(dollars_per_hour)}/h)"
    )
    names = _named(machines)
    if health.code == REFUSED:
        return f"{subject} cannot be ended until the credentials work: {names}"
    if health.code == UNOPENED:
        return f"{subject} cannot be ended until the cloud can be opened: {names}"
    if health.code == UNREADABLE:
        return f"{subject} may not end until the cloud answers: {names}"
    return ""


def _named(machines: Iterable[Machine]) -> str:
    names = [
        f"{machine.instance.node} ({machine.instance.id})"
        if machine.instance.node
        else machine.instance.id
        for machine in machines
    ]
    and_others = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return ", ".join(names[:MAX_NAMES]) + and_others
