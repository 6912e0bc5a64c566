"""A network of C tor's authorities with relays of both kinds, left alone for an hour: unmodified clients, one of C tor and one of Arti, fetch over it
while nobody helps, and beside them each minute a new one of each kind, whose guard is its own choice. Which relays they chose, by position, is held
against the consensus's weights; what failed, against circuits that have none of ours; and memory and descriptors of our relays against themselves.

Which relays a fetch went over is told by the packets on loopback and by whose sockets they were of, for Arti tells nobody; C tor's control port is
asked beside it. With a pseudo terminal `nyx` looks at a client of C tor whose circuits go over relays of ours.

Needs root, `tor`, `tor-gencert` and `ss`; `arti` (in $ARTI, or in the path) and `nyx` ($NYX) where they are to have a part.
MINUTES=60 is how long; a quarter of an hour shows whether it works.
"""

import collections
import contextlib
import http.server
import json
import os
import pathlib
import random
import re
import shutil
import socket
import socketserver
import struct
import subprocess
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import arti_test
from client_test import exactly, socks
from common import Checks, Lab, Missing, free_port, wait_for
from servers import payload
from tor_relays_test import IPV4, RECEIVE_BUFFER_FORCE, Ours, TAKEN
from tor_services_test import program
from tor_test import Tor, consensus

MINUTES = float(os.environ.get("MINUTES", "60"))
# Consensuses of half a minute, where the public network has those of an hour.
VOTING = """TestingV3AuthInitialVotingInterval 10
TestingV3AuthInitialVoteDelay 2
TestingV3AuthInitialDistDelay 2
V3AuthVotingInterval 30
V3AuthVoteDelay 5
V3AuthDistDelay 5
V3AuthNIntervalsValid 20
"""
# Weights that the authorities read from a file of bandwidths, and who is an exit; authorities have next to none. Of both kinds half of all.
THEIRS = {"a0": (20, False), "a1": (20, False), "a2": (20, False), "r0": (3000, True), "r1": (1000, True), "r2": (4000, False), "r3": (4000, True)}
OURS = {"amber": (3000, True), "birch": (1000, True), "cedar": (2000, True), "dogwood": (4000, False), "elder": (2000, False)}
# Who is there first is Stable, and so may be a guard.
STARTED = ("a0", "a1", "a2", "dogwood", "r2", "amber", "r0", "elder", "r1", "birch", "r3", "cedar")
# Bytes of a fetch, and how many of ten fetches have so many. Of those of a kilobyte packets do not tell the way.
SIZES = (1_000, 1_000, 1_000, 20_000, 20_000, 100_000, 100_000, 100_000, 1_000_000, 5_000_000)
TOLD = 100_000
# Of 100 of a relay's share by weight: how far a count may be off beside three deviations of chance.
OFF = 5
POSITIONS = ("guard", "middle", "exit")


class Target(socketserver.ThreadingMixIn, http.server.HTTPServer):
    """Gives bytes, and remembers from which port it was asked for what."""

    daemon_threads, request_queue_size = True, 128

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):  # noqa: N802: the library's name
            size, tag = self.path.split("/")[2:4]
            self.server.asked[tag] = self.client_address[1]
            self.send_response(200)
            self.send_header("Content-Length", size)
            self.end_headers()
            self.wfile.write(payload(int(size)))

        def log_message(self, *_):
            pass

    def __init__(self):
        self.asked = {}
        super().__init__(("127.0.0.1", 0), self.Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, *_):
        """Whoever goes away early is counted where it asked."""


class Wire:
    """Bytes of payload on loopback by their ports, of TCP and UDP, since it was asked last."""

    def __init__(self):
        self.bytes = collections.Counter()
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(IPV4))
        self.socket.setsockopt(socket.SOL_SOCKET, RECEIVE_BUFFER_FORCE, 64 << 20)
        self.socket.bind(("lo", IPV4))
        threading.Thread(target=self.count, daemon=True).start()

    def count(self):
        while True:
            packet, (*_, kind, _, _) = self.socket.recvfrom(128)
            if kind == socket.PACKET_OUTGOING:
                continue  # each comes in as well
            begin, protocol = (packet[0] & 15) * 4, packet[9]
            if protocol in (socket.IPPROTO_TCP, socket.IPPROTO_UDP):
                header = 8 if protocol == socket.IPPROTO_UDP else (packet[begin + 12] >> 4) * 4
                ends = struct.unpack_from("!HH", packet, begin)
                self.bytes[(protocol, *sorted(ends))] += struct.unpack_from("!H", packet, 2)[0] - begin - header

    def taken(self):
        counted, self.bytes = self.bytes, collections.Counter()
        return counted


def owners():
    """Who has which port: (protocol, port, peer's port or 0) to the process."""
    found = {}
    for line in subprocess.run(["ss", "-tunapH"], capture_output=True, text=True, check=True).stdout.splitlines():
        words, pid = line.split(), re.search(r"pid=(\d+)", line)
        if pid:
            protocol = socket.IPPROTO_TCP if words[0] == "tcp" else socket.IPPROTO_UDP
            port, peer = (word.rsplit(":", 1)[1] for word in words[4:6])
            found[(protocol, int(port), int(peer) if peer.isdigit() else 0)] = int(pid[1])
    return found


class Way:
    """Which relays bytes went over, by the sockets that they were of."""

    def __init__(self, counted, names):
        self.names, self.found = names, owners()
        self.by_process, self.pairs = collections.Counter(), collections.Counter()
        for (protocol, one, other), size in counted.items():
            ends = {self.owner(protocol, one, other), self.owner(protocol, other, one)} - {None}
            for pid in ends:
                self.by_process[pid] += size
            self.pairs[frozenset(ends)] += size

    def owner(self, protocol, port, peer):
        return self.found.get((protocol, port, peer)) or self.found.get((protocol, port, 0))

    def over(self, size):
        """Relays that more than this went over, both ways together."""
        return {self.names[pid] for pid, count in self.by_process.items() if pid in self.names and count > size}

    def path(self, client, asked, size):
        """The guard, the middle relay and the exit of one fetch, by name; None where it cannot be told."""
        over = self.over(1.5 * size)
        first = {self.names[pid] for pid in self.names if self.pairs[frozenset((client, pid))] > 0.8 * size}
        last = self.names.get(self.owner(socket.IPPROTO_TCP, *asked))
        middle = over - first - {last}
        return (first.pop(), middle.pop(), last) if (len(over), len(first), len(middle)) == (3, 1, 1) and last in over else None


class Weights:
    """What the consensus says of who is chosen: dir-spec, 3.8.3 and 3.4.1."""

    def __init__(self, authority):
        url = f"http://127.0.0.1:{authority.dirport}/tor/status-vote/current/consensus"
        text = urllib.request.urlopen(url, timeout=5).read().decode()
        self.flags, self.bandwidth, name = {}, {}, None
        for line in text.splitlines():
            if line.startswith("r "):
                name = line.split()[1]
            elif line.startswith("s "):
                self.flags[name] = set(line.split()[1:])
            elif line.startswith("w "):
                self.bandwidth[name] = int(re.search(r"Bandwidth=(\d+)", line)[1])
            elif line.startswith("bandwidth-weights "):
                self.parts = {part: int(value) for part, value in (word.split("=") for word in line.split()[1:])}

    def of(self, name, position):
        """The relay's weight at this place."""
        flags = self.flags[name]
        kind = {(True, True): "d", (True, False): "g", (False, True): "e", (False, False): "m"}["Guard" in flags, "Exit" in flags]
        # Of a young network half are Stable: those that were there first.
        if (position == "guard" and not {"Guard", "V2Dir", "Stable", "Fast"} <= flags) or (position == "exit" and "Exit" not in flags):
            return 0
        return self.bandwidth[name] * self.parts[f"W{position[0]}{kind}"]

    def chances(self, position, without=()):
        """Each relay's chance to be chosen where these are already on the path."""
        weights = {name: self.of(name, position) for name in self.flags if name not in without}
        whole = sum(weights.values())
        return {name: weight / whole for name, weight in weights.items()}


class Seen:
    """Paths of one kind of client, and what was to be expected of them."""

    def __init__(self):
        self.count, self.expected = ({position: collections.Counter() for position in POSITIONS} for _ in range(2))
        self.variance = collections.Counter()

    def add(self, position, name, chances):
        self.count[position][name] += 1
        for other, chance in chances.items():
            self.expected[position][other] += chance
        share = sum(chance for other, chance in chances.items() if other in OURS)
        self.variance[position] += share * (1 - share)

    def path(self, weights, path):
        """The middle relay and the exit: the guard is the same for all circuits of a client. An exit is chosen beside the guard that there is, and the
        middle relay last."""
        guard, middle, last = path
        self.add("exit", last, weights.chances("exit", {guard}))
        self.add("middle", middle, weights.chances("middle", {guard, last}))

    def ours(self, position):
        """Circuits with one of ours there, and how many there should be; one deviation; and circuits in all."""
        seen = sum(count for name, count in self.count[position].items() if name in OURS)
        expected = sum(chance for name, chance in self.expected[position].items() if name in OURS)
        return seen, expected, self.variance[position] ** 0.5, sum(self.count[position].values())


class Control:
    """What a C tor tells at its control port."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), 10)
        self.file = self.socket.makefile(errors="replace")
        self.ask("AUTHENTICATE")

    def ask(self, line):
        """Its answer's lines, those of data too: of them anything may begin as an answer does."""
        self.socket.sendall(line.encode() + b"\r\n")
        lines = []
        while line := self.file.readline().rstrip("\r\n"):
            lines.append(line)
            if line[3:4] == " ":
                break
            while line[3:4] == "+" and lines[-1] not in (".", ""):
                lines.append(self.file.readline().rstrip("\r\n"))
        return lines

    def said(self, line):
        """Whether it was done, in its words."""
        return self.ask(line)[-1]

    def legs(self, port):
        """Of the newest stream to this port of a target, the paths of three hops: of the circuit that it is attached to, then of those joined to that one
        (Conflux). None where it has no such path."""
        attached = [words for words in map(str.split, self.status("stream-status")) if len(words) > 3 and words[3].endswith(f":{port}")]
        circuits = {words[0]: words for words in map(str.split, self.status("circuit-status")) if len(words) > 3 and words[1] == "BUILT"}
        # Numbers of streams grow.
        found = circuits.get(max(attached, key=lambda words: int(words[0]))[2]) if attached else None
        if not found:
            return None
        joined = next((word for word in found if word.startswith("CONFLUX_ID=")), None)
        legs = [found] + [words for words in circuits.values() if joined in words and words is not found]
        paths = [tuple(hop.split("~")[-1] for hop in words[2].split(",")) for words in legs]
        return paths if all(len(path) == 3 for path in paths) else None

    def status(self, what):
        return [line.removeprefix(f"250+{what}=").removeprefix(f"250-{what}=") for line in self.ask(f"GETINFO {what}")]


class Client:
    """A client that is left alone; its fetches one after the other, each over a circuit of its own."""

    def __init__(self, kind, process, control=None):
        self.kind, self.process, self.socks, self.control = kind, process, process.socks, control
        self.held = []

    def fetch(self, target, tag, size):
        """Raises what went wrong; the socket stays open until who reads has looked whose sockets there are."""
        stream, _ = socks(self.socks, 1, "127.0.0.1", target.server_address[1], tag, 60)
        try:
            stream.sendall(f"GET /bytes/{size}/{tag} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            got = b""
            while b"\r\n\r\n" not in got:
                got += exactly(stream, 1)
            if exactly(stream, size) != payload(size):
                raise ValueError("other bytes came")
        except BaseException:
            stream.close()
            raise
        return stream

    def stop(self):
        for stream in self.held:
            stream.close()
        self.process.stop(patience=3)


class Resources:
    """Memory and descriptors of relays, every minute."""

    def __init__(self, relays):
        self.relays, self.rows, self.began = relays, collections.defaultdict(list), time.monotonic()

    def look(self):
        for name, process in self.relays.items():
            folder = pathlib.Path(f"/proc/{process.child.pid}")
            with contextlib.suppress(OSError):
                memory = int(re.search(r"VmRSS:\s+(\d+)", (folder / "status").read_text())[1])
                spent = sum(map(int, (folder / "stat").read_text().rsplit(") ", 1)[1].split()[11:13])) / os.sysconf("SC_CLK_TCK")
                self.rows[name].append((time.monotonic() - self.began, memory, len(list((folder / "fd").iterdir())), spent))

    def at(self, name, share):
        """Median of the rows around this share of the time: memory in kB, descriptors."""
        rows, width = self.rows[name], max(1, len(self.rows[name]) // 12)
        begin = min(int(share * len(rows)), len(rows) - width)
        part = rows[begin:begin + width]
        return tuple(sorted(row[n] for row in part)[len(part) // 2] for n in (1, 2))


class Network:
    """Authorities, relays of both kinds, their clients."""

    def __init__(self, lab, checks):
        self.lab, self.checks, self.number = lab, checks, 0
        targets = lab.targets({"target.test": "127.0.0.1"})
        names, self.bandwidths = lab.folder / "resolv.conf", lab.folder / "bandwidths"
        names.write_text(f"nameserver 127.0.0.1:{targets.ports['dns']}\n")
        relays = [Tor(lab, name, name.startswith("a"), names) for name in THEIRS]
        self.authorities = [tor for tor in relays if tor.is_authority]
        with ThreadPoolExecutor() as pool:
            list(pool.map(Tor.certify, self.authorities))
        resolver = f"127.0.0.1:{targets.ports['dns']}"
        self.theirs, self.ours = {tor.name: tor for tor in relays}, {}
        for name in STARTED:
            if name in THEIRS:
                self._written(self.theirs[name])
                self.theirs[name].start(self.authorities)
            else:
                self.ours[name] = self._ours(name, resolver)
        self.measured()
        self.processes = {name: relay.process for name, relay in {**self.theirs, **self.ours}.items()}
        self.names = {process.child.pid: name for name, process in self.processes.items()}

    def _ours(self, name, resolver):
        relay = Ours(self.lab, name, resolver, self.authorities, free_port())
        if not OURS[name][1]:
            # What `[egress]` allows still says that it extends circuits to loopback.
            relay.file.write_text('roles = ["ingress"]\n' + relay.file.read_text())
        relay.start()
        wait_for("the authorities' answers", lambda: relay.text().count(TAKEN) >= 3, 90)
        return relay

    def _written(self, tor):
        """As a file that nobody helps: authorities find out by themselves who is there, and who is an exit."""
        tor.torrc = tor.torrc.replace("TestingDirAuthVoteExit *\n", "")
        if not THEIRS[tor.name][1]:
            tor.torrc = tor.torrc.replace("ExitPolicy accept *:*", "ExitPolicy reject *:*").replace("ExitRelay 1", "ExitRelay 0")
        if tor.is_authority:
            kept = [line for line in tor.torrc.splitlines() if line.split()[0] not in {line.split()[0] for line in VOTING.splitlines()}]
            tor.torrc = "\n".join(kept).replace("AssumeReachable 1\n", "AssumeReachable 0\n") + f"\n{VOTING}ConsensusParams ExtendByEd25519ID=1\nV3BandwidthsFile {self.bandwidths}\n"

    def fingerprint(self, name):
        if name in self.ours:
            return self.ours[name].keys()["rsa"].replace(" ", "").removeprefix("$")
        return wait_for("a fingerprint", lambda: (file := self.theirs[name].home / "fingerprint").exists() and file.read_text().split()[1], 30)

    def measured(self):
        lines = [f"node_id=${self.fingerprint(name)} bw={weight}" for name, (weight, _) in {**THEIRS, **OURS}.items()]
        self.bandwidths.write_text(f"{int(time.time())}\n" + "\n".join(lines) + "\n")

    def complete(self):
        """What the consensus says, once all relays are listed with their weights and flags."""
        try:
            weights = Weights(self.authorities[0])
        except (OSError, AttributeError):
            return None
        for name, (weight, is_exit) in {**THEIRS, **OURS}.items():
            flags = weights.flags.get(name, set())
            measured = weights.bandwidth.get(name) == weight and {"Guard", "Fast"} <= flags and ("Exit" in flags) == is_exit
            if not {"Running", "V2Dir"} <= flags or not (measured or "Authority" in flags):
                return None
        return weights if hasattr(weights, "parts") else None

    def tor(self, name):
        control = free_port()
        process = program(self.lab, name, self.authorities, f"ControlPort 127.0.0.1:{control}\nCookieAuthentication 0\n")
        client = Client("C tor", process, Control(control))
        client.port = control
        return client

    def arti(self, name):
        return Client("Arti", arti_test.arti(self.lab, name, self.for_arti))

    def knows_arti(self):
        code, found, said = consensus(self.authorities[0], [authority.v3 for authority in self.authorities])
        if code:
            raise RuntimeError(said)
        self.for_arti = arti_test.Network(self.authorities, found)


class Hour:
    """The fetches, one at a time, so that packets tell each one's way."""

    def __init__(self, network, target, wire):
        self.network, self.target, self.wire, self.number = network, target, wire, 0
        self.seen = collections.defaultdict(Seen)
        self.guards = collections.defaultdict(Seen)
        self.fetches, self.failed, self.disagreed = collections.Counter(), [], []
        self.unknown = collections.Counter()

    def fetch(self, client, size=None, keep=False):
        """One, and the path that it took; None where that is not told, or nothing came."""
        self.number += 1
        size, tag = size or random.choice(SIZES), f"t{self.number}"
        self.wire.taken()
        self.fetches[client.kind] += 1
        try:
            stream = client.fetch(self.target, tag, size)
        except Exception as e:  # noqa: BLE001: whatever went wrong is the finding
            self.failed.append((client.kind, size, f"{type(e).__name__}: {e}", sorted(Way(self.wire.taken(), self.network.names).over(2000))))
            return None
        way = Way(self.wire.taken(), self.network.names) if size >= TOLD else None
        path = self.told(client, way, tag, size)
        if keep:
            client.held.append(stream)
        else:
            stream.close()
        return path

    def told(self, client, way, tag, size):
        """By the control port where there is one, else by packets. Both must agree."""
        if not client.control:
            asked = self.target.asked[tag], self.target.server_address[1]
            path = way and way.path(client.process.child.pid, asked, size)
            self.unknown[client.kind] += bool(way) and path is None
            return path
        legs = client.control.legs(self.target.server_address[1])
        self.unknown[client.kind] += legs is None
        if legs and way and not way.over(0.5 * size) <= set().union(*legs):
            self.disagreed.append((legs, sorted(way.over(0.5 * size))))
        return legs and legs[0]

    def counts(self, client, weights, size=None):
        path = self.fetch(client, size)
        if path:
            self.seen[client.kind].path(weights, path)
        return path

    def newcomer(self, client, weights):
        """A client that has chosen no guard yet."""
        for _ in range(3):
            path = self.counts(client, weights, TOLD)
            if path:
                self.guards[client.kind].add("guard", path[0], weights.chances("guard"))
                break
        client.stop()

    def run(self, clients, minutes):
        resources = Resources(self.network.processes)
        resources.look()
        makers = {"C tor": self.network.tor, "Arti": self.network.arti}
        began, minute, coming = time.monotonic(), 0, []
        weights = self.network.complete()
        with ThreadPoolExecutor(2) as pool:
            while (spent := time.monotonic() - began) < 60 * minutes:
                for client in clients:
                    self.counts(client, weights)
                for ready in [one for one in coming if one.done()]:
                    coming.remove(ready)
                    self.arrives(ready, weights)
                if spent >= 60 * minute and len(coming) < 4:
                    minute += 1
                    weights = self.network.complete() or weights
                    resources.look()
                    for client in clients:
                        self.keeps(client)
                        name = f"{client.kind.replace(' ', '').lower()}-{minute}"
                        coming.append(pool.submit(makers[client.kind], name))
                    self.progress(minute, minutes)
                time.sleep(0.5)
            for late in coming:
                self.arrives(late, weights)
        resources.look()
        return resources

    def arrives(self, ready, weights):
        try:
            client = ready.result()
        except Exception as e:  # noqa: BLE001: that it does not come so far is the finding
            self.failed.append(("a newcomer", 0, f"{type(e).__name__}: {e}", []))
            return
        self.newcomer(client, weights)

    def keeps(self, client):
        """A stream that stays open for ten minutes, and is used then."""
        if len(client.held) >= 10:
            stream = client.held.pop(0)
            with stream:
                try:
                    stream.sendall(b"GET /bytes/20000/kept HTTP/1.1\r\nHost: x\r\n\r\n")
                    got = b""
                    while b"\r\n\r\n" not in got:
                        got += exactly(stream, 1)
                    right = exactly(stream, 20_000) == payload(20_000)
                except (OSError, EOFError) as e:
                    right = f"{type(e).__name__}: {e}"
            self.fetches[f"{client.kind}, kept open"] += 1
            if right is not True:
                self.failed.append((client.kind, "kept open", str(right), []))
        self.fetch(client, 20_000, keep=True)

    def progress(self, minute, minutes):
        shares = {kind: {position: "{}/{}".format(*seen.ours(position)[::3]) for position in ("middle", "exit")} for kind, seen in self.seen.items()}
        guards = {kind: "{}/{}".format(*seen.ours("guard")[::3]) for kind, seen in self.guards.items()}
        print(f"     minute {minute} of {minutes:.0f}: {dict(self.fetches)}, failed {len(self.failed)}, ours {shares}, guards {guards}", flush=True)


def table(hour):
    """What was seen beside what was to be expected."""
    print(f"     {'client':<8}{'position':<10}{'circuits':>9}{'ours':>7}{'expected':>10}{'deviation':>11}", flush=True)
    for kind in hour.seen:
        for position in POSITIONS:
            seen, expected, deviation, whole = (hour.guards if position == "guard" else hour.seen)[kind].ours(position)
            print(f"     {kind:<8}{position:<10}{whole:>9}{seen:>7}{expected:>10.1f}{deviation:>11.1f}", flush=True)
    for kind, seen in hour.seen.items():
        for position in POSITIONS:
            of = (hour.guards if position == "guard" else hour.seen)[kind]
            each = {name: f"{of.count[position][name]}/{of.expected[position][name]:.1f}" for name in {**OURS, **THEIRS} if of.expected[position][name]}
            print(f"     {kind}, {position}: {each}", flush=True)


def shares(checks, hour):
    for kind in ("C tor", "Arti"):
        for position in POSITIONS:
            seen, expected, deviation, whole = (hour.guards if position == "guard" else hour.seen)[kind].ours(position)
            if checks.check(f"{kind} has chosen relays of ours as {position}", seen > 0, f"{seen} of {whole}"):
                near = abs(seen - expected) <= 3 * deviation + whole * OFF / 100
                checks.check(f"{kind}: as {position} in the share of their weight", near, f"{seen} of {whole}, expected {expected:.1f} ± {deviation:.1f}")


def grows(checks, network, resources):
    """From a third of the time on, when caches are full and everybody has come once."""
    print(f"     {'relay':<9}{'kB at 1/3':>11}{'at 2/3':>9}{'at the end':>12}{'descriptors':>13}{'':>5}{'':>5}{'CPU, s':>9}", flush=True)
    for name in {**OURS, **THEIRS}:
        points = [resources.at(name, share) for share in (1 / 3, 2 / 3, 1)]
        memory, descriptors = zip(*points)
        print(f"     {name:<9}{memory[0]:>11}{memory[1]:>9}{memory[2]:>12}{descriptors[0]:>13}{descriptors[1]:>5}{descriptors[2]:>5}"
              f"{resources.rows[name][-1][3]:>9.0f}", flush=True)
        if name in OURS:
            checks.check(f"{name}'s memory does not grow", memory[2] < 1.15 * memory[0] + 4000, memory)
            checks.check(f"{name}'s descriptors do not grow", descriptors[2] < 1.25 * descriptors[0] + 15, descriptors)


def main():
    checks = Checks("Relays of ours and of C tor in one network, and clients of C tor and Arti left alone")
    for tool in ("tor", "tor-gencert", "ss"):
        if not shutil.which(tool):
            checks.skip("everything", Missing(f"{tool} is not installed"))
            checks.done()
    if os.geteuid() != 0:
        checks.skip("everything", "packets are seen by root alone")
        checks.done()
    seed = int(os.environ.get("SEED", time.time()))
    random.seed(seed)
    print(f"     seed {seed}, {MINUTES:.0f} minutes", flush=True)
    with Lab() as lab:
        network = Network(lab, checks)
        weights = wait_for("all relays with their weights", lambda: network.complete() or time.sleep(1), 600)
        print(f"     weights of positions: {weights.parts}", flush=True)
        print(f"     {({name: sorted(flags) for name, flags in weights.flags.items()})}", flush=True)
        time.sleep(5)
        network.knows_arti()
        has_arti = shutil.which(arti_test.ARTI)
        if not has_arti:
            checks.skip("Arti", Missing("arti is not installed: `.ci/run arti` builds it"))
        clients = [network.tor("alone")] + ([network.arti("alone-arti")] if has_arti else [])
        hour = Hour(network, Target(), Wire())
        resources = hour.run(clients, MINUTES)
        table(hour)
        print(f"     fetches: {dict(hour.fetches)}; way not told by packets: {dict(hour.unknown)}; control port says otherwise: {hour.disagreed[:3]}", flush=True)
        for failure in hour.failed:
            print(f"     failed: {failure}", flush=True)
        shares(checks, hour)
        whole = sum(hour.fetches.values())
        checks.check(f"of {whole} fetches none has failed", not hour.failed, hour.failed[:5])
        checks.check("the control port tells the ways that the packets tell", not hour.disagreed, hour.disagreed[:3])
        grows(checks, network, resources)
        for name, relay in network.ours.items():
            checks.check(f"{name}'s log has no panic", "panicked" not in relay.text(), relay.text()[-600:])
            warned = collections.Counter(line.split(" ", 2)[-1][:140] for line in relay.text().splitlines() if " WARN " in line or " ERROR " in line)
            print(f"     {name} warns: {dict(warned.most_common(4))}", flush=True)
        for client in clients:
            client.stop()
    checks.done()


if __name__ == "__main__":
    main()
