"""Headless Chromium, spoken to by its DevTools protocol: open a page, run a line of script."""

import base64
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import websocket

PATIENCE = 120.0  # seconds: a busy machine is no failure
FLAGS = (
    "--headless=new", "--no-sandbox", "--remote-debugging-port=0", "--disable-gpu",
    "--disable-dev-shm-usage", "--hide-scrollbars", "--no-first-run", "--mute-audio",
    "--disable-extensions", "--disable-background-networking", "--remote-allow-origins=*",
)  # fmt: skip


class Page:
    """One tab. `problems` are errors of the console and of scripts since the page was opened."""

    def __init__(self, address: str) -> None:
        self._socket = websocket.create_connection(address, timeout=PATIENCE)
        self._number = 0
        self.problems: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **options: Any) -> dict[str, Any]:
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": options}))
        while True:
            message = self._receive()
            if message.get("id") == self._number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                result: dict[str, Any] = message["result"]
                return result

    def open(self, address: str, *, width: int = 1280, height: int = 900) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height,
            deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        self.problems.clear()
        self.call("Page.navigate", url=address)
        self.wait("document.readyState === 'complete' && document.querySelector('#rest') !== null")

    def do(self, script: str) -> Any:
        """The value of an expression."""
        answer = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def wait(self, condition: str) -> None:
        """Until the expression is true."""
        end = time.monotonic() + PATIENCE
        while not self.do(f"Boolean({condition})"):
            assert time.monotonic() < end, f"never came true: {condition}"
            time.sleep(0.05)

    def picture(self, path: Path) -> None:
        """A PNG of what is in view."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def close(self) -> None:
        self._socket.close()

    def _receive(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(self._socket.recv())
        options = message.get("params", {})
        if message.get("method") == "Runtime.exceptionThrown":
            self.problems.append(str(options["exceptionDetails"]))
        if message.get("method") == "Runtime.consoleAPICalled" and options["type"] == "error":
            self.problems.append(str(options["args"]))
        if message.get("method") == "Log.entryAdded" and options["entry"]["level"] == "error":
            self.problems.append(str(options["entry"]))
        return message


@contextmanager
def chromium() -> Iterator[Page]:
    """A browser with one tab; the test is skipped where there is none."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no Chromium here")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [program, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            page = Page(_address(Path(profile)))
            yield page
            page.close()
        finally:
            process.terminate()
            try:
                process.wait(timeout=PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()


def _address(profile: Path) -> str:
    """Of the tab; the browser writes the port that it took into its profile."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        try:
            port = (profile / "DevToolsActivePort").read_text().split()[0]
            with urlopen(f"http://127.0.0.1:{port}/json", timeout=PATIENCE) as answer:
                tabs = [tab for tab in json.load(answer) if tab["type"] == "page"]
            return str(tabs[0]["webSocketDebuggerUrl"])
        except (OSError, IndexError):
            time.sleep(0.1)
    raise TimeoutError("Chromium did not start")
