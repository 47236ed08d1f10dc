"""Builds the request that instantiates a machine. Pure; nested dictionaries, never text glued
together.

All of it can be read on the machine and in the front end, so it contains no secret.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.config import Cluster
from slurm_elastic.config.clouds import InstanceType
from slurm_elastic.model.cluster import LaunchSpec
from slurm_elastic.providers.base.joining import own_facts
from slurm_elastic.providers.base.machine_tags import Spelling
from slurm_elastic.providers.base.tags import CLOUD
from slurm_elastic.providers.base.user_data import PROGRAM, facts_program, multipart, read_user_data
from slurm_elastic.providers.opennebula.settings import OneTemplate

PREFIX = "SLURM_ELASTIC_"
SPELLING = Spelling(lambda key: key.replace("-", "_").replace(":", "_").upper())
"""oned puts attributes that no template knows into USER_TEMPLATE, where keys are upper case."""
TAGS = f"{PREFIX}TAGS"
"""The attribute of CONTEXT for the machine's tags. A machine can change its own USER_TEMPLATE
by OneGate, but never its CONTEXT.
"""
MAX_NAME = 128
_IMAGE = frozenset({"IMAGE", "IMAGE_ID"})


def name(cluster: Cluster, spec: LaunchSpec, node: str) -> str:
    """The machine's name for people. Names are neither unique nor used to find machines."""
    return f"{node}-{cluster.name}-{spec.generation}"[:MAX_NAME]


def extra_template(
    cluster: Cluster,
    spec: LaunchSpec,
    node: str,
    kind: OneTemplate,
    vm_template: Mapping[str, Any],
    image: int | None,
    parts: Sequence[str],
) -> dict[str, dict[str, object]]:
    """The fourth argument of ``one.template.instantiate``. ``vm_template``: the VM template itself.
    An attribute in this argument replaces the template's whole attribute, so both are merged here.
    """
    facts = own_facts(cluster, spec, node)
    tags = SPELLING.written(spec, node, cluster, spec.offer.cloud)
    # In an instantiate call CONTEXT replaces the template's whole CONTEXT.
    context = merged(vm_template.get("CONTEXT") or {}, facts, parts)
    # The machine gets no token for OneGate, which could stop the machine or change its tags.
    # The tags are in base64, because oned expands dollar signs in plain values.
    context |= {"TOKEN": "NO", TAGS: _base64(json.dumps(tags))}
    template: dict[str, object] = {**tags, "CONTEXT": context}
    if image is not None:
        template["DISK"] = disks(vm_template, image)
    # A nested dictionary: pyone turns it into XML with CDATA, in which quotes, angle brackets and
    # line ends are safe. It turns a flat dictionary into lines without any escaping.
    return {"TEMPLATE": template | (size(kind) if kind.resize else {})}


def tags_in(context: Mapping[str, Any] | None, attributes: Mapping[str, str]) -> dict[str, str]:
    """The tags of a machine with this CONTEXT and these ``attributes`` of its USER_TEMPLATE. Only
    the cloud's name may differ in USER_TEMPLATE, where people correct it.
    """
    try:
        sent = json.loads(base64.b64decode(str((context or {}).get(TAGS) or "")))
    except ValueError:
        sent = None
    if not isinstance(sent, dict):
        return SPELLING.read(attributes)
    fixed = {key: str(text) for key, text in sent.items() if key != SPELLING.key(CLOUD)}
    return SPELLING.read({**sent, **attributes, **fixed})


def disks(vm_template: Mapping[str, Any], image: int) -> list[dict[str, str]]:
    """The disks of a VM template. This image replaces the first disk's image. If no disk has an
    image, a new disk comes first, because the machine boots from it.
    """
    disk_list = disks_of(vm_template)
    place = next((n for n, d in enumerate(disk_list) if _IMAGE & d.keys()), None)
    if place is None:
        return [{"IMAGE_ID": str(image)}, *disk_list]
    other_keys = {
        key: value for key, value in disk_list[place].items() if not key.startswith("IMAGE")
    }
    disk_list[place] = {"IMAGE_ID": str(image)} | other_keys
    return disk_list


def size(kind: InstanceType) -> dict[str, str]:
    """The size of a machine: one whole physical CPU for each of its CPUs, and its memory in MiB."""
    return {"CPU": str(kind.cpus), "VCPU": str(kind.cpus), "MEMORY": str(kind.memory)}


def image_ids(vm_template: Mapping[str, Any]) -> Sequence[int]:
    """The images that the disks of a VM template name by id."""
    texts = (str(d.get("IMAGE_ID") or "") for d in disks_of(vm_template))
    return [int(text) for text in texts if text.isdecimal()]


def disks_of(vm_template: Mapping[str, Any]) -> list[dict[str, str]]:
    """The disks of a VM template. One disk is a dictionary, several are a list."""
    disk_data = vm_template.get("DISK") or []
    return [dict(d) for d in (disk_data if isinstance(disk_data, list) else [disk_data])]


MAX_BYTES = 65536
# /run is often mounted noexec, and a program may be in any language. So each runs from a file of
# its own, which is deleted afterwards. The script ends with the exit code of the last program.
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
    """``joining`` and the site's file, which is a program (``#!``) or for cloud-init. ConfigError
    if the file cannot be used or is too long.
    """
    site = read_user_data(path, cloud)
    if len(site.encode()) > MAX_BYTES:
        raise ConfigError(f"user_data of cloud {cloud!r}: {path} is longer than {MAX_BYTES} bytes")
    return tuple(filter(None, (joining, site)))


def merged(
    template: Mapping[str, object], facts: Mapping[str, str], parts: Sequence[str]
) -> dict[str, str]:
    """The CONTEXT to send: the CONTEXT of ``template`` with our own merged over it. ``facts`` must
    contain ``node``.
    """
    context = {key: str(value or "") for key, value in template.items()}
    programs = [_template_program(context), *(p for p in parts if p.startswith(PROGRAM))]
    texts = (p if p.startswith(PROGRAM) else f"#!/bin/sh\n{p}" for p in programs if p)
    # one-context runs the script at each boot: it writes the facts, then runs the programs one
    # after the other.
    script = "".join(_PROGRAM.format(text=_base64(text, wrap=True)) for text in texts)
    context.pop("START_SCRIPT", None)
    context |= {f"SLURM_ELASTIC_{key.upper()}": value for key, value in facts.items()}
    context |= {
        "SET_HOSTNAME": facts["node"],
        # In base64, because oned expands dollar signs in plain values.
        "START_SCRIPT_BASE64": _base64(facts_program(facts) + script),
    }
    # If a part is for cloud-init, the image has cloud-init and may lack one-context. So the
    # programs go into user data, too.
    if not all(p.startswith(PROGRAM) for p in parts):
        document = multipart((f"#cloud-boothook\n{facts_program(facts)}", *parts))
        context |= {"USER_DATA": _base64(document), "USERDATA_ENCODING": "base64"}
        context.pop("USER_DATA_ENCODING", None)
    return context


def _template_program(context: Mapping[str, str]) -> str:
    encoded = context.get("START_SCRIPT_BASE64", "")
    if not encoded:
        return context.get("START_SCRIPT", "")
    try:
        return base64.b64decode(encoded, validate=False).decode()
    except ValueError:
        return ""


def _base64(text: str, *, wrap: bool = False) -> str:
    data = text.encode()
    return (base64.encodebytes(data) if wrap else base64.b64encode(data)).decode().strip()
