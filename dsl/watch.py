"""A small local page that follows a training: the report's page, with its JSON fetched anew.

It serves two fixed routes about one run folder and nothing else: no path of a request ever becomes
a path on disk. It answers GET alone, and only to its own page: a foreign site that points its name
at this address (DNS rebinding) fails at the Host and Origin checks. No torch.
"""

import ipaddress
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock

from rich.console import Console

from dsl.errors import UserError
from dsl.report.html import render, safe_json, security_policy
from dsl.report.page_content import Content, content_of
from dsl.report.run_folder import read_run

TIMEOUT = 20.0  # seconds that a silent connection may stay open


class Follower:
    """The content of the run's page; read again only when the folder has changed."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._lock = folder, Lock()
        self._seen: tuple[object, ...] | None = None
        self._content: Content = {}

    def content(self) -> Content:
        """As of now. One reader at a time: several open pages cost no more than one."""
        with self._lock:
            seen = self._state()
            if seen != self._seen:
                self._content = content_of([read_run(self._folder)])
                self._seen = seen
            return self._content

    def _state(self) -> tuple[object, ...]:
        names = ("log.jsonl", "results.json", "pseudo_labels", "views", "config.json")
        return tuple(_stamp(self._folder / name) for name in names)


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


class WatchServer(ThreadingHTTPServer):
    """`port` 0 takes a free one; `server_port` tells which."""

    daemon_threads = True

    def __init__(self, folder: Path, *, host: str, port: int) -> None:
        self.follower = Follower(folder)
        self.follower.content()  # a folder that is no run is refused before anything listens
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            raise UserError(
                f"--host {host} --port {port}: cannot listen there ({error.strerror}); "
                "try another --port"
            ) from error
        own = {host, "localhost", "127.0.0.1"} if _is_loopback(host) else {host}
        self.names = None if host in ("0.0.0.0", "") else own

    def trusts(self, authority: str) -> bool:
        """`authority` is name:port as a browser states it. Where the server listens on every
        address, any numeric one is right: a rebound name is never numeric."""
        name, _, port = authority.rpartition(":")
        if port != str(self.server_port):
            return False
        return name in self.names if self.names is not None else _is_address(name)


class _Handler(BaseHTTPRequestHandler):
    server: WatchServer
    timeout = TIMEOUT
    server_version, sys_version = "dsl", ""

    def do_GET(self) -> None:
        if not self._trusted():
            self.send_error(HTTPStatus.FORBIDDEN, "Host or Origin is not this server")
        elif self.path not in ("/", "/data.json"):
            self.send_error(HTTPStatus.NOT_FOUND)
        else:
            self._show(page=self.path == "/")

    def _show(self, *, page: bool) -> None:
        try:
            content = self.server.follower.content()
        except UserError as error:  # the folder was moved or damaged meanwhile
            self.send_error(HTTPStatus.SERVICE_UNAVAILABLE, explain=str(error))
            return
        with suppress(ConnectionError):  # the page was closed while it was answered
            if page:
                self._answer(render(content, live=True), "text/html")
            else:
                self._answer(safe_json(content), "application/json")

    def _trusted(self) -> bool:
        hosts, origin = self.headers.get_all("Host") or [], self.headers.get("Origin")
        if len(hosts) != 1 or not self.server.trusts(hosts[0]):
            return False
        return origin is None or origin == f"http://{hosts[0]}"

    def _answer(self, text: str, kind: str) -> None:
        body = text.encode()
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def end_headers(self) -> None:
        """On every answer, errors too."""
        policy = security_policy(live=True) + "; frame-ancestors 'none'"
        self.send_header("Content-Security-Policy", policy)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("Cache-Control", "no-store")
        super().end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing: a page that asks every few seconds would fill the terminal."""


def serve(folder: Path, *, host: str, port: int, console: Console) -> None:
    """Until Ctrl-C."""
    with WatchServer(folder, host=host, port=port) as server:
        if not _is_loopback(host):
            console.print(
                f"warning: listening on {host}: anyone who reaches this machine can see the run"
            )
        shown = "127.0.0.1" if host == "0.0.0.0" else host
        console.print(f"watching {folder}: http://{shown}:{server.server_port}/ (Ctrl-C ends it)")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            console.print("stopped watching; the training is not touched")


def _is_loopback(host: str) -> bool:
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
