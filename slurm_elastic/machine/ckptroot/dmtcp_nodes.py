"""The part of a job under DMTCP that runs on its other nodes, as its first node sees it."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection, Iterable
from pathlib import Path

from . import clock, dmtcp_images, dmtcp_probe, instructions, mpi
from .attendants import Attendants
from .caller import Caller
from .dmtcp_images import IMAGE, DmtcpImages
from .job_nodes import JobNodes
from .site import HelperSite, RequestRefused

_READ_TIMEOUT_S = 60.0
"""Seconds after which nobody reads the end of a command: mpirun has ended its child."""
_LOOK_GAP_S = 2.0
"""Seconds between two looks after which we, or the job, were stopped meanwhile."""


class OtherNodes:
    """The other nodes of one job. ``saved``: the user's directory, in which each node has a
    directory.
    """

    def __init__(self, site: HelperSite, caller: Caller, nodes: JobNodes, saved: Path) -> None:
        self._site = site
        self._caller = caller
        self._nodes = nodes
        self._saved = saved
        self._attendants = Attendants(site, caller, nodes)
        self._are_checked = False
        self.instructions: list[str] = []
        # The nodes as the job's environment names them: those of the run in which it started. So an
        # mpirun that starts after a restore asks for the nodes of that run.
        self._names = nodes.names
        self._active: dict[str, int] = {}
        # When we wrote the end of a command. An image may have the program that waits for it, so
        # the command counts as active until that program has read its end.
        self._ended_at: dict[str, float] = {}
        self._looked_at = time.monotonic()
        self._images = {n: DmtcpImages(saved / str(n), caller, n) for n in self._attendants.numbers}

    def begin(self, port: int) -> None:
        """Start our processes on the other nodes, unless they run. RequestRefused if a node cannot
        run one, or if its DMTCP cannot save jobs of several nodes.
        """
        if self._are_checked and not self._attendants.has_ended:
            return
        # What was refused once must not pass at the next image, or when the job starts over.
        self._are_checked = False
        digest = dmtcp_images.library_digest(self._site)
        for number, hello in enumerate(self._attendants.start(port), 1):
            if hello.get("library") != digest:
                name, first = self._attendants.name(number), self._nodes.first.name
                raise RequestRefused(f"{name} has another DMTCP than {first}")
            # Also of earlier nodes of this run: the job's programs may still run as they chose.
            self.instructions = instructions.joined(self.instructions, hello.get("processor"))
        if not self._nodes.are_one_host:
            dmtcp_probe.check(self._site, digest)
        self._are_checked = True

    def environment(self, place: Path) -> dict[bytes, bytes]:
        """Return the job's variables, by which mpirun reaches these nodes."""
        self._names = self._nodes.names
        return mpi.environment(self._site, self._caller, self._nodes, place)

    def tend(self, place: Path, clocks: clock.Clocks | None) -> None:
        """Tell the job's mpirun which commands have ended, and start the commands that it has newly
        written into ``place``.
        """
        for report in self._attendants.reports():
            # The user can write reports, too.
            with contextlib.suppress(KeyError, TypeError, ValueError):
                if report["event"] == "ended":
                    self._end_starts(place, report["names"], int(report["status"]))
        self._forget_ended(place)
        for start in mpi.starts(place, self._caller):
            if start.name in self._active:
                continue
            try:
                number = self._launch(start, clocks)
            except RequestRefused as error:
                line = f"slurm-elastic: mpirun cannot start on {start.node}: {error}\n"
                os.write(2, line.encode())
                mpi.end(place, self._caller, start.name, 1)
            else:
                self._active[start.name] = number
                self._ended_at.pop(start.name, None)

    def _end_starts(self, place: Path, names: Iterable[object], status: int) -> None:
        """Tell mpirun that these commands have ended."""
        for name in set(map(str, names)) & self._active.keys():
            self._ended_at[name] = time.monotonic()
            mpi.end(place, self._caller, name, os.waitstatus_to_exitcode(status))

    def _forget_ended(self, place: Path) -> None:
        """Drop the commands whose end was read."""
        now = time.monotonic()
        gap_s, self._looked_at = now - self._looked_at, now
        # During a save, or while the job is suspended, nobody could read the end.
        stopped_s = gap_s if gap_s > _LOOK_GAP_S else 0.0
        for name in list(self._ended_at):
            self._ended_at[name] += stopped_s
            is_late = now - self._ended_at[name] > _READ_TIMEOUT_S
            if is_late:
                mpi.forget_end(place, self._caller, name)
            if is_late or mpi.has_read_end(place, self._caller, name):
                del self._ended_at[name]
                self._active.pop(name, None)

    def _launch(self, start: mpi.Start, clocks: clock.Clocks | None) -> int:
        """Start the command on its node; return the node's number."""
        number = mpi.number_of(start.node, self._names)
        if not number:
            raise RequestRefused("it is no other node of the job")
        variables = {os.fsdecode(k): os.fsdecode(v) for k, v in start.environment.items()}
        self._ask(
            do="launch", name=start.name, commands={number: start.command},
            directory=start.directory, umask=start.umask, clocks=clocks, environment=variables,
        )  # fmt: skip
        return number

    def _ask(self, **order: object) -> list[dict[str, object]]:
        return self._attendants.ask({"images": str(self._saved), **order})

    def appended(self) -> list[str]:
        """Return the files that processes on these nodes append to. RequestRefused if the job
        cannot be saved.
        """
        answers = self._ask(do="look")
        return sorted({str(path) for answer in answers for path in _list(answer["appended"])})

    def make(self) -> None:
        """Create an empty directory for each node's images."""
        for images in self._images.values():
            images.make()

    def gather(self, image: Path, max_bytes: int) -> None:
        """Copy the saved files of all these nodes into root's image."""
        for images in self._images.values():
            if any(name.endswith(IMAGE) for name in images.names()):
                max_bytes = images.gather(image, max_bytes)
        dmtcp_images.note_starts(image, self._active)
        dmtcp_images.note_nodes(image, self._names)

    def put_back_files(self, image: Path) -> None:
        """Put the files beside the images to the places where dmtcp_restart looks for them."""
        for images in self._images.values():
            images.put_back_files(image)

    def saved(self) -> tuple[int, int]:
        """Return the number of images in the user's directory, and their bytes."""
        every = self._images.values()
        return sum(len(i.images()) for i in every), sum(i.size() for i in every)

    def written(self) -> int | None:
        """Return the bytes that a save has written on these nodes; None if a node gets no
        answer from its file system. Return 0 if a node is lost.
        """
        try:
            answers = [answer["written"] for answer in self._ask(do="measure")]
        except (RequestRefused, KeyError):
            return 0
        # The user can write answers, too.
        return None if None in answers else sum(n for n in answers if isinstance(n, int))

    def restore(
        self, image: int, clocks: clock.Clocks | None, uncut: Collection[str]
    ) -> None:  # fmt: skip
        """Start the restore of root's image number ``image``; if that is 0, of the images in the
        user's directory.
        """
        if image:
            path = self._site.jobs / str(self._caller.job) / "images" / str(image)
            self._active = dmtcp_images.starts(path)
            self._names = dmtcp_images.nodes(path) or self._nodes.names
        self._ended_at.clear()
        # Drop reports about processes that the save itself has ended.
        self._attendants.reports()
        names = {n: [s for s, node in self._active.items() if node == n] for n in self._images}
        self._ask(do="restore", image=image, clocks=clocks, uncut=sorted(uncut), names=names)

    def restored(self) -> None:
        """Tell the attendants that all processes of the job run again."""
        self._ask(do="restored")

    def end(self) -> None:
        """End the job's processes on these nodes. A node that does not answer is left out."""
        try:
            if not self._attendants.has_ended:
                self._ask(do="end")
        except RequestRefused:
            return

    def lost(self) -> str:
        """Return the name of a node that does not answer; "" if all do."""
        return self._attendants.lost()

    def close(self) -> None:
        """End our own processes on these nodes."""
        self._attendants.close()


def _list(value: object) -> Iterable[object]:
    return value if isinstance(value, list) else ()
