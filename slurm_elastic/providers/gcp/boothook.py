"""Runs on each machine of Google, from cloud-init, before the site's own user data: finds the
machine's node.

Its text is part of the user data, behind a line ``FACTS = {...}`` (base/user_data.py). So it uses
the standard library alone and runs on any Python 3. The machines of one call share their user data,
and each has a name of its own, which is its node and a hash of the launch. It writes
``/run/slurm-elastic/node``, the node's name, and ``/run/slurm-elastic/launch``, ``key=value`` lines
that sh can read.
"""

import os
import shlex
import time
import urllib.request
from typing import Dict  # noqa: UP035 - the machine's Python may be an old one

FACTS: Dict[str, str] = {}  # noqa: UP006
NAME = "http://169.254.169.254/computeMetadata/v1/instance/name"
PLACE = "/run/slurm-elastic"
TRIES = 30


def name() -> str:
    """The machine's name according to the metadata server."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(NAME, headers={"Metadata-Flavor": "Google"})
    for _ in range(TRIES):
        try:
            with opener.open(request, timeout=10) as answer:
                return str(answer.read().decode()).strip()
        except (OSError, ValueError):
            time.sleep(2)
    raise SystemExit("slurm-elastic: the metadata server does not tell the machine's name")


def main() -> None:
    """Write both files, each in one step."""
    node = name().rpartition("-")[0]
    facts = {k: v for k, v in FACTS.items() if k != "nodes"}
    os.makedirs(PLACE, exist_ok=True)
    lines = [f"{k}={shlex.quote(v)}\n" for k, v in dict(facts, node=node).items()]
    # The launch's secret is only for root: a job could enrol with it in another machine's place.
    for file_name, mode, text in (
        ("launch", 0o600, "".join(lines)),
        ("node", 0o644, node + "\n"),
    ):
        draft = os.path.join(PLACE, "." + file_name)
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(draft, os.path.join(PLACE, file_name))


if __name__ == "__main__":
    main()
