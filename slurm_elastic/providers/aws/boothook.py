"""Runs on each EC2 machine, from cloud-init, before the site's own user data: which node am I?

Its text travels in the user data behind a line ``FACTS = {...}`` (base/user_data.py), so
it stands alone: standard library, any Python 3. It writes ``/run/slurm-elastic/node``, the node's
name, and ``/run/slurm-elastic/launch``, ``key=value`` lines readable by sh.
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
PATIENCE = 900.0
END = ["shutdown", "-h", "now"]


def ask(path: str, token: str = "") -> str:
    """Ask the instance metadata service; without a token, for one. A missing answer is ''.

    The second address is that of subnets without IPv4; the one that answers is asked from then on.
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
    """The names in a hostlist with at most one bracket a name, as the tags have them."""
    names = []
    for prefix, group in re.findall(r"([^,\[\]]+)(?:\[([^\]]*)\])?", hostlist):
        for piece in group.split(","):
            low, _, high = piece.partition("-")
            numbers = range(int(low), int(high or low) + 1) if low else [""]
            names += [prefix + str(n).zfill(len(low)) for n in numbers]
    return names


def tag(name: str, token: str) -> str:
    """One of the machine's tags of ours."""
    return ask("meta-data/tags/instance/slurm-elastic:" + name, token)


def tagged_nodes(token: str) -> str:
    """The hostlist from the machine's tags, for a list too long for the user data."""
    parts = [tag("nodes", token)]
    while parts[-1]:
        parts.append(tag(f"nodes-{len(parts)}", token))
    return ",".join(filter(None, parts))


def index(token: str) -> str:
    """The machine's place in the launch's list; of a fleet's machine once it is tagged."""
    places = tag("places", token)
    until = time.monotonic() + PATIENCE
    while places:
        digits = [tag(f"place-{n}", token) for n in range(int(places))]
        if all(digits):
            return "".join(digits)
        if time.monotonic() > until:
            subprocess.call(END)
            sys.exit("nobody has given this machine a node")
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
