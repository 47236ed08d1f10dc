"""Judges the public keys that machines print on their consoles or hand in."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Container
from pathlib import Path

from slurm_elastic.model.cluster import Instance
from slurm_elastic.policies.repair.tunnel_addresses import is_public_key

CONSOLE_READ = 1 << 18
"""We search so many characters at the end of a console. Clouds keep fewer."""
_PRINTED = re.compile(r"slurm-elastic-tunnel-key (\S{1,80}) (\S{1,80}) ([A-Za-z0-9+/]{43}=)")


def printed_key(console: str, instance: Instance) -> str:
    """The public key that the machine printed last on its console; "" if there is none."""
    printed = _PRINTED.findall(console[-CONSOLE_READ:])
    keys = [
        key
        for generation, node, key in printed
        if (generation, node) == (instance.generation, instance.node) and is_public_key(key)
    ]
    return keys[-1] if keys else ""


def flaw_of(key: str, head_key: Path, enrolment_keys: Container[str]) -> str:
    """Why this key cannot be a machine's own; "" if nothing says so. ``head_key``: the file with
    the head's public key. ``enrolment_keys``: keys that others of the machine's launch may know.
    """
    if not is_public_key(key):
        return "the text is no public key of WireGuard"
    with contextlib.suppress(OSError):  # the hub has not made it yet
        if key == head_key.read_text(encoding="ascii", errors="replace").strip():
            return "it is the public key of the head"
    if key in enrolment_keys:
        return "it is the enrolment key of a machine"
    return ""
