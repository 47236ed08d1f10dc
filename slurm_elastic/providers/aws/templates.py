"""Launch templates, in which CreateFleet expects the description of a machine.

A template of ours is named by a hash of its content, so equal content has one template, however
often and by whomever it is created. Its only version is 1 and never changes. EC2 charges nothing
for templates.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import threading
from collections.abc import Sequence
from typing import Any, ClassVar

from msgspec import structs

from slurm_elastic.base.errors import ProviderError
from slurm_elastic.base.guards import Guarded, GuardedBy
from slurm_elastic.config import Cluster
from slurm_elastic.model.cluster import LaunchSpec, Market
from slurm_elastic.providers.aws.client import AwsApi
from slurm_elastic.providers.aws.errors import TEMPLATE_EXISTS
from slurm_elastic.providers.aws.hardware import NO_FACTS, HardwareFacts, for_pool, options
from slurm_elastic.providers.aws.images import AwsImages
from slurm_elastic.providers.aws.requests import (
    USER_DATA,
    metadata_over,
    settings_of_site,
    tag_list,
)
from slurm_elastic.providers.aws.settings import AwsCloud
from slurm_elastic.providers.aws.site_template import Data, SiteTemplate, merged_tags
from slurm_elastic.providers.base import tags as machine_tags
from slurm_elastic.providers.base.joining import facts_of
from slurm_elastic.providers.base.user_data import compose

log = logging.getLogger(__name__)

_MAX_NAME = 128


class Templates:
    """The launch templates of one cloud. Each is created at its first use. Thread-safe."""

    guarded_by: ClassVar[GuardedBy] = {"_lock": Guarded("_known_names")}

    def __init__(
        self,
        api: AwsApi,
        settings: AwsCloud,
        cluster: Cluster,
        parts: tuple[str, ...],
        images: AwsImages,
        site: SiteTemplate,
    ) -> None:
        self._api = api
        self._settings = settings
        self._cluster = cluster
        self._parts = parts
        self._images = images
        self._lock = threading.Lock()
        self._known_names: set[str] = set()
        self._site = site

    def name_for(self, spec: LaunchSpec) -> str:
        """The name of the template for a launch. The template exists when this returns."""
        # The lock is held during the call, so that threads do not create the same template twice.
        with self._lock:
            data = self._data(spec)
            name = template_name(self._cluster, spec.pool.name, data)
            if name not in self._known_names:
                self._make(name, spec, data)
                self._known_names.add(name)
            return name

    def forget(self) -> None:
        """Check again at the next use, because a template was deleted."""
        with self._lock:
            self._known_names.clear()
        self._site.forget()

    def _make(self, name: str, spec: LaunchSpec, data: Data) -> None:
        tags = {**static_tags(self._cluster, self._settings, spec), "Name": name}
        request = {
            "LaunchTemplateName": name,
            "VersionDescription": "slurm-elastic",
            "LaunchTemplateData": data,
            "TagSpecifications": [{"ResourceType": "launch-template", "Tags": tag_list(tags)}],
        }
        try:
            self._api.send("create_launch_template", request)
        except ProviderError as error:
            # The name is a hash of the content, so an existing template of this name is the right
            # one.
            if error.code != TEMPLATE_EXISTS:
                raise
        else:
            log.info("launch template made cloud=%s name=%s", self._settings.name, name)

    def _data(self, spec: LaunchSpec) -> Data:
        """Our template data, merged over the site's own template if the settings name one."""
        image = self._images.of(spec.pool)
        settings = structs.replace(for_pool(self._settings, spec.pool), image=image)
        facts = HardwareFacts(root_device=self._images.root_device(spec.pool))
        site = self._site.data()
        our_data = template_data(settings, self._cluster, spec, self._parts, facts, site)
        if self._settings.launch_template is None:
            return our_data
        tags = merged_tags(site.get("TagSpecifications", ()), our_data["TagSpecifications"])
        return {
            **site,
            **our_data,
            "TagSpecifications": tags,
        }


def template_data(
    settings: AwsCloud,
    cluster: Cluster,
    spec: LaunchSpec,
    parts: Sequence[str],
    facts: HardwareFacts = NO_FACTS,
    site: Data | None = None,
) -> Data:
    """All properties of a machine that do not depend on its launch. The machine reads its node from
    its tags. ``site``: the content of the site's own template.
    """
    site = site or {}
    launch_facts = facts_of(cluster, spec)
    # Many launches share a template. A machine has its generation in its tags.
    del launch_facts["generation"]
    data: dict[str, Any] = {
        "ImageId": settings.image,
        "InstanceInitiatedShutdownBehavior": "terminate",
        "MetadataOptions": metadata_over(site, spec.pool),
        "UserData": base64.b64encode(compose(launch_facts, "", tuple(parts), USER_DATA)).decode(),
        "TagSpecifications": [],
        **settings_of_site(settings),
        **options(settings, cluster, spec.pool, facts, site),
    }
    if spec.offer.market is Market.SPOT:
        # CreateFleet itself tags machines and disks, but not spot requests.
        tags = tag_list(static_tags(cluster, settings, spec))
        data["TagSpecifications"] = [{"ResourceType": "spot-instances-request", "Tags": tags}]
    return data


def template_name(cluster: Cluster, pool: str, data: Data) -> str:
    """The name ``slurm-elastic-CLUSTER-POOL-HASH``, at most 128 characters."""
    text = json.dumps(data, sort_keys=True, default=str)
    # With the UUID, because clusters that share an account may have the same name.
    digest = hashlib.sha256(f"{cluster.uuid}{text}".encode()).hexdigest()[:16]
    return f"{f'slurm-elastic-{cluster.name}-{pool}'[: _MAX_NAME - 17]}-{digest}"


def static_tags(cluster: Cluster, settings: AwsCloud, spec: LaunchSpec) -> dict[str, str]:
    """The tags that name the owner of a resource, independent of the launch."""
    return {
        machine_tags.CLUSTER: cluster.uuid or "",
        machine_tags.NAME: cluster.name,
        machine_tags.CLOUD: settings.name,
        machine_tags.POOL: spec.pool.name[: machine_tags.MAX_VALUE],
    }
