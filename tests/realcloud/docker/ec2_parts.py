"""A head in a container uses the sandbox's EC2 on this host: it gets boto3, and a relay to EC2."""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import socket
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path

SDK = ("boto3", "botocore", "s3transfer", "jmespath", "dateutil", "urllib3", "six")
"""boto3 and what it needs: Python code alone, which the containers' Python runs as well."""
SDK_DATA = {"ec2", "sqs", "endpoints.json", "partitions.json", "sdk-default-configuration.json",
            "_retry.json"}  # fmt: skip
ENVIRONMENT = ("env", "AWS_ACCESS_KEY_ID=emulated", "AWS_SECRET_ACCESS_KEY=emulated",
               "PYTHONPATH=/opt/slurm-elastic", "PYTHONDONTWRITEBYTECODE=1")  # fmt: skip


def copy_sdk(target: Path) -> None:
    """Put boto3 there, and what it needs."""
    for name in SDK:
        found = importlib.util.find_spec(name)
        assert found is not None
        assert found.origin is not None
        origin = Path(found.origin)
        if origin.name == "__init__.py":
            shutil.copytree(origin.parent, target / name, ignore=_unneeded)
        else:
            shutil.copyfile(origin, target / origin.name)


@contextlib.contextmanager
def relay(address: str, port: int) -> Iterator[str]:
    """Have what listens on this host's loopback reached by ``address``; the URL there."""

    class Through(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with socket.create_connection(("127.0.0.1", port)) as inner:
                back = threading.Thread(target=_pump, args=(inner, self.request))
                back.start()
                _pump(self.request, inner)
                back.join()

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

    with Server((address, 0), Through) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://{address}:{server.server_address[1]}"
        server.shutdown()


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while part := source.recv(65536):
            target.sendall(part)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def _unneeded(directory: str, names: list[str]) -> set[str]:
    """Names to leave out of a package: compiled files, and botocore's data on other services."""
    left = {name for name in names if name == "__pycache__"}
    if directory.endswith("botocore/data"):
        left |= set(names) - SDK_DATA
    return left
