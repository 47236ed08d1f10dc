"""The CONTEXT of a machine: the template's own, and what it must know to find its node name.

A CONTEXT in an instantiate call replaces the template's as a whole, so ours is merged into it. oned
expands ``$`` in its values, so whatever is a program goes in base64. All of it can be read on the
machine and in the front end, so it holds no secret.
"""

from __future__ import annotations

import base64
import shlex
from collections.abc import Mapping, Sequence

from slurm_elastic.errors import ConfigError
from slurm_elastic.providers.user_data import PROGRAM, multipart, read_user_data

MAX_BYTES = 65536
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


def read_parts(path: str | None, cloud: str, joining: str) -> tuple[str, ...]:
    """``joining`` and the site's file, a program (``#!``) or cloud-init's; ConfigError where that
    cannot be used or is too long.
    """
    site = read_user_data(path, cloud)
    if len(site.encode()) > MAX_BYTES:
        raise ConfigError(f"user_data of cloud {cloud!r}: {path} is longer than {MAX_BYTES} bytes")
    return tuple(filter(None, (joining, site)))


def merged(
    template: Mapping[str, object], facts: Mapping[str, str], parts: Sequence[str]
) -> dict[str, str]:
    """The CONTEXT to send: ``template``'s with ours over it; ``facts`` must have ``node``.

    Where a part is for cloud-init the image has that, so the programs go there too: the image may
    have no one-context.
    """
    context = {key: str(value or "") for key, value in template.items()}
    programs = [_template_program(context), *(p for p in parts if p.startswith(PROGRAM))]
    context.pop("START_SCRIPT", None)
    context |= {f"SLURM_ELASTIC_{key.upper()}": value for key, value in facts.items()}
    context |= {
        "SET_HOSTNAME": facts["node"],
        "START_SCRIPT_BASE64": _base64(_start_script(facts, [p for p in programs if p])),
    }
    if not all(p.startswith(PROGRAM) for p in parts):
        document = multipart((f"#cloud-boothook\n{_facts(facts)}", *parts))
        context |= {"USER_DATA": _base64(document), "USERDATA_ENCODING": "base64"}
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


def _base64(text: str, *, wrap: bool = False) -> str:
    data = text.encode()
    return (base64.encodebytes(data) if wrap else base64.b64encode(data)).decode().strip()
