"""Build golden images from Debian's packages, test them by booting a machine, and list them."""
