"""One launch: a bulk call for each thousand nodes, whose operation is followed to its end.

The names of the machines say which nodes of which launch they are for, so they are found by their
names, also while lists lack them. A repeated call bears the same token as the first one, and Google
answers it with the first call's operation.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar
from urllib.parse import quote

from msgspec.structs import replace

from slurm_elastic.base.errors import CapacityError, ProviderError, TransientError
from slurm_elastic.base.guards import Guarded, GuardedBy
from slurm_elastic.model.cluster import STANDING, Instance, LaunchSpec
from slurm_elastic.providers.base.attempts import KEPT_CALLS, Attempts, Call, token
from slurm_elastic.providers.base.errors import of_whole_call
from slurm_elastic.providers.base.named import with_hidden
from slurm_elastic.providers.gcp import convert, requests
from slurm_elastic.providers.gcp.client import Project
from slurm_elastic.providers.gcp.errors import EXISTS, translated
from slurm_elastic.providers.gcp.instances import Machines
from slurm_elastic.providers.gcp.operations import Operations, made
from slurm_elastic.providers.gcp.settings import GcpCloud

Body = Callable[[LaunchSpec, Sequence[str]], Mapping[str, object]]
"""The body of the call for some nodes of a launch."""


class BulkLaunch:
    """Carries out launches. Thread-safe."""

    guarded_by: ClassVar[GuardedBy] = {"_lock": Guarded("_sent")}

    def __init__(
        self,
        settings: GcpCloud,
        uuid: str,
        project: Project,
        machines: Machines,
        operations: Operations,
        body: Body,
    ) -> None:
        self._settings = settings
        self._uuid = uuid
        self._project = project
        self._machines = machines
        self._operations = operations
        self._body = body
        self._attempts = Attempts()
        self._lock = threading.Lock()
        self._sent: OrderedDict[Call, None] = OrderedDict()

    def may_have_begun(self, spec: LaunchSpec, number: int = 0) -> bool:
        """Whether a call of this launch may have made machines: this process has sent the call, or
        an earlier process may have sent it.
        """
        with self._lock:
            return spec.is_repeated or (spec.generation, number) in self._sent

    def _note_sent(self, call: Call) -> None:
        with self._lock:
            self._sent[call] = None
            self._sent.move_to_end(call)
            while len(self._sent) > KEPT_CALLS:
                self._sent.popitem(last=False)

    def run(self, spec: LaunchSpec) -> tuple[list[Instance], ProviderError | None]:
        """The machines of the launch that stand, and why there are not more of them."""
        standing: list[Instance] = []
        refusal: ProviderError | None = None
        for number, nodes in enumerate(requests.chunks(spec.nodes)):
            part = replace(spec, nodes=tuple(nodes))
            # Asked before the call, which notes itself as sent.
            may_exist = self.may_have_begun(spec, number)
            if refusal is None:
                machines, refusal = self._run_part(spec, part, number, may_exist=may_exist)
                standing += machines
            # After a refusal Google has no more of them now, so the next call would be refused.
            # But an earlier process may have sent that call, and it may have made machines.
            elif may_exist:
                standing += self._seen(part, len(nodes))
        return standing, refusal

    def standing(self, spec: LaunchSpec, expected: int) -> list[Instance]:
        """The machines of the launch that stand. If the list has ``expected`` machines or more, no
        names are looked up.
        """
        zone = spec.offer.zone
        listed = [self._instance(m) for m in self._machines.of_launch(zone, spec.generation)]
        of_nodes = [machine for machine in listed if machine.node in spec.nodes]
        if len(of_nodes) < expected:
            of_nodes = [
                *with_hidden(
                    self._uuid, spec, of_nodes, lambda name: self._get(zone, name),
                    self._settings.threads,
                )
            ]  # fmt: skip
        return [machine for machine in of_nodes if machine.state in STANDING]

    def _get(self, zone: str, name: str) -> Instance | None:
        machine = self._machines.get(zone, name)
        if machine is None:
            return None
        self._machines.remember([machine])
        return self._instance(machine)

    def _instance(self, machine: convert.MachineFields) -> Instance:
        return convert.instance(machine, self._settings)

    def _run_part(
        self, spec: LaunchSpec, part: LaunchSpec, number: int, *, may_exist: bool
    ) -> tuple[list[Instance], ProviderError | None]:
        call = (spec.generation, number)
        attempt = self._attempts.number(call)
        try:
            count, refusal = self._insert(spec, part, call, token(self._uuid, call, attempt))
        except TransientError:
            raise
        except ProviderError as error:
            count, refusal = 0, error
        if refusal is not None and refusal.code in EXISTS:
            # An earlier call has made these machines, and Google no longer knows its token.
            return self._seen(part, len(part.nodes)), None
        if count:
            return self._seen(part, count), refusal
        # A refused token brings the same refusal again, so the next attempt needs another one.
        self._attempts.refused(call)
        if isinstance(refusal, TransientError):
            raise refusal
        if refusal is not None:
            refusal = of_whole_call(refusal, requests.least_of(spec, part.nodes))
        # An earlier call of this launch may have made machines, with another token or with one
        # that Google has forgotten.
        machines = self._seen(part, len(part.nodes)) if may_exist else []
        return machines, None if machines else refusal

    def _insert(
        self, spec: LaunchSpec, part: LaunchSpec, call: Call, request_id: str
    ) -> tuple[int, ProviderError | None]:
        """Send the call, and wait for its end. Returns how many machines it has made, and the
        reason if these are fewer than nodes. Raises TransientError if the outcome is unknown.
        """
        zone = spec.offer.zone
        path = f"zones/{quote(zone)}/instances/bulkInsert"
        body = self._body(spec, part.nodes)
        # Before the call, because a call without an answer may have made machines, too.
        self._note_sent(call)
        operation = self._project.call("POST", path, body, {"requestId": request_id})
        bulk = self._operations.ended(zone, operation)
        with translated(self._settings.name):
            count = made(bulk)
        if count >= len(part.nodes):
            return count, None
        text = "the call made too few machines and gave no reason"
        unexplained = CapacityError(self._settings.name, "NoReason", text)
        return count, self._operations.reason(zone, bulk) or unexplained

    def _seen(self, part: LaunchSpec, expected: int) -> list[Instance]:
        """The machines that the accepted call has made. Until they are seen nobody knows which
        nodes have one, so an error here is transient.
        """
        try:
            return self.standing(part, expected)
        except TransientError:
            raise
        except ProviderError as error:
            text = f"the machines were ordered and cannot be looked up: {error.message}"
            raise TransientError(self._settings.name, error.code, text) from error
