"""The skeleton of a cloud of hosts with BMCs, for ``init --cloud redfish``."""

from __future__ import annotations

from slurm_elastic.base.pages import page
from slurm_elastic.config.basics.todos import TODO
from slurm_elastic.config.found import Found
from slurm_elastic.model.cluster import Location

SKELETON = Found(
    name="rack", provider="redfish", location=Location.ON_PREMISES, usable=True, sized=True,
    by_node=True, what="hosts with BMCs",
    keys={
        "credentials_file": "/etc/slurm-elastic/bmc.json", "hosts": {"r1": TODO},
    },
    todos={
        "credentials": "put the BMCs' account into /etc/slurm-elastic/bmc.json, owner {user}, "
        f"mode 600: {page('redfish')}",
        "hosts": "NODE: URL of each host, such as https://r1-bmc/redfish/v1/Systems/1; "
        "curl -sku USER https://r1-bmc/redfish/v1/Systems lists them",
        "slurmd": "have slurmd start at boot on each host, with the head's munge key: "
        f"{page('joining')}",
    },
)  # fmt: skip
