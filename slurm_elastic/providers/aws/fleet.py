"""CreateFleet (instant): EC2 chooses among several types and zones, and gives all at once.

One call a chunk of nodes, under the launch's client token. The part of its answer about each type
and zone that gave nothing is kept for the caller (``refusals``). Machines bear our tags from the
call itself; which node each is comes after (``tags``).
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from botocore.exceptions import ClientError
from msgspec.structs import replace

from slurm_elastic.base.errors import (
    AuthError,
    CapacityError,
    DeniedError,
    InstanceNotFound,
    ProviderError,
    QuotaError,
    TransientError,
)
from slurm_elastic.config import Cluster
from slurm_elastic.model.cluster import Instance, InstanceState, LaunchSpec, Offer
from slurm_elastic.providers.aws import client, convert
from slurm_elastic.providers.aws import tags as machine_tags
from slurm_elastic.providers.aws.client import Api
from slurm_elastic.providers.aws.convert import Record
from slurm_elastic.providers.aws.errors import NO_TEMPLATE, THROTTLES, named, refusal, sentence
from slurm_elastic.providers.aws.instances import Ec2Instances, earlier
from slurm_elastic.providers.aws.requests import create_fleet, offer_of
from slurm_elastic.providers.aws.settings import AwsCloud
from slurm_elastic.providers.aws.templates import Templates
from slurm_elastic.providers.base.tags import (
    CLUSTER,
    GENERATION,
    decided_at,
    expanded,
    node_tags,
    nodes_text,
)

log = logging.getLogger(__name__)

ALTERNATIVES = 19
"""Offers beside the first that one fleet takes; their prices have to fit into its tags."""
_ATTEMPTS = 3
_KEPT = 50
_FORGOTTEN = 300.0
"""Seconds for which a machine without a node is left to its launch; it itself waits for longer."""
_POINTER = "UnfulfillableCapacity"
"""The error of a type and zone that gave nothing as another one failed: that one's error says why.
"""


class Fleet:
    """The strategy ``fleet`` of one cloud."""

    def __init__(
        self,
        api: Api,
        settings: AwsCloud,
        cluster: Cluster,
        templates: Templates,
        machines: Ec2Instances,
        clock: Callable[[], float],
    ) -> None:
        self._api = api
        self._settings = settings
        self._cluster = cluster
        self._templates = templates
        self._machines = machines
        self._clock = clock
        self._attempts: dict[tuple[str, int], int] = {}
        self._refusals: OrderedDict[str, dict[str, ProviderError]] = OrderedDict()

    def refusals(self, generation: str) -> Mapping[str, ProviderError]:
        """See protocols.Chooser."""
        return self._refusals.get(generation, {})

    def start(self, spec: LaunchSpec, nodes: Sequence[str], number: int) -> Sequence[Instance]:
        """The machines of one call, those included that are gone when it is repeated."""
        try:
            answer = self._created(spec, nodes, number)
        except (CapacityError, QuotaError):
            # Nothing by this token; by an earlier one of this launch there may be machines.
            found = self._placed(spec, nodes, {})
            if not found:
                raise
            return found
        except ClientError as error:
            return earlier(self._settings.name, error, lambda: self._placed(spec, nodes, {}))
        told = {
            id_: offer_of(self._settings, spec, group) or spec.offer
            for group in answer.get("Instances", ())
            for id_ in group["InstanceIds"]
        }
        return self._placed(spec, nodes, told)

    def settle(self, records: Sequence[Record]) -> Sequence[Instance]:
        """Give those of the records a node that have waited for long: the answer to their launch
        was lost, and so is whoever would repeat it. In minutes EC2 has come to list all of them.
        """
        by_call: dict[tuple[str, str], list[Record]] = {}
        for record in filter(self._machines.mine, records):
            tags = convert.tags(record)
            if machine_tags.in_fleet(tags):
                call = tags.get(GENERATION, ""), nodes_text(tags)
                by_call.setdefault(call, []).append(record)
        found: list[Instance] = []
        for (_, text), some in by_call.items():
            machines = {i.id: i for i in self._machines.read(some)}
            nodes = expanded(text)
            if nodes and any(self._waits(i) for i in machines.values()):
                log.warning("fleet was never given its nodes nodes=%s", text)
                found += self._settled(nodes, machines)
        return found

    def _settled(
        self, nodes: Sequence[str], machines: Mapping[str, Instance]
    ) -> Sequence[Instance]:
        try:
            places, _ = self._assign(nodes, machines, machines)
        except ProviderError as error:
            log.warning("places not tagged, tried again at the next reading: %s", error)
            return ()
        return [replace(machines[i], node=nodes[n]) for i, n in places.items()]

    def _waits(self, machine: Instance) -> bool:
        age = self._clock() - machine.launched
        return self._lives(machine) and not machine.node and age > _FORGOTTEN

    # the call

    def _created(self, spec: LaunchSpec, nodes: Sequence[str], number: int) -> Mapping[str, Any]:
        """The answer; after one without any machine it is asked again at once, where EC2 only was
        too busy.
        """
        attempt = self._attempts.get((spec.generation, number), 0)
        while True:
            answer = self._sent(spec, nodes, number, attempt)
            if not answer.get("Instances"):
                # A repeated call may be answered without what the first one said.
                answer = self._described(answer.get("FleetId", "")) or answer
            errors = self._errors(spec, answer)
            self._keep(spec.generation, errors)
            if answer.get("Instances"):
                return answer
            # By another token: the first would only bring the same answer again.
            attempt += 1
            self._attempts = {(spec.generation, number): attempt}
            busy = next((e for e in errors.values() if e.code in THROTTLES), None)
            if busy is None:
                raise self._worst(spec, errors)
            if attempt % _ATTEMPTS == 0:
                raise TransientError(self._settings.name, busy.code, busy.message)
            log.info("fleet found EC2 busy generation=%s attempt=%d", spec.generation, attempt)

    def _sent(
        self, spec: LaunchSpec, nodes: Sequence[str], number: int, attempt: int
    ) -> Mapping[str, Any]:
        for last in (False, True):
            request = create_fleet(
                self._settings,
                self._cluster,
                spec,
                nodes,
                template=self._templates.name_for(spec),
                number=number,
                attempt=attempt,
            )
            try:
                return self._api.send("create_fleet", request, len(nodes))
            except ProviderError as error:
                if last or error.code not in NO_TEMPLATE:
                    raise
                log.warning("launch template is gone, made anew cloud=%s", self._settings.name)
                self._templates.forget()
        raise AssertionError  # the second turn returns or raises

    def _described(self, fleet: str) -> Mapping[str, Any]:
        """EC2's answer about an earlier fleet."""
        answer = self._api.send("describe_fleets", {"FleetIds": [fleet]}) if fleet else {}
        found: Mapping[str, Any] = next(iter(answer.get("Fleets", ())), {})
        return found

    # what the answer says

    def _errors(self, spec: LaunchSpec, answer: Mapping[str, Any]) -> dict[str, ProviderError]:
        """By offer, why it gave nothing: the entry that only points at another one's comes last."""
        found: dict[str, ProviderError] = {}
        entries = sorted(answer.get("Errors", ()), key=lambda e: e.get("ErrorCode") == _POINTER)
        for entry in entries:
            error = self._error(entry)
            offer = offer_of(self._settings, spec, entry)
            for one in spec.offers if offer is None else (offer,):
                found.setdefault(one.key, error)
        return found

    def _error(self, entry: Mapping[str, Any]) -> ProviderError:
        cloud, code = self._settings.name, entry.get("ErrorCode", "")
        text = entry.get("ErrorMessage", "")
        found = refusal(cloud, code, text, "RunInstances")
        if found is None or isinstance(found, InstanceNotFound):
            return ProviderError(cloud, code, sentence(text))
        return found

    def _worst(self, spec: LaunchSpec, errors: Mapping[str, ProviderError]) -> ProviderError:
        """The caller's error for a fleet without machines: the first offer's own error, unless
        the credentials themselves are refused.
        """
        auth = (e for e in errors.values() if isinstance(e, AuthError))
        refused = next((e for e in auth if not isinstance(e, DeniedError)), None)
        first = refused or errors.get(spec.offer.key) or next(iter(errors.values()), None)
        if first is not None:
            return first
        return CapacityError(self._settings.name, _POINTER, "the fleet gave no machine, nor a word")

    def _keep(self, generation: str, errors: dict[str, ProviderError]) -> None:
        self._refusals[generation] = {**self._refusals.get(generation, {}), **errors}
        while len(self._refusals) > _KEPT:
            self._refusals.popitem(last=False)

    # which node each machine is

    def _placed(
        self, spec: LaunchSpec, nodes: Sequence[str], told: Mapping[str, Offer]
    ) -> Sequence[Instance]:
        """Its machines, each at its node; ``told``: the ids of the answer, each with the offer that
        it came from.
        """
        try:
            return self._at_nodes(spec, nodes, told)
        except TransientError:
            raise
        except ProviderError as error:
            # Whatever EC2 answers here, machines that the call started cost money: nobody may take
            # this for a launch that was refused.
            text = f"machines that were started cannot be given their nodes: {error.message}"
            raise TransientError(self._settings.name, error.code, text) from error

    def _at_nodes(
        self, spec: LaunchSpec, nodes: Sequence[str], told: Mapping[str, Offer]
    ) -> Sequence[Instance]:
        seen = {i.id: i for i in self._visible(spec, nodes)}
        self._machines.ours.remember(told)
        places, unknown = self._assign(nodes, seen, {**seen, **told})
        age = self._clock() - (decided_at(spec.generation) or self._clock())
        if unknown and age < _FORGOTTEN:
            # Fresh machines are not known everywhere at once: it is asked again, as all of it is.
            text = f"EC2 does not know these machines of the fleet yet: {', '.join(unknown)}"
            raise TransientError(self._settings.name, "InvalidInstanceID.NotFound", text)
        if unknown:
            log.warning("fleet's machines went before anybody saw them generation=%s ids=%s",
                        spec.generation, ",".join(unknown))  # fmt: skip
        return [
            self._instance(spec, id_, nodes[n], seen.get(id_), told.get(id_))
            for id_, n in places.items()
        ]

    def _assign(
        self, nodes: Sequence[str], seen: Mapping[str, Instance], ids: Iterable[str]
    ) -> tuple[Mapping[str, int], Sequence[str]]:
        """The places of ``ids``, of which those that had none are tagged; and the ids that EC2 does
        not know, which have none.
        """
        place = {node: n for n, node in enumerate(nodes)}
        taken = {i.id: place[i.node] for i in seen.values() if i.node in place}
        living = [i for i in ids if i in taken or self._lives(seen.get(i))]
        new, surplus = machine_tags.assigned(living, taken, len(nodes))
        unknown: dict[str, None] = {}
        for key, digit, some in machine_tags.tagging(new, len(nodes)):
            known = [i for i in some if i not in unknown]
            unknown |= dict.fromkeys(self._untagged(key, digit, known))
        if surplus:
            log.error("fleet has more machines than nodes ids=%s", ",".join(surplus))
            self._api.send("terminate_instances", {"InstanceIds": surplus}, len(surplus))
        places = {i: n for i, n in {**taken, **new}.items() if i not in unknown}
        return places, tuple(unknown)

    @staticmethod
    def _lives(machine: Instance | None) -> bool:
        """A machine that is gone gets no place; one that is not seen yet does."""
        return machine is None or machine.state is not InstanceState.TERMINATED

    def _visible(self, spec: LaunchSpec, nodes: Sequence[str]) -> Sequence[Instance]:
        """The machines of the call that EC2 lists so far, gone ones included."""
        filters = [
            {"Name": f"tag:{CLUSTER}", "Values": [self._cluster.uuid]},
            {"Name": f"tag:{GENERATION}", "Values": [spec.generation]},
        ]
        request = {"Filters": filters, "MaxResults": client.PAGE}
        pages = self._api.pages("describe_instances", "Reservations", request)
        text = ",".join(node_tags(nodes).values())
        records = (r for reservation in pages for r in reservation["Instances"])
        return self._machines.read(r for r in records if nodes_text(convert.tags(r)) == text)

    def _untagged(self, key: str, value: str, ids: Sequence[str]) -> Sequence[str]:
        """Tag them; the ids that EC2 does not know."""
        if not ids:
            return ()
        request = {"Resources": list(ids), "Tags": [{"Key": key, "Value": value}]}
        try:
            self._api.send("create_tags", request)
        except InstanceNotFound as error:
            unknown = named(ids, error) or ids
            # EC2 tags all of a call or none.
            rest = [i for i in ids if i not in unknown]
            return [*unknown, *self._untagged(key, value, rest)]
        return ()

    def _instance(
        self, spec: LaunchSpec, id_: str, node: str, seen: Instance | None, offer: Offer | None
    ) -> Instance:
        if seen is not None:
            return replace(seen, node=node)
        bought = offer or spec.offer
        return Instance(
            id=id_,
            cloud=self._settings.name,
            node=node,
            generation=spec.generation,
            instance_type=bought.instance_type,
            zone=bought.zone,
            market=bought.market,
            price=bought.price,
            state=InstanceState.PENDING,
            launched=self._clock(),
        )
