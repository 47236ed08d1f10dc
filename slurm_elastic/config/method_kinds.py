"""The checkpoint methods that a configuration or a job may name: ours, and methods of other
packages. Packages offer methods by an entry point of the group ``slurm_elastic.checkpointers``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

from msgspec import Struct

from slurm_elastic.base import outside
from slurm_elastic.config import Config
from slurm_elastic.config.sections.checkpoint import LIMIT, METHODS, OPTIONS
from slurm_elastic.model.protocols import Checkpointer, Slurm
from slurm_elastic.model.slurm import SlurmJob

GROUP = "slurm_elastic.checkpointers"
API = 1
"""The version of the interface for methods. It grows when a change of MethodKind or Checkpointer
breaks methods of other packages.
"""

Look = Callable[[int], SlurmJob | None]
"""The job as Slurm has it now. None if Slurm no longer has it. It may raise SlurmError."""


class MethodKind(Struct, frozen=True, kw_only=True):
    """A checkpoint method of another package. ``name``: lower-case letters, as in jobs'
    ``--comment=ckpt=NAME``. ``open`` makes the method from the whole configuration, Slurm, and a
    function that looks at one job. It raises ConfigError if something is missing.
    """

    name: str
    open: Callable[[Config, Slurm, Look], Checkpointer]
    api: int = API


@cache
def table() -> outside.Kinds[MethodKind]:
    """The checkpoint methods of this installation."""
    own_places = {name: f"slurm_elastic.checkpointers:{name}" for name in METHODS}
    return outside.Kinds(
        MethodKind, API, "checkpoint methods", own_places, outside.installed(GROUP)
    )


def options_of(method: str) -> Mapping[str, tuple[str, ...]]:
    """The keys that a job may set for that method, in the form of ``config.checkpoint.OPTIONS``."""
    return OPTIONS.get(method, {LIMIT: ()})
