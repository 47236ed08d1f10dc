"""Every base state and flag of a node: releases 22.05 to 26.05. Pure.

Some names in Slurm's sources differ from the words in its commands. A row contains all of them.
"""

from __future__ import annotations

from slurm_elastic.model.slurm_words.rows import Actor, NodeStateRow

_S, _O, _US = Actor.SLURM, Actor.OPERATOR, Actor.SLURM_ELASTIC
_BASE = (
    NodeStateRow(name="IDLE", meaning="it has no job"),
    NodeStateRow(name="ALLOCATED", meaning="jobs have all of it"),
    NodeStateRow(name="MIXED", meaning="jobs have a part of it"),
    NodeStateRow(
        name="DOWN", meaning="it is down", keeps_jobs=True, actor=_O, passes=False
    ),
    NodeStateRow(
        name="ERROR", meaning="it is in error", keeps_jobs=True, actor=_O, passes=False
    ),
    NodeStateRow(
        name="UNKNOWN", meaning="slurmctld has not heard from it since it started",
        keeps_jobs=True,
    ),
    NodeStateRow(
        name="FUTURE", meaning="slurm.conf keeps the name for later", keeps_jobs=True,
        actor=Actor.SITE, passes=False,
    ),
)  # fmt: skip
_FLAGS = (
    NodeStateRow(
        name="DRAIN", meaning="it is drained", keeps_jobs=True, actor=_O, passes=False
    ),
    NodeStateRow(
        name="FAIL", shown=("FAILING",), meaning="it is marked as failing", keeps_jobs=True,
        actor=_O, passes=False,
    ),
    NodeStateRow(
        name="INVALID_REG", meaning="its slurmd reports less than slurm.conf promises",
        keeps_jobs=True, actor=_US,
    ),
    NodeStateRow(
        name="NO_RESPOND", shown=("NOT_RESPONDING",), meaning="its slurmd does not answer",
        keeps_jobs=True, actor=_US,
    ),
    NodeStateRow(
        name="REBOOT_REQUESTED", meaning="it reboots after its jobs", keeps_jobs=True
    ),
    NodeStateRow(name="REBOOT_ISSUED", meaning="it reboots", keeps_jobs=True),
    NodeStateRow(
        name="REBOOT_CANCEL", shown=("REBOOT_CANCELED",), meaning="its reboot was cancelled"
    ),
    NodeStateRow(
        name="MAINT", shown=("MAINTENANCE",), meaning="it is in a reservation for maintenance",
        keeps_jobs=True, actor=_O,
    ),
    NodeStateRow(
        name="RES", shown=("RESERVED",), meaning="it is in a reservation", keeps_jobs=True
    ),
    NodeStateRow(
        name="BLOCKED", meaning="a job that shares no rack has its neighbours", keeps_jobs=True
    ),
    NodeStateRow(name="POWER_DRAIN", meaning="it powers down after its jobs", keeps_jobs=True),
    NodeStateRow(name="POWER_DOWN", meaning="Slurm will power it down"),
    NodeStateRow(name="POWERING_DOWN", meaning="Slurm powers it down"),
    NodeStateRow(name="POWERED_DOWN", meaning="it is off until a job needs it"),
    NodeStateRow(name="POWER_UP", meaning="Slurm will power it up"),
    NodeStateRow(name="POWERING_UP", meaning="it boots"),
    NodeStateRow(name="COMPLETING", meaning="a job's processes are being ended"),
    NodeStateRow(name="PLANNED", meaning="Slurm keeps it for a job of higher priority"),
    NodeStateRow(name="CLOUD", meaning="it exists only while jobs need it"),
    NodeStateRow(name="DYNAMIC_FUTURE", meaning="its slurmd took the name of a FUTURE node"),
    NodeStateRow(name="DYNAMIC_NORM", meaning="its slurmd added it"),
    NodeStateRow(name="EXTERNAL", meaning="another program runs it", keeps_jobs=True),
    NodeStateRow(name="NET", shown=("PERFCTRS",), meaning="performance counters are read on it"),
    NodeStateRow(name="UNDRAIN", meaning="its drain ends"),
)  # fmt: skip
NODE_STATES = (*_BASE, *_FLAGS)


def row_of(word: str) -> NodeStateRow | None:
    """The row of one of Slurm's words; None for a word of a later release."""
    return _BY_WORD.get(word)


_BY_WORD = {word: row for row in NODE_STATES for word in (row.name, *row.shown)}
