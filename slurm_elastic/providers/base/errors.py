"""Translate the errors of SDKs into ours, and find the errors that an SDK has wrapped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from slurm_elastic.base.errors import ProviderError, QuotaError


class NoCredentials(Exception):  # noqa: N818 - read as a word
    """Credentials cannot be used. The text names them and the reason, and contains no part
    of them.
    """


@contextmanager
def translating(
    translate: Callable[[Exception], ProviderError | None], hidden: tuple[type[Exception], ...] = ()
) -> Iterator[None]:
    """Raise ``translate(error)`` for an error raised inside. If it returns None, the error stays as
    it is.

    An error of a class in ``hidden`` is not chained to ours, because its text may contain secrets.
    """
    try:
        yield
    # Our own errors pass unchanged, so that translations can be nested.
    except ProviderError:
        raise
    except Exception as error:
        translated = translate(error)
        if translated is None:
            raise
        raise translated from (None if isinstance(error, hidden) else error)


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the errors that led to ``error``, innermost first, then the error itself."""
    chained = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    # Libraries keep the original error in different places: as ``__cause__`` or ``__context__``,
    # among the arguments (requests, urllib3), or as ``reason`` (urllib).
    from_arguments = [a for a in error.args if isinstance(a, BaseException)]
    from_reason = getattr(error, "reason", None)
    for cause in (
        chained,
        *from_arguments,
        from_reason if isinstance(from_reason, BaseException) else None,
    ):
        if cause is not None and cause is not error:
            yield from causes(cause)
    yield error


def of_whole_call(error: ProviderError, least: int) -> ProviderError:
    """The error of a call that had to start at least ``least`` machines or none. The cloud refuses
    more than one machine also if the account's quota still has room for some.
    """
    if least == 1 or not isinstance(error, QuotaError):
        return error
    return QuotaError(error.cloud, error.code, error.full_message, of_size=True)
