"""Creates the resources of a site in EC2. See ``SiteMaker``."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from slurm_elastic.base.errors import ConfigError, ProviderError
from slurm_elastic.base.pages import page
from slurm_elastic.config.site_place import ResourceGroup, SitePlace
from slurm_elastic.model.site_resources import FoundResource, SiteResource, resolved
from slurm_elastic.providers.aws.making import creating
from slurm_elastic.providers.aws.making.calls import Calls, is_gone, marks_of
from slurm_elastic.providers.aws.making.needed import Account, lacks, name_of, needed
from slurm_elastic.providers.aws.making.reading import find
from slurm_elastic.providers.aws.settings import AwsCloud

Attributes = Mapping[str, Mapping[str, str]]
_CONSISTENCY_PAUSES_S = (1.0, 2.0, 4.0, 8.0)
"""EC2 and IAM may not know a resource yet that they have just created ("Eventual consistency" in
the EC2 API reference).
"""


class AwsMaker:
    """One account in one region."""

    def __init__(self, settings: AwsCloud, place: SitePlace) -> None:
        self._settings = settings
        self._place = place
        self._calls = Calls(settings)
        self._marks = marks_of(settings, place)
        self._name = name_of(settings, place)

    def find(self) -> Sequence[FoundResource]:
        """See ``SiteMaker``."""
        return find(self._calls, self._marks, self._name)

    def needed(self, existing: Sequence[FoundResource]) -> Sequence[SiteResource]:
        """See ``SiteMaker``."""
        own_ids = frozenset(resource.id for resource in existing if resource.is_ours)
        account = Account(own_ids=own_ids)
        settings, parts = self._settings, self._place.parts
        makes_network = ResourceGroup.NETWORK in parts and lacks(settings.subnets.values(), account)
        zones = self._zones() if makes_network and not settings.zones else ()
        needs_vpc = ResourceGroup.SECURITY_GROUP in parts and not makes_network
        vpc = self._vpc() if needs_vpc and lacks(settings.security_groups, account) else ""
        account = Account(own_ids=own_ids, zones=zones, vpc=vpc)
        return needed(settings, self._place, account)

    def _zones(self) -> tuple[str, ...]:
        """The zones of the region. Local zones have few types, and are opted in."""
        filters = [{"Name": "opt-in-status", "Values": ["opt-in-not-required"]}]
        answer = self._calls.ec2("describe_availability_zones", Filters=filters)
        records = answer["AvailabilityZones"]
        return tuple(sorted(zone["ZoneName"] for zone in records))

    def _vpc(self) -> str:
        """The network of the subnets that the configuration names."""
        subnets = sorted(set(self._settings.subnets.values()))
        if not subnets:
            raise ConfigError(
                f"clouds: {self._settings.name}: expected subnets, in whose network the security "
                "group is made, or no --without network"
            )
        answer = self._calls.ec2("describe_subnets", SubnetIds=subnets)
        return str(answer["Subnets"][0]["VpcId"])

    def create(self, resource: SiteResource, attributes: Attributes) -> Mapping[str, str]:
        """See ``SiteMaker``."""
        if resource.kind == "role":
            attributes = {**attributes, "account": {"id": self._calls.account()}}
        properties = resolved(resource.properties, attributes)
        tags = self._marks.of(resource)
        for pause_s in _CONSISTENCY_PAUSES_S:
            try:
                return creating.create(self._calls, resource, properties, tags)
            except ProviderError as error:
                if not is_gone(error):
                    raise
            # Our own network or role of a second ago. The refused call has created nothing.
            time.sleep(pause_s)
        return creating.create(self._calls, resource, properties, tags)

    def remove(self, resource: FoundResource, attributes: Attributes) -> None:
        """See ``SiteMaker``."""
        # The parts of a policy refer to more than its removal needs.
        properties = {
            name: resolved(value, attributes)
            for name, value in resource.properties.items()
            if name not in ("policy", "assume_role_policy")
        }
        try:
            creating.remove(self._calls, resource, properties)
        except ProviderError as error:
            if not is_gone(error):
                raise

    def settings_with(self, attributes: Attributes) -> Mapping[str, object]:
        """See ``SiteMaker``."""
        subnets = {
            key.removeprefix("subnet-"): values["id"]
            for key, values in attributes.items()
            if key.startswith("subnet-") and "+" not in key
        }
        keys: dict[str, object] = {"subnets": subnets} if subnets else {}
        with suppress(KeyError):
            keys["security_groups"] = [attributes["security-group"]["id"]]
        for key, name in (("key_name", "key-pair"), ("launch_template", "launch-template")):
            with suppress(KeyError):
                keys[key] = attributes[name]["id"]
        return keys

    def advice(self) -> Sequence[str]:
        """See ``SiteMaker``."""
        name, region = self._name, self._settings.region
        associate = f"aws ec2 associate-iam-instance-profile --region {region} --instance-id HEAD"
        return (
            f"a head in EC2 gets its rights by: {associate} --iam-instance-profile Name={name}",
            f"another head takes role {name} by `profile:` ({page('aws')})",
            "slurm-elastic doctor    # tries each right and names the missing one",
        )
