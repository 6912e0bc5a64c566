"""Forwarded mode on the wire: what a relay's packets have in common before and after it, what the client's link carries, what a path survives.

A third party's HTTP/3 (aioquic) at both ends; a client, four relays and a target in network namespaces. Needs root; says so and passes when it is not.
"""

import asyncio
import collections
import json
import subprocess
import sys
import time
import types

from client_test import udp_shim
from common import Checks, sha256
from masque_client import http3_get
from netns import SOCKS, Capture, NetLab, usable
from servers import payload

SIZE = 5_000_000
UDP = 17
IDENTITY = "\n[forwarding]\nidentity = true\n"  # relays refuse this transform unless they are told
TUNNEL = 0.015  # a tunnel's headers alone add some 2 %: less is asked, for a busy machine acknowledges little beside them
WINDOW = 12  # bytes in a row that two packets would share by chance once in 2^96


def get(host, path, ca):
    """Runs in the client's namespace: an HTTP/3 download through the SOCKS front end; one JSON line."""
    async def body():
        return await http3_get(shim, ca, host, path, seconds=90)
    with udp_shim(types.SimpleNamespace(socks=SOCKS), host, 443) as shim:
        status, content = asyncio.run(body())
    print(json.dumps({"status": status, "sha256": sha256(content), "bytes": len(content)}), flush=True)


def download(lab, name, size=SIZE):
    path = f"/bytes/{size}"
    return lab.client.run(name, [sys.executable, __file__, "get", "target.test", path, lab.authority.ca])


def complete(process, size=SIZE, seconds=100):
    process.child.wait(seconds)
    lines = process.lines()
    return bool(lines) and lines[-1].get("sha256") == sha256(payload(size)) or process.text()[-300:] or "nothing came"


def udp_between(seen, one, other):
    """(seconds, UDP payload) of each packet between two addresses, in order."""
    udp = []
    for when, source, destination, kind, frame in seen:
        if {source, destination} == {one, other} and kind == UDP and frame[12:14] == b"\x08\x00":
            start = 14 + 4 * (frame[14] & 15)
            udp.append((when, frame[start + 8:start + int.from_bytes(frame[start + 4:start + 6])]))
    return udp


def short(payloads):
    return [p for p in payloads if p and not p[0] & 0x80]


def windows(payloads):
    return {p[i:i + WINDOW] for p in payloads for i in range(len(p) - WINDOW + 1)}


def payload_bytes(payloads):
    return sum(28 + len(p) for p in payloads)


def one_hop(lab, extra, name):
    """A download over one relay; the relay's packets on its client's side and on its target's."""
    client = lab.start_client(1, name, extra)
    capture = Capture(lab.relays[0], f"capture-{name}")
    fine = complete(download(lab, f"get-{name}"))
    seen = capture.stop_timed()
    client.stop()
    relay = lab.relays[0].v4
    before, after = ([p for _, p in udp_between(seen, *ends)] for ends in ((lab.client.v4, relay), (relay, lab.target.v4)))
    return fine, before, after


def transforms(checks, lab):
    """Nothing in common but the transform: no bytes of a packet are seen on both sides of a relay."""
    for transform in ("scramble", "identity"):
        fine, before, after = one_hop(lab, f'\n[tunnel]\ntransform = "{transform}"\n', f"one-{transform}")
        checks.check(f"{transform}: HTTP/3 download over a forwarding relay, checksum", fine is True, str(fine))
        received, sent = payload_bytes(before), payload_bytes(after)
        checks.check(f"{transform}: the relay's client side carries hardly more than its target side ({received / sent - 1:+.1%})",
                     received < 1.03 * sent, f"{received} and {sent} bytes")
        sample = short(after)[200:600]
        common = windows(short(before)) & windows(sample)
        if transform == "scramble":
            checks.check(f"scramble: no {WINDOW} bytes in a row are seen on both sides", sample and not common, f"{len(common)} of them")
        else:
            checks.check("identity: packets are recognised on both sides (so the check above can fail)", len(common) > 1000, str(len(common)))
        common_size = [collections.Counter(len(p) for p in short(side) if len(p) > 600).most_common(1)[0][0] for side in (before, after)]
        checks.check(f"{transform}: sizes are kept, as the documents say", common_size[0] == common_size[1], str(common_size))


def carried(near, far):
    """What the client's link carries beyond the end-to-end connection, once the path stands: the connection's second half.

    Setting the path up costs more on a slow machine, where more of the connection is tunnelled until every hop forwards.
    """
    middle = far[len(far) // 2][0]
    first_link, own = (payload_bytes(p for when, p in side if when >= middle) for side in (near, far))
    return first_link / own - 1


def hops(checks, lab):
    """1..4 hops: what the client's link carries beyond the end-to-end connection, forwarded and tunnelled."""
    for count in (1, 2, 3, 4):
        shares = {}
        for mode in ("auto", "tunnelled"):
            name = f"{mode}-{count}"
            client = lab.start_client(count, name, f'\n[tunnel]\nmode = "{mode}"\n')
            capture = Capture(lab.client, f"capture-{name}")
            last = Capture(lab.relays[count - 1], f"capture-last-{name}")
            fine = complete(download(lab, f"get-{name}"))
            near = udp_between(capture.stop_timed(), lab.client.v4, lab.relays[0].v4)
            far = udp_between(last.stop_timed(), lab.relays[count - 1].v4, lab.target.v4)
            client.stop()
            shares[mode] = carried(near, far)
            checks.check(f"{count} hops, {mode}: HTTP/3 download, checksum", fine is True, str(fine))
        checks.check(f"{count} hops: forwarded adds {shares['auto']:.1%} to the connection's own bytes, tunnelled {shares['tunnelled']:.1%}",
                     shares["auto"] < shares["tunnelled"] / 2 and shares["tunnelled"] > TUNNEL * count)


def refused(checks, lab):
    """A relay that does not forward: the same download, tunnelled."""
    host = lab.relays[0]
    lab.running[host.name].stop()
    lab.start_relay(host, extra="\n[forwarding]\nenabled = false\n")
    fine, before, after = one_hop(lab, "", "refused")
    checks.check("a relay without forwarding: HTTP/3 download, checksum", fine is True, str(fine))
    checks.check("and tunnelled", payload_bytes(before) > (1 + TUNNEL) * payload_bytes(after), f"{payload_bytes(before)} and {payload_bytes(after)}")
    lab.running[host.name].stop()
    lab.start_relay(host, IDENTITY)


def rough(checks, lab):
    """2 % loss everywhere, and the device changes its address in the middle."""
    rules = "table inet loss {\n chain f {\n type filter hook forward priority 0\n meta l4proto udp numgen random mod 50 == 0 drop\n}\n}\n"
    router = ["ip", "netns", "exec", lab.router, "nft"]
    client = lab.start_client(2, "rough")
    checks.check("before the loss", complete(download(lab, "get-calm")) is True)
    subprocess.run([*router, "-f", "-"], input=rules, text=True, check=True, capture_output=True)
    try:
        checks.attempt("2 % loss, two hops: download, checksum", lambda: complete(download(lab, "get-loss", 2_000_000), 2_000_000))
        running = download(lab, "get-moved", 2_000_000)
        time.sleep(1)
        lab.client.renumber(78)
        checks.attempt("2 % loss and another address in the middle: the download completes", lambda: complete(running, 2_000_000))
    finally:
        subprocess.run([*router, "delete", "table", "inet", "loss"], check=True, capture_output=True)
    capture = Capture(lab.client, "capture-after-move")
    checks.attempt("afterwards", lambda: complete(download(lab, "get-after")))
    capture.stop()
    client.stop()


def forgotten(checks, lab):
    """A relay that forgets all of its rules: nothing is stuck."""
    client = lab.start_client(1, "forgotten")
    running = download(lab, "get-forgotten", 20_000_000)
    time.sleep(1)
    lab.running[lab.relays[0].name].stop()
    lab.start_relay(lab.relays[0])
    fine = complete(download(lab, "get-after-restart"))
    checks.check("a relay restarted in the middle: the next download works", fine is True, str(fine))
    running.stop()
    client.stop()


def main():
    checks = Checks("forwarded")
    if why := usable():
        checks.skip("network namespaces", why)
        checks.done()
    chosen = sys.argv[1:]
    with NetLab() as lab:
        lab.start_targets()
        for host in lab.hosts.values():
            host.no_offload()
        for host in lab.relays:
            lab.start_relay(host, IDENTITY)
        for part in (transforms, hops, refused, rough, forgotten):
            if chosen and part.__name__ not in chosen:
                continue
            try:
                part(checks, lab)
            except Exception as e:  # noqa: BLE001: the other parts go on
                checks.check(part.__doc__.splitlines()[0], False, f"{type(e).__name__}: {e}")
        if checks.failed:
            lab.show_logs()
    checks.done()


if __name__ == "__main__":
    if sys.argv[1:2] == ["get"]:
        get(*sys.argv[2:])
    else:
        main()
