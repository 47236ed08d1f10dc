"""Filters EC2's records for the machines of this cloud, and remembers their ids.

Clouds that share an account and region can see each other's machines (``base.ownership``).
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
    """The machines of one cloud. ``ours``: the ids that were listed with our tag or returned by our
    launches.
    """

    def __init__(self, settings: AwsCloud, ownership: Ownership) -> None:
        self.ours = Ours(settings.name, ownership)
        self._settings = settings
        self._ended: set[str] = set()
        self._losses = ReportOnce[str]()

    def is_own(self, record: Record) -> bool:
        """Whether the tags of a record (a machine, a spot request) say that it belongs to this
        cloud.
        """
        return self.ours.has(convert.tags(record))

    def read(self, records: Iterable[Record]) -> Sequence[Instance]:
        """The machines of this cloud among the records."""
        own_records = self.ours.among(records, convert.tags, lambda r: str(r["InstanceId"]))
        machines = convert.instances(own_records, self._settings)
        # A machine that may be another cloud's is not listed. But a caller that names its id has it
        # from our ledger, so it may be ended.
        self.ours.remember([*(i.id for i in machines), *self.ours.unclear])
        return machines

    def standing(self, machines: Iterable[Instance]) -> Sequence[Instance]:
        """The live machines of a complete list, and each lost machine once. EC2 lists a machine for
        about an hour after its end.
        """
        machines = list(machines)
        ended_ids = {i.id for i in machines if i.state is InstanceState.TERMINATED}
        lost_ids = {i for i in ended_ids - self._ended if self._losses.is_news(i)}
        self._losses.forget_unless(ended_ids.__contains__)
        # Forget ids that EC2 no longer lists.
        self._ended &= {i.id for i in machines}
        return [i for i in machines if i.id not in ended_ids or i.id in lost_ids]

    def note_ended(self, ids: Iterable[str]) -> None:
        """Note that we have ended these machines, so that they do not count as lost."""
        self._ended.update(ids)


def earlier(
    cloud: str, error: ClientError, find_machines: Callable[[], Sequence[Instance]]
) -> Sequence[Instance]:
    """The machines that the first call with a client token started, if the settings have changed
    since that call. Any other error is raised again.
    """
    if error.response.get("Error", {}).get("Code", "") != MISMATCH:
        raise error
    machines = find_machines()
    if not machines:
        text = "an earlier call of this launch differed, and its machines cannot be seen yet"
        raise TransientError(cloud, MISMATCH, text) from error
    return machines
