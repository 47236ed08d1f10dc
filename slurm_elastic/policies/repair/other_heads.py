"""Finds the machines of this cluster that another head has launched. Pure.

A copy of a head (a restored backup, a clone of its virtual machine, a second cluster with the same
``cluster-uuid``) has the identity of the cluster but not the journal of the other. Each would end
the other's machines, because no node of its own Slurm needs them. Each launch is in the journal of
its head before the cloud is called, so a machine of an unknown, later launch proves another head.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from slurm_elastic.model.cluster import STANDING, Instance
from slurm_elastic.model.journal_owner import JournalOwner
from slurm_elastic.model.memory import generation_time

_GENERATION = re.compile(r"g\d{13}-[0-9a-f]{8}(?:e\d+)?(?:-\d+)?")
"""A generation as heads make it (``controller.context.new_generation``). A tag of another form was
edited by a person and proves no head.
"""


def launched_by_others(
    listed: Iterable[Instance],
    known_ids: Collection[str],
    known_launches: Collection[str],
    owner: JournalOwner,
) -> list[Instance]:
    """Return the listed machines that another head launched after ``owner.knows_since``.

    ``known_ids`` and ``known_launches``: the machines and generations that the ledger has. An older
    machine may be ours: its launch was in a lost journal. So may a machine that does not
    stand: the ledger forgets old failed launches, and a cloud may still list what it cleans up.
    """
    return [
        machine
        for machine in listed
        if machine.state in STANDING
        and machine.id not in known_ids
        and machine.id not in owner.accepted
        and machine.generation not in known_launches
        and _GENERATION.fullmatch(machine.generation)
        and generation_time(machine.generation) > owner.knows_since
    ]
