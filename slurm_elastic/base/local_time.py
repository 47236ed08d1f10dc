"""Points in time as people read them: in the local zone of the host, with its name.

Decisions, and the sentences in the ledger and in Slurm, have times in UTC, so that they mean the
same on every host. Screens show them in local time.
"""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime

# Not the end of a span such as 20:00-06:00 UTC, because its beginning would stay in UTC.
_UTC = re.compile(r"(?<![-:\d])(?:(\d{4}-\d\d-\d\d) )?(\d\d:\d\d)(:\d\d)? UTC\b")


def clock(timestamp: float) -> str:
    """The time of day with its zone: ``09:05:05 CET``."""
    return time.strftime("%H:%M:%S %Z", time.localtime(timestamp))


def moment(timestamp: float) -> str:
    """The date, the time of day and its zone: ``2027-01-15 09:05:05 CET``."""
    return time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(timestamp))


def minute(timestamp: float) -> str:
    """The date and the time to the minute: ``2027-01-15 09:05 CET``."""
    return time.strftime("%Y-%m-%d %H:%M %Z", time.localtime(timestamp))


def zone(timestamp: float) -> str:
    """The abbreviation of the zone at that time, which changes in summer (strftime(3), %Z)."""
    return time.strftime("%Z", time.localtime(timestamp))


def localised(text: str, written_at: float) -> str:
    """The text with its UTC times in local time. A time without a date is of the day on which the
    text was written.
    """

    def local(match: re.Match[str]) -> str:
        day, hour, second = match.groups()
        date = day or f"{datetime.fromtimestamp(written_at, UTC):%Y-%m-%d}"
        try:
            timestamp = datetime.fromisoformat(f"{date} {hour}{second or ''}+00:00").timestamp()
        except ValueError:  # another program's text, such as 27:99 UTC
            return match[0]
        is_other_day = time.localtime(timestamp)[:3] != time.localtime(written_at)[:3]
        form = "%Y-%m-%d " if day or is_other_day else ""
        form += "%H:%M:%S %Z" if second else "%H:%M %Z"
        return time.strftime(form, time.localtime(timestamp))

    return _UTC.sub(local, text) if " UTC" in text else text
