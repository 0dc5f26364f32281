"""What every answer says to a browser, so that it is careful."""

from typing import Final

HEADERS: Final = {
    # No script at all, and no style but our own files: text from people can do nothing here.
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
