"""One run of a job on this node: the data that all parts of the program share."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from . import log
from .caller import Caller
from .instructions import of_node
from .method import Method
from .quota import JobQuota
from .site import HelperSite
from .store import JobStore, Meta


@dataclass
class Run:
    """A run of the job. ``attempt``: how often Slurm had restarted the job before. ``method`` saves
    it. ``submitted``: its SubmitTime (Unix time), 0 if unknown.

    ``given_back``: the files (path to size) that were open in the image from which this run
    continues. Empty once the run has an image of its own. ``instructions``: of the processor on
    which the job's programs were started.
    """

    site: HelperSite
    caller: Caller
    attempt: int
    store: JobStore
    meta: Meta
    method: Method
    given_back: dict[str, int] = field(default_factory=dict)
    instructions: list[str] = field(default_factory=of_node)
    submitted: float = 0.0

    def __post_init__(self) -> None:
        self.quota = JobQuota(self.site, self.caller.job, self.caller.uid, self.store.path)
        self.node = self.caller.node or os.uname().nodename

    @property
    def copies(self) -> Path:
        """The directory with copies of the job's outputs (``outputs.py``)."""
        return self.store.path / "keep"

    def report(self, line: str) -> None:
        """Report a line to the head and to the node's syslog."""
        self.store.add_log_line(log.shown(line))
        log.write(log.NOTICE, f"job {self.caller.job}: {line}")
