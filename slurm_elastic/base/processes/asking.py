"""Whether this process may send requests to clouds and machines.

Of two heads only the acting head may (``state.heads``). A head that stood still in the middle of
its work finds out in no other way that the other head took over. The check therefore runs before
each exchange, and for HTTP also before each sent piece: between the check and the request lie a
connection and its handshake, and a head may stand still there as well. Without a gate
(``set_gate``) every request is allowed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache

_gate: Callable[[], object] | None = None


def set_gate(ask: Callable[[], object] | None) -> None:
    """Call ``ask`` before each exchange from now on. ``ask`` raises OSError to forbid the exchange.
    If ``ask`` is None, remove the gate.
    """
    global _gate
    _gate = ask
    if ask is not None:
        _add_hook()


def check_gate() -> None:
    """Raise OSError if no requests may be sent now."""
    if _gate is not None:
        _gate()


@cache
def _add_hook() -> None:
    """Watch what Python sends. An audit hook cannot be removed, so it is added only once."""
    sys.addaudithook(_audit_hook)


def _audit_hook(event: str, _: object) -> None:
    # Every HTTP request passes here, whichever library sends it. http.client.HTTPConnection.send
    # sends nothing if a hook raises (docs.python.org).
    if event == "http.client.send":
        check_gate()
