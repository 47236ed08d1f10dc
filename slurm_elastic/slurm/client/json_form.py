"""The form of JSON that a release of Slurm is asked for, among those that it offers."""

from __future__ import annotations

import re

_MEASURED = (0, 0, 42)
"""The form that was measured, of 24.11 to 26.05; each release has some, and drops the oldest."""


_FORM = re.compile(r"\bv(\d+)\.(\d+)\.(\d+)\b")


def known(offered: str) -> str:
    """The measured form, or the next newer one; else the newest, or the release's own."""
    forms = sorted({(int(a), int(b), int(c)) for a, b, c in _FORM.findall(offered)})
    if not forms:
        return "--json"
    form = next((form for form in forms if form >= _MEASURED), forms[-1])
    return "--json=v" + ".".join(map(str, form))
