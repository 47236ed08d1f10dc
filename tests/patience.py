"""How long tests wait, as the suite for clouds of others does."""

from slurm_elastic.testing.patience import awake, eventually, patience, stretched, undisturbed

__all__ = ["awake", "eventually", "patience", "stretched", "undisturbed"]
