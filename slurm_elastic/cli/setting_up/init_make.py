"""``slurm-elastic init --make`` and ``--unmake``: the resources that a site lacks in a cloud."""

from __future__ import annotations

import argparse
import socket
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from slurm_elastic.base.errors import ConfigError, ProviderError
from slurm_elastic.base.hostlist import expand
from slurm_elastic.base.pages import page
from slurm_elastic.cli.operate.console import say
from slurm_elastic.cli.streams import visible
from slurm_elastic.config import Config, configfile
from slurm_elastic.config.cloud_kinds import table
from slurm_elastic.config.clouds import CloudSettings
from slurm_elastic.config.site_place import (
    CIDR,
    ResourceGroup,
    SitePlace,
    chosen_parts,
    place_of,
    require_network,
    require_reachable,
    require_unused,
)
from slurm_elastic.machine.hub.ports import slurmctld_ports, srun_ports
from slurm_elastic.model.site_maker import CREDENTIAL, CredentialMaker, SiteMaker
from slurm_elastic.model.site_resources import Properties
from slurm_elastic.providers import catalogues
from slurm_elastic.setup.making import apply, credential_file, login_key
from slurm_elastic.setup.making.plan import CHANGING, Step, Verb, plan_make, plan_unmake
from slurm_elastic.watch.doctor import outdated
from slurm_elastic.watch.doctor.environment import of_the_units

_VERB_ORDER = (Verb.REFUSE, Verb.CREATE, Verb.REMOVE, Verb.LEAVE, Verb.KEEP)
KEY_PAIR = "key-pair"
_MAX_WIDTH = 60
"""Of the second column of a plan."""
_NETWORKS = ("vpc", "network")
"""The keys of the resources that have addresses of their own."""
_DONE = {Verb.CREATE: "created", Verb.REMOVE: "removed"}


class ResourceRow(Struct, frozen=True, kw_only=True):
    """A resource that would be created, with the fields of ``SiteResource``."""

    key: str
    kind: str
    name: str
    purpose: str
    part_of: str
    properties: Properties


class MakeDocument(Struct, frozen=True, kw_only=True):
    """The answer of ``--json``. ``resources``: each after those to which it refers."""

    cluster: str
    uuid: str
    cloud: str
    provider: str
    resources: tuple[ResourceRow, ...]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of these two actions to the parser of ``init``."""
    group = parser.add_argument_group(
        "what a site lacks in a cloud (aws, openstack)",
        "These need a configuration with the cloud, and rights that the services do not have: "
        "'iam render KIND --for make' prints them. They show a plan and ask before they begin.",
    )
    what = group.add_mutually_exclusive_group()
    what.add_argument(
        "--make", action="store_true",
        help="create what the configuration does not name: network, security group, key pair, "
        "launch template and role (EC2), application credential (OpenStack); and write the names "
        "into it",
    )  # fmt: skip
    what.add_argument(
        "--unmake",
        action="store_true",
        help="remove exactly what --make created, unless machines use it or it was changed",
    )
    group.add_argument(
        "--without",
        action="append",
        default=[],
        choices=list(ResourceGroup),
        metavar="PART",
        help="do not make this part, or do not remove it, and repeat for more: "
        f"{', '.join(ResourceGroup)}",
    )
    group.add_argument(
        "--cidr", default=CIDR, metavar="NET", help="addresses of a new network (%(default)s)"
    )
    group.add_argument(
        "--external-network",
        default="",
        metavar="NAME",
        help="OpenStack's network to the outside, if there are several",
    )
    group.add_argument("--dry-run", action="store_true", help="show the plan and change nothing")
    group.add_argument(
        "--json",
        action="store_true",
        help="with --make --dry-run: print what would be created as one JSON document, for "
        f"Terraform or another tool of yours ({page('terraform')})",
    )


def is_meant(args: argparse.Namespace) -> bool:
    """Whether one of these options is given."""
    return bool(args.make or args.unmake)


def run(args: argparse.Namespace) -> int:
    """Carry out the option. Exit 2 if the cloud refuses a step."""
    path = Path(args.output or args.config)
    if not path.exists():
        raise ConfigError(f"{path} is not there: run `slurm-elastic init` first")
    loaded = configfile.load(path)
    config = _with_uuid(loaded)
    cloud = _chosen(config, args.cloud)
    require_network(args.cidr)
    if args.json:
        _require_json_possible(args, path, loaded)
    action = _unmake if args.unmake else _make
    try:
        with of_the_units():  # credentials may be named only in the units' environment
            if cloud.catalogued and not args.unmake:
                config = _with_types(config, path, cloud)
                cloud = config.cloud(cloud.name)
            return action(args, path, config, cloud, _place(args, path, config, cloud))
    except ProviderError as error:
        print(visible(f"{cloud.name}: {error.refusal}; nothing is changed"), file=sys.stderr)
        return 2


def _place(args: argparse.Namespace, path: Path, config: Config, cloud: CloudSettings) -> SitePlace:
    addresses = _any_address if args.unmake else _addresses
    place = replace(
        place_of(
            config, cloud, expand, addresses,
            slurmctld_ports(config.slurm.conf), srun_ports(config.slurm.conf),
        ),
        cidr=args.cidr,
        parts=chosen_parts(args.without), external_network=args.external_network,
        public_key=login_key.public_key(login_key.key_file(config, path)),
    )  # fmt: skip
    if not args.unmake:
        _require_head(config, cloud, place)
    return place


def _with_types(config: Config, path: Path, cloud: CloudSettings) -> Config:
    """The configuration with the cloud's types. Before slurm-elasticd has ever run no catalogue is
    kept, and a role without types could launch nothing.
    """
    now = time.time()
    # Not ``config``: without a catalogue its pools have lost their requirements of types.
    config = replace(configfile.read(path), cluster=config.cluster)
    read = catalogues.gathered(replace(config, clouds=(cloud,)), now)
    if isinstance(error := read[cloud.name], ProviderError):
        raise error
    return catalogues.completed_by(config, read, now)


def _with_uuid(config: Config) -> Config:
    """The configuration with the UUID that marks all resources, a new one if there is none yet."""
    if config.cluster.uuid is not None:
        return config
    return replace(config, cluster=replace(config.cluster, uuid=str(uuid.uuid4())))


def _keep_uuid(path: Path, config: Config) -> None:
    """Write the UUID of the plan as the first change, because a refused run must change nothing."""
    identity = config.cluster.uuid
    if configfile.read(path).cluster.uuid is None:
        configfile.ensure_uuid(path, identity)
    if configfile.read(path).cluster.uuid != identity:
        raise ConfigError(
            f"{path.parent / configfile.UUID_FILE}: another command has made it since the plan; "
            "run this command again; nothing is changed"
        )


def _chosen(config: Config, name: str | None) -> CloudSettings:
    usable = [c for c in config.clouds if table().kind(c.provider).maker is not None]
    # A name before a provider: `aws` may be the name of one of two clouds of provider aws.
    chosen = [c for c in usable if name in (None, c.name)]
    chosen = chosen or [c for c in usable if name == c.provider]
    if len(chosen) == 1:
        return chosen[0]
    names = ", ".join(c.name for c in usable) or "none: add a cloud of provider aws or openstack"
    wrong = f"--cloud: found {name!r}, expected one of" if name else "add --cloud with one of"
    raise ConfigError(f"{wrong}: {names}")


def _maker(cloud: CloudSettings, place: SitePlace) -> SiteMaker:
    open_maker = table().kind(cloud.provider).maker
    assert open_maker is not None  # noqa: S101 - ``_chosen`` has looked
    return open_maker(cloud, place)


def _require_head(config: Config, cloud: CloudSettings, place: SitePlace) -> None:
    """ConfigError if machines of the new security group could not reach the head."""
    is_reached = place.tunnel_port is not None or place.head_networks
    if ResourceGroup.SECURITY_GROUP not in place.parts:
        return
    if getattr(cloud, "security_groups", ()):
        return
    require_reachable(config, cloud, _addresses)
    if not is_reached:
        raise ConfigError(
            "join.head is not set: machines of the new security group would reach no head; set it, "
            "or add --without security-group"
        )


def _any_address(host: str) -> list[str]:
    """The addresses of a host; 0.0.0.0 for an unknown name, for which a removal makes no rule."""
    return _addresses(host) or ["0.0.0.0"]  # noqa: S104 - no server


def _addresses(host: str) -> list[str]:
    try:
        existing = socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return list(dict.fromkeys(str(entry[4][0]) for entry in existing))


def _make(
    args: argparse.Namespace, path: Path, config: Config, cloud: CloudSettings, place: SitePlace
) -> int:
    maker = _maker(cloud, place)
    existing = maker.find()
    needed = maker.needed(existing)
    steps = plan_make(needed, existing)
    if any(step.verb is Verb.CREATE and step.key in _NETWORKS for step in steps):
        require_unused(config, args.cidr)
    if args.json:
        _require_no_refusal(steps)
        print(msgspec.json.format(msgspec.json.encode(_document(config, cloud, steps))).decode())
        return 0
    _show(steps, cloud, f"--make for cloud {cloud.name}")
    _require_no_refusal(steps)
    files = _secret_files(config, path, cloud, place, maker, steps)
    for file, holds in files.values():
        print(f"create file {file}: {holds}, mode 0600")
    if args.dry_run:
        print("dry run: nothing is changed")
        return 0
    if any(step.verb in CHANGING for step in steps):
        _confirm(args, "Do this?")
        _keep_uuid(path, config)
    if files:
        maker = _maker(cloud, _with_secrets(config, place, maker, files))
        steps = plan_make(maker.needed(existing), existing)
    attributes = apply.attributes_of(existing)
    if not _carried_out(maker, steps, attributes):
        return 2
    # Not all that exist: a person may have named other subnets since.
    ours = {r.key: attributes[r.key] for r in needed if r.key in attributes}
    _write_names(path, cloud, maker.settings_with(ours))
    print("next:")
    secret_file = credential_file.path_of(path, cloud.name)
    credential_lines = _use_of(secret_file, config.slurm.user, attributes)
    key_lines = _use_of_key(config, path, attributes)
    restart_lines = _restart(config, path)
    for line in (*credential_lines, *key_lines, *restart_lines, *maker.advice()):
        say(f"  {line}")
    return 0


def _require_json_possible(args: argparse.Namespace, path: Path, config: Config) -> None:
    """ConfigError if the document would have no meaning: it describes a plan, and has the UUID of
    the cluster in tags and rights.
    """
    if not (args.make and args.dry_run):
        raise ConfigError("--json needs --make --dry-run")
    if config.cluster.uuid is None:
        raise ConfigError(
            f"{path}: cluster.uuid is not set, so each document would name another cluster; set "
            f"it, such as `uuid: {uuid.uuid4()}`"
        )


def _document(config: Config, cloud: CloudSettings, steps: Sequence[Step]) -> MakeDocument:
    return MakeDocument(
        cluster=config.cluster.name,
        uuid=config.cluster.uuid or "",
        cloud=cloud.name,
        provider=cloud.provider,
        resources=tuple(
            ResourceRow(
                key=step.needed.key,
                kind=step.needed.kind,
                name=step.needed.name,
                purpose=step.needed.purpose,
                part_of=step.needed.part_of,
                properties=step.needed.properties,
            )
            for step in steps
            if step.verb is Verb.CREATE and step.needed is not None
        ),
    )


def _restart(config: Config, path: Path) -> Iterator[str]:
    """The command that lets running services read the changed file."""
    for finding in outdated.examine(config, path):
        yield f"{finding.advice}    # running services have not read the change"


_SecretFiles = Mapping[str, tuple[Path, str]]
"""By the key of the resource whose secret it keeps: a new file, and what it holds."""


def _secret_files(
    config: Config, path: Path, cloud: CloudSettings, place: SitePlace, maker: SiteMaker,
    steps: Sequence[Step],
) -> _SecretFiles:  # fmt: skip
    files: dict[str, tuple[Path, str]] = {}
    if not place.public_key and _creates(steps, KEY_PAIR):
        files[KEY_PAIR] = login_key.key_file(config, path), "the private key"
    if isinstance(maker, CredentialMaker) and _creates(steps, CREDENTIAL):
        file = credential_file.path_of(path, cloud.name)
        files[CREDENTIAL] = file, "the application credential's secret"
    return files


def _with_secrets(
    config: Config, place: SitePlace, maker: SiteMaker, files: _SecretFiles
) -> SitePlace:
    """Create the secrets' files before the resources, as a cloud's answer may be lost. Return the
    place with the secrets.
    """
    user = config.slurm.user
    if KEY_PAIR in files:
        place = replace(place, public_key=login_key.create_key(files[KEY_PAIR][0], user))
    if CREDENTIAL in files and isinstance(maker, CredentialMaker):
        secret = credential_file.create(files[CREDENTIAL][0], maker.credential_file, user)
        place = replace(place, secret=secret)
    return place


def _creates(steps: Sequence[Step], key: str) -> bool:
    return any(step.verb is Verb.CREATE and step.key == key for step in steps)


def _use_of(file: Path, user: str, attributes: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """Yield the step that makes the services use the new credentials; nothing if there are none."""
    if CREDENTIAL not in attributes:
        return
    if credential_file.secret_of(file):
        yield (
            f"clouds_file: {file}    # in slurm-elastic.yaml: {user} logs in with it; name your "
            "present file again for --make and --unmake"
        )
    else:
        yield f"--unmake, then --make: {file} is gone, and nothing else knows the secret"


def _use_of_key(
    config: Config, path: Path, attributes: Mapping[str, Mapping[str, str]]
) -> Iterator[str]:
    """Yield the step that makes the head log in by the new key, which only ``join.ssh`` does."""
    if KEY_PAIR not in attributes or config.join.ssh is not None:
        return
    file = login_key.key_file(config, path)
    yield (
        f"join: {{ssh: {{key: {file}, munge_key: FILE}}}}    # in slurm-elastic.yaml, then this "
        "command again for SSH's port: the head brings the munge key. Without join.ssh the image "
        f"must have it ({page('joining')})"
    )


def _unmake(
    args: argparse.Namespace, path: Path, config: Config, cloud: CloudSettings, place: SitePlace
) -> int:
    maker = _maker(cloud, place)
    existing = maker.find()
    steps = plan_unmake(existing, frozenset(ResourceGroup) - place.parts)
    _show(steps, cloud, f"--unmake for cloud {cloud.name}")
    if args.dry_run:
        print("dry run: nothing is changed")
        return 0
    removes_key = any(step.verb is Verb.REMOVE and step.key == KEY_PAIR for step in steps)
    if any(step.verb in CHANGING for step in steps):
        _confirm(args, "Remove these?")
    attributes = apply.attributes_of(existing)
    removed = {step.key: attributes[step.key] for step in steps if step.verb is Verb.REMOVE}
    text = configfile.text(path)
    gone = maker.settings_with(removed)
    # Before the removal: after a broken run nothing would know which names are wrong.
    _write_names(path, cloud, apply.without_removed(text, str(path), cloud.name, gone))
    if not _carried_out(maker, steps, attributes):
        return 2
    stays = any(step.key == CREDENTIAL and step.verb is not Verb.REMOVE for step in steps)
    if ResourceGroup.CREDENTIAL in place.parts and not stays:
        _remove_secret(credential_file.path_of(path, cloud.name), maker)
    file = login_key.key_file(config, path)
    if removes_key and config.join.ssh is None and login_key.remove_key(file):
        print(f"removed {file}")
    for line in _restart(config, path):
        say(f"next: {line}")
    return 0


def _remove_secret(file: Path, maker: SiteMaker) -> None:
    """Remove the file with the secret of the services' credential, if that credential is gone.

    The file is the only place of the secret. Another administrator's list lacks a credential with
    which the services still end their machines.
    """
    if not isinstance(maker, CredentialMaker) or not credential_file.secret_of(file):
        return
    if not maker.proves_gone(file.read_text(encoding="utf-8")):
        say(
            f"{file} stays, because its application credential may still exist: run --unmake as"
            " the user who made it"
        )
    elif credential_file.remove(file):
        print(f"removed {file}")


def _carried_out(
    maker: SiteMaker, steps: Sequence[Step], attributes: dict[str, Mapping[str, str]]
) -> bool:
    """Carry out the steps. If the cloud refuses a step, print the reason and the steps that were
    done before it, and return False.
    """
    done: list[str] = []
    doing = [step for step in steps if step.verb in CHANGING]
    try:
        for step, id_ in apply.carry_out(maker, doing, attributes):
            what = step.needed.kind if step.needed is not None else step.shown
            shown = f"{what} {id_}" if step.needed is not None and id_ else step.shown
            done.append(f"{_DONE[step.verb]} {shown}")
            print(visible(done[-1]))
    except (ProviderError, KeyboardInterrupt) as error:
        failed = doing[len(done)]
        reason = error.refusal if isinstance(error, ProviderError) else "stopped"
        print(
            visible(f"{failed.verb} {failed.shown}: {reason}\n"
                    f"done before: {', '.join(done) or 'nothing'}\n"
                    "Run the same command again to complete it, or init --unmake to remove it."),
            file=sys.stderr,
        )  # fmt: skip
        if isinstance(error, KeyboardInterrupt):
            raise
        return False
    return True


def _show(steps: Sequence[Step], cloud: CloudSettings, title: str) -> None:
    print(f"{title} ({cloud.provider}):")
    width = min(max((len(step.shown) for step in steps), default=0), _MAX_WIDTH)
    for verb in _VERB_ORDER:
        for step in steps:
            if step.verb is verb:
                print(visible(f"  {verb:<6}  {step.shown:<{width}}  {step.reason}"))
    if not any(step.verb in CHANGING for step in steps):
        print("nothing is to be done")


def _require_no_refusal(steps: Sequence[Step]) -> None:
    refused = [f"{step.shown}: {step.reason}" for step in steps if step.verb is Verb.REFUSE]
    if refused:
        raise ConfigError(*refused, "nothing is made")


def _confirm(args: argparse.Namespace, question: str) -> None:
    if args.yes:
        return
    if not sys.stdin.isatty():
        raise ConfigError("this is no terminal: add --yes or --dry-run; nothing is changed")
    try:
        answer = input(f"{question} [y/N] ")
    except EOFError:
        answer = ""
    if answer.strip().lower() not in ("y", "yes"):
        raise ConfigError("stopped; nothing is changed")


def _write_names(path: Path, cloud: CloudSettings, keys: Mapping[str, object]) -> None:
    before = configfile.text(path)
    text = apply.with_names(before, str(path), cloud.name, keys)
    if text != before:
        configfile.rewrite(path, text)
        print(f"changed {path}: {', '.join(keys)} of cloud {cloud.name}")
