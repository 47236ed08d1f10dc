"""Whether a URL of the configuration can be read at all."""

from __future__ import annotations

from urllib.parse import urlsplit


def is_readable_url(text: str) -> bool:
    """Whether ``urlsplit`` finds host and port. It raises ValueError for some texts, such as an
    IPv6 address without its closing bracket, and the libraries that use it raise that, too.
    """
    try:
        parts = urlsplit(text)
        _ = parts.hostname, parts.port
    except ValueError:
        return False
    return True
