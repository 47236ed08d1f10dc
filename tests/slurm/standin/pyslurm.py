"""As much of pyslurm 25.11 as the client uses, for processes: steered by files in its directory
($PYSLURM_STANDIN). Its nodes have the fields that are read and no others.
"""

import ctypes
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

__version__ = "25.11.2"
NODE = {
    "name": "pub1", "state": "MIXED+CLOUD+POWERING_UP", "reason": None, "reason_user": None,
    "partitions": ["burst"], "address": "10.0.0.1", "slurmd_port": 7001, "total_cpus": 4,
    "real_memory": 7000, "last_busy_time": 100, "boot_time": None, "weight": 1010, "comment": None,
    "reason_time": 0,
}  # fmt: skip
_DIRECTORY = Path(os.environ.get("PYSLURM_STANDIN", "/nonexistent"))


class PyslurmError(Exception):
    """The base of all of its errors."""


def _call(**sent: Any) -> None:
    with (_DIRECTORY / "calls").open("a") as file:
        print(json.dumps({"pid": os.getpid(), "conf": os.environ["SLURM_CONF"], **sent}), file=file)
    if (_DIRECTORY / "hangs").exists():
        ctypes.PyDLL(None).sleep(60)  # with Python's lock, as the real one does
    if (_DIRECTORY / "fatal").exists():
        os._exit(1)
    if (_DIRECTORY / "broken").exists():
        raise PyslurmError((_DIRECTORY / "broken").read_text())


class Node(dict[str, str]):
    """The changes of a node, by name."""


class Nodes:
    """Nodes by their names."""

    def __init__(self, names: list[str]) -> None:
        self._names = names

    @staticmethod
    def load() -> dict[str, SimpleNamespace]:
        _call()
        return {"pub1": SimpleNamespace(**NODE)}

    def modify(self, changes: Node) -> None:
        _call(names=self._names, changes=changes)
