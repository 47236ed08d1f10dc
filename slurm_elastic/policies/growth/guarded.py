"""Calls growth policies of other packages, which may raise anything and return anything. Pure."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from slurm_elastic.base.errors import GrowthError, bounded, describe_foreign
from slurm_elastic.policies.growth.capacity import (
    AnyGrowth,
    Demand,
    Growth,
    OwnGrowth,
    SteadyStream,
)

T = TypeVar("T")


def grown(policy: AnyGrowth, demand: Demand) -> Growth | None:
    """Return the policy's growth. Raises GrowthError if a policy of another package fails or
    returns nonsense.
    """
    if not isinstance(policy, OwnGrowth):
        return policy.grow(demand)
    answer: object = _answer(policy, lambda: policy.grow(demand))
    if answer is None:
        return None
    if not (isinstance(answer, Growth) and _counts(answer[0]) and isinstance(answer[1], str)):
        raise _nonsense(policy, answer, "None or Growth(machines, reason), machines 0 or more")
    return Growth(answer.machines, bounded(str(answer.reason))) if answer.machines else None


def grown_by(policy: AnyGrowth) -> Callable[[Demand], Growth | None]:
    """Return ``grown`` for one policy that is called often: our own policies are called
    directly.
    """
    return partial(grown, policy) if isinstance(policy, OwnGrowth) else policy.grow


def surplus(policy: SteadyStream | OwnGrowth, demand: Demand) -> int:
    """Return the machines to flag. Raises GrowthError, as ``grown`` does."""
    if not isinstance(policy, OwnGrowth):
        return policy.surplus(demand)
    answer: object = _answer(policy, lambda: policy.surplus(demand))
    if not _counts(answer):
        raise _nonsense(policy, answer, "a whole number of machines, 0 or more")
    return int(answer)  # type: ignore[call-overload, no-any-return]


def _counts(number: object) -> bool:
    # Not isinstance(): True is an int, and would pass as one machine.
    return type(number) is int and number >= 0


def _answer(policy: OwnGrowth, ask: Callable[[], T]) -> T:
    try:
        return ask()
    except (GrowthError, KeyboardInterrupt):
        raise
    # Deliberately BaseException: a SystemExit from another package must not end the thread that
    # calls its policy.
    except BaseException as error:
        raise GrowthError(
            f"growth policy {_name(policy)} fails: {describe_foreign(error)}"
        ) from error


def _nonsense(policy: OwnGrowth, answer: object, expected: str) -> GrowthError:
    return GrowthError(
        f"growth policy {_name(policy)} fails: found {describe_foreign(answer)},"
        f" expected {expected}"
    )


def _name(policy: OwnGrowth) -> str:
    return str(policy.__struct_config__.tag)
