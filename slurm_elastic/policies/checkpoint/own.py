"""Checkpoint policies of other packages, which may raise anything and return anything. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, TypeVar

from slurm_elastic.base.errors import SavePolicyError, bounded, describe_foreign
from slurm_elastic.model.causes.saves import OwnReason
from slurm_elastic.policies.actions import SaveJob
from slurm_elastic.policies.checkpoint.situation import Situation
from slurm_elastic.policies.policy_text import Policy

T = TypeVar("T")


class OwnCheckpoint(Policy, frozen=True, tag="own"):
    """The base class for a checkpoint policy of another package; its ``tag`` is the policy's name.

    Its fields are the parameters in the text (``nightly(hour=3)``): numbers and texts, each with a
    default. ``watches_prices``: a new price may change the answer, so the service reads prices.

    Both methods must be pure and quick: no clock but ``situation.now`` (Unix s), no file, no random
    number. If one raises, or returns nonsense, the default policy decides instead, and the error is
    reported (SavePolicyError).
    """

    watches_prices: ClassVar[bool] = False

    def save_now(self, situation: Situation) -> str | None:
        """Return why the job should be saved now, as text; None: it should not. The service asks
        at each tick, for each machine of a job.
        """
        raise NotImplementedError

    def look_again(self, situation: Situation) -> float:
        """Return the earliest time (Unix s) at which the answer may change without a new price or
        notice. Only the simulator asks, to skip time.
        """
        return situation.now

    def decide(self, situation: Situation) -> SaveJob | None:
        """Return the save that the policy wants. Raises SavePolicyError."""
        reason: object = _answer(self, lambda: self.save_now(situation))
        if reason is None:
            return None
        if not isinstance(reason, str) or not reason.strip():
            raise _nonsense(self, reason, "None, or the reason as text")
        return SaveJob(job=situation.job, cause=OwnReason(text=bounded(reason)))

    def wake(self, situation: Situation) -> float:
        """Return when to ask again. Raises SavePolicyError."""
        when: object = _answer(self, lambda: self.look_again(situation))
        # Not isinstance() for bool: True is an int. NaN is not equal to itself.
        if type(when) not in (int, float) or when != when:
            raise _nonsense(self, when, "a time in Unix seconds")
        return float(when)  # type: ignore[arg-type]


def _answer(policy: OwnCheckpoint, ask: Callable[[], T]) -> T:
    try:
        return ask()
    except (SavePolicyError, KeyboardInterrupt):
        raise
    # Deliberately BaseException: a SystemExit from another package must not end the service.
    except BaseException as error:
        raise SavePolicyError(
            f"checkpoint policy {_name(policy)} fails: {describe_foreign(error)}"
        ) from error


def _nonsense(policy: OwnCheckpoint, answer: object, expected: str) -> SavePolicyError:
    return SavePolicyError(
        f"checkpoint policy {_name(policy)} fails: found {describe_foreign(answer)},"
        f" expected {expected}"
    )


def _name(policy: OwnCheckpoint) -> str:
    return str(policy.__struct_config__.tag)
