"""What the network sees, and what a path survives: a client, four relays and a target in network namespaces, with packet captures.

Needs root; says so and passes when it is not.
"""

import signal
import sys
import time

from common import Checks, in_thread, sha256, wait_for
from netns import HTTP, Capture, NetLab, ends, usable
from servers import payload

BIG = 100_000_000
UDP, TCP = 17, 6


def paths(checks, lab):
    """1..4 relays; HTTP/1.1 and 2, IPv4 and IPv6, both front ends; who sees whom."""
    size = 2_000_000
    expected = sha256(payload(size))
    for hops in (1, 2, 3, 4):
        used = lab.relays[:hops]
        captures = {h.name: Capture(h, f"capture-{h.name}-{hops}") for h in (lab.client, *lab.relays)}
        client = lab.start_client(hops)

        def get(url, *more, **kw):
            got = lab.curl(url, *more, **kw)
            return sha256(got.stdout) == expected or f"curl {got.returncode}: {got.stderr.decode().strip()}, {len(got.stdout)} bytes"
        path = f"bytes/{size}"
        for what, url, more in (("HTTP/1.1", f"https://target.test/{path}", ["--http1.1"]),
                                ("HTTP/2", f"https://target.test/{path}", ["--http2"]),
                                ("HTTP/2, IPv6 target", f"https://target6.test/{path}", ["--http2"]),
                                ("plain HTTP", f"http://target.test/{path}", []),
                                ("IPv4 address", f"https://{lab.target.v4}/{path}", []),
                                ("IPv6 address", f"https://[{lab.target.v6}]/{path}", [])):
            checks.attempt(f"{hops} hops, SOCKS: {what}", lambda: get(url, *more))
        for what, url in (("https", f"https://target.test/{path}"), ("http", f"http://target.test/{path}")):
            checks.attempt(f"{hops} hops, HTTP proxy: {what}",
                           lambda: get(url, proxy=f"http://127.0.0.1:{HTTP}"))
        client.stop()
        seen = {name: c.stop() for name, c in captures.items()}
        views(checks, lab, hops, used, seen)


def views(checks, lab, hops, used, seen):
    own = lab.client.v4
    others = ends(seen["client"]) - {own, lab.client.v6}
    checks.check(f"{hops} hops: on the client only the first relay's address appears", others == {used[0].v4}, str(others))
    for i, relay in enumerate(used):
        peers = ends(seen[relay.name]) - {relay.v4, relay.v6}
        before = {own} if i == 0 else {used[i - 1].v4}
        after = {used[i + 1].v4} if i + 1 < hops else {lab.target.v4, lab.target.v6}
        checks.check(f"{hops} hops: relay {i + 1} sees its neighbours only", peers <= before | after and before <= peers,
                     f"{peers}, expected {before | after}")
        if hops > 1:
            both = own in peers and peers & {lab.target.v4, lab.target.v6}
            checks.check(f"{hops} hops: relay {i + 1} never sees both ends", not both, str(peers))
    for name in ["client", *(r.name for r in used[:-1])]:
        leak = any(b"target" in p[3] for p in seen[name])
        checks.check(f"{hops} hops: the target's name is in no packet at {name}", not leak)


def blocked(checks, lab):
    """UDP dropped at relay 1 during transfers, then not."""
    first = lab.relays[0]
    client = lab.start_client(2, "client-blocked")
    url, small = f"https://target.test/bytes/{BIG}", "https://target.test/bytes/1000000"
    expected = sha256(payload(BIG))

    def fine(timeout=20):
        got = lab.curl(small, timeout=timeout)
        return len(got.stdout) == 1_000_000

    def carried():
        """By what a new download reaches relay 1: bytes by protocol."""
        capture = Capture(lab.client, f"capture-carried-{time.monotonic_ns()}")
        ok = fine()
        seen = capture.stop()
        count = {kind: sum(len(p[3]) for p in seen if p[2] == kind) for kind in (UDP, TCP)}
        return ok, count

    try:
        ok, count = carried()
        checks.check("UDP open: a download goes by QUIC", ok and count[UDP] > 900_000 > count[TCP], str(count))

        out = lab.folder / "short.bin"
        transfer = lab.curl_process("curl-short", url, out, "--limit-rate", "25M")
        time.sleep(1)
        first.block_udp()
        time.sleep(1.5)
        first.unblock_udp()
        transfer.child.wait(60)
        checks.check("UDP blocked for 1.5 s: the running download completes, checksum",
                     transfer.child.returncode == 0 and sha256(out.read_bytes()) == expected, transfer.text()[-200:])

        out = lab.folder / "long.bin"
        transfer = lab.curl_process("curl-long", url, out, "--limit-rate", "10M", timeout=90)
        time.sleep(1)
        first.block_udp()
        began = time.monotonic()
        try:
            wait_for("a download by TCP", lambda: fine(10), 40)
            took = time.monotonic() - began
            checks.check(f"UDP blocked: new downloads work again ({took:.1f} s)", took < 20, f"{took:.1f} s")
        except TimeoutError as e:
            checks.check("UDP blocked: new downloads work again", False, str(e))
        ok, count = carried()
        checks.check("UDP blocked: they go by TCP", ok and count[TCP] > 900_000, str(count))
        try:
            transfer.child.wait(60)
            checks.check("UDP blocked: the download that ran is ended or completed, not left hanging", True)
        except Exception:
            checks.check("UDP blocked: the download that ran is ended or completed, not left hanging", False)
            transfer.stop(signal.SIGKILL)
        first.unblock_udp()

        def quic_again():
            ok, count = carried()
            return ok and count[UDP] > 900_000 and count
        try:
            began = time.monotonic()
            wait_for("QUIC", quic_again, 90)
            checks.check(f"UDP open again: QUIC is used again ({time.monotonic() - began:.0f} s)", True)
        except TimeoutError as e:
            checks.check("UDP open again: QUIC is used again", False, str(e))
    finally:
        first.unblock_udp()
        client.stop()
    first.block_udp()
    try:
        client = lab.start_client(2, "client-no-udp")
        began = time.monotonic()
        checks.check("UDP blocked from the start: a download works", fine(30))
        checks.check("and soon", time.monotonic() - began < 15, f"{time.monotonic() - began:.1f} s")
        client.stop()
    finally:
        first.unblock_udp()


def killed(checks, lab):
    """A relay dies by SIGKILL under load and comes back."""
    client = lab.start_client(2, "client-killed")
    stop, results = [], []

    def load():
        while not stop:
            began = time.monotonic()
            got = lab.curl("https://target.test/bytes/3000000", timeout=30)
            results.append((began, time.monotonic() - began, got.returncode, len(got.stdout)))
            if got.returncode:
                time.sleep(0.2)  # a program that retries, not one that spins

    workers = [in_thread(load) for _ in range(4)]
    for number, host in ((2, lab.relays[1]), (1, lab.relays[0])):
        time.sleep(2)
        lab.running[host.name].stop(signal.SIGKILL)
        down = time.monotonic()
        time.sleep(1)
        lab.start_relay(host)
        up = time.monotonic()

        def recovered():
            return any(began > up and code == 0 and size == 3_000_000 for began, _, code, size in list(results))
        try:
            wait_for("a download", recovered, 30)
            checks.check(f"relay {number} killed and restarted under load: downloads work again ({time.monotonic() - up:.1f} s)", True)
        except TimeoutError as e:
            checks.check(f"relay {number} killed and restarted under load: downloads work again", False, str(e))
        failed = [r for r in results if r[0] + r[1] > down and r[2]]
        wrong = [r for r in results if r[2] == 0 and r[3] != 3_000_000]
        longest = max((begun + took - down for begun, took, _, _ in failed), default=0)
        checks.check(f"relay {number} killed: broken downloads ended soon (after {longest:.0f} s at most), none silently short",
                     not wrong and all(took < 25 for _, took, _, _ in failed), f"{failed} {wrong}")
    stop.append(True)
    for thread, _ in workers:
        thread.join(40)
    checks.check("the client lived through it", client.alive())
    client.stop()


def moved(checks, lab):
    """The device changes its address in the middle of a download."""
    client = lab.start_client(2, "client-moved")
    out = lab.folder / "moved.bin"
    lab.curl("https://target.test/bytes/1000")
    transfer = lab.curl_process("curl-moved", f"https://target.test/bytes/{BIG}", out, "--limit-rate", "25M")
    time.sleep(1)
    lab.client.renumber(77)
    transfer.child.wait(70)
    checks.check("address changed during a download: it completes (QUIC migration), checksum",
                 transfer.child.returncode == 0 and sha256(out.read_bytes()) == sha256(payload(BIG)), transfer.text()[-200:])
    client.stop()


def narrow(checks, lab):
    """A path whose MTU is smaller than Ethernet's."""
    expected = sha256(payload(5_000_000))
    for mtu in (1400, 1280):
        for host in (lab.client, *lab.relays, lab.target):
            host.mtu(mtu)
        for hops in (1, 2, 3):
            client = lab.start_client(hops, f"client-mtu-{mtu}-{hops}")
            got = lab.curl("https://target.test/bytes/5000000", timeout=40)
            checks.check(f"MTU {mtu}, {hops} hops: 5 MB, checksum", sha256(got.stdout) == expected,
                         f"curl {got.returncode}: {got.stderr.decode().strip()} {len(got.stdout)} bytes")
            client.stop()
    for host in (lab.client, *lab.relays, lab.target):
        host.mtu(1500)


def main():
    checks = Checks("netns")
    if why := usable():
        checks.skip("network namespaces", why)
        checks.done()
    chosen = sys.argv[1:]  # parts by name; all without
    with NetLab() as lab:
        targets = lab.start_targets()
        for host in lab.relays:
            lab.start_relay(host)
        if not chosen:
            paths(checks, lab)
        allowed = {r.v4 for r in lab.relays} | {r.v6 for r in lab.relays}
        peers = {line["peer"] for t in targets for line in t.lines() if line.get("event") in ("request", "dns")}
        checks.check("the target has seen relays only", peers <= allowed, str(peers - allowed))
        for part in (narrow, blocked, killed, moved):
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
    main()
