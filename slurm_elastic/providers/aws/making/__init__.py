"""Creates in an account of EC2 what a site lacks there, for ``init --make``."""
