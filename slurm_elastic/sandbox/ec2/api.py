"""EC2's query protocol, for the calls that the front answers itself: requests and answers."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from urllib.parse import parse_qsl, urlencode
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from msgspec import Struct

from slurm_elastic.sandbox.ec2.faults import Ec2Error, FaultTarget

NAMESPACE = "http://ec2.amazonaws.com/doc/2016-11-15/"
_CREDENTIAL = re.compile(r"Credential=([^/,\s]*)/[^/]*/([^/]*)/")

# moto writes the namespace without the slash.
ElementTree.register_namespace("", NAMESPACE.rstrip("/"))


class Ec2Call(Struct, frozen=True, kw_only=True):
    """A request. ``params``: the fields of the form; ``key``: the access key id."""

    action: str
    params: dict[str, str]
    key: str = ""
    region: str = "us-east-1"

    @property
    def target(self) -> FaultTarget:
        """The kind of machine that the call is about, for faults and stock."""
        p = self.params
        launch = self.action == "RunInstances"
        spot = p.get("InstanceMarketOptions.MarketType") == "spot"
        return FaultTarget(
            action=self.action,
            market=("spot" if spot else "on-demand") if launch else "",
            type=p.get("InstanceType", "") if launch else "",
            zone=p.get("Placement.AvailabilityZone", "") if launch else "",
        )

    def listed(self, name: str) -> list[str]:
        """Return the values of ``name.1``, ``name.2`` and so on."""
        values = (self.params.get(f"{name}.{n}") for n in range(1, len(self.params) + 1))
        return [value for value in values if value is not None]

    def filters(self) -> dict[str, list[str]]:
        """Return the ``Filter.N`` fields: allowed values by name."""
        out: dict[str, list[str]] = {}
        for n in range(1, len(self.params) + 1):
            name = self.params.get(f"Filter.{n}.Name")
            if name is None:
                break
            out[name] = self.listed(f"Filter.{n}.Value")
        return out

    def spot_tags(self) -> dict[str, str]:
        """Return the tags that a launch gives its spot requests."""
        return self._specified("spot-instances-request")

    def placement_tags(self) -> dict[str, str]:
        """Return the tags that a call gives its placement group."""
        return self._specified("placement-group")

    def import_tags(self) -> dict[str, str]:
        """Return the tags that an import gives its task."""
        return self._specified("import-snapshot-task")

    def _specified(self, kind: str) -> dict[str, str]:
        for n in range(1, 10):
            prefix = f"TagSpecification.{n}"
            if self.params.get(f"{prefix}.ResourceType") == kind:
                return self._tags(prefix)
        return {}

    def _tags(self, prefix: str) -> dict[str, str]:
        tags: dict[str, str] = {}
        for n in range(1, 51):
            key = self.params.get(f"{prefix}.Tag.{n}.Key")
            if key is not None:
                tags[key] = self.params.get(f"{prefix}.Tag.{n}.Value", "")
        return tags

    def body(self, changes: Mapping[str, str]) -> bytes:
        """Return the form with these fields changed, encoded."""
        return urlencode({**self.params, **changes}).encode()


def parse(body: bytes, authorization: str) -> Ec2Call:
    """Parse a signed form request."""
    params = dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))
    signed = _CREDENTIAL.search(authorization)
    key, region = (signed[1], signed[2]) if signed else ("", "us-east-1")
    return Ec2Call(action=params.get("Action", ""), params=params, key=key, region=region)


def error_xml(error: Ec2Error) -> bytes:
    """Return an error answer."""
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n<Response><Errors><Error>'
        f"<Code>{escape(error.code)}</Code><Message>{escape(error.message)}</Message>"
        f"</Error></Errors><RequestID>{uuid.uuid4()}</RequestID></Response>"
    ).encode()


def s3_error_xml(error: Ec2Error) -> bytes:
    """Return an error answer of S3 (Amazon S3 API Reference, Error responses)."""
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n<Error>'
        f"<Code>{escape(error.code)}</Code><Message>{escape(error.message)}</Message></Error>"
    ).encode()


def answer_xml(action: str, inner: str) -> bytes:
    """Return an answer to ``action`` with these elements."""
    return (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<{action}Response xmlns="{NAMESPACE}">'
        f"<requestId>{uuid.uuid4()}</requestId>{inner}</{action}Response>"
    ).encode()


def elements(**values: object) -> str:
    """Return XML elements with escaped text. Values that are None are left out."""
    return "".join(
        f"<{name}>{escape(str(value))}</{name}>"
        for name, value in values.items()
        if value is not None
    )


def tag_set(tags: Mapping[str, str]) -> str:
    """Return a ``tagSet`` element."""
    items = "".join(f"<item>{elements(key=k, value=v)}</item>" for k, v in tags.items())
    return f"<tagSet>{items}</tagSet>"


def timestamp(when: float) -> str:
    """Return a Unix time in EC2's format."""
    return datetime.fromtimestamp(when, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")


def without_instances(body: bytes, hidden: Iterable[str]) -> bytes:
    """Return a DescribeInstances answer without these machines."""
    hidden_ids = set(hidden)
    root = ElementTree.fromstring(body)  # noqa: S314 - our own emulator's answer
    for reservations in root.findall(".//" + _tag("reservationSet")):
        for reservation in list(reservations):
            instances = reservation.find(_tag("instancesSet"))
            if instances is None:
                continue
            for item in [i for i in instances if i.findtext(_tag("instanceId")) in hidden_ids]:
                instances.remove(item)
            if not len(instances):
                reservations.remove(reservation)
    return _to_bytes(root)


def with_states(body: bytes, states: Mapping[str, tuple[int, str]]) -> bytes:
    """Return a repeated RunInstances answer with the present states (code, name)."""
    root = ElementTree.fromstring(body)  # noqa: S314 - our own emulator's answer
    for item in root.findall(".//" + _tag("item")):
        state = item.find(_tag("instanceState"))
        now = states.get(item.findtext(_tag("instanceId"), ""))
        if state is None or now is None:
            continue
        for child, value in zip(("code", "name"), now, strict=True):
            element = state.find(_tag(child))
            if element is not None:
                element.text = str(value)
    return _to_bytes(root)


def _tag(name: str) -> str:
    return "{*}" + name


def _to_bytes(root: ElementTree.Element) -> bytes:
    text: bytes = ElementTree.tostring(root, encoding="UTF-8", xml_declaration=True)
    return text
