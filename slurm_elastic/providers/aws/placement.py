"""The placement groups that we make for pools with ``placement_group: cluster``, one for each pool.

We never delete a group. It costs nothing, there are at most as many as pools, and a launch that
names a group fails if another process deletes it at that moment.
"""

from __future__ import annotations

import logging
import threading
from typing import ClassVar

from slurm_elastic.base.errors import ProviderError
from slurm_elastic.base.guards import Guarded, GuardedBy
from slurm_elastic.config import Cluster
from slurm_elastic.model.cluster import Pool
from slurm_elastic.model.machine_options import CLUSTER_GROUP
from slurm_elastic.providers.aws.client import AwsApi
from slurm_elastic.providers.aws.hardware import own_group
from slurm_elastic.providers.aws.settings import AwsCloud
from slurm_elastic.providers.base import tags as machine_tags

log = logging.getLogger(__name__)

EXISTS = "InvalidPlacementGroup.Duplicate"


class PlacementGroups:
    """The groups of one cloud. Each is created at its first use. Thread-safe."""

    guarded_by: ClassVar[GuardedBy] = {"_lock": Guarded("_known_names")}

    def __init__(self, api: AwsApi, settings: AwsCloud, cluster: Cluster) -> None:
        self._api = api
        self._settings = settings
        self._cluster = cluster
        self._lock = threading.Lock()
        self._known_names: set[str] = set()

    def ensure(self, pool: Pool) -> None:
        """Create the pool's group if we make one for the pool and it does not exist."""
        if pool.machine.placement_group != CLUSTER_GROUP:
            return
        name = own_group(self._settings, self._cluster, pool)
        # The lock is held during the call, so that threads do not create the same group twice.
        with self._lock:
            if name not in self._known_names:
                self._make(name, pool)
                self._known_names.add(name)

    def forget(self) -> None:
        """Create the groups again at the next use: a person may have deleted one."""
        with self._lock:
            self._known_names.clear()

    def _make(self, name: str, pool: Pool) -> None:
        try:
            request = creation(self._settings, self._cluster, pool)
            self._api.send("create_placement_group", request)
        except ProviderError as error:
            # The name contains a hash of our cluster's UUID, so an existing group is ours.
            if error.code != EXISTS:
                raise
        else:
            log.info("placement group made cloud=%s name=%s", self._settings.name, name)


def creation(settings: AwsCloud, cluster: Cluster, pool: Pool) -> dict[str, object]:
    """The request that makes the pool's group, with our tags."""
    tags = {
        machine_tags.CLUSTER: cluster.uuid or "",
        machine_tags.NAME: cluster.name,
        machine_tags.CLOUD: settings.name,
        machine_tags.POOL: pool.name[: machine_tags.MAX_VALUE],
    }
    return {
        "GroupName": own_group(settings, cluster, pool),
        "Strategy": "cluster",
        "TagSpecifications": [
            {
                "ResourceType": "placement-group",
                "Tags": [{"Key": key, "Value": value} for key, value in tags.items()],
            }
        ],
    }
