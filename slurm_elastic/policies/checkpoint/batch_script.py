"""Whether the shell of a batch script dies of the signal by which its job is asked to save itself.
Pure. The submit filter makes the same check (job_saving.lua, ``dies_of_signals``).
"""

from __future__ import annotations

import re

_SHELL = re.compile(r"#!\s*(?:/\S*/)?(?:env\s+)?(?:/\S*/)?(?:ba|da|k|z)?sh(?:\s|$)")
"""The first line of a script for a shell whose words we know."""
_COMMENT_LINE = re.compile(r"^[ \t]*#.*$", re.MULTILINE)
_MAY_CATCH = re.compile(r"(?<!\w)(?:trap|exec|eval|source)(?!\w)|(?:^|[\s;&|({])\.[ \t]")
"""The words by which a shell catches a signal, becomes its program, or does what another text
says.
"""
DIED = "the signal ended its batch script, which did not catch it"
"""How a run ended that the signal of its save has ended."""


RELAY_MARK = "#__SLURM_ELASTIC_RELAY__"
"""The end of the line that the submit filter puts into a script (signal_relay.sh)."""


def has_relay(script: str) -> bool:
    """Whether the script starts the relay, which sends the signal to the programs that catch it."""
    second_line = script.split("\n", 2)[1:2]
    return bool(second_line) and second_line[0].endswith(RELAY_MARK)


def dies_of_signals(script: str) -> bool:
    """Whether a shell that runs the script certainly dies of a signal that ends processes.

    Slurm signals the shell of a batch script, and not the programs that the shell has started. When
    the shell dies, the job has FAILED. False also means that we do not know.
    """
    if not _SHELL.match(script):
        return False
    return _MAY_CATCH.search(_COMMENT_LINE.sub("", script)) is None
