"""A stand-in for the notebook server that is ready in a moment (tests of many servers).

It answers as the hub expects of a single-user server and nothing more. Standard library only:
it runs in the notebook image, which knows nothing of the tests.
"""

import json
import os
import signal
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

HUB_VERSION = os.environ.get("STUB_HUB_VERSION", "6.1.1")
PREFIX = os.environ.get("JUPYTERHUB_SERVICE_PREFIX", "/")


class Handler(BaseHTTPRequestHandler):
    """Answer everything with 200; `<prefix>api` as a Jupyter server does."""

    protocol_version = "HTTP/1.1"

    def answer(self):
        length = int(self.headers.get("Content-Length") or 0)
        if length:
            self.rfile.read(length)
        if urlsplit(self.path).path.rstrip("/") == f"{PREFIX}api":
            kind, body = "application/json", json.dumps({"version": "2.0.0"}).encode()
        else:
            kind, body = "text/html", b"<!doctype html><title>stub</title><h1>stub notebook</h1>"
        self.send_response(200)
        self.send_header("X-JupyterHub-Version", HUB_VERSION)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = answer  # noqa: N815

    def log_message(self, format, *arguments):  # noqa: A002
        """Stay quiet."""


def main():
    """Serve where the hub said until told to end."""
    # The first process of a container ignores SIGTERM unless it handles it.
    deaf = os.environ.get("STUB_IGNORES_SIGTERM") == "1"
    signal.signal(signal.SIGTERM, signal.SIG_IGN if deaf else lambda *_: os._exit(0))
    port = urlsplit(os.environ.get("JUPYTERHUB_SERVICE_URL", "http://0.0.0.0:8888/")).port or 8888
    server = ThreadingHTTPServer(("0.0.0.0", port), Handler)
    print(f"stub notebook on port {port}", file=sys.stderr, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
