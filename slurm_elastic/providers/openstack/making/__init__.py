"""Creates in a project of OpenStack what a site lacks there, for ``init --make``."""
