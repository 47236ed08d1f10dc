"""Why nodes are kept from Slurm."""

from __future__ import annotations

from slurm_elastic.model.causes.cause import Cause


class GrowthStartsIt(Cause, frozen=True, kw_only=True):
    """A growth policy keeps its idle nodes from Slurm."""

    @property
    def sentence(self) -> str:
        return "the growth policy starts it when it is needed"


NodeHold = GrowthStartsIt
"""All causes of holds that have data of their own."""
