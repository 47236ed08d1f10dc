"""One run of a job on this node: the data that all parts of the program share."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path

from . import lines, log
from .caller import Caller
from .instructions import of_node
from .manifest import ImageManifest
from .method import Method
from .quota import JobQuota
from .site import HelperSite
from .store import JobStore, Meta


@dataclass
class Run:
    """A run of the job. ``attempt``: how often Slurm had restarted the job before. ``method`` saves
    it. ``submitted``: its SubmitTime (Unix time), 0 if unknown.

    ``given_back``: the files (path to size) that were open in the image from which this run
    continues. Empty once the run has an image of its own. ``parent``: the newest image of which
    this run is the continuation, 0 for none; ``line``: of that image (``lines.py``). ``worked``:
    seconds of work in the image from which it continues. ``instructions``: of the processors on
    which the job's programs were started. ``has_changed_processor``: the image from which it
    continues was made on another kind of processor.
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
    parent: int = 0
    line: int = 0
    worked: float = 0.0
    has_changed_processor: bool = False

    def __post_init__(self) -> None:
        self.quota = JobQuota(self.site, self.caller.job, self.caller.uid, self.store.path)
        self._began_at = time.monotonic()
        self.node = self.caller.node or os.uname().nodename

    @property
    def copies(self) -> Path:
        """The directory with copies of the job's outputs (``outputs.py``)."""
        return lines.copies(self.store.path, self.line)

    def continue_from(self, image: ImageManifest) -> None:
        """Record that the run continues from this image now."""
        self.given_back, self.parent, self.line = image.writing, image.number, image.line
        self.worked, self._began_at = image.worked, time.monotonic()

    def start_over(self) -> None:
        """Record that the run starts from the job's beginning now."""
        self.given_back, self.parent = dict.fromkeys(self.meta.outputs, 0), 0
        # Its output may have bytes that an earlier run on this node was given back.
        self.line = next((image.line for image in self.store.manifests()), 0)
        self.worked, self._began_at = 0.0, time.monotonic()

    @property
    def seconds(self) -> float:
        """The seconds since the run began its work."""
        return time.monotonic() - self._began_at

    def work_done(self) -> float:
        """Return the seconds of work that an image taken now would save."""
        return self.worked + self.seconds

    def report(self, line: str) -> None:
        """Report a line to the head and to the node's syslog."""
        self.store.add_log_line(log.shown(line))
        log.write(log.NOTICE, f"job {self.caller.job}: {line}")
