"""The keys of auth/slurm, as ``slurm.jwks`` has them: read, given to clouds, replaced. Pure but for
``read``.

Slurm's rules (authentication.html, src/plugins/auth/slurm/internal.c; seen with 24.11.5 and
26.05.5): a daemon signs with its file's default key, whether that has expired or not, and takes
what is signed with any key of its file that has not. The keys are symmetric: who is to hear
slurmctld has to have the key that slurmctld signs with.

A key with an id ``slurm-elastic:CLOUD:NUMBER`` is that cloud's: its machines sign with it, and no
other cloud's machines get it. All other keys are everybody's.
"""

from __future__ import annotations

import base64
import binascii
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
_LEAST = 16  # bytes of a key that Slurm takes
_MOST = 1 << 20


class Key(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One key; ``exp`` is the Unix time after which nobody takes what is signed with it."""

    alg: str
    kty: str
    kid: str
    k: str
    use: str | UnsetType = UNSET
    exp: int | float | UnsetType = UNSET

    @property
    def cloud(self) -> str:
        """The cloud whose machines alone sign with it; empty for everybody's."""
        head, _, rest = self.kid.partition(":")
        return rest.partition(":")[0] if head == _OURS else ""

    @property
    def ours(self) -> bool:
        """Whether ``key rotate`` has made it."""
        return self.kid.startswith(f"{_OURS}:")

    def lives(self, now: float) -> bool:
        """Whether it is taken at ``now``."""
        return self.exp is UNSET or self.exp > now


class KeySet(Struct, frozen=True):
    """A file's keys, in order."""

    keys: tuple[Key, ...]

    @property
    def default(self) -> Key:
        """The key by which its daemon signs: the one that says so, else the first."""
        return next((key for key in self.keys if key.use == DEFAULT), self.keys[0])

    def encoded(self) -> bytes:
        """The file's text."""
        return msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n"

    def signing(self, kid: str) -> KeySet:
        """The same keys with that one as default."""
        return KeySet(
            tuple(replace(key, use=DEFAULT if key.kid == kid else UNSET) for key in self.keys)
        )

    def for_cloud(self, cloud: str, now: float) -> KeySet:
        """The file of that cloud's machines: everybody's keys, so that they hear slurmctld, and the
        cloud's, of which they sign with the last; where it has none, with slurmctld's.
        """
        kept = [key for key in self.keys if key.cloud in ("", cloud) and key.lives(now)]
        own = [key for key in kept if key.cloud] or [self.default]
        return KeySet(tuple(kept) or (self.default,)).signing(own[-1].kid)

    def joined(self, other: KeySet) -> KeySet:
        """These keys, with their default, and those of ``other`` that are not among them."""
        known = {key.kid for key in self.keys}
        more = tuple(replace(k, use=UNSET) for k in other.keys if k.kid not in known)
        return KeySet((*self.signing(self.default.kid).keys, *more))

    def renewed(
        self, clouds: Iterable[str], now: float, *, ends: float, overlap: float,
        random: Callable[[int], bytes] = os.urandom,
    ) -> KeySet:  # fmt: skip
        """With a new default and a new key for each cloud, which end at ``ends`` (Unix time). The
        ones of before end in ``overlap`` s at the latest; with 0 they are left out, as are those
        that have ended.
        """
        last = int(now + overlap)
        kept = [
            replace(key, use=UNSET, exp=last if key.exp is UNSET else min(key.exp, last))
            for key in self.keys
            if overlap and key.lives(now)
        ]
        number = max([int(now), *(_number(key) + 1 for key in self.keys)])
        fresh = [
            Key(alg="HS256", kty="oct", kid=kid, k=_text(random(SIZE)), exp=int(ends))
            for kid in (f"{_OURS}:{cloud}:{number}" for cloud in ("", *clouds))
        ]
        return KeySet((*kept, *fresh)).signing(fresh[0].kid)


class _File(Struct):
    keys: list[Key]


def parse(text: bytes) -> KeySet:
    """ValueError, saying what is wrong, for what would stop Slurm's daemons."""
    keys = msgspec.json.decode(text, type=_File).keys
    if not keys:
        raise ValueError("it has no key")
    for key in keys:
        if key.alg.upper() != "HS256" or key.kty.lower() != "oct":
            raise ValueError(f"key {key.kid}: alg {key.alg}, kty {key.kty}; Slurm takes HS256, oct")
        if len(_bytes(key)) < _LEAST:
            raise ValueError(f"key {key.kid} has fewer than {_LEAST} bytes")
    ids = [key.kid for key in keys]
    if twice := sorted({kid for kid in ids if ids.count(kid) > 1}):
        raise ValueError(f"two keys have the kid {twice[0]}")
    if sum(key.use == DEFAULT for key in keys) > 1:
        raise ValueError('more than one key has "use": "default"')
    return KeySet(tuple(keys))


def read(path: str | Path) -> KeySet:
    """The keys of a file; OSError if unreadable, ConfigError where Slurm could not use it."""
    with Path(path).open("rb") as file:
        text = file.read(_MOST)
    try:
        return parse(text)
    except (ValueError, msgspec.MsgspecError) as error:
        raise ConfigError(
            f'{path}: {error}; expected {{"keys": [{{"alg": "HS256", "kty": "oct", "kid": ..., '
            f'"k": ...}}]}}'
        ) from None


def of_slurm_key(text: bytes) -> KeySet:
    """A file that daemons with that ``slurm.key`` understand: theirs is the default key."""
    return KeySet((Key(alg="HS256", kty="oct", kid="slurm.key", k=_text(text), use=DEFAULT),))


def _text(key: bytes) -> str:
    return base64.urlsafe_b64encode(key).decode().rstrip("=")


def _bytes(key: Key) -> bytes:
    plain = key.k.translate(str.maketrans("-_", "+/")).rstrip("=")
    try:
        return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except binascii.Error:
        raise ValueError(f"key {key.kid}: k is no base64") from None


def _number(key: Key) -> int:
    last = key.kid.rpartition(":")[2]
    return int(last) if key.ours and last.isdecimal() else 0
