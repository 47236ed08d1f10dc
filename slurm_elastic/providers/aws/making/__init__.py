"""Creates the resources in an account of EC2 that a site lacks, for ``init --make``."""
