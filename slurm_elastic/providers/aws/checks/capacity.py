"""Compares the account's vCPU quotas of EC2 with the largest demand of the pools.

A quota counts the vCPUs of a family of instance types in one market and region ("Amazon EC2
instance type quotas" and "Spot Instance quotas" in the EC2 user guide). The Service Quotas API
reports quotas to every account with the right to ask.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from slurm_elastic.base.errors import ProviderError
from slurm_elastic.config.machine_prices import paid_price
from slurm_elastic.model.cluster import Limits, Market, Pool
from slurm_elastic.model.finding import Finding
from slurm_elastic.model.machine_options import NO_OPTIONS
from slurm_elastic.providers.aws.client import other_service
from slurm_elastic.providers.aws.settings import AwsCloud
from slurm_elastic.providers.base.preflight import affordable, max_machines, sum_of_largest

STANDARD = "Standard"
CODES: Mapping[tuple[str, Market], str] = {
    (STANDARD, Market.ON_DEMAND): "L-1216C47A",
    (STANDARD, Market.SPOT): "L-34B43A08",
    ("F", Market.ON_DEMAND): "L-74FC7D96",
    ("F", Market.SPOT): "L-88CF9481",
    ("G and VT", Market.ON_DEMAND): "L-DB2E81BA",
    ("G and VT", Market.SPOT): "L-3819A6DF",
    ("P", Market.ON_DEMAND): "L-417A185B",
    ("P", Market.SPOT): "L-7212CCBC",
    ("X", Market.ON_DEMAND): "L-7295265B",
    ("X", Market.SPOT): "L-E3A00192",
    ("Inf", Market.ON_DEMAND): "L-1945791B",
    ("Inf", Market.SPOT): "L-B5D1601B",
    ("DL", Market.ON_DEMAND): "L-6E869C2A",
    ("DL", Market.SPOT): "L-85EED4F7",
    ("P5", Market.SPOT): "L-C4BD4855",
    ("Trn", Market.ON_DEMAND): "L-2C3B7624",
    ("Trn", Market.SPOT): "L-6B0D517C",
    ("HPC", Market.ON_DEMAND): "L-F7808C92",
    ("High Memory", Market.ON_DEMAND): "L-43DA4232",
}
"""The quota codes of service ``ec2``. People must look up all other quotas. EC2 sells HPC and
high-memory types only on demand.
"""
_FAMILIES = {
    **dict.fromkeys("acdhimrtz", STANDARD),
    **dict.fromkeys(("im", "is"), STANDARD),
    **dict.fromkeys(("g", "gr", "vt"), "G and VT"),
    "f": "F",
    "p": "P",
    "x": "X",
    "inf": "Inf",
    "dl": "DL",
    "trn": "Trn",
    "hpc": "HPC",
    "u": "High Memory",
}
_OWN_QUOTA_SPOT = re.compile(r"p([5-9]|\d\d)")
"""P5 (with P5e and P5en) and later P types have spot quotas of their own, apart from P2 to P4."""
_SERVICE = "ec2"


class QuotaDemand(Struct, frozen=True, kw_only=True):
    """The largest demand of pools on one quota, and their smallest machine, both in vCPUs."""

    family: str
    market: Market
    max_vcpus: int
    min_vcpus: int
    pools: tuple[str, ...]

    @property
    def shown(self) -> str:
        """The name of the quota for people."""
        return f"vCPU quota, {self.market.value} {self.family}"


def family_of(instance_type: str, market: Market) -> str:
    """The family whose quota counts the type: ``c5.large`` is Standard. An unknown type is a family
    of its own, named by its letters.
    """
    head = instance_type.partition(".")[0]
    letters = re.match(r"[a-z]*", head)
    family_letters = letters[0] if letters else ""
    own_quota = _OWN_QUOTA_SPOT.match(head) if market is Market.SPOT else None
    if own_quota:
        return own_quota[0].upper()
    return _FAMILIES.get(family_letters, family_letters.upper() or instance_type)


def demands(settings: AwsCloud, pools: Sequence[Pool]) -> Sequence[QuotaDemand]:
    """The largest demand of the pools on each quota, within their sizes and limits. Quotas that the
    limits leave no machine for are omitted.
    """
    types_by_quota: dict[tuple[str, Market], dict[str, tuple[int, list[str]]]] = {}
    for pool in pools:
        types = [t for t in pool.instance_types or settings.types if t in settings.types]
        for name in types:
            for market in (m for m in pool.markets if m is not Market.RESERVED):
                by_pool = types_by_quota.setdefault((family_of(name, market), market), {})
                by_pool.setdefault(pool.name, (max_machines(pool), []))[1].append(name)
    all_demands = [
        _demand(settings, key, by_pool) for key, by_pool in sorted(types_by_quota.items())
    ]
    return [demand for demand in all_demands if demand.max_vcpus >= demand.min_vcpus]


def _demand(
    settings: AwsCloud, key: tuple[str, Market], by_pool: Mapping[str, tuple[int, list[str]]]
) -> QuotaDemand:
    family, market = key
    limits, shapes = settings.limits, settings.types
    types = {t for _, names in by_pool.values() for t in names}
    sizes = [(max(shapes[t].cpus for t in names), n) for n, names in by_pool.values()]
    # Limits count the worst price, which is the on-demand price.
    priced = (
        (shapes[t].cpus, paid_price(settings, NO_OPTIONS, t, Market.ON_DEMAND, shapes[t].price))
        for t in types
    )
    paid = affordable(limits.dollars_per_hour, priced)
    return QuotaDemand(
        family=family,
        market=market,
        max_vcpus=math.floor(min(sum_of_largest(sizes, _machines(limits, market)), paid)),
        min_vcpus=min(shapes[t].cpus for t in types),
        pools=tuple(by_pool),
    )


def _machines(limits: Limits, market: Market) -> int | None:
    of_market = limits.spot if market is Market.SPOT else limits.on_demand
    return min((n for n in (limits.nodes, of_market) if n is not None), default=None)


def examine(settings: AwsCloud, pools: Sequence[Pool]) -> Iterator[Finding]:
    """A finding for each quota that the pools need. Launches do not need the right to read
    quotas.
    """
    needed = demands(settings, pools)
    demand_by_code = {CODES[d.family, d.market]: d for d in needed if (d.family, d.market) in CODES}
    for demand in needed:
        if (demand.family, demand.market) not in CODES:
            expected = f"{demand.max_vcpus} vCPUs for pool {', '.join(demand.pools)}"
            advice = "see Service Quotas in the console, service Amazon EC2"
            finding = "a quota of its own, which is not looked up"
            yield Finding.note(demand.shown, finding, expected, advice)
    if not demand_by_code:
        return
    try:
        with other_service(settings, "service-quotas", settings.region) as client:
            quotas = {code: _value(client, code) for code in demand_by_code}
    except ProviderError as error:
        advice = (
            "allow servicequotas:GetServiceQuota and GetAWSDefaultServiceQuota to see them, or "
            "compare limits with them by hand; a launch beyond one is refused and cools its market "
            "down"
        )
        yield Finding.note("vCPU quotas", f"cannot be read: {error.refusal}", advice=advice)
        return
    for code, demand in demand_by_code.items():
        yield _compared(demand, code, quotas[code])


def _value(client: Any, code: str) -> float:  # noqa: ANN401 - made by boto3 at run time
    """The account's quota, or Amazon's default if the account has no quota of its own."""
    request = {"ServiceCode": _SERVICE, "QuotaCode": code}
    try:
        answer = client.get_service_quota(**request)
    except client.exceptions.NoSuchResourceException:
        # Some quotas have no applied value, but only Amazon's default ("GetServiceQuota").
        answer = client.get_aws_default_service_quota(**request)
    return float(answer["Quota"]["Value"])


def _compared(demand: QuotaDemand, code: str, quota: float) -> Finding:
    finding, pools = f"{quota:g} vCPUs ({code})", ", ".join(demand.pools)
    raise_command = (
        f"aws service-quotas request-service-quota-increase --service-code {_SERVICE} "
        f"--quota-code {code} --desired-value {demand.max_vcpus}"
    )
    if quota < demand.min_vcpus:
        finding = f"{finding}: not one machine of pool {pools} can start"
        expected = f"{demand.min_vcpus} at least, and {demand.max_vcpus} for all of them"
        advice = f"{raise_command}; or take the market out of the pool"
        return Finding.wrong(demand.shown, finding, expected, advice)
    if quota < demand.max_vcpus:
        expected = (
            f"{demand.max_vcpus}, which pool {pools} could ask for at once; all else that the "
            "account runs counts, too"
        )
        advice = f"{raise_command}; or lower the cloud's limits: what is above is refused by EC2"
        return Finding.note(demand.shown, finding, expected, advice)
    max_vcpus = f"pool {pools} could ask for {demand.max_vcpus} at most"
    return Finding.ok(demand.shown, f"{finding}; {max_vcpus}")
