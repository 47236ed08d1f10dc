"""Checks that the settings of a Docker cloud make sense: addresses, certificates, sizes, options.
Pure.
"""

from __future__ import annotations

import re

from slurm_elastic.config.basics.readable_url import is_readable_url
from slurm_elastic.config.document import KeyPath, shown
from slurm_elastic.config.partial import Draft
from slurm_elastic.providers.base.hosts.hosted_cloud import own_addresses
from slurm_elastic.providers.docker.settings import DockerCloud, DockerHost

_URL = re.compile(r"unix:///\S+|tcp://[^\s/@]+:\d+|ssh://([^\s/@:]+@)?[^\s/@:]+(:\d+)?")
_LOOPBACK = re.compile(r"tcp://(127\.[\d.]+|localhost|\[::1\]):\d+")
_MOUNT = re.compile(r"(/[^:\s]*|[A-Za-z0-9][\w.-]+):/[^:\s]*(:(ro|rw))?")
_TMPFS = re.compile(r"/[^:\s]*")
_CAPABILITY = re.compile(r"(?!ALL$)[A-Z][A-Z0-9_]+")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_WORD = re.compile(r"[^\s]+")
_TLS = ("ca_file", "cert_file", "key_file")


def check(draft: Draft, i: int, cloud: DockerCloud) -> None:
    """Report all problems of a cloud of provider docker."""
    cloud_path: KeyPath = ("clouds", i)
    for name, host in cloud.hosts.items():
        _host(draft, (*cloud_path, "hosts", name), host)
    own_addresses(draft, cloud_path, "url", {name: host.url for name, host in cloud.hosts.items()})
    _options(draft, cloud_path, cloud)
    _sizes(draft, cloud_path, cloud)


def _host(draft: Draft, host_path: KeyPath, host: DockerHost) -> None:
    given_files = [key for key in _TLS if getattr(host, key) is not None]
    if not (_URL.fullmatch(host.url) and is_readable_url(host.url)):
        expected = "unix:///PATH, tcp://HOST:PORT or ssh://USER@HOST, without a password"
        # The part before an @ may be a password, which must not be shown.
        problem = "a user or password in it" if "@" in host.url else shown(host.url)
        draft.problems.add((*host_path, "url"), problem, expected)
    elif not host.url.startswith("tcp://"):
        for key in given_files:
            expected = f"no {key}: the url is not tcp"
            draft.problems.add((*host_path, key), shown(getattr(host, key)), expected)
    elif len(given_files) < len(_TLS) and (given_files or not _LOOPBACK.fullmatch(host.url)):
        # Without certificates, every user who can reach an engine's port is root on its host.
        missing = " and ".join(key for key in _TLS if key not in given_files)
        draft.problems.add(
            (*host_path, "url"), f"{shown(host.url)} without {missing}", "all three files"
        )


def _options(draft: Draft, cloud_path: KeyPath, cloud: DockerCloud) -> None:
    for key, word in (("image", cloud.image), ("network", cloud.network)):
        if not _WORD.fullmatch(word):
            draft.problems.add((*cloud_path, key), shown(word), "a name, without blanks")
    for word in cloud.environment:
        if not _VARIABLE.fullmatch(word):
            draft.problems.add(
                (*cloud_path, "environment", word), shown(word), "the name of a variable"
            )
    forms: tuple[tuple[str, tuple[str, ...], re.Pattern[str], str], ...] = (
        ("mounts", cloud.mounts, _MOUNT, "/THERE:/HERE or VOLUME:/HERE, with :ro if it is"),
        ("tmpfs", cloud.tmpfs, _TMPFS, "an absolute path"),
        ("security_options", cloud.security_options, _WORD, "one word"),
        ("capabilities", cloud.capabilities, _CAPABILITY, "a capability, such as SYS_PTRACE"),
    )
    for key, values, form, expected in forms:
        for n, word in enumerate(values):
            if not form.fullmatch(word):
                draft.problems.add((*cloud_path, key, n), shown(word), expected)


def _sizes(draft: Draft, cloud_path: KeyPath, cloud: DockerCloud) -> None:
    for name, kind in cloud.types.items():
        place = (*cloud_path, "types", name)
        if kind.gres:
            expected = "no gres: containers get no devices"
            draft.problems.add((*place, "gres"), ", ".join(kind.gres), expected)
        for key in ("cpus", "memory"):
            host_sizes = [getattr(host, key) for host in cloud.hosts.values()]
            if None not in host_sizes and getattr(kind, key) > max(host_sizes):
                expected = f"at most {max(host_sizes)}, what the largest of the hosts gives"
                draft.problems.add((*place, key), str(getattr(kind, key)), expected)
