"""What an onion service costs, ours over our own directory beside C tor's over its own, in one run: time and bytes until a client that was never
started before knows the relays, and then has a circuit; until a new service knows them, and then is published; and how long a client waits for a megabyte.

Networks of three authorities and seven relays each are in one namespace, the client and the service in one each; veth without delay or loss. The two
networks take turns. Bytes are those of the namespace's interface, both ways, with all headers. Needs root, tor and tor-gencert, and a machine that
does nothing else.

usage: services_bench.py [--repetitions 10] [--json]
"""

import argparse
import contextlib
import json
import re
import shutil
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from client_test import exactly, reply, socks
from common import HERE, HOPLITE, Missing, quoted, wait_for
from netns import NetLab, ip, usable
from servers import payload
from tor_services_test import HSDIRS, PROGRAM
from tor_test import Tor

RELAYS, MB, SOCKS, DIRECTORY = 7, 1_000_000, 1080, 9030


class Network:
    """Three authorities and seven relays, each at an address of its own, in the namespace `net`."""

    def __init__(self, lab):
        self.lab, self.net, self.client, self.service = lab, lab.hosts["r1"], lab.client, lab.target
        self.number = 0

    def run(self, name, command):
        return self.net.run(f"{self.name}-{name}", command)

    def program(self, host, role):
        """A client, or a service, that was never started before."""
        self.number += 1
        return self.start(host, f"{role}{self.number}")


class Ours(Network):
    name = "hoplite"

    def __init__(self, lab):
        super().__init__(lab)
        self.authorities = []
        for n in range(3):
            made = subprocess.run([HOPLITE, "keygen", "--authority", "--out", lab.folder / f"authority{n}"], check=True, capture_output=True, text=True)
            self.authorities.append(f"{made.stdout.strip()}@10.88.0.{n + 1}:{DIRECTORY}")
        for n in range(3):
            file = lab.folder / f"authority{n}" / "directory.toml"
            file.write_text(f'authorities = {quoted(self.authorities)}\nlisten = "10.88.0.{n + 1}:{DIRECTORY}"\ninterval = 8\nvoting = 2\nintervals = 1000\n'
                            'hsdir_uptime = 0\n[admission]\nprivate = true\nreaches = ["ipv4"]\n')
            authority = self.run(f"authority{n}", [HOPLITE, "directory", "--config", file])
            wait_for("an authority", lambda: "the authority is up" in authority.text())
        told = [name.split("@")[1] for name in self.authorities]
        for n in range(1, RELAYS + 1):
            file = lab.folder / f"relay{n}.toml"
            file.write_text(f'name = "relay{n}"\nlisten = ["10.88.{n}.1:443"]\nidentity = "identity{n}"\n[auth]\nopen = true\n[egress]\n'
                            f'allow = ["10.0.0.0/8"]\n[onion]\nenabled = true\nhsdir = true\n'
                            f'[directory]\nevery = 2\npublish = {quoted(told)}\nauthorities = {quoted(self.authorities)}\n')
            relay = self.run(f"relay{n}", [HOPLITE, "relay", "--config", file])
            wait_for("a relay", lambda: "the relay is up" in relay.text())
        wait_for("a list for onion services", self.complete, 90)

    def complete(self):
        answers = [self.net.call("curl", "-s", f"http://10.88.0.{n}:{DIRECTORY}/hoplite/list").stdout.decode() for n in (1, 2, 3)]
        return all("\nshared-random-current " in text and len(re.findall(r"\nflags [a-z ]*hsdir", text)) == RELAYS for text in answers)

    def start(self, host, name):
        self.keys = self.lab.folder / f"{name}.keys"
        text = f'overlay = "onion"\nsocks.listen = "127.0.0.1:{SOCKS}"\nhttp.listen = "off"\n[directory]\ncache = "{name}.sqlite"\napart = ["family"]\n'
        text += f'authorities = {quoted(self.authorities)}\n'
        if host is self.service:
            text += f'[[service]]\nkeys = "{self.keys}"\nports = ["80=127.0.0.1:80"]\n'
        file = self.lab.folder / f"{name}.toml"
        file.write_text(text)
        return host.run(name, [HOPLITE, "client", "--config", file])

    def listed(self, host, _process):
        """Programs are taken once the list of relays is there."""
        return f":{SOCKS} " in host.call("ss", "-Hltn").stdout.decode()

    def ready(self, host, _process):
        """A circuit stands: that a port is refused is what an exit says."""
        return asked(host, "reply", host.v4, 9) == 5

    def published(self, process):
        return "an onion service is published" in process.text()

    def hostname(self):
        return (self.keys / "hostname").read_text().strip()


class TorAt(Tor):
    """A relay of C tor at an address of its own."""

    def __init__(self, lab, name, is_authority, address, resolver):
        super().__init__(lab, name, is_authority, resolver)
        self.address, self.torrc = address, self.torrc.replace("127.0.0.1", address)

    def certify(self):
        super().certify()
        self.line = self.line.replace("127.0.0.1", self.address)


class Theirs(Network):
    name = "C tor"

    def __init__(self, lab):
        super().__init__(lab)
        resolver = lab.folder / "resolv.conf"
        resolver.write_text("nameserver 10.88.0.1\n")
        at = [(f"t{n}", n < 3, f"10.89.{n}.1") for n in range(RELAYS)]
        nodes = [TorAt(lab, name, is_authority, address, resolver) for name, is_authority, address in at]
        authorities = nodes[:3]
        with ThreadPoolExecutor() as pool:
            list(pool.map(TorAt.certify, authorities))
        self.lines = "".join(authority.line for authority in authorities)
        for node in nodes:
            file = lab.folder / f"{node.name}.torrc"
            # Fewer renewals that would be counted to whoever runs then.
            file.write_text(node.torrc.replace("V3AuthVotingInterval 10", "V3AuthVotingInterval 60") + (HSDIRS if node.is_authority else "") + self.lines)
            node.process = self.run(node.name, ["tor", "-f", file])
        self.nodes = nodes
        wait_for("a consensus with all relays", self.complete, 200)

    def complete(self):
        texts = [file.read_text() for node in self.nodes[:3] if (file := node.home / "cached-microdesc-consensus").exists()]
        return len(texts) == 3 and all(len(re.findall(r"^s .*HSDir", text, re.M)) == RELAYS for text in texts)

    def start(self, host, name):
        home = self.lab.folder / name
        self.keys = home / "service"
        self.keys.mkdir(parents=True, mode=0o700)
        home.chmod(0o700)
        (home / "auth").mkdir(mode=0o700)
        text = PROGRAM.format(home=home, socks=SOCKS) + self.lines + "SocksPort 127.0.0.1:1081\n"
        if host is self.service:
            text += f"HiddenServiceDir {self.keys}\nHiddenServicePort 80 127.0.0.1:80\n"
        file = self.lab.folder / f"{name}.torrc"
        file.write_text(text)
        return host.run(name, ["tor", "-f", file])

    def listed(self, _host, process):
        return "(enough_dirinfo)" in process.text()

    def ready(self, _host, process):
        return "Bootstrapped 100%" in process.text()

    def published(self, process):
        """Both descriptors are at all HSDirs: in a small network all are responsible."""
        return process.text().count("Uploaded hidden service descriptor (status 200") >= 2 * RELAYS

    def hostname(self):
        return (self.keys / "hostname").read_text().strip()


# --- what is measured ------------------------------------------------------------------------------------------------------------------------


def asked(host, what, *words):
    """This file as a program on the host: what it prints."""
    ran = host.call(sys.executable, HERE / "services_bench.py", f"--{what}", *words)
    return json.loads(ran.stdout) if ran.returncode == 0 else None


def fetched(name, user):
    """A megabyte of the service: seconds until its first byte, and its last."""
    began = time.monotonic()
    stream, _ = socks(SOCKS, 1, name, 80, user, 120)
    with stream:
        stream.sendall(f"GET /bytes/{MB} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        first, got = None, b""
        while b"\r\n\r\n" not in got:
            got += exactly(stream, 1)
            first = first or time.monotonic() - began
        whole = exactly(stream, MB) == payload(MB)
    return [first, time.monotonic() - began] if whole else None


def carried(host):
    """Bytes of the host's interface, both ways."""
    folder = "/sys/class/net/eth0/statistics"
    return sum(map(int, host.call("cat", f"{folder}/rx_bytes", f"{folder}/tx_bytes").stdout.split()))


class Stretch:
    """Time and bytes from one moment to the next."""

    def __init__(self, host):
        self.host, self.at, self.bytes = host, time.monotonic(), carried(host)

    def until(self, what, condition, seconds=120):
        wait_for(what, condition, seconds)
        at, count = time.monotonic(), carried(self.host)
        took, self.at, self.bytes = (at - self.at, count - self.bytes), at, count
        return took


def repetition(network):
    with contextlib.ExitStack() as stack:
        found = {}
        stretch = Stretch(network.client)
        client = network.program(network.client, "client")
        stack.callback(client.stop, patience=2)
        found["client knows the relays"] = stretch.until("a list", lambda: network.listed(network.client, client))
        found["client has a circuit"] = stretch.until("a client", lambda: network.ready(network.client, client))
        stretch = Stretch(network.service)
        service = network.program(network.service, "service")
        stack.callback(service.stop, patience=2)
        began = stretch.at
        found["service knows the relays"] = stretch.until("a list", lambda: network.listed(network.service, service))
        found["service is published"] = stretch.until("it to be published", lambda: network.published(service))
        stretch = Stretch(network.client)
        name = network.hostname()
        first = asked(network.client, "fetch", name, "one") or sys.exit("services_bench: nothing came")
        found["from start to first answer"] = time.monotonic() - began - first[1] + first[0], 0
        found["first client, first byte"], found["first client, 1 MB"] = (first[0], 0), (first[1], carried(network.client) - stretch.bytes)
        again = asked(network.client, "fetch", name, "two") or sys.exit("services_bench: nothing came")
        found["another circuit, first byte"], found["another circuit, 1 MB"] = (again[0], 0), (again[1], 0)
        same = asked(network.client, "fetch", name, "two") or sys.exit("services_bench: nothing came")
        found["the same circuit, first byte"], found["the same circuit, 1 MB"] = (same[0], 0), (same[1], 0)
    return found


def table(results):
    print(f"{'median (lowest to highest)':<30}" + "".join(f"{name:>40}" for name in results))
    for what in next(iter(results.values()))[0]:
        line = f"{what:<30}"
        for found in results.values():
            seconds, size = zip(*(one[what] for one in found))
            text = f"{statistics.median(seconds):.3f} s ({min(seconds):.3f} to {max(seconds):.3f})"
            line += f"{text + (f', {statistics.median(size) / 1000:.0f} kB' if any(size) else ''):>40}"
        print(line)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--repetitions", type=int, default=10)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--fetch", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--reply", nargs=2, help=argparse.SUPPRESS)
    words = parser.parse_args()
    if words.fetch:
        return print(json.dumps(fetched(*words.fetch)))
    if words.reply:
        return print(json.dumps(reply(SOCKS, words.reply[0], int(words.reply[1]))))
    why = usable() or next((Missing(f"{tool} is not installed") for tool in ("tor", "tor-gencert") if not shutil.which(tool)), None)
    if why:
        sys.exit(f"services_bench: {why}")
    with NetLab(relays=1) as lab:
        net = lab.hosts["r1"]
        for address in [f"10.88.0.{n}" for n in (1, 2, 3)] + [f"10.88.{n}.1" for n in range(1, RELAYS + 1)] + [f"10.89.{n}.1" for n in range(RELAYS)]:
            ip("addr", "add", f"{address}/32", "dev", "lo", ns=net.ns)
        ip("route", "add", "10.88.0.0/15", "via", net.v4, ns=lab.router)
        lab.target.run("targets", [sys.executable, HERE / "servers.py", "--host", "127.0.0.1", "--http-port", 80,
                                   "--cert", (leaf := lab.authority.leaf("target", ["localhost"])).cert, "--key", leaf.key])
        networks = [Ours(lab), Theirs(lab)]
        results = {network.name: [] for network in networks}
        for turn in range(words.repetitions):
            for network in networks:
                results[network.name].append(repetition(network))
            print(f"{turn + 1} of {words.repetitions}", file=sys.stderr, flush=True)
    print(json.dumps(results)) if words.json else table(results)
    return None


if __name__ == "__main__":
    main()
