"""Hosts of the site as machines, which something switches on and off: a node is the host of its
name.

Ours is a host that was off and free when we claimed it (``claims``). A host that somebody else
switched on is never switched off; a host that was seen on, and then off, is nobody's again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol

from msgspec.structs import replace

from slurm_elastic.base.errors import CapacityError, InstanceNotFound, ProviderError, TransientError
from slurm_elastic.config import Cluster
from slurm_elastic.model.cluster import Instance, InstanceState, LaunchSpec, Notice, Offer, Pool
from slurm_elastic.model.finding import Finding
from slurm_elastic.providers.base.claims import Claim, Claims
from slurm_elastic.providers.base.host_settings import HostsCloud
from slurm_elastic.providers.base.machine_tags import MADE, machine_of, marks_of
from slurm_elastic.providers.base.offers import plain_offers
from slurm_elastic.providers.base.one_by_one import OneByOne
from slurm_elastic.providers.base.parallel import each
from slurm_elastic.providers.base.preflight import Look
from slurm_elastic.providers.base.tags import CLUSTER, GENERATION

_REACH = "look at its BMC, the network to it and the credentials"


class Power(Protocol):
    """The switches, by host. Each call may raise the ProviderErrors."""

    def is_on(self, host: str) -> bool:
        """Also while it is on its way up or down."""
        ...

    def switch(self, host: str, word: str) -> None:
        """``on``; ``shutdown``, which asks its system; ``off``, at once. Waits for none of them."""
        ...


class SwitchedHosts:
    """The hosts of one cloud; see protocols.Provider for the contract. Thread-safe."""

    def __init__(
        self,
        settings: HostsCloud,
        cluster: Cluster,
        power: Power,
        claims: Claims,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.name = settings.name
        self._settings = settings
        self._cluster = cluster
        self._power = power
        self._claims = claims
        self._clock = clock
        self._calls = OneByOne(self.name, 0.0, threads=settings.threads)

    def offers(self, pool: Pool) -> Sequence[Offer]:
        """``free`` are the hosts without a claim, though somebody else may use them."""
        free = len(self._settings.hosts.keys() - self._claims.all().keys())
        return plain_offers(self._settings, pool, self._settings.types, free)

    def launch(self, spec: LaunchSpec) -> Sequence[Instance]:
        """Each host for itself. One that an earlier call may have missed is switched on again."""
        listed = self._listed()
        for one in listed:
            if one.generation == spec.generation and one.state is InstanceState.PENDING:
                self._power.switch(one.node, "on")
        return self._calls.launch(spec, listed, self._make)

    def instances(self) -> Sequence[Instance]:
        """The hosts that this cluster has claimed and not lost."""
        return self._calls.shown(self._listed())

    def terminate(self, ids: Sequence[str]) -> None:
        """Have them shut down; they are STOPPING until they are off."""
        hosts = {one.id: one.node for one in self._listed()}

        def end(one: str) -> None:
            host = hosts[one]
            claim = self._claims.all().get(host)
            if claim is None or _number(host, claim) != one:
                raise InstanceNotFound(self.name, "Free", f"{host} is another launch's by now")
            self._end(host, claim, on=self._power.is_on(host))

        self._calls.terminate([i for i in ids if i in hosts], end)

    def notices(self) -> Sequence[Notice]:
        """None: nobody reclaims an own host."""
        return ()

    def check(self) -> None:
        """Ask one host."""
        self._power.is_on(next(iter(self._settings.hosts)))

    def examine(self, pools: Sequence[Pool]) -> Sequence[Finding]:
        """Each host: whether it answers, and whether it is somebody else's now."""
        del pools
        look = Look(_REACH, _REACH)
        try:
            claims = self._claims.all()
        except ProviderError as error:
            return (Finding.wrong("claims", error.refusal, "an answer", _REACH),)

        def told(host: str, is_on: Callable[[], bool]) -> Iterator[Finding]:
            if is_on() and host not in claims:
                text = "on, and not by us: no job is sent there, and we leave it on"
                yield Finding.note(f"host {host}", text)
            else:
                yield Finding.ok(f"host {host}", "on, ours" if is_on() else "off")

        hosts = list(self._settings.hosts)
        answers = each(hosts, self._power.is_on, self._settings.threads)
        return tuple(
            one
            for host, answer in zip(hosts, answers, strict=True)
            for one in look.at(f"host {host}", "an answer", partial(told, host, answer.result))
        )

    def _make(self, spec: LaunchSpec, host: str) -> Instance:
        if host not in self._settings.hosts:
            raise CapacityError(self.name, "NoHost", f"no host is named {host}")
        claim = Claim(marks=marks_of(spec, host, self._cluster, self.name, self._clock()))
        if self._power.is_on(host):
            raise CapacityError(self.name, "InUse", f"{host} is on, and not by us")
        if not self._claims.take(host, claim):
            raise CapacityError(self.name, "InUse", f"{host} was claimed for an earlier launch")
        try:
            self._power.switch(host, "on")
        except TransientError:
            raise  # it may come on: the claim stays
        except ProviderError:
            self._claims.release(host, claim)
            raise
        return self._machine(host, claim, InstanceState.PENDING)

    def _listed(self) -> Sequence[Instance]:
        """A host that does not answer is as it was."""
        mine, hosts = self._cluster.uuid, self._settings.hosts
        claims = self._claims.all().items()
        ours = {h: c for h, c in claims if h in hosts and c.marks.get(CLUSTER) == mine}
        asked = list(ours) or list(hosts)[:1]
        answers = each(asked, self._power.is_on, self._settings.threads)
        if all(answer.exception() for answer in answers):
            # It raises: where none answers nothing is known of any.
            answers[0].result()
        found = []
        for (host, claim), answer in zip(ours.items(), answers, strict=False):
            silent = answer.exception() is not None
            state = _known(claim) if silent else self._seen(host, claim, on=answer.result())
            found.append(self._machine(host, claim, state))
        return found

    def _seen(self, host: str, claim: Claim, *, on: bool) -> InstanceState:
        """The state of one of ours, and what follows from it."""
        now = self._clock()
        waited = now - float(claim.marks[MADE]) >= self._settings.on_wait
        with suppress(ProviderError):  # the next look has the same to do
            if not on and (claim.seen or (waited and claim.ending)):
                self._claims.release(host, claim)
                return InstanceState.TERMINATED
            overdue = claim.ending and now - claim.ending >= self._settings.off_wait
            # Only while the claim is this one: the host may be a new launch's by now.
            if on and overdue and self._claims.change(host, claim, claim):
                self._power.switch(host, "off")
            if on and not claim.seen:
                seen = replace(claim, seen=True)
                self._claims.change(host, claim, seen)
                return _known(seen)
            if not on and waited:  # it may come on yet
                self._end(host, claim, on=False)
                return InstanceState.STOPPING
        return _known(claim)

    def _end(self, host: str, claim: Claim, *, on: bool) -> None:
        """It ends also where that cannot be noted, but not where its claim is another by now."""
        ending = replace(claim, ending=claim.ending or self._clock(), seen=claim.seen or on)
        same = True
        with suppress(TransientError):
            same = self._claims.change(host, claim, ending)
        if not same:
            raise TransientError(self.name, "Changed", f"{host}: its claim has just changed")
        # One that is off may have an order to come on.
        self._power.switch(host, "shutdown" if on else "off")

    def _machine(self, host: str, claim: Claim, state: InstanceState) -> Instance:
        return machine_of(_number(host, claim), claim.marks, self._settings, state, None)


def _number(host: str, claim: Claim) -> str:
    return f"{host}-{claim.marks[GENERATION]}"


def _known(claim: Claim) -> InstanceState:
    if claim.ending:
        return InstanceState.STOPPING
    return InstanceState.RUNNING if claim.seen else InstanceState.PENDING
