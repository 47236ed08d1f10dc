"""The keys of auth/slurm, as in ``slurm.jwks``: read, renewed, and split by cloud. Pure except
``read``.

Slurm's rules (authentication.html, src/plugins/auth/slurm/internal.c; seen with 24.11.5 and
26.05.5): a daemon signs with the default key of its file, even if that key has expired. It accepts
messages signed with any key of its file that has not expired. The keys are symmetric, so a machine
that must hear slurmctld needs the key that slurmctld signs with.

A key with an id ``slurm-elastic:CLOUD:NUMBER-DIGEST`` belongs to that cloud. Its machines sign with
it, and no other cloud's machines get it. Every machine gets all other keys.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from slurm_elastic.base.errors import ConfigError

DEFAULT = "default"
SIZE = 64  # bytes of a new key
_OURS = "slurm-elastic"
_MIN_KEY_BYTES = 16  # Slurm accepts no shorter key
_MAX_FILE_BYTES = 1 << 20


class AuthKey(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One key. ``exp``: the Unix time after which no daemon accepts a message signed with it."""

    alg: str
    kty: str
    kid: str
    k: str
    use: str | UnsetType = UNSET
    exp: int | float | UnsetType = UNSET

    @property
    def cloud(self) -> str:
        """The cloud whose machines alone sign with it. Empty if all machines have it."""
        owner, _, cloud_and_number = self.kid.partition(":")
        return cloud_and_number.partition(":")[0] if owner == _OURS else ""

    @property
    def ours(self) -> bool:
        """Whether ``key rotate`` has made it."""
        return self.kid.startswith(f"{_OURS}:")

    def is_valid(self, now: float) -> bool:
        """Whether daemons accept it at ``now`` (Unix time)."""
        return self.exp is UNSET or self.exp > now


class KeySet(Struct, frozen=True):
    """A file's keys, in order."""

    keys: tuple[AuthKey, ...]

    @property
    def default(self) -> AuthKey:
        """The key that its daemon signs with: the one marked as default, otherwise the first."""
        return next((key for key in self.keys if key.use == DEFAULT), self.keys[0])

    def encoded(self) -> bytes:
        """The content of the file."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n"

    def signing(self, kid: str) -> KeySet:
        """The same keys, with the key of this id as default."""
        return KeySet(
            tuple(replace(key, use=DEFAULT if key.kid == kid else UNSET) for key in self.keys)
        )

    def for_cloud(self, cloud: str, now: float) -> KeySet:
        """The file for that cloud's machines: all common keys, so that they hear slurmctld, and the
        cloud's own keys. They sign with the last of these, or with slurmctld's if there is none.
        """
        served_keys = [key for key in self.keys if key.cloud in ("", cloud) and key.is_valid(now)]
        signing_keys = [key for key in served_keys if key.cloud] or [self.default]
        # Even an ended key is better than none: a daemon does not start with a file without keys.
        return KeySet(tuple(served_keys) or (self.default,)).signing(signing_keys[-1].kid)

    def joined(self, other: KeySet) -> KeySet:
        """These keys and their default, and the keys of ``other`` with other ids."""
        own_ids = {key.kid for key in self.keys}
        added_keys = tuple(replace(k, use=UNSET) for k in other.keys if k.kid not in own_ids)
        return KeySet((*self.signing(self.default.kid).keys, *added_keys))

    def renewed(
        self, clouds: Iterable[str], now: float, *, ends: float, overlap: float,
        random: Callable[[int], bytes] = os.urandom,
    ) -> KeySet:  # fmt: skip
        """The keys with a new default and a new key for each cloud, which end at ``ends`` (Unix
        time). The earlier keys end in ``overlap`` seconds at the latest. With 0 they are left out,
        as are ended keys.
        """
        end = int(now + overlap)
        earlier_keys = [
            replace(key, use=UNSET, exp=end if key.exp is UNSET else min(key.exp, end))
            for key in self.keys
            if overlap and key.is_valid(now)
        ]
        # Above all earlier numbers, also after the clock was set back: people see the order.
        number = max([int(now), *(_number(key) + 1 for key in self.keys)])
        fresh = [_fresh(cloud, number, random(SIZE), int(ends)) for cloud in ("", *clouds)]
        return KeySet((*earlier_keys, *fresh)).signing(fresh[0].kid)


def _fresh(cloud: str, number: int, key: bytes, ends: int) -> AuthKey:
    """A new key of the cloud, which ends at ``ends`` (Unix time).

    Its id has a part of the key's digest, because one kid must never mean two keys: a rotation that
    was taken back leaves no number in the file, and the next one may come in the same second.
    """
    digest = hashlib.sha256(key).hexdigest()[:8]
    kid = f"{_OURS}:{cloud}:{number}-{digest}"
    return AuthKey(alg="HS256", kty="oct", kid=kid, k=_text(key), exp=ends)


class _File(Struct):
    keys: list[AuthKey]


def parse(text: bytes) -> KeySet:
    """The keys of a file. ValueError, which names the fault, if Slurm's daemons would stop."""
    keys = msgspec.json.decode(text, type=_File).keys
    if not keys:
        raise ValueError("it has no key")
    for key in keys:
        if key.alg.upper() != "HS256" or key.kty.lower() != "oct":
            raise ValueError(f"key {key.kid}: alg {key.alg}, kty {key.kty}; Slurm takes HS256, oct")
        if len(_bytes(key)) < _MIN_KEY_BYTES:
            raise ValueError(f"key {key.kid} has fewer than {_MIN_KEY_BYTES} bytes")
    ids = [key.kid for key in keys]
    if repeated_ids := sorted({kid for kid in ids if ids.count(kid) > 1}):
        raise ValueError(f"two keys have the kid {repeated_ids[0]}")
    if sum(key.use == DEFAULT for key in keys) > 1:
        raise ValueError('more than one key has "use": "default"')
    return KeySet(tuple(keys))


def read(path: str | Path) -> KeySet:
    """The keys of a file. OSError if unreadable, ConfigError if Slurm could not use it."""
    with Path(path).open("rb") as file:
        text = file.read(_MAX_FILE_BYTES)
    try:
        return parse(text)
    except (ValueError, msgspec.MsgspecError) as error:
        raise ConfigError(
            f'{path}: {error}; expected {{"keys": [{{"alg": "HS256", "kty": "oct", "kid": ..., '
            f'"k": ...}}]}}'
        ) from None


def of_slurm_key(text: bytes) -> KeySet:
    """A file for daemons that have this ``slurm.key``, with the same key as default."""
    return KeySet((AuthKey(alg="HS256", kty="oct", kid="slurm.key", k=_text(text), use=DEFAULT),))


def _text(key: bytes) -> str:
    return base64.urlsafe_b64encode(key).decode().rstrip("=")


def _bytes(key: AuthKey) -> bytes:
    # The key is base64url without padding (RFC 7515), which b64decode does not take.
    plain = key.k.translate(str.maketrans("-_", "+/")).rstrip("=")
    try:
        return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except binascii.Error:
        raise ValueError(f"key {key.kid}: k is no base64") from None


def _number(key: AuthKey) -> int:
    number = key.kid.rpartition(":")[2].partition("-")[0]
    return int(number) if key.ours and number.isdecimal() else 0
