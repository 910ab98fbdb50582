"""A daemon with five hundred VMs, ten thousand snapshots, a hundred policies and fifty open pages of the console: its memory, its
longest take, and the time of its pages."""

import http.client
import shutil
import time
from urllib.parse import urlsplit

from bench.machine import memory_bytes
from bench.report import Figure, Spread
from bench.servers import Unstun, free_port

MIB = 1 << 20
VMS = 500
SNAPSHOTS = 20
POLICIES = 100
PAGES = 50
MORE_MAX_MIB = 150


def measure(bench):
    folder, port = bench.folder / "scale", free_port()
    vms = VMS // 10 if bench.quick else VMS
    with Unstun(bench.unstun.binary, folder, options=["--web", f"127.0.0.1:{port}"]) as unstun:
        empty = memory_bytes(unstun.pid, "VmRSS") / MIB
        for number in range(vms):
            unstun.create(f"vm{number}", [16 * MIB], "native")
        takes_ms = [unstun.rest.take(f"vm{vm}", f"s{number}")[1] for number in range(SNAPSHOTS) for vm in range(vms)]
        for number in range(POLICIES):
            policy = {"name": f"p{number}", "schedule": ["*-*-* 02:00"], "vms": [f"vm{number}*"], "keep": {"daily": 7}}
            unstun.rest.call("POST", "/policies", policy)
        pages_ms = [page_ms for _ in range(5) for page_ms in open_pages(unstun, port, vms)]
        more = memory_bytes(unstun.pid, "VmHWM") / MIB - empty
    what = f"{vms} VMs, {vms * SNAPSHOTS} snapshots, {POLICIES} policies, {PAGES} open pages"
    note = f"{empty:.0f} MiB without anything; the peak counts"
    bench.report.add(Figure(f"{what}: more memory", f"<= {MORE_MAX_MIB} MiB", f"{more:.0f} MiB", more <= MORE_MAX_MIB, note))
    takes = Spread(takes_ms)
    bench.report.add(Figure(f"{what}: a take", "", f"{takes.middle:.1f} ms", None, f"the longest {max(takes_ms):.0f} ms, by the client"))
    bench.report.at_most(f"{what}: a page, ms until its last byte", Spread(pages_ms), 300, digits=0)
    shutil.rmtree(folder)


def open_pages(unstun, port, vms):
    """Opens the streams of many pages, each of which then asks once for its content, and returns the times of those."""
    [url] = unstun.json("console")["urls"]
    login = urlsplit(url)
    cookie = get(port, f"{login.path}?{login.query}", {}).getheader("Set-Cookie").split(";")[0]
    streams, times_ms = [], []
    for number in range(PAGES):
        stream = http.client.HTTPConnection("127.0.0.1", port)
        stream.request("GET", "/live", headers={"Cookie": cookie})
        streams.append((stream, stream.getresponse()))
        began = time.monotonic()
        path = ["/", f"/vms/vm{number % vms}"][number % 2]
        answer = get(port, path, {"Cookie": cookie})
        assert answer.status == 200, f"{path}: {answer.status}"
        times_ms.append((time.monotonic() - began) * 1000)
    for stream, _ in streams:
        stream.close()
    return times_ms


def get(port, path, headers):
    """Returns the answer, which was read to its end."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer
