"""What SDKs raise: as ours, and what it came of, as they wrap what happened in their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from slurm_elastic.base.errors import ProviderError


class NoCredentials(Exception):  # noqa: N818 - read as a word
    """Credentials cannot be used; the text says which and why, without any part of them."""


@contextmanager
def translating(
    known: Callable[[Exception], ProviderError | None], hidden: tuple[type[Exception], ...] = ()
) -> Iterator[None]:
    """Raise one of ours for what is raised inside and ``known``; all else stays as it is. Nothing
    of a ``hidden`` one goes on with it: there may be secrets in its text.
    """
    try:
        yield
    except ProviderError:
        raise
    except Exception as error:
        found = known(error)
        if found is None:
            raise
        raise found from (None if isinstance(error, hidden) else error)


def causes(error: BaseException) -> Iterator[BaseException]:
    """The error and what it came of, innermost first."""
    below = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    inside = [a for a in error.args if isinstance(a, BaseException)]
    reason = getattr(error, "reason", None)
    for one in (below, *inside, reason if isinstance(reason, BaseException) else None):
        if one is not None and one is not error:
            yield from causes(one)
    yield error
