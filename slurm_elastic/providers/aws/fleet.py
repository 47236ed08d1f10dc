"""CreateFleet (type instant): EC2 chooses among several types and zones, and starts all machines at
once.

There is one call per chunk of nodes, with the launch's client token. The errors in its answer, one
for each type and zone that gave nothing, are kept for the caller (``refusals``). Machines have our
tags from the call itself; the tag that says which node a machine is comes later (``tags``).
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
from slurm_elastic.providers.aws.client import AwsApi
from slurm_elastic.providers.aws.convert import Record
from slurm_elastic.providers.aws.errors import NO_TEMPLATE, THROTTLES, blamed_ids, refusal, sentence
from slurm_elastic.providers.aws.hardware import for_pool
from slurm_elastic.providers.aws.instances import Ec2Instances, earlier
from slurm_elastic.providers.aws.requests import create_fleet, offer_of
from slurm_elastic.providers.aws.settings import AwsCloud
from slurm_elastic.providers.aws.templates import Templates
from slurm_elastic.providers.base.attempts import Attempts
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
"""Further offers that one fleet takes. The prices of all of them must fit into the fleet's tags."""
_ATTEMPTS_PER_CALL = 3
_KEPT_LAUNCHES = 50
_ABANDONED_AFTER_S = 300.0
"""For so long a machine without a node is left to its launch. The machine itself waits longer
(boothook).
"""
_POINTER = "UnfulfillableCapacity"
"""The error of a type and zone that gave nothing because another one failed; the other one's error
says why.
"""


class FleetStrategy:
    """Launches by the strategy ``fleet`` of one cloud."""

    def __init__(
        self,
        api: AwsApi,
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
        self._attempts = Attempts()
        self._refusals: OrderedDict[str, dict[str, ProviderError]] = OrderedDict()

    def refusals(self, generation: str) -> Mapping[str, ProviderError]:
        """See protocols.Chooser."""
        return self._refusals.get(generation, {})

    def start(self, spec: LaunchSpec, nodes: Sequence[str], number: int) -> Sequence[Instance]:
        """Start the machines of one call. A repeated call also returns ended machines."""
        try:
            answer = self._create(spec, nodes, number)
        except (CapacityError, QuotaError):
            # Nothing was started with this token, but an earlier token of this launch may have
            # started machines.
            placed = self._place(spec, nodes, {})
            if not placed:
                raise
            return placed
        except ClientError as error:
            return earlier(self._settings.name, error, lambda: self._place(spec, nodes, {}))
        offer_by_id = {
            id_: offer_of(self._settings, spec, group) or spec.offer
            for group in answer.get("Instances", ())
            for id_ in group["InstanceIds"]
        }
        return self._place(spec, nodes, offer_by_id)

    def adopt_abandoned(self, records: Sequence[Record]) -> Sequence[Instance]:
        """Give nodes to machines that have waited too long for a node.

        The answer to their launch was lost, and so was the process that would repeat it. After some
        minutes EC2 lists all machines of the launch, so the places are known.
        """
        by_call: dict[tuple[str, str], list[Record]] = {}
        for record in filter(self._machines.is_own, records):
            tags = convert.tags(record)
            if machine_tags.in_fleet(tags):
                call_key = tags.get(GENERATION, ""), nodes_text(tags)
                by_call.setdefault(call_key, []).append(record)
        adopted: list[Instance] = []
        for (_, text), call_records in by_call.items():
            machines = {i.id: i for i in self._machines.read(call_records)}
            nodes = expanded(text)
            if nodes and any(self._is_abandoned(i) for i in machines.values()):
                log.warning(
                    "machines of a fleet never got their nodes; assigning them now nodes=%s", text
                )
                adopted += self._give_nodes(nodes, machines)
        return adopted

    def _give_nodes(
        self, nodes: Sequence[str], machines: Mapping[str, Instance]
    ) -> Sequence[Instance]:
        try:
            places, _ = self._assign(nodes, machines, machines)
        except ProviderError as error:
            log.warning("places not tagged; retrying at the next listing: %s", error)
            return ()
        return [replace(machines[i], node=nodes[n]) for i, n in places.items()]

    def _is_abandoned(self, machine: Instance) -> bool:
        age = self._clock() - machine.launched
        return self._lives(machine) and not machine.node and age > _ABANDONED_AFTER_S

    # the call

    def _create(self, spec: LaunchSpec, nodes: Sequence[str], number: int) -> Mapping[str, Any]:
        """Create the fleet and return the answer. If EC2 was only too busy to start any machine,
        the call is repeated at once.
        """
        call = (spec.generation, number)
        attempt = self._attempts.number(call)
        while True:
            answer = self._send_once(spec, nodes, number, attempt)
            if not answer.get("Instances"):
                # EC2 may answer a repeated call without the content of the first answer.
                answer = self._describe(answer.get("FleetId", "")) or answer
            errors = self._errors(spec, answer)
            self._keep_refusals(spec.generation, errors)
            if answer.get("Instances"):
                return answer
            # Use another token, because the old one would only bring the same answer again.
            attempt = self._attempts.refused(call)
            busy = next((e for e in errors.values() if e.code in THROTTLES), None)
            if busy is None:
                raise self._worst(spec, errors)
            if attempt % _ATTEMPTS_PER_CALL == 0:
                raise TransientError(self._settings.name, busy.code, busy.message)
            log.info("fleet found EC2 busy generation=%s attempt=%d", spec.generation, attempt)

    def _send_once(
        self, spec: LaunchSpec, nodes: Sequence[str], number: int, attempt: int
    ) -> Mapping[str, Any]:
        # Twice at most: a second time if our launch template was deleted.
        for is_last in (False, True):
            request = create_fleet(
                for_pool(self._settings, spec.pool),
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
                if is_last or error.code not in NO_TEMPLATE:
                    raise
                log.warning(
                    "launch template was deleted; creating it again cloud=%s", self._settings.name
                )
                self._templates.forget()
        raise AssertionError  # the second turn always returns or raises

    def _describe(self, fleet: str) -> Mapping[str, Any]:
        """EC2's record of an earlier fleet."""
        answer = self._api.send("describe_fleets", {"FleetIds": [fleet]}) if fleet else {}
        fleet_record: Mapping[str, Any] = next(iter(answer.get("Fleets", ())), {})
        return fleet_record

    # what the answer says

    def _errors(self, spec: LaunchSpec, answer: Mapping[str, Any]) -> dict[str, ProviderError]:
        """The error of each offer that gave nothing. Entries that only point at another entry come
        last, so that real reasons win.
        """
        error_by_offer: dict[str, ProviderError] = {}
        entries = sorted(answer.get("Errors", ()), key=lambda e: e.get("ErrorCode") == _POINTER)
        for entry in entries:
            error = self._error(entry)
            offer = offer_of(self._settings, spec, entry)
            for refused_offer in spec.offers if offer is None else (offer,):
                error_by_offer.setdefault(refused_offer.key, error)
        return error_by_offer

    def _error(self, entry: Mapping[str, Any]) -> ProviderError:
        cloud, code = self._settings.name, entry.get("ErrorCode", "")
        text = entry.get("ErrorMessage", "")
        error = refusal(cloud, code, text, "RunInstances")
        if error is None or isinstance(error, InstanceNotFound):
            return ProviderError(cloud, code, sentence(text))
        return error

    def _worst(self, spec: LaunchSpec, errors: Mapping[str, ProviderError]) -> ProviderError:
        """The error of a fleet without machines: the first offer's own error, unless the
        credentials themselves are refused.
        """
        auth = (e for e in errors.values() if isinstance(e, AuthError))
        refused = next((e for e in auth if not isinstance(e, DeniedError)), None)
        worst = refused or errors.get(spec.offer.key) or next(iter(errors.values()), None)
        if worst is not None:
            return worst
        return CapacityError(
            self._settings.name, _POINTER, "the fleet started no machine and gave no reason"
        )

    def _keep_refusals(self, generation: str, errors: dict[str, ProviderError]) -> None:
        self._refusals[generation] = {**self._refusals.get(generation, {}), **errors}
        while len(self._refusals) > _KEPT_LAUNCHES:
            self._refusals.popitem(last=False)

    # which node each machine is

    def _place(
        self, spec: LaunchSpec, nodes: Sequence[str], offer_by_id: Mapping[str, Offer]
    ) -> Sequence[Instance]:
        """The call's machines, each with its node. ``offer_by_id``: the ids in the answer, each
        with the offer that it came from.
        """
        try:
            return self._place_visible(spec, nodes, offer_by_id)
        except TransientError:
            raise
        except ProviderError as error:
            # The machines that the call started cost money, so no error here may look like a
            # refused launch.
            text = f"machines that were started cannot be given their nodes: {error.message}"
            raise TransientError(self._settings.name, error.code, text) from error

    def _place_visible(
        self, spec: LaunchSpec, nodes: Sequence[str], offer_by_id: Mapping[str, Offer]
    ) -> Sequence[Instance]:
        visible = {i.id: i for i in self._visible(spec, nodes)}
        # Before the tagging, which may fail: from now on these machines can be ended by their ids.
        self._machines.ours.remember(offer_by_id)
        places, unknown = self._assign(nodes, visible, {**visible, **offer_by_id})
        age_s = self._clock() - (decided_at(spec.generation) or self._clock())
        if unknown and age_s < _ABANDONED_AFTER_S:
            # EC2 does not know fresh machines everywhere at once. The caller repeats the launch,
            # and with it this step.
            text = f"EC2 does not know these machines of the fleet yet: {', '.join(unknown)}"
            raise TransientError(self._settings.name, "InvalidInstanceID.NotFound", text)
        if unknown:
            log.warning("fleet's machines ended before EC2 listed them generation=%s ids=%s",
                        spec.generation, ",".join(unknown))  # fmt: skip
        return [
            self._instance(spec, id_, nodes[n], visible.get(id_), offer_by_id.get(id_))
            for id_, n in places.items()
        ]

    def _assign(
        self, nodes: Sequence[str], visible: Mapping[str, Instance], ids: Iterable[str]
    ) -> tuple[Mapping[str, int], Sequence[str]]:
        """Give each of ``ids`` its place and tag the new places. Returns the places, and the ids
        that EC2 does not know, which get none.
        """
        place = {node: n for n, node in enumerate(nodes)}
        place_by_id = {i.id: place[i.node] for i in visible.values() if i.node in place}
        live_ids = [i for i in ids if i in place_by_id or self._lives(visible.get(i))]
        new_places, surplus = machine_tags.assigned(live_ids, place_by_id, len(nodes))
        unknown: dict[str, None] = {}
        for key, digit, id_group in machine_tags.tagging(new_places, len(nodes)):
            to_tag = [i for i in id_group if i not in unknown]
            unknown |= dict.fromkeys(self._tag(key, digit, to_tag))
        # A machine without a node can run no job and costs money, so it is ended.
        if surplus:
            log.error("fleet has more machines than nodes ids=%s", ",".join(surplus))
            self._api.send("terminate_instances", {"InstanceIds": surplus}, len(surplus))
        places = {i: n for i, n in {**place_by_id, **new_places}.items() if i not in unknown}
        return places, tuple(unknown)

    @staticmethod
    def _lives(machine: Instance | None) -> bool:
        """Whether a machine gets a place. A machine that is not visible yet gets one, an ended
        machine does not.
        """
        return machine is None or machine.state is not InstanceState.TERMINATED

    def _visible(self, spec: LaunchSpec, nodes: Sequence[str]) -> Sequence[Instance]:
        """The machines of the call that EC2 lists so far, including ended ones."""
        filters = [
            {"Name": f"tag:{CLUSTER}", "Values": [self._cluster.uuid]},
            {"Name": f"tag:{GENERATION}", "Values": [spec.generation]},
        ]
        request = {"Filters": filters, "MaxResults": client.PAGE}
        pages = self._api.pages("describe_instances", "Reservations", request)
        text = ",".join(node_tags(nodes).values())
        records = (r for reservation in pages for r in reservation["Instances"])
        return self._machines.read(r for r in records if nodes_text(convert.tags(r)) == text)

    def _tag(self, key: str, value: str, ids: Sequence[str]) -> Sequence[str]:
        """Tag the machines. Returns the ids that EC2 does not know."""
        if not ids:
            return ()
        request = {"Resources": list(ids), "Tags": [{"Key": key, "Value": value}]}
        try:
            self._api.send("create_tags", request)
        except InstanceNotFound as error:
            unknown = blamed_ids(ids, error) or ids
            # EC2 tags all machines of a call or none, so the known ones are tagged by another call.
            remaining = [i for i in ids if i not in unknown]
            return [*unknown, *self._tag(key, value, remaining)]
        return ()

    def _instance(
        self, spec: LaunchSpec, id_: str, node: str, visible: Instance | None, offer: Offer | None
    ) -> Instance:
        # A machine that EC2 does not list yet is known only by the offer in the answer.
        if visible is not None:
            return replace(visible, node=node)
        bought_offer = offer or spec.offer
        return Instance(
            id=id_,
            cloud=self._settings.name,
            node=node,
            generation=spec.generation,
            instance_type=bought_offer.instance_type,
            zone=bought_offer.zone,
            market=bought_offer.market,
            price=bought_offer.price,
            state=InstanceState.PENDING,
            launched=self._clock(),
        )
