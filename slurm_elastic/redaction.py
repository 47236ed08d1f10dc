"""Takes secrets out of text that is to leave the site. Pure.

It goes by where secrets stand (after a key, an option, a header or a user that says so), by what
they look like, and by those that the caller knows, so it may take out more than it has to. It
cannot know a secret that looks like any other word: who sends a bundle looks through it.
"""

from __future__ import annotations

import re
from collections.abc import Collection

GONE = "(taken out)"
_WORDS = (
    r"pass(?:word|wd|phrase)?|storagepass|secret|token|api[_-]?key|access[_-]?key(?:[_-]id)?"
    r"|private[_-]?key"
    r"|authorization|cookie|webhook|sas|signature|accountingstoragepass|jwt_key|psk|x-(?:\w{1,32}-){0,3}key"
    r"|pre-?shared-?key"
)
_QUOTED = r"\"(?:[^\"\\\n]|\\.)*\"|'[^'\n]*'"
_PATTERNS = (  # all bounded: a log may have words without end
    re.compile(r"-----BEGIN [^-]+-----.*?(?:-----END [^-]+-----|\Z)", re.DOTALL),
    # KEY: value, KEY=value, "KEY": "value"; to the end of the line, or of the quotes.
    re.compile(
        rf"(?im)(?P<kept>[\"']?\b[\w.-]{{0,64}}(?:{_WORDS})[\w-]{{0,64}}[\"']?\s*[:=]\s*)"
        rf"(?:{_QUOTED}|\[[^\]\n]*\]|[^\s,;&}}\n][^\n,;&}}]*)"
    ),
    # --token VALUE, and the same as a list: [--token, VALUE], "--token","VALUE", a line for each.
    re.compile(
        rf"(?i)(?P<kept>(?<![\w-])--?[\w-]{{0,64}}(?:{_WORDS})[\w-]{{0,64}}[\"']?"
        rf"(?:\s{{0,32}},\s{{0,32}}|\s{{0,32}}\n\s{{0,32}}-\s{{1,32}}|[^\S\n]{{1,32}}))"
        rf"(?![\"']?[-(])(?:{_QUOTED}|[\"']?[^\s\"',\]]+)"
    ),
    re.compile(r"(?i)(?P<kept>\b(?:bearer|basic|digest)\s+)[\w.~+/=-]{6,}"),
    re.compile(r"(?P<kept>[a-z][a-z0-9+.-]{0,20}://)[^\s/@:\"'<>]{0,256}:[^\s\"'<>]{1,512}(?=@)"),
    re.compile(r"\b(?:AKIA|ASIA|AGPA|AROA|AIDA)[A-Z0-9]{12,}\b"),
    re.compile(r"\beyJ[\w-]+\.[\w-]+\.[\w-]*"),
    re.compile(r"\b(?:gh[pousr]_|xox[abpr]-|glpat-|sk-)[\w-]{10,}"),
    re.compile(r"\bgAAAAA[\w-]{20,}={0,2}"),
    re.compile(r"(?<![\w/+])[A-Za-z0-9/+]{40}(?![\w/+=])"),
    re.compile(r"(?<![\w:])[0-9a-fA-F]{64,}(?!\w)"),
)
"""Blocks of PEM; values of keys and of options that say so; HTTP's credentials; users in addresses;
identifiers of AWS, tokens of JWT, of forges and of OpenStack; AWS's secret keys, which are forty
characters; 32 bytes or more in hex, but for digests (``sha256:...``).
"""


def redacted(text: str, known: Collection[str] = ()) -> tuple[str, int]:
    """The text without the ``known`` secrets and what looks like one, and how many were taken
    out.
    """
    found = 0
    for secret in known:
        found += text.count(secret)
        text = text.replace(secret, GONE)

    def take(match: re.Match[str]) -> str:
        nonlocal found
        kept = match.groupdict().get("kept") or ""
        if match[0][len(kept) :] in (GONE, "null", "~", "none", "no", "false", "true"):
            return match[0]
        found += 1
        return f"{kept}{GONE}"

    for pattern in _PATTERNS:
        text = pattern.sub(take, text)
    return text, found
