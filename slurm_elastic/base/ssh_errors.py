"""Errors of paramiko, an ssh client. Some of them differ only in their text."""

from __future__ import annotations


def is_unknown_host_key(error: BaseException) -> bool:
    """Whether the host is not in the file of known hosts."""
    return "not found in known_hosts" in str(error)
