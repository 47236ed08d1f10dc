"""The protocol of providers that know which image their machines start from."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from slurm_elastic.model.cluster import Pool


@runtime_checkable
class NamesImages(Protocol):
    """A provider that says which image a new machine would start from. ``Instance.image`` of its
    machines has the same form.
    """

    def image_for(self, pool: Pool) -> str:
        """The id of the image that a new machine of the pool would start from. May raise the five
        ProviderErrors.
        """
        ...
