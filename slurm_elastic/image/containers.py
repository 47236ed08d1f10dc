"""Containers for jobs in an image: Pyxis, Slurm's plugin for ``srun --container-image``.

Debian has neither Pyxis nor Enroot. Enroot comes as a package from the recipe's ``sources``. Pyxis
must be built against the headers of exactly the Slurm that loads it, so we build it in the image.
"""

from __future__ import annotations

from pathlib import Path

from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.image import apt, rooted
from slurm_elastic.image.commands import run
from slurm_elastic.image.recipe import BUILD_TOOLS

PLUGIN = "/usr/local/lib/slurm/spank_pyxis.so"
"""Where Pyxis' Makefile installs it. The head must have it at the same place."""
_PLACE = "usr/src/pyxis"


def add_pyxis(source: str, tree: Path) -> None:
    """Build Pyxis from the directory ``source`` and install it. The tools of the build do not stay
    in the image.
    """
    place = rooted.entry(tree, _PLACE)
    place.parent.mkdir(parents=True, exist_ok=True)
    run(["cp", "-a", "--no-preserve=ownership", source, place])
    # Objects of another host or release must not be taken for up to date.
    apt.in_tree(tree, f"make -C /{_PLACE} clean install")
    run(["rm", "-rf", place])
    if not rooted.target(tree, PLUGIN.lstrip("/")).is_file():
        raise SlurmElasticError(
            f"make install of {source} made no {PLUGIN}: is it the source of Pyxis?"
        )
    apt.in_tree(tree, f"apt-get purge --yes --quiet --autoremove {' '.join(BUILD_TOOLS)}")
