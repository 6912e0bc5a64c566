"""Acknowledgement policies under a QUIC stack that is not ours: aioquic at both ends of a download over four relays.

4 Mbit/s reach the client, which aioquic keeps up with, behind a queue of 50 ms: the round trip that policies go by is the queue's.
What counts are bytes and packets on that link. Needs root; says so and passes when it is not.
"""

import asyncio
import json
import shutil
import subprocess
import sys
import types

from client_test import udp_shim
from common import Checks, Missing, sha256
from masque_client import http3_get
from netns import SOCKS, Capture, NetLab, usable
from servers import payload

SIZE = 1_000_000
HOPS = 4
RATE = 4_000_000
QUEUE = RATE // 8 // 20
UDP = 17
POLICIES = {  # as `ack-policies` of the lab has them
    "naive": 'acks = "1ms"\nacks_after = 0\nmode = "tunnelled"\ncongestion = "cubic"\ngather = false\n',
    "0.25rtt": 'acks = "0.25rtt"\nmode = "tunnelled"\ncongestion = "cubic"\ngather = false\n',
    "1rtt": 'acks = "1rtt"\nmode = "tunnelled"\ncongestion = "cubic"\ngather = false\n',
    "none": 'acks = "none"\nmode = "tunnelled"\ngather = false\n',
    "auto, tunnelled": 'mode = "tunnelled"\ngather = false\n',
    "auto": "",
}


def get(host, path, ca):
    """Runs in the client's namespace: an HTTP/3 download through the SOCKS front end; one JSON line."""
    async def body():
        return await http3_get(shim, ca, host, path, seconds=60)
    with udp_shim(types.SimpleNamespace(socks=SOCKS), host, 443) as shim:
        status, content = asyncio.run(body())
    print(json.dumps({"status": status, "sha256": sha256(content)}), flush=True)


def shape(lab):
    """What goes to the client, at the router: a queue that is not the sender's own drops as a real one does."""
    words = ("tc", "qdisc", "add", "dev", lab.client.router_end, "root", "tbf", "rate", f"{RATE}bit", "burst", 3000, "limit", QUEUE)
    subprocess.run(["ip", "netns", "exec", lab.router, *map(str, words)], check=True, capture_output=True)


def sizes(seen, one, other):
    """Bytes of each IP packet from one to the other."""
    return [int.from_bytes(frame[16:18]) for _, source, destination, kind, frame in seen if (source, destination, kind) == (one, other, UDP)]


def one(checks, lab, name, settings):
    """A download by this policy: bytes on the client's link, both ways, for each byte of the body."""
    slug = name.replace(", ", "-")
    client = lab.start_client(HOPS, slug, f"\n[tunnel]\n{settings}" if settings else "")
    capture = Capture(lab.client, f"capture-{slug}")
    download = lab.client.run(f"get-{slug}", [sys.executable, __file__, "get", "target.test", f"/bytes/{SIZE}", lab.authority.ca])
    download.child.wait(100)
    lines = download.lines()
    fine = bool(lines) and lines[-1].get("sha256") == sha256(payload(SIZE))
    seen = capture.stop_timed()
    client.stop()
    up, down = (sizes(seen, *ends) for ends in ((lab.client.v4, lab.relays[0].v4), (lab.relays[0].v4, lab.client.v4)))
    price = (sum(up) + sum(down)) / SIZE
    checks.check(f"{name}: {SIZE} bytes, checksum; {price:.3f} bytes on the link for each, {len(up)} packets up with {sum(up)}, "
                 f"{len(down)} down with {sum(down)}", fine, download.text()[-300:])
    return price


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
        shape(lab)
        prices = {name: one(checks, lab, name, settings) for name, settings in POLICIES.items()}
        tunnelled = {name: price for name, price in prices.items() if name != "auto"}
        # Which of these is cheaper depends on the machine, too: a busy one has packets come in batches, each with one acknowledgement.
        checks.check("auto, which is forwarded, is cheaper than all that is tunnelled", prices["auto"] < min(tunnelled.values()), str(prices))
        if checks.failed:
            lab.show_logs()
    checks.done()


if __name__ == "__main__":
    if sys.argv[1:2] == ["get"]:
        get(*sys.argv[2:])
    else:
        main()
