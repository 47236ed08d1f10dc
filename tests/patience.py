"""How long tests wait, as the suite for clouds of others does."""

from slurm_elastic.testing.patience import eventually, patience

__all__ = ["eventually", "patience"]
