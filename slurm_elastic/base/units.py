"""Durations, sizes and dollars as people write and read them. Pure.

Durations: plain seconds, ``90s 15m 2h 7d``, and Slurm's ``D-HH``, ``D-HH:MM``, ``D-HH:MM:SS`` and
``HH:MM:SS`` (sbatch(1), --time). Slurm's ``MM:SS`` is refused: half of its readers take it for
hours and minutes. Sizes: plain MiB, ``512M 4G 1T`` in powers of 1024, as in slurm.conf(5).
"""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime

DURATION_FORMS = "a duration such as 90s, 15m, 2h, 7d, HH:MM:SS or D-HH:MM:SS"
SIZE_FORMS = "a size such as 512M, 4G or plain MiB"
MOMENT_FORMS = "a date such as 2026-11-01 or 2026-11-01T11:30Z (UTC if it names no zone)"

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_MEBIBYTES = {"M": 1, "G": 1024, "T": 1024 * 1024}
_WITH_UNIT = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)\s*([smhd]?)", re.ASCII)
_SLURM = re.compile(
    r"(?:(\d{1,6})-(\d{1,2})(?::(\d\d))?(?::(\d\d))?|(\d{1,6}):(\d\d):(\d\d))", re.ASCII
)
_SIZE = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)\s*([MGT]?)(?:iB)?", re.ASCII | re.IGNORECASE)


def parse_duration(text: str) -> float:
    """Return the seconds of a duration. ValueError if ``text`` has none of the forms above."""
    plain = _WITH_UNIT.fullmatch(text.strip())
    if plain:
        return float(plain[1]) * _SECONDS[plain[2] or "s"]
    slurm = _SLURM.fullmatch(text.strip())
    if not slurm:
        raise ValueError(f"{text!r} is not {DURATION_FORMS}")
    days, hours, minutes, seconds = (int(slurm[i] or 0) for i in (1, 2, 3, 4))
    if slurm[5] is not None:
        hours, minutes, seconds = (int(slurm[i]) for i in (5, 6, 7))
    elif hours > 23:
        raise ValueError(f"{text!r} has more than 23 hours beside its days")
    if minutes > 59 or seconds > 59:
        raise ValueError(f"{text!r} has more than 59 minutes or seconds")
    return float(days * 86400 + hours * 3600 + minutes * 60 + seconds)


def format_duration(seconds: float) -> str | float:
    """The shortest exact form that ``parse_duration`` reads, or a number if no form is exact."""
    if seconds <= 0 or seconds != int(seconds):
        return seconds
    unit = next(u for u in ("d", "h", "m", "s") if seconds % _SECONDS[u] == 0)
    return f"{int(seconds) // _SECONDS[unit]}{unit}"


def slurm_duration(seconds: float) -> str:
    """A duration as Slurm writes it: ``[DAYS-]HH:MM:SS``."""
    minutes, seconds_left = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"{f'{days}-' if days else ''}{hours:02}:{minutes:02}:{seconds_left:02}"


def parse_moment(text: str) -> float:
    """Unix time of a date in ISO 8601; without a zone it is UTC. Raises ValueError for another
    text.
    """
    moment = datetime.fromisoformat(text.strip())
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def format_moment(time: float) -> str:
    """The date in a form that ``parse_moment`` reads."""
    moment = datetime.fromtimestamp(time, UTC)
    return moment.isoformat().replace("+00:00", "Z")


def utc_minute(timestamp: float) -> str:
    """The time of day in UTC (``08:05 UTC``), for sentences in the ledger and in Slurm."""
    return f"{datetime.fromtimestamp(timestamp, UTC):%H:%M} UTC"


def brief(seconds: float) -> str:
    """A duration for sentences and tables, with its two largest units: ``45s``, ``1h 3m``. "an
    unknown time" for an infinite duration, whose beginning is not known.
    """
    if not math.isfinite(seconds):
        return "an unknown time"
    whole = round(seconds)
    if whole < 60:
        return f"{max(whole, 0)}s"
    if whole < 600 and whole % 60:
        return f"{whole // 60}m {whole % 60}s"
    minutes = whole // 60
    if minutes < 60:
        return f"{minutes}m"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours}h {minutes}m" if minutes else f"{hours}h"
    days, hours = divmod(hours, 24)
    return f"{days}d {hours}h" if hours else f"{days}d"


def money(dollars: float) -> str:
    """An amount for a sentence, with cents. Small amounts get more digits if they need them."""
    digits = 2 if abs(dollars) >= 10 else 4 if abs(dollars) >= 0.01 else 6
    whole, _, fraction = f"{dollars:,.{digits}f}".partition(".")
    return f"${whole}.{fraction.rstrip('0').ljust(2, '0')}" if fraction else f"${whole}"


def counted(number: int, noun: str) -> str:
    """The number with its noun: ``1 machine``, ``2 machines``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def does(number: int, verb: str) -> str:
    """The verb for that number of subjects: 1 ``leaves``, 2 ``leave``."""
    return f"{verb}s" if number == 1 else verb


def parse_size(text: str) -> int:
    """MiB. Raises ValueError if ``text`` is no size, or not a whole number of MiB."""
    match = _SIZE.fullmatch(text.strip())
    if not match:
        raise ValueError(f"{text!r} is not {SIZE_FORMS}")
    size = float(match[1]) * _MEBIBYTES[match[2].upper() or "M"]
    if size != int(size):
        raise ValueError(f"{text!r} is not a whole number of MiB")
    return int(size)


def format_size(mebibytes: int) -> str | int:
    """``4G`` if that is exact, otherwise MiB as a number."""
    return f"{mebibytes // 1024}G" if mebibytes > 0 and mebibytes % 1024 == 0 else mebibytes
