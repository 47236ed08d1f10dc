"""When credentials end: the words for people, and the ledger's rows about it.

The last look at each cloud's credentials is a row of Health: ``code`` is their end. ``error`` is
set from a day before it on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

from slurm_elastic.model.memory import Health

WARNING = 86400.0
"""Seconds before the end of credentials at which the warning begins."""
_NAME, _CODE = "credentials of ", "end "


def ending(ends: float, now: float) -> str:
    """The end of credentials as a phrase for people."""
    when = f"{datetime.fromtimestamp(ends, UTC):%Y-%m-%d %H:%M} UTC"
    seconds_left = ends - now
    if seconds_left <= 0:
        return f"ended {when}"
    return (
        f"end in {seconds_left / 3600:.0f} h, {when}"
        if seconds_left >= 7200
        else f"end in {seconds_left / 60:.0f} min"
    )


def soon(ends: float, now: float) -> bool:
    """Whether the credentials end within WARNING seconds, so that an administrator must act."""
    return ends - now < WARNING


def health_of(cloud: str, ends: float | None, now: float) -> Health:
    """The row of the ledger about a cloud's credentials."""
    warning = None if ends is None or not soon(ends, now) else ending(ends, now)
    code = None if ends is None else f"{_CODE}{ends:.0f}"
    return Health(name=f"{_NAME}{cloud}", checked=now, error=warning, code=code)


def ends_of(health: Iterable[Health]) -> Iterator[tuple[str, float]]:
    """Yield each cloud whose credentials end, with the time of their end (Unix time)."""
    for row in health:
        if row.name.startswith(_NAME) and row.code is not None:
            yield row.name.removeprefix(_NAME), float(row.code.removeprefix(_CODE))
