"""The skeleton of an EC2 cloud, for ``init --cloud aws``, and the types that suit batch work."""

from __future__ import annotations

from slurm_elastic.base.pages import page
from slurm_elastic.config.basics.todos import TODO
from slurm_elastic.config.found import Found
from slurm_elastic.model.cluster import Location

FOR_BATCH: dict[str, object] = {
    "generation": "5..",
    "exclude": ["t*", "inf*", "dl*", "f*", "vt*", "hpc*", "u*"],
}
"""Excluded types: slow for their price (m2), throttled when their credits are used up (t), paid for
an accelerator no job asked for (trn, inf, dl, f, vt), or never spot (hpc, u).
"""

SKELETON = Found(
    name="aws", provider="aws", location=Location.PUBLIC, usable=True, spot=True, joins=True,
    narrowed=FOR_BATCH, what="EC2",
    keys={"region": TODO, "image_bucket": TODO, "image": TODO, "catalogue": True},
    todos={
        "credentials": "put them into /etc/slurm-elastic/aws-credentials and name the file in "
        f"/etc/default/slurm-elastic: {page('install')}",
        "rights": "attach this policy to the account's user or role: slurm-elastic iam render aws",
        "region": "choose one: aws ec2 describe-regions --query 'Regions[].RegionName'",
        "image_bucket": "aws s3 mb s3://BUCKET; only 'image upload' needs it, so take it out later",
        "image": "slurm-elastic image build compute.raw; slurm-elastic image upload {name} "
        "compute.raw; it prints the id",
        "network": "let the head reach machines at port {slurmd_port}, and machines the head at "
        "{slurmctld_port}: " + page("network"),
    },
)  # fmt: skip
