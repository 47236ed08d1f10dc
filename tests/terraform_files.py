"""Reads the files of ``init --terraform``, and judges them by the providers' schemas.

``data/terraform-schemas.json`` says where the schemas are from. ``terraform`` itself, where it is
installed, judges syntax and layout; without the registry it cannot load a provider.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import hcl2
from patience import patience

SCHEMAS = json.loads((Path(__file__).parent / "data" / "terraform-schemas.json").read_text())
FILES = {"versions.tf", "variables.tf", "main.tf", "outputs.tf", "README.md"}
Blocks = dict[tuple[str, str], dict[str, Any]]
_REFERENCE = re.compile(r"\$?\{?([a-z0-9_]+)\.([a-z0-9_]+)\.(id|arn|name|key_name)\b")


def read(directory: Path) -> dict[str, Blocks]:
    """The blocks of each keyword by type and name; a variable's and an output's type is ""."""
    assert {file.name for file in directory.iterdir()} == FILES
    found: dict[str, Blocks] = {}
    for file in sorted(directory.glob("*.tf")):
        with file.open() as text:
            document = _plain(hcl2.load(text))
        for keyword in ("resource", "data", "variable", "output", "provider"):
            for block in document.get(keyword, ()):
                ((kind, inner),) = block.items()
                blocks = found.setdefault(keyword, {})
                if keyword in ("resource", "data"):
                    ((name, attributes),) = inner.items()
                    assert (kind, name) not in blocks
                    blocks[kind, name] = attributes
                else:
                    blocks["", kind] = inner
    return found


def _plain(value: Any) -> Any:
    """Without the quotes of strings and the marks of blocks, which python-hcl2 keeps."""
    if isinstance(value, dict):
        return {_plain(k): _plain(v) for k, v in value.items() if k != "__is_block__"}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, str) and len(value) > 1 and value[0] == value[-1] == '"':
        return json.loads(value)
    return value


def judge(directory: Path) -> dict[str, Blocks]:
    """The blocks, after all that can be said of them without a cloud."""
    blocks = read(directory)
    for (kind, name), attributes in blocks["resource"].items():
        schema = SCHEMAS["resources"][kind]
        nested = schema.get("blocks", {})
        for key, value in attributes.items():
            assert key in [*schema["required"], *schema["optional"]], f"{kind}.{name}: {key}"
            if key in nested:
                (inner,) = value
                assert inner.keys() <= {*nested[key]["required"], *nested[key]["optional"]}
        assert set(schema["required"]) <= attributes.keys(), f"{kind}.{name}"
    resources = {**blocks["resource"], **blocks.get("data", {})}
    for text in (file.read_text() for file in directory.glob("*.tf")):
        for kind, name, _ in _REFERENCE.findall(text):
            assert kind == "data" or (kind, name) in resources, f"{kind}.{name}"
        for name in re.findall(r"\bvar\.(\w+)", text):
            assert ("", name) in blocks["variable"], name
    for (_, name), variable in blocks["variable"].items():
        assert variable["description"], name
    for (_, name), output in blocks["output"].items():
        assert output["description"], name
    if shutil.which("terraform"):
        done = subprocess.run(
            ["terraform", "fmt", "-check", "-diff", str(directory)],
            capture_output=True, text=True, timeout=patience(60),
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
    return blocks


def with_defaults(value: Any, blocks: Mapping[str, Blocks]) -> Any:
    """The value with the defaults of variables."""
    if isinstance(value, dict):
        return {key: with_defaults(item, blocks) for key, item in value.items()}
    if isinstance(value, str) and (match := re.fullmatch(r"\$\{var\.(\w+)\}", value)):
        return blocks["variable"]["", match[1]].get("default")
    return value
