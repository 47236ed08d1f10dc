"""Run AccaSim's EASY with FirstFit over a history and print JSON: jobs, seconds, mean wait.

Runs in AccaSim's own environment (see ``accasim_peer``): the standard library and AccaSim only.
``accasim_probe.py HISTORY.swf NODES DIRECTORY`` - nodes of one processor each.
"""

from __future__ import annotations

import collections
import collections.abc
import contextlib
import json
import sys
import time
from pathlib import Path
from typing import Any

# AccaSim 1.1.3 takes it from where Python had it until 3.9.
collections.Mapping = collections.abc.Mapping  # type: ignore[attr-defined]

from accasim.base.allocator_class import FirstFit  # noqa: E402
from accasim.base.scheduler_class import EASYBackfilling  # noqa: E402
from accasim.base.simulator_class import Simulator  # noqa: E402
from accasim.utils.reader_class import DefaultReader  # noqa: E402


class ReadBefore(DefaultReader):  # type: ignore[misc]
    """All lines are parsed at once, so that reading need not be counted."""

    def parse(self) -> None:
        """Read the whole file."""
        self.rows: list[dict[str, Any]] = []
        while not self.EOF:
            row = super()._read()
            if row:
                self.rows.append(row)
        self.rows.reverse()
        self.submission_enabled = True

    def _read(self, current_time: int = 0) -> dict[str, Any] | None:  # noqa: ARG002
        row = self.rows.pop() if self.rows else None
        if not self.rows:
            self.stop_submission()
        return row


def main(history: str, nodes: str, directory: str) -> None:
    system = Path(directory) / "system.json"
    system.write_text(
        json.dumps(
            {
                "groups": {"rack": {"core": 1}},
                "resources": {"rack": int(nodes)},
                "equivalence": {"processor": {"core": 1}},
                "start_time": 0,
            }
        )
    )
    simulator = Simulator(
        history,
        str(system),
        EASYBackfilling(FirstFit()),
        RESULTS_FOLDER_PATH=directory,
        scheduling_output=False,
        statistics_output=False,
        show_statistics=False,
        LOG_LEVEL="CRITICAL",
    )
    reader = ReadBefore(history, job_factory=simulator.job_factory)
    reader.parse()
    simulator.reader = reader
    before = time.process_time()
    with contextlib.redirect_stdout(sys.stderr):
        simulator.start_simulation()
    seconds = time.process_time() - before
    waits = simulator.mapper.wtimes
    found = {"jobs": len(waits), "seconds": seconds, "wait": sum(waits) / max(len(waits), 1)}
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
