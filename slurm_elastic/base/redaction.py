"""Takes secrets out of text that is to leave the site. Pure.

It goes by where secrets stand (after a key, an option, a header or a user that says so), by what
they look like, and by those that the caller knows, so it may take out more than it has to. It
cannot know a secret that looks like any other word: who sends a bundle looks through it.

A log may have words without end: no part of a text is gone through again for each place in it, so
runs are possessive and begin where nothing of theirs is before them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator

GONE = "(taken out)"
_WORDS = (
    r"pass(?:word|wd|phrase)?|storagepass|secret|token|api[_-]?key|access[_-]?key(?:[_-]id)?"
    r"|private[_-]?key"
    r"|authorization|cookie|webhook|sas|signature|accountingstoragepass|jwt_key|psk|x-(?:\w{1,32}-){0,3}key"
    r"|pre-?shared-?key"
)
_WORD = re.compile(_WORDS, re.IGNORECASE)
_QUOTED = r"\"[^\"\\\n]*+(?:\\.[^\"\\\n]*+)*\"|'[^'\n]*+'"
_NAMED = (
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
"""Names with all up to their values, and the values: secrets where the name says so."""
_NAME_END = 128
_BLOCK = re.compile(r"-----BEGIN [^-]++-----.*?(?:-----END [^-]++-----|\Z)", re.DOTALL)
_LOOKS = (
    re.compile(r"(?i)(?P<kept>\b(?:bearer|basic|digest)\s++)[\w.~+/=-]{6,}+"),
    re.compile(
        r"(?P<kept>(?<=[a-z0-9+.-]://))[^\s/@:\"'<>]{0,256}+:"
        r"[^\s@\"'<>]{1,512}+(?:@[^\s@\"'<>]{0,512}+(?=@))*(?=@)"
    ),
    re.compile(r"\b(?:AKIA|ASIA|AGPA|AROA|AIDA)[A-Z0-9]{12,}+\b"),
    re.compile(r"(?<![\w-])(?=(?P<kept>[\w-]*?)\beyJ)(?P=kept)eyJ[\w-]++\.[\w-]++\.[\w-]*+"),
    re.compile(r"\b(?:gh[pousr]_|xox[abpr]-|glpat-|sk-)[\w-]{10,}+"),
    re.compile(r"\bgAAAAA[\w-]{20,}+={0,2}"),
    re.compile(r"(?<![\w/+])[A-Za-z0-9/+]{40}(?![\w/+=])"),
    re.compile(r"(?<![\w:])[0-9a-fA-F]{64,}+(?!\w)"),
)
"""HTTP's credentials; users in addresses; identifiers of AWS, tokens of JWT, of forges and of
OpenStack; AWS's secret keys, which are forty characters; 32 bytes or more in hex, but for digests
(``sha256:...``).
"""


def redacted(text: str, known: Collection[str] = ()) -> tuple[str, int]:
    """The text without the ``known`` secrets and what looks like one, and how many were taken
    out.
    """
    found = 0
    for secret in known:
        found += text.count(secret)
        text = text.replace(secret, GONE)

    def gone(secret: str) -> str:
        nonlocal found
        if secret in (GONE, "null", "~", "none", "no", "false", "true"):
            return secret
        found += 1
        return GONE

    def taken(match: re.Match[str]) -> str:
        kept = match.groupdict().get("kept") or ""
        return kept + gone(match[0][len(kept) :])

    text = _BLOCK.sub(taken, text)
    for name, value in _NAMED:
        text = "".join(_without_values(text, name, value, gone))
    for pattern in _LOOKS:
        text = pattern.sub(taken, text)
    return text, found


def _without_values(
    text: str, name: re.Pattern[str], value: re.Pattern[str], gone: Callable[[str], str]
) -> Iterator[str]:
    """The pieces of the text, with what ``gone`` makes of the values of secret names."""
    told = at = 0
    while named := name.search(text, at):
        at = named.end()
        if _is_secret(named["name"]) and (found := value.match(text, at)):
            yield text[told:at]
            yield gone(found[0])
            told = at = found.end()
    yield text[told:]


def _is_secret(name: str) -> bool:
    """Whether what is so called is one: ``auth.token`` is, ``token.file`` is not."""
    return _WORD.search(name.rpartition(".")[2][-_NAME_END:]) is not None
