"""The names of counters, and histograms as one counter per bucket, for both services. Histograms
therefore outlive a restart like any counter.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterable, Mapping

BUCKETS: Mapping[str, tuple[float, ...]] = {
    "boot_seconds": (15, 30, 45, 60, 90, 120, 180, 300, 600),
    "start_delay_seconds": (1, 2, 5, 10, 30, 60, 120),
    "resume_to_running_seconds": (30, 60, 90, 120, 180, 300, 600, 1200),
    "api_seconds": (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
    "checkpoint_seconds": (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800),
    "migration_seconds": (10, 30, 60, 120, 300, 600, 1800, 3600, 7200),
}
Counts = defaultdict[str, float]
Labels = tuple[tuple[str, str], ...]
_ESCAPED = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


@functools.lru_cache(4096)
def series(name: str, **labels: str) -> str:
    """The name of a counter with its labels: ``name{label="value"}``."""
    text = ",".join(f'{key}="{labels[key].translate(_ESCAPED)}"' for key in sorted(labels))
    return f"{name}{{{text}}}"


def observe(counts: Counts, name: str, value: float, **labels: str) -> None:
    """Add a value to a histogram."""
    for bound in BUCKETS[name]:
        if value <= bound:
            counts[series(f"{name}_bucket", le=f"{bound:g}", **labels)] += 1
    counts[series(f"{name}_bucket", le="+Inf", **labels)] += 1
    counts[series(f"{name}_sum", **labels)] += value


def sums(
    counted: Mapping[tuple[str, Labels], float], observed: Iterable[tuple[str, float, Labels]]
) -> Counts:
    """Counters and observed values of histograms, added up by the names of their counters."""
    counts: Counts = defaultdict(float)
    for (name, labels), value in counted.items():
        counts[series(name, **dict(labels)) if labels else name] += value
    for name, value, labels in observed:
        observe(counts, name, value, **dict(labels))
    return counts
