"""Optional parts of the package ("extras"), and the sentence for a part that is not installed."""

from __future__ import annotations

import sys


def missing_module(error: ImportError, extra: str) -> str:
    """The remedy for a module that an optional part needs and that cannot be imported.

    No registry has the package, so the remedy names a clone. The import of a module that belongs to
    Python itself fails if the process's user may not read that Python. User slurm, for example, may
    not read a Python below /root. No extra brings such a module.
    """
    module = (error.name or "").partition(".")[0]
    if module in sys.stdlib_module_names:
        return (
            f"Python's own module {error.name!r} cannot be read by this user; "
            f"do: use a Python that every user may read, not {sys.prefix}"
        )
    return (
        f"Python module {error.name!r} is missing; do: "
        f"{sys.executable} -m pip install '.[{extra}]' in a clone of slurm-elastic"
    )
