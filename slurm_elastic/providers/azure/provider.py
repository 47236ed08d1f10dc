"""The provider for Azure: one resource group of a subscription.

Azure creates one VM per call, by its name. The name says which launch and node the VM is for, and
``If-None-Match: *`` refuses a second creation. The same call finds a lost answer, so no launch
waits for lists. Azure accepts an order before it looks for capacity: a machine that it
cannot start stays in the state "Failed", with its card and disk, until it is deleted.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import ClassVar

from msgspec import to_builtins

from slurm_elastic.base.errors import (
    AuthError,
    CapacityError,
    InstanceNotFound,
    ProviderError,
    QuotaError,
    TransientError,
)
from slurm_elastic.base.guards import Guarded, GuardedBy
from slurm_elastic.config import Cluster
from slurm_elastic.model.cluster import EndAnswer, Instance, LaunchSpec, Notice, Offer, Pool
from slurm_elastic.model.finding import Finding
from slurm_elastic.model.machine_options import NO_OPTIONS
from slurm_elastic.providers.azure import preflight, requests
from slurm_elastic.providers.azure.client import ArmApi
from slurm_elastic.providers.azure.errors import ALREADY_THERE, had_no_effect
from slurm_elastic.providers.azure.machines import Machines, SeenVm
from slurm_elastic.providers.azure.pacing import ArmRates
from slurm_elastic.providers.azure.remains import Remains
from slurm_elastic.providers.azure.retail_prices import price_source
from slurm_elastic.providers.azure.settings import AzureCloud
from slurm_elastic.providers.base.late import LateFailures
from slurm_elastic.providers.base.launched import launched
from slurm_elastic.providers.base.named import with_hidden
from slurm_elastic.providers.base.offers import ROOM_UNKNOWN, offers_with
from slurm_elastic.providers.base.one_by_one import OneByOne
from slurm_elastic.providers.base.ownership import Ownership, ownership_of
from slurm_elastic.providers.base.parallel import each, failures, raise_first_error
from slurm_elastic.providers.base.published import PublishedFeed
from slurm_elastic.providers.base.recipe import recipe
from slurm_elastic.providers.base.under_way import LaunchesUnderWay

log = logging.getLogger(__name__)

_POLL_EVERY_S = 2.0
_UNSEEN_S = 60.0
"""For so long the resource manager may not find a machine that it has just accepted, because its
regions copy their records from each other.
"""


class AzureProvider:
    """One resource group. The contract is in protocols.Provider. Thread-safe.

    Each request ends after the cloud's ``api_timeout``. A launch needs one for each machine.
    """

    guarded_by: ClassVar[GuardedBy] = {"_lock": Guarded("_operations", "_ordered_at")}

    def __init__(
        self,
        settings: AzureCloud,
        cluster: Cluster,
        ownership: Ownership | None = None,
        joining: str = "",
        monotonic: Callable[[], float] = time.monotonic,
        rates: ArmRates | None = None,
        poll_every_s: float = _POLL_EVERY_S,
    ) -> None:
        self.name = settings.name
        self._settings = settings
        self._cluster = cluster
        self._parts = requests.parts_of(settings, joining)
        self._api = ArmApi(settings, rates)
        owners = ownership or ownership_of(settings, cluster, None)
        self._machines = Machines(settings, self._api, owners, monotonic)
        # No lag: a machine that lists lack is found by its name.
        self._calls = OneByOne(
            settings.name, 0.0, monotonic, had_no_effect, settings.threads, _is_for_all
        )
        self._failures = LateFailures(settings.name, monotonic, settings.threads)
        self._remains = Remains(settings, self._api, cluster.uuid or "", monotonic)
        self._prices = PublishedFeed(settings, price_source(settings), monotonic)
        self._poll_every_s, self._monotonic = poll_every_s, monotonic
        self._lock = threading.Lock()
        self._launches = LaunchesUnderWay()
        self._operations: dict[str, str] = {}
        self._ordered_at: dict[str, float] = {}

    @property
    def trouble(self) -> str:
        """See protocols.Reporting."""
        return "; ".join(filter(None, (self._remains.trouble, self._prices.trouble)))

    def offers(self, pool: Pool) -> Sequence[Offer]:
        """The configured types of the pool. Azure does not report how many machines fit."""
        published = self._prices.published()
        return offers_with(self._settings, pool, lambda _name: ROOM_UNKNOWN, published)

    def launch(self, spec: LaunchSpec) -> Sequence[Instance]:
        """Make one PUT per node, and wait a while for Azure to find that it has no capacity."""
        if not spec.nodes:
            return ()
        listed: Sequence[Instance] = self._listed()
        is_begun = spec.is_repeated or self._calls.began(spec.generation)
        if is_begun:
            listed = with_hidden(
                self._cluster.uuid or "", spec, listed, self._hidden, self._settings.threads
            )
        elif warning := self._failures.take(spec.offer.key):
            raise warning
        with self._launches.hold(spec.generation):
            machines = self._calls.launch(spec, listed, self._make)
            return self._settled(spec, machines)

    def instances(self) -> Sequence[Instance]:
        """The group's machines with our tags."""
        return self._calls.shown(self._listed())

    def tidy(self) -> Sequence[Instance]:
        """End machines whose start failed, and delete what ended machines left. See
        protocols.Tidying.
        """
        seen = self._machines.seen()
        launching = self._launches.now()
        failed = {
            vm.vm.name: self._failure_of(vm)
            for vm in seen
            if vm.failed and vm.vm.generation not in launching
        }
        listed = self._calls.shown([self._machines.instance(vm) for vm in seen])
        tidied = self._failures.tidied(listed, failed, self._end_failed)
        self._remains.sweep()
        return tidied

    def terminate(self, ids: Sequence[str]) -> Mapping[str, EndAnswer]:
        """Delete machines, several at a time. A machine that no list has shown is looked up by its
        name, and left alone unless it has our tags.
        """
        own, unlisted = self._machines.ours.split(ids, self._listed)
        answers = self._machines.look_up(unlisted)
        own += [name for name, answer in answers.items() if answer is None]
        self._forget_orders(own)
        others = {name: answer for name, answer in answers.items() if answer is not None}
        return {**self._calls.terminate(own, self._machines.end), **others}

    def gone(self, ids: Sequence[str]) -> Collection[str]:
        """See ``model.protocols.LooksUp``."""
        answers = self._machines.look_up(list(dict.fromkeys(ids)))
        return [name for name, answer in answers.items() if answer is EndAnswer.GONE]

    def recipe(self, pool: Pool) -> str:
        """The recipe of a fresh machine: its image, user data, and the site's settings for
        machines.
        """
        settings = self._settings
        site_settings = (
            settings.subnet, settings.security_group or "", settings.machine_identity or "",
            settings.ssh_public_key, settings.accelerated_networking,
        )  # fmt: skip
        image = settings.image
        if pool.image is not None and pool.image.id is not None:
            image = pool.image.id
        # Only if set, so that a new version of ours does not change each recipe.
        machine = [to_builtins(pool.machine)] if pool.machine != NO_OPTIONS else []
        return recipe(pool, image, self._parts, site_settings, *machine)

    def stop(self, ids: Sequence[str]) -> Collection[str]:
        """Deallocate machines, several at a time. Azure bills their disks only."""
        own, others = self._machines.ours.split(ids, self._listed)
        results = each(own, self._machines.stop, self._settings.threads)
        raise_first_error(failures(results))
        stopped = zip(own, results, strict=True)
        return [*others, *(name for name, result in stopped if not result.result())]

    def start(self, instance: str) -> None:
        """Start a deallocated machine. A refusal is also the answer to the next launch of the same
        kind, which would find no capacity either.
        """
        if self._machines.ours.split([instance], self._listed)[1]:
            raise InstanceNotFound(self.name, "NotOurs", f"{instance} is not one of our machines")
        try:
            self._machines.start(instance)
        except (CapacityError, QuotaError) as error:
            self._note_refused_start(instance, error)
            raise

    def notices(self) -> Sequence[Notice]:
        """Empty: machines read their scheduled events themselves, and report them."""
        return ()

    def check(self) -> None:
        """List machines. This needs a token and the right to read."""
        self._machines.check()

    def examine(self, pools: Sequence[Pool]) -> Sequence[Finding]:
        """Findings about the group, image, subnet, sizes, quotas and published prices."""
        findings = preflight.examine(self._api, self._settings, pools)
        return (*findings, *self._prices.examine())

    # launching

    def _listed(self) -> list[Instance]:
        return [self._machines.instance(vm) for vm in self._machines.seen()]

    def _make(self, spec: LaunchSpec, node: str) -> Instance:
        name = requests.vm_name(self._cluster, spec, node)
        body = requests.body(self._settings, self._cluster, spec, node, self._parts, time.time())
        try:
            vm, operation = self._machines.create(name, body)
        except ProviderError as error:
            if error.code != ALREADY_THERE:
                raise
            # An earlier call of this launch made it, and lists lack it.
            return self._found(name, error)
        now = self._monotonic()
        with self._lock:
            self._operations[name] = operation
            fresh = {n: at for n, at in self._ordered_at.items() if now - at < _UNSEEN_S}
            self._ordered_at = {**fresh, name: now}
        return self._machines.instance(SeenVm(vm))

    def _hidden(self, name: str) -> Instance | None:
        """The machine of that name, which lists may lack; None if no machine of ours has it."""
        vm = self._machines.get(name)
        with self._lock:
            ordered_at = self._ordered_at.get(name, -math.inf)
        if vm is None and self._monotonic() - ordered_at < _UNSEEN_S:
            # As proof that there is none, it would let other machines be bought beside this one.
            raise TransientError(self.name, "NotYetFound", f"{name} was ordered moments ago")
        if vm is None or not self._machines.ours.has(vm.tags):
            return None
        self._machines.ours.remember([name])
        return self._machines.instance(SeenVm(vm))

    def _found(self, name: str, refusal: ProviderError) -> Instance:
        """The machine of that name, which an earlier call has made."""
        vm = self._machines.get(name)
        if vm is None:
            # It went away between the two calls. The next call creates it, or finds it.
            raise TransientError(self.name, refusal.code, f"{name} was there and is gone")
        if not self._machines.ours.has(vm.tags):
            text = f"another machine has the name {name}; delete it, or give the group to us alone"
            raise ProviderError(self.name, refusal.code, text)
        self._machines.ours.remember([name])
        return self._machines.instance(SeenVm(vm))

    def _settled(self, spec: LaunchSpec, machines: Sequence[Instance]) -> Sequence[Instance]:
        """The machines of the launch without the machines that Azure cannot start. It waits until
        all machines run, a machine has failed, or ``launch_wait`` is over. ``tidy`` ends a machine
        that fails later.
        """
        names = {machine.id for machine in machines}
        give_up_at = time.monotonic() + self._settings.launch_wait
        while (failed := self._failed(names)) is not None and not failed:
            if time.monotonic() + self._poll_every_s > give_up_at:
                break
            time.sleep(self._poll_every_s)
        self._forget_operations(names - {vm.vm.name for vm in failed or ()})
        if not failed:
            return machines
        refusal = self._failure_of(failed[0])
        refused = {vm.vm.name for vm in failed}
        for error in failures(each(sorted(refused), self._end_failed, self._settings.threads)):
            log.warning("%s: a failed machine has not ended, tidy ends it: %s", self.name, error)
        return launched(self.name, spec, [m for m in machines if m.id not in refused], refusal)

    def _failed(self, names: set[str]) -> list[SeenVm] | None:
        """The failed machines among ``names``. None if there is nothing to wait for: all have
        started, or the list cannot be read, which is no reason to doubt an accepted launch.
        """
        try:
            seen = [vm for vm in self._machines.seen() if vm.vm.name in names]
        except ProviderError:
            return None
        failed = [vm for vm in seen if vm.failed]
        waits = len(seen) < len(names) or any(vm.vm.provisioning == "creating" for vm in seen)
        return failed if failed or waits else None

    def _failure_of(self, vm: SeenVm) -> ProviderError:
        with self._lock:
            operation = self._operations.pop(vm.vm.name, "")
        if vm.view is not None and vm.view.code:
            return vm.view.failure(self.name)
        return self._machines.failure_of(vm.vm.name, operation)

    def _note_refused_start(self, name: str, refusal: ProviderError) -> None:
        try:
            vm = self._machines.get(name)
        except ProviderError as error:
            # The refusal is raised all the same. Only the next launch does not know of it.
            log.info("offer not read cloud=%s id=%s error=%s", self.name, name, error)
            return
        if vm is not None:
            self._failures.note(self._machines.instance(SeenVm(vm)).offer_key, refusal)

    def _forget_operations(self, names: Collection[str]) -> None:
        # A failure that comes later is read from the instance view.
        with self._lock:
            for name in names:
                self._operations.pop(name, None)

    def _forget_orders(self, names: Collection[str]) -> None:
        with self._lock:
            for name in names:
                self._ordered_at.pop(name, None)

    def _end_failed(self, name: str) -> None:
        self._forget_orders([name])
        self._calls.terminate([name], self._machines.end)


def _is_for_all(refusal: ProviderError) -> bool:
    """Whether a refusal of one machine says that the others of the launch would be refused, too.
    They have the same size, zone and market.
    """
    return isinstance(refusal, AuthError | CapacityError | QuotaError)
