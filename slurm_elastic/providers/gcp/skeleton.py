"""The skeleton of a Google Cloud, for ``init --cloud gcp``."""

from __future__ import annotations

from slurm_elastic.base.pages import page
from slurm_elastic.config.basics.todos import TODO
from slurm_elastic.config.found import Found
from slurm_elastic.config.sections.requirements import KnownType
from slurm_elastic.model.cluster import Location

TYPE = KnownType(name="n2-standard-4", cpus=4, memory=15360, price=0.1942)
"""A machine type of every region, as an example."""

SKELETON = Found(
    name="google", provider="gcp", location=Location.PUBLIC, usable=True, joins=True,
    types=(TYPE,),
    what="a region of a Google Cloud project",
    keys={
        "credentials": "/etc/slurm-elastic/google.json", "project": TODO, "region": TODO,
        "zones": [TODO], "image": TODO, "subnetwork": TODO,
        "types": {TYPE.name: {"cpus": TYPE.cpus, "memory": "15G", "price": TYPE.price}},
    },
    todos={
        "login": "gcloud iam service-accounts keys create /etc/slurm-elastic/google.json "
        f"--iam-account ACCOUNT; owner {{user}}, mode 600; on a head inside Google Cloud leave it "
        f"out: {page('gcp')}",
        "project": "gcloud projects list",
        "region": "gcloud compute regions list",
        "zones": "gcloud compute zones list --filter=region:REGION",
        "image": "slurm-elastic image build compute.raw; put it as disk.raw into a .tar.gz in a "
        "bucket; gcloud compute images create slurm-node-1 --family=slurm-node --source-uri=gs://"
        "BUCKET/FILE; then family/slurm-node",
        "subnetwork": "gcloud compute networks subnets list --regions=REGION",
        "prices": "correct types and prices per hour; spot_price: VALUE sells a type as spot: "
        + page("gcp"),
        "ports": "let the head reach machines at port {slurmd_port}, and machines the head at "
        "{slurmctld_port}: gcloud compute firewall-rules create",
    },
)  # fmt: skip
