"""Stands in for `edgeagent serve` as a child process.

It publishes itself, answers /edgeagent/status, and ends when its stdin closes.

Arguments: the state folder, then one state for each status request (the last one repeats): `starting`, `ready` or
`failed`; or only `exit`, to end at once with a message on stderr.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import psutil

from edgeagent.runtime_file import Runtime, write_runtime


def main(state_dir: Path, states: list[str]) -> None:
    if states == ["exit"]:
        sys.exit("out of luck")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state = states.pop(0) if len(states) > 1 else states[0]
            model = {"name": "m", "state": state, "progress": 0.4, "cause": "bad file" if state == "failed" else None}
            body = json.dumps({"models": [model]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    state_dir.mkdir(mode=0o700, exist_ok=True)
    started_at_s = psutil.Process().create_time()
    port = server.server_address[1]
    write_runtime(state_dir, Runtime(os.getpid(), started_at_s, port, f"http://127.0.0.1:{port}", "0"))
    sys.stdin.buffer.read()
    state_dir.parent.parent.joinpath("ended").touch()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
