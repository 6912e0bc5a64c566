"""What the file may choose beside the defaults, end to end: how failures are told, compatibility, packets of one size, clocks that jump.

Parts of device_test.py.
"""

import collections
import json
import os
import signal
import socket
import sys
import time

from common import Missing, wait_for
from device import PROGRAMS
from device_storms import FLOW_PORT, HOLE, HOSTILE, NO_ROUTE, TABLE, WALL, counters, walls
from netns import RELAY_PORT, Capture, packets

# A relay that carries whole packets, as docs/operating.md has it.
POOL4, POOL6 = "100.96.0", "fd68:6f70:6970:"
# One for each: of a protocol without ports the relay's masquerade carries one flow to a target at a time, and remembers it for minutes.
OTHER = {"anonymity": 253, "compatibility": 254}
WITH_DEVICE = '\n[ip]\nenabled = true\ndevice = "hoplite-ip"\n'
MADE = f"""
ip tuntap add dev hoplite-ip mode tun
ip addr add {POOL4}.1/16 dev hoplite-ip
ip addr add {POOL6}:1/64 dev hoplite-ip nodad
ip link set hoplite-ip up
sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
ip -6 route replace default via ROUTER dev eth0
nft 'add table inet hoplite-ip; add chain inet hoplite-ip out {{ type nat hook postrouting priority srcnat; }};
 add rule inet hoplite-ip out ip saddr {POOL4}.0/16 masquerade; add rule inet hoplite-ip out ip6 saddr {POOL6}:/64 masquerade'
"""


def modes(session):
    """Failures told truly and late, compatibility, packets of one size, clocks that jump."""
    for mode in (openings, replaced, compatibility, padded, clocks):
        began = time.monotonic()
        try:
            mode(session)
        except Exception as e:  # noqa: BLE001: the other modes go on
            session.checks.check(mode.__doc__.splitlines()[0], False, f"{type(e).__name__}: {e}")
        if session.device.daemons():
            session.downs(mode.__name__)
        session.watch.since()
        print(f"     ({mode.__name__}: {time.monotonic() - began:.0f} s)", flush=True)


# --- how failures are told -----------------------------------------------------------------------------------------------------------------------


def openings(session):
    """When a connection counts as open: a failure is told by connect() or, in optimistic mode, by a reset after it."""
    target, relay = session.target, session.lab.relays[-1]
    # (what, host, port, connect()'s error when pessimistic)
    cases = [
        ("a port where nobody listens", target.v4, 9, "ECONNREFUSED"), ("the same by name", "target.test", 9, "ECONNREFUSED"),
        ("the same, IPv6", target.v6, 9, "ECONNREFUSED"), ("a host out of reach", target.v4, WALL, "EHOSTUNREACH"),
        ("a network out of reach", target.v4, NO_ROUTE, "ENETUNREACH"), ("somebody who never answers", target.v4, HOLE, "EHOSTUNREACH"),
        ("a name that is none", "nobody.test", 80, "EHOSTUNREACH"), ("what the relay forbids", relay.v4, 9, "EHOSTUNREACH"),
        ("the same, IPv6", relay.v6, 9, "EACCES"),
    ]
    places = [f"{host},{port}" for _, host, port, _ in cases]
    walls(session)
    try:
        for opening in ("pessimistic", "optimistic"):
            if not session.ups(opening, 2, f'\n[flows]\nopen = "{opening}"\nopening = 2\n'):
                continue
            session.watch.since()
            session.checks.attempt(f"{opening}: traffic flows", session.carries)
            done = session.device.call(sys.executable, HOSTILE, "connects", *places)
            for (what, *_, expected), got in zip(cases, map(json.loads, done.stdout.splitlines()), strict=True):
                told = (got["where"], got["end"])
                # A reset that comes at once may be what connect() itself says.
                wanted = {"pessimistic": [("connect", expected)], "optimistic": [("later", "ECONNRESET"), ("connect", "ECONNRESET")]}[opening]
                session.checks.check(f"{opening}: {what} is told ({got['where']}, {got['end']}, {got['seconds']:.1f} s)",
                                     told in wanted and got["seconds"] < 10, f"expected {wanted}")
            session.state(opening)
            session.downs(opening)
    finally:
        for host in (session.target, session.device):
            host.call("nft", "delete", "table", "inet", TABLE)


# --- one file after the other --------------------------------------------------------------------------------------------------------------------


def replaced(session):
    """One file in the place of another, while programs talk: nothing passes in between, and what is wrong replaces nothing."""
    device, checks = session.device, session.checks
    if not session.ups("replaced", 1):
        return
    session.watch.since()
    talk = f"while :; do curl -s -o /dev/null --max-time 2 http://{session.target.v4}/bytes/1000; done"
    talking = device.run("talking", ["sh", "-c", talk])
    try:
        first = device.status()
        code, text, _ = device.hoplite("up", "--config", device.config(2), "--replace")
        checks.check("replaced: it says that it is up", code == 0, text)
        second = device.status()
        names = [relay.name for relay in session.lab.relays[:2]]
        checks.check("replaced: by another process with the other path", second.get("path") == names and first["pid"] != second["pid"], (first, second))
        checks.attempt("replaced: traffic flows", session.carries)
        code, text, _ = device.hoplite("up", "--config", device.config(1, "\nno_such_key = 1\n"), "--replace")
        checks.check("replaced: a wrong file replaces nothing", code == 2 and device.status().get("pid") == second["pid"], (code, text))
        pins = [session.lab.leaves[relay.name].pin for relay in session.lab.relays]
        wrong = device.config(1)
        wrong.write_text(wrong.read_text().replace(pins[0], pins[1]))
        code, text, _ = device.hoplite("up", "--config", wrong, "--replace", "--wait", "3")
        checks.check("replaced: by a path that does not work, everything stays blocked, and it says so",
                     code == 1 and "stays blocked" in text and device.status().get("state") == "blocked", (code, text, device.status()))
        code, text, _ = device.hoplite("up", "--config", device.config(1), "--replace")
        checks.check("replaced: nobody need be there", code == 0, text)
        session.state("replaced")
    finally:
        talking.stop(signal.SIGKILL)
    session.downs("replaced")


# --- compatibility ---------------------------------------------------------------------------------------------------------------------------------


def compatibility(session):
    """What `privacy` changes: hop limits of whole packets and packets with options; nothing else of a header passes."""
    if not session.lab.ip_relays:
        return session.checks.skip("compatibility", "relays here do not serve CONNECT-IP")
    relay, made = session.lab.relays[1], False
    try:
        script = MADE.replace("ROUTER", f"fd77:{relay.number}::1")
        done = relay.call("sh", "-euc", script)
        made = session.checks.check("compatibility: the relay has a TUN device", done.returncode == 0, done.stderr.decode())
        session.lab.running[relay.name].stop(signal.SIGKILL)
        session.lab.start_relay(relay, WITH_DEVICE)
        for privacy in ("anonymity", "compatibility"):
            if session.ups(privacy, 2, f'\n[device]\nprivacy = "{privacy}"\n'):
                session.watch.since()
                whole_packets(session, privacy)
                options(session, privacy)
                traced(session, privacy)
                session.state(privacy)
                session.downs(privacy)
    finally:
        session.lab.running[relay.name].stop(signal.SIGKILL)
        if made:
            relay.call("sh", "-c", "ip link del hoplite-ip; nft delete table inet hoplite-ip")
            relay.call("sysctl", "-qw", "net.ipv4.ip_forward=0", "net.ipv6.conf.all.forwarding=0")
        session.lab.again(relay)


def whole_packets(session, privacy):
    """Echoes and a protocol of no name, with two hop limits and all marks that there are, as the target sees them."""
    device, target, last = session.device, session.target, session.lab.relays[1]
    capture, other = Capture(target, f"whole-{privacy}"), OTHER[privacy]
    try:
        for hops in (40, 90):
            for host in (target.v4, target.v6):
                # A size for each hop limit, so that they are known again at the target.
                words = ["ping", "-c", "2", "-i", "0.2", "-W", "3", "-t", hops, "-s", hops, "-Q", "0xb9", host]
                for _ in range(3):  # echoes are datagrams all the way: a machine that stands still for a moment loses some
                    got = device.call(*words).stdout.decode()
                    if " 0% packet loss" in got:
                        break
                session.checks.check(f"{privacy}: ping with {hops} hops, {host}", " 0% packet loss" in got, got[-200:])
            device.call(sys.executable, "-c", f"""import socket
s = socket.socket(socket.AF_INET, socket.SOCK_RAW, {other})
s.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, {hops}); s.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, 0xb9)
s.sendto(b'x' * {hops}, ('{target.v4}', 0))""")
        time.sleep(0.5)
    finally:
        capture.process.stop(signal.SIGINT)  # its file never rests: others talk all the time
    seen = [packet for _, *packet in packets(capture.path)]
    arrived, marks = {}, collections.Counter()
    for source, _, protocol, frame in seen:
        if source not in (last.v4, last.v6) or protocol not in (1, 58, other):
            continue
        six = frame[12:14] == b"\x86\xdd"
        start = 54 if six else 14 + 4 * (frame[14] & 15)
        size = (int.from_bytes(frame[18:20]) if six else int.from_bytes(frame[16:18]) - 20) - (0 if protocol == other else 8)
        if size in (40, 90) and (protocol == other or frame[start] in (8, 128)):
            arrived.setdefault((protocol, size), set()).add(frame[21] if six else frame[22])
            marks[(frame[14] & 15) << 4 | frame[15] >> 4 if six else frame[15]] += 1
    for protocol, kind in ((1, "IPv4 echo"), (58, "IPv6 echo"), (other, "another protocol")):
        one, other = arrived.get((protocol, 40)), arrived.get((protocol, 90))
        differ = one and other and len(one) == len(other) == 1 and max(other) - max(one) == 50
        fine = differ if privacy == "compatibility" else one and one == other
        session.checks.check(f"{privacy}: {kind}, hop limits 40 and 90 arrive as {one} and {other}", fine, arrived)
    session.checks.check(f"{privacy}: no mark of a class arrives, in {sum(marks.values())} packets", set(marks) == {0}, marks)


def options(session, privacy):
    """Programs that set IPv4 options: their packets are dropped, or carried without them."""
    before = counters(session)[0]["options"]
    got = session.device.program("with-options", session.target.v4, 80, 7, file=HOSTILE)
    dropped = counters(session)[0]["options"] - before
    carried = got.get("tcp") == "HTTP/1.1" and got.get("udp") == "options"
    fine = carried and not dropped if privacy == "compatibility" else dropped > 1 and got.get("tcp") == got.get("udp") == "TimeoutError"
    session.checks.check(f"{privacy}: packets with options: {got.get('tcp')}, {got.get('udp')}, {dropped} counted", fine, got)


def traced(session, privacy):
    """A hop limit that is used up here, and at the last relay."""
    for hops in (1, 2):
        got = session.device.call("ping", "-c", "1", "-W", "2", "-t", hops, session.target.v4).stdout.decode()
        told, answered = "Time to live exceeded" in got, " 0% packet loss" in got
        fine = told and not answered if privacy == "compatibility" else answered
        session.checks.check(f"{privacy}: ping with {hops} hops is {'told' if told else 'answered' if answered else 'lost'}", fine, got[-300:])


# --- packets of one size ---------------------------------------------------------------------------------------------------------------------------


def padded(session):
    """`pad = "full"`, at both ends: whatever programs do, packets of the uplink have one size, but for the handshake."""
    relay, device = session.lab.relays[0], session.device
    session.lab.running[relay.name].stop(signal.SIGKILL)
    session.lab.again(relay, '\n[tunnel]\npad = "full"\n')
    device.no_offload()
    try:
        for pad in ("off", "full"):
            if not session.ups(f"pad = {pad}", 2, f'\n[tunnel]\npad = "{pad}"\n'):
                continue
            time.sleep(1)  # the path's size is found
            session.watch.since()
            session.checks.attempt(f"pad = {pad}: traffic flows", session.carries)
            device.program("video", "target.test", 7, 1)
            device.program("dressed", session.target.v4, 80, 7, 0, 64, 1460, 200000)
            device.call("ping", "-c", "5", "-i", "0.2", session.target.v4)
            time.sleep(1)  # also at rest
            frames = session.watch.since()
            sent = sizes_of(f for f in frames if f[6:12] == device.mac)
            came = sizes_of(f for f in frames if f[0:6] == device.mac)
            for way, sizes in (("left", sent), ("came", came)):
                total, full = sum(sizes.values()), max(sizes, default=0)
                # Loss probes are left as small as they are: they must get through where large packets may not (1200 bytes and the headers before).
                # How many there are is the machine's doing: an acknowledgement that waits 30 ms for a processor costs two.
                probes = {size: count for size, count in sizes.items() if size <= 1228}
                even = sizes[full] + sum(probes.values()) == total and sizes[full] > 0.6 * total
                wanted = total > 200 and (even if pad == "full" else len(sizes) > 10 and not even)
                session.checks.check(f"pad = {pad}: of {total} packets that {way} {sizes[full]} have {full} bytes and {sum(probes.values())} are loss probes or small",
                                     wanted, sizes.most_common(8))
            session.downs(f"pad = {pad}")
    finally:
        device.offload()
        session.lab.running[relay.name].stop(signal.SIGKILL)
        session.lab.again(relay)


def sizes_of(frames):
    """Sizes of QUIC packets after the handshake (with a short header) between the device and a relay."""
    found = collections.Counter()
    for frame in frames:
        if frame[12:14] == b"\x08\x00" and frame[23] == socket.IPPROTO_UDP:
            udp = 14 + 4 * (frame[14] & 15)
            if str(RELAY_PORT) in map(str, (int.from_bytes(frame[udp:udp + 2]), int.from_bytes(frame[udp + 2:udp + 4]))) and not frame[udp + 8] & 0x80:
                found[len(frame) - 14] += 1
    return found


# --- clocks ----------------------------------------------------------------------------------------------------------------------------------------

FAKETIME = "/usr/lib/{}/faketime/libfaketimeMT.so.1"


def clocks(session):
    """The wall clock jumps years ahead and back, and the other one an hour, as after a sleep: traffic goes on."""
    library = next((place for triple in os.listdir("/usr/lib") if os.path.exists(place := FAKETIME.format(triple))), None)
    if not library:
        return session.checks.skip("clocks that jump", Missing("apt-get install faketime"))
    now = session.lab.folder / "faketime"
    for name, monotonic, first, jumps in (("the wall clock", False, "+0", ("+800d", "-800d")), ("both clocks", True, "+0", ("+3600",)), ("a clock that begins in 2002", False, "-9000d", ())):
        now.write_text(f"{first}\n")
        env = [f"LD_PRELOAD={library}", f"FAKETIME_TIMESTAMP_FILE={now}", "FAKETIME_CACHE_DURATION=1", "FAKETIME_XRESET=1",
               *([] if monotonic else ["FAKETIME_DONT_FAKE_MONOTONIC=1"])]
        if not session.ups(name, 2, env=env):
            continue
        session.watch.since()
        session.checks.attempt(f"{name}: traffic flows", session.carries)
        pids = session.device.daemons()
        maps = open(f"/proc/{pids[0]}/maps").read()
        off = (time.time() - session.device.status()["since"]) // 86400
        session.checks.check(f"{name}: the process lives {off:.0f} days ago, as it should", "faketime" in maps and off == -int(first.strip("d")), off)
        for jump in jumps:
            held = session.device.run(f"held-{time.monotonic_ns()}", [sys.executable, PROGRAMS, "hold", session.target.v4, FLOW_PORT, 20, 2])
            wait_for("the flows", held.lines)
            now.write_text(f"{jump}\n")
            time.sleep(1.1)
            session.recovers(f"{name} jumps {jump}: traffic flows", 10)
            held.child.wait(70)
            kept = held.lines()[-1].get("count") if held.lines() else None
            session.checks.check(f"{name} jumps {jump}: of 20 open flows {kept} live on", kept == 20 or monotonic, held.text()[-200:])
            session.checks.check(f"{name} jumps {jump}: the same process goes on", session.device.daemons() == pids)
        session.state(name)
        session.downs(name)


def sleep(session):
    """The device sleeps for more than a minute, longer than any connection waits (by name only: CI does not wait so long)."""
    for hops in (1, 2):
        if not session.ups(f"sleep, {hops} hops", hops):
            continue
        session.watch.since()
        session.checks.attempt(f"sleep, {hops} hops: traffic flows", session.carries)
        pids = session.device.daemons()
        for seconds in (65, 130):
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            time.sleep(seconds)
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
            session.recovers(f"sleep, {hops} hops: woken after {seconds} s, traffic flows", 5)
        session.checks.check(f"sleep, {hops} hops: the same process goes on", session.device.daemons() == pids)
        session.state(f"sleep, {hops} hops")
        session.downs(f"sleep, {hops} hops")
    session.watch.since()
