"""The labels of a machine: our tags in the few characters that Google allows.

Lists show labels, filters know them, and so do bills. The exact tags are in labels and not in the
machine's metadata, because a list with metadata has the user data of each machine. A label's value
may have ``a-z``, ``0-9``, ``_`` and ``-``, so any other character is written as ``_`` and two
hexadecimal digits of each of its bytes. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from slurm_elastic.config import Cluster
from slurm_elastic.model.cluster import LaunchSpec
from slurm_elastic.providers.base import tags as machine_tags
from slurm_elastic.providers.base.machine_tags import ZONE, bought
from slurm_elastic.providers.base.tags import PREFIX

LABEL_PREFIX = "slurm-elastic-"
MAX_VALUE = 63
IMAGE = PREFIX + "image"
"""The number of the image from which the machine started."""
STOPS = PREFIX + "stops"
"""Set if the machine's pool stops idle machines, so a machine that is off may be wanted."""
_PLAIN = re.compile(r"[a-z0-9-]")
_ESCAPED = re.compile(r"(?:_[0-9a-f]{2})+")


def key_of(tag: str) -> str:
    """The label's key of one of our tags."""
    return LABEL_PREFIX + tag.removeprefix(PREFIX)


def encoded(value: str) -> str:
    """The value in the characters of a label. It may be too long for one."""
    return "".join(
        char if _PLAIN.fullmatch(char) else "".join(f"_{byte:02x}" for byte in char.encode())
        for char in value
    )


def decoded(text: str) -> str:
    """The value that ``encoded`` has written. Labels can be edited, so any text is a value."""

    def plain(match: re.Match[str]) -> str:
        return bytes.fromhex(match[0].replace("_", "")).decode("utf-8", "replace")

    return _ESCAPED.sub(plain, text)


def cut(value: str) -> str:
    """The value as a label, cut so that no character is cut in two."""
    while len(encoded(value)) > MAX_VALUE:
        value = value[:-1]
    return encoded(value)


def written(spec: LaunchSpec, cluster: Cluster, cloud: str, image: str) -> dict[str, str]:
    """The labels of all machines of a launch."""
    tags = bought(spec, (), cluster, cloud) | {IMAGE: image}
    if spec.pool.stopped:
        tags[STOPS] = "yes"
    # The machine has a name, which says its node, and a zone.
    own = {tag: value for tag, value in tags.items() if tag not in ("Name", ZONE)}
    return {key_of(tag): cut(value) for tag, value in own.items() if value}


def read(labels: Mapping[str, str]) -> dict[str, str]:
    """Our tags of a machine with these labels. Other labels are left out."""
    return {
        PREFIX + key.removeprefix(LABEL_PREFIX): decoded(value)
        for key, value in labels.items()
        if key.startswith(LABEL_PREFIX)
    }


def of_cluster(uuid: str, generation: str = "") -> str:
    """The filter for lists of the cluster's machines, or of one of its launches."""
    wanted = {machine_tags.CLUSTER: uuid} | (
        {machine_tags.GENERATION: generation} if generation else {}
    )
    terms = [f'labels.{key_of(tag)} = "{cut(value)}"' for tag, value in wanted.items()]
    return terms[0] if len(terms) == 1 else " ".join(f"({term})" for term in terms)
