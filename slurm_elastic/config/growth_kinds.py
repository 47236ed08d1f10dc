"""The growth policies that a configuration may name: ours, and those of other packages. These offer
them by an entry point of the group ``slurm_elastic.growth``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

import msgspec
from msgspec import Struct

from slurm_elastic.base import outside
from slurm_elastic.base.errors import ConfigError, GrowthError, describe_foreign
from slurm_elastic.policies.growth.capacity import (
    GROWTH,
    AnyGrowth,
    Demand,
    OwnGrowth,
    parse_growth,
)

GROUP = "slurm_elastic.growth"
API = 1
"""The version of the interface for policies. It grows when a change of OwnGrowth, Demand or Growth
breaks policies of other packages.
"""


class GrowthKind(Struct, frozen=True, kw_only=True):
    """A growth policy of another package."""

    policy: type[OwnGrowth]
    api: int = API

    @property
    def name(self) -> str:
        """The word in ``growth: WORD``."""
        return str(self.policy.__struct_config__.tag)


class _Unusable(OwnGrowth, frozen=True, tag="unusable"):
    """Replaces a policy that cannot be used, so that a service can continue without it."""

    text: str = ""
    why: str = ""

    def grow(self, demand: Demand) -> None:  # noqa: ARG002
        raise GrowthError(f"growth policy {self.text!r}: {self.why}")


class _Makers(Mapping[str, Callable[..., Any]]):
    """The function that makes a policy, by name. A look-up may import another package."""

    def __getitem__(self, name: str) -> Callable[..., Any]:
        return table().kind(name).policy if name in table().other_names else GROWTH[name]

    def __iter__(self) -> Iterator[str]:
        return iter(table().names())

    def __len__(self) -> int:
        return len(table().names())


@cache
def table() -> outside.Kinds[GrowthKind]:
    """The growth policies of this installation."""
    own_places = {name: f"{kind.__module__}:{kind.__name__}" for name, kind in GROWTH.items()}
    return outside.Kinds(GrowthKind, API, "growth policies", own_places, outside.installed(GROUP))


def checked_growth(text: str) -> AnyGrowth:
    """The policy of a text such as ``bursts(waste=180)``. ValueError with one sentence if the text
    is no policy, or if the policy cannot be used.
    """
    try:
        policy = parse_growth(text, _Makers())
        _check_form(policy)
        hash(policy)
        msgspec.to_builtins(policy)  # the journal stores it in this form
        _check_period(policy.period)
    except ConfigError as error:
        raise ValueError(f"{text.partition('(')[0]!r}, {error}") from None
    except ValueError:  # its text is a sentence already
        raise
    except (Exception, SystemExit) as error:  # another package's code may raise anything
        raise ValueError(f"it cannot be made: {describe_foreign(error)}") from error
    return policy


def _check_form(policy: object) -> None:
    if type(policy) not in GROWTH.values() and not isinstance(policy, OwnGrowth):
        name = type(policy).__name__
        raise ValueError(f"{name} is no OwnGrowth")


def _check_period(period: object) -> None:
    if period is not None and (type(period) is not int or period <= 0):
        raise ValueError(
            f"period is {describe_foreign(period)}, expected whole seconds over 0, or None"
        )


def growth_of(text: str) -> AnyGrowth:
    """The same for a file that was checked. If another package's policy can no longer be used, the
    result is a policy that fails whenever it is asked, so that the service continues.
    """
    try:
        return checked_growth(text)
    except ValueError as error:
        name = text.partition("(")[0].strip()
        if name not in table().other_names:
            raise
        return parse_growth(text) if name in GROWTH else _Unusable(text=text, why=str(error))
