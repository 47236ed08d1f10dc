"""Which of EC2's records are machines of this cloud, and which ids are known to be so.

Clouds of one account and region may see each other's machines (``base.ownership``).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from slurm_elastic.model.cluster import Instance, InstanceState
from slurm_elastic.providers.aws import convert
from slurm_elastic.providers.aws.convert import Record
from slurm_elastic.providers.aws.settings import AwsCloud
from slurm_elastic.providers.base import tags as machine_tags
from slurm_elastic.providers.base.ownership import AMBIGUOUS, Ownership

log = logging.getLogger(__name__)


class Machines:
    """One cloud's. ``ours`` are the ids seen with our tag, or told by a launch of ours."""

    def __init__(self, settings: AwsCloud, ownership: Ownership) -> None:
        self.ours: set[str] = set()
        self._settings = settings
        self._ownership = ownership
        self._unclear: frozenset[str] = frozenset()
        self._ended: set[str] = set()
        self._told: set[str] = set()

    def mine(self, record: Record) -> bool:
        """Whether the tags of a record (a machine, a spot request) say that it is this cloud's."""
        return self._ownership.owner(convert.tags(record)) == self._settings.name

    def read(self, records: Iterable[Record]) -> Sequence[Instance]:
        """The records that are this cloud's machines."""
        owned = [(self._ownership.owner(convert.tags(r)), r) for r in records]
        unclear = frozenset(r["InstanceId"] for owner, r in owned if owner == AMBIGUOUS)
        self._say(unclear)
        mine = (r for owner, r in owned if owner == self._settings.name)
        found = convert.instances(mine, self._settings)
        # One that might be ours is not listed; but whoever names it has it in the ledger.
        self.ours.update((i.id for i in found), unclear)
        return found

    def standing(self, found: Iterable[Instance]) -> Sequence[Instance]:
        """The machines of a whole list that live, and once each the ones that were lost: EC2 lists
        a machine for about an hour after its end.
        """
        found = list(found)
        gone = {i.id for i in found if i.state is InstanceState.TERMINATED}
        lost = gone - self._told - self._ended
        self._told, self._ended = (self._told & gone) | lost, self._ended & {i.id for i in found}
        return [i for i in found if i.id not in gone or i.id in lost]

    def ended(self, ids: Iterable[str]) -> None:
        """These were ended by us: they are not lost."""
        self._ended.update(ids)

    def _say(self, unclear: frozenset[str]) -> None:
        """Once for each: nobody lists these machines, and they cost money."""
        if unclear - self._unclear:
            log.warning(
                "machines of no cloud that can be told, left out: tag them %s=NAME or end them "
                "clouds=%s ids=%s",
                machine_tags.CLOUD,
                ",".join(sorted(self._ownership.clouds)),
                ",".join(sorted(unclear)),
            )
        self._unclear |= unclear
