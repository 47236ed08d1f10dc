"""A job's cost as its AdminComment has it, beside what others wrote there. Pure.

``... [slurm-elastic cost=$1.234567 market=spot]``: slurmdbd keeps the AdminComment, so ``sacct``
shows it long after the job. Everything outside of our brackets stays as it was.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_OURS = re.compile(r"\s?\[slurm-elastic cost=[^][]*\]")


def noted(text: str, micro: int, markets: Iterable[str]) -> str:
    """``text`` with this cost (micro-dollars) and these markets, in the place of an earlier one."""
    rest = _OURS.sub("", text)
    names = "+".join(sorted(set(markets)))
    note = f"[slurm-elastic cost=${micro / 1e6:.6f} market={names}]"
    return f"{rest} {note}" if rest else note
