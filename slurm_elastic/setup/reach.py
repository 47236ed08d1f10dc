"""The clouds that this host can reach, by each kind's own way of looking."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.config.cloud_kinds import CloudTable
from slurm_elastic.config.found import Found, SearchPlace
from slurm_elastic.model.cluster import Location


def look(kinds: CloudTable, place: SearchPlace) -> tuple[Found, ...]:
    """All kinds, whatever one of them raises; names once, on-premises first."""
    found = [one for name in kinds.names() for one in _of_kind(kinds, name, place)]
    found.sort(key=lambda one: (one.location is Location.PUBLIC, not one.usable))
    return tuple(_named_once(found))


def not_found(kinds: CloudTable, found: Iterable[Found]) -> list[str]:
    """Kinds of clouds, others' packages' ones too, that only an administrator can tell of."""
    seen = {one.provider for one in found}
    return [name for name in kinds.names() if name not in {*seen, "fake"}]


def _of_kind(kinds: CloudTable, name: str, place: SearchPlace) -> Iterator[Found]:
    try:
        finder = kinds.kind(name).found
        yield from finder(place) if finder is not None else ()
    except ModuleNotFoundError as error:
        yield _none(name, f"pip install 'slurm-elastic[{name}]' (Python module {error.name})")
    except ConfigError as error:
        yield _none(name, str(error))
    except Exception as error:  # noqa: BLE001 - another cloud's look must go on
        yield _none(name, f"{type(error).__name__}: {error}"[:160])


def _none(name: str, why: str) -> Found:
    return Found(
        name=name, provider=name, location=Location.ON_PREMISES, what=f"provider {name}",
        usable=False, enable=why,
    )  # fmt: skip


def _named_once(found: Iterable[Found]) -> Iterator[Found]:
    seen: set[str] = set()
    for one in found:
        name, n = one.name, 2
        while name in seen:
            name, n = f"{one.name}{n}", n + 1
        seen.add(name)
        yield replace(one, name=name)
