"""Control a headless Chromium over two pipes, without a driver or a network port."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

CHROMIUM_PATH = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
RESPONSE_TIMEOUT_S = 60  # a browser starts slowly on a busy machine


class Chromium:
    """A browser with one tab. Received events are in `events`."""

    def __enter__(self) -> Chromium:
        assert CHROMIUM_PATH is not None
        self.profile = tempfile.mkdtemp()
        browser_in, to_browser = os.pipe()
        from_browser, browser_out = os.pipe()
        flags = "--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run --remote-debugging-pipe"
        command = f'exec "$0" {flags} --user-data-dir="$1" about:blank 3<&{browser_in} 4>&{browser_out}'
        self.process = subprocess.Popen(
            ["bash", "-c", command, CHROMIUM_PATH, self.profile],
            pass_fds=(browser_in, browser_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(browser_in)
        os.close(browser_out)
        self.pipes = (from_browser, to_browser)
        self.unread, self.num_commands, self.session = b"", 0, ""
        self.events: list[dict[str, Any]] = []
        try:
            self._attach()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _attach(self) -> None:
        target = self.send_command("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.send_command("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.send_command(f"{domain}.enable")

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for pipe in self.pipes:
            os.close(pipe)
        shutil.rmtree(self.profile, ignore_errors=True)

    def send_command(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and return its response."""
        self.num_commands += 1
        message: dict[str, Any] = {"id": self.num_commands, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.pipes[1], json.dumps(message).encode() + b"\0")
        while True:
            response = self._read_message()
            if response.get("id") == self.num_commands:
                assert "error" not in response, response
                return response["result"]
            self.events.append(response)

    def _read_message(self) -> dict[str, Any]:
        deadline = time.monotonic() + RESPONSE_TIMEOUT_S
        while b"\0" not in self.unread:
            ready, _, _ = select.select([self.pipes[0]], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"no response from Chromium within {RESPONSE_TIMEOUT_S} s"
            chunk = os.read(self.pipes[0], 1 << 20)
            assert chunk, "Chromium has exited"
            self.unread += chunk
        message, _, self.unread = self.unread.partition(b"\0")
        return json.loads(message)

    def open_page(self, address: str, width: int, *, dark: bool = False, media: str = "screen") -> None:
        """Load a page at this width and forget earlier events."""
        self.send_command(
            "Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=width < 600
        )
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.send_command("Emulation.setEmulatedMedia", media=media, features=features)
        self.events.clear()
        self.send_command("Page.navigate", url=address)
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._read_message())

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression in the page."""
        return self.send_command("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def list_events(self, *methods: str) -> list[dict[str, Any]]:
        """Return the parameters of the received events of these types."""
        return [event["params"] for event in self.events if event.get("method") in methods]

    def save_screenshot(self, path: Path) -> None:
        """Save the complete page as a PNG file."""
        screenshot = self.send_command("Page.captureScreenshot", captureBeyondViewport=True, format="png")
        path.write_bytes(base64.b64decode(screenshot["data"]))
