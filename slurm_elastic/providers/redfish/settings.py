"""The settings of a cloud of hosts with Redfish as frozen values."""

from __future__ import annotations

from slurm_elastic.providers.base.hosts.host_settings import HostsCloud


class RedfishCloud(
    HostsCloud, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="redfish"
):
    """``hosts``: by node, the URL of its system at the BMC (``https://bmc1/redfish/v1/Systems/1``),
    or the argument that ``command`` takes for it.
    """

    credentials_file: str | None = None
    """Change it when the BMCs' account is in another file."""
    ca_file: str | None = None
    """Change it when the BMCs have certificates of your own authority."""
    command: tuple[str, ...] = ()
    """Change it when hosts have no Redfish: a program of yours switches them (IPMI, a PDU)."""
