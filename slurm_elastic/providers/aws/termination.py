"""How EC2's machines are ended: one that cannot be ended does not keep the others.

TerminateInstances ends none of a call's machines of a zone when one of them is protected
(disableApiTermination: OperationNotPermitted), is not ours to end by an IAM condition
(UnauthorizedOperation) or is not known (API reference: TerminateInstances).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from slurm_elastic.base.errors import AuthError, InstanceNotFound, ProviderError, TransientError
from slurm_elastic.providers.aws import client
from slurm_elastic.providers.aws.client import Api
from slurm_elastic.providers.aws.errors import named

log = logging.getLogger(__name__)

REFUSALS = 16
"""After so many refused calls the rest waits for the next time: an account that may end nothing is
not asked for each machine. Enough to find one among a thousand (PAGE) by halves.
"""
_MOST_REFUSED = 1000
_OF_A_MACHINE = "UnauthorizedOperation"
"""The only AuthError that may be about a single machine."""


class Ending:
    """Ends machines in few calls; keeps which ones were refused, to ask for the others first."""

    def __init__(self, api: Api, cloud: str) -> None:
        self._api = api
        self._cloud = cloud
        self._refused: dict[str, None] = {}  # in the order of their last refusals

    def end(self, ids: Sequence[str]) -> None:
        """All of them that EC2 ends; then the first refusal is raised. A TransientError, and one of
        the credentials, is raised at once: it would meet the others, too.
        """
        wanted = set(ids)
        before = [i for i in self._refused if i in wanted]
        others = [i for i in ids if i not in self._refused]
        errors: list[ProviderError] = []
        # What was refused before comes last, as it may use up the refusals.
        for left in (others, before):
            while left:
                count = self._endable()
                self._end(left[:count], errors)
                left = left[count:]
        if errors:
            raise errors[0]

    def _endable(self) -> int:
        """How many machines the next call may be about; one too many waits in vain."""
        pace = self._api.pace
        most = client.PAGE if pace is None else pace.endable(self._api.patience)
        return min(max(most, 1), client.PAGE)

    def _end(self, ids: Sequence[str], errors: list[ProviderError]) -> None:
        if not ids or len(errors) >= REFUSALS:
            return
        try:
            self._api.send("terminate_instances", {"InstanceIds": list(ids)}, len(ids))
        except InstanceNotFound as error:
            missing = named(ids, error)
            log.info("already gone cloud=%s ids=%s", self._cloud, ",".join(missing))
            self._forget(missing)
            self._apart(ids, missing, errors)
        except TransientError:
            raise
        except ProviderError as error:
            if isinstance(error, AuthError) and error.code != _OF_A_MACHINE:
                raise
            errors.append(error)
            refused = named(ids, error)
            self._forget(refused)
            self._refused.update(dict.fromkeys(refused))
            for forgotten in list(self._refused)[:-_MOST_REFUSED]:
                del self._refused[forgotten]
            self._apart(ids, refused, errors)
        else:
            self._forget(ids)

    def _apart(self, ids: Sequence[str], bad: Sequence[str], errors: list[ProviderError]) -> None:
        """Without those at fault; where nobody says which they are, by halves."""
        if bad:
            self._end([i for i in ids if i not in bad], errors)
            return
        half = len(ids) // 2
        self._end(ids[:half], errors)
        self._end(ids[half:], errors)

    def _forget(self, ids: Sequence[str]) -> None:
        for instance_id in ids:
            self._refused.pop(instance_id, None)
