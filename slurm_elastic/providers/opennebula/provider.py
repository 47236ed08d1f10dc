"""The provider for OpenNebula's XML-RPC (oned 6.10 to 7.4), through pyone. Credentials are found as
by OpenNebula's own tools.

oned starts one machine per call and has no idempotency token. Therefore a launch first looks for
machines that carry its generation, including ended ones, and starts the missing ones in a few
threads.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from slurm_elastic.base.errors import (
    AuthError,
    CapacityError,
    DeniedError,
    ProviderError,
    QuotaError,
    TransientError,
)
from slurm_elastic.config import Cluster
from slurm_elastic.config.clouds import LISTING_LAG
from slurm_elastic.model.cluster import EndAnswer, Instance, LaunchSpec, Notice, Offer, Pool
from slurm_elastic.model.finding import Finding
from slurm_elastic.providers.base.launched import launched
from slurm_elastic.providers.base.machine_tags import TYPE, bought
from slurm_elastic.providers.base.offers import Room, offers_with
from slurm_elastic.providers.base.ownership import Ownership, ownership_of
from slurm_elastic.providers.base.parallel import until_refused
from slurm_elastic.providers.base.recipe import recipe
from slurm_elastic.providers.base.tags import decided_at
from slurm_elastic.providers.base.unconfirmed import UnconfirmedOrders
from slurm_elastic.providers.opennebula import client, convert, preflight, requests
from slurm_elastic.providers.opennebula import notices as opennebula_notices
from slurm_elastic.providers.opennebula.capacity import ACCOUNT, GROUP, bounds
from slurm_elastic.providers.opennebula.convert import VmFields
from slurm_elastic.providers.opennebula.errors import is_refusal
from slurm_elastic.providers.opennebula.front_end import FrontEnd
from slurm_elastic.providers.opennebula.images import OneImageList
from slurm_elastic.providers.opennebula.instances import OneMachines
from slurm_elastic.providers.opennebula.requests import read_parts
from slurm_elastic.providers.opennebula.scheduling import Placements, given_up, in_line
from slurm_elastic.providers.opennebula.settings import OneTemplate, OpenNebulaCloud

log = logging.getLogger(__name__)

LOOK_BACK_S = 86400.0
"""So far back we search for ended machines of a launch without a date in its generation."""
CLOCK_SLACK_S = 600.0
"""oned's clock and the head's clock may differ by so much."""
FAILURE_COUNTS_S = 300.0
"""For so long a machine that was never placed prevents the next launch of its type."""


class OpenNebulaProvider:
    """One account of one front end. The contract is in protocols.Provider. Thread-safe."""

    def __init__(
        self,
        settings: OpenNebulaCloud,
        cluster: Cluster,
        clock: Callable[[], float] = time.time,
        ownership: Ownership | None = None,
        joining: str = "",
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = settings.name
        self._settings = settings
        self._cluster = cluster
        self._clock = clock
        self._parts = read_parts(settings.user_data, settings.name, joining)
        self._call = FrontEnd(settings).call
        self._images = OneImageList(self._call, settings)
        self._machines = OneMachines(
            settings.name,
            ownership or ownership_of(settings, cluster, None),
            self._call,
            settings.threads,
            settings.api_timeout,
        )
        self._unconfirmed = UnconfirmedOrders(
            settings.name, settings.listing_lag or LISTING_LAG, monotonic
        )
        self._failure_by_type: dict[str, tuple[float, str]] = {}
        self._in_line: frozenset[int] = frozenset()
        self._placements = Placements()
        self._group_hidden = False

    def offers(self, pool: Pool) -> Sequence[Offer]:
        """The types of the pool whose templates exist, with the room that quota and hosts leave.

        Few accounts may see hosts. Without that right only a launch shows whether there is room.
        """

        def free(name: str) -> Room | None:
            template = self._template_or_none(self._settings.types[name])
            return None if template is None else self._room(template)

        return offers_with(self._settings, pool, free)

    def launch(self, spec: LaunchSpec) -> Sequence[Instance]:
        """Make one call for each node, at most ``threads`` at a time, and no more calls than there
        is room.

        A refused call ends the launch; the answer is then the machines started so far.
        """
        if not spec.nodes:
            return ()
        standing, ended_nodes = self._find_earlier(spec.generation)
        missing = [n for n in spec.nodes if n not in standing and n not in ended_nodes]
        started: list[Instance] = []
        refusal: ProviderError | None = None
        if missing:
            self._unconfirmed.require(spec, missing)
            started, refusal = self._start(spec, missing)
        machines = [*(convert.instance(v, self._settings) for v in standing.values()), *started]
        return launched(self.name, spec, machines, refusal)

    def instances(self) -> Sequence[Instance]:
        """The account's machines with our tag. A machine whose start failed is STOPPING."""
        return tuple(convert.instance(v, self._settings) for v in self._machines.live())

    def tidy(self) -> Sequence[Instance]:
        """End machines that the scheduler has given up (see ``scheduling``) and machines whose
        start failed. A machine that was asked to end and still exists is asked again.
        See protocols.Tidying.
        """
        now = self._clock()
        machines = self._placements.dated(self._machines.live(), now)
        self._machines.ask_again(machines)
        failed = {v.id: v for v in machines if v.never_up}
        failed.update(given_up(machines, now, self._settings.pending_timeout))
        self._in_line = in_line(machines)
        ended = self._end_failed(tuple(failed.values())) if failed else frozenset()
        return tuple(
            convert.instance(replace(v, state=convert.DONE) if v.id in ended else v, self._settings)
            for v in machines
        )

    def terminate(self, ids: Sequence[str]) -> Mapping[str, EndAnswer]:
        """End machines. See ``instances``."""
        return self._machines.terminate(ids)

    def gone(self, ids: Sequence[str]) -> Collection[str]:
        """See ``model.protocols.LooksUp``."""
        answers = self._machines.look_up(ids)
        return [i for i in ids if answers[i] is EndAnswer.GONE]

    def recipe(self, pool: Pool) -> str:
        """The recipe of a fresh machine: its image, user data, and the templates and sizes of its
        types.
        """
        names = pool.instance_types or tuple(self._settings.types)
        kinds = {n: self._settings.types[n] for n in names if n in self._settings.types}
        # Templates, not the configured types: a different price does not make a different machine.
        templates = [(name, self._template(kind)) for name, kind in kinds.items()]
        return recipe(pool, self._images.of(pool), self._parts, templates)

    def stop(self, ids: Sequence[str]) -> Sequence[str]:
        """Stop machines (poweroff). A stopped machine keeps its host and its part of the account's
        quota.
        """
        return self._machines.stop(ids)

    def start(self, instance: str) -> None:
        """Start a stopped machine (resume)."""
        self._machines.start(instance)

    def notices(self) -> Sequence[Notice]:
        """Notices for machines on disabled or offline hosts, if the account may see hosts."""
        return opennebula_notices.standing(
            self.name, self._call, self._machines.live, self._clock()
        )

    def check(self) -> None:
        """Read the account's own record, which needs the right password."""
        self._call("user.info", -1)

    def credentials_end(self) -> float | None:
        """When the login token ends (Unix time). None for a password, which does not end."""
        secret = client.session(self._settings, os.environ).partition(":")[2]
        return client.token_end(self._call("user.info", -1), secret)

    def examine(self, pools: Sequence[Pool]) -> Sequence[Finding]:
        """Findings about version, templates, images, quotas and their use, machines that stay in
        BOOT, and hosts.
        """
        return tuple(
            preflight.examine(
                self._call, self._settings, self._images, pools, self._machines.live, self._clock()
            )
        )

    # room

    def _template_or_none(self, kind: OneTemplate) -> Mapping[str, Any] | None:
        try:
            return self._template(kind)
        except ProviderError as error:
            is_general = isinstance(error, AuthError | TransientError)
            # An error about this template alone must not hide the other offers.
            if is_general and not isinstance(error, DeniedError):
                raise
            log.warning(
                "template not offered cloud=%s template=%d error=%s",
                self.name,
                kind.template,
                error,
            )
            return None

    def _template(self, kind: OneTemplate) -> Mapping[str, Any]:
        template: Mapping[str, Any] = self._call("template.info", kind.template).TEMPLATE
        return {**template, **(requests.size(kind) if kind.resize else {})}

    def _room(self, template: Mapping[str, Any]) -> tuple[int | None, str]:
        """How many more machines there can be, and the limit as text. None if nothing is known."""
        all_bounds = bounds(self._call, template, self._group(), self._in_line)
        return min(all_bounds, default=(None, ""))

    def _group(self) -> Any | None:  # noqa: ANN401 - a pyone object
        """The account's group, whose quotas apply, too. None if the account may not read it."""
        if self._group_hidden:
            return None
        try:
            return self._call("group.info", -1)
        except TransientError:
            raise
        except ProviderError as error:
            log.info(
                "the group's quotas cannot be read, a launch over them fails cloud=%s error=%s",
                self.name,
                error,
            )
            self._group_hidden = True
            return None

    def _take_failure(self, name: str) -> CapacityError | None:
        """A recent failure of the type, returned only once: afterwards the caller's cool-down takes
        its place.
        """
        counts_until, reason = self._failure_by_type.pop(name, (0.0, ""))
        if self._clock() >= counts_until:
            return None
        return CapacityError(self.name, "NotPlaced", f"an earlier machine was given up: {reason}")

    # launching

    def _find_earlier(self, generation: str) -> tuple[dict[str, VmFields], set[str]]:
        """The machines of a launch by node, and the nodes whose machine has ended or is ending."""
        launch_machines = [v for v in self._machines.live() if v.generation == generation]
        ending = {v.node for v in launch_machines if self._machines.is_ending(v)}
        standing: dict[str, VmFields] = {}
        duplicates: list[VmFields] = []
        # By number, so that the first machine of a node stays.
        for machine in sorted(
            (v for v in launch_machines if v.node not in ending), key=lambda v: v.id
        ):
            if machine.node in standing:
                duplicates.append(machine)
            standing.setdefault(machine.node, machine)
        if duplicates:
            # oned carried out a call that we had given up, after we had looked for its machine and
            # before we repeated it.
            log.warning(
                "second machines of nodes ended generation=%s count=%d", generation, len(duplicates)
            )
            self._machines.terminate([convert.instance_id(self.name, v.id) for v in duplicates])
        since_time = (decided_at(generation) or self._clock() - LOOK_BACK_S) - CLOCK_SLACK_S
        ended = {v.node for v in self._machines.ended(generation, since_time)}
        return standing, (ended | ending) - standing.keys()

    def _start(
        self, spec: LaunchSpec, nodes: Sequence[str]
    ) -> tuple[list[Instance], ProviderError | None]:
        """Start machines for these nodes. Returns the refusal if there are fewer. Raises
        TransientError if the outcome of a call is unknown.
        """
        kind = self._settings.types.get(spec.offer.instance_type)
        if kind is None:
            text = f"the settings have no type {spec.offer.instance_type}"
            return [], ProviderError(self.name, "NoType", text)
        if failure := self._take_failure(spec.offer.instance_type):
            return [], failure
        template = self._template(kind)
        free, reason = self._room(template)
        count = len(nodes) if free is None else min(free, len(nodes))
        refusal: ProviderError | None = None
        if count < len(nodes):
            kind_of = QuotaError if reason.startswith((ACCOUNT, GROUP)) else CapacityError
            refusal = kind_of(self.name, "NoRoom", reason)
        if not count:
            return [], refusal
        machines, call_refusal = self._instantiate(spec, kind, template, nodes[:count])
        return machines, call_refusal or refusal

    def _instantiate(
        self,
        spec: LaunchSpec,
        kind: OneTemplate,
        template: Mapping[str, Any],
        nodes: Sequence[str],
    ) -> tuple[list[Instance], ProviderError | None]:
        """One call for each node. The first refusal ends it."""
        image = self._images.of(spec.pool)

        def start(node: str) -> tuple[str, int]:
            extra = requests.extra_template(
                self._cluster, spec, node, kind, template, image, self._parts
            )
            name = requests.name(self._cluster, spec, node)
            arguments = (kind.template, name, False, extra, False)
            try:
                with self._unconfirmed.order(spec.generation, [node], is_refusal):
                    number = int(self._call("template.instantiate", *arguments))
            except Exception:
                self._images.forget()  # its name may belong to another image now
                raise
            self._machines.ours.remember([convert.instance_id(self.name, number)])
            return node, number

        numbers, refusal = until_refused(nodes, start, self._settings.threads)
        return self._read_started(spec, dict(numbers)), refusal

    def _read_started(self, spec: LaunchSpec, numbers: Mapping[str, int]) -> list[Instance]:
        """The machines that were just started, with their addresses, which oned assigns at once."""
        machines: Mapping[int, VmFields] = {}

        def unread(node: str, number: int) -> VmFields:
            tags = bought(spec, [node], self._cluster, self.name)
            now = self._clock()
            return VmFields(
                id=number, state=convert.PENDING, lcm=0, started=now, tags=tags, address=None
            )

        try:
            machines = self._machines.by_number(list(numbers.values()))
        except ProviderError as error:
            log.info("fresh machines cannot be read yet cloud=%s error=%s", self.name, error)
        return [
            convert.instance(machines.get(number) or unread(node, number), self._settings)
            for node, number in numbers.items()
        ]

    # ending

    def _end_failed(self, failed: Sequence[VmFields]) -> frozenset[int]:
        """End these machines and remember the failure of their types. Returns the numbers that were
        ended.
        """
        for machine in failed:
            log.warning(
                "machine given up cloud=%s id=%d node=%s reason=%s",
                self.name, machine.id, machine.node, machine.trouble,
            )  # fmt: skip
            counts_until = self._clock() + FAILURE_COUNTS_S
            self._failure_by_type[machine.tags.get(TYPE, "")] = (counts_until, machine.trouble)
        return self._machines.ask_to_end([v.id for v in failed])
