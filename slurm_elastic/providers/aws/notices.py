"""EC2's warnings: spot machines that it takes, and maintenance that it has scheduled.

EC2 tells rebalance recommendations only to the machine itself and to EventBridge.
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
from slurm_elastic.providers.aws.client import Api
from slurm_elastic.providers.aws.convert import Record
from slurm_elastic.providers.aws.instances import Ec2Instances
from slurm_elastic.providers.aws.settings import AwsCloud
from slurm_elastic.providers.base import tags as machine_tags

log = logging.getLogger(__name__)

SPOT_NOTICE = 120.0
"""Seconds from the mark on a spot request to the machine's end (EC2 user guide)."""
SOON = 3600.0
"""Seconds before its time from which a scheduled event is a notice: EC2 tells days before."""
EVENTS_FRESH = 60.0
_EVENTS = (
    "instance-reboot",
    "instance-retirement",
    "instance-stop",
    "system-maintenance",
    "system-reboot",
)
"""All codes there are of "Scheduled events for your instances" (EC2 user guide): each ends jobs."""
_OVER = ("[Completed]", "[Canceled]")


class Notices:
    """The notices of one cloud's machines. ``learn`` lists them, for ids that are not known yet."""

    def __init__(
        self,
        api: Api,
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
        """All that stand at ``now`` (Unix time)."""
        return [*self._interruptions(now), *self._maintenance(now)]

    def _interruptions(self, now: float) -> Sequence[Notice]:
        """The spot requests of ours that are marked for termination."""
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
                deadline=request["Status"]["UpdateTime"].timestamp() + SPOT_NOTICE,
            )
            for request in pages
            if request.get("InstanceId") and self._machines.mine(request)
        ]

    def _maintenance(self, now: float) -> Sequence[Notice]:
        """The account's scheduled events, as far as they are of our machines and near."""
        near = [
            (status["InstanceId"], event)
            for status in self._cache.get("events", self._scheduled, ttl_s=EVENTS_FRESH)
            for event in status.get("Events", ())
            if event.get("NotBefore") and event["NotBefore"].timestamp() - now < SOON
            if not event.get("Description", "").startswith(_OVER)
        ]
        ours = self._ours({id_ for id_, _ in near})
        return [
            Notice(
                instance=id_,
                kind=NoticeKind.INTERRUPTION,
                seen=now,
                deadline=event["NotBefore"].timestamp(),
                reason=f"{event['Code']}: {event.get('Description', '')}",
            )
            for id_, event in near
            if id_ in ours
        ]

    def _scheduled(self) -> Sequence[Record]:
        filters = [{"Name": "event.code", "Values": list(_EVENTS)}]
        request = {"Filters": filters, "MaxResults": client.PAGE}
        try:
            found = list(self._api.pages("describe_instance_status", "InstanceStatuses", request))
        except AuthError as error:
            if self._reports.is_news("events"):
                log.warning("scheduled events cannot be read, spot notices can: %s", error)
            return ()
        self._reports.over("events")
        return found

    def _ours(self, ids: Collection[str]) -> Collection[str]:
        known = self._machines.ours.ids
        if not (known | self._foreign).issuperset(ids):
            self._learn()
            known = self._machines.ours.ids
            # Only those of the last answer: an account may have any number of other machines.
            self._foreign = set(ids) - known
        return known.intersection(ids)
