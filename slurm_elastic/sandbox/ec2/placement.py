"""Placement groups of the emulated EC2, which moto lacks. They do not change where a machine runs.
A launch that names an unknown group is refused.
"""

from __future__ import annotations

from msgspec import Struct

from slurm_elastic.sandbox.ec2.api import Ec2Call, answer_xml, elements, tag_set
from slurm_elastic.sandbox.ec2.faults import Ec2Error

ACTIONS = ("CreatePlacementGroup", "DescribePlacementGroups", "DeletePlacementGroup")


class EmulatedGroup(Struct, frozen=True, kw_only=True):
    """A placement group."""

    name: str
    strategy: str
    tags: dict[str, str]

    @property
    def xml(self) -> str:
        """The elements of the group in an answer."""
        fields = elements(groupName=self.name, strategy=self.strategy, state="available")
        return fields + tag_set(self.tags)


class EmulatedPlacementGroups:
    """The groups of the account, by name."""

    def __init__(self) -> None:
        self.groups: dict[str, EmulatedGroup] = {}

    def answer(self, call: Ec2Call) -> bytes | Ec2Error:
        """Answer one of ACTIONS."""
        name = call.params.get("GroupName", "")
        match call.action:
            case "CreatePlacementGroup":
                if name in self.groups:
                    text = f"The placement group '{name}' already exists."
                    return Ec2Error("InvalidPlacementGroup.Duplicate", 400, text)
                strategy = call.params.get("Strategy", "cluster")
                tags = call.placement_tags()
                self.groups[name] = EmulatedGroup(name=name, strategy=strategy, tags=tags)
                group = self.groups[name].xml
                return answer_xml(call.action, f"<placementGroup>{group}</placementGroup>")
            case "DescribePlacementGroups":
                names = call.listed("GroupName") or list(self.groups)
                if unknown := next((n for n in names if n not in self.groups), None):
                    return _unknown(unknown)
                items = "".join(f"<item>{self.groups[n].xml}</item>" for n in names)
                return answer_xml(call.action, f"<placementGroupSet>{items}</placementGroupSet>")
        if self.groups.pop(name, None) is None:
            return _unknown(name)
        return answer_xml(call.action, elements(**{"return": "true"}))

    def refusal_of(self, call: Ec2Call) -> Ec2Error | None:
        """Return EC2's error if the launch names an unknown group, else None."""
        name = call.params.get("Placement.GroupName", "")
        return _unknown(name) if name and name not in self.groups else None


def _unknown(name: str) -> Ec2Error:
    return Ec2Error(
        "InvalidPlacementGroup.Unknown", 400, f"The Placement Group '{name}' is unknown."
    )
