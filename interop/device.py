"""A device in a namespace: an uplink that is captured from beginning to end, an /etc and a /run of its own. Used by device_test.py and device_bench.py; needs root."""

import collections
import contextlib
import ipaddress
import json
import os
import pathlib
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time

from common import HERE, HOPLITE, TOKEN, quoted, wait_for
from netns import RELAY_PORT, Capture, Host, NetLab, ip, usable as netns_usable

NAME = "hoplite0"
PROGRAMS = HERE / "programs.py"
# What the device's administrator wrote; it must come back byte by byte.
RESOLV = "# written by hand, with  two blanks\nsearch lan.test\nnameserver {0}\noptions timeout:2 attempts:2\n"
# Relays carry echo and other protocols (CONNECT-IP) when they are told to.
RELAY = "\n[ip]\nenabled = true\n"
# In a mount namespace of its own: /etc and /run that hoplite may change, and nobody else sees.
OWN = """
mkdir -p "$PLACE/etc" "$PLACE/run"
mount -t tmpfs -o mode=755 none "$PLACE/etc"
cp -a /etc/. "$PLACE/etc/"
rm -f "$PLACE/etc/resolv.conf"
cp "$PLACE/resolv.conf" "$PLACE/etc/resolv.conf"
mount --bind "$PLACE/etc" /etc
mount -t tmpfs -o mode=755 none /run
test -e /sys/fs/cgroup/cgroup.procs || mount -t cgroup2 none /sys/fs/cgroup 2>/dev/null || true
mkdir -p "$PLACE/bare"
echo ready
exec sleep infinity
"""


def usable():
    """None, or why a device cannot be had here."""
    if why := netns_usable():
        return why
    if not pathlib.Path("/dev/net/tun").exists():
        return "no /dev/net/tun"
    known = subprocess.run([HOPLITE, "--help"], capture_output=True, text=True, check=False).stdout.split()
    return None if "up" in known else f"{HOPLITE} does not know `up`"


class Device(Host):
    """The client: programs enter its network and mount namespaces by way of a process that sleeps there."""

    def __init__(self, lab, name, number):
        super().__init__(lab, name, number)
        place = lab.folder / "device"
        place.mkdir()
        self.place = place
        (place / "resolv.conf").write_text(RESOLV.format(lab.resolver))
        command = ["ip", "netns", "exec", self.ns, "unshare", "--mount", "--propagation", "private", "sh", "-euc", OWN]
        self.holder = lab.run("device", command, env={"PLACE": str(place)})
        wait_for("the device's namespaces", lambda: "ready" in self.holder.text() or not self.holder.alive())
        if not self.holder.alive():
            raise RuntimeError(f"no mount namespace for the device: {self.holder.text()}")
        link = json.loads(subprocess.run(["ip", "-n", self.ns, "-j", "link", "show", "eth0"], capture_output=True, check=True).stdout)
        self.mac = bytes.fromhex(link[0]["address"].replace(":", ""))
        self.net = os.stat(f"/proc/{self.holder.child.pid}/ns/net").st_ino
        self.ups = 0

    def prefix(self):
        return ("nsenter", "--target", str(self.holder.child.pid), "--mount", "--net", "--")

    def call(self, *command, timeout=60):
        """As a host's, but one that takes too long has failed, and no more."""
        try:
            return super().call(*command, timeout=timeout)
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(command, 124, b"", f"not back after {timeout} s".encode())

    def sh(self, script, timeout=60):
        return self.call("sh", "-c", script, timeout=timeout).stdout.decode()

    def program(self, *words, timeout=90, file=PROGRAMS):
        """The last JSON line of one of programs.py's (or another file's); a dictionary with `error` when there is none."""
        done = self.call(sys.executable, file, *words, timeout=timeout)
        lines = done.stdout.decode().splitlines()
        return json.loads(lines[-1]) if lines else {"error": done.stderr.decode()[-300:]}

    def curl(self, url, *more, timeout=20):
        words = ["curl", "-sS", "--max-time", timeout, "--cacert", self.lab.authority.ca, *more, url]
        return self.call(*words, timeout=timeout + 10)

    # --- hoplite -----------------------------------------------------------------------------------------------------------------------

    def config(self, hops=1, extra="", top=""):
        relays = self.lab.relays[:hops]
        text = f"path = {quoted(r.name for r in relays)}\ntoken = \"{TOKEN}\"\n{top}"
        for r in relays:
            text += f'\n[[relay]]\nname = "{r.name}"\naddress = "{r.v4}:{RELAY_PORT}"\npin = "{self.lab.leaves[r.name].pin}"\n'
        self.ups += 1
        path = self.lab.folder / f"up-{self.ups}.toml"
        path.write_text(text + extra)
        return path

    def hoplite(self, *words, timeout=60, env=()):
        """(exit code, what it said, seconds). Its output is a file: a pipe would last as long as the daemon does."""
        name, began = f"hoplite-{words[0]}-{time.monotonic_ns()}", time.monotonic()
        process = self.run(name, ["env", *env, HOPLITE, *words])
        try:
            process.child.wait(timeout)
        except subprocess.TimeoutExpired:
            process.stop(signal.SIGKILL)
        return process.child.returncode, process.text(), time.monotonic() - began

    def up(self, hops=1, extra="", *more, env=(), top=""):
        return self.hoplite("up", "--config", self.config(hops, extra, top), *more, env=env)

    def down(self):
        return self.hoplite("down")

    def status(self):
        code, text, _ = self.hoplite("status", "--json")
        lines = [line for line in text.splitlines() if line.startswith("{")]
        return json.loads(lines[-1]) if lines else {"exit": code, "text": text}

    def daemons(self):
        """The processes of hoplite in the device's namespace."""
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and os.stat(entry / "ns/net").st_ino == self.net and os.readlink(entry / "exe").split(" ")[0] == str(HOPLITE):
                    found.append(int(entry.name))
            except OSError:
                continue
        return found

    def kill(self, how=signal.SIGKILL):
        """Signals what `daemons` found, and waits for it to be gone."""
        for pid in self.daemons():
            os.kill(pid, how)
        wait_for("the daemon's end", lambda: not self.daemons(), 10)

    # --- what must be as it was ----------------------------------------------------------------------------------------------------------

    def snapshot(self):
        """All that `up` may change, as text."""
        commands = {
            "addresses": "ip -d addr | sed 's/valid_lft.*//'", "rules": "ip rule; ip -6 rule",
            "routes": "ip route show table all; ip -6 route show table all", "nftables": "nft list ruleset",
            "resolv.conf": "ls -l --time-style=+ /etc/resolv.conf; cat /etc/resolv.conf",
            "/etc": "ls -A /etc", "sysctls": "sysctl -a -r '^net[.]ipv[46][.](conf[.](all|default|eth0|lo)|ip_)' 2>/dev/null",
        }
        self.sh("for n in $(seq 50); do ip -6 addr show tentative | grep -q . || break; sleep 0.1; done")
        return {name: self.sh(script) for name, script in commands.items()}

    def resolv(self, text):
        """As a DHCP client writes it: another file in its place."""
        self.sh(f"cat > /etc/resolv.conf.new <<'EOF'\n{text}EOF\nmv /etc/resolv.conf.new /etc/resolv.conf")


class DeviceLab(NetLab):
    """The device, three relays, the target."""

    def __init__(self, relays=3):
        self.resolver, self.ip_relays = f"10.77.{relays + 2}.2", True  # the target's address
        super().__init__(relays)

    def host(self, name, number):
        return (Device if name == "client" else Host)(self, name, number)

    def again(self, relay, extra=""):
        """Starts a relay, perhaps with more in its file."""
        return self.start_relay(relay, (RELAY if self.ip_relays else "") + extra)

    def __exit__(self, *error):
        for pid in self.client.daemons():
            os.kill(pid, signal.SIGKILL)
        super().__exit__(*error)


class Watch:
    """Every frame of the device's uplink, from beginning to end; `since` cuts it into states."""

    def __init__(self, device):
        self.device, self.at, self.kept = device, 24, []
        self.capture = Capture(device, "uplink", what="")

    def since(self):
        """The frames since the last cut, oldest first."""
        now = time.time()
        with contextlib.suppress(TimeoutError):
            # Frames are written in their order: once a later one is there, none is missing. On a silent link there is none.
            wait_for("a later frame", lambda: self.read() > now, 0.5)
        cut = [frame for when, frame in self.kept if when <= now]
        self.kept = [(when, frame) for when, frame in self.kept if when > now]
        return cut

    def read(self):
        """Takes over what tcpdump has written; when the last frame of it came."""
        with self.capture.path.open("rb") as file:
            file.seek(self.at)
            data = file.read()
        at = 0
        while at + 16 <= len(data):
            seconds, micros, size, _ = struct.unpack("<IIII", data[at:at + 16])
            if at + 16 + size > len(data):
                break
            self.kept.append((seconds + micros / 1e6, data[at + 16:at + 16 + size]))
            at += 16 + size
        self.at += at
        return self.kept[-1][0] if self.kept else 0

    def outgoing(self):
        return [f for f in self.since() if f[6:12] == self.device.mac]


# What a link says about itself, with the hop limit that keeps it there (RFC 4861 sections 4.1 to 4.4; RFC 3810 section 5.2, RFC 2710 section 3): router and
# neighbour solicitation, neighbour advertisement; reports of multicast listeners, to groups of the link.
DISCOVERY, REPORTS = (133, 135, 136), (131, 132, 143)


def describe(frame):
    """(protocol, destination, port) of a frame; None for what a link says about itself: ARP, neighbour discovery, reports of multicast listeners."""
    kind = frame[12:14]
    if kind == b"\x08\x00":
        start, protocol, destination = 14 + 4 * (frame[14] & 15), frame[23], frame[30:34]
        if int.from_bytes(frame[20:22]) & 0x1fff:
            return protocol, socket.inet_ntoa(destination), "fragment"
    elif kind == b"\x86\xdd":
        start, protocol, destination = 54, frame[20], frame[38:54]
        if protocol == 58 and frame[54] in DISCOVERY and frame[21] == 255:
            return None
        # A hop-by-hop header of eight bytes with the router alert comes before.
        if protocol == 0 and frame[54] == 58 and frame[62] in REPORTS and frame[21] == 1 and destination[:2] == b"\xff\x02":
            return None
    else:
        return None if kind == b"\x08\x06" else (f"ethertype {kind.hex()}", frame[0:6].hex(), 0)
    port = int.from_bytes(frame[start + 2:start + 4]) if protocol in (6, 17) else 0
    return protocol, str(ipaddress.ip_address(destination)), port


def strangers(frames, relay):
    """What left the device and was not for its first relay: counted."""
    seen = collections.Counter(describe(f) for f in frames)
    return {what: count for what, count in seen.items() if what and what not in {(17, relay, RELAY_PORT), (6, relay, RELAY_PORT)}}


__all__ = ["NAME", "PROGRAMS", "Device", "DeviceLab", "Watch", "describe", "shutil", "strangers", "usable"]
