"""A small S3-compatible server in memory: what s3fs needs to list, read, write (in parts too) and delete objects.

Keys are path-style (`/<bucket>/<key>`). Signatures are not checked. `fails` makes matching requests fail.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape


class S3(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[str, bytes] = {}
        self.parts: dict[str, dict[int, bytes]] = {}
        self.log: list[str] = []
        self.fails = re.compile("(?!)")  # method and path of requests that are refused
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: S3

    def log_message(self, *_: Any) -> None:
        pass

    def _answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", headers.get("length", str(len(body))))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _missing(self) -> None:
        self._answer(
            404, b"<Error><Code>NoSuchKey</Code><Message>none</Message></Error>", Content_Type="application/xml"
        )

    def _body(self) -> bytes:
        size = int(self.headers.get("Content-Length", 0))
        data = self.rfile.read(size)
        if "aws-chunked" in self.headers.get("Content-Encoding", ""):
            whole, rest = b"", data
            while rest:
                line, _, rest = rest.partition(b"\r\n")
                count = int(line.split(b";")[0], 16)
                whole, rest = whole + rest[:count], rest[count + 2 :]
                if not count:
                    break
            return whole
        return data

    def _serve(self) -> None:
        parts = urlsplit(self.path)
        path, query = unquote(parts.path).lstrip("/"), parse_qs(parts.query, keep_blank_values=True)
        body = self._body()
        self.server.log.append(f"{self.command} {path}")
        if self.server.fails.search(f"{self.command} {path}"):
            self._answer(403, b"<Error><Code>AccessDenied</Code><Message>not allowed</Message></Error>")
            return
        with self.server.lock:
            getattr(self, f"_{self.command.lower()}")(path, query, body)

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = _serve

    def _get(self, path: str, query: dict[str, list[str]], _: bytes) -> None:
        bucket, _, key = path.partition("/")
        if not key:
            self._list(bucket, query)
            return
        data = self.server.objects.get(path)
        if data is None:
            self._missing()
            return
        start, end = 0, len(data) - 1
        found = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if found:
            start, end = int(found[1]), min(end, int(found[2] or end))
        self._answer(206 if found else 200, data[start : end + 1], ETag='"e"', Last_Modified=_WHEN)

    def _head(self, path: str, *_: Any) -> None:
        data = self.server.objects.get(path)
        if data is None:
            self._answer(404)
        else:
            self._answer(200, b"", ETag='"e"', Last_Modified=_WHEN, length=str(len(data)))

    def _put(self, path: str, query: dict[str, list[str]], body: bytes) -> None:
        if "uploadId" in query:
            self.server.parts[query["uploadId"][0]][int(query["partNumber"][0])] = body
        else:
            self.server.objects[path] = body
        self._answer(200, b"", ETag='"e"')

    def _delete(self, path: str, query: dict[str, list[str]], _: bytes) -> None:
        self.server.objects.pop(path, None)
        self._answer(204)

    def _post(self, path: str, query: dict[str, list[str]], body: bytes) -> None:
        bucket, _, key = path.partition("/")
        if "delete" in query:
            for name in re.findall(rb"<Key>(.*?)</Key>", body):
                self.server.objects.pop(f"{bucket}/{name.decode()}", None)
            self._xml("<DeleteResult/>")
        elif "uploads" in query:
            number = str(len(self.server.parts) + 1)
            self.server.parts[number] = {}
            self._xml(f"<InitiateMultipartUploadResult><UploadId>{number}</UploadId></InitiateMultipartUploadResult>")
        else:
            parts = self.server.parts.pop(query["uploadId"][0])
            self.server.objects[path] = b"".join(parts[n] for n in sorted(parts))
            self._xml(
                f"<CompleteMultipartUploadResult><Key>{escape(key)}</Key><ETag>e</ETag></CompleteMultipartUploadResult>"
            )

    def _list(self, bucket: str, query: dict[str, list[str]]) -> None:
        prefix, limit = query.get("prefix", [""])[0], query.get("delimiter", [""])[0]
        rows, folders = [], set()
        for name in sorted(self.server.objects):
            owner, _, key = name.partition("/")
            if owner != bucket or not key.startswith(prefix):
                continue
            rest = key[len(prefix) :]
            if limit and limit in rest:
                folders.add(prefix + rest.partition(limit)[0] + limit)
            else:
                size = len(self.server.objects[name])
                rows.append(
                    f"<Contents><Key>{escape(key)}</Key><Size>{size}</Size><ETag>e</ETag>"
                    f"<LastModified>2025-01-01T00:00:00Z</LastModified></Contents>"
                )
        rows += [f"<CommonPrefixes><Prefix>{escape(one)}</Prefix></CommonPrefixes>" for one in sorted(folders)]
        self._xml(f"<ListBucketResult><IsTruncated>false</IsTruncated>{''.join(rows)}</ListBucketResult>")

    def _xml(self, text: str) -> None:
        self._answer(200, f'<?xml version="1.0"?>{text}'.encode(), Content_Type="application/xml")


_WHEN = "Wed, 01 Jan 2025 00:00:00 GMT"


@contextmanager
def serving() -> Iterator[S3]:
    server = S3()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
