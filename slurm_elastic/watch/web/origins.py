"""Whether a form comes from our own page. Another site's page could send it in a visitor's name.

Browsers say so themselves, and no page can change these headers (Fetch Metadata, RFC 6454).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

FORM = "application/x-www-form-urlencoded"
SAME = "same-origin"


def cross_site(headers: Mapping[str, str], names: Sequence[str]) -> str:
    """Why the form is refused; "" if our own page sent it. ``names``: host names of the page, which
    may begin with ``*.``; none: the web server in front has checked the host.
    """
    site, origin = headers.get("sec-fetch-site", ""), headers.get("origin", "")
    if site and site != SAME:
        return f"another page sent this form (Sec-Fetch-Site: {site[:20]})"
    if not site and not origin:
        return "this browser does not say which page sent the form: use a newer one"
    if origin and not _is_ours(origin, headers.get("host", ""), names):
        return f"another page sent this form (Origin: {origin[:60]})"
    return ""


def wrong_type(headers: Mapping[str, str]) -> str:
    """Why the body is refused if it is no form; "" if it is a form.

    A browser asks for our permission (CORS) before it sends any other type of body for another
    site's page. It sends a form without asking, so forms are the bodies whose origin ``cross_site``
    checks.
    """
    kind = headers.get("content-type", "")
    media_type, _, parameters = kind.partition(";")
    if media_type.strip().lower() == FORM and parameters.strip().lower() in ("", "charset=utf-8"):
        return ""
    return f"expected a form ({FORM}), not {kind[:60] or 'a body without a type'}"


def _is_ours(origin: str, host: str, names: Sequence[str]) -> bool:
    try:
        address = urlsplit(origin)
        name = address.hostname or ""
    except ValueError:
        return False
    if address.scheme not in ("http", "https") or not name:
        return False
    # A web server in front may send us another Host than the browser's.
    return address.netloc.lower() == host.lower() or any(_fits(name, pattern) for pattern in names)


def _fits(name: str, pattern: str) -> bool:
    if pattern.startswith("*."):
        return name.endswith(pattern[1:])
    return name == pattern
