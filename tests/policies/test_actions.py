"""How each kind of action may be done: at once or after patience, by how many, on whose word."""

from __future__ import annotations

import inspect

from slurm_elastic.policies import actions
from slurm_elastic.policies.actions import Action

FLAGS = ("patient", "capped", "by_node", "bulk")
KINDS = {
    "suspend": "bulk",
    "fail-boot": "bulk",
    "dropped": "by_node bulk",
    "abandon": "",
    "adopt": "bulk",
    "adopt-stopped": "patient bulk",
    "checkpoint": "bulk",
    "clear": "by_node bulk",
    "confirm": "",
    "disclaim": "patient by_node bulk",
    "doubt": "patient bulk",
    "end": "bulk",
    "end-missing": "capped bulk",
    "end-stopped": "patient capped by_node bulk",
    "fail-lost": "capped by_node bulk",
    "fail-node": "patient capped by_node bulk",
    "give-back": "by_node bulk",
    "hide-name": "bulk",
    "hold": "bulk",
    "launch": "patient by_node bulk",
    "note-drain": "bulk",
    "note-read": "bulk",
    "power-down": "by_node bulk",
    "power-down-again": "patient by_node bulk",
    "power-down-asap": "by_node bulk",
    "recycle": "capped by_node bulk",
    "register": "bulk",
    "relaunch": "patient capped by_node bulk",
    "release": "bulk",
    "reopen-pool": "",
    "restore": "by_node bulk",
    "retry": "",
    "runs-again": "patient bulk",
    "set-address": "bulk",
    "start": "by_node bulk",
    "stop": "bulk",
    "stopped": "bulk",
    "terminate": "bulk",
    "terminate-double": "patient capped by_node bulk",
    "terminate-orphan": "patient capped by_node bulk",
    "terminate-stopped": "patient capped by_node bulk",
    "terminate-unlisted": "patient capped by_node bulk",
}


def test_each_kind_may_be_done_as_this_table_says() -> None:
    classes = [one for _, one in inspect.getmembers(actions, inspect.isclass)]
    found = {
        one.kind: " ".join(flag for flag in FLAGS if getattr(one, flag))
        for one in classes
        if issubclass(one, Action) and hasattr(one, "kind")
    }
    assert found == KINDS
