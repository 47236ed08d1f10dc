"""The boto3 client, made fit for answers about thousands of machines.

EC2 tells sixty things of a machine, of which we read nine. Botocore makes Python values of all of
them, its dates by a parser that guesses their form: 0.4 s of processor time for a thousand
machines, as much as all else of a launch. Without the rest it is half of that.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any

import boto3
import botocore.session
from botocore.config import Config
from botocore.utils import parse_timestamp

from slurm_elastic.config.clouds import AwsCloud
from slurm_elastic.providers.aws_reading import READ, READ_OF_PLACEMENT

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

_INSTANCES = {
    "RunInstances": ("Instances",),
    "DescribeInstances": ("Reservations", "Instances"),
}
"""Where an answer has its machines: lists in lists."""


def open_client(settings: AwsCloud, config: Config) -> EC2Client:
    """A client of its own session, so that credentials are looked for anew."""
    core = botocore.session.get_session()
    core.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=_when)
    session = boto3.session.Session(
        profile_name=settings.profile, region_name=settings.region, botocore_session=core
    )
    client = session.client("ec2", endpoint_url=settings.endpoint, config=config)
    _trim(client.meta.service_model)
    return client


def _when(value: Any) -> datetime:  # noqa: ANN401 - any of the forms that botocore takes
    try:
        return datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return parse_timestamp(value)


def _trim(model: Any) -> None:  # noqa: ANN401 - botocore has no types of its own
    """Botocore passes over what is in an answer but not in its model of it."""
    for operation, path in _INSTANCES.items():
        shape = model.operation_model(operation).output_shape
        for name in path:
            shape = shape.members[name].member
        _keep(shape.members, READ)
        _keep(shape.members["Placement"].members, READ_OF_PLACEMENT)


def _keep(members: dict[str, object], wanted: Iterable[str]) -> None:
    for name in members.keys() - set(wanted):
        del members[name]
