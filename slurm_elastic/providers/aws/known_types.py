"""The instance types of a region with their on-demand prices: DescribeInstanceTypes and the price
list.

The price list is a service of its own with endpoints in a few regions. Each endpoint has the prices
of all regions ("AWS Price List Query API": GetProducts).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from slurm_elastic.base.errors import TransientError
from slurm_elastic.config.sections.requirements import KnownType
from slurm_elastic.policies.repair.list_plausibility import price_in
from slurm_elastic.providers.aws.client import AwsApi, other_service
from slurm_elastic.providers.aws.errors import translated
from slurm_elastic.providers.aws.rate_limit import pace_of
from slurm_elastic.providers.aws.settings import AwsCloud

PAGE = 100
"""Both calls return at most so many items in one answer."""
MAX_PAGES = 200
_GENERATION = re.compile(r"[a-z]+(?:-[a-z]+)?(\d+)")
_PRICES_AT = {"cn": "cn-northwest-1", "eu": "eu-central-1", "ap": "ap-south-1"}
_LINUX_ON_SHARED_HOSTS = {
    "capacitystatus": "Used",
    "operatingSystem": "Linux",
    "preInstalledSw": "NA",
    "tenancy": "Shared",
}


def known_types(settings: AwsCloud) -> tuple[KnownType, ...]:
    """All types except bare metal. Takes about twenty calls and may raise any ProviderError."""
    prices = _prices(settings)
    api = AwsApi(settings, pace_of(settings))
    request = {"Filters": [{"Name": "bare-metal", "Values": ["false"]}], "MaxResults": PAGE}
    records = api.pages("describe_instance_types", "InstanceTypes", request)
    with translated(settings.name):
        return tuple(_known_type(record, prices) for record in records)


def _known_type(record: Mapping[str, Any], prices: Mapping[str, float]) -> KnownType:
    name = str(record["InstanceType"])
    archs = record.get("ProcessorInfo", {}).get("SupportedArchitectures", ())
    generation = _GENERATION.match(name)
    return KnownType(
        name=name,
        cpus=int(record["VCpuInfo"]["DefaultVCpus"]),
        memory=int(record["MemoryInfo"]["SizeInMiB"]),
        price=prices.get(name),
        gres=_gpus(record.get("GpuInfo", {}).get("Gpus", ())),
        # x86_64 types also list i386.
        arch=next((a for a in archs if a != "i386"), ""),
        generation=int(generation[1]) if generation else None,
    )


def _gpus(gpus: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """GPUs under both names that slurm.conf may use: ``gpu`` and, with the model, ``gpu:t4``."""
    gres: dict[str, int] = {}
    for gpu in gpus:
        model = re.sub(r"[^a-z0-9]+", "-", str(gpu.get("Name", "")).lower()).strip("-")
        for name in ("gpu", f"gpu:{model}"):
            gres[name] = gres.get(name, 0) + int(gpu.get("Count", 0))
    return gres


def _prices(settings: AwsCloud) -> dict[str, float]:
    """The on-demand price of Linux in the region ($/h) by type."""
    region = _PRICES_AT.get(settings.region.partition("-")[0], "us-east-1")
    with other_service(settings, "pricing", region) as client:
        return dict(_priced(_products(client, settings)))


def _products(client: Any, settings: AwsCloud) -> Iterator[str]:  # noqa: ANN401 - boto3's
    fields = {**_LINUX_ON_SHARED_HOSTS, "regionCode": settings.region}
    request: dict[str, object] = {
        "ServiceCode": "AmazonEC2",
        "MaxResults": PAGE,
        "Filters": [{"Type": "TERM_MATCH", "Field": k, "Value": v} for k, v in fields.items()],
    }
    for _ in range(MAX_PAGES):
        answer = client.get_products(**request)
        yield from answer["PriceList"]
        if not answer.get("NextToken"):
            return
        request["NextToken"] = answer["NextToken"]
    text = f"the price list has no end after {MAX_PAGES} pages"
    raise TransientError(settings.name, "BadAnswer", text)


def _priced(products: Iterator[str]) -> Iterator[tuple[str, float]]:
    """Yield (type, $/h). Each product is a JSON document; its on-demand term without upfront
    payment has one rate.
    """
    for text in products:
        product = msgspec.json.decode(text)
        name = product.get("product", {}).get("attributes", {}).get("instanceType")
        terms = product.get("terms", {}).get("OnDemand", {}).values()
        rates = (rate for term in terms for rate in term.get("priceDimensions", {}).values())
        dollars = (price_in(rate.get("pricePerUnit", {}).get("USD")) for rate in rates)
        # The highest, in case a product has several rates: limits must not count too little.
        highest = max((price for price in dollars if price), default=None)
        if name and highest:
            yield str(name), highest
