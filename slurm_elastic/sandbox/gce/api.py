"""The API of the emulated Compute Engine: paths, records, filters, pages. No HTTP."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from slurm_elastic.sandbox.gce.cloud import GceCloud, GceRefusal, Machine, Operation, stamp

ROOT = "https://www.googleapis.com/compute/v1/"
Answer = dict[str, Any]
_TERM = re.compile(r"\(?\s*([\w.-]+)\s*(?:=|eq)\s*\"?([^\")]*)\"?\s*\)?")


class Call(Struct, frozen=True):
    """One request to the API. ``path`` is below the version. ``refused``: the code with which a
    create call fails. ``place``: the zone, region or name in the path.
    """

    path: str
    query: Mapping[str, str]
    body: Any
    now: float
    refused: str = ""
    place: Mapping[str, str] = {}

    @property
    def zone(self) -> str:
        """The zone in the path."""
        return self.place["zone"]

    @property
    def name(self) -> str:
        """The name of the resource in the path."""
        return self.place["name"]


def answer(cloud: GceCloud, verb: str, call: Call) -> Answer:
    """Return the answer to a request. Raises GceRefusal."""
    cloud.advance(call.now)
    for pattern, route_verb, route in _ROUTES:
        match = re.fullmatch(pattern, call.path)
        if match and verb == route_verb:
            place = match.groupdict()
            _require_place(cloud, place)
            routed = replace(call, place=place)
            whole = route(cloud, routed)
            shown: Answer = selected(whole, call.query.get("fields", ""))
            return shown
    raise GceRefusal(404, "notFound", f"no method {verb} {call.path}")


def _require_place(cloud: GceCloud, words: Mapping[str, str]) -> None:
    world = cloud.world
    project, zone, region = words["project"], words.get("zone"), words.get("region")
    if project != world.project:
        raise GceRefusal(404, "notFound", f"The resource 'projects/{project}' was not found")
    if zone is not None and zone not in world.zones:
        text = f"The resource 'projects/{project}/zones/{zone}' was not found"
        raise GceRefusal(404, "notFound", text)
    if region is not None and region != world.region:
        text = f"The resource 'projects/{project}/regions/{region}' was not found"
        raise GceRefusal(404, "notFound", text)


# records


def _url(cloud: GceCloud, path: str) -> str:
    return f"{ROOT}projects/{cloud.world.project}/{path}"


def machine_record(cloud: GceCloud, machine: Machine) -> Answer:
    """Return a machine as lists show it."""
    given, zone = machine.record, _url(cloud, f"zones/{machine.zone}")
    record: Answer = {
        "kind": "compute#instance", "id": str(machine.number), "name": machine.name,
        "status": machine.status, "zone": zone, "selfLink": f"{zone}/instances/{machine.name}",
        "creationTimestamp": stamp(machine.created),
        "machineType": f"{zone}/machineTypes/{given.get('machineType', 'f1-micro')}",
        "networkInterfaces": [{"networkIP": _address(machine.number), "name": "nic0"}],
    }  # fmt: skip
    record |= {k: given[k] for k in ("labels", "metadata", "tags") if k in given}
    record["scheduling"] = {"onHostMaintenance": "MIGRATE"} | given.get("scheduling", {})
    if machine.keeper:
        record["deletionProtection"] = True
    if machine.stopped_at:
        record["lastStopTimestamp"] = stamp(machine.stopped_at)
    if machine.maintenance_at:
        window = {"windowStartTime": stamp(machine.maintenance_at), "type": "SCHEDULED"}
        record["resourceStatus"] = {"upcomingMaintenance": window}
    return record


def _address(number: int) -> str:
    return f"10.128.{number // 250 % 250}.{number % 250 + 1}"


def operation_record(cloud: GceCloud, operation: Operation, now: float) -> Answer:
    """Return an operation as it is now."""
    is_done = now >= operation.done_at
    zone = _url(cloud, f"zones/{operation.zone}")
    record: Answer = {
        "kind": "compute#operation", "name": operation.name, "zone": zone,
        "operationType": operation.type, "status": "DONE" if is_done else "RUNNING",
        "progress": 100 if is_done else 0,
        "selfLink": f"{zone}/operations/{operation.name}",
        "clientOperationId": operation.request, "operationGroupId": operation.group,
        "targetLink": f"{zone}/instances/{operation.target}" if operation.target else zone,
    }  # fmt: skip
    if operation.counts:
        place = {"status": "DONE" if is_done else "CREATING", **operation.counts}
        per_location = {f"zones/{operation.zone}": place}
        record["instancesBulkInsertOperationMetadata"] = {"perLocationStatus": per_location}
    if is_done and operation.errors:
        record["error"] = {"errors": operation.errors}
        record["httpErrorStatusCode"] = 503
    return record


# routes


def _bulk_insert(cloud: GceCloud, call: Call) -> Answer:
    request = call.query.get("requestId", "")
    is_new = all(o.request != request for o in cloud.operations.values()) or not request
    operation = cloud.bulk_insert(call.zone, call.body, request, call.now, call.refused)
    # A fresh operation never shows as done, however quick it is.
    seen_at = min(call.now, operation.done_at - 1.0) if is_new else call.now
    return operation_record(cloud, operation, seen_at)


def _instances(cloud: GceCloud, call: Call) -> Answer:
    if call.zone in cloud.silent_zones:
        return {"kind": "compute#instanceList", "items": [], "warning": _unreachable(call.zone)}
    shown = [
        machine_record(cloud, m)
        for m in cloud.machines.values()
        if m.zone == call.zone and call.now - m.created >= cloud.world.pace.visible_after
    ]
    return _page("compute#instanceList", shown, call.query)


def _unreachable(zone: str) -> Answer:
    return {"code": "UNREACHABLE", "message": f"Zone {zone} did not answer"}


def _instance(cloud: GceCloud, call: Call) -> Answer:
    return machine_record(cloud, cloud.get(call.zone, call.name))


def _acted(verb: str) -> Callable[..., Answer]:
    def act(cloud: GceCloud, call: Call) -> Answer:
        operation: Operation = getattr(cloud, verb)(call.zone, call.name, call.now)
        return operation_record(cloud, operation, call.now)

    return act


def _serial_port(cloud: GceCloud, call: Call) -> Answer:
    cloud.get(call.zone, call.name)
    return {"kind": "compute#serialPortOutput", "contents": f"printed by {call.name}", "next": "0"}


def _operations(cloud: GceCloud, call: Call) -> Answer:
    shown = [
        operation_record(cloud, o, call.now)
        for o in cloud.operations.values()
        if o.zone == call.zone
    ]
    return _page("compute#operationList", shown, call.query)


def _operation(cloud: GceCloud, call: Call) -> Answer:
    if call.name not in cloud.operations:
        raise GceRefusal(404, "notFound", f"The resource 'operations/{call.name}' was not found")
    return operation_record(cloud, cloud.operations[call.name], call.now)


def _type_record(cloud: GceCloud, zone: str, name: str) -> Answer:
    kind = cloud.world.types[name]
    record: Answer = {
        "kind": "compute#machineType", "name": name, "guestCpus": kind.cpus, "zone": zone,
        "memoryMb": kind.memory, "architecture": "X86_64",
    }  # fmt: skip
    if kind.gpus:
        card = {"guestAcceleratorType": "nvidia-l4", "guestAcceleratorCount": kind.gpus}
        record["accelerators"] = [card]
    return record


def _machine_types(cloud: GceCloud, call: Call) -> Answer:
    shown = [_type_record(cloud, call.zone, name) for name in cloud.world.types]
    return _page("compute#machineTypeList", shown, call.query)


def _machine_type(cloud: GceCloud, call: Call) -> Answer:
    if call.name not in cloud.world.types:
        raise GceRefusal(404, "notFound", f"The resource '{call.path}' was not found")
    return _type_record(cloud, call.zone, call.name)


def _region(cloud: GceCloud, call: Call) -> Answer:
    quotas = [
        {"metric": "CPUS", "limit": cloud.world.cpus, "usage": cloud.used_cpus()},
        {"metric": "PREEMPTIBLE_CPUS", "limit": cloud.world.preemptible_cpus, "usage": 0.0},
    ]
    zones = [_url(cloud, f"zones/{zone}") for zone in cloud.world.zones]
    return {
        "kind": "compute#region",
        "name": call.place["region"],
        "zones": zones,
        "quotas": quotas,
    }


def _capacity_history(cloud: GceCloud, call: Call) -> Answer:
    """The spot price of a type in the region: twice of now until yesterday, then of now."""
    properties = call.body.get("instanceProperties", {})
    if properties.get("scheduling", {}).get("provisioningModel") != "SPOT":
        raise GceRefusal(400, "invalid", "The provisioning model must be SPOT")
    name = properties.get("machineType", "")
    kind = cloud.world.types.get(name)
    if kind is None:
        raise GceRefusal(400, "invalid", f"Invalid value for field machineType: '{name}'")
    answer: Answer = {"machineType": name, "location": _url(cloud, f"regions/{cloud.world.region}")}
    if kind.spot_price and "PRICE" in call.body.get("types", ()):
        day = call.now - call.now % 86400
        spans = ((day - 30 * 86400, day, 2 * kind.spot_price), (day, day + 86400, kind.spot_price))
        answer["priceHistory"] = [
            {
                "interval": {"startTime": stamp(start), "endTime": stamp(end)},
                "listPrice": _money(price, kind.currency),
            }
            for start, end, price in spans
        ]
    return answer


def _money(price: float, currency: str) -> Answer:
    units, nanos = divmod(round(price * 10**9), 10**9)
    money: Answer = {"currencyCode": currency}
    # Google leaves out fields that are 0.
    return money | ({"units": str(units)} if units else {}) | ({"nanos": nanos} if nanos else {})


def _subnetwork(cloud: GceCloud, call: Call) -> Answer:
    if call.name not in cloud.world.subnetworks:
        raise GceRefusal(404, "notFound", f"The resource '{call.path}' was not found")
    return {"kind": "compute#subnetwork", "name": call.name, "ipCidrRange": "10.128.0.0/16",
            "privateIpGoogleAccess": True}  # fmt: skip


def _image_record(cloud: GceCloud, image: Any) -> Answer:  # noqa: ANN401 - a GceImage
    return {
        "kind": "compute#image", "id": image.id, "name": image.name, "family": image.family,
        "status": image.status, "creationTimestamp": image.created, "labels": image.labels,
        "selfLink": _url(cloud, f"global/images/{image.name}"),
    }  # fmt: skip


def _image(cloud: GceCloud, call: Call) -> Answer:
    return _image_record(cloud, cloud.image(call.path))


def _images(cloud: GceCloud, call: Call) -> Answer:
    shown = [_image_record(cloud, image) for image in cloud.world.images]
    return _page("compute#imageList", shown, call.query)


_P = r"projects/(?P<project>[^/]+)"
_Z = rf"{_P}/zones/(?P<zone>[^/]+)"
_ROUTES: tuple[tuple[str, str, Callable[..., Answer]], ...] = (
    (rf"{_Z}/instances/bulkInsert", "POST", _bulk_insert),
    (rf"{_Z}/instances", "GET", _instances),
    (rf"{_Z}/instances/(?P<name>[^/]+)", "GET", _instance),
    (rf"{_Z}/instances/(?P<name>[^/]+)", "DELETE", _acted("delete")),
    (rf"{_Z}/instances/(?P<name>[^/]+)/stop", "POST", _acted("stop")),
    (rf"{_Z}/instances/(?P<name>[^/]+)/start", "POST", _acted("start")),
    (rf"{_Z}/instances/(?P<name>[^/]+)/serialPort", "GET", _serial_port),
    (rf"{_Z}/operations", "GET", _operations),
    (rf"{_Z}/operations/(?P<name>[^/]+)", "GET", _operation),
    (rf"{_Z}/machineTypes", "GET", _machine_types),
    (rf"{_Z}/machineTypes/(?P<name>[^/]+)", "GET", _machine_type),
    (rf"{_P}/regions/(?P<region>[^/]+)", "GET", _region),
    (rf"{_P}/regions/(?P<region>[^/]+)/advice/capacityHistory", "POST", _capacity_history),
    (rf"{_P}/regions/(?P<region>[^/]+)/subnetworks/(?P<name>[^/]+)", "GET", _subnetwork),
    (rf"{_P}/global/images", "GET", _images),
    (rf"{_P}/global/images/(?P<name>[^/]+)", "GET", _image),
    (rf"{_P}/global/images/family/(?P<name>[^/]+)", "GET", _image),
)


# lists


def _page(kind: str, records: Iterable[Answer], query: Mapping[str, str]) -> Answer:
    """Return the page of a list that a request asks for."""
    terms = _TERM.findall(query.get("filter", ""))
    fitting = [r for r in records if all(_value(r, key) == text for key, text in terms)]
    start, most = int(query.get("pageToken") or 0), int(query.get("maxResults") or 500)
    if not 0 < most <= 500:
        raise GceRefusal(400, "invalid", "maxResults must be from 0 to 500")
    page: Answer = {"kind": kind, "items": fitting[start : start + most]}
    if start + most < len(fitting):
        page["nextPageToken"] = str(start + most)
    return page


def _value(record: Any, key: str) -> str:  # noqa: ANN401 - a JSON value
    name, _, rest = key.partition(".")
    value = record.get(name) if isinstance(record, dict) else None
    return _value(value, rest) if rest else str(value)


def selected(value: Any, fields: str) -> Any:  # noqa: ANN401 - a JSON value
    """Return the parts of an answer that the parameter ``fields`` names, such as ``a,b(c,d/e)``."""
    if not fields:
        return value
    if isinstance(value, list):
        return [selected(item, fields) for item in value]
    if not isinstance(value, dict):
        return value
    wanted = dict(_split(fields))
    return {key: selected(item, wanted[key]) for key, item in value.items() if key in wanted}


def _split(fields: str) -> Iterable[tuple[str, str]]:
    """Yield the names of a list of fields, each with the fields below it."""
    depth, start = 0, 0
    for place, char in enumerate(f"{fields},"):
        depth += {"(": 1, ")": -1}.get(char, 0)
        if char == "," and not depth:
            part, start = fields[start:place], place + 1
            match = re.fullmatch(r"([^(/]+)(?:\((.*)\)|/(.*))?", part)
            if match is None:
                raise GceRefusal(400, "invalidParameter", f"Invalid field selection {part}")
            yield match[1], match[2] or match[3] or ""
