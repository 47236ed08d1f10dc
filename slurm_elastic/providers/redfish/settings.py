"""The settings of a cloud of hosts with Redfish, as frozen values."""

from __future__ import annotations

from slurm_elastic.providers.base.host_settings import HostsCloud


class RedfishCloud(
    HostsCloud, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="redfish"
):
    """``hosts`` are the URLs of systems at their BMCs (``https://bmc1/redfish/v1/Systems/1``), or
    what ``command`` takes for them. ``credentials``: a JSON file with ``username`` and
    ``password``; ``ca_file``: who signed the BMCs' certificates.
    """

    credentials: str | None = None
    ca_file: str | None = None
    command: tuple[str, ...] = ()
