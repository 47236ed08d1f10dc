"""The protocol of makers of resources, of which each cloud of ``init --make`` has one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from slurm_elastic.model.site_resources import FoundResource, SiteResource


class SiteMaker(Protocol):
    """Creates the resources that a site lacks in a cloud, for ``init --make``. Every call may raise
    the five ProviderErrors. No call is repeated whose first answer may have been lost.
    """

    def find(self) -> Sequence[FoundResource]:
        """All resources that ``init`` made for this cluster and cloud, and resources in their way,
        in the order in which they were created.
        """
        ...

    def needed(self, existing: Sequence[FoundResource]) -> Sequence[SiteResource]:
        """The resources that the site needs, in the order in which they can be created."""
        ...

    def create(
        self, resource: SiteResource, attributes: Mapping[str, Mapping[str, str]]
    ) -> Mapping[str, str]:
        """Create the resource in one call, with the marks that say that it is ours. Returns its
        attributes. ``attributes``: the attributes of existing resources, by key.
        """
        ...

    def remove(self, resource: FoundResource, attributes: Mapping[str, Mapping[str, str]]) -> None:
        """Remove the resource. A missing resource is no error."""
        ...

    def settings_with(self, attributes: Mapping[str, Mapping[str, str]]) -> Mapping[str, object]:
        """The keys of the cloud's entry in the configuration that name these resources."""
        ...

    def advice(self) -> Sequence[str]:
        """The remaining steps for a person, one sentence each."""
        ...


CREDENTIAL = "application-credential"
"""The key of the resource whose secret a file on the head keeps."""


@runtime_checkable
class CredentialMaker(Protocol):
    """A maker that also creates credentials for the services."""

    def credential_file(self, secret: str) -> str:
        """The content of the file by which the services log in with this secret. It is written
        before the credential is created, because an answer may be lost.
        """
        ...

    def proves_gone(self, content: str) -> bool:
        """Whether the cloud's own list proves that the credential of such a file no longer exists.
        False if this login cannot see the credentials of the file's user.
        """
        ...
