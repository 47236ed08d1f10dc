"""Ends EC2's machines. A machine that cannot be ended does not keep the others alive.

TerminateInstances ends no machine of a call and zone if any machine is protected
(disableApiTermination: OperationNotPermitted), is forbidden to us by an IAM condition
(UnauthorizedOperation), or is unknown (API reference: TerminateInstances).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from slurm_elastic.base.errors import AuthError, InstanceNotFound, ProviderError, TransientError
from slurm_elastic.model.cluster import EndAnswer
from slurm_elastic.providers.aws import client
from slurm_elastic.providers.aws.client import AwsApi
from slurm_elastic.providers.aws.errors import blamed_ids

log = logging.getLogger(__name__)

MAX_REFUSALS = 16
"""After so many refused calls the remaining machines wait for the next time, so that an account
that may end nothing does not try each machine. It is enough to find one machine among a thousand
(PAGE) by halving.
"""
_MAX_REMEMBERED = 1000
_OF_A_MACHINE = "UnauthorizedOperation"
"""The only AuthError that may be about a single machine."""


class AwsTermination:
    """Ends machines in few calls. It remembers the refused ones, to end the others first."""

    def __init__(self, api: AwsApi, cloud: str) -> None:
        self._api = api
        self._cloud = cloud
        self._refused: dict[str, None] = {}  # in the order of their last refusals

    def end(self, ids: Sequence[str]) -> Mapping[str, EndAnswer]:
        """End all machines that EC2 ends, then raise the first refusal. A TransientError, or an
        error of the credentials, is raised at once, because the other machines would meet it too.
        """
        gone_ids: set[str] = set()
        requested = set(ids)
        refused_before = [i for i in self._refused if i in requested]
        never_refused = [i for i in ids if i not in self._refused]
        errors: list[ProviderError] = []
        # Machines that were refused before come last, as they may use up the refusals.
        for remaining in (never_refused, refused_before):
            while remaining:
                count = self._endable()
                self._end(remaining[:count], errors, gone_ids)
                remaining = remaining[count:]
        if errors:
            raise errors[0]
        return {i: EndAnswer.GONE if i in gone_ids else EndAnswer.ENDED for i in ids}

    def _endable(self) -> int:
        """How many machines the next call may contain. A larger call would wait in vain."""
        pace = self._api.pace
        allowed = client.PAGE if pace is None else pace.endable(self._api.max_wait_s)
        return min(max(allowed, 1), client.PAGE)

    def _end(self, ids: Sequence[str], errors: list[ProviderError], gone_ids: set[str]) -> None:
        if not ids or len(errors) >= MAX_REFUSALS:
            return
        try:
            answer = self._api.send("terminate_instances", {"InstanceIds": list(ids)}, len(ids))
        except InstanceNotFound as error:
            missing = blamed_ids(ids, error)
            log.info("already gone cloud=%s ids=%s", self._cloud, ",".join(missing))
            self._forget(missing)
            gone_ids.update(missing)
            self._end_without(ids, missing, errors, gone_ids)
        except TransientError:
            raise
        except ProviderError as error:
            if isinstance(error, AuthError) and error.code != _OF_A_MACHINE:
                raise
            errors.append(error)
            refused = blamed_ids(ids, error)
            self._forget(refused)
            self._refused.update(dict.fromkeys(refused))
            for forgotten in list(self._refused)[:-_MAX_REMEMBERED]:
                del self._refused[forgotten]
            self._end_without(ids, refused, errors, gone_ids)
        else:
            self._forget(ids)
            gone_ids.update(_ended_before(answer))

    def _end_without(
        self,
        ids: Sequence[str],
        at_fault: Sequence[str],
        errors: list[ProviderError],
        gone_ids: set[str],
    ) -> None:
        """End the machines without those at fault. If the error does not name them, try both
        halves.
        """
        if at_fault:
            self._end([i for i in ids if i not in at_fault], errors, gone_ids)
            return
        half = len(ids) // 2
        self._end(ids[:half], errors, gone_ids)
        self._end(ids[half:], errors, gone_ids)

    def _forget(self, ids: Sequence[str]) -> None:
        for instance_id in ids:
            self._refused.pop(instance_id, None)


def _ended_before(answer: Mapping[str, Any]) -> set[str]:
    """The machines that had ended before this call. EC2 still takes the call for about an hour."""
    return {
        str(change["InstanceId"])
        for change in answer.get("TerminatingInstances", ())
        if change.get("PreviousState", {}).get("Name") == "terminated"
    }
