"""Names in ``join.head`` that this host cannot resolve.

A machine may still resolve them, by another DNS, so they are no mistake. Mostly they are typos.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator

from slurm_elastic.base.processes.in_time import InTime
from slurm_elastic.config import Config

LOOKUP_TIMEOUT_S = 5.0  # a resolver without servers takes far longer
REMEDY = (
    "write a name or an address in join.head that machines reach; they report only to it, and they"
    " may have another DNS"
)


def unresolved(config: Config) -> tuple[str, ...]:
    """The hosts of ``join.head`` for which this host finds no address."""
    hosts = [head.partition(":")[0] for head in config.join.heads]
    return tuple(host for host in hosts if not _resolves(host))


def notices(config: Config) -> Iterator[str]:
    """A sentence for each such name."""
    for host in unresolved(config):
        yield f"join.head: this host cannot resolve {host}; {REMEDY}"


def _resolves(host: str) -> bool:
    try:
        return bool(InTime().call(host, lambda: socket.getaddrinfo(host, None), LOOKUP_TIMEOUT_S))
    except TimeoutError:
        return True  # not known; the check must not wait for a resolver
    except (OSError, UnicodeError):
        return False
