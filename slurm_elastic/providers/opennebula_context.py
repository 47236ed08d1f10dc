"""The CONTEXT of a machine: the template's own, and what it must know to find its node name.

A CONTEXT in an instantiate call replaces the template's as a whole, so ours is merged into it. oned
expands ``$`` in its values, so whatever is a program goes in base64. All of it can be read on the
machine and in the front end, so it holds no secret.
"""

from __future__ import annotations

import base64
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from slurm_elastic.errors import ConfigError

MAX_BYTES = 65536
_BOUNDARY = "==slurm-elastic=="
_CLOUD_INIT = {
    "#cloud-config": "text/cloud-config",
    "#cloud-boothook": "text/cloud-boothook",
    "#include": "text/x-include-url",
    "## template: jinja": "text/jinja2",
}
_FACTS = """#!/bin/sh
umask 022
mkdir -p /run/slurm-elastic
cat > /run/slurm-elastic/.launch <<'SLURM_ELASTIC_FACTS'
{lines}
SLURM_ELASTIC_FACTS
printf '%s\\n' {node} > /run/slurm-elastic/.node
mv /run/slurm-elastic/.launch /run/slurm-elastic/launch
mv /run/slurm-elastic/.node /run/slurm-elastic/node
"""
# /run is often mounted noexec, and a program may be in any language: hence a file of its own.
_PROGRAM = """program=$(mktemp)
base64 -d > "$program" <<'SLURM_ELASTIC_PROGRAM'
{text}
SLURM_ELASTIC_PROGRAM
chmod 700 "$program"
"$program"
"""


def read_user_data(path: str | None, cloud: str) -> str:
    """The site's file: a program (``#!``) or cloud-init's; ConfigError where it is neither."""
    if path is None:
        return ""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"user_data of cloud {cloud!r} cannot be read: {error}") from error
    if text and not text.startswith(("#!", *_CLOUD_INIT)):
        known = ", ".join(("#!", *_CLOUD_INIT))
        raise ConfigError(f"user_data of cloud {cloud!r}: {path} begins with none of {known}")
    if len(text.encode()) > MAX_BYTES:
        raise ConfigError(f"user_data of cloud {cloud!r}: {path} is longer than {MAX_BYTES} bytes")
    return text


def merged(template: Mapping[str, object], facts: Mapping[str, str], site: str) -> dict[str, str]:
    """The CONTEXT to send: ``template``'s with ours over it; ``facts`` must have ``node``."""
    context = {key: str(value or "") for key, value in template.items()}
    programs = [p for p in (_template_program(context), site if site.startswith("#!") else "") if p]
    context.pop("START_SCRIPT", None)
    context |= {f"SLURM_ELASTIC_{key.upper()}": value for key, value in facts.items()}
    context |= {
        "SET_HOSTNAME": facts["node"],
        "START_SCRIPT_BASE64": _base64(_start_script(facts, programs)),
    }
    if site and not site.startswith("#!"):
        context |= {"USER_DATA": _base64(_document(facts, site)), "USERDATA_ENCODING": "base64"}
        context.pop("USER_DATA_ENCODING", None)
    return context


def _template_program(context: Mapping[str, str]) -> str:
    packed = context.get("START_SCRIPT_BASE64", "")
    if not packed:
        return context.get("START_SCRIPT", "")
    try:
        return base64.b64decode(packed, validate=False).decode()
    except ValueError:
        return ""


def _start_script(facts: Mapping[str, str], programs: Sequence[str]) -> str:
    """one-context runs it at each boot: it writes the facts, then runs the others in turn."""
    texts = [p if p.startswith("#!") else f"#!/bin/sh\n{p}" for p in programs]
    return _facts(facts) + "".join(_PROGRAM.format(text=_base64(t, wrap=True)) for t in texts)


def _facts(facts: Mapping[str, str]) -> str:
    lines = "\n".join(f"{key}={shlex.quote(value)}" for key, value in facts.items())
    return _FACTS.format(lines=lines, node=shlex.quote(facts["node"]))


def _document(facts: Mapping[str, str], site: str) -> str:
    """For images with cloud-init: the facts come before the site's own part."""
    kind = next(k for start, k in _CLOUD_INIT.items() if site.startswith(start))
    parts = (("text/cloud-boothook", f"#cloud-boothook\n{_facts(facts)}"), (kind, site))
    document = "".join(
        f'--{_BOUNDARY}\nContent-Type: {kind}; charset="utf-8"\n'
        f"Content-Transfer-Encoding: 8bit\nMIME-Version: 1.0\n\n{text.rstrip()}\n"
        for kind, text in parts
    )
    head = f'Content-Type: multipart/mixed; boundary="{_BOUNDARY}"\nMIME-Version: 1.0\n\n'
    return f"{head}{document}--{_BOUNDARY}--\n"


def _base64(text: str, *, wrap: bool = False) -> str:
    data = text.encode()
    return (base64.encodebytes(data) if wrap else base64.b64encode(data)).decode().strip()
