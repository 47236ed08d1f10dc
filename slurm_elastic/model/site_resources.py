"""The resources that a site needs in a cloud before machines can start there: a network, a security
group, a key pair, a role. ``init --make`` creates them. Pure.

A property may contain references to resources whose ids are not known yet: ``@{KEY.ATTRIBUTE}``,
such as ``@{vpc.id}``. A resource that was found has its properties in the same form, so that both
can be compared. ``init --make --dry-run --json`` prints them in this form.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

MADE_BY = "slurm-elastic init"
DIGEST_LENGTH = 16
MAX_NAME = 64
ACCOUNT = "@{account.id}"
"""The reference to the number of the account, which no resource has."""
_REFERENCE = re.compile(r"@\{([a-z0-9+.-]+)\.([a-z_]+)\}")

Properties = Mapping[str, Any]


class SiteResource(Struct, frozen=True, kw_only=True):
    """A resource that the site needs. ``key`` is unique among the resources of a cloud.

    ``part_of``: the key of the resource to which this is only a setting, such as a rule of a
    security group. It is ours if its parent is. ``goes_along``: it ends with its parent.
    ``named``: the site has this resource already, under this name in its configuration.
    """

    key: str
    kind: str
    name: str = ""
    purpose: str
    properties: Properties = {}
    part_of: str = ""
    goes_along: bool = False
    named: str = ""

    @property
    def digest(self) -> str:
        """The digest that the cloud keeps beside the resource."""
        return digest_of(self.kind, self.properties)

    @property
    def needed_keys(self) -> frozenset[str]:
        """The keys of the resources that must exist before it."""
        return keys_in(self.properties)


class FoundResource(Struct, frozen=True, kw_only=True):
    """A resource in the cloud. ``made_digest``: the digest that was kept when we made it, "" if
    this kind cannot keep it. ``strangers``: content that we did not make. ``users``: the machines
    that use it. ``attributes``: the values for references to it.
    """

    key: str
    kind: str
    id: str
    is_ours: bool
    properties: Properties = {}
    made_digest: str = ""
    strangers: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    attributes: Mapping[str, str] = {}
    part_of: str = ""
    goes_along: bool = False

    @property
    def digest(self) -> str:
        """The digest of its present properties."""
        return digest_of(self.kind, self.properties)

    @property
    def needed_keys(self) -> frozenset[str]:
        """The keys of the resources that cannot be removed before it."""
        return keys_in(self.properties) | ({self.part_of} if self.part_of else frozenset())

    @property
    def change(self) -> str:
        """How it differs from the resource that we created; "" if it does not."""
        if self.made_digest and self.made_digest != self.digest:
            return "init gave it other settings"
        return f"it has {', '.join(self.strangers)}" if self.strangers else ""


def site_name(cluster: str, cloud: str) -> str:
    """The name of all resources that a cloud's site gets. IAM's names have 64 characters."""
    return f"slurm-elastic-{cluster}-{cloud}"[:MAX_NAME]


def digest_of(kind: str, properties: Properties) -> str:
    """The digest of a resource's properties, the same for any order of their keys."""
    text = json.dumps([kind, properties], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_LENGTH]


def keys_in(value: object) -> frozenset[str]:
    """The keys of all resources to which a value refers."""
    keys = {match[1] for match in _REFERENCE.finditer(json.dumps(value))}
    return frozenset(keys - {"account"})


def resolved(value: Any, attributes: Mapping[str, Mapping[str, str]]) -> Any:  # noqa: ANN401
    """The value with the attributes of resources (by key) in place of references."""
    return _replaced(value, lambda match: attributes[match[1]][match[2]])


def _replaced(value: Any, replacement: Callable[[re.Match[str]], str]) -> Any:  # noqa: ANN401
    if isinstance(value, str):
        return _REFERENCE.sub(replacement, value)
    if isinstance(value, Mapping):
        return {
            _replaced(key, replacement): _replaced(item, replacement) for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_replaced(item, replacement) for item in value]
    return value


def with_references(value: Any, references: Mapping[str, str]) -> Any:  # noqa: ANN401
    """The value with references in place of ids. ``references``: the reference by id."""
    if isinstance(value, str):
        for id_, reference in references.items():
            value = value.replace(id_, reference)
        return value
    if isinstance(value, Mapping):
        return {
            with_references(k, references): with_references(v, references) for k, v in value.items()
        }
    if isinstance(value, list | tuple):
        return [with_references(item, references) for item in value]
    return value


def first_of_each(ids_by_key: Mapping[str, Sequence[str]], texts: Iterable[str]) -> dict[str, str]:
    """The key of each id. If an answer was lost, several resources may have the same key. Then the
    resource that others refer to keeps it, and the other ones get ``KEY+2`` and so on.
    """
    whole = "\n".join(texts)
    key_of: dict[str, str] = {}
    for key, ids in ids_by_key.items():
        ranked = sorted(ids, key=lambda id_: (-whole.count(id_), id_))
        for number, id_ in enumerate(ranked, 1):
            key_of[id_] = key if number == 1 else f"{key}+{number}"
    return key_of


def is_duplicate(key: str) -> bool:
    """Whether a second resource has this key, from a call whose answer was lost."""
    return "+" in key
