"""Creates the resources in a project of OpenStack that a site lacks, for ``init --make``."""
