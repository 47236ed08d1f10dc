"""Which of EC2's records are machines of this cloud, and which ids are known to be so.

Clouds of one account and region may see each other's machines (``base.ownership``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from botocore.exceptions import ClientError

from slurm_elastic.base.errors import TransientError
from slurm_elastic.base.report_once import ReportOnce
from slurm_elastic.model.cluster import Instance, InstanceState
from slurm_elastic.providers.aws import convert
from slurm_elastic.providers.aws.convert import Record
from slurm_elastic.providers.aws.errors import MISMATCH
from slurm_elastic.providers.aws.settings import AwsCloud
from slurm_elastic.providers.base.ours import Ours
from slurm_elastic.providers.base.ownership import Ownership


class Ec2Instances:
    """One cloud's. ``ours`` are the ids seen with our tag, or told by a launch of ours."""

    def __init__(self, settings: AwsCloud, ownership: Ownership) -> None:
        self.ours = Ours(settings.name, ownership)
        self._settings = settings
        self._ended: set[str] = set()
        self._losses = ReportOnce[str]()

    def mine(self, record: Record) -> bool:
        """Whether the tags of a record (a machine, a spot request) say that it is this cloud's."""
        return self.ours.has(convert.tags(record))

    def read(self, records: Iterable[Record]) -> Sequence[Instance]:
        """The records that are this cloud's machines."""
        mine = self.ours.among(records, convert.tags, lambda r: str(r["InstanceId"]))
        found = convert.instances(mine, self._settings)
        # One that might be ours is not listed; but whoever names it has it in the ledger.
        self.ours.remember([*(i.id for i in found), *self.ours.unclear])
        return found

    def standing(self, found: Iterable[Instance]) -> Sequence[Instance]:
        """The machines of a whole list that live, and once each the ones that were lost: EC2 lists
        a machine for about an hour after its end.
        """
        found = list(found)
        gone = {i.id for i in found if i.state is InstanceState.TERMINATED}
        lost = {i for i in gone - self._ended if self._losses.is_news(i)}
        self._losses.forget_unless(gone.__contains__)
        self._ended &= {i.id for i in found}
        return [i for i in found if i.id not in gone or i.id in lost]

    def ended(self, ids: Iterable[str]) -> None:
        """These were ended by us: they are not lost."""
        self._ended.update(ids)


def earlier(
    cloud: str, error: ClientError, found: Callable[[], Sequence[Instance]]
) -> Sequence[Instance]:
    """The machines that the first call of a client token started, where the settings have changed
    in between; any other error is raised.
    """
    if error.response.get("Error", {}).get("Code", "") != MISMATCH:
        raise error
    machines = found()
    if not machines:
        text = "an earlier call of this launch differed, and its machines cannot be seen yet"
        raise TransientError(cloud, MISMATCH, text) from error
    return machines
