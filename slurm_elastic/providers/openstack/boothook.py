"""Runs on each OpenStack machine, from cloud-init, before the site's own user data: finds the
machine's node.

Its text is part of the user data, behind a line ``FACTS = {...}`` (base/user_data.py). So it uses
the standard library alone and runs on any Python 3. The machines of one call share their user data,
and nova numbers them: ``launch_index`` is the machine's place in the list of nodes. It writes
``/run/slurm-elastic/node``, the node's name, and ``/run/slurm-elastic/launch``, ``key=value`` lines
that sh can read.
"""

import json
import os
import shlex
import urllib.request
from typing import Any, Dict  # noqa: UP035 - the machine's Python may be an old one

FACTS: Dict[str, str] = {}  # noqa: UP006
METADATA = "http://169.254.169.254/openstack/latest/meta_data.json"
# Metadata that cloud-init has read from a config drive or the service; the newer file name first.
KNOWN = (
    "/run/cloud-init/instance-data-sensitive.json",
    "/run/cloud-init/instance-data.json",
)
PLACE = "/run/slurm-elastic"


def read_file(path: str) -> Any:  # noqa: ANN401
    """The metadata in cloud-init's own file, or {}."""
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)["ds"]["meta_data"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def ask_nova() -> Any:  # noqa: ANN401
    """The metadata from nova's service, or {} if it does not answer."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(METADATA, timeout=10) as answer:
            return json.loads(answer.read().decode())
    except (OSError, ValueError):
        return {}


def index() -> int:
    """The machine's place among the machines of its call."""
    sources = [lambda path=path: read_file(path) for path in KNOWN] + [ask_nova]
    for source in sources:
        place = source().get("launch_index")
        if place is not None:
            return int(place)
    raise SystemExit("slurm-elastic: no metadata tells which machine of its call this is")


def main() -> None:
    """Write both files, each in one step."""
    nodes = FACTS["nodes"].split()
    node = nodes[index()] if len(nodes) > 1 else nodes[0]
    facts = {k: v for k, v in FACTS.items() if k != "nodes"}
    os.makedirs(PLACE, exist_ok=True)
    lines = [f"{k}={shlex.quote(v)}\n" for k, v in dict(facts, node=node).items()]
    # The launch's secret is only for root: a job could enrol with it in another machine's place.
    for name, mode, text in (("launch", 0o600, "".join(lines)), ("node", 0o644, node + "\n")):
        draft = os.path.join(PLACE, "." + name)
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(draft, os.path.join(PLACE, name))


if __name__ == "__main__":
    main()
