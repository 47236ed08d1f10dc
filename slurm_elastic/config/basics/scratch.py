"""The guard of ``join.wipe``: it says which directories root never empties of users' files.

The guard checks the configuration. On each machine it also checks the place where a directory
really is, because this text becomes part of programs/slurm-elastic-wipe. It therefore uses the
standard library alone, and runs on any Python from 3.6 on.
"""

import posixpath

NEVER = (
    "bin", "boot", "dev", "etc", "home", "lib", "lib32", "lib64", "libx32", "proc", "root", "run",
    "sbin", "sys", "usr", "var/backups", "var/cache", "var/lib", "var/lock", "var/log", "var/mail",
    "var/run", "var/spool",
)  # fmt: skip
"""Directories that root never empties, nor anything below them."""
NOT_ITSELF = ("", "opt", "srv", "var")
EXCEPT = ("dev/shm",)


def never_wiped(path: str) -> str:
    """Why root does not empty this directory; empty if it may be scratch."""
    if not path.startswith("/") or not path.isprintable() or ".." in path.split("/"):
        return "no whole path of a directory"
    if any(sign in path for sign in "*?["):
        return "a pattern, and no directory"
    name = posixpath.normpath(path).strip("/")
    if _is_at(name, EXCEPT):
        return ""
    if name in NOT_ITSELF or _is_at(name, NEVER):
        return "a directory that the machine or its users need"
    return ""


def _is_at(name: str, places: "tuple[str, ...]") -> bool:
    return any(name == place or name.startswith(place + "/") for place in places)
