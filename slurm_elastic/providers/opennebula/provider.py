"""OpenNebula's XML-RPC (oned 6.10 to 7.4), by pyone. Credentials as its own tools find them.

oned starts one machine a call and knows no idempotency token, so a launch first looks for machines
that carry its generation, the ended ones included, and starts what is missing in a few threads.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
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
from slurm_elastic.model.cluster import Instance, LaunchSpec, Notice, Offer, Pool
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
from slurm_elastic.providers.opennebula.convert import Vm
from slurm_elastic.providers.opennebula.errors import is_refusal
from slurm_elastic.providers.opennebula.front_end import FrontEnd
from slurm_elastic.providers.opennebula.images import Images
from slurm_elastic.providers.opennebula.instances import OneMachines
from slurm_elastic.providers.opennebula.requests import read_parts
from slurm_elastic.providers.opennebula.scheduling import Placements, given_up, in_line
from slurm_elastic.providers.opennebula.settings import OneTemplate, OpenNebulaCloud

log = logging.getLogger(__name__)

LOOK_BACK = 86400.0
"""Seconds for which an ended machine of a launch without a date in its name is looked for."""
CLOCK_SLACK = 600.0
"""Seconds by which oned's clock and the head's may differ."""
REMEMBERED = 300.0
"""Seconds for which a machine that was never placed speaks against the next one."""


class OpenNebulaProvider:
    """One account of one front end; see protocols.Provider for the contract. Thread-safe."""

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
        self._images = Images(self._call, settings)
        self._machines = OneMachines(
            settings.name,
            ownership or ownership_of(settings, cluster, None),
            self._call,
            settings.threads,
            settings.timeout,
        )
        self._unconfirmed = UnconfirmedOrders(
            settings.name, settings.listing_lag or LISTING_LAG, monotonic
        )
        self._unplaced: dict[str, tuple[float, str]] = {}
        self._in_line: frozenset[int] = frozenset()
        self._placements = Placements()
        self._group_hidden = False

    def offers(self, pool: Pool) -> Sequence[Offer]:
        """The pool's types whose templates are there, with the room that quota and hosts leave.

        Hosts are shown to few accounts; without, a launch will tell.
        """

        def free(name: str) -> Room | None:
            template = self._template_or_none(self._settings.types[name])
            return None if template is None else self._room(template)

        return offers_with(self._settings, pool, free)

    def launch(self, spec: LaunchSpec) -> Sequence[Instance]:
        """One call for each node, at most ``threads`` at a time; none for more than there is room.

        A call that is refused ends the launch: the machines started so far are the answer.
        """
        if not spec.nodes:
            return ()
        standing, gone = self._earlier(spec.generation)
        missing = [n for n in spec.nodes if n not in standing and n not in gone]
        started: list[Instance] = []
        refusal: ProviderError | None = None
        if missing:
            self._unconfirmed.require(spec, missing)
            started, refusal = self._start(spec, missing)
        machines = [*(convert.instance(v, self._settings) for v in standing.values()), *started]
        return launched(self.name, spec, machines, refusal)

    def instances(self) -> Sequence[Instance]:
        """The account's machines with our tag. Machines that the scheduler has given up (see
        ``scheduling``), and those whose start failed, are ended, and told once as TERMINATED.
        A machine that was to end and does not is asked again.
        """
        now = self._clock()
        found = self._placements.dated(self._machines.live(), now)
        self._machines.press(found)
        hopeless = {v.id: v for v in found if v.never_up}
        hopeless.update(given_up(found, now, self._settings.pending_limit))
        self._in_line = in_line(found)
        ended = self._end_hopeless(tuple(hopeless.values())) if hopeless else frozenset()
        return tuple(
            convert.instance(replace(v, state=convert.DONE) if v.id in ended else v, self._settings)
            for v in found
        )

    def terminate(self, ids: Sequence[str]) -> None:
        """Asked again until the time-out while oned refuses it, as for a machine that boots; then
        TransientError. An id that was never seen with our tag is left alone.
        """
        self._machines.terminate(ids)

    def recipe(self, pool: Pool) -> str:
        """Its image and user data, and the templates and sizes of its types."""
        names = pool.instance_types or tuple(self._settings.types)
        kinds = {n: self._settings.types[n] for n in names if n in self._settings.types}
        # Not the kinds themselves: another price is no other machine.
        templates = [(name, self._template(kind)) for name, kind in kinds.items()]
        return recipe(pool, self._images.of(pool), self._parts, templates)

    def stop(self, ids: Sequence[str]) -> None:
        """Oned's poweroff: the machine keeps its host, and its place in the account's quota."""
        self._machines.stop(ids)

    def start(self, instance: str) -> None:
        """Oned's resume."""
        self._machines.start(instance)

    def notices(self) -> Sequence[Notice]:
        """Machines on hosts that are disabled or offline, as far as the account sees hosts."""
        return opennebula_notices.standing(
            self.name, self._call, self._machines.live, self._clock()
        )

    def check(self) -> None:
        """The account's own record: one row, and only with the right password."""
        self._call("user.info", -1)

    def credentials_end(self) -> float | None:
        """The end of a login token; a password has none."""
        secret = client.session(self._settings, os.environ).partition(":")[2]
        return client.token_end(self._call("user.info", -1), secret)

    def examine(self, pools: Sequence[Pool]) -> Sequence[Finding]:
        """Version, templates, images, quotas and their use, machines that stay in BOOT, hosts."""
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
            of_all = isinstance(error, AuthError | TransientError)
            if of_all and not isinstance(error, DeniedError):
                raise
            log.warning(
                "not offered cloud=%s template=%d error=%s", self.name, kind.template, error
            )
            return None

    def _template(self, kind: OneTemplate) -> Mapping[str, Any]:
        template: Mapping[str, Any] = self._call("template.info", kind.template).TEMPLATE
        return {**template, **(requests.size(kind) if kind.resize else {})}

    def _room(self, template: Mapping[str, Any]) -> tuple[int | None, str]:
        """How many more machines there can be, and what bounds them; None where nobody tells."""
        found = bounds(self._call, template, self._group(), self._in_line)
        return min(found, default=(None, ""))

    def _group(self) -> Any | None:  # noqa: ANN401 - a pyone object
        """The account's group, whose quotas hold, too; None where the account may not read it."""
        if self._group_hidden:
            return None
        try:
            return self._call("group.info", -1)
        except TransientError:
            raise
        except ProviderError as error:
            log.info("the group's quotas are only met cloud=%s error=%s", self.name, error)
            self._group_hidden = True
            return None

    def _tell_unplaced(self, name: str) -> CapacityError | None:
        """Once: from then on the cool-down of whoever asked stands for it."""
        until, why = self._unplaced.pop(name, (0.0, ""))
        if self._clock() >= until:
            return None
        return CapacityError(self.name, "NotPlaced", f"an earlier machine was given up: {why}")

    # launching

    def _earlier(self, generation: str) -> tuple[dict[str, Vm], set[str]]:
        """The machines of a launch by node, and the nodes whose machine has ended since or ends."""
        mine = [v for v in self._machines.live() if v.generation == generation]
        ending = {v.node for v in mine if self._machines.is_ending(v)}
        standing: dict[str, Vm] = {}
        doubles: list[Vm] = []
        for one in sorted((v for v in mine if v.node not in ending), key=lambda v: v.id):
            if one.node in standing:
                doubles.append(one)
            standing.setdefault(one.node, one)
        if doubles:
            # A call that we had given up was carried out after the look-up before its repetition.
            log.warning("ended, started twice generation=%s count=%d", generation, len(doubles))
            self._machines.terminate([convert.instance_id(self.name, v.id) for v in doubles])
        since = (decided_at(generation) or self._clock() - LOOK_BACK) - CLOCK_SLACK
        ended = {v.node for v in self._machines.ended(generation, since)}
        return standing, (ended | ending) - standing.keys()

    def _start(
        self, spec: LaunchSpec, nodes: Sequence[str]
    ) -> tuple[list[Instance], ProviderError | None]:
        """Machines for these nodes and, where they are fewer, the refusal. In doubt it raises."""
        kind = self._settings.types.get(spec.offer.instance_type)
        if kind is None:
            text = f"the settings have no type {spec.offer.instance_type}"
            return [], ProviderError(self.name, "NoType", text)
        if told := self._tell_unplaced(spec.offer.instance_type):
            return [], told
        template = self._template(kind)
        free, why = self._room(template)
        count = len(nodes) if free is None else min(free, len(nodes))
        refusal: ProviderError | None = None
        if count < len(nodes):
            kind_of = QuotaError if why.startswith((ACCOUNT, GROUP)) else CapacityError
            refusal = kind_of(self.name, "NoRoom", why)
        if not count:
            return [], refusal
        found, refused = self._instantiate(spec, kind, template, nodes[:count])
        return found, refused or refusal

    def _instantiate(
        self,
        spec: LaunchSpec,
        kind: OneTemplate,
        template: Mapping[str, Any],
        nodes: Sequence[str],
    ) -> tuple[list[Instance], ProviderError | None]:
        """A call for each node; the first refusal ends it."""
        image = self._images.of(spec.pool)

        def start(node: str) -> tuple[str, int]:
            extra = requests.extra_template(
                self._cluster, spec, node, kind, template, image, self._parts
            )
            name = requests.name(self._cluster, spec, node)
            words = (kind.template, name, False, extra, False)
            try:
                with self._unconfirmed.order(spec.generation, [node], is_refusal):
                    number = int(self._call("template.instantiate", *words))
            except Exception:
                self._images.forget()  # the image may have been replaced by another of its name
                raise
            self._machines.ours.remember([convert.instance_id(self.name, number)])
            return node, number

        numbers, refused = until_refused(nodes, start, self._settings.threads)
        return self._fresh(spec, dict(numbers)), refused

    def _fresh(self, spec: LaunchSpec, numbers: Mapping[str, int]) -> list[Instance]:
        """Machines just started, with their addresses, which oned leases at once."""
        known: Mapping[int, Vm] = {}

        def unread(node: str, number: int) -> Vm:
            tags = bought(spec, [node], self._cluster, self.name)
            now = self._clock()
            return Vm(id=number, state=convert.PENDING, lcm=0, started=now, tags=tags, address=None)

        try:
            known = self._machines.some(list(numbers.values()))
        except ProviderError as error:
            log.info("fresh machines cannot be read yet cloud=%s error=%s", self.name, error)
        return [
            convert.instance(known.get(number) or unread(node, number), self._settings)
            for node, number in numbers.items()
        ]

    # ending

    def _end_hopeless(self, some: Sequence[Vm]) -> frozenset[int]:
        """End them and remember their types; the numbers of those that are ended."""
        for one in some:
            log.warning(
                "machine given up cloud=%s id=%d node=%s reason=%s",
                self.name, one.id, one.node, one.trouble,
            )  # fmt: skip
            until = self._clock() + REMEMBERED
            self._unplaced[one.tags.get(TYPE, "")] = (until, one.trouble)
        return self._machines.ask_to_end([v.id for v in some])
