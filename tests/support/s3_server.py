"""An object store on loopback that speaks S3: moto's, behind a gate at which a test may keep a request waiting."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from moto.core import DEFAULT_ACCOUNT_ID as ACCOUNT
from moto.s3.models import FakeBucket, s3_backends
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

SECRET = {"AWS_ACCESS_KEY_ID": "tester", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}


@dataclass
class S3Server:
    """A running object store. ``requests`` has method, path and query of all requests."""

    url: str = ""
    requests: list[str] = field(default_factory=list)
    gate: Callable[[str], bool] = lambda request: True
    """Called with each request, in a thread of its own, before the request is handled; if it returns False the answer
    is 503."""

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment variables that a client needs to use this store."""
        others = {name: text for name, text in os.environ.items() if not name.startswith(("AWS_", "FSSPEC_"))}
        nothing = {"AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull, "NO_PROXY": "127.0.0.1"}
        return others | nothing | SECRET | {"AWS_ENDPOINT_URL": self.url}

    def empty_bucket(self, name: str) -> None:
        """Create a bucket, or empty it."""
        self._bucket(name)
        for key in self.objects(name):
            s3_backends[ACCOUNT]["aws"].delete_object(name, key)

    def objects(self, bucket: str) -> list[str]:
        """Return the sorted names of the objects in a bucket."""
        return sorted(self._bucket(bucket).keys)

    def damage(self, bucket: str, name: str) -> None:
        """Replace an object by a copy with one bit inverted."""
        data = bytearray(self._bucket(bucket).keys[name].value)
        data[len(data) // 2] ^= 1
        s3_backends[ACCOUNT]["aws"].put_object(bucket, name, bytes(data))

    def _bucket(self, name: str) -> FakeBucket:
        backend = s3_backends[ACCOUNT]["aws"]
        if name not in backend.buckets:
            backend.create_bucket(name, SECRET["AWS_REGION"])
        return backend.buckets[name]

    def written(self) -> list[str]:
        """Return the paths of the objects that were put, in order."""
        return [request.split()[1] for request in self.requests if request.startswith("PUT ")]


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """Yield a running store without a bucket."""
    store = S3Server()
    moto = DomainDispatcherApplication(create_backend_app)

    def serve(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        query = environ["QUERY_STRING"]
        request = f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}" + (f"?{query}" if query else "")
        store.requests.append(request)
        if not store.gate(request):
            start("503 Service Unavailable", [("Connection", "close"), ("Content-Length", "0")])
            return [b""]
        return moto(environ, start)

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = make_server("127.0.0.1", 0, serve, threaded=True)
    store.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield store
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
