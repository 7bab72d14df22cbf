"""A web server on this machine whose faults a test chooses."""

import contextlib
import re
import socketserver
import threading
import time


class _Handler(socketserver.StreamRequestHandler):
    def handle(self):
        request = self.rfile.readline().decode("latin1").split()
        headers = {}
        while (line := self.rfile.readline().decode("latin1").strip()) != "":
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        server = self.server
        if request[0] == "HEAD":
            answer = server.head
        else:
            server.requests.append(headers.get("range"))
            server.request_headers.append(headers)
            answer = server.answers.pop(0) if server.answers else server.answer(request[1], headers)
        with contextlib.suppress(OSError):  # the client may have had enough
            for part in [answer] if isinstance(answer, bytes) else answer:
                self.wfile.write(part)


class WebServer(socketserver.ThreadingTCPServer):
    """Serves ``content`` under every path, in parts where one is asked for.

    Attributes:
        answers: what the next requests get instead, each the bytes of a whole answer or an iterable of them.
        etag, knows_ranges, cut_after, delay, status: of the ordinary answer.
        head: the answer to every HEAD request.
        requests: the Range header of every request, or None.
    """

    allow_reuse_address = daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.content = bytes(range(256)) * 200
        self.contents = {}  # by path, where they differ
        self.answers, self.requests, self.request_headers = [], [], []
        self.etag, self.knows_ranges, self.cut_after, self.delay, self.status = None, True, None, 0, 200
        self.head = head(501)
        self.url = f"http://127.0.0.1:{self.server_address[1]}/file.bin"

    def answer(self, path, headers):
        """Yield a correct answer in pieces of 1000 bytes."""
        content = self.contents.get(path, self.content)
        if self.status != 200:
            yield head(self.status)
            return
        tag = [f"ETag: {self.etag}"] if self.etag else []
        start, status, extra = 0, 200, []
        asked = re.fullmatch(r"bytes=(\d+)-", headers.get("range", ""))
        if asked and self.knows_ranges and headers.get("if-range") in (None, self.etag):
            start = int(asked[1])
            if start >= len(content):
                yield head(416, f"Content-Range: bytes */{len(content)}")
                return
            status, extra = 206, [f"Content-Range: bytes {start}-{len(content) - 1}/{len(content)}"]
        yield head(status, f"Content-Length: {len(content) - start}", *extra, *tag)
        end = len(content) if self.cut_after is None else min(len(content), start + self.cut_after)
        for position in range(start, end, 1000):
            yield content[position : min(position + 1000, end)]
            time.sleep(self.delay)


def head(status, *headers):
    """Return the head of an answer; nothing follows unless a header says so."""
    lines = [f"HTTP/1.1 {status} Reason", "Connection: close", *headers, "", ""]
    return "\r\n".join(lines).encode("latin1")


@contextlib.contextmanager
def web_server():
    """Give a running :class:`WebServer`."""
    with WebServer() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
