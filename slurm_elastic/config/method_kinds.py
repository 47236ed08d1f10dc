"""The checkpoint methods that a configuration or a job may name: ours, and those of other packages,
which offer them by an entry point of the group ``slurm_elastic.checkpointers``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

from msgspec import Struct

from slurm_elastic.base import outside
from slurm_elastic.config import Config
from slurm_elastic.config.checkpoint import LIMIT, METHODS, OPTIONS
from slurm_elastic.model.protocols import Checkpointer, Slurm
from slurm_elastic.model.slurm import SlurmJob

GROUP = "slurm_elastic.checkpointers"
API = 1
"""The version of the interface that a method is written for. It grows when a change of MethodKind
or Checkpointer breaks methods of others.
"""

Look = Callable[[int], SlurmJob | None]
"""A job as Slurm has it now, None if Slurm no longer has it; may raise SlurmError."""


class MethodKind(Struct, frozen=True, kw_only=True):
    """A checkpoint method of another package. ``name`` is of lower-case letters, as jobs say it
    (``--comment=ckpt=NAME``). ``open`` makes the method from the whole configuration, Slurm, and a
    look at one job; ConfigError where something is lacking.
    """

    name: str
    open: Callable[[Config, Slurm, Look], Checkpointer]
    api: int = API


@cache
def table() -> outside.Kinds[MethodKind]:
    """The checkpoint methods of this installation."""
    own = {name: f"slurm_elastic.checkpointers:{name}" for name in METHODS}
    return outside.Kinds(MethodKind, API, "checkpoint methods", own, outside.installed(GROUP))


def options_of(method: str) -> Mapping[str, tuple[str, ...]]:
    """The keys that a job may set for that method, as ``config.checkpoint.OPTIONS`` has them."""
    return OPTIONS.get(method, {LIMIT: ()})
