"""Hosts as network namespaces round one router, with captures. Used by netns_test.py; needs root. Everything vanishes at the end."""

import ipaddress
import os
import shutil
import signal
import struct
import subprocess
import sys
import time

from common import HERE, HOPLITE, TOKEN, Lab, Missing, Process, client_config, port_open, relay_config, wait_for

RELAY_PORT, SOCKS, HTTP = 443, 1080, 8080


def usable():
    """None, or why namespaces cannot be had here."""
    if os.geteuid() != 0:
        return "not root"
    for tool in ("ip", "tcpdump", "nft", "curl"):
        if not shutil.which(tool):
            return Missing(f"{tool} is not installed")
    probe = f"hoplite-probe-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True)
    if made.returncode:
        return f"no network namespaces here: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "del", probe], check=False)
    return None


def ip(*words, ns=None):
    subprocess.run(["ip", *(["-n", ns] if ns else []), *map(str, words)], check=True, capture_output=True, text=True)


class Host:
    """One namespace with `eth0` to the router; IPv4 and IPv6."""

    def __init__(self, lab, name, number):
        self.lab, self.name, self.number = lab, name, number
        self.ns, self.v4, self.v6 = f"{lab.prefix}-{name}", f"10.77.{number}.2", f"fd77:{number}::2"
        ip("netns", "add", self.ns)
        router_end = f"to-{name}"[:15]
        ip("link", "add", router_end, "netns", lab.router, "type", "veth", "peer", "name", "eth0", "netns", self.ns)
        for ns, device, last in ((lab.router, router_end, 1), (self.ns, "eth0", 2)):
            # One that was set: a machine's udev gives those another that were made up, and captures know it by this one.
            ip("link", "set", device, "address", f"02:77:{number >> 8:02x}:{number & 255:02x}:00:{last:02x}", ns=ns)
            ip("addr", "add", f"10.77.{number}.{last}/24", "dev", device, ns=ns)
            ip("addr", "add", f"fd77:{number}::{last}/64", "dev", device, "nodad", ns=ns)
            ip("link", "set", device, "up", ns=ns)
        ip("link", "set", "lo", "up", ns=self.ns)
        ip("route", "add", "default", "via", f"10.77.{number}.1", ns=self.ns)
        ip("-6", "route", "add", "default", "via", f"fd77:{number}::1", ns=self.ns)
        self.router_end = router_end

    def prefix(self):
        return ("ip", "netns", "exec", self.ns)

    def run(self, name, command, **more):
        return self.lab.run(name, command, prefix=self.prefix(), **more)

    def call(self, *command, timeout=60):
        return subprocess.run([*self.prefix(), *map(str, command)], capture_output=True, timeout=timeout)

    def mtu(self, size):
        ip("link", "set", "eth0", "mtu", size, ns=self.ns)
        ip("link", "set", self.router_end, "mtu", size, ns=self.lab.router)

    def no_offload(self):
        """From now on captures on either end show packets as a real link would carry them, not batches."""
        ip("link", "set", "eth0", "gso_max_segs", 1, ns=self.ns)
        ip("link", "set", self.router_end, "gso_max_segs", 1, ns=self.lab.router)

    def offload(self):
        """The opposite."""
        ip("link", "set", "eth0", "gso_max_segs", 65535, ns=self.ns)
        ip("link", "set", self.router_end, "gso_max_segs", 65535, ns=self.lab.router)

    def block_udp(self):
        chain = "chain {0}put {{\n type filter hook {0}put priority 0\n meta l4proto udp drop\n}}\n"
        rules = "table inet block {\n" + chain.format("in") + chain.format("out") + "}\n"
        subprocess.run([*self.prefix(), "nft", "-f", "-"], input=rules, text=True, check=True, capture_output=True)

    def unblock_udp(self):
        self.call("nft", "delete", "table", "inet", "block")

    def renumber(self, last):
        """Another address instead of the old one, as when a device changes networks."""
        new = f"10.77.{self.number}.{last}"
        ip("addr", "del", f"{self.v4}/24", "dev", "eth0", ns=self.ns)
        ip("addr", "add", f"{new}/24", "dev", "eth0", ns=self.ns)
        ip("route", "replace", "default", "via", f"10.77.{self.number}.1", ns=self.ns)
        self.v4 = new


class Capture:
    """tcpdump on a host's eth0."""

    def __init__(self, host, name, what="ip or ip6"):
        self.host, self.path = host, host.lab.folder / f"{name}.pcap"
        self.process = host.run(name, ["tcpdump", "-i", "eth0", "-n", "-U", "--immediate-mode", "-B", 65536, "-w", self.path, what])
        wait_for("tcpdump", lambda: "listening on" in self.process.text() or not self.process.alive())

    def stop(self):
        """Ends it; (source, destination, protocol, bytes) of each packet."""
        return [packet for _, *packet in self.stop_timed()]

    def stop_timed(self):
        """Ends it; (seconds, source, destination, protocol, bytes) of each packet, by the clock that all hosts share."""
        written = -1
        for _ in range(25):  # until a slow machine's tcpdump has caught up; some links are never quiet
            if written == (written := self.path.stat().st_size):
                break
            time.sleep(0.4)
        self.process.stop(signal.SIGINT)
        return list(packets(self.path))


def packets(path):
    """(seconds, source, destination, protocol, bytes) of each IP packet of a capture."""
    data = path.read_bytes()
    at = 24
    while at + 16 <= len(data):
        seconds, micros, size = struct.unpack("<3I", data[at:at + 12])
        when = seconds + micros / 1e6
        frame = data[at + 16:at + 16 + size]
        at += 16 + size
        kind = frame[12:14]
        if kind == b"\x08\x00":
            dotted = lambda raw: ".".join(map(str, raw))  # noqa: E731
            yield when, dotted(frame[26:30]), dotted(frame[30:34]), frame[23], frame
        elif kind == b"\x86\xdd":
            # Multicast listeners (behind a hop-by-hop header) and neighbour discovery: the link talks about itself.
            housekeeping = frame[20] == 0 or (frame[20] == 58 and 130 <= frame[54] <= 143)
            if not housekeeping:
                source, destination = (str(ipaddress.ip_address(frame[i:i + 16])) for i in (22, 38))
                yield when, source, destination, frame[20], frame


def ends(seen):
    return {p[0] for p in seen} | {p[1] for p in seen}


class NetLab(Lab):
    """client, relays r1..rn, target; each a host."""

    def __init__(self, relays=4):
        super().__init__()
        self.prefix = f"hop{os.getpid()}"
        self.router = f"{self.prefix}-router"
        self.namespaces = [self.router]
        ip("netns", "add", self.router)
        for key in ("net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"):
            subprocess.run(["ip", "netns", "exec", self.router, "sysctl", "-qw", key], check=True, capture_output=True)
        names = ["client", *(f"r{i}" for i in range(1, relays + 1)), "target"]
        self.hosts = {}
        for number, name in enumerate(names, 1):
            self.hosts[name] = host = self.host(name, number)
            self.namespaces.append(host.ns)
        self.client, self.target = self.hosts["client"], self.hosts["target"]
        self.relays = [self.hosts[f"r{i}"] for i in range(1, relays + 1)]
        self.leaves, self.running = {}, {}

    def host(self, name, number):
        return Host(self, name, number)

    def __exit__(self, *error):
        super().__exit__(*error)
        for ns in self.namespaces:
            subprocess.run(["ip", "netns", "del", ns], capture_output=True, check=False)

    def start_targets(self, *more):
        """`more`: for servers.py."""
        leaf = self.authority.leaf("target", ["target.test", "target6.test", self.target.v4, self.target.v6])
        self.ports = {}
        for name, host in (("targets", self.target.v4), ("targets6", self.target.v6)):
            command = [sys.executable, HERE / "servers.py", "--host", host, "--cert", leaf.cert, "--key", leaf.key,
                       "--tls-port", 443, "--http-port", 80, "--echo-port", 7, "--dns-port", 53,
                       "--name", f"target.test={self.target.v4}", "--name", f"target6.test={self.target.v6}", *more]
            server = self.target.run(name, command)
            wait_for(name, lambda: server.lines() or not server.alive())
            if not server.lines():
                raise RuntimeError(server.text())
        return [p for p in self.processes if p.name.startswith("targets")]

    def start_relay(self, host, extra="", top="", listen="0.0.0.0"):
        """Ingress to every other relay, egress to the target. `top`, `extra`: more at the beginning of its file, and at the end."""
        if host.name not in self.leaves:  # a restarted relay keeps its key
            self.leaves[host.name] = self.authority.leaf(host.name, [host.v4, host.name])
        leaf = self.leaves[host.name]
        onward = [f"{r.v4}:{RELAY_PORT}" for r in self.relays if r is not host]
        config = top + relay_config(host.name, f"{listen}:{RELAY_PORT}", ("ingress", "egress"), leaf,
                              (f"{self.target.v4}/32", f"{self.target.v6}/128"), f"{self.target.v4}:53", (TOKEN,), onward, extra)
        path = self.folder / f"{host.name}.toml"
        path.write_text(config)
        # As distributions have it, and fresh namespaces do not: a relay answers for echoes by ping sockets.
        host.call("sysctl", "-qw", "net.ipv4.ping_group_range=0 2147483647")
        log = self.folder / f"relay-{host.name}.log"
        mark = len(log.read_text()) if log.exists() else 0  # a restarted relay writes on
        relay = host.run(f"relay-{host.name}", [HOPLITE, "relay", "--config", path])
        self.running[host.name] = relay
        wait_for(relay.name, lambda: " is up" in relay.text()[mark:] or not relay.alive())
        if not relay.alive():
            raise RuntimeError(f"{relay.name} ended: {relay.text()}")
        return relay

    def start_client(self, hops, name=None, extra=""):
        name = name or f"client-{hops}"
        entries = [(r.name, f"{r.v4}:{RELAY_PORT}", self.leaves[r.name].pin, None) for r in self.relays[:hops]]
        path = self.folder / f"{name}.toml"
        path.write_text(client_config(entries, f"127.0.0.1:{SOCKS}", f"127.0.0.1:{HTTP}", TOKEN, extra))
        client = self.client.run(name, [HOPLITE, "client", "--config", path])
        self._wait_port(self.client, "127.0.0.1", SOCKS, client)
        return client

    def _wait_port(self, host, address, port, process):
        probe = f"import sys; sys.path.insert(0, {str(HERE)!r}); from common import port_open; sys.exit(not port_open({address!r}, {port}))"
        wait_for(process.name, lambda: not process.alive() or host.call(sys.executable, "-c", probe).returncode == 0)
        if not process.alive():
            raise RuntimeError(f"{process.name} ended: {process.text()}")

    def curl(self, url, *more, proxy=f"socks5h://127.0.0.1:{SOCKS}", timeout=60, output="-"):
        words = ["curl", "-sS", "--max-time", timeout, "--cacert", self.authority.ca, "--proxy", proxy, "-o", output, *more, url]
        return self.client.call(*words, timeout=timeout + 10)

    def curl_process(self, name, url, output, *more, timeout=60):
        words = ["curl", "-sS", "--max-time", timeout, "--cacert", self.authority.ca,
                 "--proxy", f"socks5h://127.0.0.1:{SOCKS}", "-o", output, *more, url]
        return self.client.run(name, words)


__all__ = ["Capture", "NetLab", "Process", "ends", "packets", "port_open", "usable", "HTTP", "SOCKS"]
