"""The live page: real requests to a real server, friendly and hostile."""

import http.client
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

sys.path.insert(0, str(Path(__file__).parent / "report"))  # what the tests of the report share

from browser import chromium
from made_run import make_run

from dsl.errors import UserError
from dsl.watch import WatchServer, serve


@pytest.fixture
def server(tmp_path: Path) -> Iterator[WatchServer]:
    folder = make_run(tmp_path / "run", finished=False)
    with WatchServer(folder, host="127.0.0.1", port=0) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield running
        running.shutdown()


def ask(
    server: WatchServer, path: str = "/", *, method: str = "GET", **headers: str
) -> tuple[http.client.HTTPResponse, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    connection.putrequest(method, path, skip_host=True)
    for name, value in {"Host": f"127.0.0.1:{server.server_port}", **headers}.items():
        if value:
            connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    return answer, answer.read().decode()


def test_the_page_and_its_data_are_served_with_safe_headers(server: WatchServer) -> None:
    for path, kind in (("/", "text/html"), ("/data.json", "application/json")):
        answer, text = ask(server, path)
        assert answer.status == 200
        assert answer.getheader("Content-Type") == f"{kind}; charset=utf-8"
        assert answer.getheader("X-Content-Type-Options") == "nosniff"
        policy = answer.getheader("Content-Security-Policy") or ""
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert "Python" not in (answer.getheader("Server") or "")
    assert json.loads(text)["runs"][0]["step"] == 60


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "evil.example:{port}", "", "[::1]"])
def test_other_hosts_are_refused(server: WatchServer, host: str) -> None:
    """DNS rebinding: the foreign page's own name stands in Host."""
    answer, text = ask(server, "/data.json", Host=host.format(port=server.server_port))
    assert answer.status == 403
    assert "runs" not in text


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://127.0.0.1:{port}"])
def test_other_origins_are_refused(server: WatchServer, origin: str) -> None:
    answer, _ = ask(server, "/data.json", Origin=origin.format(port=server.server_port))
    assert answer.status == 403


def test_its_own_origin_and_localhost_are_welcome(server: WatchServer) -> None:
    own = f"localhost:{server.server_port}"
    answer, _ = ask(server, "/data.json", Host=own, Origin=f"http://{own}")
    assert answer.status == 200


@pytest.mark.parametrize(
    "path",
    ["/../config.json", "/config.json", "/%2e%2e/%2e%2e/etc/passwd", "//etc/passwd", "/last.pt",
     "/data.json/", "/data.json?x=1", "/views/image_00.jpg"],
)  # fmt: skip
def test_nothing_but_the_two_routes_exists(server: WatchServer, path: str) -> None:
    answer, text = ask(server, path)
    assert answer.status == 404
    assert "recipe" not in text
    assert answer.getheader("X-Content-Type-Options") == "nosniff"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "HEAD"])
def test_only_get_is_answered(server: WatchServer, method: str) -> None:
    answer, _ = ask(server, method=method)
    assert answer.status == 501
    assert answer.getheader("Access-Control-Allow-Origin") is None


def test_new_lines_arrive_without_a_reload_of_anything(server: WatchServer, tmp_path: Path) -> None:
    with (tmp_path / "run" / "log.jsonl").open("a") as log:
        log.write(json.dumps({"kind": "train", "step": 75, "loss": 1.0, "seconds": 9}) + "\n")
    assert json.loads(ask(server, "/data.json")[1])["runs"][0]["step"] == 75


def test_a_folder_that_vanishes_is_said_and_survived(server: WatchServer, tmp_path: Path) -> None:
    (tmp_path / "run").rename(tmp_path / "moved")
    assert ask(server, "/data.json")[0].status == 503
    (tmp_path / "moved").rename(tmp_path / "run")
    assert ask(server, "/data.json")[0].status == 200


def test_on_all_addresses_a_rebound_name_is_still_refused(tmp_path: Path) -> None:
    with WatchServer(make_run(tmp_path / "run"), host="0.0.0.0", port=0) as server:
        assert server.trusts(f"192.0.2.7:{server.server_port}")
        assert not server.trusts(f"evil.example:{server.server_port}")


def test_no_run_and_a_taken_port_are_one_line(server: WatchServer, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such run folder"):
        WatchServer(tmp_path / "nowhere", host="127.0.0.1", port=0)
    with pytest.raises(UserError, match="--port"):
        WatchServer(tmp_path / "run", host="127.0.0.1", port=server.server_port)


@pytest.mark.parametrize(("host", "warned"), [("127.0.0.1", False), ("0.0.0.0", True)])
def test_a_public_address_is_warned_about(
    tmp_path: Path, host: str, warned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_: WatchServer) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(WatchServer, "serve_forever", interrupt)
    console = Console(record=True, width=200)
    serve(make_run(tmp_path / "run"), host=host, port=0, console=console)
    text = console.export_text()
    assert ("warning" in text) is warned
    assert "http://127.0.0.1:" in text


def test_the_page_follows_the_run_in_a_browser(server: WatchServer, tmp_path: Path) -> None:
    with chromium() as page:
        page.open(f"http://127.0.0.1:{server.server_port}/")
        page.wait("document.querySelector('#live').textContent === 'live'")
        page.do("window.stayed = true")
        with (tmp_path / "run" / "log.jsonl").open("a") as log:
            log.write(json.dumps({"kind": "train", "step": 75, "loss": 1.0, "seconds": 9}) + "\n")
        page.wait("document.querySelector('#bar').textContent.includes('step 75')")
        assert page.do("window.stayed") is True
        assert page.problems == []
