"""Runs on each EC2 machine, from cloud-init, before the site's own user data: finds the machine's
node.

Its text is part of the user data, behind a line ``FACTS = {...}`` (base/user_data.py). So it uses
the standard library alone and runs on any Python 3. It writes ``/run/slurm-elastic/node``, the
node's name, and ``/run/slurm-elastic/launch``, ``key=value`` lines that sh can read.
"""

import http.client
import os
import re
import shlex
import subprocess
import sys
import time
import urllib.error
import urllib.request
from typing import Dict, List  # noqa: UP035 - the machine's Python may be an old one

FACTS: Dict[str, str] = {}  # noqa: UP006
IMDS = ["http://169.254.169.254/latest/", "http://[fd00:ec2::254]/latest/"]
PLACE = "/run/slurm-elastic"
GIVE_UP_S = 900.0
RETRY_S = 2.0
END = ["shutdown", "-h", "now"]


def send(url: str, method: str, name: str, value: str) -> str:
    """One answer of the metadata service. ``name``: the end of the header's name."""
    headers = {"X-aws-ec2-metadata-token" + name: value}
    request = urllib.request.Request(url, headers=headers, method=method)  # noqa: S310
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=10) as answer:
        return str(answer.read().decode())


def try_to_ask(base: str, path: str) -> str:
    """Ask at one address; '' if the service has nothing at the path. Without an answer:
    OSError or HTTPException.
    """
    token = send(base + "api/token", "PUT", "-ttl-seconds", "60")
    IMDS[:] = [base]
    try:
        return send(base + path, "GET", "", token)
    except urllib.error.HTTPError as error:
        if error.code != 404:
            raise
        return ""


def ask(path: str) -> str:
    """Ask the instance metadata service until it answers; '' if it has nothing at the path.

    The service may be busy while a machine boots. A machine that took no answer for "nothing" would
    join in the place of another machine of its launch. The second address is for subnets without
    IPv4. The first address to answer is used later on.
    """
    failure, give_up_at = "", time.monotonic() + GIVE_UP_S
    while time.monotonic() < give_up_at:
        for base in IMDS:
            try:
                return try_to_ask(base, path)
            # A broken answer (cut off, garbled) is no OSError.
            except (OSError, http.client.HTTPException) as error:
                failure = str(error)
        time.sleep(RETRY_S)
    return give_up("the metadata service does not answer: " + failure)


def give_up(reason: str) -> str:
    """End the machine: without a name it is of no use, and nothing else on it would end it."""
    subprocess.call(END)
    sys.exit(reason)


def expand(hostlist: str) -> List[str]:  # noqa: UP006
    """The names in a hostlist with at most one bracket per name, as in the tags."""
    names = []
    for prefix, group in re.findall(r"([^,\[\]]+)(?:\[([^\]]*)\])?", hostlist):
        for piece in group.split(","):
            low, _, high = piece.partition("-")
            numbers = range(int(low), int(high or low) + 1) if low else [""]
            names += [prefix + str(n).zfill(len(low)) for n in numbers]
    return names


def tag(name: str) -> str:
    """The value of the machine's tag ``slurm-elastic:NAME``."""
    return ask("meta-data/tags/instance/slurm-elastic:" + name)


def tagged_nodes() -> str:
    """The hostlist from the tags, for a list too long for the user data."""
    pieces = [tag("nodes")]
    while pieces[-1]:
        pieces.append(tag(f"nodes-{len(pieces)}"))
    return ",".join(filter(None, pieces))


def index() -> str:
    """The machine's place in the launch's list. A fleet's machine waits for its tags."""
    places = tag("places")
    give_up_at = time.monotonic() + GIVE_UP_S
    while places:
        digits = [tag(f"place-{n}") for n in range(int(places))]
        if all(digits):
            return "".join(digits)
        if time.monotonic() > give_up_at:
            give_up("no node was assigned to this machine")
        time.sleep(RETRY_S)
    return ask("meta-data/ami-launch-index") or give_up("EC2 gives this machine no launch index")


def main() -> None:
    """Write both files, each in one step."""
    facts = dict(FACTS, nodes=FACTS.get("nodes") or tagged_nodes())
    facts["generation"] = facts.get("generation") or tag("generation")
    names = expand(facts["nodes"])
    # Only user data says for certain that the launch has a single machine. In a fleet even that
    # machine waits for its tag. An installation on the premises may have no metadata service.
    is_alone = len(names) == 1 and FACTS.get("nodes")
    node = names[0 if is_alone else int(index())]
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
