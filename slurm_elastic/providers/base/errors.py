"""The cause of an exception: SDKs wrap what happened in errors of their own."""

from __future__ import annotations

from collections.abc import Iterator


def causes(error: BaseException) -> Iterator[BaseException]:
    """The error and what it came of, innermost first."""
    below = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    inside = [a for a in error.args if isinstance(a, BaseException)]
    reason = getattr(error, "reason", None)
    for one in (below, *inside, reason if isinstance(reason, BaseException) else None):
        if one is not None and one is not error:
            yield from causes(one)
    yield error
