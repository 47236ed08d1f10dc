"""Headers that make a browser run and load only the page's own files (CSP 3, Trusted Types)."""

from __future__ import annotations

from pathlib import Path

STATIC = Path(__file__).parent / "static"
JSON = "application/json; charset=utf-8"
HTML = "text/html; charset=utf-8"
_POLICY = "; ".join((
    "default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self'",
    "connect-src 'self'", "base-uri 'none'", "form-action {forms}", "frame-ancestors 'none'",
    "require-trusted-types-for 'script'",
))  # fmt: skip
POLICY = _POLICY.format(forms="'none'")
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
ACT_HEADERS = {
    "Content-Security-Policy": _POLICY.format(forms="'self'"),
    # With no-referrer a browser sends "Origin: null" with a form (Fetch, 3.2).
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Pages with forms have these headers in place of the same ones in HEADERS."""
SESSION_COOKIE = "slurm-elastic-act"
