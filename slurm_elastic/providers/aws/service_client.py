"""boto3's clients for services beside EC2's machines: queues and price histories."""

from __future__ import annotations

from typing import Any

from slurm_elastic.base.processes.bounded import bound_boto
from slurm_elastic.providers.aws.settings import AwsCloud


def service_client(cloud: AwsCloud, service: str) -> Any:  # noqa: ANN401 - boto3's clients
    """A client of that service for the cloud's account."""
    import boto3
    from botocore.config import Config as BotoConfig

    session = boto3.session.Session(profile_name=cloud.profile, region_name=cloud.region)
    limits = BotoConfig(
        connect_timeout=cloud.api_timeout, read_timeout=cloud.api_timeout,
        retries={"total_max_attempts": 2, "mode": "standard"},
    )  # fmt: skip
    endpoint = cloud.endpoint_of(service)
    client = session.client(service, endpoint_url=endpoint, config=limits)  # type: ignore[call-overload]
    bound_boto(client, cloud.api_timeout * 2)
    return client


def queue_client(cloud: AwsCloud) -> Any:  # noqa: ANN401 - boto3's clients
    """A client of SQS for the cloud's account."""
    return service_client(cloud, "sqs")
