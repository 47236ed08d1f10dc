"""Golden images of machines: built from Debian's packages, proved by a boot, listed."""
