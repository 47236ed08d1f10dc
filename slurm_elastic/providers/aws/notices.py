"""EC2's warnings: spot machines that it will take back, and maintenance that it has scheduled.

EC2 sends rebalance recommendations only to the machine itself and to EventBridge, so they are not
read here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence

from slurm_elastic.base.errors import AuthError
from slurm_elastic.base.report_once import ReportOnce
from slurm_elastic.base.ttl_cache import TtlCache
from slurm_elastic.config import Cluster
from slurm_elastic.model.cluster import Notice, NoticeKind
from slurm_elastic.providers.aws import client
from slurm_elastic.providers.aws.client import AwsApi
from slurm_elastic.providers.aws.convert import Record
from slurm_elastic.providers.aws.instances import Ec2Instances
from slurm_elastic.providers.aws.settings import AwsCloud
from slurm_elastic.providers.base import tags as machine_tags

log = logging.getLogger(__name__)

SPOT_NOTICE_S = 120.0
"""Seconds from the mark on a spot request to the end of its machine (EC2 user guide)."""
MAINTENANCE_NOTICE_S = 3600.0
"""So many seconds before its time a scheduled event becomes a notice. EC2 announces events days
before.
"""
EVENTS_TTL_S = 60.0
_EVENTS = (
    "instance-reboot",
    "instance-retirement",
    "instance-stop",
    "system-maintenance",
    "system-reboot",
)
"""All codes of "Scheduled events for your instances" (EC2 user guide). Each of them ends jobs."""
_OVER = ("[Completed]", "[Canceled]")


class AwsNotices:
    """The notices of one cloud's machines. ``learn`` lists the machines if an id is not
    known yet.
    """

    def __init__(
        self,
        api: AwsApi,
        settings: AwsCloud,
        cluster: Cluster,
        machines: Ec2Instances,
        learn: Callable[[], object],
        monotonic: Callable[[], float],
    ) -> None:
        self._api = api
        self._settings = settings
        self._cluster = cluster
        self._machines = machines
        self._learn = learn
        self._cache = TtlCache[str, Sequence[Record]](monotonic)
        self._foreign: set[str] = set()
        self._reports = ReportOnce[str]()

    def standing(self, now: float) -> Sequence[Notice]:
        """All notices that apply at ``now`` (Unix time)."""
        return [*self._interruptions(now), *self._maintenance(now)]

    def _interruptions(self, now: float) -> Sequence[Notice]:
        """Our spot requests that EC2 has marked for termination."""
        filters = [
            {"Name": f"tag:{machine_tags.CLUSTER}", "Values": [self._cluster.uuid]},
            {"Name": "status-code", "Values": ["marked-for-termination", "marked-for-stop"]},
        ]
        pages = self._api.pages(
            "describe_spot_instance_requests",
            "SpotInstanceRequests",
            {"Filters": filters, "MaxResults": client.PAGE},
        )
        return [
            Notice(
                instance=request["InstanceId"],
                kind=NoticeKind.INTERRUPTION,
                seen=now,
                deadline=request["Status"]["UpdateTime"].timestamp() + SPOT_NOTICE_S,
            )
            for request in pages
            # A request that EC2 has not fulfilled has no machine.
            if request.get("InstanceId") and self._machines.is_own(request)
        ]

    def _maintenance(self, now: float) -> Sequence[Notice]:
        """The account's scheduled events that concern our machines and are near."""
        near = [
            (status["InstanceId"], event)
            for status in self._cache.get("events", self._scheduled, ttl_s=EVENTS_TTL_S)
            for event in status.get("Events", ())
            if event.get("NotBefore")
            and event["NotBefore"].timestamp() - now < MAINTENANCE_NOTICE_S
            if not event.get("Description", "").startswith(_OVER)
        ]
        own_ids = self._own_ids({id_ for id_, _ in near})
        return [
            Notice(
                instance=id_,
                kind=NoticeKind.INTERRUPTION,
                seen=now,
                deadline=event["NotBefore"].timestamp(),
                reason=f"{event['Code']}: {event.get('Description', '')}",
            )
            for id_, event in near
            if id_ in own_ids
        ]

    def _scheduled(self) -> Sequence[Record]:
        filters = [{"Name": "event.code", "Values": list(_EVENTS)}]
        request = {"Filters": filters, "MaxResults": client.PAGE}
        try:
            statuses = list(
                self._api.pages("describe_instance_status", "InstanceStatuses", request)
            )
        # Deliberate: spot notices matter more, and must not fail with the right to read events.
        except AuthError as error:
            if self._reports.is_news("events"):
                log.warning("scheduled events cannot be read, spot notices can: %s", error)
            return ()
        self._reports.clear("events")
        return statuses

    def _own_ids(self, ids: Collection[str]) -> Collection[str]:
        own_ids = self._machines.ours.ids
        if not (own_ids | self._foreign).issuperset(ids):
            self._learn()
            own_ids = self._machines.ours.ids
            # Only the ids of the last answer are kept: an account may have any number of other
            # machines.
            self._foreign = set(ids) - own_ids
        return own_ids.intersection(ids)
