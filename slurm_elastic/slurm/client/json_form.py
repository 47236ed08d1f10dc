"""Chooses the form of JSON to ask for, among the forms that a release of Slurm offers."""

from __future__ import annotations

import re

_MEASURED = (0, 0, 42)
"""The form that was measured, on 24.11 to 26.05. Each release has some forms, and drops the
oldest.
"""


_FORM = re.compile(r"\bv(\d+)\.(\d+)\.(\d+)\b")


def choose_form(offered: str) -> str:
    """The option for squeue's JSON: the form that we measured, else the next newer form, else the
    newest one. ``--json`` alone if ``offered`` names none.
    """
    forms = sorted({(int(a), int(b), int(c)) for a, b, c in _FORM.findall(offered)})
    if not forms:
        return "--json"
    form = next((form for form in forms if form >= _MEASURED), forms[-1])
    return "--json=v" + ".".join(map(str, form))
