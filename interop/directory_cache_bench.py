"""What it takes to be a directory cache of a network of C tor's of the public one's size: disk, memory and processor time of `hoplite relay`, with a
consensus of 10,000 relays that were made up and nine authorities of ours that sign it, 24 earlier ones, and some that come while it runs.

Each consensus follows the one before by shares that are settings, not measurements: 1 % of the relays go and have others in their place, 10 % have another
measured bandwidth, 1 % get or lose Stable. Earlier ones are put into the relay's file as it keeps them itself; the authorities are one HTTP server, so the
relay fetches and checks everything. Memory is what /proc says (RssAnon; VmHWM without RssFile); glibc gives back late what was freed.

usage: directory_cache_bench.py [--relays 10000] [--renewals 3] [--seconds 120] [--json]
"""

import argparse
import base64
import datetime
import hashlib
import json
import os
import random
import shutil
import sqlite3
import subprocess
import tempfile
import threading
import time
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from common import HOPLITE, free_port, wait_for

EARLIER, AUTHORITIES = 24, 9
HEAD = "network-status-version 3 microdesc\nvote-status consensus\nconsensus-method 35\n"
PROTOCOLS = ("v Tor 0.4.9.11\npr Conflux=1 Cons=1-2 Desc=1-4 DirCache=2 FlowCtrl=1-2 HSDir=2 HSIntro=4-5 HSRend=1-2 Link=3-5 LinkAuth=3 "
             "Microdesc=1-3 Padding=2 Relay=2-6\n")
KNOWN = ("voting-delay 2 2\nclient-versions 0.4.9.11\nserver-versions 0.4.9.11\n"
         "known-flags Authority BadExit Exit Fast Guard HSDir NoEdConsensus Running Stable StaleDesc Sybil V2Dir Valid\n")
FOOTER = ("directory-footer\nbandwidth-weights Wbd=0 Wbe=0 Wbg=4194 Wbm=10000 Wdb=10000 Web=10000 Wed=10000 Wee=10000 Weg=10000 Wem=10000 Wgb=10000 "
          "Wgd=0 Wgg=5806 Wgm=5806 Wmb=10000 Wmd=0 Wme=0 Wmg=4194 Wmm=10000\n")


def plain(data):
    return base64.b64encode(data).decode().rstrip("=")


def block(label, data):
    text = base64.b64encode(data).decode()
    lines = "\n".join(text[at:at + 64] for at in range(0, len(text), 64))
    return f"-----BEGIN {label}-----\n{lines}\n-----END {label}-----\n"


def date(at):
    return datetime.datetime.fromtimestamp(at, datetime.timezone.utc).strftime("%Y-%m-%d %H:%M:%S")


class Authority:
    """An identity, and a signing key that it has certified. dir-spec, "Creating key certificates"."""

    def __init__(self, number):
        self.number = number
        identity, self.signing = (rsa.generate_private_key(65537, bits) for bits in (3072, 2048))
        der = [key.public_key().public_bytes(Encoding.DER, PublicFormat.PKCS1) for key in (identity, self.signing)]
        self.id, self.key = (hashlib.sha1(one).digest() for one in der)
        at = int(time.time())
        text = (f"dir-key-certificate-version 3\nfingerprint {self.id.hex().upper()}\ndir-key-published {date(at - 86400)}\n"
                f"dir-key-expires {date(at + 86400 * 90)}\ndir-identity-key\n{block('RSA PUBLIC KEY', der[0])}"
                f"dir-signing-key\n{block('RSA PUBLIC KEY', der[1])}dir-key-crosscert\n{block('ID SIGNATURE', signed(self.signing, self.id))}"
                "dir-key-certification\n")
        self.certificate = text + block("SIGNATURE", signed(identity, hashlib.sha1(text.encode()).digest()))

    def source(self):
        name = self.id.hex().upper()
        return (f"dir-source authority{self.number} {name} 198.51.100.{self.number} 198.51.100.{self.number} 80 443\n"
                f"contact operator {self.number} <tor@example.org>\nvote-digest {os.urandom(20).hex().upper()}\n")

    def sign(self, digest):
        return f"sha256 {self.id.hex().upper()} {self.key.hex().upper()}\n{block('SIGNATURE', signed(self.signing, digest))}"


def signed(key, content):
    """PKCS #1 v1.5 without a prefix that says what was hashed, as Tor signs."""
    numbers = key.private_numbers()
    modulus = numbers.public_numbers.n
    length = (modulus.bit_length() + 7) // 8
    padded = b"\0\1" + b"\xff" * (length - len(content) - 3) + b"\0" + content
    return pow(int.from_bytes(padded, "big"), numbers.d, modulus).to_bytes(length, "big")


class Relay:
    def __init__(self, numbers):
        self.name = f"relay{numbers.getrandbits(32):08x}"
        self.identity = numbers.randbytes(20)
        self.v4 = ".".join(str(numbers.randrange(1, 224)) for _ in range(4))
        self.v6 = f"2001:db8:{numbers.getrandbits(16):x}::{numbers.getrandbits(16):x}" if numbers.random() < 0.5 else None
        self.port = numbers.choice((443, 9001, 9001, numbers.randrange(1024, 65536)))
        self.weight = int(numbers.paretovariate(0.8) * 100)
        self.exit, self.guard, self.stable = numbers.random() < 0.25, numbers.random() < 0.45, numbers.random() < 0.8
        policy = "p accept 20-24,43,53,79-81,88,110,143,194,220,389,443,464-465,531,543-544,554,563,587,636,706,749,853,873,902-904\n"
        self.described = (f"onion-key\n{block('RSA PUBLIC KEY', numbers.randbytes(140))}ntor-onion-key {plain(numbers.randbytes(32))}\n"
                          f"{policy if self.exit else ''}id ed25519 {plain(numbers.randbytes(32))}\n")
        self.digest = hashlib.sha256(self.described.encode()).digest()

    def text(self):
        flags = [name for name, has in (("Exit", self.exit), ("Fast", True), ("Guard", self.guard), ("HSDir", self.stable), ("Running", True),
                                        ("Stable", self.stable), ("V2Dir", True), ("Valid", True)) if has]
        second = f"a [{self.v6}]:{self.port}\n" if self.v6 else ""
        return (f"r {self.name} {plain(self.identity)} 2038-01-01 00:00:00 {self.v4} {self.port} 0\n{second}m {plain(self.digest)}\n"
                f"s {' '.join(flags)}\n{PROTOCOLS}w Bandwidth={self.weight}\n")


class Network:
    """The authorities, and one consensus after the other."""

    def __init__(self, count):
        self.numbers = random.Random(1)
        self.authorities = [Authority(n) for n in range(1, AUTHORITIES + 1)]
        self.relays = [Relay(self.numbers) for _ in range(count)]
        self.described = {relay.digest: relay.described for relay in self.relays}
        self.given, self.whole, self.asked = b"", b"", 0

    def goes_on(self):
        draw = self.numbers.random
        for at, relay in enumerate(self.relays):
            if draw() < 0.01:
                self.relays[at] = Relay(self.numbers)
                self.described[self.relays[at].digest] = self.relays[at].described
            if draw() < 0.1:
                relay.weight = max(1, int(relay.weight * self.numbers.uniform(0.5, 1.5)))
            relay.stable ^= draw() < 0.01

    def consensus(self, after, interval):
        times = [f"{name} {date(at)}\n" for name, at in (("valid-after", after), ("fresh-until", after + interval), ("valid-until", after + 3 * interval))]
        relays = "".join(relay.text() for relay in sorted(self.relays, key=lambda relay: relay.identity))
        text = HEAD + "".join(times) + KNOWN + "".join(one.source() for one in sorted(self.authorities, key=lambda one: one.id)) + relays + FOOTER
        digest = hashlib.sha256((text + "directory-signature ").encode()).digest()
        return text + "".join(f"directory-signature {one.sign(digest)}" for one in self.authorities)

    def give(self, text):
        self.whole = zlib.compress(text.encode())
        self.given = text.encode()


def server(network):
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            if self.path.startswith("/tor/keys/"):
                body = "".join(one.certificate for one in network.authorities).encode()
            elif self.path.startswith("/tor/micro/d/"):
                names = self.path.removeprefix("/tor/micro/d/").split("-")
                body = "".join(network.described[base64.b64decode(name + "=")] for name in names).encode()
            else:
                network.asked += 1
                body = network.given
            compressed = "deflate" in self.headers.get("Accept-Encoding", "")
            body = zlib.compress(body) if compressed and body is not network.given else network.whole if compressed else body
            self.send_response(200)
            if compressed:
                self.send_header("Content-Encoding", "deflate")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self):
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=listening.serve_forever, daemon=True).start()
    return listening


class Process:
    def __init__(self, folder, config):
        self.log = folder / "log"
        with open(self.log, "a") as log:
            self.process = subprocess.Popen([HOPLITE, "relay", "--config", config], stdout=log, stderr=log)

    def seconds(self):
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory(self):
        """In MB: what it takes now beside its program, and the most that it has taken."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        pages = {line.split(":")[0]: int(line.split()[1]) / 1024 for line in lines if line.endswith(" kB")}
        return {"peak_mb": round(pages["VmHWM"] - pages["RssFile"], 1), "mb": round(pages["RssAnon"], 1)}

    def settled(self):
        """Until it has nothing to do: nobody asks it anything here."""
        before, still = self.seconds(), 0
        while still < 3:
            time.sleep(1)
            now = self.seconds()
            still = still + 1 if now - before < 0.05 else 0
            before = now

    def stop(self):
        self.process.terminate()
        self.process.wait(30)


def measure(options, folder):
    network = Network(options.relays)
    listening = server(network)
    port = listening.server_address[1]
    identity = folder / "identity"
    address, metrics = free_port(), free_port()
    names = ", ".join(f'"{one.id.hex().upper()}@127.0.0.1:{port}"' for one in network.authorities)
    config = folder / "relay.toml"
    text = (f'name = "cache"\nlisten = ["127.0.0.1:{address}"]\nidentity = "{identity}"\n[onion]\nenabled = true\n'
            f'[metrics]\nlisten = "127.0.0.1:{metrics}"\n[onion.tor]\nauthorities = [{names}]\n')
    begin = int(time.time())
    earlier = []
    for n in range(EARLIER):
        earlier.append(network.consensus(begin - 3600 * (EARLIER - n), 3600))
        network.goes_on()
    rows = []

    def come():
        """Another consensus; what the relay does with it."""
        text = network.consensus(int(time.time()), options.seconds)
        network.give(text)
        return text

    come()
    config.write_text(text + "directory_cache = false\n")
    relay = Process(folder, config)
    relay.settled()
    rows.append({"what": "no cache", "cpu_s": relay.seconds(), **relay.memory()})
    relay.stop()
    config.write_text(text)
    relay = Process(folder, config)
    fetched = "a consensus of Tor's authorities was fetched"
    try:
        wait_for("the first consensus", lambda: fetched in relay.log.read_text(), 300)
        relay.settled()
        rows.append({"what": "first, without earlier ones", "cpu_s": relay.seconds(), **relay.memory()})
        relay.stop()
        file = identity / "tor-directory.sqlite"
        with sqlite3.connect(file) as store:
            store.executemany("INSERT INTO tor_earlier (text) VALUES (?)", [(text,) for text in earlier])
        store.close()
        came = relay.log.read_text().count(fetched)
        relay = Process(folder, config)
        relay.settled()
        rows.append({"what": "start with 24 earlier ones", "cpu_s": relay.seconds(), **relay.memory()})
        for n in range(options.renewals):
            network.goes_on()
            come()
            before = relay.seconds()
            wait_for("the next consensus", lambda: relay.log.read_text().count(fetched) > came, 3 * options.seconds + 300)
            came = relay.log.read_text().count(fetched)
            relay.settled()
            rows.append({"what": f"renewal {n + 1}", "cpu_s": round(relay.seconds() - before, 2), **relay.memory(),
                         "disk_mb": round(file.stat().st_size / 1e6, 1)})
    finally:
        relay.stop()
        listening.shutdown()
    sizes = {"consensus_mb": round(len(network.given) / 1e6, 2), "deflated_mb": round(len(network.whole) / 1e6, 2),
             "microdescriptors_mb": round(sum(map(len, network.described.values())) / 1e6, 2), "relays": options.relays}
    return sizes, rows


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--relays", type=int, default=10_000)
    parser.add_argument("--renewals", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=120)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="hoplite-cache-"))
    try:
        sizes, rows = measure(options, folder)
    finally:
        shutil.rmtree(folder)
    if options.json:
        print(json.dumps({"sizes": sizes, "rows": rows}))
        return
    print(sizes)
    for row in rows:
        print(row)


main()
