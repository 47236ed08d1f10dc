"""Takes secrets out of text that leaves the site. Pure.

It finds secrets by their place (after a key, an option, a header or a user that names one), by
their form, and by a list of known secrets. So it may take out too much. It cannot recognise a
secret that looks like an ordinary word: the sender of a bundle must look through it.

A log may have endless words, so no pattern may scan a part of the text again for each place in it.
Therefore the runs are possessive, and begin only where the same run cannot have begun before.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator

GONE = "(taken out)"
_SENSITIVE_NAMES = (
    r"pass(?:word|wd|phrase)?|storagepass|secret|token|api[_-]?key|access[_-]?key(?:[_-]id)?"
    r"|private[_-]?key"
    r"|authorization|cookie|webhook|sas|signature|accountingstoragepass|jwt_key|psk|x-(?:\w{1,32}-){0,3}key"
    r"|pre-?shared-?key"
)
_SENSITIVE_NAME = re.compile(_SENSITIVE_NAMES, re.IGNORECASE)
_QUOTED = r"\"[^\"\\\n]*+(?:\\.[^\"\\\n]*+)*\"|'[^'\n]*+'"
_NAMED_VALUES = (
    # KEY: value, KEY=value, "KEY": "value"; to the end of the line, of the list or of the quotes.
    (
        re.compile(r"(?<![\w.-])(?P<name>[\w.-]++)[\"']?+\s*+[:=]\s*+"),
        re.compile(rf"{_QUOTED}|\[[^\]\n]*+\]?|[^\s,;&}}\n][^\n,;&}}]*+"),
    ),
    # --token VALUE, and the same as a list: [--token, VALUE], "--token","VALUE", a line for each.
    (
        re.compile(
            r"(?<![\w-])--?(?P<name>[\w-]++)[\"']?+"
            r"(?:\s{0,32}+,\s{0,32}+|[^\S\n]{0,32}+\n\s{0,32}+-\s{1,32}+|[^\S\n]{1,32}+)"
        ),
        re.compile(rf"(?![\"']?[-(])(?:{_QUOTED}|[\"']?[^\s\"',\]]++)"),
    ),
)
"""Pairs: a name with all characters up to its value, and the value. The name tells whether the
value is a secret.
"""
_MAX_NAME_LENGTH = 128
_BLOCK = re.compile(r"-----BEGIN [^-]++-----.*?(?:-----END [^-]++-----|\Z)", re.DOTALL)
_SECRET_FORMS = (
    re.compile(r"(?i)(?P<kept>\b(?:bearer|basic|digest)\s++)[\w.~+/=-]{6,}+"),
    re.compile(
        r"(?P<kept>(?<=[a-z0-9+.-]://))[^\s/@:\"'<>]{0,256}+:"
        r"[^\s@\"'<>]{1,512}+(?:@[^\s@\"'<>]{0,512}+(?=@))*(?=@)"
    ),
    re.compile(r"\b(?:AKIA|ASIA|AGPA|AROA|AIDA)[A-Z0-9]{12,}+\b"),
    re.compile(r"(?<![\w-])(?=(?P<kept>[\w-]*?)\beyJ)(?P=kept)eyJ[\w-]++\.[\w-]++\.[\w-]*+"),
    re.compile(r"\b(?:gh[pousr]_|xox[abpr]-|glpat-|sk-)[\w-]{10,}+"),
    re.compile(r"\bgAAAAA[\w-]{20,}+={0,2}"),
    re.compile(r"\b(?:ya29\.|GOCSPX-)[\w.-]{10,}+|\bAIza[\w-]{30,}+|(?<![\w/])1//[\w-]{20,}+"),
    re.compile(r"(?<![\w/+])[A-Za-z0-9/+]{40}(?![\w/+=])"),
    re.compile(r"(?<![\w:])[0-9a-fA-F]{64,}+(?!\w)"),
    re.compile(r"(?<![\w.~-])[\w.-]{3}\dQ~[\w.~-]{31,34}"),
    re.compile(r"(?<![\w/+])[A-Za-z0-9/+]{86}=="),
    re.compile(r"(?i)(?P<kept>[?&]sig=)[^\s&\"'<>]++"),
)
"""HTTP credentials; users in URLs; identifiers of AWS; tokens of JWT, of forges, of OpenStack and
of Google; AWS's secret keys, which have forty characters; 32 bytes or more in hex, except digests
(``sha256:...``); Azure's client secrets, keys of storage accounts, and signatures of links.
"""


def redacted(text: str, known_secrets: Collection[str] = ()) -> tuple[str, int]:
    """Return the text without ``known_secrets`` and without words that look like secrets, and how
    many were taken out.
    """
    count = 0
    for secret in known_secrets:
        count += text.count(secret)
        text = text.replace(secret, GONE)

    def replace_secret(secret: str) -> str:
        nonlocal count
        if secret in (GONE, "null", "~", "none", "no", "false", "true"):
            return secret
        count += 1
        return GONE

    def replace_match(match: re.Match[str]) -> str:
        kept = match.groupdict().get("kept") or ""
        return kept + replace_secret(match[0][len(kept) :])

    text = _BLOCK.sub(replace_match, text)
    for name, value in _NAMED_VALUES:
        text = "".join(_without_values(text, name, value, replace_secret))
    for pattern in _SECRET_FORMS:
        text = pattern.sub(replace_match, text)
    return text, count


def _without_values(
    text: str, name: re.Pattern[str], value: re.Pattern[str], replace_secret: Callable[[str], str]
) -> Iterator[str]:
    """The pieces of the text, with the values of secret names replaced by ``gone(value)``."""
    copied_to = position = 0
    while named := name.search(text, position):
        position = named.end()
        if _is_secret(named["name"]) and (secret := value.match(text, position)):
            yield text[copied_to:position]
            yield replace_secret(secret[0])
            copied_to = position = secret.end()
    yield text[copied_to:]


def _is_secret(name: str) -> bool:
    """Whether a value of that name is a secret: ``auth.token`` is, ``token.file`` is not."""
    return _SENSITIVE_NAME.search(name.rpartition(".")[2][-_MAX_NAME_LENGTH:]) is not None
