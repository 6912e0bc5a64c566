"""Acknowledgement policies under QUIC stacks that are not ours: one at both ends of a download over four relays.

aioquic carries 4 Mbit/s, quic-go (skipped without Go) 50; that reaches the client, behind a queue of 50 ms: the round trip that policies go by is
the queue's. What counts are bytes and packets on that link, beside those of the same download without relays. Needs root; says so and passes when
it is not.
"""

import asyncio
import contextlib
import json
import shutil
import subprocess
import sys
import types

from client_test import udp_shim
from common import HERE, Checks, Missing, sha256, wait_for
from masque_client import http3_get
from netns import SOCKS, Capture, NetLab, usable
from servers import payload

HOPS = 4
UDP = 17
POLICIES = {  # as `ack-policies` of the lab has them
    "naive": 'acks = "1ms"\nacks_after = 0\nmode = "tunnelled"\ncongestion = "cubic"\ngather = false\n',
    "0.25rtt": 'acks = "0.25rtt"\nmode = "tunnelled"\ncongestion = "cubic"\ngather = false\n',
    "1rtt": 'acks = "1rtt"\nmode = "tunnelled"\ncongestion = "cubic"\ngather = false\n',
    "none": 'acks = "none"\nmode = "tunnelled"\ngather = false\n',
    "auto, tunnelled": 'mode = "tunnelled"\ngather = false\n',
    "auto": "",
}


class Aioquic:
    name, rate, size = "aioquic", 4_000_000, 1_000_000

    def __init__(self, lab):
        self.ca, self.address = lab.authority.ca, lab.target.v4

    def get(self, relayed):
        way = ["socks", f"127.0.0.1:{SOCKS}"] if relayed else ["direct", f"{self.address}:443"]
        return [sys.executable, __file__, "get", self.ca, f"https://target.test:443/bytes/{self.size}", *way]


class QuicGo:
    name, rate, size, port = "quic-go", 50_000_000, 10_000_000, 444

    def __init__(self, lab, binary):
        self.binary, self.ca, self.address = binary, lab.authority.ca, lab.target.v4
        leaf = lab.authority.leaf("quic-go", ["target.test"])
        body = lab.folder / "body"
        body.write_bytes(payload(self.size))
        server = lab.target.run("quic-go-server", [binary, "serve", f"{self.address}:{self.port}", leaf.cert, leaf.key, body])
        wait_for("quic-go's server", lambda: "is up" in server.text() or not server.alive())

    def get(self, relayed):
        way = ["socks", f"127.0.0.1:{SOCKS}"] if relayed else ["direct", f"{self.address}:{self.port}"]
        return [self.binary, "get", self.ca, f"https://target.test:{self.port}/", *way]


def built(checks, lab, name="quic_go"):
    """The program of that folder, on quic-go; None where there is no Go, or its modules cannot be had."""
    if not shutil.which("go"):
        return checks.skip(name, "Go is not installed")
    binary = lab.folder / name
    go = lambda *words: subprocess.run(["go", *words], cwd=HERE / name, capture_output=True, text=True)  # noqa: E731
    if (got := go("mod", "download")).returncode:
        return checks.skip(name, f"its modules cannot be had here: {got.stderr.strip()[-200:]}")
    made = go("build", "-o", binary, ".")
    return binary if checks.check(f"{name} builds", made.returncode == 0, made.stderr.strip()) else None


def get(ca, url, way, address):
    """Runs in the client's namespace: aioquic's download, straight or through the SOCKS front end; one JSON line."""
    host, port, path = "target.test", 443, "/" + url.split("/", 3)[3]
    straight, number = address.rsplit(":", 1)

    async def body(place):
        return await http3_get(place, ca, host, path, seconds=60)
    if way == "direct":
        status, content = asyncio.run(body((straight, int(number))))
    else:
        with udp_shim(types.SimpleNamespace(socks=int(number)), host, port) as shim:
            status, content = asyncio.run(body(shim))
    print(json.dumps({"status": status, "sha256": sha256(content)}), flush=True)


def shape(lab, rate):
    """What goes to the client, at the router: a queue that is not the sender's own drops as a real one does."""
    words = ("tc", "qdisc", "replace", "dev", lab.client.router_end, "root", "tbf", "rate", f"{rate}bit", "burst", max(3000, rate // 4000),
             "limit", rate // 8 // 20)
    subprocess.run(["ip", "netns", "exec", lab.router, *map(str, words)], check=True, capture_output=True)


def sizes(seen, one, other):
    """Bytes of each IP packet from one to the other."""
    return [int.from_bytes(frame[16:18]) for _, source, destination, kind, frame in seen if (source, destination, kind) == (one, other, UDP)]


def one(checks, lab, stack, name, settings):
    """A download by this policy, or without relays where there is none: bytes on the client's link, both ways."""
    relayed, slug = settings is not None, f"{stack.name}-{name.replace(', ', '-')}"
    client = lab.start_client(HOPS, slug, f"\n[tunnel]\n{settings}" if settings else "") if relayed else None
    capture = Capture(lab.client, f"capture-{slug}")
    download = lab.client.run(f"get-{slug}", stack.get(relayed))
    download.child.wait(100)
    lines = download.lines()
    fine = bool(lines) and lines[-1].get("sha256") == sha256(payload(stack.size))
    with contextlib.suppress(TimeoutError):  # on a busy machine tcpdump is the last that gets to run
        wait_for("the capture", lambda: not fine or capture.path.stat().st_size > stack.size)
    seen = capture.stop_timed()
    if client:
        client.stop()
    peer = lab.relays[0].v4 if relayed else lab.target.v4
    up, down = sizes(seen, lab.client.v4, peer), sizes(seen, peer, lab.client.v4)
    total = sum(up) + sum(down)
    times = [when for when, source, _, kind, _ in seen if (source, kind) == (peer, UDP)]
    rate = sum(down) * 8e-6 / (times[-1] - times[0]) if len(times) > 1 else 0
    checks.check(f"{stack.name}, {name}: {stack.size} bytes, checksum; {total / stack.size:.3f} bytes on the link for each, {len(up)} packets up "
                 f"with {sum(up)}, {len(down)} down with {sum(down)}, {rate:.1f} Mbit/s", fine and total > stack.size, download.text()[-300:])
    return sum(up), sum(down)


def compare(checks, lab, stack):
    """All policies: what relays cost of the bytes on the link, and how much of these goes up, which is acknowledgements and what carries them."""
    shape(lab, stack.rate)
    straight = sum(one(checks, lab, stack, "no relay", None))
    prices = {}
    for name, settings in POLICIES.items():
        up, down = one(checks, lab, stack, name, settings)
        prices[name] = up + down
        if prices[name]:
            print(f"     {stack.name}, {name}: overhead {1 - straight / prices[name]:.1%} of the bytes, {up / prices[name]:.1%} of all go up", flush=True)
    tunnelled = [price for name, price in prices.items() if name != "auto"]
    # Which of these is cheaper depends on the machine, too: a busy one has packets come in batches, each with one acknowledgement.
    checks.check(f"{stack.name}: auto, which is forwarded, is cheaper than all that is tunnelled", 0 < prices["auto"] < min(tunnelled), str(prices))


def main():
    checks = Checks("acks")
    why = usable() or (None if shutil.which("tc") else Missing("tc is not installed"))
    if why:
        checks.skip("network namespaces", why)
        checks.done()
    with NetLab(HOPS) as lab:
        lab.start_targets()
        for host in lab.hosts.values():
            host.no_offload()
        for host in lab.relays:
            lab.start_relay(host)
        compare(checks, lab, Aioquic(lab))
        if binary := built(checks, lab):
            compare(checks, lab, QuicGo(lab, binary))
        if checks.failed:
            lab.show_logs()
    checks.done()


if __name__ == "__main__":
    if sys.argv[1:2] == ["get"]:
        get(*sys.argv[2:])
    else:
        main()
