"""Compare the instructions of the processors on which a job was started and is restored.

The C library and libraries for mathematics choose functions by the processor's instructions once,
when a program starts. A restored program does not choose again. On a processor that lacks such an
instruction it would die of SIGILL, and CRIU does not check that (criu(8), --cpu-cap).
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from . import files
from .site import RequestRefused

NAME = "processor.json"
"""In root's image: the instructions of the node on which the job was started."""
CPUINFO = Path("/proc/cpuinfo")
_CHOSEN_BY = frozenset({
    # the levels x86-64-v2 to v4 of the psABI
    "ssse3", "sse4_1", "sse4_2", "popcnt", "cx16",
    "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe",
    "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl",
    # glibc's lazy binding, and its functions on processors with transactions
    "xsavec", "rtm",
})  # fmt: skip
"""Flags of proc(5), cpuinfo, by which almost every program has functions chosen. Others, such as
sha_ni, are used by few programs, which must not keep all others from moving.
"""
_MAX_BYTES = 64 << 10


def of_node() -> list[str]:
    """Return the instructions of this node's processor that an image depends on; [] if unknown."""
    if os.uname().machine != "x86_64":
        return []
    return sorted(_CHOSEN_BY.intersection(_first_processor().get("flags", "").split()))


def processor() -> str:
    """Return a digest of this node's kind of processor, "" if unknown. Two kinds may differ in
    instructions that few programs use and that no image is refused for.
    """
    fields = _first_processor()
    kind = [fields.get(name, "") for name in ("vendor_id", "cpu family", "model", "flags")]
    return hashlib.sha256("\n".join(kind).encode()).hexdigest() if fields.get("flags") else ""


def _first_processor() -> dict[str, str]:
    """Return the lines of /proc/cpuinfo about the first processor. All of a node are alike."""
    try:
        with CPUINFO.open(encoding="ascii", errors="replace") as lines:
            text = lines.read(_MAX_BYTES)
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.partition("\n\n")[0].splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def joined(instructions: list[str], reported: object) -> list[str]:
    """Add the instructions that another node of the job reports, which may be no list of names."""
    names = reported if isinstance(reported, list) else []
    return sorted({*instructions, *_CHOSEN_BY.intersection(map(str, names))})


def note(image: Path, instructions: list[str]) -> None:
    """Record in an image the instructions of the processor on which its programs were started."""
    if instructions:
        with open(files.opened(image / NAME, files.NEW, mode=0o640), "wb") as file:
            file.write(json.dumps(instructions).encode())


def of_image(image: Path) -> list[str]:
    """Return the instructions that were recorded in a verified image; [] if none were.

    RequestRefused if this node's processor lacks some of them.
    """
    try:
        content = files.json_of(files.read(image / NAME, _MAX_BYTES, owners=(0,)))
    except FileNotFoundError:  # of another processor, or of an older program
        return []
    needed, present = [str(name) for name in content], of_node()
    missing = [name for name in needed if name not in present] if present else []
    if missing:
        names = ", ".join(missing)
        raise RequestRefused(f"the processor of this node lacks {names}, which the job may use")
    return needed
