"""Whether this process may ask anything of others: of clouds, and of machines.

Of two heads only one may (``state.heads``), and one that stood still in the midst of something
finds that out by nothing else: so it is asked before each single exchange. Where nobody has set
``first``, everybody may.
"""

from __future__ import annotations

from collections.abc import Callable

_first: Callable[[], object] | None = None


def first(ask: Callable[[], object] | None) -> None:
    """Have ``ask`` called before each exchange from now on; its OSError says that there may be
    none. None: no more.
    """
    global _first
    _first = ask


def require() -> None:
    """OSError where nothing may be asked."""
    if _first is not None:
        _first()
