"""How long tests wait, as the suite for clouds of others does."""

from slurm_elastic.testing.patience import (
    awake,
    eventually,
    patience,
    pause,
    stretched,
    undisturbed,
)

__all__ = ["awake", "eventually", "patience", "pause", "stretched", "undisturbed"]
