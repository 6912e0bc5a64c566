"""What a forwarded packet costs, one packet a send: by the relay, by its program in the kernel, and beside them routed by the kernel.

For a hoplite that is built with `--features kernel-forwarding` ($HOPLITE); on an idle machine, as root. usage: kernel_forwarding_bench.py [ROUNDS]
A sender, the relay's host and a target in namespaces, joined by two veths. In each round every way carries as many packets as one sender makes, which keeps
a core busy; the whole machine's processor time is counted. At a pace below that the kernel's ticks see nothing of bursts. The last line has all figures as
JSON.
"""

import asyncio
import ctypes
import json
import os
import pathlib
import random
import signal
import socket
import statistics
import struct
import subprocess
import sys
import time

from common import HOPLITE, TOKEN, Lab, relay_config, wait_for
from kernel_forwarding_test import ip_header
from masque_client import Client
from netns import ip

PACKET = 1228  # UDP payload, in bytes
SECONDS = 3
BURST = 32
SENDER, NEAR, FAR, TARGET = "10.88.1.2", "10.88.1.1", "10.88.2.1", "10.88.2.2"
PORT, ID = 4444, b"ABCDEFGH"
REGISTER_TARGET_CID, ACK_TARGET_CID = 0xFFE601, 0xFFE604
WAYS = ("routed", "relay", "kernel, generic", "kernel, driver")


class Namespaces:
    def __init__(self):
        self.sender, self.relay, self.target = self.all = [f"hx{os.getpid()}-{name}" for name in ("sender", "relay", "target")]
        for ns in self.all:
            ip("netns", "add", ns)
            ip("link", "set", "lo", "up", ns=ns)
        for near, end, ns, address, other in ((SENDER, "eth0", self.sender, NEAR, "in"), (TARGET, "eth0", self.target, FAR, "out")):
            ip("link", "add", end, "netns", ns, "type", "veth", "peer", "name", other, "netns", self.relay)
            ip("addr", "add", f"{near}/24", "dev", end, ns=ns)
            ip("addr", "add", f"{address}/24", "dev", other, ns=self.relay)
            ip("link", "set", end, "up", ns=ns)
            ip("link", "set", other, "up", ns=self.relay)
            ip("route", "add", "default", "via", address, ns=ns)
        self.call(self.relay, "sysctl", "-qw", "net.ipv4.ip_forward=1")
        # What has arrived is counted, and goes no further.
        rules = f"table inet sink {{\n chain in {{\n type filter hook prerouting priority raw\n udp dport {PORT} udp length {PACKET + 8} counter drop\n }}\n}}\n"
        subprocess.run(["ip", "netns", "exec", self.target, "nft", "-f", "-"], input=rules, text=True, check=True)

    def call(self, ns, *command):
        return subprocess.run(["ip", "netns", "exec", ns, *map(str, command)], check=True, capture_output=True, text=True).stdout

    def arrived(self):
        rules = json.loads(self.call(self.target, "nft", "-j", "list", "table", "inet", "sink"))
        return next(e["counter"]["packets"] for r in rules["nftables"] if "rule" in r for e in r["rule"]["expr"] if "counter" in e)

    def delete(self):
        for ns in self.all:
            subprocess.run(["ip", "netns", "del", ns], capture_output=True, check=False)


async def register(ca):
    """In the sender's namespace: has the relay forward packets to the target, says by which port and alias, and stays."""
    from aioquic.asyncio import connect
    from aioquic.buffer import Buffer, encode_uint_var
    from aioquic.h3.connection import H3_ALPN
    from aioquic.quic.configuration import QuicConfiguration
    configuration = QuicConfiguration(is_client=True, alpn_protocols=H3_ALPN, cafile=ca, server_name="amber", max_datagram_frame_size=65536, idle_timeout=600)
    async with connect(NEAR, 443, configuration=configuration, create_protocol=Client) as client:
        client.token = TOKEN
        exchange = client.request([(":method", "CONNECT"), (":protocol", "connect-udp"), (":scheme", "https"), (":authority", "amber"),
                                   (":path", f"/.well-known/masque/udp/{TARGET}/{PORT}/"), ("capsule-protocol", "?1"),
                                   ("proxy-quic-forwarding", '?1; accept-transform="identity"')])
        assert await exchange.status() == 200
        value = bytes([len(ID)]) + ID + b"\0"
        exchange.write(encode_uint_var(REGISTER_TARGET_CID) + encode_uint_var(len(value)) + value)
        data = b""
        while True:
            data += await exchange.read()
            buffer = Buffer(data=data)
            while not buffer.eof():
                kind, value = buffer.pull_uint_var(), buffer.pull_bytes(buffer.pull_uint_var())
                if kind == ACK_TARGET_CID:
                    alias = value[10:10 + value[9]]
                    port = client._transport.get_extra_info("sockname")[1]
                    print(json.dumps({"port": port, "alias": alias.hex()}), flush=True)
                    while True:
                        await asyncio.sleep(5)
                        await client.ping()


class Messages(ctypes.Structure):
    _fields_ = [("name", ctypes.c_void_p), ("namelen", ctypes.c_uint32), ("iov", ctypes.c_void_p), ("iovlen", ctypes.c_size_t),
                ("control", ctypes.c_void_p), ("controllen", ctypes.c_size_t), ("flags", ctypes.c_int), ("len", ctypes.c_uint32)]


def send(destination, port, source_port, alias, seconds):
    """In the sender's namespace: single packets, 32 a system call, as many as it can. Prints how many."""
    payload = b"\x40" + alias + random.Random(1).randbytes(PACKET - 9)
    pseudo = socket.inet_aton(SENDER) + socket.inet_aton(destination) + struct.pack("!HH", 17, PACKET + 8)
    udp = struct.pack("!3H", source_port, port, PACKET + 8)
    words = struct.unpack(f"!{(len(pseudo + udp) + 2 + PACKET) // 2}H", pseudo + udp + b"\0\0" + payload)
    udp += struct.pack("!H", (0xffff - sum(words) % 0xffff) or 0xffff)
    packet = ctypes.create_string_buffer(ip_header(SENDER, destination, udp + payload) + udp + payload, 28 + PACKET)
    name = ctypes.create_string_buffer(struct.pack("=HH4s8x", socket.AF_INET, 0, socket.inet_aton(destination)))
    vector = (ctypes.c_uint64 * 2)(ctypes.addressof(packet), 28 + PACKET)
    one = Messages(ctypes.addressof(name), 16, ctypes.addressof(vector), 1)
    all_of_them = (Messages * BURST)(*[one] * BURST)
    raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
    sendmmsg, sent = ctypes.CDLL(None).sendmmsg, 0
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        sent += max(sendmmsg(raw.fileno(), ctypes.byref(all_of_them), BURST, 0), 0)
    print(sent)


def busy():
    """Processor seconds of the whole machine that somebody used."""
    user, nice, system, idle, wait, irq, softirq, *_ = map(int, pathlib.Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:])
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


class Bench(Lab):
    def __init__(self):
        super().__init__()
        self.net = Namespaces()

    def __exit__(self, *error):
        super().__exit__(*error)
        self.net.delete()

    def inside(self, ns, name, *command):
        return self.run(name, command, prefix=("ip", "netns", "exec", ns))

    def carry(self, way):
        """Figures of one way."""
        started = []
        destination, port, source_port, alias = TARGET, PORT, 4000, ID
        if way != "routed":
            mode = {"relay": "off", "kernel, generic": "generic", "kernel, driver": "driver"}[way]
            if mode == "driver":
                for ns in (self.net.sender, self.net.target):
                    started.append(self.inside(ns, f"pass-{ns}-{len(self.processes)}", sys.executable, "kernel_forwarding_test.py", "pass", "eth0"))
            path = self.folder / "relay.toml"
            leaf = self.authority.leaf("amber", ["amber"])
            path.write_text(relay_config("amber", f"{NEAR}:443", ("ingress", "egress"), leaf, (f"{TARGET}/32",), None, (TOKEN,),
                                         extra=f'\n[forwarding]\nidentity = true\nkernel = "{mode}"\ninterfaces = ["in", "out"]\n'))
            relay = self.inside(self.net.relay, f"relay-{len(self.processes)}", HOPLITE, "relay", "--config", path)
            wait_for("the relay", lambda: " is up" in relay.text())
            assert mode == "off" or f"in ({mode}), out ({mode})" in relay.text(), relay.text()
            client = self.inside(self.net.sender, f"client-{len(self.processes)}", sys.executable, __file__, "register", self.authority.ca)
            said = wait_for("the rule", client.lines)[0]
            destination, port, source_port, alias = NEAR, 443, said["port"], bytes.fromhex(said["alias"])
            started += [relay, client]
        sending = lambda seconds: int(self.net.call(  # noqa: E731
            self.net.sender, sys.executable, __file__, "send", destination, port, source_port, alias.hex(), seconds))
        sending(0.1)  # neighbours, and the rule in the kernel
        time.sleep(0.5)
        arrived, before = self.net.arrived(), busy()
        sent = sending(SECONDS)
        time.sleep(0.2)
        arrived, used = self.net.arrived() - arrived, busy() - before
        for process in reversed(started):
            process.stop(signal.SIGKILL)
        gigabytes = arrived * PACKET / 1e9
        return {"cpu_s_per_gb": used / gigabytes, "gbit_s": 8 * gigabytes / SECONDS, "lost": 1 - arrived / sent}


def main(rounds):
    with Bench() as bench:
        figures = {}
        for number in range(rounds):
            for way in WAYS[number % len(WAYS):] + WAYS[:number % len(WAYS)]:
                figures.setdefault(way, []).append(bench.carry(way))
        for way in WAYS:
            for one, routed in zip(figures[way], figures["routed"], strict=True):
                one["beside_routed"] = one["cpu_s_per_gb"] / routed["cpu_s_per_gb"]
            words = [f"{way}:"]
            for key in figures[way][0]:
                values = sorted(one[key] for one in figures[way])
                words.append(f"{key} {statistics.median(values):.3g} ({values[0]:.3g} to {values[-1]:.3g})")
            print(*words, flush=True)
        print(json.dumps(figures))


if __name__ == "__main__":
    if sys.argv[1:2] == ["register"]:
        asyncio.run(register(sys.argv[2]))
    elif sys.argv[1:2] == ["send"]:
        send(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), bytes.fromhex(sys.argv[5]), float(sys.argv[6]))
    else:
        main(int(sys.argv[1]) if sys.argv[1:] else 12)
