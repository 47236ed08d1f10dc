"""What ``doctor`` says of a cloud's call that was refused."""

from __future__ import annotations

from slurm_elastic.errors import AuthError, ProviderError
from slurm_elastic.model import Finding, Level


def refused(
    what: str, error: ProviderError, expected: str, *, rights: str, otherwise: str
) -> Finding:
    """Wrong, in the cloud's own words; what to do: ``rights`` where those are missing."""
    return Finding(
        what=what,
        level=Level.WRONG,
        found=f"{error.code}: {error.message}",
        expected=expected,
        advice=rights if isinstance(error, AuthError) else otherwise,
    )
