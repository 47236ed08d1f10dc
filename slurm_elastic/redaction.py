"""Takes secrets out of text that is to leave the site. Pure.

It goes by what secrets look like, in keys and in themselves, so it may take out more than it has
to. It cannot know a secret that looks like any other word: who sends a bundle looks through it.
"""

from __future__ import annotations

import re

GONE = "(taken out)"
_WORDS = (
    r"pass(?:word|wd|phrase)?|storagepass|secret|token|api_?key|access_?key(?:_id)?|private_?key"
    r"|authorization|cookie|webhook|sas|signature|accountingstoragepass|jwt_key"
)
_PATTERNS = (
    re.compile(r"-----BEGIN [^-]+-----.*?(?:-----END [^-]+-----|\Z)", re.DOTALL),
    # KEY: value, KEY=value, "KEY": "value"; to the end of the line, or of the quotes.
    re.compile(
        rf"(?im)(?P<kept>[\"']?\b[\w.-]*(?:{_WORDS})[\w-]*[\"']?\s*[:=]\s*)"
        r"(?:\"[^\"\n]*\"|'[^'\n]*'|\[[^\]\n]*\]|[^\s,;&}\n][^\n,;&}]*)"
    ),
    re.compile(r"(?i)(?P<kept>\b(?:bearer|basic|digest)\s+)[\w.~+/=-]{6,}"),
    re.compile(r"(?P<kept>[a-z][a-z0-9+.-]*://)[^\s/@:]+:[^\s/@]+(?=@)"),
    re.compile(r"\b(?:AKIA|ASIA|AGPA|AROA|AIDA)[A-Z0-9]{12,}\b"),
    re.compile(r"\beyJ[\w-]+\.[\w-]+\.[\w-]*"),
    re.compile(r"\b(?:gh[pousr]_|xox[abpr]-|glpat-|sk-)[\w-]{10,}"),
    re.compile(r"\bgAAAAA[\w-]{20,}={0,2}"),
    re.compile(r"(?<![\w/+])[A-Za-z0-9/+]{40}(?![\w/+=])"),
)
"""Blocks of PEM; values of keys that say so; HTTP's credentials; users in addresses; identifiers of
AWS, tokens of JWT, of forges and of OpenStack; AWS's secret keys, which are forty characters.
"""


def redacted(text: str) -> tuple[str, int]:
    """The text without what looks like a secret, and how many were taken out."""
    found = 0

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
