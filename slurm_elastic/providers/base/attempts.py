"""Idempotency tokens of create calls. A cloud answers a repeated token with its first answer. So a
lost answer is found by the same token, but a call that the cloud has refused needs another token:
the old one would bring the same refusal for ever.
"""

from __future__ import annotations

import threading
import uuid
from collections import OrderedDict
from typing import ClassVar

from slurm_elastic.base.guards import Guarded, GuardedBy

KEPT_CALLS = 1000
"""Calls whose attempts are remembered. If older ones are forgotten, the next attempt brings an old
refusal once more, and then goes on.
"""

Call = tuple[str, int]
"""The generation of a launch, and the number of the call within it."""


class Attempts:
    """The number of refused attempts of each create call. Thread-safe."""

    guarded_by: ClassVar[GuardedBy] = {"_lock": Guarded("_attempts")}

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._attempts: OrderedDict[Call, int] = OrderedDict()

    def number(self, call: Call) -> int:
        """The attempt to make now. 0: no attempt of this call was refused."""
        with self._lock:
            return self._attempts.get(call, 0)

    def refused(self, call: Call) -> int:
        """Note that the present attempt was refused, and started nothing. Returns the next one."""
        with self._lock:
            self._attempts[call] = self._attempts.get(call, 0) + 1
            self._attempts.move_to_end(call)
            while len(self._attempts) > KEPT_CALLS:
                self._attempts.popitem(last=False)
            return self._attempts[call]


def token(cluster_uuid: str, call: Call, attempt: int) -> str:
    """A UUID as the token of an attempt. A restarted process makes the same one."""
    generation, number = call
    return str(uuid.uuid5(uuid.UUID(cluster_uuid), f"{generation}/{number}/{attempt}"))
