"""Costs in the FinOps Open Cost and Usage Specification (FOCUS) 1.2, with 1.3's split-charge
columns.

A row is one part of one machine's hour. The rows of a ``ResourceId`` and a charge period add up to
the charge for that machine in that period. List prices are on-demand prices if the cloud quoted
one, before discounts. Unused time is a part of its own, with ``x_UnusedReason``. Source: the
specification's columns, https://focus.finops.org.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from slurm_elastic.features.money.cost_sums import on_demand_price
from slurm_elastic.features.money.reserved_charges import Charge
from slurm_elastic.model.cluster import Market
from slurm_elastic.model.memory import ChargedRun, whole_id
from slurm_elastic.policies.money.cost_split import HOUR, METHOD, WHOLE, CostHour, Unused
from slurm_elastic.policies.money.reservations import IdleHour
from slurm_elastic.state.ledger import Machine

_CATEGORY = {
    Market.ON_DEMAND: "Standard",
    Market.SPOT: "Dynamic",
    Market.RESERVED: "Committed",
}
_METHOD = json.dumps({"Split": "by time and the largest share of CPUs, memory or GPUs"})
COLUMNS = (
    "BilledCost", "EffectiveCost", "ListCost", "ContractedCost", "BillingCurrency",
    "BillingAccountId", "BillingAccountName", "BillingPeriodStart", "BillingPeriodEnd",
    "ChargePeriodStart", "ChargePeriodEnd", "ChargeCategory", "ChargeClass", "ChargeDescription",
    "ChargeFrequency", "PricingCategory", "PricingQuantity", "PricingUnit", "ListUnitPrice",
    "ContractedUnitPrice", "ConsumedQuantity", "ConsumedUnit", "ServiceCategory",
    "ServiceSubcategory", "ServiceName", "ProviderName", "PublisherName", "InvoiceIssuerName",
    "AvailabilityZone", "ResourceId", "ResourceName", "ResourceType", "SkuId", "SkuPriceId", "Tags",
    "AllocatedMethodId", "AllocatedMethodDetails", "AllocatedResourceId", "AllocatedResourceName",
    "AllocatedTags", "x_UnusedReason",
)  # fmt: skip


def rows(
    charges: Iterator[Charge],
    runs: Sequence[ChargedRun],
    cluster: str,
    idle: Sequence[IdleHour] = (),
) -> Iterator[dict[str, str]]:
    """Yield a row for each part of each hour, ordered by machine and time; empty texts are null.
    ``idle``: the parts of reservations that no machine used, which come last.
    """
    for charge in charges:
        machine_columns = _machine_columns(charge.machine, cluster)
        for hour in charge.hours:
            hour_columns = machine_columns | _hour_columns(hour)
            for key in hour.parts:
                yield hour_columns | _part_columns(charge.machine, hour, key, runs)

    for idle_hour in idle:
        yield _idle_columns(idle_hour, cluster)


def _idle_columns(idle: IdleHour, cluster: str) -> dict[str, str]:
    held, cost = idle.held, _plain(Decimal(idle.micro) / 1_000_000)
    hours = (idle.end - idle.begin) / HOUR
    return _place_columns(held.cloud) | _span_columns(idle.begin, idle.end) | {
        "BilledCost": cost,
        "EffectiveCost": cost,
        "ContractedCost": cost,
        "ListCost": cost,
        "ChargeDescription": f"{held.kind} {held.name}, unused: {Unused.RESERVED}",
        "ChargeFrequency": "Recurring",
        "PricingCategory": _CATEGORY[Market.RESERVED],
        "PricingQuantity": _plain(round(Decimal(hours), 12)),
        "ConsumedQuantity": "0",
        "ListUnitPrice": _plain(Decimal(repr(held.fixed_per_hour))),
        "ContractedUnitPrice": _plain(Decimal(repr(held.fixed_per_hour))),
        "AvailabilityZone": held.zone,
        "ResourceId": held.id or held.name,
        "ResourceName": held.name,
        "ResourceType": "Reservation",
        "SkuId": held.instance_type,
        "SkuPriceId": held.key,
        "Tags": json.dumps({"cluster": cluster, "market": str(Market.RESERVED)}),
        "AllocatedMethodId": METHOD,
        "AllocatedMethodDetails": _METHOD,
        "AllocatedResourceId": f"unused/{Unused.RESERVED}",
        "AllocatedResourceName": "unused",
        "AllocatedTags": "{}",
        "x_UnusedReason": str(Unused.RESERVED),
    }  # fmt: skip


def _place_columns(cloud: str) -> dict[str, str]:
    """Return the columns that all charges of a cloud share."""
    return {
        "BillingCurrency": "USD",
        "BillingAccountId": cloud,
        "BillingAccountName": cloud,
        "ChargeCategory": "Usage",
        "ChargeClass": "",
        "PricingUnit": "Hours",
        "ConsumedUnit": "Hours",
        "ServiceCategory": "Compute",
        "ServiceSubcategory": "Virtual Machines",
        "ServiceName": "Virtual Machines",
        "ProviderName": cloud,
        "PublisherName": cloud,
        "InvoiceIssuerName": cloud,
    }


def _machine_columns(machine: Machine, cluster: str) -> dict[str, str]:
    instance = machine.instance
    return _place_columns(instance.cloud) | {
        "ChargeFrequency": "Usage-Based",
        "PricingCategory": _CATEGORY[instance.market],
        "ListUnitPrice": _plain(_list_price(machine)),
        "ContractedUnitPrice": _plain(_price(machine)),
        "AvailabilityZone": instance.zone,
        "ResourceId": whole_id(instance.id),
        "ResourceName": instance.node,
        "ResourceType": "Virtual Machine",
        "SkuId": instance.instance_type,
        "SkuPriceId": instance.offer_key,
        "Tags": json.dumps(
            {"cluster": cluster, "pool": machine.pool, "market": str(instance.market)}
        ),
        "AllocatedMethodId": METHOD,
        "AllocatedMethodDetails": _METHOD,
    }


def _hour_columns(hour: CostHour) -> dict[str, str]:
    return _span_columns(hour.begin, hour.end)


def _span_columns(begin_ms: int, end_ms: int) -> dict[str, str]:
    begin = datetime.fromtimestamp(begin_ms / 1000, UTC)
    month = begin.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    next_month = (month + timedelta(days=32)).replace(day=1)
    return {
        "BillingPeriodStart": _time(month),
        "BillingPeriodEnd": _time(next_month),
        "ChargePeriodStart": _time(begin),
        "ChargePeriodEnd": _time(datetime.fromtimestamp(end_ms / 1000, UTC)),
    }


def _part_columns(
    machine: Machine, hour: CostHour, key: int | Unused, runs: Sequence[ChargedRun]
) -> dict[str, str]:
    cost = _plain(Decimal(hour.parts[key]) / 1_000_000)
    quantity = Decimal(hour.weights[key]) / (WHOLE * HOUR)
    columns = {
        "BilledCost": cost,
        "EffectiveCost": cost,
        "ContractedCost": cost,
        "ListCost": _plain(round(_list_price(machine) * quantity, 6)),
        "PricingQuantity": _plain(round(quantity, 12)),
        "ConsumedQuantity": _plain(round(quantity, 12)),
    }
    return columns | _allocation_columns(machine, key, runs)


def _allocation_columns(
    machine: Machine, key: int | Unused, runs: Sequence[ChargedRun]
) -> dict[str, str]:
    """Return the columns that say which job, or which unused time, a part is charged to."""
    instance = machine.instance
    if isinstance(key, Unused):
        return {
            "ChargeDescription": f"{instance.instance_type} {instance.market}, unused: {key}",
            "AllocatedResourceId": f"unused/{key}",
            "AllocatedResourceName": "unused",
            "AllocatedTags": "{}",
            "x_UnusedReason": str(key),
        }
    run = runs[key]
    tags = {"account": run.account, "user": run.user, "partition": run.partition}
    return {
        "ChargeDescription": (
            f"{instance.instance_type} {instance.market}, job {run.label or run.job}"
        ),
        "AllocatedResourceId": f"job/{run.job}",
        "AllocatedResourceName": run.label or str(run.job),
        "AllocatedTags": json.dumps(tags),
        "x_UnusedReason": "",
    }


def _price(machine: Machine) -> Decimal:
    return Decimal(repr(machine.instance.price))


def _list_price(machine: Machine) -> Decimal:
    # A stopped machine costs only its disks, which no discount is for.
    price = None if machine.is_off else machine.terms.list_price
    return Decimal(repr(on_demand_price(machine) if price is None else price))


def _plain(number: Decimal) -> str:
    """Return the number without an exponent: FOCUS' numeric format, which spreadsheets can read."""
    return f"{number:f}"


def _time(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"
