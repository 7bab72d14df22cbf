"""A real browser without a window, spoken to over a pipe in Chromium's own protocol; no driver, no library."""

import base64
import contextlib
import io
import json
import os
import shutil
import subprocess
import time

import numpy as np
from PIL import Image

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Browser:
    """One page; `evaluate` runs JavaScript in it."""

    def __init__(self, send, receive):
        self._send, self._receive = send, receive
        self._buffer, self._number, self._session = b"", 0, None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]

    def call(self, method, **params):
        """Return the answer of a command of the DevTools protocol."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        message |= {"sessionId": self._session} if self._session else {}
        os.write(self._send, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self._buffer:
                self._buffer += os.read(self._receive, 1 << 16)
            line, _, self._buffer = self._buffer.partition(b"\0")
            answer = json.loads(line)
            if answer.get("id") == self._number:
                return answer["result"]

    def open(self, url):
        self.call("Page.navigate", url=url)

    def evaluate(self, script):
        return self.call("Runtime.evaluate", expression=script, returnByValue=True)["result"].get("value")

    def screenshot(self):
        """Return the whole page as uint8 [height, width, 3], red first."""
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)["data"]
        return _pixels(data)

    def drawn(self, text, font):
        """Return uint8 [height, width, 3]: the text in dark grey on white, as this browser draws it on a canvas."""
        url = self.evaluate(f"""(() => {{
            const canvas = document.createElement('canvas'), pen = canvas.getContext('2d');
            pen.font = {json.dumps(font)};
            canvas.width = pen.measureText({json.dumps(text)}).width + 8;
            canvas.height = 28;
            pen.fillStyle = '#fff';
            pen.fillRect(0, 0, canvas.width, canvas.height);
            pen.fillStyle = '#333';
            pen.font = {json.dumps(font)};
            pen.textBaseline = 'middle';
            pen.fillText({json.dumps(text)}, 4, 14);
            return canvas.toDataURL();
        }})()""")
        return _pixels(url.partition(",")[2])

    def wait_for(self, script, seconds=120):
        """Return what a script evaluates to, as soon as that is something."""
        deadline = time.monotonic() + seconds
        while not (value := self.evaluate(script)):
            assert time.monotonic() < deadline, f"{script}\n{self.evaluate('document.body.innerText')}"
            time.sleep(0.2)
        return value


def _pixels(data):
    with Image.open(io.BytesIO(base64.b64decode(data))) as image:
        return np.asarray(image.convert("RGB"))


@contextlib.contextmanager
def open_browser(folder):
    """Give a Browser whose profile is in `folder`."""
    (their_in, send), (receive, their_out) = os.pipe(), os.pipe()

    def place():  # the protocol's pipes are 3 and 4
        spare = [os.dup(their_in), os.dup(their_out)]
        os.dup2(spare[0], 3)
        os.dup2(spare[1], 4)

    words = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe",
             f"--user-data-dir={folder}", "--window-size=1600,2400"]  # fmt: skip
    process = subprocess.Popen(words, preexec_fn=place, close_fds=False, stderr=subprocess.DEVNULL)
    os.close(their_in)
    os.close(their_out)
    try:
        yield Browser(send, receive)
    finally:
        os.close(send)
        process.kill()
        process.wait()
        os.close(receive)
