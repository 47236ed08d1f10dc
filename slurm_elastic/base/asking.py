"""Whether this process may ask anything of others: of clouds, and of machines.

Of two heads only one may (``state.heads``), and one that stood still in the midst of something
finds that out by nothing else: so it is asked before each single exchange, and, of those by HTTP,
before each piece that is sent. Between the two lie a connection and its handshake, in which a head
may stand still as well. Where nobody has set ``first``, everybody may.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache

_first: Callable[[], object] | None = None


def first(ask: Callable[[], object] | None) -> None:
    """Have ``ask`` called before each exchange from now on; its OSError says that there may be
    none. None: no more.
    """
    global _first
    _first = ask
    if ask is not None:
        _hear()


def require() -> None:
    """OSError where nothing may be asked."""
    if _first is not None:
        _first()


@cache
def _hear() -> None:
    """Have Python tell of what is sent; that cannot be ended again."""
    sys.addaudithook(_heard)


def _heard(event: str, _: object) -> None:
    # All that clouds are asked by HTTP passes here, whichever library asks: docs.python.org,
    # http.client.HTTPConnection.send, which sends nothing where a hook raises.
    if event == "http.client.send":
        require()
