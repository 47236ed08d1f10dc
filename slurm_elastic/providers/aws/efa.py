"""How many network interfaces for EFA an instance type has (DescribeInstanceTypes)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from slurm_elastic.base.errors import AuthError, ProviderError
from slurm_elastic.base.ttl_cache import TtlCache
from slurm_elastic.providers.aws.client import AwsApi
from slurm_elastic.providers.aws.errors import UNAUTHORIZED

PAGE = 100
_MAX_VALUES = 200
"""EC2 accepts so many values of a filter."""


class EfaTypes:
    """The answers of one cloud, each asked for once: a type never changes. Thread-safe."""

    def __init__(self, api: AwsApi, monotonic: Callable[[], float]) -> None:
        self._api = api
        self._cache = TtlCache[tuple[str, ...], Mapping[str, int]](monotonic)

    def interfaces(self, types: Iterable[str]) -> Mapping[str, int]:
        """The number of EFA interfaces by type, without types that lack EFA. ProviderError if EC2
        does not answer.
        """
        names = tuple(sorted(types))
        return self._cache.get(names, lambda: self._read(names), ttl_s=math.inf)

    def _read(self, names: tuple[str, ...]) -> Mapping[str, int]:
        counts: dict[str, int] = {}
        for start in range(0, len(names), _MAX_VALUES):
            # A filter, because EC2 refuses a list of types that contains an unknown type.
            asked_names = list(names[start : start + _MAX_VALUES])
            request = {
                "Filters": [{"Name": "instance-type", "Values": asked_names}],
                "MaxResults": PAGE,
            }
            for record in self._types(request):
                if count := efa_interfaces(record):
                    counts[str(record["InstanceType"])] = count
        return counts

    def _types(self, request: Mapping[str, object]) -> Sequence[Mapping[str, Any]]:
        try:
            return list(self._api.pages("describe_instance_types", "InstanceTypes", request))
        except AuthError as error:
            if error.code != UNAUTHORIZED:
                raise
            # The credentials are good, so pools without EFA must not lose the whole cloud.
            raise ProviderError(error.cloud, error.code, error.message) from error

    def of(self, cloud: str, name: str, types: Iterable[str]) -> int:
        """The number for the type ``name`` of ``types``. ProviderError if it has no EFA."""
        count = self.interfaces(types).get(name, 0)
        if not count:
            raise ProviderError(cloud, "NoEfa", f"instance type {name} has no EFA")
        return count


def efa_interfaces(record: Mapping[str, Any]) -> int:
    """The number in EC2's record of a type: one interface on a network card."""
    network = record.get("NetworkInfo", {})
    if not network.get("EfaSupported"):
        return 0
    interfaces = int(network.get("EfaInfo", {}).get("MaximumEfaInterfaces", 1))
    return min(interfaces, int(network.get("MaximumNetworkCards", interfaces)))
