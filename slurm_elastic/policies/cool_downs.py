"""When an offer that refused, gave too little or was taken away is asked again. Pure; the same in
the daemon and in the simulator.
"""

from __future__ import annotations

from slurm_elastic.model import CoolDown, Offer


def keys_of(offer: Offer) -> tuple[str, str, str]:
    """The keys of cool-downs: the offer's own, its market's in the cloud, and the whole cloud's."""
    return offer.key, f"{offer.cloud}/*/*/{offer.market}", f"{offer.cloud}/*/*/*"


def after_refusal(
    key: str, strikes: int, now: float, seconds: float, longest: float, code: str, reason: str
) -> CoolDown:
    """The cool-down of ``key`` after one refusal more: ``seconds``, doubled with each of the
    ``strikes`` before it in a row, up to ``longest``.
    """
    until = now + min(seconds * 2**strikes, max(longest, seconds))
    return CoolDown(key=key, until=until, code=code, reason=reason, strikes=strikes + 1)


def after_partial(key: str, given: int, wanted: int, now: float, seconds: float) -> CoolDown:
    """An offer that gave some machines is empty for now, but refused nothing: its next cool-down
    does not grow.
    """
    return CoolDown(
        key=key,
        until=now + seconds,
        code="Partial",
        reason=f"gave {given} of {wanted} machines",
        strikes=0,
    )


def after_interruption(key: str, machine: str, now: float, seconds: float) -> CoolDown:
    """An offer that was just taken away is hardly to be had again at once."""
    return CoolDown(
        key=key, until=now + seconds, code="interruption", reason=f"machine {machine} is taken away"
    )
