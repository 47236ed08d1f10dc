"""The gres that a job asks for, in every form in which Slurm and its commands write them. Pure.

Users write ``gpu:3g.20gb:2``. Slurm's records have ``gres:gpu:3g.20gb:2`` or
``gres/gpu:3g.20gb=2``. A type may begin with a digit. Only a last part of digits is a count: Slurm,
too, reads ``gpu:3090`` as 3090 GPUs. The submit filter has the same grammar in Lua, and a
test compares both with a real slurmctld.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

_COUNT = re.compile(r"(.+):(\d+)([KMGTP]?)", re.IGNORECASE)
_NAME = re.compile(r"[\w.-]+(?::[\w.-]+)?", re.ASCII)
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}
_NO_GRES = frozenset({"cpu", "mem", "node", "billing", "energy", "license", "none"})
"""Trackable resources in fields of gres that do not count as gres, and ``--gres=none``."""


def gres_requests(text: str) -> Iterator[tuple[str, int]]:
    """Yield each gres of the text with its count. Only Slurm can judge parts that do not match."""
    for item in re.split(r"[ ,]+", text):
        name, count = _split(re.sub(r"^gres[:/]", "", item).replace("=", ":"))
        if _NAME.fullmatch(name) and name.partition(":")[0].lower() not in _NO_GRES:
            yield name, count


def _split(text: str) -> tuple[str, int]:
    match = _COUNT.fullmatch(text)
    if match is None:
        return text, 1
    return match[1], int(match[2]) * 1024 ** _POWERS[match[3].upper()]


def gres_count(counts: Mapping[str, int] | Iterable[tuple[str, int]], name: str) -> int:
    """How many of a gres there are: ``gpu`` counts every type, ``gpu:a100`` that type only."""
    pairs = counts.items() if isinstance(counts, Mapping) else counts
    return sum(count for key, count in pairs if key == name or key.startswith(f"{name}:"))


def gpu_request(value: str) -> str:
    """The value of --gpus, --gpus-per-node or --gpus-per-task (``2``, ``t4:1,a100:2``) as gres."""
    return ",".join(f"gpu:{item}" for item in value.split(",") if item)
