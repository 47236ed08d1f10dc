"""slurm.conf by chance: spellings, includes, defaults and prefixes, as real sites mix them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import Struct

HEAD = """\
SlurmctldHost=head
SlurmUser=slurm
AuthType=auth/munge
StateSaveLocation=/var/spool/slurmctld
SlurmctldLogFile=/var/log/slurmctld.log
SlurmctldPidFile=/var/run/slurmctld.pid
"""
BAD_INCLUDES = ('Include "{}"', "  Include {}", "Include {} {}")
TIMES = ("INFINITE", "UNLIMITED", "-1", "60", "90:30", "1:30:00", "1-0", "2-12:30", "3-00:00:01")
TIME_OUTS = ("300", "0x12c", "INFINITE", "0454", "UNLIMITED")
SUSPEND_TIMES = ("NONE", "none", "-1", "INFINITE", "Infinite", "UNLIMITED", "600")
OPTIONS: dict[str, Sequence[str]] = {
    "SlurmdTimeout": TIME_OUTS,
    "SlurmctldTimeout": TIME_OUTS,
    "ResumeTimeout": ("60", "0x40", "0600"),
    "SuspendTimeout": ("30", "0x20"),
    "SuspendTime": SUSPEND_TIMES,
    "PrologEpilogTimeout": ("100", "0x64", "INFINITE"),
    "JobRequeue": ("0", "1"),
    "DefMemPerCPU": ("1000", "0x400", "2K", "UNLIMITED"),
    "SlurmdPort": ("6818", "0x1aa3"),
    "PriorityWeightPartition": ("1000", "0x10", "0"),
    "SlurmctldParameters": ("cloud_dns", "idle_on_node_suspend,node_reg_mem_percent=90"),
    "JobSubmitPlugins": ("lua", "job_submit/lua", "job_submit/lua,all_partitions", "none"),
    "GresTypes": ("gpu", "gpu,fpga", "gres/gpu"),
    "PrivateData": ("jobs,users", "cloud,jobs"),
    "TopologyPlugin": ("topology/none",),
    "SuspendExcNodes": ("n1", "n[1-2]"),
    "SuspendExcParts": ("p1", "p1,p2"),
}
YES, NO = ("YES", "yes", "UP", "true", "1"), ("NO", "no", "DOWN", "false", "0")


class Generated(Struct, frozen=True, kw_only=True):
    """``files`` by path below the directory of slurm.conf; ``is_taken``: Slurm starts on them."""

    files: dict[str, str]
    is_taken: bool

    def write(self, directory: Path) -> Path:
        """The path of slurm.conf."""
        for name, text in self.files.items():
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return directory / "slurm.conf"


def generated(seed: int, release: tuple[int, int]) -> Generated:
    """The same for the same seed, but that nested includes are where the release looks."""
    return _Generator(random.Random(seed), release).all()


class _Generator:
    def __init__(self, chance: random.Random, release: tuple[int, int]) -> None:
        self._chance, self._release = chance, release
        self._files: dict[str, str] = {}
        self._is_taken = True

    def all(self) -> Generated:
        cluster = self._pick(("alpha", "Alpha", "north.example", "Buddy-2.5"))
        parts = [HEAD, self._line(("ClusterName", cluster)), self._options(), self._nodes()]
        parts.append(self._partitions())
        texts = [self._maybe_included(part, n, cluster) for n, part in enumerate(parts[2:])]
        self._files["slurm.conf"] = "".join((*parts[:2], *texts))
        return Generated(files=self._files, is_taken=self._is_taken)

    def _pick(self, choices: Sequence[str]) -> str:
        return self._chance.choice(choices)

    def _happens(self, share: float = 0.5) -> bool:
        return self._chance.random() < share

    def _line(self, *pairs: tuple[str, str]) -> str:
        """One logical line, in a spelling of its own; record keys keep their order."""
        text = self._pair(*pairs[0])
        for pair in pairs[1:]:
            text += self._pick((" ", "   ", "\t", " \\\n   ")) + self._pair(*pair)
        return text + self._pick(("", "", "  ", " # a comment", "# a \\ comment", "\r")) + "\n"

    def _pair(self, name: str, value: str) -> str:
        spelling: Callable[[str], str] = self._chance.choice((str, str, str.lower, str.upper))
        blanks = self._pick(("=", "=", " = ", "= "))
        quoted = f'"{value}"' if self._happens(0.2) else value
        return f"{spelling(name)}{blanks}{quoted}"

    def _options(self) -> str:
        text = ""
        for name in self._chance.sample(sorted(OPTIONS), self._chance.randint(3, 10)):
            for _ in range(1 + self._happens(0.2)):  # the last of two lines wins
                text += self._line((name, self._pick(OPTIONS[name])))
        return text

    def _nodes(self) -> str:
        text = ""
        if self._happens():
            text += self._line(("NodeName", self._pick(("DEFAULT", "default"))), self._shape())
        names = self._pick(("n[1-6]", "n1,n[2-5],n6", "n[1-3,4-6]", "n1,n2,n3,n4,n5,n6"))
        text += self._line(("NodeName", names), self._shape())
        if self._happens(0.3):
            text += self._line(("NodeName", "c[01-03]"), self._shape(), ("State", "CLOUD"))
        if self._happens(0.3):
            text += self._line(("NodeName", "r[1-2]-[1-2]"), self._shape())
        if self._happens(0.3):
            text += self._line(("NodeSet", "big"), ("Nodes", "n[1-2],n5"))
            self._sets = ("big",)
        else:
            self._sets = ()
        return text

    def _shape(self) -> tuple[str, str]:
        return self._pick(("CPUs", "Procs")), self._pick(("2", "0x4", "8"))

    def _partitions(self) -> str:
        text = ""
        for number in range(1, self._chance.randint(2, 4)):
            if self._happens(0.4):
                text += self._line(("PartitionName", "DEFAULT"), *self._properties(0.4))
            nodes = self._pick(("n[1-6]", "n1", "n[1-2],n4", "ALL", *self._sets))
            head = (("PartitionName", f"p{number}"), ("Nodes", nodes))
            text += self._line(*head, *self._properties(0.5))
        return text

    def _properties(self, share: float) -> list[tuple[str, str]]:
        choices = {
            "Default": YES + NO,
            "PriorityTier": ("1", "5", "0x10", "017"),
            "PriorityJobFactor": ("1", "9", "0x20"),
            "Priority": ("3", "7"),
            "MaxTime": TIMES,
            "Hidden": YES + NO,
            "SuspendTime": ("INFINITE", "-1"),
        }
        names = [n for n in choices if self._happens(share if n != "Priority" else share / 4)]
        self._chance.shuffle(names)
        return [(name, self._pick(choices[name])) for name in names]

    def _maybe_included(self, text: str, number: int, cluster: str) -> str:
        """The text, or an Include of a file that has it, perhaps through another file."""
        way = self._chance.choices(("here", "file", "cluster", "nested", "bad"), (4, 2, 1, 3, 0.6))[
            0
        ]
        if way == "here":
            return text
        name = f"part{number}.conf"
        if way == "cluster":
            self._files[f"{cluster.lower()}-{name}"] = text
            return f"Include %c-{name}\n"
        if way == "bad":
            self._is_taken = False
            self._files[name] = text
            return self._pick(BAD_INCLUDES).replace("{}", name) + "\n"
        if way == "file":
            self._files[f"conf.d/{name}"] = text
            return f"{self._pick(('Include', 'include', 'INCLUDE'))} conf.d/{name}\n"
        return self._nested(text, number, name)

    def _nested(self, text: str, number: int, name: str) -> str:
        right, wrong = (name, f"conf.d/{name}")
        if self._release < (23, 2):
            right, wrong = wrong, right
        self._files[right] = text
        if self._happens(0.3):  # a file that only the other releases would read
            self._files[wrong] = "NodeName=never CPUs=1\n"
        self._files[f"conf.d/outer{number}.conf"] = (
            f"# a file of an earlier admin\nInclude {name}\n"
        )
        return f"Include conf.d/outer{number}.conf\n"
