"""Answers to calls about spot machines, maintenance and consoles. moto answers them with
constants.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence

from slurm_elastic.sandbox.ec2.api import Ec2Call, answer_xml, elements, tag_set, timestamp
from slurm_elastic.sandbox.ec2.cloud import EmulatedCloud, EmulatedInstance
from slurm_elastic.sandbox.ec2.prices import Quote

_LINUX = "Linux/UNIX"
LICENCES = {_LINUX: 0.0, "Red Hat Enterprise Linux": 0.026, "SUSE Linux": 0.05}
"""Dollars per hour that a licence adds to a machine's price. (EC2's depend on the size.)"""


def special_answer(cloud: EmulatedCloud, call: Ec2Call, now: float) -> bytes | None:
    """Return the answer to such a call; None if moto answers the call."""
    match call.action:
        case "DescribeSpotPriceHistory":
            return spot_prices_xml(cloud, call, now)
        case "DescribeInstanceStatus":
            return statuses_xml(cloud, call)
        case "DescribeSpotInstanceRequests":
            return spot_requests_xml(cloud, call)
        case "GetConsoleOutput":
            return console_xml(cloud, call, now)
    return None


def console_xml(cloud: EmulatedCloud, call: Ec2Call, now: float) -> bytes | None:
    """Return the console output of a machine in base64, as EC2 does; None if none was set."""
    name = call.params.get("InstanceId", "")
    if name not in cloud.consoles:
        return None
    output = base64.b64encode(cloud.consoles[name].encode()).decode()
    inner = elements(instanceId=name, timestamp=timestamp(now), output=output)
    return answer_xml(call.action, inner)


def spot_prices_xml(cloud: EmulatedCloud, call: Ec2Call, now: float) -> bytes:
    """Return the prices of each requested type, zone and product between ``StartTime`` and
    ``EndTime``, the newest first, in pages of ``MaxResults``.
    """
    types, filters = call.listed("InstanceType"), call.filters()
    only_zone = call.params.get("AvailabilityZone")
    products = call.listed("ProductDescription") or filters.get("product-description", [_LINUX])
    quotes = [
        (quote, product)
        for type_, zone in cloud.prices.offers()
        if (not types or type_ in types)
        and only_zone in (None, zone)
        and _allowed(filters, {"instance-type": type_, "availability-zone": zone})
        and zone.startswith(call.region)
        for quote in _in_period(cloud.prices.history(type_, zone, now), call.params)
        for product in products
        if product in LICENCES
    ]
    start = int(call.params.get("NextToken") or 0)
    end = start + int(call.params.get("MaxResults") or 1000)
    items = "".join(
        "<item>"
        + elements(
            instanceType=quote.type,
            productDescription=product,
            spotPrice=f"{quote.price + LICENCES[product]:.6f}",
            timestamp=timestamp(quote.since),
            availabilityZone=quote.zone,
        )
        + "</item>"
        for quote, product in quotes[start:end]
    )
    token = str(end) if end < len(quotes) else ""
    inner = f"<spotPriceHistorySet>{items}</spotPriceHistorySet>{elements(nextToken=token)}"
    return answer_xml(call.action, inner)


def _in_period(history: Iterable[Quote], params: Mapping[str, str]) -> Iterator[Quote]:
    """Yield the prices of ``history`` (the newest first) that a call asks for."""
    began, ended = params.get("StartTime", ""), params.get("EndTime")
    newer = None
    for quote in history:
        since = timestamp(quote.since)
        if since == newer or (ended is not None and since > ended):
            continue
        # Only with an ``EndTime`` does EC2 include the price that was in force at ``StartTime``.
        if since < began and ended is None:
            return
        yield quote
        if since <= began:
            return
        newer = since


def statuses_xml(cloud: EmulatedCloud, call: Ec2Call) -> bytes:
    """Return the machines with scheduled events of the requested codes, in one page."""
    codes = call.filters().get("event.code")
    items = "".join(
        f"<item>{elements(instanceId=id_)}<eventsSet><item>"
        + elements(
            code=event.code,
            description=event.description,
            notBefore=timestamp(event.not_before),
        )
        + "</item></eventsSet></item>"
        for id_, event in cloud.events.items()
        if codes is None or event.code in codes
    )
    return answer_xml(call.action, f"<instanceStatusSet>{items}</instanceStatusSet>")


def spot_requests_xml(cloud: EmulatedCloud, call: Ec2Call) -> bytes:
    """Return the spot requests of the spot machines, in one page."""
    filters = call.filters()
    ids = call.listed("SpotInstanceRequestId")
    items = "".join(
        _request_xml(machine)
        for machine in cloud.spot_machines()
        if (not ids or machine.spot_request in ids) and _allowed(filters, _values(machine))
    )
    return answer_xml(call.action, f"<spotInstanceRequestSet>{items}</spotInstanceRequestSet>")


def _request_xml(machine: EmulatedInstance) -> str:
    state, code = _state(machine)
    since = machine.interruption.announced if machine.interruption else machine.launched
    return (
        "<item>"
        + elements(
            spotInstanceRequestId=machine.spot_request,
            type="one-time",
            state=state,
            instanceId=machine.id,
            createTime=timestamp(machine.launched),
            launchedAvailabilityZone=machine.target.zone,
        )
        + f"<status>{elements(code=code, updateTime=timestamp(since), message=code)}</status>"
        + tag_set(machine.spot_tags or {})
        + "</item>"
    )


def _state(machine: EmulatedInstance) -> tuple[str, str]:
    """Return the state and status code, by "Spot request status" of the EC2 user guide."""
    if machine.alive:
        marked = machine.interruption is not None
        return "active", "marked-for-termination" if marked else "fulfilled"
    if machine.interruption:
        return "closed", "instance-terminated-no-capacity"
    return "closed", "instance-terminated-by-user"


def _values(machine: EmulatedInstance) -> dict[str, str]:
    state, code = _state(machine)
    values = {"state": state, "status-code": code, "instance-id": machine.id}
    return values | {f"tag:{key}": value for key, value in (machine.spot_tags or {}).items()}


def _allowed(filters: Mapping[str, Sequence[str]], values: Mapping[str, str]) -> bool:
    # Skip the product filter, because quotes have no product.
    conditions = ((k, v) for k, v in filters.items() if k != "product-description")
    return all(values.get(name) in allowed for name, allowed in conditions)
