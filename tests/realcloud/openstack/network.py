"""As much of a network service as nova asks for when servers have none: all lists are empty.

``python network.py PORT``. Without it nova answers each look at a server with an error 500.
"""

import json
import re
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    """One request."""

    protocol_version = "HTTP/1.1"

    def answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = self.path.partition("?")[0].rstrip("/")
        kind = re.fullmatch(r"/v2\.0/([a-z-]+)", path)
        if kind:
            self.reply(200, {kind[1].replace("-", "_"): []})
        elif path in ("", "/v2.0"):
            link = [{"rel": "self", "href": f"http://{self.headers['Host']}/v2.0/"}]
            version = {"id": "v2.0", "status": "CURRENT", "links": link}
            self.reply(200, {"versions": [version], "resources": []})
        else:
            words = {"type": "NotFound", "message": "there is nothing here", "detail": ""}
            self.reply(404, {"NeutronError": words})

    do_GET = do_POST = do_PUT = do_DELETE = answer  # noqa: N815

    def reply(self, status: int, words: object) -> None:
        data = json.dumps(words).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
