"""Paid machines that cannot be ended, because their cloud refuses the credentials or does not
answer. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from slurm_elastic.base.units import counted, money
from slurm_elastic.model.memory import REFUSED, UNREADABLE, Health, Machine

RENEW = (
    "renew the credentials, or give SlurmUser a copy (docs/install.md); slurm-elasticd reads them "
    "by itself"
)
NAMED = 8


def advice(health: Health | None, machines: Sequence[Machine], reach: str) -> str:
    """What to do about a cloud with this health, which has these machines; ``reach``: how to look
    why it does not answer.
    """
    if health is None or health.code not in (REFUSED, UNREADABLE):
        return ""
    if health.code == UNREADABLE:
        return reach
    console = "; until then end machines in the cloud's console" if machines else ""
    return f"{RENEW}{console}"


def unendable(health: Health | None, machines: Sequence[Machine]) -> str:
    """That these machines cannot be ended; "" if they can, or there are none."""
    if health is None or not health.error or not machines:
        return ""
    paid = sum(machine.instance.price for machine in machines)
    known = f"{counted(len(machines), 'machine')} of cloud {health.name} ({money(paid)}/h)"
    names = _named(machines)
    if health.code == REFUSED:
        return f"{known} cannot be ended until the credentials work: {names}"
    if health.code == UNREADABLE:
        return f"{known} may not end until the cloud answers: {names}"
    return ""


def _named(machines: Iterable[Machine]) -> str:
    names = [
        f"{one.instance.node} ({one.instance.id})" if one.instance.node else one.instance.id
        for one in machines
    ]
    others = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + others
