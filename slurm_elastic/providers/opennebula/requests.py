"""The request that instantiates a machine: pure, nested dictionaries, never text put together.

All of it can be read on the machine and in the front end, so it holds no secret.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.config import Cluster
from slurm_elastic.config.clouds import InstanceType
from slurm_elastic.model.cluster import LaunchSpec
from slurm_elastic.providers.base.joining import own_facts
from slurm_elastic.providers.base.machine_tags import Spelling
from slurm_elastic.providers.base.user_data import PROGRAM, facts_program, multipart, read_user_data
from slurm_elastic.providers.opennebula.settings import OneTemplate

PREFIX = "SLURM_ELASTIC_"
SPELLING = Spelling(lambda key: key.replace("-", "_").replace(":", "_").upper())
"""Attributes that no template knows end up in USER_TEMPLATE; keys are upper case there."""
MAX_NAME = 128
_IMAGE = frozenset({"IMAGE", "IMAGE_ID"})


def name(cluster: Cluster, spec: LaunchSpec, node: str) -> str:
    """For people: names are neither unique nor looked up."""
    return f"{node}-{cluster.name}-{spec.generation}"[:MAX_NAME]


def extra_template(
    cluster: Cluster,
    spec: LaunchSpec,
    node: str,
    kind: OneTemplate,
    own: Mapping[str, Any],
    image: int | None,
    parts: Sequence[str],
) -> dict[str, dict[str, object]]:
    """The fourth argument of ``one.template.instantiate``; ``own`` is the VM template itself. An
    attribute in here replaces the template's of that name, so it is merged beforehand.
    """
    facts = own_facts(cluster, spec, node)
    template: dict[str, object] = {
        **SPELLING.written(spec, node, cluster, spec.offer.cloud),
        # In an instantiate call it replaces the template's as a whole.
        "CONTEXT": merged(own.get("CONTEXT") or {}, facts, parts),
    }
    if image is not None:
        template["DISK"] = disks(own, image)
    # Nested: of that pyone makes XML with CDATA, where quotes, angle brackets and line ends are
    # safe. Of a flat dictionary it makes lines without any escaping.
    return {"TEMPLATE": template | (size(kind) if kind.resize else {})}


def disks(own: Mapping[str, Any], image: int) -> list[dict[str, str]]:
    """The disks of a VM template, the first that has an image with this one in its place. Where
    none has, this one comes before them: it is what the machine boots from.
    """
    some = disks_of(own)
    place = next((n for n, d in enumerate(some) if _IMAGE & d.keys()), None)
    if place is None:
        return [{"IMAGE_ID": str(image)}, *some]
    kept = {key: value for key, value in some[place].items() if not key.startswith("IMAGE")}
    some[place] = {"IMAGE_ID": str(image)} | kept
    return some


def size(kind: InstanceType) -> dict[str, str]:
    """A whole physical cpu for each of the machine's; memory in MiB."""
    return {"CPU": str(kind.cpus), "VCPU": str(kind.cpus), "MEMORY": str(kind.memory)}


def image_ids(own: Mapping[str, Any]) -> Sequence[int]:
    """The images that a VM template's disks name by their ids."""
    found = (str(d.get("IMAGE_ID") or "") for d in disks_of(own))
    return [int(text) for text in found if text.isdecimal()]


def disks_of(own: Mapping[str, Any]) -> list[dict[str, str]]:
    """The disks of a VM template: one is a dictionary, several are a list."""
    found = own.get("DISK") or []
    return [dict(d) for d in (found if isinstance(found, list) else [found])]


MAX_BYTES = 65536
# /run is often mounted noexec, and a program may be in any language: hence a file of its own, which
# goes when it has run. How the last one ended is how all of it ended.
_PROGRAM = """program=$(mktemp)
base64 -d > "$program" <<'SLURM_ELASTIC_PROGRAM'
{text}
SLURM_ELASTIC_PROGRAM
chmod 700 "$program"
"$program"
code=$?
rm -f "$program"
(exit $code)
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
    """The CONTEXT to send: ``template``'s with ours over it; ``facts`` must have ``node``."""
    context = {key: str(value or "") for key, value in template.items()}
    programs = [_template_program(context), *(p for p in parts if p.startswith(PROGRAM))]
    texts = (p if p.startswith(PROGRAM) else f"#!/bin/sh\n{p}" for p in programs if p)
    # one-context runs it at each boot: it writes the facts, then runs the programs in turn.
    script = "".join(_PROGRAM.format(text=_base64(text, wrap=True)) for text in texts)
    context.pop("START_SCRIPT", None)
    context |= {f"SLURM_ELASTIC_{key.upper()}": value for key, value in facts.items()}
    context |= {
        "SET_HOSTNAME": facts["node"],
        # oned expands the dollar sign in plain values.
        "START_SCRIPT_BASE64": _base64(facts_program(facts) + script),
    }
    # Where a part is for cloud-init the image has that, and may have no one-context: the programs
    # go there, too.
    if not all(p.startswith(PROGRAM) for p in parts):
        document = multipart((f"#cloud-boothook\n{facts_program(facts)}", *parts))
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


def _base64(text: str, *, wrap: bool = False) -> str:
    data = text.encode()
    return (base64.encodebytes(data) if wrap else base64.b64encode(data)).decode().strip()
