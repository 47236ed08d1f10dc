"""What no head may do: counted by the files of epochs and of the journal as they lie there, by what
clouds are called and what Slurm asks for.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from slurm_elastic.model.cluster import Instance
from slurm_elastic.policies.nodes.node_state import Phase, phase
from tests.chaos.fakes import runs
from tests.controller.world import T0

if TYPE_CHECKING:
    from tests.chaos.pair import Pair

HOSTS = ("a", "b")
"""In the order of slurm.conf."""


def host_of(owner: str) -> str:
    """On which host that service runs; of one head it is the first one's."""
    return owner.partition("@")[2] or HOSTS[0]


class Acts(NamedTuple):
    """What the newest file of an epoch says."""

    number: int
    host: str


class EpochBooks:
    """What no head may do after another one has begun to act: counted by the files of epochs and of the
    journal as they lie there, and by what clouds are called.
    """

    def __init__(self, pair: Pair) -> None:
        self._pair = pair
        self._last: Acts | None = None
        self._serves: dict[str, int] = {}
        self._frozen: dict[str, int] = {}
        self._read: dict[str, int] = {}
        self._began = (float("-inf"), 0.0)
        self._doomed: dict[str, float] = {}
        self._asked: dict[str, float] = {}

    def newest(self) -> Acts | None:
        """By the directory; as it was last where that is away."""
        shared = self._pair.shared
        try:
            names = [name for name in os.listdir(shared) if name.startswith("epoch-")]
            if names:
                one = max(names)
                said = json.loads((shared / one).read_text())
                self._last = Acts(int(one.removeprefix("epoch-")), said["host"])
        except OSError:
            pass
        return self._last

    def begins(self, before: Acts | None, now: Acts) -> None:
        """An epoch has just begun: nobody writes to any file of the journal that is there now."""
        pair, stage = self._pair, self._pair.stage
        stage.note(f"epoch {now.number} of {now.host}")
        stage.struck["heads: epochs"] += 1
        self._look(before)
        self._began = (stage.sched.now if now.number > 1 else float("-inf"), stage.skew)
        for path in (pair.shared / "journal").glob("*.jsonl"):
            self._frozen[path.name] = path.stat().st_size
        stage.acts(now.host)

    def serves(self, owner: str) -> None:
        """A service has begun to serve."""
        newest = self.newest()
        self._serves[owner] = newest.number if newest else 0

    def acts(self, owner: str) -> bool:
        newest = self.newest()
        mine = self._serves.get(owner), host_of(owner)
        return newest is not None and mine == tuple(newest)

    def called(self, cloud: str, call: str) -> None:
        """A cloud is called by whoever runs now."""
        owner = self._pair.stage.sched.current.owner
        if not self.acts(owner):
            text = (
                f"{owner} of epoch {self._serves.get(owner)} calls {call} of {cloud}, {self._last}"
            )
            self._pair.stage.books.wrong("fence", f"{text} acts")
        if self._pair.away:
            self._pair.stage.books.wrong("fence", f"{owner} calls {call} of {cloud} in doubt")

    def written(self, name: str) -> None:
        """A line has come to that journal, by whoever runs now."""
        owner = self._pair.stage.sched.current.owner
        if owner not in self._pair.stage.owners:
            return  # a command of an operator, which takes part in whatever epoch it finds
        if not self.acts(owner):
            text = f"{owner} of epoch {self._serves.get(owner)} writes to {name}, {self._last} acts"
            self._pair.stage.books.wrong("fence", text)

    def asks(self, kind: str, nodes: Sequence[str]) -> None:
        """Slurm runs a program."""
        if kind != "resume":
            self._asked |= dict.fromkeys(nodes, self._pair.stage.sched.now)

    def doom(self, ids: Sequence[str]) -> None:
        """Their end is decided, and about to be written down."""
        for id_ in ids:
            self._doomed.setdefault(id_, self._pair.stage.sched.now)

    def ends(self, one: Instance) -> None:
        """A machine that runs is to end by a call to its cloud."""
        stage = self._pair.stage
        at, skew = self._began
        early = stage.sched.now < at + 2 * self._pair.timeout + 60.0
        # By a clock that was set since, which the head reads anew as a service starts again, it is
        # another time.
        if not early or stage.skew != skew or self._doomed.get(one.id, at) < at:
            return
        if phase(stage.slurm.node(one.node)) is Phase.POWERING_DOWN:
            return  # it has just begun to, whoever told it: nothing of that was forgotten
        if one.launched - T0 < stage.anew_at:
            return  # no slurmctld knows that node's machine any more
        if runs(one) and self._asked.get(one.node, -1.0) < one.launched - T0:
            text = f"{one.id} of {one.node} ends {stage.sched.now - at:.0f} s after a takeover"
            stage.books.wrong("ended in a takeover", text)

    def look(self) -> None:
        """Files of epochs that are over do not grow, and no other has lines of one that is over."""
        self._look(self.newest())

    def _look(self, newest: Acts | None) -> None:
        try:
            paths = sorted((self._pair.shared / "journal").glob("*.jsonl"))
            sizes = {path: path.stat().st_size for path in paths}
        except OSError:
            return
        for path, size in sizes.items():
            if path.name not in self._frozen:
                self._look_at(path, newest)
            elif size > self._frozen[path.name]:
                grown = size - self._frozen[path.name]
                text = f"{path.name} has grown by {grown} bytes, {newest} acts"
                self._pair.stage.books.wrong("fence", text)

    def _look_at(self, path: Path, newest: Acts | None) -> None:
        try:
            raw = path.read_bytes()
        except OSError:
            return
        end = raw.rfind(b"\n") + 1
        begin = min(self._read.get(path.name, 0), end)
        for line in raw[begin:end].splitlines():
            try:
                said: dict[str, Any] = json.loads(line)
            except ValueError:
                continue  # what a disk that failed has left of one
            if "at" in said and newest is not None and said.get("epoch") != newest.number:
                text = f"{path.name} has a line of epoch {said.get('epoch')}, {newest} acts"
                self._pair.stage.books.wrong("fence", text)
        self._read[path.name] = end
