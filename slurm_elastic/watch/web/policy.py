"""Headers that make a browser run and load only the page's own files (CSP 3, Trusted Types)."""

from __future__ import annotations

from pathlib import Path

STATIC = Path(__file__).parent / "static"
JSON = "application/json; charset=utf-8"
POLICY = "; ".join((
    "default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self'",
    "connect-src 'self'", "base-uri 'none'", "form-action 'none'", "frame-ancestors 'self'",
    "require-trusted-types-for 'script'",
))  # fmt: skip
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
