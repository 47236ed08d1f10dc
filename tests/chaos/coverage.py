"""Which features, faults and orders met in runs."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec
from msgspec import Struct

from slurm_elastic.config import Config

OF_THE_RUN = frozenset(
    ("Cluster.uuid", "Config.cluster", "Config.state_dir", "HaSettings.directory")
)
"""Keys that each site has, or that the run itself sets."""


def keys_set(config: Config) -> frozenset[str]:
    """The keys, as SECTION.KEY, that have another value than their default."""
    return frozenset(_keys_set(config)) - OF_THE_RUN


def _keys_set(value: object) -> Iterator[str]:
    if isinstance(value, Struct):
        of = type(value).__name__
        for field in msgspec.structs.fields(value):
            here = getattr(value, field.name)
            if not field.required and here != _default(field):
                yield f"{of}.{field.encode_name}"
            yield from _keys_set(here)
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _keys_set(inner)
    elif isinstance(value, tuple):
        for inner in value:
            yield from _keys_set(inner)


def _default(field: msgspec.structs.FieldInfo) -> object:
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return field.default


ORDERS = ("job: ", "orders: ", "settings: ")
"""How the kinds of events begin that a person orders. The others are faults."""


class Coverage:
    """How often each pair of a feature with another, a fault or an order occurred in a run."""

    def __init__(self) -> None:
        self.features: Counter[str] = Counter()
        self.events: Counter[str] = Counter()
        self.pairs: Counter[tuple[str, str]] = Counter()

    def add(self, features: Iterable[str], struck: Mapping[str, int]) -> None:
        """One run's."""
        names, events = sorted(features), sorted(kind for kind, n in struck.items() if n)
        self.features.update(names)
        self.events.update(events)
        self.pairs.update(itertools.combinations(names, 2))
        self.pairs.update(itertools.product(names, events))

    def lines(
        self, drawable: Iterable[str], may_meet: Callable[[str, str], bool] = lambda *_: True
    ) -> Iterator[str]:
        """What met how often, and what never did. ``drawable``: the keys that drawings may set.
        ``may_meet``: whether any file can have both keys; pairs of which none can do not count.
        """
        features = sorted({*self.features, *drawable})
        orders = [kind for kind in self.events if kind.startswith(ORDERS)]
        faults = [kind for kind in self.events if not kind.startswith(ORDERS)]
        yield from (f"{n:8d}  {' + '.join(pair)}" for pair, n in sorted(self.pairs.items()))
        pairs_of_keys = itertools.combinations(features, 2)
        kinds: dict[str, list[tuple[str, str]]] = {
            "feature": [p for p in pairs_of_keys if p in self.pairs or may_meet(*p)],
            "fault": list(itertools.product(features, sorted(faults))),
            "order": list(itertools.product(features, sorted(orders))),
        }
        yield from self._never_met([pair for pairs in kinds.values() for pair in pairs])
        for kind, pairs in kinds.items():
            met = sum(pair in self.pairs for pair in pairs)
            share = 100 * met / max(len(pairs), 1)
            yield f"(feature, {kind}): {met} of {len(pairs)} pairs met, {share:.1f} %"
        if never := [name for name in features if not self.features[name]]:
            yield f"keys that no run had: {', '.join(never)}"

    def _never_met(self, pairs: Iterable[tuple[str, str]]) -> Iterator[str]:
        """The pairs of what occurred; a key that no run had has no line of its own here."""
        missing: dict[str, list[str]] = {}
        for first, second in pairs:
            occurred = self.features[first] and (self.features[second] or self.events[second])
            if occurred and (first, second) not in self.pairs:
                missing.setdefault(first, []).append(second)
        for first, others in missing.items():
            yield f"never met: {first} + {', '.join(others)}"
