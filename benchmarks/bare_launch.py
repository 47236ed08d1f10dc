"""One bare RunInstances by a client that has its connection: what the cloud itself takes.

``python -m benchmarks.bare_launch URL COUNT [CONFIG]`` prints ``{"wall", "waited"}`` (s). Without
CONFIG the call asks for COUNT machines and nothing else; with it, it is word for word the call
that our provider makes for that many nodes, so that the tags' cost in the cloud is in both.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config as BotoConfig

from benchmarks.cloud_clock import CloudClock
from slurm_elastic.base.hostlist import expand
from slurm_elastic.config import configfile, domain_pools
from slurm_elastic.model.cluster import LaunchSpec, Market, Offer
from slurm_elastic.providers.aws import requests
from slurm_elastic.providers.aws.settings import AwsCloud


def run(url: str, count: int, config: Path | None) -> dict[str, float]:
    client: Any = boto3.client(
        "ec2", region_name="us-east-1", endpoint_url=url, config=BotoConfig(read_timeout=300)
    )
    client.describe_instances(MaxResults=5)
    request = (
        same_as_ours(config, count)
        if config
        else {
            "ImageId": "ami-12345678",
            "InstanceType": "c5.large",
            "MinCount": count,
            "MaxCount": count,
        }
    )
    clock = CloudClock()
    clock.install()
    began = time.perf_counter()
    answer = client.run_instances(**request)
    wall = time.perf_counter() - began
    if len(answer["Instances"]) != count:
        raise SystemExit(f"{len(answer['Instances'])} machines instead of {count}")
    return {"wall": wall, "waited": clock.waited}


def same_as_ours(config_path: Path, count: int) -> dict[str, object]:
    """The request of ``providers.aws`` for the first ``count`` nodes of the only pool, on spot."""
    config = configfile.load(config_path)
    settings = config.clouds[0]
    assert isinstance(settings, AwsCloud)
    (pool,) = domain_pools(config, expand)
    offer = Offer(
        cloud=settings.name,
        location=settings.location,
        instance_type="c5.large",
        zone=settings.zones[0],
        market=Market.SPOT,
        price=0.03,
        cpus=2,
        memory=4096,
    )
    spec = LaunchSpec(
        generation="g0000000000000-00000000",
        pool=pool,
        nodes=pool.nodes[:count],
        offer=offer,
        jobs=(1000,),
    )
    return requests.run_instances(
        settings,
        config.cluster,
        spec,
        spec.nodes,
        number=0,
        parts=(),
    )


if __name__ == "__main__":
    config = Path(sys.argv[3]) if len(sys.argv) > 3 else None
    sys.stdout.write(json.dumps(run(sys.argv[1], int(sys.argv[2]), config)) + "\n")
