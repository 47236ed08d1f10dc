"""The cost of a job in its AdminComment, beside the text of others. Pure.

``... [slurm-elastic cost=$1.234567 market=spot]``: slurmdbd keeps the AdminComment, so ``sacct``
shows it long after the job. Text outside our brackets stays unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_OURS = re.compile(r"\s?\[slurm-elastic cost=[^][]*\]")


def noted(text: str, micro: int, markets: Iterable[str]) -> str:
    """Return ``text`` with this cost (micro-dollars) and these markets instead of an
    earlier note.
    """
    others_text = _OURS.sub("", text)
    names = "+".join(sorted(set(markets)))
    note = f"[slurm-elastic cost=${micro / 1e6:.6f} market={names}]"
    return f"{others_text} {note}" if others_text else note
