"""A headless Chromium that a benchmark controls through a pipe, by the Chrome DevTools Protocol. This module needs only
the standard library."""

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import time

LIMIT_S = 60
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
         "--disable-background-networking", "--disable-dev-shm-usage", "--remote-debugging-pipe",
         "--window-size=1200,900")


class BrowserFailed(Exception):
    pass


def find():
    """The path of a Chromium or Chrome; None if there is none."""
    return shutil.which("chromium") or shutil.which("google-chrome")


class Browser:
    """A browser with one page, which `attach` opens. `close` ends all of its processes."""

    def __init__(self, program, folder, prefix=()):
        """`prefix`: a command that runs the browser, for example in another network namespace."""
        from_us, to_browser = os.pipe()
        self._answers, to_us = os.pipe()
        self._requests = to_browser
        # The browser reads descriptor 3 and writes to 4; the shell moves our pipes to these numbers.
        shell = f'exec "$@" 3<&{from_us} 4>&{to_us}'
        with open(f"{folder}/browser.log", "wb") as log:
            self._process = subprocess.Popen(
                ["bash", "-c", shell, "bash", *prefix, program, *FLAGS, f"--user-data-dir={folder}/browser",
                 "about:blank"],
                pass_fds=(from_us, to_us), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        os.close(from_us)
        os.close(to_us)
        self._log, self._buffer, self._last, self._session = f"{folder}/browser.log", b"", 0, None

    def attach(self):
        """Opens the page. Not a part of the constructor, so that the caller can close a browser that fails here."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.call("Page.enable")

    def call(self, method, limit_s=LIMIT_S, **parameters):
        """Sends a command and returns its result; events that arrive meanwhile are dropped."""
        self._last += 1
        request = {"id": self._last, "method": method, "params": parameters}
        if self._session:
            request["sessionId"] = self._session
        try:
            os.write(self._requests, json.dumps(request).encode() + b"\0")
        except BrokenPipeError:
            raise self._ended() from None
        deadline = time.monotonic() + limit_s
        while True:
            answer = self._read(deadline, method)
            if answer.get("id") != self._last:
                continue
            if "error" in answer:
                raise BrowserFailed(f"the browser refused {method}: {answer['error'].get('message')}")
            return answer["result"]

    def _read(self, deadline, method):
        while b"\0" not in self._buffer:
            if not select.select([self._answers], [], [], max(0, deadline - time.monotonic()))[0]:
                raise BrowserFailed(f"the browser did not answer {method} in time")
            part = os.read(self._answers, 1 << 20)
            if not part:
                raise self._ended()
            self._buffer += part
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def _ended(self):
        with open(self._log, encoding="utf-8", errors="replace") as log:
            return BrowserFailed(f"the browser has ended; its last output:\n{log.read()[-1000:]}")

    def run_at_start(self, script):
        """Makes each page that is opened later run the script before its own scripts."""
        self.call("Page.addScriptToEvaluateOnNewDocument", source=script)

    def open(self, url):
        result = self.call("Page.navigate", url=url)
        if result.get("errorText"):
            raise BrowserFailed(f"the browser could not open {url}: {result['errorText']}")

    def evaluate(self, expression):
        """The value of a JavaScript expression, or of the promise that it returns."""
        result = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in result:
            details = result["exceptionDetails"]
            why = details.get("exception", {}).get("description") or details.get("text")
            raise BrowserFailed(f"the page failed: {why}")
        return result["result"].get("value")

    def close(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        # This process is a subreaper (tests/cluster/processes.py), so the processes that the browser has started are
        # its children now.
        with contextlib.suppress(ChildProcessError):
            while True:
                os.waitpid(-self._process.pid, 0)
        os.close(self._requests)
        os.close(self._answers)
