"""Growth policies of other packages are asked here: they may raise and answer anything. Pure."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from slurm_elastic.base.errors import GrowthError, bounded, of_stranger
from slurm_elastic.policies.growth.capacity import (
    AnyGrowth,
    Demand,
    Growth,
    OwnGrowth,
    SteadyStream,
)

T = TypeVar("T")


def grown(policy: AnyGrowth, demand: Demand) -> Growth | None:
    """The policy's growth; GrowthError where one of another package has none that makes sense."""
    if not isinstance(policy, OwnGrowth):
        return policy.grow(demand)
    found: object = _answer(policy, lambda: policy.grow(demand))
    if found is None:
        return None
    if not (isinstance(found, Growth) and _counts(found[0]) and isinstance(found[1], str)):
        raise _nonsense(policy, found, "None or Growth(machines, reason), machines 0 or more")
    return Growth(found.machines, bounded(str(found.reason))) if found.machines else None


def grown_by(policy: AnyGrowth) -> Callable[[Demand], Growth | None]:
    """The same, for whoever asks one policy often: nothing is in between where it is our own."""
    return partial(grown, policy) if isinstance(policy, OwnGrowth) else policy.grow


def surplus(policy: SteadyStream | OwnGrowth, demand: Demand) -> int:
    """The machines to flag, as above."""
    if not isinstance(policy, OwnGrowth):
        return policy.surplus(demand)
    found: object = _answer(policy, lambda: policy.surplus(demand))
    if not _counts(found):
        raise _nonsense(policy, found, "a whole number of machines, 0 or more")
    return int(found)  # type: ignore[call-overload, no-any-return]


def _counts(number: object) -> bool:
    return type(number) is int and number >= 0


def _answer(policy: OwnGrowth, ask: Callable[[], T]) -> T:
    try:
        return ask()
    except (GrowthError, KeyboardInterrupt):
        raise
    # SystemExit, too: a policy of another package must not end the thread that asks it.
    except BaseException as error:
        raise GrowthError(f"growth policy {_name(policy)} fails: {of_stranger(error)}") from error


def _nonsense(policy: OwnGrowth, found: object, expected: str) -> GrowthError:
    return GrowthError(
        f"growth policy {_name(policy)} fails: found {of_stranger(found)}, expected {expected}"
    )


def _name(policy: OwnGrowth) -> str:
    return str(policy.__struct_config__.tag)
