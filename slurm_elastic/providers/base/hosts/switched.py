"""Hosts of the site as machines, which are switched on and off. A node is the host of the same
name.

A host is ours if it was off and free when we claimed it (``claims_file``). A host switched on by
other people is never switched off. A host that we saw on, and that is off later, is free again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Protocol

from msgspec.structs import replace

from slurm_elastic.base.errors import (
    CapacityError,
    InstanceNotFound,
    ProviderError,
    TransientError,
    UnsettledError,
)
from slurm_elastic.base.hostlist import compress
from slurm_elastic.base.report_once import ReportOnce
from slurm_elastic.base.units import brief
from slurm_elastic.config import Cluster
from slurm_elastic.model.cluster import (
    EndAnswer,
    Instance,
    InstanceState,
    LaunchSpec,
    Notice,
    Offer,
    Pool,
)
from slurm_elastic.model.finding import Finding
from slurm_elastic.policies.repair.list_plausibility import most_lost
from slurm_elastic.providers.base.hosts.claims import Claim, Claims
from slurm_elastic.providers.base.hosts.host_settings import HostsCloud
from slurm_elastic.providers.base.hosts.host_times import HostTimes
from slurm_elastic.providers.base.machine_tags import MADE, machine_of, marks_of
from slurm_elastic.providers.base.offers import plain_offers
from slurm_elastic.providers.base.one_by_one import OneByOne
from slurm_elastic.providers.base.parallel import each, failures
from slurm_elastic.providers.base.preflight import CheckRunner
from slurm_elastic.providers.base.tags import CLUSTER, GENERATION

log = logging.getLogger(__name__)

OFF_PROVEN_S = 60.0
"""A host is off if it says so again after so long, whether or not we ordered it off. A BMC that
restarts, or is updated, reports "off" for a while although its host runs. A host released then
would stay on without an owner, and a host claimed then may be another person's.
"""
_FREE = "free"
"""The state (``HostTimes``) of a free host, which is off."""
_TAKE_BACK = (
    "if nobody uses it, as after a false report of its BMC, shut it down: after two answers a "
    "minute apart it gets jobs again"
)
_REACH = "look at its BMC, the network to it and the credentials"


class Power(Protocol):
    """The power switches of the hosts. Each call may raise ProviderErrors."""

    def is_on(self, host: str) -> bool:
        """Whether the host is on, which includes powering up and powering down."""
        ...

    def switch(self, host: str, order: str) -> None:
        """Give the host an order and return before it is done: ``on``; ``shutdown``, which asks the
        operating system; or ``off``, which cuts the power at once.
        """
        ...


class SwitchedHosts:
    """The hosts of one cloud. The contract is in protocols.Provider. Thread-safe."""

    def __init__(
        self,
        settings: HostsCloud,
        cluster: Cluster,
        power: Power,
        claims: Claims,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = settings.name
        self._settings = settings
        self._cluster = cluster
        self._power = power
        self._claims = claims
        self._clock = clock
        self._times = HostTimes(clock, monotonic)
        # The lag is 0, because the claims are our own listing: each is on disk before its host is
        # touched.
        self._calls = OneByOne(self.name, 0.0, threads=settings.threads)
        self._doubt = ""
        self._doubts = ReportOnce[str]()

    def offers(self, pool: Pool) -> Sequence[Offer]:
        """One offer for each type. ``free`` counts the hosts without a claim, although other people
        may use them.
        """
        free = len(self._settings.hosts.keys() - self._claims.all().keys())
        return plain_offers(self._settings, pool, self._settings.types, free)

    def launch(self, spec: LaunchSpec) -> Sequence[Instance]:
        """Switch on each host by itself. A host whose order may have been lost is switched on
        again.
        """
        listed = self._update()
        for machine in listed:
            if machine.generation == spec.generation and machine.state is InstanceState.PENDING:
                self._power.switch(machine.node, "on")
        return self._calls.launch(spec, listed, self._make)

    def instances(self) -> Sequence[Instance]:
        """The hosts that this cluster has claimed and still has."""
        hosts = self._read_hosts()
        return self._calls.shown([self._machine(h, c, _state_of(c, on)) for h, c, on in hosts])

    def tidy(self) -> Sequence[Instance]:
        """Release switched-off hosts, and switch off hosts that do not shut down or come on in
        time. See protocols.Tidying.
        """
        listed = self._update()
        # So that a launch rarely waits for the proof that a host is free.
        free = list(self._settings.hosts.keys() - self._claims.all().keys())
        for error in failures(each(free, self._free_off_s, self._settings.threads)):
            if not isinstance(error, ProviderError):
                raise error
        return self._calls.shown(listed)

    def terminate(self, ids: Sequence[str]) -> Mapping[str, EndAnswer]:
        """Shut these hosts down. They are STOPPING until they are off. A host without a claim of
        ours stays on.
        """
        hosts = {machine.id: machine.node for machine in self._update()}

        def end(machine_id: str) -> None:
            host = hosts[machine_id]
            # Read again for each host: while others were shut down, this host may have become
            # another launch's, and its job must not be killed.
            claim = self._claims.all().get(host)
            if claim is None or _number(host, claim) != machine_id:
                raise InstanceNotFound(self.name, "Free", f"{host} now belongs to another launch")
            self._end(host, claim, on=self._power.is_on(host))

        answers = self._calls.terminate([i for i in ids if i in hosts], end)
        return answers | {i: self._look_up(i) for i in ids if i not in hosts}

    def _look_up(self, machine_id: str) -> EndAnswer:
        """The answer for a machine without a claim. If its host is off, or another
        launch's now, the machine is gone.
        """
        claims = self._claims.all()
        # A claim of another cluster, or of a host that the settings no longer have.
        if any(_number(host, claim) == machine_id for host, claim in claims.items()):
            return EndAnswer.NOT_OURS
        # The name of a host and a generation may both contain dashes, so several hosts may fit.
        hosts = [h for h in self._settings.hosts if f"{machine_id}-".startswith(f"{h}-")]
        is_on = any(h not in claims and not self._is_off(h) for h in hosts)
        return EndAnswer.NOT_OURS if is_on else EndAnswer.GONE

    @property
    def trouble(self) -> str:
        """See protocols.Reporting."""
        return self._doubt

    def notices(self) -> Sequence[Notice]:
        """Always empty: the site's own hosts are never reclaimed."""
        return ()

    def check(self) -> None:
        """Prove that a host answers."""
        self._require_answer(list(self._settings.hosts))

    def examine(self, pools: Sequence[Pool]) -> Sequence[Finding]:
        """Report for each host whether it answers, and whether other people have switched it on."""
        del pools
        checks = CheckRunner(_REACH, _REACH)
        try:
            claims = self._claims.all()
        except ProviderError as error:
            return (Finding.wrong("claims", error.refusal, "an answer", _REACH),)

        def host_finding(host: str, is_on: Callable[[], bool]) -> Iterator[Finding]:
            if is_on() and host not in claims:
                text = "on, but slurm-elastic did not switch it on: it stays on and gets no job"
                yield Finding.note(f"host {host}", text, advice=_TAKE_BACK)
            else:
                yield Finding.ok(f"host {host}", "on, ours" if is_on() else "off")

        hosts = list(self._settings.hosts)
        answers = each(hosts, self._power.is_on, self._settings.threads)
        findings = [
            finding
            for host, answer in zip(hosts, answers, strict=True)
            for finding in checks.at(
                f"host {host}", "an answer", partial(host_finding, host, answer.result)
            )
        ]
        own_hosts = self._own(claims)
        own_answers = [a for h, a in zip(hosts, answers, strict=True) if h in own_hosts]
        if doubt := _doubt_of(_with_answers(own_hosts, own_answers)):
            findings.append(Finding.wrong("hosts", doubt, "hosts that are on", _REACH))
        return tuple(findings)

    def _make(self, spec: LaunchSpec, host: str) -> Instance:
        if host not in self._settings.hosts:
            raise CapacityError(self.name, "NoHost", f"no host is named {host}")
        claim = Claim(marks=marks_of(spec, host, self._cluster, self.name, self._clock()))
        # Before the claim: a host in use by other people must never become ours, or we would switch
        # it off one day.
        if not self._is_off(host):
            raise CapacityError(
                self.name, "InUse", f"{host} is on, but slurm-elastic did not switch it on"
            )
        if not self._claims.take(host, claim):
            raise CapacityError(self.name, "InUse", f"{host} was claimed for an earlier launch")
        try:
            self._power.switch(host, "on")
        except TransientError:
            raise  # the host may still come on, so the claim stays
        except ProviderError:
            self._claims.release(host, claim)
            raise
        return self._machine(host, claim, InstanceState.PENDING)

    def _free_off_s(self, host: str) -> float | None:
        """Ask a host without a claim. Returns for how long (s) each look has found it off; None if
        it is on.
        """
        is_on = None
        try:
            is_on = self._power.is_on(host)
        finally:
            off_s = self._times.standing_s(host, _FREE if is_on is False else "")
        return None if is_on else off_s

    def _is_off(self, host: str) -> bool:
        """Whether a host without a claim is off. UnsettledError without the proof."""
        off_s = self._free_off_s(host)
        if off_s is not None and off_s < OFF_PROVEN_S:
            text = f"{host} is off if it still says so {brief(OFF_PROVEN_S - off_s)} from now"
            raise UnsettledError(self.name, "OffNotProven", text)
        return off_s is not None

    def _read_hosts(self) -> Sequence[HostReading]:
        """Our hosts, their claims and whether they are on."""
        own_claims = self._own(self._claims.all())
        answers = each(list(own_claims), self._power.is_on, self._settings.threads)
        errors = failures(answers)
        if len(errors) == len(answers):
            for host in own_claims:
                self._times.standing_s(host, "")
            # If no host answers, the states are unknown, and an old state must not look like a
            # listing. But one dead BMC must not make all other hosts unusable.
            others = [h for h in self._settings.hosts if h not in own_claims]
            self._require_answer(others, errors[:1])
        return _with_answers(own_claims, answers)

    def _own(self, claims: Mapping[str, Claim]) -> dict[str, Claim]:
        """The claims of this cluster on hosts that the settings have, in the settings' order."""
        return {
            host: claims[host]
            for host in self._settings.hosts
            if host in claims and claims[host].marks.get(CLUSTER) == self._cluster.uuid
        }

    def _require_answer(self, hosts: Sequence[str], errors: Sequence[BaseException] = ()) -> None:
        """Ask hosts until a host answers. If no host answers, raise the first error. ``errors``:
        the errors of hosts that were asked before.
        """
        # Usually the first host answers, so it is asked alone.
        threads = self._settings.threads
        starts = range(1, len(hosts), threads)
        for asked in (hosts[:1], *(hosts[start : start + threads] for start in starts)):
            answers = each(asked, self._power.is_on, threads)
            new_errors = failures(answers)
            if len(new_errors) < len(answers):
                return
            errors = [*errors, *new_errors]
        raise errors[0]

    def _update(self) -> Sequence[Instance]:
        """Our hosts with their states, after the orders that follow from them. A host that does not
        answer keeps its last known state.
        """
        hosts = self._read_hosts()
        self._times.forget_unless(self._settings.hosts)
        doubt = _doubt_of(hosts)
        self._report_doubt(doubt)
        return [
            self._machine(host, claim, self._update_state(host, claim, on, is_doubtful=bool(doubt)))
            for host, claim, on in hosts
        ]

    def _report_doubt(self, doubt: str) -> None:
        self._doubt = doubt
        if self._doubts.is_news(self.name, bool(doubt)) and doubt:
            log.error("no host is released cloud=%s reason=%s", self.name, doubt)

    def _update_state(
        self, host: str, claim: Claim, on: bool | None, *, is_doubtful: bool
    ) -> InstanceState:
        """The state of our host, and the orders that follow from it."""
        # The number is in the state, so that another launch's time on this host does not count.
        off_s = self._times.standing_s(host, "" if on in (True, None) else _number(host, claim))
        with suppress(ProviderError):  # the next listing tries the same again
            if on:
                return self._update_on(host, claim)
            if on is False:
                return self._update_off(host, claim, 0.0 if is_doubtful else off_s)
        return _last_state(claim)

    def _update_on(self, host: str, claim: Claim) -> InstanceState:
        patience_s = self._settings.power_off_timeout
        is_overdue = claim.ending is not None and (
            self._times.age_s(host, "ending", claim.ending, patience_s) >= patience_s
        )
        # The change proves that the claim is still the same. Without it we could switch off a host
        # that now belongs to another launch.
        if is_overdue and self._claims.change(host, claim, claim):
            self._power.switch(host, "off")
        if claim.seen:
            return _last_state(claim)
        seen_claim = replace(claim, seen=True)
        self._claims.change(host, claim, seen_claim)
        return _last_state(seen_claim)

    def _update_off(self, host: str, claim: Claim, off_s: float) -> InstanceState:
        patience_s = self._settings.power_on_timeout
        boot_s = self._times.age_s(host, "made", float(claim.marks[MADE]), patience_s)
        is_boot_overdue = boot_s >= patience_s
        # Before ``power_on_timeout`` has passed, an order to come on may be under way. So a host is
        # released only later, unless we have seen it on.
        is_over = (claim.seen or is_boot_overdue) if claim.ending else claim.seen
        if is_over and off_s >= OFF_PROVEN_S:
            self._claims.release(host, claim)
            self._times.set_state(host, _FREE)
            return InstanceState.TERMINATED
        if is_boot_overdue and not claim.seen:
            # It may still come on, so an order to stay off is needed.
            self._end(host, claim, on=False)
            return InstanceState.STOPPING
        return _last_state(claim)

    def _end(self, host: str, claim: Claim, *, on: bool) -> None:
        """Shut the host down, even if its claim cannot be updated, but not if another claim has
        replaced it.
        """
        # The first time of an order to end stays, or repeated orders would put off the forced
        # power-off for ever.
        ending = replace(claim, ending=claim.ending or self._clock(), seen=claim.seen or on)
        is_same_claim = True
        with suppress(TransientError):
            is_same_claim = self._claims.change(host, claim, ending)
        if not is_same_claim:
            raise TransientError(self.name, "Changed", f"{host}: its claim has just changed")
        # Even if the host is off, an order to come on may be under way, so it gets "off" as well.
        self._power.switch(host, "shutdown" if on else "off")

    def _machine(self, host: str, claim: Claim, state: InstanceState) -> Instance:
        return machine_of(_number(host, claim), claim.marks, self._settings, state, None)


def _number(host: str, claim: Claim) -> str:
    return f"{host}-{claim.marks[GENERATION]}"


HostReading = tuple[str, Claim, bool | None]
"""A host, its claim, and whether it is on; None if it does not answer."""


def _with_answers(
    claims: Mapping[str, Claim], answers: Sequence[Future[bool]]
) -> Sequence[HostReading]:
    return [
        (host, claim, None if answer.exception() else answer.result())
        for (host, claim), answer in zip(claims.items(), answers, strict=True)
    ]


def _doubt_of(hosts: Sequence[HostReading]) -> str:
    """Why these answers release no host, "" if they may. A site's network or its command may fail
    in a way that shows every host as off.
    """
    lost = [h for h, claim, on in hosts if on is False and claim.seen and claim.ending is None]
    if len(lost) <= most_lost(len(hosts)):
        return ""
    return (
        f"{len(lost)} of {len(hosts)} hosts say at once that they are off, without our order: "
        f"{compress(lost)}. No host is released until fewer hosts say so, or Slurm has powered "
        "their nodes down. Look at the hosts, the network to their BMCs, and 'command'"
    )


def _state_of(claim: Claim, on: bool | None) -> InstanceState:
    """The state of a host that the claim may not show yet."""
    if on and not claim.ending:
        return InstanceState.RUNNING
    return _last_state(claim)


def _last_state(claim: Claim) -> InstanceState:
    if claim.ending:
        return InstanceState.STOPPING
    return InstanceState.RUNNING if claim.seen else InstanceState.PENDING
