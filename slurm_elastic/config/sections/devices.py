"""The device files of a pool's gres, as gres.conf names them. Pure.

An entry such as ``/dev/nvidia[0-3]`` is one device for each file. In an entry with commas all files
are one device, such as a part of a GPU (MIG): ``/dev/nvidia0,/dev/nvidia-caps/nvidia-cap[21-22]``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from slurm_elastic.base.hostlist import HostlistError, expand

FORM = (
    "absolute paths such as /dev/nvidia[0-3], or with a comma between the files of one device,"
    " as /dev/nvidia0,/dev/nvidia-caps/nvidia-cap[21-22]"
)
MIG = re.compile(r"(?:^|[_.-])(?P<profile>\d+g\.\d+gb)")
"""The end of the type of a part of a GPU, such as ``a100_3g.20gb``."""
_PATH = re.compile(r"/[A-Za-z0-9_./-]*(?:\[[0-9,-]+\])?")
_BETWEEN = re.compile(r",(?![^\[]*\])")
_GPU = "gpu"


class Device(Struct, frozen=True, kw_only=True):
    """A line of gres.conf. With ``several`` its files are one device."""

    gres: str
    files: str
    several: bool = False


def counted(entry: str) -> int:
    """How many devices an entry names. ValueError if it is no entry."""
    paths = _BETWEEN.split(entry)
    if not all(_PATH.fullmatch(path) for path in paths):
        raise ValueError(entry)
    try:
        numbers = [len(expand(path.replace("/", "."))) for path in paths]
    except HostlistError as error:
        raise ValueError(entry) from error
    return numbers[0] if len(paths) == 1 else 1


def devices(gres: Mapping[str, int], named: Mapping[str, Sequence[str]]) -> Iterator[Device]:
    """All devices for gres.conf: the ``named`` ones, and NVIDIA's usual files for other GPUs, which
    Slurm would not count without files. ValueError, with the name of the gres, for a part of a GPU
    whose files are not named, because they cannot be guessed.
    """
    first_number = 0  # the numbers run on through all kinds of GPUs of a node
    for name, count in gres.items():
        if name in named:
            for entry in named[name]:
                yield Device(gres=name, files=entry, several=len(_BETWEEN.split(entry)) > 1)
        elif name.partition(":")[0] == _GPU:
            if MIG.search(name.partition(":")[2]):
                raise ValueError(name)
            last_number = first_number + count - 1
            numbers = str(first_number) if count == 1 else f"[{first_number}-{last_number}]"
            yield Device(gres=name, files=f"/dev/nvidia{numbers}")
            first_number = last_number + 1
