"""The provider for Google Compute Engine. google-auth finds the credentials; the calls are
described in the Compute Engine API's reference (v1).

A machine's id is its name, which contains its node and a hash of its launch (``named``). A request
that may have taken effect is only ever repeated with the same ``requestId``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import ClassVar
from urllib.parse import quote

from msgspec import to_builtins

from slurm_elastic.base.errors import CapacityError, InstanceNotFound, ProviderError
from slurm_elastic.base.guards import Guarded, GuardedBy
from slurm_elastic.base.ttl_cache import TtlCache
from slurm_elastic.config import Cluster
from slurm_elastic.model.cluster import (
    EndAnswer,
    Instance,
    LaunchSpec,
    Notice,
    NoticeKind,
    Offer,
    Pool,
)
from slurm_elastic.model.finding import Finding
from slurm_elastic.model.machine_options import NO_OPTIONS
from slurm_elastic.providers.base.late import LateFailures
from slurm_elastic.providers.base.launched import launched
from slurm_elastic.providers.base.offers import ROOM_UNKNOWN, offers_with
from slurm_elastic.providers.base.ownership import Ownership, ownership_of
from slurm_elastic.providers.base.parallel import each
from slurm_elastic.providers.base.published import PublishedFeed
from slurm_elastic.providers.base.recipe import recipe
from slurm_elastic.providers.base.under_way import LaunchesUnderWay
from slurm_elastic.providers.base.user_data import read_parts
from slurm_elastic.providers.gcp import convert, preflight, requests
from slurm_elastic.providers.gcp.client import Project
from slurm_elastic.providers.gcp.convert import MachineFields
from slurm_elastic.providers.gcp.images import Images
from slurm_elastic.providers.gcp.instances import Machines
from slurm_elastic.providers.gcp.launch import BulkLaunch
from slurm_elastic.providers.gcp.operations import Operations
from slurm_elastic.providers.gcp.settings import GcpCloud
from slurm_elastic.providers.gcp.spot_prices import price_source

TYPES_TTL_S = 3600.0
NOTICES_TTL_S = 60.0
"""One listing of machines is reused for so long."""
MAINTENANCE_NOTICE_S = 3600.0
"""Jobs leave a machine so long before the maintenance of its host. Google announces maintenance
weeks ahead, and often of all its hosts, so a new machine could have the same announcement.
"""
EARLY_S = 900.0
"""A machine that went off later has served before."""


class GcpProvider:
    """One region of one project. The contract is in protocols.Provider. Thread-safe.

    Each request ends after the cloud's ``api_timeout``. A launch needs several requests.
    """

    guarded_by: ClassVar[GuardedBy] = {"_lock": Guarded("_stopped", "_failed")}

    def __init__(
        self,
        settings: GcpCloud,
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
        uuid = cluster.uuid or ""
        self._project = Project(settings)
        self._operations = Operations(settings, self._project)
        owners = ownership or ownership_of(settings, cluster, None)
        self._machines = Machines(settings, uuid, owners, self._project, self._operations)
        self._images = Images(settings, self._project)
        self._launch = BulkLaunch(
            settings, uuid, self._project, self._machines, self._operations, self._body
        )
        self._failures = LateFailures(settings.name, monotonic, settings.threads)
        source = price_source(settings, self._project, clock)
        self._prices = PublishedFeed(settings, source, monotonic)
        self._types = TtlCache[tuple[str, str], bool](monotonic)
        self._notices = TtlCache[str, Sequence[Notice]](monotonic)
        self._lock = threading.Lock()
        self._launches = LaunchesUnderWay()
        self._stopped: set[str] = set()
        self._failed: set[str] = set()

    @property
    def trouble(self) -> str:
        """See protocols.Reporting."""
        return self._prices.trouble

    def offers(self, pool: Pool) -> Sequence[Offer]:
        """The types of the pool, in the zones that have them. Google does not report how many
        machines it has left.
        """
        published = self._prices.published()
        offers = offers_with(self._settings, pool, lambda _: ROOM_UNKNOWN, published)
        places = list(dict.fromkeys((offer.zone, offer.instance_type) for offer in offers))
        found = [f.result() for f in each(places, self._has_type, self._settings.threads)]
        there = {place for place, is_there in zip(places, found, strict=True) if is_there}
        return tuple(o for o in offers if (o.zone, o.instance_type) in there)

    def _has_type(self, place: tuple[str, str]) -> bool:
        """Whether a zone has a machine type."""
        return self._types.get(place, lambda: self._read_type(place), ttl_s=TYPES_TTL_S)

    def _read_type(self, place: tuple[str, str]) -> bool:
        return preflight.machine_type(self._project, *place) is not None

    def launch(self, spec: LaunchSpec) -> Sequence[Instance]:
        """Make one call for each 1000 nodes, and wait until Google has carried it out."""
        if not spec.nodes:
            return ()
        # If this launch has begun, Google may still carry out its first call. The failure of
        # another launch is no reason to give it up.
        is_begun = self._launch.may_have_begun(spec)
        if not is_begun and (warning := self._failures.take(spec.offer.key)):
            raise warning
        with self._launches.hold(spec.generation), self._fresh_images():
            machines, refusal = self._launch.run(spec)
        return launched(self.name, spec, machines, refusal)

    def _body(self, spec: LaunchSpec, nodes: Sequence[str]) -> Mapping[str, object]:
        image = self._images.of(spec.pool.image)
        return requests.body(
            self._settings, self._cluster, spec, nodes, image=image, parts=self._parts
        )

    @contextmanager
    def _fresh_images(self) -> Iterator[None]:
        """Look the names of images up again after an error in the block."""
        try:
            yield
        except ProviderError:
            self._images.forget()
            raise

    def instances(self) -> Sequence[Instance]:
        """The region's machines with our labels."""
        return self._shown(self._machines.live())

    def _shown(self, machines: Sequence[MachineFields]) -> tuple[Instance, ...]:
        with self._lock:
            # A failed machine was reported as ended, while Google still deletes it.
            self._failed &= {m.name for m in machines if not m.is_off}
            shown = [m for m in machines if m.name not in self._failed]
        return tuple(convert.instance(machine, self._settings) for machine in shown)

    def _is_lost(self, machine: MachineFields) -> bool:
        """Whether the machine is off although nobody has stopped it. A machine whose pool did not
        stop machines when it was launched counts as such after a restart of ours: it is idle, and
        a fresh one takes its place.
        """
        with self._lock:
            is_ours = machine.name in self._stopped
        return machine.is_off and not is_ours and not machine.may_be_stopped

    def tidy(self) -> Sequence[Instance]:
        """End machines that went off by themselves: their hosts failed, or their guests shut down.
        Their disks cost money. See protocols.Tidying.
        """
        machines = self._machines.live()
        launching = self._launches.now()
        lost = [m for m in machines if self._is_lost(m) and m.generation not in launching]
        failed = {m.name: self._failure(m) for m in lost}
        served = frozenset(m.name for m in lost if m.stopped_at - m.created > EARLY_S)
        return self._failures.tidied(self._shown(machines), failed, self._end_failed, served)

    def _failure(self, machine: MachineFields) -> ProviderError:
        text = f"machine {machine.name} went off by itself ({machine.status})"
        return CapacityError(self.name, "WentOff", text)

    def _end_failed(self, name: str) -> None:
        self._machines.delete([name])
        with self._lock:
            self._failed.add(name)

    def terminate(self, ids: Sequence[str]) -> Mapping[str, EndAnswer]:
        """Delete machines, one per call and several at a time. An id that was never listed with our
        labels is looked up and left alone.
        """
        own_ids, other_ids = self._machines.ours.split(ids, self._machines.live)
        return {**self._machines.delete(own_ids), **self._machines.look_up(other_ids)}

    def gone(self, ids: Sequence[str]) -> Collection[str]:
        """See ``model.protocols.LooksUp``."""
        answers = self._machines.look_up(ids)
        return [i for i in ids if answers[i] is EndAnswer.GONE]

    def image_for(self, pool: Pool) -> str:
        """The number of the image that a new machine would start from."""
        return self._images.of(pool.image)["id"]

    def recipe(self, pool: Pool) -> str:
        """The recipe of a fresh machine: its image, user data, and the site's settings for
        machines.
        """
        settings = self._settings
        site_settings = (
            requests.subnetwork_path(settings),
            settings.external_ip,
            settings.network_tags,
            settings.service_account,
            settings.secure_boot,
        )
        # Only if set, so that a new version of ours does not change each recipe.
        machine = [to_builtins(pool.machine)] if pool.machine != NO_OPTIONS else []
        return recipe(pool, self._images.of(pool.image)["id"], self._parts, site_settings, *machine)

    def stop(self, ids: Sequence[str]) -> Sequence[str]:
        """Stop machines, one per call. Their disks stay, and cost money."""
        own_ids, other_ids = self._machines.ours.split(ids, self._machines.live)
        with self._lock:
            # Before the call, so that no list between takes them for failed ones.
            self._stopped.update(own_ids)
        for name in own_ids:
            self._machines.stop(name)
        return other_ids

    def start(self, instance: str) -> None:
        """Start a stopped machine."""
        if self._machines.ours.split([instance], self._machines.live)[1]:
            raise InstanceNotFound(self.name, "NotOurs", f"{instance} is not one of our machines")
        self._machines.start(instance)
        with self._lock:
            self._stopped.discard(instance)

    def notices(self) -> Sequence[Notice]:
        """Maintenance of hosts that begins soon, according to Google's API. Machines report their
        own preemption (the agent).
        """
        return self._notices.get("all", self._read_notices, ttl_s=NOTICES_TTL_S)

    def _read_notices(self) -> Sequence[Notice]:
        now, reason = self._clock(), "Google: maintenance of the machine's host"
        return tuple(
            Notice(
                instance=m.name, kind=NoticeKind.INTERRUPTION, seen=now, deadline=m.maintenance,
                reason=reason,
            )
            for m in self._machines.live()
            if m.maintenance is not None and m.maintenance - now < MAINTENANCE_NOTICE_S
        )  # fmt: skip

    def console(self, instance: str) -> str:
        """The machine's output at its serial port."""
        return self._machines.console(instance)

    def check(self) -> None:
        """List one machine. This needs the same right as a listing."""
        path = f"zones/{quote(self._settings.zones[0])}/instances"
        self._project.call("GET", path, query={"maxResults": "1", "fields": "items(name)"})

    def examine(self, pools: Sequence[Pool]) -> Sequence[Finding]:
        """Findings about image, subnetwork, types, quotas and published prices."""
        findings = preflight.examine(self._project, self._settings, self._images, pools)
        return (*findings, *self._prices.examine())
