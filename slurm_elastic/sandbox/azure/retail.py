"""The emulated Retail Prices interface: meters of the sizes, filtered and in pages."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from slurm_elastic.sandbox.azure.world import SIZES, ArmError, Reply, World

PATH = "/api/retail/prices"
_TERM = re.compile(r"(?P<key>\w+) eq '(?P<value>(?:[^']|'')*)'")
_KEYS = {"priceType": "type"}
"""Keys of filters whose properties have another name."""
_CPU_HOUR = 0.045
_KINDS = (
    # the product's and the meter's further words, the type, the part of the price on demand
    ("", "", "Consumption", 1.0),
    ("", " Spot", "Consumption", 0.2),
    ("", " Low Priority", "Consumption", 0.2),
    (" Windows", "", "Consumption", 1.9),
    (" Windows", " Spot", "Consumption", 0.4),
    (" Windows", "", "DevTestConsumption", 1.0),
)


def price_page(world: World, query: Mapping[str, str]) -> Reply:
    """One page of the meters that the filter lets pass. Raises ArmError."""
    terms = _terms(query.get("$filter", ""))
    region = terms.get("armRegionName", "westeurope")
    meters = list(_meters(region)) if world.meters is None else world.meters
    passed = [m for m in meters if all(m.get(_KEYS.get(k, k)) == v for k, v in terms.items())]
    start = int(query.get("$skip", "0"))
    page = passed[start : start + world.price_page]
    following = start + world.price_page
    return Reply(content={
        "BillingCurrency": "USD", "CustomerEntityId": "Default", "CustomerEntityType": "Retail",
        "Items": page, "Count": len(page),
        "NextPageLink": str(following) if following < len(passed) else None,
    })  # fmt: skip


def _terms(text: str) -> Mapping[str, str]:
    """The terms of a filter. Only ``eq``, joined by ``and``, is emulated."""
    terms: dict[str, str] = {}
    for part in text.split(" and ") if text else ():
        term = _TERM.fullmatch(part)
        if term is None:
            raise ArmError(400, "BadRequest", f"The query {part} is not valid.")
        terms[term["key"]] = term["value"].replace("''", "'")
    return terms


def _meters(region: str) -> Iterator[dict[str, Any]]:
    for size, (cpus, _) in SIZES.items():
        short = size.removeprefix("Standard_").replace("_", " ")
        for product, meter, kind, share in _KINDS:
            price = round(cpus * _CPU_HOUR * share, 6)
            yield {
                "currencyCode": "USD", "tierMinimumUnits": 0.0, "retailPrice": price,
                "unitPrice": price, "armRegionName": region, "location": "EU West",
                "effectiveStartDate": "2026-11-01T00:00:00Z", "meterName": short + meter,
                "productName": f"Virtual Machines Dsv5 Series{product}", "skuName": short + meter,
                "serviceName": "Virtual Machines", "serviceFamily": "Compute",
                "unitOfMeasure": "1 Hour", "type": kind, "isPrimaryMeterRegion": True,
                "armSkuName": size,
            }  # fmt: skip
