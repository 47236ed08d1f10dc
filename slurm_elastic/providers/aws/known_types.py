"""EC2's types in a region, and what they cost on demand: DescribeInstanceTypes and the price list.

The price list is a service of its own with endpoints in few regions; prices of all regions are in
each ("AWS Price List Query API": GetProducts).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from slurm_elastic.base.errors import TransientError
from slurm_elastic.config.requirements import KnownType
from slurm_elastic.policies.repair.list_plausibility import price_in
from slurm_elastic.providers.aws.client import Api, other_service
from slurm_elastic.providers.aws.errors import translated
from slurm_elastic.providers.aws.rate_limit import pace_of
from slurm_elastic.providers.aws.settings import AwsCloud

PAGE = 100
"""The bound of both calls for one answer."""
MOST_PAGES = 200
_GENERATION = re.compile(r"[a-z]+(?:-[a-z]+)?(\d+)")
_PRICES_AT = {"cn": "cn-northwest-1", "eu": "eu-central-1", "ap": "ap-south-1"}
_LINUX_ON_SHARED_HOSTS = {
    "capacitystatus": "Used",
    "operatingSystem": "Linux",
    "preInstalledSw": "NA",
    "tenancy": "Shared",
}


def known_types(settings: AwsCloud) -> tuple[KnownType, ...]:
    """All but bare metal; some twenty calls. Any ProviderError."""
    prices = _prices(settings)
    api = Api(settings, pace_of(settings))
    request = {"Filters": [{"Name": "bare-metal", "Values": ["false"]}], "MaxResults": PAGE}
    records = api.pages("describe_instance_types", "InstanceTypes", request)
    with translated(settings.name):
        return tuple(_known(record, prices) for record in records)


def _known(record: Mapping[str, Any], prices: Mapping[str, float]) -> KnownType:
    name = str(record["InstanceType"])
    archs = record.get("ProcessorInfo", {}).get("SupportedArchitectures", ())
    generation = _GENERATION.match(name)
    return KnownType(
        name=name,
        cpus=int(record["VCpuInfo"]["DefaultVCpus"]),
        memory=int(record["MemoryInfo"]["SizeInMiB"]),
        price=prices.get(name),
        gres=_gpus(record.get("GpuInfo", {}).get("Gpus", ())),
        arch=next((a for a in archs if a != "i386"), ""),
        generation=int(generation[1]) if generation else None,
    )


def _gpus(found: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """By either name that slurm.conf may have: ``gpu`` and, with the model's, ``gpu:t4``."""
    gres: dict[str, int] = {}
    for gpu in found:
        model = re.sub(r"[^a-z0-9]+", "-", str(gpu.get("Name", "")).lower()).strip("-")
        for name in ("gpu", f"gpu:{model}"):
            gres[name] = gres.get(name, 0) + int(gpu.get("Count", 0))
    return gres


def _prices(settings: AwsCloud) -> dict[str, float]:
    """By type, $/h of Linux on demand in the region."""
    region = _PRICES_AT.get(settings.region.partition("-")[0], "us-east-1")
    with other_service(settings, "pricing", region) as client:
        return dict(_priced(_products(client, settings)))


def _products(client: Any, settings: AwsCloud) -> Iterator[str]:  # noqa: ANN401 - boto3's
    wanted = {**_LINUX_ON_SHARED_HOSTS, "regionCode": settings.region}
    request: dict[str, object] = {
        "ServiceCode": "AmazonEC2",
        "MaxResults": PAGE,
        "Filters": [{"Type": "TERM_MATCH", "Field": k, "Value": v} for k, v in wanted.items()],
    }
    for _ in range(MOST_PAGES):
        answer = client.get_products(**request)
        yield from answer["PriceList"]
        if not answer.get("NextToken"):
            return
        request["NextToken"] = answer["NextToken"]
    text = f"the price list has no end after {MOST_PAGES} pages"
    raise TransientError(settings.name, "BadAnswer", text)


def _priced(products: Iterator[str]) -> Iterator[tuple[str, float]]:
    """Each product is a document of its own; the term without an upfront payment has one rate."""
    for text in products:
        product = msgspec.json.decode(text)
        name = product.get("product", {}).get("attributes", {}).get("instanceType")
        terms = product.get("terms", {}).get("OnDemand", {}).values()
        rates = (rate for term in terms for rate in term.get("priceDimensions", {}).values())
        dollars = (price_in(rate.get("pricePerUnit", {}).get("USD")) for rate in rates)
        found = max((price for price in dollars if price), default=None)
        if name and found:
            yield str(name), found
