"""The part of the Service Quotas API that tells EC2's vCPU quotas, beside the emulated EC2.

JSON over the same port ("Service Quotas API reference": GetServiceQuota). The emulated EC2 does not
keep to these quotas by itself: its faults and stock say what is refused.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Struct

from slurm_elastic.sandbox.ec2_faults import Ec2Error

TARGET = "ServiceQuotasV20190624."
"""The beginning of the header X-Amz-Target."""
JSON = "application/x-amz-json-1.1"
VCPUS = 100_000.0
"""The value of each quota where nobody has set another."""
NO_QUOTA = Ec2Error("NoSuchResourceException", 400, "The requested quota does not exist.")


class _Asked(Struct, frozen=True, rename="pascal"):
    service_code: str
    quota_code: str


def shipped() -> dict[str, float]:
    """The quotas of a fresh account, by their codes."""
    from slurm_elastic.providers.aws.capacity import CODES  # with boto3, which commands go without

    return dict.fromkeys(CODES.values(), VCPUS)


def told(body: bytes, quotas: Mapping[str, float]) -> bytes | Ec2Error:
    """The answer to GetServiceQuota."""
    try:
        asked = msgspec.json.decode(body, type=_Asked)
    except msgspec.DecodeError as error:
        return Ec2Error("IllegalArgumentException", 400, str(error))
    value = quotas.get(asked.quota_code)
    if asked.service_code != "ec2" or value is None:
        return NO_QUOTA
    quota = {"ServiceCode": "ec2", "QuotaCode": asked.quota_code, "Value": value}
    return msgspec.json.encode({"Quota": quota})


def error_json(error: Ec2Error) -> bytes:
    """An error as services that speak JSON answer it."""
    return msgspec.json.encode({"__type": error.code, "message": error.message})
