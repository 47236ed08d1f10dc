"""``init --terraform`` declares for OpenStack what ``init --make`` makes in the stand-in."""

from __future__ import annotations

from pathlib import Path

import pytest
import terraform_files
from providers.openstack.making_project import Project

TYPES = {
    "networks": "openstack_networking_network_v2", "subnets": "openstack_networking_subnet_v2",
    "routers": "openstack_networking_router_v2",
    "security-groups": "openstack_networking_secgroup_v2",
    "security-group-rules": "openstack_networking_secgroup_rule_v2",
}  # fmt: skip
OF_TERRAFORM = ("description", "delete_default_rules")
"""Arguments without a counterpart: descriptions differ, so that --unmake leaves Terraform's alone.
"""


def made_in(project: Project) -> terraform_files.Blocks:
    """The same blocks, from what the stand-in has."""
    blocks: terraform_files.Blocks = {}
    references: dict[str, str] = {}
    for kind, type_ in TYPES.items():
        for id_, record in project.neutron.records[kind].items():
            part = (record.get("description") or "").partition("; part ")[2].partition(";")[0]
            if not part:
                continue
            label = part.replace("-", "_").replace(".", "_")
            references[id_] = f"${{{type_}.{label}.id}}"
            values = {k: v for k, v in record.items() if k not in ("id", "description")}
            if gateway := values.pop("external_gateway_info", None):
                values["external_network_id"] = gateway["network_id"]
            blocks[type_, label] = {
                key: references.get(value, value) if isinstance(value, str) else value
                for key, value in values.items()
                if value is not None
            }
    for router, subnet in project.neutron.interfaces:
        blocks["openstack_networking_router_interface_v2", "router_interface"] = {
            "router_id": references[router], "subnet_id": references[subnet]
        }  # fmt: skip
    for name, pair in project.neutron.keys.items():
        key = " ".join(pair["public_key"].split()[:2])
        blocks["openstack_compute_keypair_v2", "key_pair"] = {"name": name, "public_key": key}
    return blocks


@pytest.mark.parametrize("join", ["tunnel", "routes"])
def test_files_declare_what_make_makes(project: Project, tmp_path: Path, join: str) -> None:
    if join == "routes":
        start, end = project.text.index("  network:"), project.text.index("clouds:")
        project.text = project.text[:start] + project.text[end:]
        project.yaml.write_text(project.text)
    assert project.make() == 0
    made = made_in(project)
    project.yaml.write_text(project.text)
    assert project.init("--terraform", str(tmp_path / "files")) == 0
    blocks = terraform_files.judge(tmp_path / "files")
    declared = {
        place: {
            key: terraform_files.with_defaults(value, blocks)
            for key, value in attributes.items()
            if key not in OF_TERRAFORM
        }
        for place, attributes in blocks["resource"].items()
    }
    assert declared == made
    groups = [a for (kind, _), a in blocks["resource"].items() if kind.endswith("secgroup_v2")]
    assert groups[0]["delete_default_rules"] is True
