"""A real browser, headless Chromium, by its own protocol over pipes: what a page shows, asks for and complains about."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

_LONGEST_WAIT = 60.0  # Seconds until an answer of the browser is given up.
_STARTS = 3  # Of a browser that does not answer.
_ABOVE = 20  # Descriptors that no redirection of the shell names.

_FLAGS = (
    "--headless --no-sandbox --disable-gpu --no-first-run --remote-debugging-pipe"
    " --disable-dev-shm-usage --disable-background-networking --disable-component-update"
    " --disable-sync --disable-default-apps --disable-extensions --no-proxy-server --password-store=basic"
)
#: A desktop's message bus may be named that nobody serves: the browser would wait for it.
_NO_BUS = {"DBUS_SESSION_BUS_ADDRESS": "disabled:", "DBUS_SYSTEM_BUS_ADDRESS": "disabled:"}


def chromium() -> str:
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        if os.environ.get("VARVE_REQUIRE_BUILD"):
            pytest.fail("no chromium here; ./setup --test installs it")
        pytest.skip("no chromium here; ./setup --test installs it")
    return found


class NoAnswer(Exception):
    """The browser stands still."""


class Page:
    """A page that is open. `requests` are the addresses it asked for, `complaints` its console's."""

    def __init__(self, path: Path, *, width: int = 1000, dark: bool = False) -> None:
        self._path = path
        self._width = width
        self._dark = dark
        self._number = 0
        self._called = ""

    def __enter__(self) -> Page:
        for start in range(1, _STARTS + 1):
            self._start()
            try:
                self._open()
                break
            except BaseException as error:
                self._end()
                if start == _STARTS or not isinstance(error, NoAnswer):
                    raise
        return self

    def _start(self) -> None:
        self._session: str | None = None
        self._left = b""
        self._loaded = False
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self._profile = tempfile.mkdtemp()
        self._log = Path(self._profile) / "stderr"
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        # The protocol is spoken on the descriptors 3 and 4. One of ours may have such a number itself.
        theirs = [fcntl.fcntl(fd, fcntl.F_DUPFD, _ABOVE) for fd in (theirs_in, theirs_out)]
        command = f'exec "$0" {_FLAGS} --user-data-dir="$1" 3<&{theirs[0]} 4>&{theirs[1]}'
        with open(self._log, "wb") as log:
            self._browser = subprocess.Popen(
                ["bash", "-c", command, chromium(), self._profile],
                pass_fds=theirs,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                env={**os.environ, **_NO_BUS},
            )
        for fd in (theirs_in, theirs_out, *theirs):
            os.close(fd)

    def _open(self) -> None:
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        self._browser.kill()
        self._browser.wait(timeout=60)
        os.close(self._in)
        os.close(self._out)
        shutil.rmtree(self._profile, ignore_errors=True)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        self._called = method
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
        until = time.monotonic() + _LONGEST_WAIT
        while b"\0" not in self._left:
            ready, _, _ = select.select([self._in], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                raise NoAnswer(f"no answer to {self._called} in {_LONGEST_WAIT} s. {self._said()}")
            got = os.read(self._in, 1 << 16)
            assert got, f"the browser has ended. {self._said()}"
            self._left += got
        message, _, self._left = self._left.partition(b"\0")
        return dict(json.loads(message))

    def _said(self) -> str:
        return f"The browser said: {self._log.read_text(errors='replace')[-2000:]}"

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
