"""Switches hosts of virtual machines off and on again.

A host that we switch off has a row in the claims file before its BMC is asked, and keeps it until
it answers again. Only a host with such a row is ever switched on by us, and only such a host is
left out of listings: it had no machine when we shut it down. The power is never cut.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from slurm_elastic.base.errors import ProviderError, TransientError
from slurm_elastic.model.hypervisor import HostState, SwitchRules
from slurm_elastic.providers.base.hosts.claims import Claim, Claims
from slurm_elastic.providers.base.hosts.host_times import HostTimes
from slurm_elastic.providers.base.hosts.switched import Power

_ORDER, _AT, _TRIES = "order", "at", "tries"
_ON, _OFF = "on", "off"
SHUTDOWN_S = 600.0
"""A host that still answers so long after the order to shut down, and for as long again, is used
again.
"""


class HostPower(Power, Protocol):
    """A power switch that can also shut a host down without cutting its power."""

    def shut_down(self, host: str) -> None:
        """Ask the operating system to shut down. Returns before it is done."""
        ...


class HostSwitch:
    """The hosts of one cloud whose BMCs are known, ``names``, with the ``rules`` for them.
    Thread-safe, as the claims are.
    """

    def __init__(
        self,
        names: Sequence[str],
        power: HostPower,
        claims: Claims,
        rules: SwitchRules,
        boot_timeout_s: float,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.names = tuple(names)
        self.rules = rules
        self._power = power
        self._claims = claims
        self._boot_timeout_s = boot_timeout_s
        self._clock = clock
        self._times = HostTimes(clock, monotonic)

    def away(self) -> Mapping[str, Claim]:
        """The hosts that we have switched off, until they answer again."""
        return self._claims.all()

    def left_off(self) -> Mapping[str, Claim]:
        """The hosts that we have switched off and that the settings no longer let us switch on."""
        return {host: claim for host, claim in self.away().items() if host not in self.names}

    def take_back(self, host: str, claim: Claim, answers: Callable[[], bool]) -> None:
        """Use a host of ``left_off`` again if somebody has switched it on."""
        if self._is_back(host, claim, answers):
            self._claims.release(host, claim)

    def shut_down(self, host: str) -> bool:
        """Shut the host down. False if it is away already. The caller has checked that the host has
        no machine, and lets none start during this call.
        """
        # On disk before the order, because we never switch a host on that has no row.
        claim = Claim(marks={_ORDER: _OFF, _AT: repr(self._clock())})
        if not self._claims.take(host, claim):
            return False
        try:
            self._power.shut_down(host)
        except TransientError:
            raise  # it may shut down nevertheless, so the claim stays
        except ProviderError:
            self._claims.release(host, claim)
            raise
        return True

    def switch_on(self, host: str) -> bool:
        """Switch a host on that we have switched off. False if it is not away."""
        claim = self._claims.all().get(host)
        if claim is None:
            return False
        tries = str(_tries(claim) + 1)
        ordered = Claim(marks={_ORDER: _ON, _AT: repr(self._clock()), _TRIES: tries})
        if not self._claims.change(host, claim, ordered):
            return False
        self._power.switch(host, "on")
        return True

    def state(self, host: str, claim: Claim, answers: Callable[[], bool]) -> HostState:
        """The state of a host that is away. A host that is on and answers is no longer away.

        ``answers``: asks whether the host can be used.
        """
        try:
            is_on = self._power.is_on(host)
        except ProviderError:
            return HostState.UNKNOWN
        if self._is_back(host, claim, lambda: is_on and answers()):
            self._claims.release(host, claim)
            return HostState.ON
        if claim.marks[_ORDER] == _ON:
            # After this time the order is given again.
            is_starting = self._age_s(host, claim, self._boot_timeout_s) < self._boot_timeout_s
            return HostState.STARTING if is_starting else HostState.OFF
        return HostState.STOPPING if is_on else HostState.OFF

    def _is_back(self, host: str, claim: Claim, answers: Callable[[], bool]) -> bool:
        """Whether an absent host can be used again. A host that shuts down still answers for a
        while, and may be slow, so it must answer from the end of its time on for as long again.
        """
        if claim.marks[_ORDER] == _ON:
            return answers()
        is_late = self._age_s(host, claim, SHUTDOWN_S) >= SHUTDOWN_S
        stays_on = is_late and answers()
        standing_s = self._times.standing_s(host, "answers" if stays_on else "")
        return stays_on and standing_s >= SHUTDOWN_S

    def _age_s(self, host: str, claim: Claim, bound_s: float) -> float:
        """The seconds since the last order."""
        return self._times.age_s(host, claim.marks[_ORDER], float(claim.marks[_AT]), bound_s)


def failed_boots(claim: Claim, state: HostState) -> int:
    """How often in a row the host did not come up in time. ``state``: its state now."""
    return max(_tries(claim) - (state is not HostState.OFF), 0)


def _tries(claim: Claim) -> int:
    """How often in a row the host was switched on."""
    return int(claim.marks.get(_TRIES, 0))
