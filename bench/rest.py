"""Client of the daemon's REST API. It times calls without the start of a process."""

import http.client
import json
import socket
import time

ROOT = "/api/v1"
PATIENCE_S = 60


class Connection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=PATIENCE_S)
        self.path = str(path)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class Rest:
    """Each call returns the daemon's answer, and the milliseconds of the whole call."""

    def __init__(self, datastore):
        self.path = datastore / ".unstun" / "api.sock"

    def call(self, method, path, body=None):
        connection = Connection(self.path)
        text = None if body is None else json.dumps(body)
        began = time.monotonic()
        connection.request(method, f"{ROOT}{path}", text, {"Content-Type": "application/json"})
        response = connection.getresponse()
        answer = response.read()
        took_ms = (time.monotonic() - began) * 1000
        connection.close()
        if response.status >= 300:
            raise RuntimeError(f"{method} {path}: {response.status}: {answer.decode()}")
        return json.loads(answer), took_ms

    def take(self, vm, name):
        return self.call("POST", f"/vms/{vm}/snapshots", {"name": name})

    def revert(self, vm, name):
        return self.call("POST", f"/vms/{vm}/revert", {"snapshot": name})

    def clone(self, vm, snapshot, name):
        return self.call("POST", f"/vms/{vm}/clone", {"snapshot": snapshot, "name": name})

    def drop(self, vm, name):
        """Returns the job. When it is done, the space is free."""
        return self.call("POST", f"/vms/{vm}/commit", {"snapshot": name})
