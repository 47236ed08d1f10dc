"""The part of Amazon's price list service that tells what EC2's types cost on demand, in Linux.

JSON over the same port ("AWS Price List Query API": GetProducts), in pages of at most 100. Where
nobody has set a type's price, it is by its vCPUs, near what us-east-1 asked in 2024.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Struct

TARGET = "AWSPriceListService."
"""The beginning of the header X-Amz-Target."""
PER_VCPU = {"c": 0.0425, "m": 0.048, "r": 0.063, "t": 0.0416, "g": 0.1315, "p": 0.3825}
OTHERS = 0.06


class _Asked(Struct, rename="pascal"):
    max_results: int = 100
    next_token: str | None = None


def told(body: bytes, prices: Mapping[str, float]) -> bytes:
    """The answer to GetProducts; ``prices`` are those that were set, by type."""
    from moto.ec2.models.instance_types import INSTANCE_TYPES

    asked = msgspec.json.decode(body, type=_Asked)
    start = int(asked.next_token or 0)
    names = sorted(INSTANCE_TYPES)
    page = names[start : start + asked.max_results]
    further = start + len(page) < len(names)
    products = [
        _product(name, prices.get(name) or _price(name, INSTANCE_TYPES[name])) for name in page
    ]
    answer: dict[str, object] = {"FormatVersion": "aws_v1", "PriceList": products}
    return msgspec.json.encode(answer | ({"NextToken": str(start + len(page))} if further else {}))


def _price(name: str, found: Mapping[str, Mapping[str, int]]) -> float:
    return round(PER_VCPU.get(name[0], OTHERS) * found["VCpuInfo"]["DefaultVCpus"], 6)


def _product(name: str, price: float) -> str:
    rate = {"unit": "Hrs", "pricePerUnit": {"USD": f"{price:.10f}"}}
    document = {
        "product": {"attributes": {"instanceType": name}},
        "terms": {"OnDemand": {"A.B": {"priceDimensions": {"A.B.C": rate}}}},
    }
    return msgspec.json.encode(document).decode()
