"""The question of ``doctor`` about security groups, for a head that opens the tunnels."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class InboundRules(Protocol):
    """A provider that knows which packets the security groups of its machines let in."""

    def lets_udp_in(self, port: int) -> bool | None:
        """Whether a security group lets UDP to this port in from some network; None if the
        configuration names no group. It may raise any ProviderError.
        """
        ...
