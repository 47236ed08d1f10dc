"""Checks the names, paths and references of a configuration, and runs all other checks. Pure.

Slurm and the shell will read some words (partitions, nodes, features, allow lists, paths). These
may have only safe characters, so that nothing in the file can add a second option to slurm.conf.
"""

from __future__ import annotations

import re
import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import accumulate
from pathlib import PurePath

from slurm_elastic.base.hostlist import HostlistError, compress, expand
from slurm_elastic.config.basics.readable_url import is_readable_url
from slurm_elastic.config.cloud_kinds import table
from slurm_elastic.config.decode import nearest
from slurm_elastic.config.document import KeyPath, shown
from slurm_elastic.config.partial import Draft
from slurm_elastic.config.ranking_kinds import checked_key
from slurm_elastic.config.sections.other_clusters import OtherCluster
from slurm_elastic.config.validation.validate import FITS
from slurm_elastic.config.validation.validate_checkpoint import CHECKPOINT_FITS
from slurm_elastic.config.validation.validate_discounts import check_discounts
from slurm_elastic.config.validation.validate_join import check_images, check_join
from slurm_elastic.config.validation.validate_machine import check_machine_keys, check_replacement
from slurm_elastic.config.validation.validate_mounts import check_mounts
from slurm_elastic.config.validation.validate_network import check_network
from slurm_elastic.config.validation.validate_policies import (
    ACCOUNT,
    ACCOUNT_EXPECTED,
    POLICIES_FIT,
)
from slurm_elastic.config.validation.validate_prices import LIMIT_FITS
from slurm_elastic.config.validation.validate_reservations import check_reservations
from slurm_elastic.config.validation.validate_stopped import check_stopped
from slurm_elastic.policies.launch.ranking import KEYS

NODE_ADDRESSES = ("registration", "provider")
_MAX_SOCKET_PATH = 107  # bytes of sun_path (unix(7)), without the final NUL
_CLUSTER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,39}")
# A word that begins with a dash would be an option of ssh.
_SSH_TARGET = re.compile(
    r"(?:[A-Za-z0-9_.][A-Za-z0-9_.-]*@)?[A-Za-z0-9_.:\[\]%][A-Za-z0-9_.:\[\]%-]*"
)
_SOCKET_NAME_LENGTH = len("/prolog.sock")  # the longest name in the state directory
_MAX_NODES = 64 * 1024  # slurmctld's MAX_SLURM_NODES

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_CLUSTER = re.compile(r"[a-z0-9][a-z0-9._-]{0,39}")
_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@+/-]{0,127}")
_GRES = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(?::[A-Za-z0-9_][A-Za-z0-9_.-]*)?")
_RESERVED = ("default", "all")  # keywords of slurm.conf(5), in upper and lower case
_NO_NODES = frozenset({*_RESERVED, "localhost"})  # see ``conflicts``: Slurm mistakes others for it

_NAME_FORM = "letters, digits, '_', '-' and '.', at most 63, starting with a letter or digit"
_NAME_LISTS = ("accounts", "groups", "qos", "licenses", "no_requeue_on_spot", "partitions")
_HEADER = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,62}")
_WORD_FORM = "a name of letters, digits and _ . : @ + / - without blanks"


def check(draft: Draft) -> None:
    """Report every mistake in the parts of a file that could be read."""
    for check_part in (
        *_CHECKS,
        *FITS,
        *LIMIT_FITS,
        *POLICIES_FIT,
        check_join,
        check_network,
        check_mounts,
        check_stopped,
        check_reservations,
        check_discounts,
        check_images,
        check_machine_keys,
        check_replacement,
        *CHECKPOINT_FITS,
    ):
        check_part(draft)


def _clouds(draft: Draft) -> None:
    """Let each kind of cloud check its own settings."""
    for i, cloud in draft.clouds.items():
        if not cloud.unusable:
            table().kind(cloud.provider).check(draft, i, cloud)


def _cluster(draft: Draft) -> None:
    name, identity = draft.value(("cluster", "name"), str), draft.value(("cluster", "uuid"), str)
    if name is not None and not _CLUSTER.fullmatch(name):
        hint = repr(name.lower()) if _CLUSTER.fullmatch(name.lower()) else None
        expected = "slurm.conf's ClusterName: lower-case letters, digits, '_', '-', '.', at most 40"
        draft.problems.add(("cluster", "name"), shown(name), expected, hint)
    if identity is not None and not is_uuid(identity):
        hint = repr(identity.lower()) if is_uuid(identity.lower()) else None
        draft.problems.add(("cluster", "uuid"), shown(identity), UUID_FORM, hint)


UUID_FORM = "a UUID in lower case, 8-4-4-4-12 hexadecimal digits"


def is_uuid(text: str) -> bool:
    """Whether ``text`` is a UUID in the form of our tags, which are compared as text."""
    try:
        # uuid.UUID also accepts capitals, braces and no dashes.
        return str(uuid.UUID(text)) == text
    except ValueError:
        return False


def _names(draft: Draft) -> None:
    for section, key in (("clouds", "name"), ("clouds", "partition"), ("pools", "name")):
        for i, name in draft.each(section, key, str).items():
            _name(draft, (section, i, key), name)


def _name(draft: Draft, path: KeyPath, name: str) -> None:
    if not _NAME.fullmatch(name):
        draft.problems.add(path, shown(name), _NAME_FORM)
    elif name.lower() in _RESERVED:
        draft.problems.add(path, shown(name), "a name that is no keyword of Slurm")


def _words(draft: Draft) -> None:
    for path, texts in _all_words(draft):
        for i, word in enumerate(texts):
            if not _WORD.fullmatch(word):
                draft.problems.add((*path, i), shown(word), _WORD_FORM)
    for path, gres in _all_gres(draft):
        for name in gres:
            if not _GRES.fullmatch(name):
                draft.problems.add(
                    (*path, name), shown(name), "a gres name such as gpu or gpu:a100"
                )
    user = draft.value(("slurm", "user"), str)
    if user is not None and not _NAME.fullmatch(user):
        draft.problems.add(("slurm", "user"), shown(user), "a user name")


def _all_words(draft: Draft) -> Iterable[tuple[KeyPath, tuple[str, ...]]]:
    for i, texts in draft.each("pools", "features", tuple).items():
        yield ("pools", i, "features"), texts
    for place in _allow_places(draft):
        for key in _NAME_LISTS:
            yield (*place, key), draft.value((*place, key), tuple) or ()


def _allow_places(draft: Draft) -> list[KeyPath]:
    return [("allow",), *(("clouds", i, "allow") for i in draft.indices("clouds"))]


def _offer_names(draft: Draft) -> None:
    """Report types and zones with characters that no name may have. A slash is such a character,
    because ``Offer.key`` is split at slashes.
    """
    for section, key in (("pools", "instance_types"), ("pools", "zones"), ("clouds", "zones")):
        for i, texts in draft.each(section, key, tuple).items():
            for n, word in enumerate(texts):
                _name(draft, (section, i, key, n), word)
    for key in ("types", "subnets"):
        for i, mapping in draft.each("clouds", key, dict).items():
            for word in mapping:
                _name(draft, ("clouds", i, key, word), word)


def _all_gres(draft: Draft) -> Iterable[tuple[KeyPath, Iterable[str]]]:
    for i, gres in draft.each("pools", "gres", dict).items():
        yield ("pools", i, "gres"), gres
    for i, types in draft.each("clouds", "types", dict).items():
        for name, kind in types.items():
            yield ("clouds", i, "types", name, "gres"), kind.gres


def _duplicates(draft: Draft) -> None:
    names = draft.each("clouds", "name", str)
    _once(draft, "clouds", "name", names, "a name that no other cloud has")
    _once(draft, "pools", "name", draft.each("pools", "name", str), "a name that no other pool has")
    own_names = draft.each("clouds", "partition", str)
    # Duplicate names have a complaint of their own.
    unique = {i: name for i, name in names.items() if list(names.values()).count(name) == 1}
    partitions = dict(sorted((unique | own_names).items()))
    _once(draft, "clouds", "partition", partitions, "a partition that no other cloud has")


def _once(draft: Draft, section: str, key: str, names: dict[int, str], expected: str) -> None:
    first_index: dict[str, int] = {}
    for i, name in names.items():
        other = first_index.setdefault(name, i)
        if other != i:
            text = f"{shown(name)}, which {section}[{other}] has already"
            draft.problems.add((section, i, key), text, expected)


def _pool_clouds(draft: Draft) -> None:
    for i, cloud in draft.each("pools", "cloud", str).items():
        if cloud not in draft.cloud_names:
            expected = f"the name of a cloud: one of {', '.join(draft.cloud_names) or '(none)'}"
            hint = nearest(cloud, draft.cloud_names)
            draft.problems.add(("pools", i, "cloud"), shown(cloud), expected, hint)


def _node_names(draft: Draft) -> None:
    owner: dict[str, int] = {}
    for i, hostlist in draft.each("pools", "nodes", str).items():
        path = ("pools", i, "nodes")
        if i not in draft.nodes:
            draft.problems.add(path, shown(hostlist), _hostlist_form(hostlist))
            continue
        names = draft.nodes[i]
        if not all(map(_NAME.fullmatch, names)) or not _NO_NODES.isdisjoint(map(str.lower, names)):
            draft.problems.add(path, shown(hostlist), f"names of {_NAME_FORM}, no keyword of Slurm")
        if len(set(names)) < len(names):
            repeated = [name for name, count in Counter(names).items() if count > 1]
            draft.problems.add(path, f"{compress(repeated)} twice", "each node name once")
        _overlaps(draft, i, names, owner)
    _node_count(draft)


def _node_count(draft: Draft) -> None:
    """Report the pool with which the nodes exceed slurmctld's maximum."""
    counts = {i: len(names) for i, names in draft.nodes.items()}
    for i, total in zip(counts, accumulate(counts.values()), strict=True):
        if total > _MAX_NODES:
            expected = f"at most {_MAX_NODES}, as many as Slurm takes (MAX_SLURM_NODES)"
            draft.problems.add(("pools", i, "nodes"), f"{total} nodes up to here", expected)
            return


def _overlaps(draft: Draft, i: int, names: list[str], owner: dict[str, int]) -> None:
    """Report each earlier pool that shares some of ``names``, once."""
    if owner.keys().isdisjoint(names):
        owner.update(dict.fromkeys(names, i))
        return
    shared: dict[int, list[str]] = {}
    for name in names:
        other = owner.setdefault(name, i)
        if other != i:
            shared.setdefault(other, []).append(name)
    for other, repeated in shared.items():
        whose = draft.problems.document.locate(("pools", other))
        text = f"{compress(repeated)}, which {whose} has already"
        draft.problems.add(("pools", i, "nodes"), text, "node names that no other pool has")


def _hostlist_form(text: str) -> str:
    try:
        expand(text)
    except HostlistError as error:
        return f"a hostlist such as pub[1-8] ({error.complaint})"
    return "a hostlist such as pub[1-8]"


def _page_proxy(draft: Draft) -> None:
    path = ("users", "page_proxy")
    user, header = draft.value((*path, "user"), str), draft.value((*path, "header"), str)
    slurm_user = draft.value(("slurm", "user"), str) or "slurm"
    if user is not None and (user in ("root", slurm_user) or not _NAME.fullmatch(user)):
        # These users act on the page themselves, through the same socket.
        expected = f"the web server's Unix user, neither root nor {slurm_user}"
        draft.problems.add((*path, "user"), shown(user), expected)
    if header is not None and not _HEADER.fullmatch(header):
        draft.problems.add((*path, "header"), shown(header), "a header such as X-Remote-User")


def _claims_of_both_heads(draft: Draft, path: KeyPath) -> None:
    """Report a file of claims that the two heads do not share. After a takeover the other head
    would believe that a person has switched on the hosts that run.
    """
    file, shared = draft.value(path, str), draft.value(("ha", "directory"), str)
    if file and shared and PurePath(shared) not in PurePath(file).parents:
        expected = f"a file below ha.directory ({shared}), which both heads have; or no such key"
        draft.problems.add(path, shown(file), expected)


def _paths(draft: Draft) -> None:
    for key in ("conf", "bin_dir", "sbin_dir", "programs_dir"):
        draft.path(("slurm", key))
    # The sockets in the state directory must have room, too.
    draft.path(("state_dir",), _MAX_SOCKET_PATH - _SOCKET_NAME_LENGTH)
    draft.path(("ha", "directory"))
    draft.path(("users", "socket"), _MAX_SOCKET_PATH)
    for i in draft.indices("clouds"):
        path = ("clouds", i)
        draft.path((*path, "socket"), _MAX_SOCKET_PATH)
        for key in ("user_data", "auth_file", "ca_file", "clouds_file"):
            draft.path((*path, key))
        for claims in ((*path, "claims_file"), (*path, "hypervisors", "claims_file")):
            _claims_of_both_heads(draft, claims)
        for host in draft.value((*path, "hosts"), dict) or ():
            for key in ("ca_file", "cert_file", "key_file"):
                draft.path((*path, "hosts", host, key))
    draft.path(("join", "template"))
    for key in ("key", "munge_key", "slurm_keys", "target"):
        draft.path(("join", "ssh", key))
    draft.path(("join", "network", "public_key"))
    draft.path(("join", "network", "socket"), _MAX_SOCKET_PATH)
    draft.path(("notify", "mail_program"))


def _choices(draft: Draft) -> None:
    for i in draft.indices("clouds"):
        draft.choice(("clouds", i, "node_address"), NODE_ADDRESSES)
    for i, name in enumerate(draft.value(("ranking",), tuple) or ()):
        draft.choice(("ranking", i), KEYS)
        if draft.strict and name in KEYS:
            _check_key(draft, ("ranking", i), str(name))


def _check_key(draft: Draft, path: KeyPath, name: str) -> None:
    """Report a ranking key of another package that cannot be used. Services skip this check and
    continue without the key.
    """
    try:
        checked_key(name)
    except ValueError as error:
        draft.problems.add(path, shown(name), f"a ranking key: {error}")


def _notify(draft: Draft) -> None:
    command = draft.value(("notify", "command"), tuple) or ()
    if command and not str(command[0]).startswith("/"):
        expected = "the absolute path of a program, then its arguments"
        draft.problems.add(("notify", "command", 0), shown(command[0]), expected)
    accounts = draft.value(("notify", "accounts"), dict) or {}
    for name in accounts:
        # Slurm turns each account's name into lower case: no job would ever have another one.
        if not ACCOUNT.fullmatch(name):
            draft.problems.add(("notify", "accounts", name), shown(name), ACCOUNT_EXPECTED)
    keys: list[KeyPath] = [("notify", "mail"), *(("notify", "accounts", name) for name in accounts)]
    for key in keys:
        for i, address in enumerate(draft.value(key, tuple) or ()):
            if not re.fullmatch(r"[^\s-][^\s]*", str(address)):
                draft.problems.add((*key, i), shown(address), "an address of mail")
    webhook = draft.value(("notify", "webhook"), str)
    is_url_or_path = re.fullmatch(r"https?://[^\s/]\S*|/.+", webhook or "")
    if webhook is not None and not (is_url_or_path and is_readable_url(webhook)):
        expected = "the absolute path of a file with the address, or http://... or https://..."
        draft.problems.add(("notify", "webhook"), shown(webhook), expected)


def _replace_reasons(draft: Draft) -> None:
    """Report a pattern that may match any drain: it would end machines that a person drained to
    examine them.
    """
    for i, pattern in enumerate(draft.value(("slurm", "replace_reasons"), tuple) or ()):
        if not re.match(r"[^*?\[]{3}", str(pattern)):
            expected = "a pattern that begins with the health check's own words, such as 'NHC: *'"
            draft.problems.add(("slurm", "replace_reasons", i), shown(pattern), expected)


def _other_clusters(draft: Draft) -> None:
    """Report clusters with both or neither of ``ssh`` and ``file``, and repeated names."""
    cluster = draft.value(("cluster", "name"), str)
    names = {cluster: 1} if cluster else {}
    for n, other in enumerate(draft.value(("clusters",), tuple) or ()):
        path: KeyPath = ("clusters", n)
        if not isinstance(other, OtherCluster):
            continue
        if not _CLUSTER_NAME.fullmatch(other.name):
            expected = "letters, digits, '_', '.' and '-', at most 40, a letter or digit first"
            draft.problems.add((*path, "name"), shown(other.name), expected)
        elif other.name in names:
            expected = "another name than this cluster and the other ones have"
            draft.problems.add((*path, "name"), shown(other.name), expected)
        names[other.name] = 1
        if (other.ssh is None) == (other.file is None):
            found = "neither 'ssh' nor 'file'" if other.ssh is None else "both 'ssh' and 'file'"
            draft.problems.add(path, found, "one of them")
        if other.ssh is not None and not _SSH_TARGET.fullmatch(other.ssh):
            draft.problems.add((*path, "ssh"), shown(other.ssh), "HOST or USER@HOST")
        draft.path((*path, "file"))


_CHECKS: tuple[Callable[[Draft], None], ...] = (
    _clouds,
    _cluster,
    _names,
    _words,
    _offer_names,
    _duplicates,
    _pool_clouds,
    _node_names,
    _page_proxy,
    _paths,
    _choices,
    _notify,
    _replace_reasons,
    _other_clusters,
)
