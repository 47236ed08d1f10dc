"""Where operators' directives let nothing new start, and how that is told. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from slurm_elastic.model.directive import (
    Departure,
    Directive,
    LimitChange,
    Pause,
    scope_in_words,
    scope_of_cloud,
    scope_of_pool,
)


def stopped_pools(
    directives: Iterable[Directive], cloud_of: Mapping[str, str], now: float
) -> dict[str, str]:
    """By pool, why operators let no machine start there. ``cloud_of``: each pool's cloud."""
    closed = {scope: why for d in directives if d.holds(now) and (scope := _closed(d)) is not None
              for why in (stop_reason(d),)}  # fmt: skip
    found: dict[str, str] = {}
    for pool, cloud in cloud_of.items() if closed else ():
        for scope in (scope_of_pool(pool), scope_of_cloud(cloud), ""):
            if scope in closed:
                found[pool] = closed[scope]
                break
    return found


def stopped_nodes(directives: Iterable[Directive], now: float) -> dict[str, str]:
    """By node, why an operator keeps it from Slurm: single ones that were drained."""
    return {
        node: stop_reason(d)
        for d in directives
        if d.holds(now) and isinstance(d.word, Departure) and d.word.closes
        for node in d.word.nodes
    }


def _closed(directive: Directive) -> str | None:
    word = directive.word
    if isinstance(word, Pause):
        return word.scope
    if isinstance(word, Departure) and word.closes and word.scope:
        return word.scope
    return None


def stop_reason(directive: Directive) -> str:
    """Why nothing starts, in one line that stays the same as long as the directive holds."""
    word = directive.word
    if isinstance(word, Departure):
        to = f" to {word.to}" if word.to else ""
        single = "node " if len(word.nodes) == 1 else "nodes "
        about = word.about if word.scope else f"{single}{word.about}"
        be = "is" if word.scope or len(word.nodes) == 1 else "are"
        what = f"{about} {be} {_PAST[word.verb]}{to}"
    else:
        what = f"{scope_in_words(word.scope)} is paused"
    why = f": {directive.reason}" if directive.reason else ""
    return f"{what} by {directive.who}{_until(directive)}{why}"


_PAST = {"drain": "drained", "replace": "being replaced", "migrate": "emptied"}


def _until(directive: Directive) -> str:
    return "" if directive.until is None else f" until {clock(directive.until)}"


def clock(at: float) -> str:
    """A point in time as directives are told: in UTC, as budgets are."""
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M} UTC"


def told(directive: Directive, now: float) -> str:
    """A directive in one line: what holds now, or will, for how long, by whom and why."""
    word = directive.word
    if isinstance(word, LimitChange):
        what = f"{scope_in_words(word.scope)}: {word.key} is {word.value:g}"
        since = f" since {clock(directive.starts)}" if directive.starts <= now else ""
        line = f"{what} by {directive.who}{since}{_until(directive)}"
        line += f": {directive.reason}" if directive.reason else ""
    else:
        line = stop_reason(directive)
    later = "" if directive.starts <= now else f"from {clock(directive.starts)} on: "
    return f"{later}{line}"
