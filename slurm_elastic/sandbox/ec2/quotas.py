"""The part of the Service Quotas API that reports EC2's vCPU quotas.

JSON over the same port as EC2 ("Service Quotas API reference": GetServiceQuota). The emulated EC2
does not enforce these quotas. Faults and stock decide which launches it refuses.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Struct

from slurm_elastic.sandbox.ec2.faults import Ec2Error

TARGET = "ServiceQuotasV20190624."
"""The prefix of the header X-Amz-Target."""
JSON = "application/x-amz-json-1.1"
VCPUS = 100_000.0
"""The value of each quota that a test has not set."""
NO_QUOTA = Ec2Error("NoSuchResourceException", 400, "The requested quota does not exist.")


class _Request(Struct, frozen=True, rename="pascal"):
    service_code: str
    quota_code: str


def shipped() -> dict[str, float]:
    """Return the quotas of a new account, by code."""
    # Imported here, because the module needs boto3, which most commands do without.
    from slurm_elastic.providers.aws.checks.capacity import CODES

    return dict.fromkeys(CODES.values(), VCPUS)


def answer(body: bytes, quotas: Mapping[str, float]) -> bytes | Ec2Error:
    """Return the answer to GetServiceQuota."""
    try:
        request = msgspec.json.decode(body, type=_Request)
    except msgspec.DecodeError as error:
        return Ec2Error("IllegalArgumentException", 400, str(error))
    value = quotas.get(request.quota_code)
    if request.service_code != "ec2" or value is None:
        return NO_QUOTA
    quota = {"ServiceCode": "ec2", "QuotaCode": request.quota_code, "Value": value}
    return msgspec.json.encode({"Quota": quota})


def error_json(error: Ec2Error) -> bytes:
    """Return an error in the form of Amazon's JSON services."""
    return msgspec.json.encode({"__type": error.code, "message": error.message})
