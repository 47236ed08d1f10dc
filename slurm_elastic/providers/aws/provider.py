"""The provider for EC2. boto3 finds the credentials; the calls are described in the EC2 API
reference.

A call without an answer ends after the cloud's ``api_timeout``. An operation that needs several
requests (thousands of machines) may take so long for each of them. A request that may have taken
effect is only ever repeated with the same client token.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress

from botocore.exceptions import ClientError
from msgspec import structs, to_builtins

from slurm_elastic.base.errors import InstanceNotFound, ProviderError, TransientError
from slurm_elastic.config import Cluster
from slurm_elastic.model.cluster import (
    EndAnswer,
    Instance,
    InstanceState,
    LaunchSpec,
    Market,
    Notice,
    Offer,
    Pool,
)
from slurm_elastic.model.finding import Finding
from slurm_elastic.model.machine_options import NO_OPTIONS
from slurm_elastic.providers.aws import client, requests, site_template
from slurm_elastic.providers.aws.catalog import AwsOffers
from slurm_elastic.providers.aws.checks import capacity, hardware_preflight, preflight, rights
from slurm_elastic.providers.aws.client import AwsApi
from slurm_elastic.providers.aws.convert import Record, lets_udp_in
from slurm_elastic.providers.aws.efa import EfaTypes
from slurm_elastic.providers.aws.errors import of_whole_call
from slurm_elastic.providers.aws.expiry import credentials_end
from slurm_elastic.providers.aws.fleet import ALTERNATIVES, FleetStrategy
from slurm_elastic.providers.aws.hardware import HardwareFacts, for_pool, uses_fleets
from slurm_elastic.providers.aws.images import AwsImages
from slurm_elastic.providers.aws.instances import Ec2Instances, earlier
from slurm_elastic.providers.aws.notices import AwsNotices
from slurm_elastic.providers.aws.placement import PlacementGroups
from slurm_elastic.providers.aws.rate_limit import RateLimits, pace_of
from slurm_elastic.providers.aws.settings import AwsCloud, Strategy
from slurm_elastic.providers.aws.site_template import SiteTemplate
from slurm_elastic.providers.aws.stops import AwsStops
from slurm_elastic.providers.aws.templates import Templates
from slurm_elastic.providers.aws.termination import AwsTermination
from slurm_elastic.providers.base import tags as machine_tags
from slurm_elastic.providers.base.launched import launched
from slurm_elastic.providers.base.ownership import Ownership, ownership_of
from slurm_elastic.providers.base.recipe import recipe
from slurm_elastic.providers.base.user_data import read_parts

log = logging.getLogger(__name__)


class AwsProvider:
    """One region of one account. The contract is in protocols.Provider. Thread-safe."""

    def __init__(
        self,
        settings: AwsCloud,
        cluster: Cluster,
        clock: Callable[[], float] = time.time,
        ownership: Ownership | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        pace: RateLimits | None = None,
        joining: str = "",
    ) -> None:
        self.name = settings.name
        self._settings = settings
        self._cluster = cluster
        self._clock = clock
        self._parts = read_parts(settings.user_data, settings.name, joining, requests.USER_DATA)
        self._api = AwsApi(settings, pace or pace_of(settings))
        self._ending = AwsTermination(self._api, settings.name)
        self._stopping = AwsStops(self._api, settings.name)
        self._machines = Ec2Instances(settings, ownership or ownership_of(settings, cluster, None))
        self._images = AwsImages(self._api, settings, monotonic)
        self._site = SiteTemplate(self._api, settings, monotonic)
        self._efa = EfaTypes(self._api, monotonic)
        self._groups = PlacementGroups(self._api, settings, cluster)
        self._offers = AwsOffers(self._api, settings, self._images, self._efa, clock, monotonic)
        self._fleet = FleetStrategy(
            self._api,
            settings,
            cluster,
            Templates(self._api, settings, cluster, self._parts, self._images, self._site),
            self._machines,
            clock,
        )
        self._notices = AwsNotices(
            self._api, settings, cluster, self._machines, self._listed, monotonic
        )
        self.alternatives = ALTERNATIVES if settings.strategy is Strategy.FLEET else 0

    def offers(self, pool: Pool) -> Sequence[Offer]:
        """The offers for a pool. See ``catalog``."""
        return self._offers.of(pool)

    def startable(self) -> int | None:
        """How many machines EC2's limits let us start now; None if no limits are known."""
        return None if self._api.pace is None else self._api.pace.startable()

    def refusals(self, generation: str) -> Mapping[str, ProviderError]:
        """The refusals of a fleet. See protocols.Chooser."""
        return self._fleet.refusals(generation)

    def launch(self, spec: LaunchSpec) -> Sequence[Instance]:
        """Launch in calls of 1000 nodes. If a later call is refused, the launch is partial."""
        if not spec.nodes:
            return ()
        is_fleet = uses_fleets(self._settings, [spec.pool]) and spec.offer.held is None
        start = self._fleet.start if is_fleet else self._run
        self._groups.ensure(spec.pool)
        started: list[Instance] = []
        refusal: ProviderError | None = None
        for number, nodes in enumerate(requests.chunks(spec.nodes, self._settings)):
            try:
                machines = start(spec, nodes, number)
            # The call may have started machines. The whole launch is repeated with the same token.
            except TransientError:
                raise
            except ProviderError as error:
                refusal = of_whole_call(error, requests.least_of(spec, nodes))
                self._groups.forget()
                break
            started += machines
            # Fewer machines than nodes: EC2 has no more of them now, and the next call would be
            # refused.
            if len(machines) < len(nodes):
                break
        # The answer to a repeated token also has machines that have ended since.
        alive = [i for i in started if i.state is not InstanceState.TERMINATED]
        return launched(self.name, spec, alive, refusal)

    def instances(self) -> Sequence[Instance]:
        """Our machines, found by tag in pages of 1000. A machine that EC2 took back is reported
        once.
        """
        return self._machines.standing(self._listed())

    def tidy(self) -> Sequence[Instance]:
        """Give nodes to machines of a fleet that waited too long for a node. See
        protocols.Tidying.
        """
        records = self._records()
        adopted = {i.id: i for i in self._fleet.adopt_abandoned(records)}
        machines = self._machines.read(records)
        return self._machines.standing([adopted.get(i.id, i) for i in machines])

    def _listed(self) -> Sequence[Instance]:
        return self._machines.read(self._records())

    def _records(self) -> Sequence[Record]:
        filters = [{"Name": f"tag:{machine_tags.CLUSTER}", "Values": [self._cluster.uuid]}]
        request = {"Filters": filters, "MaxResults": client.PAGE}
        reservations = self._api.pages("describe_instances", "Reservations", request)
        return [r for reservation in reservations for r in reservation["Instances"]]

    def terminate(self, ids: Sequence[str]) -> Mapping[str, EndAnswer]:
        """End machines, 1000 per call or as many as EC2 lets us (``termination``). An id that was
        never listed with our tag is looked up, and left alone if it is not ours.
        """
        own_ids, other_ids = self._machines.ours.split(ids, self._listed)
        # Before the call: if its answer is lost, the machine must not look as if EC2 had taken it
        # back.
        self._machines.note_ended(own_ids)
        return {**self._ending.end(own_ids), **self._look_up(other_ids)}

    def gone(self, ids: Sequence[str]) -> Collection[str]:
        """See ``model.protocols.LooksUp``."""
        answers = self._look_up(ids)
        return [i for i in ids if answers[i] is EndAnswer.GONE]

    def _look_up(self, ids: Sequence[str]) -> Mapping[str, EndAnswer]:
        """Whether EC2 has these machines, whose tags are not ours."""
        present: set[str] = set()
        for start in range(0, len(ids), client.FILTERED):
            # A filter, because EC2 refuses a whole list of ids for one id that it does not know.
            filters = [{"Name": "instance-id", "Values": ids[start : start + client.FILTERED]}]
            reservations = self._api.pages(
                "describe_instances", "Reservations", {"Filters": filters}
            )
            present |= {
                str(record["InstanceId"])
                for reservation in reservations
                for record in reservation["Instances"]
                if record["State"]["Name"] != "terminated"
            }
        return {i: EndAnswer.NOT_OURS if i in present else EndAnswer.GONE for i in ids}

    def image_for(self, pool: Pool) -> str:
        """The id of the image that a new machine would start from."""
        return self._images.of(pool)

    def recipe(self, pool: Pool) -> str:
        """The recipe of a fresh machine: its image, user data, and the site's settings for
        machines.
        """
        settings = for_pool(self._settings, pool)
        template = (
            requests.site_template(settings.launch_template) if settings.launch_template else {}
        )
        place = sorted(settings.subnets.items())
        return recipe(
            pool,
            self._images.of(pool),
            self._parts,
            requests.settings_of_site(settings),
            template,
            place,
            # Only if set, so that a new version of ours does not change each recipe.
            *([to_builtins(pool.machine)] if pool.machine != NO_OPTIONS else ()),
        )

    def stop(self, ids: Sequence[str]) -> Sequence[str]:
        """Stop machines. See ``stops``. An id that was never listed with our tag is left alone."""
        own_ids, other_ids = self._machines.ours.split(ids, self._listed)
        self._stopping.stop(own_ids)
        return other_ids

    def start(self, instance: str) -> None:
        """Start a stopped machine. See ``stops``."""
        if self._machines.ours.split([instance], self._listed)[1]:
            raise InstanceNotFound(self.name, "NotOurs", f"{instance} is not one of our machines")
        self._stopping.start(instance)

    def console(self, instance: str) -> str:
        """The machine's console output."""
        request = {"InstanceId": instance}
        try:
            answer = self._api.send("get_console_output", {**request, "Latest": True})
        except ProviderError as error:
            if error.code != "UnsupportedOperation":
                raise
            # Only Nitro machines have the latest output. Others show their output some minutes
            # late.
            answer = self._api.send("get_console_output", request)
        return str(answer.get("Output") or "")

    def lets_udp_in(self, port: int) -> bool | None:
        """Whether the groups let UDP to this port in. See ``InboundRules``."""
        if not self._settings.security_groups:
            return None
        request = {"GroupIds": list(self._settings.security_groups)}
        groups = self._api.send("describe_security_groups", request).get("SecurityGroups", ())
        return any(
            lets_udp_in(rule, port) for group in groups for rule in group.get("IpPermissions", ())
        )

    def notices(self) -> Sequence[Notice]:
        """The current notices. See ``notices``."""
        return self._notices.standing(self._clock())

    def check(self) -> None:
        """Describe five machines. This needs the same right as a listing."""
        filters = [{"Name": f"tag:{machine_tags.CLUSTER}", "Values": [self._cluster.uuid]}]
        self._api.send("describe_instances", {"Filters": filters, "MaxResults": 5})

    def credentials_end(self) -> float | None:
        """When the credentials end. See ``expiry``; the cloud is not asked."""
        return credentials_end(self._settings)

    def examine(self, pools: Sequence[Pool]) -> Sequence[Finding]:
        """Findings about image, subnets, security groups, clock, quotas and rights."""
        return (
            *preflight.examine(self._api, self._settings, pools, self._images, self._clock),
            *hardware_preflight.examine(self._api, self._settings, pools, self._efa),
            *site_template.examine(self._site, self._settings),
            *capacity.examine(self._settings, pools),
            *rights.examine(
                self._api,
                rights.attempts(
                    self._settings,
                    self._cluster,
                    pools,
                    self._dry_launches(pools),
                    self._any_machine(),
                ),
            ),
        )

    def _dry_launches(self, pools: Sequence[Pool]) -> Iterator[rights.DryLaunch]:
        """A dry launch for each market in use, and for each pool with options of its own. An error
        here is reported by another finding.
        """
        tried: set[tuple[Market, str]] = set()
        for pool in pools:
            with suppress(ProviderError):
                image = self._images.of(pool)
                for offer in self._offers_to_try(pool):
                    kind = offer.market, pool.name if pool.machine != NO_OPTIONS else ""
                    if kind not in tried:
                        tried.add(kind)
                        facts = self._facts(pool, offer)
                        spec = rights.trial(pool, offer)
                        yield rights.DryLaunch(spec=spec, image=image, facts=facts)

    def _offers_to_try(self, pool: Pool) -> Iterator[Offer]:
        """The pool's offers. If spot prices cannot be read, also an offer for each market."""
        with suppress(ProviderError):
            yield from self._offers.of(pool)
        if self._offers.trouble is not None:
            yield from self._offers.samples(pool)

    def _facts(self, pool: Pool, offer: Offer) -> HardwareFacts:
        name, types = offer.instance_type, pool.instance_types or (offer.instance_type,)
        return HardwareFacts(
            root_device=self._images.root_device(pool),
            efa_interfaces=self._efa.of(self.name, name, types) if pool.machine.rdma else 0,
        )

    def _any_machine(self) -> str | None:
        with suppress(ProviderError):
            return next((i.id for i in self._listed()), None)
        return None

    # launching

    def _run(self, spec: LaunchSpec, nodes: Sequence[str], number: int) -> Sequence[Instance]:
        """The machines of one call. A repeated call also returns ended machines."""
        settings = for_pool(self._settings, spec.pool)
        request = requests.run_instances(
            structs.replace(settings, image=self._images.of(spec.pool)),
            self._cluster,
            spec,
            nodes,
            number=number,
            parts=self._parts,
            site=self._site.if_readable(),
            facts=self._facts(spec.pool, spec.offer),
        )
        try:
            answer = self._api.send("run_instances", request, len(nodes))
        except ClientError as error:
            launch = spec.generation
            return earlier(
                self.name, error,
                lambda: [i for i in self._listed() if i.generation == launch and i.node in nodes],
            )  # fmt: skip
        return self._machines.read(answer["Instances"])
