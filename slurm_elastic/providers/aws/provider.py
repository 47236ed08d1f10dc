"""EC2. Credentials are found by boto3's own means; the calls are those of the EC2 API reference.

A call that a server leaves without an answer ends after the cloud's ``timeout``; one that needs
several requests (thousands of machines) may take that long for each. A request that may have had
its effect is never repeated but under its client token.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress

from botocore.exceptions import ClientError
from msgspec import structs

from slurm_elastic.base.errors import InstanceNotFound, ProviderError, TransientError
from slurm_elastic.config import Cluster
from slurm_elastic.model.cluster import (
    Instance,
    InstanceState,
    LaunchSpec,
    Market,
    Notice,
    Offer,
    Pool,
)
from slurm_elastic.model.finding import Finding
from slurm_elastic.providers.aws import capacity, client, preflight, requests, rights, site_template
from slurm_elastic.providers.aws.catalog import Offers
from slurm_elastic.providers.aws.client import Api
from slurm_elastic.providers.aws.convert import Record
from slurm_elastic.providers.aws.expiry import credentials_end
from slurm_elastic.providers.aws.fleet import ALTERNATIVES, Fleet
from slurm_elastic.providers.aws.images import Images
from slurm_elastic.providers.aws.instances import Ec2Instances, earlier
from slurm_elastic.providers.aws.notices import Notices
from slurm_elastic.providers.aws.rate_limit import Pace, pace_of
from slurm_elastic.providers.aws.settings import AwsCloud, Strategy
from slurm_elastic.providers.aws.site_template import SiteTemplate
from slurm_elastic.providers.aws.stops import Stopping
from slurm_elastic.providers.aws.templates import Templates
from slurm_elastic.providers.aws.termination import Ending
from slurm_elastic.providers.base import tags as machine_tags
from slurm_elastic.providers.base.launched import launched
from slurm_elastic.providers.base.ownership import Ownership, ownership_of
from slurm_elastic.providers.base.recipe import recipe
from slurm_elastic.providers.base.user_data import read_parts

log = logging.getLogger(__name__)


class AwsProvider:
    """One region of one account; see protocols.Provider for the contract. Thread-safe."""

    def __init__(
        self,
        settings: AwsCloud,
        cluster: Cluster,
        clock: Callable[[], float] = time.time,
        ownership: Ownership | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        pace: Pace | None = None,
        joining: str = "",
    ) -> None:
        self.name = settings.name
        self._settings = settings
        self._cluster = cluster
        self._clock = clock
        self._parts = read_parts(settings.user_data, settings.name, joining, requests.USER_DATA)
        self._api = Api(settings, pace or pace_of(settings))
        self._ending = Ending(self._api, settings.name)
        self._stopping = Stopping(self._api, settings.name)
        self._machines = Ec2Instances(settings, ownership or ownership_of(settings, cluster, None))
        self._images = Images(self._api, settings, monotonic)
        self._site = SiteTemplate(self._api, settings, monotonic)
        self._offers = Offers(self._api, settings, self._images, clock, monotonic)
        self._fleet = Fleet(
            self._api,
            settings,
            cluster,
            Templates(self._api, settings, cluster, self._parts, self._images, self._site),
            self._machines,
            clock,
        )
        self._notices = Notices(
            self._api, settings, cluster, self._machines, self._listed, monotonic
        )
        self.alternatives = ALTERNATIVES if settings.strategy is Strategy.FLEET else 0

    def offers(self, pool: Pool) -> Sequence[Offer]:
        """See ``catalog``."""
        return self._offers.of(pool)

    def startable(self) -> int | None:
        """How many machines EC2 would start now, by its limits; None: it has none that we know."""
        return None if self._api.pace is None else self._api.pace.startable()

    def refusals(self, generation: str) -> Mapping[str, ProviderError]:
        """See protocols.Chooser; of fleets."""
        return self._fleet.refusals(generation)

    def launch(self, spec: LaunchSpec) -> Sequence[Instance]:
        """One call for each 1000 nodes; a later one that is refused makes it partial."""
        if not spec.nodes:
            return ()
        start = self._fleet.start if self._settings.strategy is Strategy.FLEET else self._run
        started: list[Instance] = []
        refusal: ProviderError | None = None
        for number, nodes in enumerate(requests.chunks(spec.nodes, self._settings)):
            try:
                machines = start(spec, nodes, number)
            except TransientError:
                raise
            except ProviderError as error:
                refusal = error
                break
            started += machines
            if len(machines) < len(nodes):
                break
        alive = [i for i in started if i.state is not InstanceState.TERMINATED]
        return launched(self.name, spec, alive, refusal)

    def instances(self) -> Sequence[Instance]:
        """Found by tag, in pages of 1000; one that EC2 took is told once."""
        records = self._records()
        settled = {i.id: i for i in self._fleet.settle(records)}
        found = self._machines.read(records)
        return self._machines.standing([settled.get(i.id, i) for i in found])

    def _listed(self) -> Sequence[Instance]:
        return self._machines.read(self._records())

    def _records(self) -> Sequence[Record]:
        filters = [{"Name": f"tag:{machine_tags.CLUSTER}", "Values": [self._cluster.uuid]}]
        request = {"Filters": filters, "MaxResults": client.PAGE}
        reservations = self._api.pages("describe_instances", "Reservations", request)
        return [r for reservation in reservations for r in reservation["Instances"]]

    def terminate(self, ids: Sequence[str]) -> None:
        """1000 a call, or what EC2 lets us end (``termination``). An id that was never seen with
        our tag is looked up, and left alone if it is not ours.
        """
        mine = self._mine(ids)
        # Before the call: an end whose answer is lost is not a machine that EC2 has taken.
        self._machines.ended(mine)
        self._ending.end(mine)

    def recipe(self, pool: Pool) -> str:
        """Its image, user data and all that the site has set of machines."""
        own = self._settings
        template = requests.site_template(own.launch_template) if own.launch_template else {}
        place = sorted(own.subnets.items())
        return recipe(
            pool,
            self._images.of(pool),
            self._parts,
            requests.settings_of_site(own),
            template,
            place,
        )

    def stop(self, ids: Sequence[str]) -> None:
        """See ``stops``. An id that was never seen with our tag is left alone."""
        self._stopping.stop(self._mine(ids, "stopped"))

    def start(self, instance: str) -> None:
        """See ``stops``."""
        if not self._mine([instance], "started"):
            raise InstanceNotFound(self.name, "NotOurs", f"{instance} is none of ours")
        self._stopping.start(instance)

    def _mine(self, ids: Sequence[str], done: str = "terminated") -> Sequence[str]:
        return self._machines.ours.named(ids, self._listed, done)

    def console(self, instance: str) -> str:
        """The machine's console output."""
        request = {"InstanceId": instance}
        try:
            answer = self._api.send("get_console_output", {**request, "Latest": True})
        except ProviderError as error:
            if error.code != "UnsupportedOperation":
                raise
            # Machines without Nitro know no latest one: they show it some minutes late.
            answer = self._api.send("get_console_output", request)
        return str(answer.get("Output") or "")

    def notices(self) -> Sequence[Notice]:
        """See ``notices``."""
        return self._notices.standing(self._clock())

    def check(self) -> None:
        """A DescribeInstances of five: needs the very right that reconcile needs."""
        filters = [{"Name": f"tag:{machine_tags.CLUSTER}", "Values": [self._cluster.uuid]}]
        self._api.send("describe_instances", {"Filters": filters, "MaxResults": 5})

    def credentials_end(self) -> float | None:
        """See ``expiry``; the cloud is not asked."""
        return credentials_end(self._settings)

    def examine(self, pools: Sequence[Pool]) -> Sequence[Finding]:
        """Image, subnets, security groups, clock, quotas and rights."""
        return (
            *preflight.examine(self._api, self._settings, pools, self._images, self._clock),
            *site_template.examine(self._site, self._settings),
            *capacity.examine(self._settings, pools),
            *rights.examine(
                self._api,
                rights.attempts(
                    self._settings, self._cluster, pools, self._trials(pools), self._any_machine()
                ),
            ),
        )

    def _trials(self, pools: Sequence[Pool]) -> Iterator[rights.DryLaunch]:
        """A launch for each market in use; what cannot be read is told by another finding."""
        seen: set[Market] = set()
        for pool in pools:
            with suppress(ProviderError):
                image = self._images.of(pool)
                for offer in self._tried(pool):
                    if offer.market not in seen:
                        seen.add(offer.market)
                        yield rights.DryLaunch(spec=rights.trial(pool, offer), image=image)

    def _tried(self, pool: Pool) -> Iterator[Offer]:
        """The offers of the pool; where nobody tells spot prices, one of each market besides."""
        with suppress(ProviderError):
            yield from self._offers.of(pool)
        if self._offers.trouble is not None:
            yield from self._offers.samples(pool)

    def _any_machine(self) -> str | None:
        with suppress(ProviderError):
            return next((i.id for i in self._listed()), None)
        return None

    # launching

    def _run(self, spec: LaunchSpec, nodes: Sequence[str], number: int) -> Sequence[Instance]:
        """The machines of one call, those included that are gone when it is repeated."""
        request = requests.run_instances(
            structs.replace(self._settings, image=self._images.of(spec.pool)),
            self._cluster,
            spec,
            nodes,
            number=number,
            parts=self._parts,
            site=self._site.if_readable(),
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
