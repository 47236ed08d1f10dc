"""Runs on each EC2 machine, from cloud-init, before the site's own user data: finds the machine's
node.

Its text is part of the user data, behind a line ``FACTS = {...}`` (base/user_data.py). So it uses
the standard library alone and runs on any Python 3. It writes ``/run/slurm-elastic/node``, the
node's name, and ``/run/slurm-elastic/launch``, ``key=value`` lines that sh can read.
"""

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
END = ["shutdown", "-h", "now"]


def ask(path: str, token: str = "") -> str:
    """Ask the instance metadata service; without a token, for a token. '' if there is no answer.

    The second address is for subnets without IPv4. The first address to answer is used later on.
    """
    name = "X-aws-ec2-metadata-token" + ("" if token else "-ttl-seconds")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    for base in list(IMDS):
        request = urllib.request.Request(  # noqa: S310
            base + path, headers={name: token or "60"}, method="GET" if token else "PUT"
        )
        try:
            with opener.open(request, timeout=10) as answer:
                IMDS[:] = [base]
                return str(answer.read().decode())
        except urllib.error.HTTPError:
            return ""
        except OSError:
            continue
    return ""


def expand(hostlist: str) -> List[str]:  # noqa: UP006
    """The names in a hostlist with at most one bracket per name, as in the tags."""
    names = []
    for prefix, group in re.findall(r"([^,\[\]]+)(?:\[([^\]]*)\])?", hostlist):
        for piece in group.split(","):
            low, _, high = piece.partition("-")
            numbers = range(int(low), int(high or low) + 1) if low else [""]
            names += [prefix + str(n).zfill(len(low)) for n in numbers]
    return names


def tag(name: str, token: str) -> str:
    """The value of the machine's tag ``slurm-elastic:NAME``."""
    return ask("meta-data/tags/instance/slurm-elastic:" + name, token)


def tagged_nodes(token: str) -> str:
    """The hostlist from the tags, for a list too long for the user data."""
    pieces = [tag("nodes", token)]
    while pieces[-1]:
        pieces.append(tag(f"nodes-{len(pieces)}", token))
    return ",".join(filter(None, pieces))


def index(token: str) -> str:
    """The machine's place in the launch's list. A fleet's machine waits for its tags."""
    places = tag("places", token)
    give_up_at = time.monotonic() + GIVE_UP_S
    while places:
        digits = [tag(f"place-{n}", token) for n in range(int(places))]
        if all(digits):
            return "".join(digits)
        if time.monotonic() > give_up_at:
            subprocess.call(END)
            sys.exit("no node was assigned to this machine")
        time.sleep(2)
        token = ask("api/token")
    return ask("meta-data/ami-launch-index", token) or "0"


def main() -> None:
    """Write both files, each in one step."""
    token = ask("api/token")
    place = index(token)
    token = ask("api/token")
    facts = dict(FACTS, nodes=FACTS.get("nodes") or tagged_nodes(token))
    facts["generation"] = facts.get("generation") or tag("generation", token)
    node = expand(facts["nodes"])[int(place)]
    os.makedirs(PLACE, exist_ok=True)
    lines = [f"{k}={shlex.quote(v)}\n" for k, v in dict(facts, node=node).items()]
    for name, text in (("launch", "".join(lines)), ("node", node + "\n")):
        draft = os.path.join(PLACE, "." + name)
        with open(draft, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(draft, os.path.join(PLACE, name))


if __name__ == "__main__":
    main()
