"""slurm-elasticd or slurm-elastic-ckptman for ``soak``: as shipped, but it keeps history for some
minutes only, and writes its memory into a file every few seconds.

``python -m benchmarks.soak_service FILE HISTORY_S TRACED MODULE [options of the service]``
"""

from __future__ import annotations

import ctypes
import importlib
import json
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

from slurm_elastic.base.processes import heap

EVERY_S = 5.0
_NOTES_BEFORE_NAMES = 12
"""Notes until ``grow_interned_names``: by then the service has imported the clouds' libraries."""
_NAMES = 100_000
FRAMES = 12
_LIBC = ctypes.CDLL(None)


def main() -> None:
    path, history_s, traced, module = (
        Path(sys.argv[1]),
        float(sys.argv[2]),
        sys.argv[3],
        sys.argv[4],
    )
    if traced == "traced":
        tracemalloc.start(FRAMES)
    service = importlib.import_module(module)
    keep_history(history_s)
    threading.Thread(target=_note, args=(path,), daemon=True).start()
    sys.argv[1:] = sys.argv[5:]
    sys.exit(service.main())


def grow_interned_names() -> None:
    """Let CPython's table of interned strings grow now.

    Each fresh name (pathlib interns the parts of each path) takes a place in the table, and leaves
    it used when the name goes. When no place is free, the table is rebuilt, three times as large as
    its names need: 0.9 MiB more, once, in the midst of a soak.
    """
    for number in range(_NAMES):
        sys.intern(f"fresh name {number}")


def keep_history(seconds: float, put: Callable[[object, str, float], None] = setattr) -> None:
    """Have both services forget what is older."""
    from slurm_elastic.ckptman import service
    from slurm_elastic.controller import daemon
    from slurm_elastic.state.ledger import retention
    from slurm_elastic.state.store import endurance
    from slurm_elastic.watch.door import records

    for module, names in (
        (daemon, ("HISTORY_KEPT_S",)),
        (service, ("HISTORY_S",)),
        (retention, ("SHORTENED_AFTER", "LAUNCHES_KEPT", "MACHINES_KEPT")),
        (endurance, ("COSTS_KEPT_S",)),
        (records, ("DAY_S",)),
    ):
        for name in names:
            put(module, name, seconds)
    put(daemon, "PRUNE_EVERY_S", seconds / 10)
    put(heap, "GIVE_BACK_EVERY_S", seconds / 10)


def memory_kb() -> dict[str, float]:
    """Resident and own memory of this process, and what Python's allocator has given out."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines[1:])
    own = sum(int(fields[name].split()[0]) for name in ("Private_Dirty", "Private_Clean", "Swap"))
    found = {"resident": float(fields["Rss"].split()[0]), "own": float(own)}
    found["anonymous"] = float(fields["Anonymous"].split()[0])
    if tracemalloc.is_tracing():
        found["traced"] = tracemalloc.get_traced_memory()[0] / 1024
    return {**found, "blocks": float(sys.getallocatedblocks()), **c_heap_kb()}


class _Info(ctypes.Structure):
    """mallinfo2 of glibc, of all its arenas."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    )


def c_heap_kb() -> dict[str, float]:
    """What C code uses by malloc, and what glibc keeps for it without use."""
    if not hasattr(_LIBC, "mallinfo2"):
        return {}
    _LIBC.mallinfo2.restype = _Info
    info = _LIBC.mallinfo2()
    return {
        "used": info.uordblks / 1024,
        "mapped": info.hblkhd / 1024,
        "free": info.fordblks / 1024,
    }


def _note(path: Path) -> None:
    number = notes = 0
    while True:
        notes += 1
        if notes == _NOTES_BEFORE_NAMES:
            grow_interned_names()
        with path.open("a") as file:
            file.write(json.dumps({"at": time.time(), **memory_kb()}) + "\n")
        order = path.with_suffix(".dump")
        if tracemalloc.is_tracing() and order.exists():
            tracemalloc.take_snapshot().dump(str(path.with_suffix(f".{number}.trace")))
            number += 1
            order.unlink()
        time.sleep(EVERY_S)


if __name__ == "__main__":
    main()
