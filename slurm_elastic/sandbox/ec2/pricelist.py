"""The part of Amazon's price list service that lists on-demand prices of EC2's types with Linux.

JSON over the same port ("AWS Price List Query API": GetProducts), in pages of at most 100. If a
type's price is not set, it is computed from its vCPUs, close to us-east-1's prices of 2024.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Struct

TARGET = "AWSPriceListService."
"""The prefix of the header X-Amz-Target."""
PRICE_PER_VCPU = {"c": 0.0425, "m": 0.048, "r": 0.063, "t": 0.0416, "g": 0.1315, "p": 0.3825}
OTHER_PRICE_PER_VCPU = 0.06


class _Request(Struct, rename="pascal"):
    max_results: int = 100
    next_token: str | None = None


def answer(body: bytes, prices: Mapping[str, float]) -> bytes:
    """Return the answer to GetProducts. ``prices``: the set prices ($/h) by type."""
    from moto.ec2.models.instance_types import INSTANCE_TYPES

    request = msgspec.json.decode(body, type=_Request)
    start = int(request.next_token or 0)
    names = sorted(INSTANCE_TYPES)
    page = names[start : start + request.max_results]
    further = start + len(page) < len(names)
    products = [
        _product(name, prices.get(name) or _price(name, INSTANCE_TYPES[name])) for name in page
    ]
    answer: dict[str, object] = {"FormatVersion": "aws_v1", "PriceList": products}
    return msgspec.json.encode(answer | ({"NextToken": str(start + len(page))} if further else {}))


def _price(name: str, type_info: Mapping[str, Mapping[str, int]]) -> float:
    return round(
        PRICE_PER_VCPU.get(name[0], OTHER_PRICE_PER_VCPU) * type_info["VCpuInfo"]["DefaultVCpus"], 6
    )


def _product(name: str, price: float) -> str:
    rate = {"unit": "Hrs", "pricePerUnit": {"USD": f"{price:.10f}"}}
    document = {
        "product": {"attributes": {"instanceType": name}},
        "terms": {"OnDemand": {"A.B": {"priceDimensions": {"A.B.C": rate}}}},
    }
    return msgspec.json.encode(document).decode()
