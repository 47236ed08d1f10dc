"""The provider for OpenStack (nova). openstacksdk reads credentials and catalogue; requests are our
own. Credentials are in clouds.yaml, never in our file.

nova creates many servers in one call and has no idempotency token. Therefore a launch first looks
for servers that carry its generation, including ended ones (``launch``).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from functools import cache

from msgspec import to_builtins
from msgspec.structs import replace

from slurm_elastic.base.errors import InstanceNotFound, ProviderError
from slurm_elastic.config import Cluster
from slurm_elastic.config.clouds import LISTING_LAG
from slurm_elastic.model.cluster import EndAnswer, Instance, LaunchSpec, Notice, Offer, Pool
from slurm_elastic.model.finding import Finding
from slurm_elastic.model.machine_options import NO_OPTIONS
from slurm_elastic.providers.base.late import LateFailures, end_failed
from slurm_elastic.providers.base.launched import launched
from slurm_elastic.providers.base.machine_tags import TYPE
from slurm_elastic.providers.base.offers import Room, offers_with
from slurm_elastic.providers.base.ownership import Ownership, ownership_of
from slurm_elastic.providers.base.recipe import recipe
from slurm_elastic.providers.base.unconfirmed import UnconfirmedOrders
from slurm_elastic.providers.base.under_way import LaunchesUnderWay
from slurm_elastic.providers.base.user_data import read_parts
from slurm_elastic.providers.openstack import convert, preflight, requests
from slurm_elastic.providers.openstack.capacity import room
from slurm_elastic.providers.openstack.catalog import Catalog
from slurm_elastic.providers.openstack.convert import ServerFields
from slurm_elastic.providers.openstack.errors import is_refusal, translated
from slurm_elastic.providers.openstack.instances import Servers
from slurm_elastic.providers.openstack.launch import ServerLaunch
from slurm_elastic.providers.openstack.notices import OpenStackNotices
from slurm_elastic.providers.openstack.project import Project
from slurm_elastic.providers.openstack.settings import OpenStackCloud

log = logging.getLogger(__name__)


class OpenStackProvider:
    """One project in one region. The contract is in protocols.Provider. Thread-safe.

    Each request ends after the cloud's ``api_timeout``. A launch may need several requests.
    """

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
        self._project = Project(settings)
        self._call = self._project.call
        owners = ownership or ownership_of(settings, cluster, None)
        self._servers = Servers(settings.name, owners, self._call, settings.threads)
        self._catalog = Catalog(settings, self._call)
        self._notices = OpenStackNotices(self._servers.live, clock, time.monotonic)
        self._unconfirmed = UnconfirmedOrders(
            settings.name, settings.listing_lag or LISTING_LAG, monotonic
        )
        self._launches = LaunchesUnderWay()
        self._failures = LateFailures(settings.name, clock)

    def offers(self, pool: Pool) -> Sequence[Offer]:
        """The types of the pool whose flavors exist, with the room that the quota leaves."""
        limits, flavors = cache(self._limits), cache(self._catalog.flavors)

        def free(name: str) -> Room | None:
            flavor = flavors().get(name)
            return None if flavor is None else room(limits(), flavor.vcpus, flavor.ram)

        return offers_with(self._settings, pool, free)

    def launch(self, spec: LaunchSpec) -> Sequence[Instance]:
        """Make one call for each 100 nodes and wait for nova's scheduler to place the servers.

        A server that it cannot place is deleted again.
        """
        if not spec.nodes:
            return ()
        launch = ServerLaunch(
            self._servers,
            self._order,
            lambda: self._failures.take(spec.offer.instance_type),
            self._cluster.uuid or "",
            spec,
            self._settings.schedule_timeout,
            self._unconfirmed,
        )
        with self._launches.hold(spec.generation):
            launch.run(self._clock())
        machines = [convert.instance(s, self._settings) for s in launch.standing.values()]
        return launched(self.name, spec, machines, launch.refusal)

    def instances(self) -> Sequence[Instance]:
        """The project's servers with our metadata."""
        return tuple(convert.instance(s, self._settings) for s in self._servers.live())

    def tidy(self) -> Sequence[Instance]:
        """End servers whose start failed. See protocols.Tidying."""
        servers = self._servers.live()
        launching = self._launches.now()
        failed = [s for s in servers if s.failed and s.generation not in launching]
        ended = self._end_failed(failed) if failed else frozenset()
        return tuple(
            convert.instance(
                replace(s, status="DELETED", task="") if s.id in ended else s, self._settings
            )
            for s in servers
        )

    def terminate(self, ids: Sequence[str]) -> Mapping[str, EndAnswer]:
        """Delete servers, one per call and several at a time. An id that was never listed with our
        metadata is looked up and left alone.
        """
        own_ids, other_ids = self._servers.ours.split(ids, self._servers.live)
        return {**self._servers.delete(own_ids), **self._servers.look_up(other_ids)}

    def gone(self, ids: Sequence[str]) -> Collection[str]:
        """See ``model.protocols.LooksUp``."""
        answers = self._servers.look_up(ids)
        return [i for i in ids if answers[i] is EndAnswer.GONE]

    def image_for(self, pool: Pool) -> str:
        """The id of the image that a new server would start from."""
        return self._catalog.image(pool.image)

    def recipe(self, pool: Pool) -> str:
        """The recipe of a fresh machine: its image, user data, and the site's settings for
        machines.
        """
        settings = self._settings
        site_settings = (
            settings.networks,
            settings.security_groups,
            settings.key_name,
            settings.config_drive,
        )
        # Only if set, so that a new version of ours does not change each recipe.
        machine = [to_builtins(pool.machine)] if pool.machine != NO_OPTIONS else []
        image = self._catalog.image(pool.image)
        return recipe(pool, image, self._parts, site_settings, *machine)

    def stop(self, ids: Sequence[str]) -> Sequence[str]:
        """Stop servers, one per call. nova keeps counting them in the project's quota."""
        own_ids, other_ids = self._servers.ours.split(ids, self._servers.live)
        self._servers.stop(own_ids)
        return other_ids

    def start(self, instance: str) -> None:
        """Start a stopped server."""
        if self._servers.ours.split([instance], self._servers.live)[1]:
            raise InstanceNotFound(self.name, "NotOurs", f"{instance} is not one of our machines")
        self._servers.start(instance)

    def notices(self) -> Sequence[Notice]:
        """Notices for servers on hosts in maintenance, if nova shows that to the project."""
        return self._notices.standing()

    def check(self) -> None:
        """List one server. This needs a token and the same right as a listing."""
        self._call("compute", "GET", "/servers?limit=1")

    def credentials_end(self) -> float | None:
        """When the token, application credential or password ends; None if it does not end."""
        return self._project.credentials_end()

    def examine(self, pools: Sequence[Pool]) -> Sequence[Finding]:
        """Findings about flavors, images, networks, key pair, security groups, zones and quotas."""
        findings = [*preflight.examine(self._call, self._settings, self._catalog, pools)]
        try:
            limits, flavors = self._limits(), self._catalog.flavors()
            own_machines = [convert.instance(s, self._settings) for s in self._servers.live()]
        except ProviderError as error:
            findings.append(Finding.note("quota", f"cannot be read: {error.refusal}"))
        else:
            findings += preflight.quotas(self._settings, limits, flavors, pools, own_machines)
        return tuple(findings)

    def lets_udp_in(self, port: int) -> bool | None:
        """Whether the groups let UDP to this port in. See ``InboundRules``."""
        groups = self._settings.security_groups
        if not groups:
            return None
        return any(preflight.lets_udp_in(self._call, group, port) for group in groups)

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
                    # Only its presence matters: a listing has all machines.
                    answer["server"]["id"]
        except ProviderError:
            # The name may belong to a new image or flavor by now, so the next call looks it up
            # again.
            self._catalog.forget()
            raise

    def _end_failed(self, failed: Sequence[ServerFields]) -> Container[str]:
        """End these servers and remember the failure of their types. Returns the ids that were
        ended.
        """
        fault = self._servers.fault(failed[0].id)
        for server in failed:
            self._failures.note(server.tags.get(TYPE, ""), fault)
        machines = [convert.instance(server, self._settings) for server in failed]
        faults = dict.fromkeys((server.id for server in failed), fault)
        return end_failed(self.name, machines, lambda id_: self._servers.delete([id_]), faults)

    def console(self, instance: str) -> str:
        """The machine's console output; empty if the hypervisor has none yet."""
        path = f"/servers/{instance}/action"
        answer = self._call("compute", "POST", path, {"os-getConsoleOutput": {}})
        return str((answer or {}).get("output") or "")
