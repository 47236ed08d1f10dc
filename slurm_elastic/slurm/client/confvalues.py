"""Values of slurm.conf's options, read as Slurm reads them (src/common/parse_value.c). Pure."""

from __future__ import annotations

import math
import re

_TRUE = frozenset({"yes", "up", "true", "1"})
_ENDLESS = frozenset({"infinite", "unlimited"})
_NUMBER = re.compile(r"(0x[0-9a-f]+|\d+)([kmgt]?)")
_UNITS = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}
_TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")
_PREFIXES = {"jobsubmitplugins": "job_submit/", "grestypes": "gres/"}
"""The prefixes that items of a list may have or lack, by the option's name in lower case."""


def is_true(text: str) -> bool:
    """Whether Slurm takes a boolean option with this value as set."""
    return text.lower() in _TRUE


def number(text: str) -> int | None:
    """A whole number, also hexadecimal, octal or with K, M, G, T. None for other text."""
    match = _NUMBER.fullmatch(text.lower())
    if match is None:
        return None
    digits, unit = match.groups()
    # strtoul(3) with base 0 takes a number with a leading 0 as octal.
    base = 16 if digits.startswith("0x") else 8 if digits.startswith("0") else 10
    try:
        return int(digits, base) * _UNITS[unit]
    except ValueError:
        return None


def is_endless(text: str) -> bool:
    """Whether a partition's time limit has no end."""
    return text.lower() in _ENDLESS or text == "-1"


def seconds(text: str) -> float | None:
    """The seconds of ``D-HH:MM:SS``, ``D-HH``, ``HH:MM:SS``, ``MM:SS`` or minutes. None if there is
    no end.
    """
    match = _TIME.fullmatch(text)
    if match is None:
        return None
    days, *fields = (int(digits) if digits else 0 for digits in match.groups())
    # Without days, one or two fields begin with the minutes.
    if match[1] is None and match[4] is None:
        fields = [0, *fields]
    return float(days * 86400 + fields[0] * 3600 + fields[1] * 60 + fields[2])


def minutes(text: str) -> int | None:
    """The time in whole minutes, rounded up, because Slurm's time limits have no seconds."""
    length_s = seconds(text)
    return None if length_s is None else math.ceil(length_s / 60)


def never_suspends(text: str, *, of_partition: bool = False) -> bool:
    """Whether a SuspendTime means that nodes are never suspended.

    Slurm takes UNLIMITED for 0 seconds, and in a partition NONE, too (measured, 22.05 to 25.11).
    """
    word = text.lower()
    return word in ("infinite", "-1") or (word == "none" and not of_partition)


def items(name: str, text: str) -> tuple[str, ...]:
    """The items of a list with commas, without the prefix that Slurm does not need.

    ``none`` and ``(null)`` are no items.
    """
    prefix = _PREFIXES.get(name.lower(), "")
    stripped = (item.strip().removeprefix(prefix) for item in text.split(","))
    return tuple(item for item in stripped if item and item.lower() not in ("none", "(null)"))
