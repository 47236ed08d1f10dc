"""Creates the resources of a site in OpenStack, and describes them to Terraform. See
``SiteMaker``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import yaml

from slurm_elastic.base.errors import AuthError, ConfigError, ProviderError
from slurm_elastic.config.site_place import ResourceGroup, SitePlace
from slurm_elastic.model.site_resources import (
    FoundResource,
    Properties,
    SiteResource,
    resolved,
)
from slurm_elastic.providers.openstack.client import Login, entry_of
from slurm_elastic.providers.openstack.making.marks import OwnerMark
from slurm_elastic.providers.openstack.making.needed import (
    credential,
    lacks,
    name_of,
    named_credential,
    needed,
)
from slurm_elastic.providers.openstack.making.reading import (
    COLLECTIONS,
    find,
    find_credential,
    is_default_egress,
)
from slurm_elastic.providers.openstack.project import Project
from slurm_elastic.providers.openstack.settings import OpenStackCloud

Attributes = Mapping[str, Mapping[str, str]]
_GONE = "HTTP404"
_CREDENTIALS = "application_credentials"


class StackMaker:
    """One project in one region."""

    def __init__(self, settings: OpenStackCloud, place: SitePlace) -> None:
        self._settings = settings
        self._place = place
        self._project = Project(settings)
        self._mark = OwnerMark(place.cluster.uuid or "", settings.name)
        self._name = name_of(settings, place)

    def find(self) -> Sequence[FoundResource]:
        """See ``SiteMaker``."""
        existing = find(self._call, self._mark, self._name)
        if ResourceGroup.CREDENTIAL in self._place.parts:
            answer = self._own_user("GET", "")
            existing += find_credential(
                answer[_CREDENTIALS], self._mark, self._name, self._login.credential, existing
            )
        return existing

    def needed(self, existing: Sequence[FoundResource]) -> Sequence[SiteResource]:
        """See ``SiteMaker``."""
        own_ids = frozenset(resource.id for resource in existing if resource.is_ours)
        makes_network = ResourceGroup.NETWORK in self._place.parts and lacks(
            self._settings.networks, own_ids
        )
        external_network = self._external_network() if makes_network else ""
        resources = needed(self._settings, self._place, own_ids, external_network)
        if ResourceGroup.CREDENTIAL not in self._place.parts:
            return resources
        # Keystone lets no application credential create another one.
        if self._login.credential and self._login.credential not in own_ids:
            return (*resources, named_credential())
        return (*resources, credential(self._name, self._login.roles))

    @functools.cached_property
    def _login(self) -> Login:
        return self._project.login()

    def _external_network(self) -> str:
        """The id of the network to the outside. ConfigError if it must be named."""
        networks = self._call("network", "GET", "/networks?router:external=true")["networks"]
        name = self._place.external_network
        chosen = [n for n in networks if name in ("", n["id"], n["name"])]
        if len(chosen) == 1:
            return str(chosen[0]["id"])
        if not (name or networks):
            return ""
        names = ", ".join(sorted(n["name"] for n in networks)) or "none"
        existing = f"found {name!r}, " if name else ""
        raise ConfigError(f"--external-network: {existing}expected one of the project's: {names}")

    def create(self, resource: SiteResource, attributes: Attributes) -> Mapping[str, str]:
        """See ``SiteMaker``."""
        properties = resolved(resource.properties, attributes)
        mark = self._mark.text_of(resource)
        special = self._special.get(resource.kind)
        if special is not None:
            return special(properties, mark)
        if resource.kind == "router":
            external_network = properties.pop("external_network_id")
            properties["external_gateway_info"] = {"network_id": external_network}
        collection = COLLECTIONS.get(resource.kind, "security-group-rules")
        key = collection.removesuffix("s").replace("-", "_")
        body = {key: {**properties, "description": mark}}
        answer = self._call("network", "POST", f"/{collection}", body)
        return {"id": str(answer[key]["id"])}

    @property
    def _special(self) -> Mapping[str, Callable[[Properties, str], Mapping[str, str]]]:
        return {
            "router interface": self._add_interface,
            "closed egress": self._close_egress,
            "key pair": self._import_key,
            "application credential": self._create_credential,
        }

    def _create_credential(self, properties: Properties, mark: str) -> Mapping[str, str]:
        roles = [{"name": name} for name in properties["roles"]]
        body = {
            "name": properties["name"], "description": mark, "roles": roles,
            "secret": self._place.secret,
        }  # fmt: skip
        answer = self._own_user("POST", "", {"application_credential": body})
        return {"id": str(answer["application_credential"]["id"])}

    def credential_file(self, secret: str) -> str:
        """See ``CredentialMaker``."""
        login = self._login
        entry = entry_of(self._settings)
        if self._settings.region or login.region:
            entry["region_name"] = self._settings.region or login.region
        entry["auth_type"] = "v3applicationcredential"
        entry["auth"] = {
            "auth_url": login.auth_url,
            "user_id": login.user,
            # By name: this file is written before the credential, whose id does not exist yet.
            "application_credential_name": self._name,
            "application_credential_secret": secret,
        }
        clouds = {"clouds": {self._settings.cloud: entry}}
        return yaml.safe_dump(clouds, sort_keys=False, default_flow_style=False)

    def proves_gone(self, content: str) -> bool:
        """See ``CredentialMaker``."""
        try:
            (entry,) = yaml.safe_load(content)["clouds"].values()
            auth = entry["auth"]
            user = auth["auth_url"], auth["user_id"]
            name = auth["application_credential_name"]
        # A person may have edited the file, and a file that cannot be read proves nothing.
        except (yaml.YAMLError, LookupError, TypeError, ValueError, AttributeError):
            return False
        # Keystone lists the credentials of the user who asks, and no others.
        if user != (self._login.auth_url, self._login.user):
            return False
        records = self._own_user("GET", "")[_CREDENTIALS]
        return all(record["name"] != name for record in records)

    def _add_interface(self, properties: Properties, _mark: str) -> Mapping[str, str]:
        path = f"/routers/{properties['router_id']}/add_router_interface"
        self._call("network", "PUT", path, {"subnet_id": properties["subnet_id"]})
        return {}

    def _close_egress(self, properties: Properties, _mark: str) -> Mapping[str, str]:
        path = f"/security-groups/{properties['security_group_id']}"
        # neutron gives each new group two rules that let everything out.
        group = self._call("network", "GET", path)["security_group"]
        for rule in group["security_group_rules"]:
            if is_default_egress(rule):
                self._call("network", "DELETE", f"/security-group-rules/{rule['id']}")
        return {}

    def _import_key(self, properties: Properties, mark: str) -> Mapping[str, str]:
        # A key pair has no description, so the comment of its public key has the mark.
        public_key = f"{properties['public_key']} {mark}"
        body = {"keypair": {"name": properties["name"], "public_key": public_key}}
        self._call("compute", "POST", "/os-keypairs", body)
        return {"id": str(properties["name"])}

    def remove(self, resource: FoundResource, attributes: Attributes) -> None:
        """See ``SiteMaker``."""
        properties = resolved(resource.properties, attributes)
        try:
            if resource.kind == "router interface":
                path = f"/routers/{properties['router_id']}/remove_router_interface"
                self._call("network", "PUT", path, {"subnet_id": properties["subnet_id"]})
            elif resource.kind == "key pair":
                self._call("compute", "DELETE", f"/os-keypairs/{resource.id}")
            elif resource.kind == "application credential":
                self._own_user("DELETE", f"/{resource.id}")
            else:
                collection = COLLECTIONS.get(resource.kind, "security-group-rules")
                self._call("network", "DELETE", f"/{collection}/{resource.id}")
        except ProviderError as error:
            if error.code != _GONE:
                raise

    def _own_user(self, method: str, path: str, body: object = None) -> Any:  # noqa: ANN401
        try:
            return self._project.own_user(method, f"/{_CREDENTIALS}{path}", body)
        except AuthError as error:
            if error.code != "Forbidden":
                raise
            raise AuthError(
                self._settings.name, error.code,
                f"keystone does not let this login {method} application credentials (log in with "
                f"a password, or add --without {ResourceGroup.CREDENTIAL}): {error.message}",
            ) from None  # fmt: skip

    def _call(self, service: str, method: str, path: str, body: object = None) -> Any:  # noqa: ANN401
        try:
            return self._project.call(service, method, path, body)
        except AuthError as error:
            if error.code != "Forbidden":
                raise
            raise AuthError(
                self._settings.name, error.code, f"the right to {method} {path} ({service}) is "
                "missing (`slurm-elastic iam render openstack --for make` prints all that are "
                f"needed): {error.message}",
            ) from None  # fmt: skip

    def settings_with(self, attributes: Attributes) -> Mapping[str, object]:
        """See ``SiteMaker``."""
        keys: dict[str, object] = {}
        for key, name in (("networks", "network"), ("security_groups", "security-group")):
            with suppress(KeyError):
                keys[key] = [attributes[name]["id"]]
        with suppress(KeyError):
            keys["key_name"] = attributes["key-pair"]["id"]
        return keys

    def advice(self) -> Sequence[str]:
        """See ``SiteMaker``."""
        return ("slurm-elastic doctor",)
