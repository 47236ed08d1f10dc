"""Loopback AWS for the peer: EC2, DynamoDB and Route 53 of moto, with what its set-up makes.

``python -m benchmarks.peer_cloud`` prints ``{"url", "zone"}`` and serves until it is ended. moto
starts MinCount machines whatever MaxCount says; here a launch gets all it asks for.
"""

from __future__ import annotations

import io
import json
import os
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import parse_qsl, urlencode

from slurm_elastic.sandbox.ec2 import moto_changes as ec2_moto
from slurm_elastic.sandbox.loopback_only import isolated_env

REGION = "us-east-1"
CLUSTER, QUEUE, RESOURCE = "bench", "q", "c"
TABLE = f"parallelcluster-slurm-{CLUSTER}"
DOMAIN = f"{CLUSTER}.pcluster"
_LAUNCH = b"Action=RunInstances"


class Generous:
    """moto's application; RunInstances gets its MaxCount."""

    def __init__(self, moto: ec2_moto.Application) -> None:
        self._moto = moto
        self._lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        if _LAUNCH in body:
            form = dict(parse_qsl(body.decode(), keep_blank_values=True))
            body = urlencode(form | {"MinCount": form["MaxCount"]}).encode()
        inner = {k: v for k, v in environ.items() if not k.startswith("werkzeug.")}
        inner |= {"wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))}
        with self._lock:
            return [b"".join(self._moto(inner, start))]


def set_up(url: str) -> str:
    """Make what ParallelCluster's own set-up makes of its cluster; the hosted zone's id."""
    import boto3

    os.environ["AWS_ENDPOINT_URL"] = url
    session = boto3.session.Session(region_name=REGION)
    tags = {
        "Name": "Compute",
        "parallelcluster:cluster-name": CLUSTER,
        "parallelcluster:node-type": "Compute",
        "parallelcluster:queue-name": QUEUE,
        "parallelcluster:compute-resource-name": RESOURCE,
        "parallelcluster:version": "3.16.1",
    }
    listed: list[Any] = [{"Key": key, "Value": value} for key, value in tags.items()]
    session.client("ec2").create_launch_template(
        LaunchTemplateName=f"{CLUSTER}-{QUEUE}-{RESOURCE}",
        LaunchTemplateData={
            "ImageId": "ami-12345678",
            "InstanceType": "c5.large",
            "TagSpecifications": [
                {"ResourceType": kind, "Tags": listed} for kind in ("instance", "volume")
            ],
        },
    )
    session.client("dynamodb").create_table(
        TableName=TABLE,
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[{"AttributeName": "Id", "AttributeType": "S"}],
        KeySchema=[{"AttributeName": "Id", "KeyType": "HASH"}],
    )
    zone = session.client("route53").create_hosted_zone(Name=DOMAIN, CallerReference="bench")
    return str(zone["HostedZone"]["Id"]).rpartition("/")[2]


def serve() -> None:
    os.environ.update(isolated_env({}))
    os.environ["MOTO_EC2_LOAD_DEFAULT_AMIS"] = "false"
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        def log(self, *_: object) -> None:
            pass

    front = Generous(ec2_moto.application())
    server = make_server("127.0.0.1", 0, front, threaded=True, request_handler=Quiet)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    sys.stdout.write(json.dumps({"url": url, "zone": set_up(url)}) + "\n")
    sys.stdout.flush()
    threading.Event().wait()


if __name__ == "__main__":
    serve()
