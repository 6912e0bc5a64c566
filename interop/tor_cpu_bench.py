"""What a relay of ours costs in C tor's network beside C tor's own, on the same work and in one run: processor time, user and system, by gigabyte.

One network on loopback, one client of C tor, which is told its circuits by its control port; the relay in question is guard, middle relay or exit, and
the two others are C tor's. Relays take turns, download by download. Beside that the middle relay of three of ours, where the channels are QUIC.

Downloads are one stream each over a circuit of its own, without Conflux. Processor time is that of all threads of the relay's process between the
first byte and the last, by /proc, so it tells nothing of the kernel's time for packets that come in interrupts, with either kind.

usage: tor_cpu_bench.py [--repetitions 7] [--megabytes 100] [--json]
"""

import argparse
import hashlib
import json
import os
import pathlib
import shutil
import sqlite3
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from client_test import exactly, socks
from common import Lab, free_port, port_open, wait_for
from servers import payload
from tor_network_test import Control
from tor_relays_test import TAKEN, Ours, listed
from tor_services_test import PROGRAM
from tor_test import Tor

MB, GB = 1_000_000, 1_000_000_000
OURS = ("amber", "birch", "cedar")
# The relay that is looked at, and the path that it is on.
CASES = {
    ("middle", "C tor"): ("r2", ("r0", "r2", "r1")),
    ("middle", "ours"): ("amber", ("r0", "amber", "r1")),
    ("guard", "C tor"): ("r2", ("r2", "r0", "r1")),
    ("guard", "ours"): ("amber", ("amber", "r0", "r1")),
    ("exit", "C tor"): ("r2", ("r0", "r1", "r2")),
    ("exit", "ours"): ("amber", ("r0", "r1", "amber")),
    ("middle, QUIC", "ours"): ("birch", ("amber", "birch", "cedar")),
}


def network(lab):
    """Three authorities, which carry nothing, three relays of C tor and three of ours."""
    targets = lab.targets({"target.test": "127.0.0.1"})
    names = pathlib.Path(lab.folder / "resolv.conf")
    names.write_text(f"nameserver 127.0.0.1:{targets.ports['dns']}\n")
    nodes = {name: Tor(lab, name, name.startswith("a"), names) for name in ("a0", "a1", "a2", "r0", "r1", "r2")}
    authorities = [tor for tor in nodes.values() if tor.is_authority]
    with ThreadPoolExecutor() as pool:
        list(pool.map(Tor.certify, authorities))
    for tor in nodes.values():
        if tor.is_authority:
            # Seldom, so that votes are nobody's work.
            tor.torrc = tor.torrc.replace("V3AuthVotingInterval 10", "V3AuthVotingInterval 60") + "ConsensusParams ExtendByEd25519ID=1\n"
        tor.start(authorities)
    for name in OURS:
        nodes[name] = Ours(lab, name, f"127.0.0.1:{targets.ports['dns']}", authorities).start()
        wait_for("the authorities' answers", lambda name=name: nodes[name].text().count(TAKEN) >= 3, 200)
    wait_for("all relays", lambda: len(listed(authorities[0])) == len(nodes) or time.sleep(1), 400)
    wait_for("our relays to know each other", lambda: all(knows_ours(nodes[name]) for name in OURS) or time.sleep(1), 400)
    return nodes, authorities, targets.ports["http"]


def knows_ours(relay):
    try:
        return relay.knows(OURS)
    except (TypeError, sqlite3.Error):
        return False  # it keeps no consensus yet


class Client:
    """A client of C tor whose streams go where they are sent."""

    def __init__(self, lab, authorities):
        port = free_port()
        extra = f"ControlPort 127.0.0.1:{port}\nCookieAuthentication 0\nConfluxEnabled 0\n__LeaveStreamsUnattached 1\n__DisablePredictedCircuits 1\n"
        home, self.socks = lab.folder / "client", free_port()
        home.mkdir(mode=0o700)
        self.process = program_without_circuits(lab, home, self.socks, authorities, extra)
        wait_for("the client's control port", lambda: port_open("127.0.0.1", port), 60)
        self.control = Control(port)
        wait_for("the client's directory", lambda: "(enough_dirinfo)" in self.process.text() or "100%" in self.process.text(), 200)

    def circuit(self, path):
        """Its number, once it is built."""
        for _ in range(10):
            said = self.control.said("EXTENDCIRCUIT 0 " + ",".join(path))
            if said.startswith("250 EXTENDED"):
                number = said.split()[2]
                end = time.monotonic() + 30
                while time.monotonic() < end:
                    words = next((line.split() for line in self.control.status("circuit-status") if line.split()[:1] == [number]), ["", "FAILED"])
                    if words[1] in ("BUILT", "FAILED", "CLOSED"):
                        break
                    time.sleep(0.1)
                if words[1] == "BUILT":
                    return number
            time.sleep(2)
        raise RuntimeError(f"no circuit over {path}: {said}")

    def download(self, circuit, port, size, begins):
        """Seconds, from the first byte to the last; `begins` is called before."""
        with ThreadPoolExecutor(1) as pool:
            opening = pool.submit(socks, self.socks, 1, "127.0.0.1", port, None, 60)
            attached = False
            while not opening.done():
                streams = [line.split() for line in self.control.status("stream-status")] if not attached else []
                for words in streams:
                    if len(words) > 3 and words[1] in ("NEW", "NEWRESOLVE", "DETACHED"):
                        attached = self.control.said(f"ATTACHSTREAM {words[0]} {circuit}").startswith("250")
                time.sleep(0.05)
            stream, _ = opening.result()
        with stream:
            begins()
            stream.sendall(f"GET /bytes/{size} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
            head = b""
            while b"\r\n\r\n" not in head:
                head += exactly(stream, 1)
            began, digest, left, buffer = time.monotonic(), hashlib.sha256(), size, bytearray(1 << 18)
            while left:
                count = stream.recv_into(buffer, min(left, len(buffer)))
                if not count:
                    raise EOFError(f"{left} bytes did not come")
                digest.update(memoryview(buffer)[:count])
                left -= count
            took = time.monotonic() - began
        if digest.digest() != hashlib.sha256(payload(size)).digest():
            raise ValueError("other bytes came")
        return took


def program_without_circuits(lab, home, socks_port, authorities, extra):
    """As a client that builds no circuits by itself: it would never say that it is done."""
    torrc = lab.folder / "client.torrc"
    torrc.write_text(PROGRAM.format(home=home, socks=socks_port) + "".join(a.line for a in authorities) + extra)
    (home / "auth").mkdir(mode=0o700)
    return lab.run("client", ["tor", "-f", torrc])


def spent(process):
    """Processor time of the process so far, in seconds."""
    words = pathlib.Path(f"/proc/{process.child.pid}/stat").read_text().rsplit(") ", 1)[1].split()
    return sum(map(int, words[11:13])) / os.sysconf("SC_CLK_TCK")


def measured(nodes, client, port, case, size):
    """Seconds of processor time by gigabyte, and bytes a second."""
    name, path = CASES[case]
    fingerprints = [rsa(nodes[hop]) for hop in path]
    circuit, process, before = client.circuit(fingerprints), nodes[name].process, []
    took = client.download(circuit, port, size, lambda: before.append(spent(process)))
    cost = spent(process) - before[0]
    client.control.said(f"CLOSECIRCUIT {circuit}")
    return cost * GB / size, size / took


def rsa(node):
    if isinstance(node, Ours):
        return node.keys()["rsa"].replace(" ", "").removeprefix("$")
    return (node.home / "fingerprint").read_text().split()[1]


def table(results):
    print(f"{'':<14}{'':<8}{'CPU s/GB, median (lowest to highest)':>40}{'MB/s':>8}{'n':>4}")
    for (position, kind), found in results.items():
        costs, rates = zip(*found)
        text = f"{statistics.median(costs):.2f} ({min(costs):.2f} to {max(costs):.2f})"
        print(f"{position:<14}{kind:<8}{text:>40}{statistics.median(rates) / MB:>8.1f}{len(found):>4}")
    for position in ("middle", "guard", "exit"):
        # Of each turn its own, as what else the machine does comes and goes.
        ratios = [ours[0] / theirs[0] for ours, theirs in zip(results[position, "ours"], results[position, "C tor"]) if theirs[0]]
        print(f"{position}: ours by C tor's {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}), of {len(ratios)} turns")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--json", action="store_true")
    words = parser.parse_args()
    if not all(map(shutil.which, ("tor", "tor-gencert"))):
        sys.exit("tor_cpu_bench: tor or tor-gencert is not installed")
    with Lab() as lab:
        nodes, authorities, port = network(lab)
        client = Client(lab, authorities)
        results = {case: [] for case in CASES}
        for case in CASES:
            measured(nodes, client, port, case, MB)  # the channels are there from then on
        for turn in range(words.repetitions):
            for case in CASES:
                results[case].append(measured(nodes, client, port, case, words.megabytes * MB))
            last = {", ".join(case): f"{found[-1][0]:.2f}" for case, found in results.items()}
            print(f"{turn + 1} of {words.repetitions}: CPU s/GB {last}", file=sys.stderr, flush=True)
    print(json.dumps({", ".join(case): found for case, found in results.items()})) if words.json else table(results)


if __name__ == "__main__":
    main()
