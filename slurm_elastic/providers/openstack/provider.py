"""OpenStack's nova, by openstacksdk's session. Credentials by clouds.yaml, never in our file.

nova makes many servers in one call and knows no idempotency token, so a launch first looks for
servers that carry its generation, the ended ones included (``launch``).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import ClassVar

from msgspec.structs import replace

from slurm_elastic.base.errors import InstanceNotFound, ProviderError
from slurm_elastic.base.guards import Guarded, GuardedBy
from slurm_elastic.config import Cluster
from slurm_elastic.config.clouds import LISTING_LAG
from slurm_elastic.model.cluster import Instance, LaunchSpec, Notice, Offer, Pool
from slurm_elastic.model.finding import Finding
from slurm_elastic.providers.base.launched import launched
from slurm_elastic.providers.base.machine_tags import TYPE
from slurm_elastic.providers.base.offers import Room, offers_with
from slurm_elastic.providers.base.ownership import Ownership, ownership_of
from slurm_elastic.providers.base.recipe import recipe
from slurm_elastic.providers.base.unconfirmed import UnconfirmedOrders
from slurm_elastic.providers.base.user_data import read_parts
from slurm_elastic.providers.openstack import convert, preflight, requests
from slurm_elastic.providers.openstack.capacity import room
from slurm_elastic.providers.openstack.catalog import Catalog
from slurm_elastic.providers.openstack.convert import ServerFields
from slurm_elastic.providers.openstack.errors import is_refusal, translated
from slurm_elastic.providers.openstack.instances import Servers
from slurm_elastic.providers.openstack.launch import ServerLaunch
from slurm_elastic.providers.openstack.notices import Notices
from slurm_elastic.providers.openstack.project import Project
from slurm_elastic.providers.openstack.settings import OpenStackCloud

log = logging.getLogger(__name__)

REMEMBERED = 300.0
"""Seconds for which a machine whose start failed speaks against the next one."""


class OpenStackProvider:
    """One project in one region; see protocols.Provider for the contract. Thread-safe.

    Each request ends after the cloud's ``timeout``; a launch may take several.
    """

    guarded_by: ClassVar[GuardedBy] = {"_lock": Guarded("_failed", "_launching")}

    def __init__(
        self,
        settings: OpenStackCloud,
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
        self._parts = read_parts(settings.user_data, settings.name, joining, requests.USER_DATA)
        self._lock = threading.Lock()
        self._project = Project(settings)
        self._call = self._project.call
        whose = ownership or ownership_of(settings, cluster, None)
        self._servers = Servers(settings.name, whose, self._call, settings.threads)
        self._catalog = Catalog(settings, self._call)
        self._notices = Notices(self._servers.live, clock, time.monotonic)
        self._unconfirmed = UnconfirmedOrders(
            settings.name, settings.listing_lag or LISTING_LAG, monotonic
        )
        self._launching: set[str] = set()
        self._failed: dict[str, tuple[float, ProviderError]] = {}

    def offers(self, pool: Pool) -> Sequence[Offer]:
        """The pool's types whose flavors are there, with the room that the quota leaves."""
        limits, flavors = cache(self._limits), cache(self._catalog.flavors)

        def free(name: str) -> Room | None:
            flavor = flavors().get(name)
            return None if flavor is None else room(limits(), flavor.vcpus, flavor.ram)

        return offers_with(self._settings, pool, free)

    def launch(self, spec: LaunchSpec) -> Sequence[Instance]:
        """One call for each 100 nodes, and the wait for nova's scheduler to place them.

        A server that it cannot place is deleted again.
        """
        if not spec.nodes:
            return ()
        launch = ServerLaunch(
            self._servers,
            self._order,
            lambda: self._tell_failed(spec.offer.instance_type),
            self._cluster.uuid or "",
            spec,
            self._settings.schedule_wait,
            self._unconfirmed,
        )
        with self._busy(spec.generation):
            launch.run(self._clock())
        machines = [convert.instance(s, self._settings) for s in launch.standing.values()]
        return launched(self.name, spec, machines, launch.refusal)

    def instances(self) -> Sequence[Instance]:
        """The project's servers with our metadata. Servers whose start failed are ended, and told
        once as TERMINATED.
        """
        found = self._servers.live()
        with self._lock:
            launching = frozenset(self._launching)
        hopeless = [s for s in found if s.failed and s.generation not in launching]
        ended = self._end_hopeless(hopeless) if hopeless else frozenset()
        return tuple(
            convert.instance(
                replace(s, status="DELETED", task="") if s.id in ended else s, self._settings
            )
            for s in found
        )

    def terminate(self, ids: Sequence[str]) -> None:
        """One call a server, some at a time. An id never seen with our metadata is left alone."""
        self._servers.delete(self._mine(ids))

    def recipe(self, pool: Pool) -> str:
        """Its image, user data and all that the site has set of machines."""
        own = self._settings
        set_ = (own.networks, own.security_groups, own.key_name, own.config_drive)
        return recipe(pool, self._catalog.image(pool.image), self._parts, set_)

    def stop(self, ids: Sequence[str]) -> None:
        """A call a server. nova counts it in the project's quota as before."""
        self._servers.stop(self._mine(ids, "stopped"))

    def start(self, instance: str) -> None:
        """One call."""
        if not self._mine([instance], "started"):
            raise InstanceNotFound(self.name, "NotOurs", f"{instance} is none of ours")
        self._servers.start(instance)

    def _mine(self, ids: Sequence[str], done: str = "terminated") -> Sequence[str]:
        return self._servers.ours.named(ids, self._servers.live, done)

    def notices(self) -> Sequence[Notice]:
        """Servers on hosts in maintenance, as far as nova shows that to the project."""
        return self._notices.standing()

    def check(self) -> None:
        """A list of one server: needs a token and the very right that reconcile needs."""
        self._call("compute", "GET", "/servers?limit=1")

    def credentials_end(self) -> float | None:
        """The end of a token, an application credential or a password that ends."""
        return self._project.credentials_end()

    def examine(self, pools: Sequence[Pool]) -> Sequence[Finding]:
        """Flavors, images, networks, key pair, security groups, zones, quotas."""
        found = [*preflight.examine(self._call, self._settings, self._catalog, pools)]
        try:
            limits, flavors = self._limits(), self._catalog.flavors()
            ours = [convert.instance(s, self._settings) for s in self._servers.live()]
        except ProviderError as error:
            found.append(Finding.note("quota", f"cannot be read: {error.refusal}"))
        else:
            found += preflight.quotas(self._settings, limits, flavors, pools, ours)
        return tuple(found)

    # offers

    def _limits(self) -> dict[str, object]:
        answer = self._call("compute", "GET", "/limits")
        with translated(self.name):
            return dict(answer["limits"]["absolute"])

    # launching

    def _order(self, spec: LaunchSpec, start: int, nodes: Sequence[str]) -> None:
        flavor = self._catalog.flavor(spec.offer.instance_type)
        body = requests.body(
            self._settings,
            self._cluster,
            spec,
            start,
            nodes,
            flavor=flavor.id,
            image=self._catalog.image(spec.pool.image),
            networks=self._catalog.networks(),
            parts=self._parts,
        )
        try:
            with self._unconfirmed.order(spec.generation, nodes, is_refusal):
                answer = self._call("compute", "POST", "/servers", body)
                with translated(self.name):
                    # All that is used of it is that there is one: the list has all machines.
                    answer["server"]["id"]
        except ProviderError:
            # An image or flavor may have been replaced by another of its name.
            self._catalog.forget()
            raise

    @contextmanager
    def _busy(self, generation: str) -> Iterator[None]:
        """Machines of a launch under way are its own: nobody else ends those that fail."""
        with self._lock:
            self._launching.add(generation)
        try:
            yield
        finally:
            with self._lock:
                self._launching.discard(generation)

    def _tell_failed(self, kind: str) -> ProviderError | None:
        """Once: from then on the cool-down of whoever asked stands for it."""
        with self._lock:
            until, error = self._failed.pop(kind, (0.0, None))
        return error if self._clock() < until else None

    def _end_hopeless(self, some: Sequence[ServerFields]) -> frozenset[str]:
        """End them and remember their types; the ids of those that are ended."""
        why = self._servers.fault(some[0].id)
        ended = set()
        for one in some:
            log.warning(
                "machine given up cloud=%s id=%s node=%s reason=%s",
                self.name, one.id, one.node, why,
            )  # fmt: skip
            kind = one.tags.get(TYPE, "")
            with self._lock:
                self._failed[kind] = self._clock() + REMEMBERED, why
            try:
                self._servers.delete([one.id])
            except ProviderError as error:
                log.warning("not ended, tried again later cloud=%s error=%s", self.name, error)
            else:
                ended.add(one.id)
        return frozenset(ended)

    def console(self, instance: str) -> str:
        """The machine's console output; empty where the hypervisor shows nothing yet."""
        path = f"/servers/{instance}/action"
        answer = self._call("compute", "POST", path, {"os-getConsoleOutput": {}})
        return str((answer or {}).get("output") or "")
