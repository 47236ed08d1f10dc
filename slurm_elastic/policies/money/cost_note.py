"""The cost of a job in its AdminComment, beside the text of others. Pure.

``... [slurm-elastic cost=$1.234567 market=spot]``: slurmdbd keeps the AdminComment, so ``sacct``
shows it long after the job.
"""

from __future__ import annotations

from collections.abc import Iterable

from slurm_elastic.model.admin_comment import NoteKind, with_note


def noted(text: str, micro: int, markets: Iterable[str]) -> str:
    """Return ``text`` with this cost (micro-dollars) and these markets instead of an earlier note.

    The note about its wait is removed, because the job has ended.
    """
    names = "+".join(sorted(set(markets)))
    cost = f"${micro / 1e6:.6f} market={names}"
    return with_note(with_note(text, NoteKind.WAIT, ""), NoteKind.COST, cost)
