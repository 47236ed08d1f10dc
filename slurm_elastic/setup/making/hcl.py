"""Writes resources as files for Terraform or OpenTofu, in the layout of ``terraform fmt``. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from slurm_elastic.model.site_resources import Hcl, HclBlock, HclVariable

_EXPRESSION = re.compile(r"\$\{([^{}]+)\}")
_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_CALL = "=jsonencode"
TERRAFORM_VERSION = ">= 1.3"


def files_of(hcl: Hcl, command: str, cloud: str) -> dict[str, str]:
    """The text of each file by its name. ``command``: the command that wrote the files."""
    head = f"# Written by `{command}`. It overwrites this file.\n\n"
    return {
        "versions.tf": head + _versions(hcl),
        "variables.tf": head + "\n".join(map(_variable, hcl.variables)),
        "main.tf": head + "\n".join(
            [_block("data", block) for block in hcl.data]
            + [_block("resource", block) for block in hcl.resources]
        ),
        "outputs.tf": head + "\n".join(
            _text("output", [output.name], {"description": output.description,
                                            "value": f"={output.value}"})
            for output in hcl.outputs
        ),
        "README.md": _readme(hcl, cloud),
    }  # fmt: skip


def _versions(hcl: Hcl) -> str:
    settings = _text("provider", [hcl.provider], hcl.settings, hcl.setting_blocks)
    return (
        "terraform {\n"
        f'  required_version = "{TERRAFORM_VERSION}"\n\n'
        "  required_providers {\n"
        f"    {hcl.provider} = {{\n"
        f'      source  = "{hcl.source}"\n'
        f'      version = "{hcl.version}"\n'
        "    }\n  }\n}\n\n" + settings
    )


def _variable(variable: HclVariable) -> str:
    attributes: dict[str, Any] = {"description": variable.description, "type": "=string"}
    if variable.default is not None:
        attributes["default"] = variable.default
    return _text("variable", [variable.name], attributes)


def _block(keyword: str, block: HclBlock) -> str:
    comment = f"# {block.comment}\n" if block.comment else ""
    text = _text(keyword, [block.type, block.name], block.attributes, block.blocks)
    return comment + text


def _text(
    keyword: str, labels: Sequence[str], attributes: Mapping[str, Any],
    blocks: Mapping[str, Mapping[str, Any]] | None = None,
) -> str:  # fmt: skip
    names = " ".join(json.dumps(label) for label in labels)
    lines = list(_attributes(attributes, 1))
    for name, inner in (blocks or {}).items():
        lines += [*([""] if lines else []), f"  {name} {{", *_attributes(inner, 2), "  }"]
    if not lines:
        return f"{keyword} {names} {{}}\n"
    return "\n".join([f"{keyword} {names} {{", *lines, "}"]) + "\n"


def _attributes(attributes: Mapping[str, Any], depth: int) -> Iterator[str]:
    """Yield a line for each attribute. The equals signs of adjacent single lines are aligned."""
    values = {_key(key): _value(value, depth) for key, value in attributes.items()}
    group: list[tuple[str, str]] = []
    for key, value in values.items():
        if "\n" not in value:
            group.append((key, value))
            continue
        yield from _aligned(group, depth)
        group = []
        yield f"{'  ' * depth}{key} = {value}"
    yield from _aligned(group, depth)


def _aligned(group: Sequence[tuple[str, str]], depth: int) -> Iterator[str]:
    width = max((len(key) for key, _ in group), default=0)
    for key, value in group:
        yield f"{'  ' * depth}{key:<{width}} = {value}"


def _key(key: str) -> str:
    return key if _PLAIN_KEY.fullmatch(key) else json.dumps(key)


def _value(value: Any, depth: int) -> str:  # noqa: ANN401
    if isinstance(value, Mapping) and list(value) == [_CALL]:
        return f"jsonencode({_value(value[_CALL], depth)})"
    if isinstance(value, Mapping):
        if not value:
            return "{}"
        inner = "\n".join(_attributes(value, depth + 1))
        return f"{{\n{inner}\n{'  ' * depth}}}"
    if isinstance(value, list | tuple):
        if any(isinstance(item, Mapping) for item in value):
            blanks = "  " * (depth + 1)
            inner = "\n".join(f"{blanks}{_value(item, depth + 1)}," for item in value)
            return f"[\n{inner}\n{'  ' * depth}]"
        return f"[{', '.join(_value(item, depth) for item in value)}]"
    if isinstance(value, str):
        return _string(value)
    return json.dumps(value)


def _string(value: str) -> str:
    if value.startswith("="):
        return value[1:]
    if match := _EXPRESSION.fullmatch(value):
        return match[1]
    return json.dumps(value, ensure_ascii=False)


def _readme(hcl: Hcl, cloud: str) -> str:
    names = ", ".join(f"`{output.name}`" for output in hcl.outputs)
    return (
        f"# What slurm-elastic needs in cloud {cloud}\n\n"
        f"`terraform init && terraform apply` (or `tofu`) creates it with provider `{hcl.source}`; "
        f"put the outputs {names} into the entry `{cloud}` of slurm-elastic.yaml.\n"
    )
