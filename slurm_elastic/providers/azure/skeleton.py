"""The skeleton of an Azure cloud, for ``init --cloud azure``."""

from __future__ import annotations

from slurm_elastic.base.pages import page
from slurm_elastic.config.basics.todos import TODO
from slurm_elastic.config.found import Found
from slurm_elastic.config.sections.requirements import KnownType
from slurm_elastic.model.cluster import Location

SIZE = KnownType(name="Standard_D4s_v5", cpus=4, memory=15360, price=0.23)
"""A size of every region, as an example."""

SKELETON = Found(
    name="azure", provider="azure", location=Location.PUBLIC, usable=True, joins=True,
    types=(SIZE,),
    what="a resource group of an Azure subscription",
    keys={
        "credentials": "/etc/slurm-elastic/azure.yaml", "subscription": TODO,
        "resource_group": TODO, "region": TODO, "image": TODO, "subnet": TODO,
        "ssh_public_key": TODO,
        "types": {SIZE.name: {"cpus": SIZE.cpus, "memory": "15G", "price": 0.23}},
    },
    todos={
        "login": "write tenant, client_id and client_secret into /etc/slurm-elastic/azure.yaml, "
        f"owner {{user}}, mode 600: {page('azure')}",
        "subscription": "az account show --query id",
        "resource_group": "az group create --name slurm-elastic-machines --location REGION; it is "
        "for these machines alone",
        "region": "az account list-locations --query '[].name'",
        "image": "slurm-elastic image build compute.raw; bring it into a gallery by az sig "
        "image-version create, which prints the id",
        "subnet": "az network vnet subnet list --resource-group GROUP --vnet-name NET --query "
        "'[].id'",
        "ssh_public_key": "the line of a .pub file",
        "prices": "correct sizes and prices per hour; spot_price: VALUE sells a size as spot: "
        + page("azure"),
        "ports": "let the head reach machines at port {slurmd_port}, and machines the head at "
        "{slurmctld_port}: az network nsg rule create",
    },
)  # fmt: skip
