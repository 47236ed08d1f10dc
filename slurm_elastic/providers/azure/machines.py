"""The VMs of one resource group: list them completely, create, look up, end and stop them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Container, Mapping, Sequence
from typing import ClassVar
from urllib.parse import quote

from msgspec import Struct

from slurm_elastic.base.errors import (
    AuthError,
    InstanceNotFound,
    ProviderError,
    TransientError,
    UnsettledError,
)
from slurm_elastic.base.guards import Guarded, GuardedBy
from slurm_elastic.base.ttl_cache import TtlCache
from slurm_elastic.model.cluster import EndAnswer, Instance
from slurm_elastic.providers.azure import convert, requests
from slurm_elastic.providers.azure.addresses import Addresses
from slurm_elastic.providers.azure.client import COMPUTE, ArmApi
from slurm_elastic.providers.azure.convert import STOPPED_TAG, ViewFields, VmFields
from slurm_elastic.providers.azure.errors import kind_of_code, late_failure, translated
from slurm_elastic.providers.azure.settings import AzureCloud
from slurm_elastic.providers.base.ours import Ours
from slurm_elastic.providers.base.ownership import Ownership
from slurm_elastic.providers.base.parallel import each, failures, raise_first_error

log = logging.getLogger(__name__)

VIEW_TTL_S = 30.0
START_COUNTS_S = 1800.0
"""An accepted start may fail so long after its call. The next call that starts the machine then
raises its failure.
"""
_NO_CONTENT = 204


class SeenVm(Struct, frozen=True):
    """A VM with its instance view, if its state needs one. ``address``: its private address; None
    if it is not known yet.
    """

    vm: VmFields
    view: ViewFields | None = None
    address: str | None = None

    @property
    def failed(self) -> bool:
        """Whether it never came up, and never will."""
        return convert.has_failed(self.vm, self.view)


class Start(Struct, frozen=True):
    """A start that Azure has accepted. ``counts_until``: by the clock of ``Machines``."""

    operation: str
    counts_until: float


class Machines:
    """The VMs of the cloud's resource group. Thread-safe. ``ours``: the names that were ever listed
    with our tags, or that we made.
    """

    guarded_by: ClassVar[GuardedBy] = {"_lock": Guarded("_starts")}

    def __init__(
        self,
        settings: AzureCloud,
        api: ArmApi,
        owners: Ownership,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.ours = Ours(settings.name, owners)
        self._settings = settings
        self._api = api
        self._all = f"{settings.group_path}/providers/Microsoft.Compute/virtualMachines"
        self._addresses = Addresses(settings, api)
        self._views: TtlCache[str, ViewFields | None] = TtlCache(time.monotonic)
        self._clock = clock
        self._lock = threading.Lock()
        self._starts: dict[str, Start] = {}

    def path(self, name: str, action: str = "") -> str:
        """The path of a machine, or of an action on it."""
        return f"{self._all}/{quote(name, safe='')}" + (f"/{action}" if action else "")

    def check(self) -> None:
        """Read the first page of the list."""
        self._api.call("GET", self._all, COMPUTE)

    def seen(self) -> list[SeenVm]:
        """Our VMs. An error if the list or the state of a listed VM cannot be read now."""
        records = list(self._api.listed(self._all, COMPUTE))
        with translated(self._settings.name, "GET", self._all):
            parsed = [convert.vm(record) for record in records]
        own = self.ours.among(parsed, lambda vm: vm.tags, lambda vm: vm.name)
        self.ours.remember(vm.name for vm in own)
        self._forget_starts({vm.name for vm in own})
        views = each([vm for vm in own if vm.needs_view], self._known_view, self._settings.threads)
        raise_first_error(failures(views))
        by_name = dict(future.result() for future in views)
        addresses = self._addresses.of([vm.name for vm in own])
        return [SeenVm(vm, by_name.get(vm.name), addresses.get(vm.name)) for vm in own]

    def _forget_starts(self, listed: Container[str]) -> None:
        """Forget the starts of all machines that are missing from ``listed``."""
        with self._lock:
            for name in [name for name in self._starts if name not in listed]:
                del self._starts[name]

    def instance(self, seen: SeenVm) -> Instance:
        """The VM as a machine."""
        return convert.instance(seen.vm, seen.view, seen.address, self._settings)

    def _known_view(self, vm: VmFields) -> tuple[str, ViewFields | None]:
        return vm.name, self._views.get(vm.name, lambda: self._view(vm.name), ttl_s=VIEW_TTL_S)

    def _view(self, name: str) -> ViewFields | None:
        """The instance view; None if Azure does not have it, so that one bad machine does not make
        the whole list an error.
        """
        try:
            return self.view(name)
        except (AuthError, TransientError):
            raise
        except ProviderError as error:
            log.info("state not read cloud=%s id=%s error=%s", self._settings.name, name, error)
            return None

    def view(self, name: str) -> ViewFields:
        """The present instance view. InstanceNotFound if the machine is gone."""
        path = self.path(name, "instanceView")
        answer = self._api.call("GET", path, COMPUTE)
        with translated(self._settings.name, "GET", path):
            return convert.view(answer.content)

    def get(self, name: str) -> VmFields | None:
        """The VM with this name, whosever it is. None if there is surely none."""
        path = self.path(name)
        try:
            answer = self._api.call("GET", path, COMPUTE)
        except InstanceNotFound:
            return None
        with translated(self._settings.name, "GET", path):
            return convert.vm(answer.content)

    def create(self, name: str, body: Mapping[str, object]) -> tuple[VmFields, str]:
        """Order a VM that does not exist yet. Returns it with the URL of its operation. The error
        ALREADY_THERE if it exists.
        """
        path = self.path(name)
        answer = self._api.call("PUT", path, COMPUTE, body, headers=requests.IF_NEW)
        # At once: it exists, whatever its answer looks like.
        self.ours.remember([name])
        with translated(self._settings.name, "PUT", path):
            return convert.vm(answer.content), answer.operation

    def failure_of(self, name: str, operation: str) -> ProviderError:
        """Why the start of a VM failed, by its operation, or else by its instance view."""
        try:
            if operation:
                content = self._api.follow(operation).content
                with translated(self._settings.name, "GET", operation):
                    error = content.get("error") or {}
                    code, message = str(error.get("code") or ""), str(error.get("message") or "")
                if code:
                    return late_failure(self._settings.name, code, message)
            return self.view(name).failure(self._settings.name)
        except ProviderError as error:
            log.info("failure not read cloud=%s id=%s error=%s", self._settings.name, name, error)
            return late_failure(self._settings.name, "", "")

    def end(self, name: str) -> None:
        """Delete a VM with its card and disk. InstanceNotFound if it is gone. Azure accepts the
        call and deletes later; until then lists show the VM as "Deleting".
        """
        # By force: no job needs the machine, and a shutdown takes minutes.
        answer = self._api.call("DELETE", self.path(name), COMPUTE, query={"forceDeletion": "true"})
        if answer.status == _NO_CONTENT:
            raise InstanceNotFound(self._settings.name, "NotFound", f"{name} is gone")

    def look_up(self, names: Sequence[str]) -> Mapping[str, EndAnswer | None]:
        """By name: GONE, NOT_OURS, or None for a machine with our tags that no list has shown."""

        def answer(name: str) -> EndAnswer | None:
            machine = self.get(name)
            if machine is None:
                return EndAnswer.GONE
            return None if self.ours.has(machine.tags) else EndAnswer.NOT_OURS

        results = each(list(names), answer, self._settings.threads)
        raise_first_error(failures(results))
        return {name: result.result() for name, result in zip(names, results, strict=True)}

    def stop(self, name: str) -> bool:
        """Deallocate a VM. False if it is gone."""
        machine = self.get(name)
        if machine is None:
            return False
        if STOPPED_TAG not in machine.tags:
            # Before the stop: without the tag, lists would show the stopped machine as running.
            tagged = {**machine.tags, STOPPED_TAG: "yes"}
            self._api.call("PATCH", self.path(name), COMPUTE, {"tags": tagged})
        self._act(name, "deallocate")
        return True

    def start(self, name: str) -> None:
        """Start a deallocated VM. UnsettledError while it is still stopping.

        Azure accepts a start before it looks for capacity. If it has refused an accepted start
        since, that refusal is raised.
        """
        view = self.view(name)
        if view.power in ("deallocating", "stopping"):
            text = f"{name} is still stopping"
            raise UnsettledError(self._settings.name, "Deallocating", text)
        if view.power in ("running", "starting"):
            return
        if view.failed and (refusal := self._refusal_of_start(name, view)):
            raise refusal
        operation = self._act(name, "start")
        with self._lock:
            self._starts[name] = Start(operation, self._clock() + START_COUNTS_S)

    def _refusal_of_start(self, name: str, view: ViewFields) -> ProviderError | None:
        """Why a start that Azure had accepted failed. None if no start of ours has failed, or if
        another may succeed at once.
        """
        with self._lock:
            start = self._starts.pop(name, None)
        # The failure of another operation, or an old one, says nothing about a start of now.
        if start is None or self._clock() >= start.counts_until:
            return None
        cloud = self._settings.name
        error = view.failure(cloud) if view.code else self.failure_of(name, start.operation)
        return None if kind_of_code(error.code, error.message) is TransientError else error

    def _act(self, name: str, action: str) -> str:
        """Carry out an action. Returns the URL of its operation."""
        try:
            return self._api.call("POST", self.path(name, action), COMPUTE).operation
        finally:
            # Also after an error: the call may have taken effect.
            self._views.forget()
