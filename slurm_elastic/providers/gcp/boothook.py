"""Runs on each machine of Google, from cloud-init, before the site's own user data: finds the
machine's node, and keeps a spot machine up while Google takes it back.

Its text is part of the user data, behind a line ``FACTS = {...}`` (base/user_data.py). So it uses
the standard library alone and runs on any Python 3. The machines of one call share their user data,
and each has a name of its own, which is its node and a hash of the launch. It writes
``/run/slurm-elastic/node``, the node's name, and ``/run/slurm-elastic/launch``, ``key=value`` lines
that sh can read.
"""

import contextlib
import os
import shlex
import subprocess
import time
import urllib.request
from typing import Dict  # noqa: UP035 - the machine's Python may be an old one

FACTS: Dict[str, str] = {}  # noqa: UP006
NAME = "http://169.254.169.254/computeMetadata/v1/instance/name"
PLACE = "/run/slurm-elastic"
SYSTEMD = "/run/systemd"
TRIES = 30
COMMANDS = (
    ("kill", "--signal=HUP", "systemd-logind.service"),
    ("--no-block", "stop", "acpid.socket", "acpid.path", "acpid.service"),
)


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


def ignore_power_key() -> None:
    """Let the power button do nothing. Google presses it when it takes a spot machine, and cuts the
    power 30 s later. A shutdown would use up this time, in which jobs are saved.
    """
    if not os.path.isdir(os.path.join(SYSTEMD, "system")):
        return
    place = os.path.join(SYSTEMD, "logind.conf.d")
    os.makedirs(place, exist_ok=True)
    with open(os.path.join(place, "slurm-elastic.conf"), "w", encoding="utf-8") as file:
        file.write("[Login]\nHandlePowerKey=ignore\n")
    # logind may not run yet, and then it reads the file when it starts. acpid is on few images.
    for command in COMMANDS:
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            subprocess.run(("systemctl", *command), check=False, timeout=10)


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
    if FACTS.get("market") == "spot":
        ignore_power_key()


if __name__ == "__main__":
    main()
