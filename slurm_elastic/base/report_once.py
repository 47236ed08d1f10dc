"""Report a trouble once: again when it changes, and again if it comes back after it was over."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import ClassVar, Generic, TypeVar

from slurm_elastic.base.guards import Guarded, GuardedBy

S = TypeVar("S", bound=Hashable)

MAX_SUBJECTS = 100_000
"""More than the nodes and jobs of any site, so only an owner that forgets nothing reaches it."""


class ReportOnce(Generic[S]):
    """The last report about each subject (a node, a job, a file). Thread-safe.

    Its owner says when a trouble is ``clear``, and which subjects still exist (``forget_unless``).
    An owner that says neither loses the subjects that were asked about longest ago, so that the
    memory stays bounded.
    """

    guarded_by: ClassVar[GuardedBy] = {"_lock": Guarded("_reports")}

    def __init__(self, max_subjects: int = MAX_SUBJECTS) -> None:
        self._max_subjects = max_subjects
        self._lock = threading.Lock()
        self._reports: dict[S, Hashable] = {}

    def is_news(self, subject: S, report: Hashable = "") -> bool:
        """Return whether this report differs from the last report about the subject, and remember
        it as the last. So only the first of several threads that ask gets True.
        """
        with self._lock:
            is_known = subject in self._reports and self._reports[subject] == report
            # The subjects of the latest questions are last in the dictionary.
            self._reports.pop(subject, None)
            self._reports[subject] = report
            if len(self._reports) > self._max_subjects:
                del self._reports[next(iter(self._reports))]
        return not is_known

    def last_report(self, subject: S) -> Hashable | None:
        """The last report about the subject, unless its trouble is over."""
        with self._lock:
            return self._reports.get(subject)

    def clear(self, subject: S) -> bool:
        """Note that the subject's trouble is over. Returns whether a trouble was reported."""
        with self._lock:
            was_reported = subject in self._reports
            self._reports.pop(subject, None)
        return was_reported

    def forget_unless(self, exists: Callable[[S], bool]) -> None:
        """Forget the subjects of which ``exists`` is false."""
        with self._lock:
            subjects = tuple(self._reports)
        # Not under our lock: ``exists`` may take another one.
        obsolete = [subject for subject in subjects if not exists(subject)]
        with self._lock:
            for subject in obsolete:
                self._reports.pop(subject, None)
