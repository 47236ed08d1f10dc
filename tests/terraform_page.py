"""Judges the JSON of ``init --make --dry-run --json`` by docs/terraform.md and by the schemas of
Terraform's providers (``data/terraform-schemas.json`` says where they are from).
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "terraform.md").read_text()
SCHEMAS = json.loads((ROOT / "tests" / "data" / "terraform-schemas.json").read_text())
PARTS = {
    "public addresses": "aws_subnet",
    "role of the instance profile": "aws_iam_instance_profile",
    "closed egress": "",
    "application credential": "",
}
"""Kinds without a resource of their own: the resource that has them as arguments, or ""."""
PARENTS = {"subnet_id", "instance_profile"}
"""Properties of such a part that name its parent."""
COLUMNS = {"aws": 1, "openstack": 2}


def types_of(provider: str) -> dict[str, list[str]]:
    """The types of Terraform by kind, as the page has them."""
    types: dict[str, list[str]] = {}
    for line in PAGE.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) <= COLUMNS[provider] or not re.match(r"`\w+`", cells[COLUMNS[provider]]):
            continue
        first, *others = re.findall(r"`(\w+)`", cells[COLUMNS[provider]])
        family = first.removesuffix("_ingress_rule")
        types[cells[0]] = [first, *(family + end for end in others if end.startswith("_"))]
    return types


def judge(resources: Sequence[dict[str, Any]], provider: str) -> None:
    """Each resource is on the page, its properties are arguments, and it refers to earlier ones."""
    types = types_of(provider)
    earlier = {"account"}
    for row in resources:
        kinds = types.get(row["kind"]) or [PARTS[row["kind"]]]
        if row["kind"] in PARTS:
            assert f"`{row['kind']}`" in PAGE
        for kind in filter(None, kinds):
            schema = SCHEMAS["resources"][kind]
            arguments = {*schema["required"], *schema["optional"]}
            others = {"direction"} if len(kinds) > 1 else PARENTS if row["kind"] in PARTS else set()
            assert row["properties"].keys() <= arguments | others, row["key"]
        assert set(re.findall(r"@\{([^{}]+)\.\w+\}", json.dumps(row["properties"]))) <= earlier
        earlier.add(row["key"])
