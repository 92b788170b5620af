"""A real browser, headless Chromium, by its own protocol over pipes: what a page shows, asks for and complains about."""

from __future__ import annotations

import base64
import json
import os
import shlex
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest


def chromium() -> str:
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        if os.environ.get("VARVE_REQUIRE_BUILD"):
            pytest.fail("no chromium here; ./setup --test installs it")
        pytest.skip("no chromium here; ./setup --test installs it")
    return found


class Page:
    """A page that is open. `requests` are the addresses it asked for, `complaints` its console's."""

    def __init__(self, path: Path, *, width: int = 1000, dark: bool = False) -> None:
        self._path = path
        self._width = width
        self._dark = dark
        self._number = 0
        self._session: str | None = None
        self._left = b""
        self._loaded = False
        self.requests: list[str] = []
        self.complaints: list[str] = []

    def __enter__(self) -> Page:
        self._profile = tempfile.mkdtemp()
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        flags = "--headless --no-sandbox --disable-gpu --no-first-run --remote-debugging-pipe"
        command = f"exec {chromium()} {flags} --user-data-dir={shlex.quote(self._profile)}"
        # The protocol is spoken on the descriptors 3 and 4; these two may be in each other's place.
        moved = f"{command} 8<&{theirs_in} 9>&{theirs_out} 3<&8 4>&9 8<&- 9>&-"
        self._browser = subprocess.Popen(
            ["bash", "-c", moved], pass_fds=(theirs_in, theirs_out), stderr=subprocess.DEVNULL
        )
        os.close(theirs_in)
        os.close(theirs_out)
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=self._width,
            height=1000,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if self._dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=self._path.resolve().as_uri())
        until = time.monotonic() + 60
        while not self._loaded and time.monotonic() < until:
            self.evaluate("0")
        assert self._loaded, "the page has not loaded"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._browser.kill()
        self._browser.wait(timeout=60)
        os.close(self._in)
        os.close(self._out)
        shutil.rmtree(self._profile, ignore_errors=True)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                return dict(answer["result"])
            self._event(answer.get("method", ""), answer.get("params", {}))

    def evaluate(self, script: str) -> Any:
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def screenshot(self) -> bytes:
        """A PNG of what is in the window."""
        return base64.b64decode(self.call("Page.captureScreenshot")["data"])

    def pdf(self) -> bytes:
        return base64.b64decode(self.call("Page.printToPDF")["data"])

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._left:
            got = os.read(self._in, 1 << 16)
            assert got, "the browser has ended"
            self._left += got
        message, _, self._left = self._left.partition(b"\0")
        return dict(json.loads(message))

    def _event(self, method: str, event: dict[str, Any]) -> None:
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Network.requestWillBeSent":
            self.requests.append(event["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(str(event["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled":
            self.complaints.append(str(event["args"]))
        elif method == "Log.entryAdded":
            self.complaints.append(str(event["entry"]))
