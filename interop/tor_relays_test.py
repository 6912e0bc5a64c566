"""Relays of ours in a network of C tor, unaided: its authorities list them, and its clients, left alone, choose them, and have the directory from them.
Among each other they have channels over QUIC, and with all others over TLS.

Needs `tor` and `tor-gencert`.
"""

import collections
import contextlib
import datetime
import json
import os
import pathlib
import shutil
import socket
import sqlite3
import struct
import subprocess
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

from client_test import fetch
from common import HOPLITE, Checks, Lab, Missing, free_port, quoted, wait_for
from tor_services_test import ours as our_client
from tor_services_test import program
from tor_test import Tor, consensus, targets

FETCHES = 30
# EtherType.
IPV4 = 0x0800
# SO_RCVBUFFORCE of Linux.
RECEIVE_BUFFER_FORCE = 33
PROTOCOLS = "Conflux=1 Cons=1-2 Desc=1-2 DirCache=2 FlowCtrl=1-2 HSDir=2 HSIntro=4-5 HSRend=1-2 Link=4-5 LinkAuth=3 Microdesc=1-2 Relay=2-6 X-HopliteQuic=1"
OURS = ("amber", "birch", "cedar")
TAKEN = "has taken the relay's server descriptor"
REFUSED = "the relay's server descriptor was not taken"


class Ours:
    """A relay of ours that tells the authorities of itself."""

    def __init__(self, lab, name, resolver, authorities, port=None):
        self.name, self.folder, self.port = name, lab.folder / name, port or free_port()
        self.lab, self.runs, self.metrics = lab, 0, free_port()
        self.file = lab.folder / f"{name}.toml"
        dirports = quoted(f"{authority.v3}@127.0.0.1:{authority.dirport}" for authority in authorities)
        self.file.write_text(
            f'name = "{name}"\nlisten = ["127.0.0.1:{self.port}"]\nidentity = "{self.folder}"\n\n[onion]\nenabled = true\nhsdir = true\n\n'
            f'[metrics]\nlisten = "127.0.0.1:{self.metrics}"\n\n[onion.tor]\nauthorities = {dirports}\ncontact = "nobody <none@example.invalid>"\n\n'
            f'[egress]\nallow = ["127.0.0.0/8"]\ndeny = ["*:25"]\nresolver = ["{resolver}"]\n')

    def start(self):
        self.runs += 1
        self.process = self.lab.run(f"{self.name}-{self.runs}", [HOPLITE, "relay", "--config", self.file])
        wait_for(f"relay {self.name}", lambda: " is up" in self.text() or not self.process.alive())
        return self

    def text(self):
        return self.process.text()

    def given(self):
        """What became of requests to its directory."""
        text = urllib.request.urlopen(f"http://127.0.0.1:{self.metrics}/metrics", timeout=5).read().decode()
        name = "hoplite_relay_onion_directory_requests_total{what="
        lines = [line for line in text.splitlines() if line.startswith(name)]
        return {line.split('"')[1]: int(line.split()[-1]) for line in lines}

    def knows(self, names):
        """Whether the consensus that it has lists these."""
        text = document(self)
        return all(f"\nr {name} " in text for name in names)

    def channels(self):
        """How many came in over QUIC and over TLS; those over QUIC can be of relays of ours alone, as C tor has none."""
        text = urllib.request.urlopen(f"http://127.0.0.1:{self.metrics}/metrics", timeout=5).read().decode()
        name = 'hoplite_relay_onion_channels_in_open{transport="'
        found = {line.split('"')[1]: int(line.split()[-1]) for line in text.splitlines() if line.startswith(name)}
        return found["quic"], found["tls"]

    def keys(self):
        """What clients write of it."""
        shown = subprocess.run([HOPLITE, "--json", "keygen", "--show", self.folder], check=True, capture_output=True)
        return json.loads(shown.stdout)


class Wire:
    """Bytes of UDP and of TCP that come in on loopback, by the port of the relay that they go to or come from."""

    def __init__(self, ports):
        self.ports, self.udp, self.tcp = ports, collections.Counter(), collections.Counter()
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(IPV4))
        self.socket.setsockopt(socket.SOL_SOCKET, RECEIVE_BUFFER_FORCE, 64 << 20)
        self.socket.bind(("lo", IPV4))
        threading.Thread(target=self.count, daemon=True).start()

    @classmethod
    def of(cls, checks, ports):
        try:
            return cls(ports)
        except PermissionError:
            checks.skip("packets between relays", Missing("they are seen by root alone"))
            return None

    def count(self):
        while True:
            packet = self.socket.recv(128)
            begin, kind = (packet[0] & 15) * 4, packet[9]
            carried = {socket.IPPROTO_UDP: (self.udp, 8), socket.IPPROTO_TCP: (self.tcp, 20)}.get(kind)
            source, to = struct.unpack_from("!HH", packet, begin)
            port = to if to in self.ports else source
            if carried and port in self.ports:
                counter, header = carried
                counter[port] += struct.unpack_from("!H", packet, 2)[0] - begin - header

    def between(self, ports):
        """Both sums, of these ports."""
        return sum(self.udp[port] for port in ports), sum(self.tcp[port] for port in ports)


def over_tcp(process):
    """The ports to which a process has TCP connections on loopback."""
    folder = pathlib.Path(f"/proc/{process.child.pid}")
    held = set()
    for file in (folder / "fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            held.add(os.readlink(file))
    lines = [line.split() for line in (folder / "net/tcp").read_text().splitlines()[1:]]
    return {int(line[2].split(":")[1], 16) for line in lines if line[3] == "01" and f"socket:[{line[9]}]" in held}


def document(relay):
    """The consensus that a relay of ours keeps for others."""
    path = relay.folder / "tor-directory.sqlite"
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as store:
        return store.execute("SELECT text FROM tor_document WHERE name = 'consensus'").fetchone()[0]


def network(lab, names):
    """Three authorities, which are relays too, and two relays more; who is an exit is not voted by their files but follows from what relays say."""
    authorities = [Tor(lab, f"a{i}", True, names) for i in range(3)]
    relays = [Tor(lab, f"r{i}", False, names) for i in range(2)]
    with ThreadPoolExecutor() as pool:
        list(pool.map(Tor.certify, authorities))
    for tor in authorities:
        # What an authority finds out by itself: AssumeReachable would have it believe all.
        tor.torrc = tor.torrc.replace("TestingDirAuthVoteExit *\n", "").replace("AssumeReachable 1\n", "AssumeReachable 0\n")
        # As the public network has it: clients name the Ed25519 identity in EXTEND2, without which relays of ours go to nobody.
        tor.torrc += "ConsensusParams ExtendByEd25519ID=1\n"
    for tor in authorities + relays:
        tor.start(authorities)
    return authorities, relays


def listed(authority):
    """The flags that the present consensus gives each relay, by its nickname; `exits` with them where it says that more than nothing may be reached."""
    try:
        url = f"http://127.0.0.1:{authority.dirport}/tor/status-vote/current/consensus"
        text = urllib.request.urlopen(url, timeout=5).read().decode()
    except OSError:
        return {}
    flags, name = {}, None
    for line in text.splitlines():
        if line.startswith("r "):
            name = line.split()[1]
        elif line.startswith("s "):
            flags[name] = set(line.split()[1:])
        elif line.startswith("p "):
            flags[name] |= set() if line == "p reject 1-65535" else {"exits"}
    return flags


def descriptor(authority, rsa):
    """What the authority keeps of a relay."""
    url = f"http://127.0.0.1:{authority.dirport}/tor/server/fp/{rsa}"
    return urllib.request.urlopen(url, timeout=5).read().decode()


class Control:
    """Which relays the circuits of a C tor went over, as its control port tells while it goes on."""

    def __init__(self, port):
        self.paths, self.carried = {}, []
        self.socket = socket.create_connection(("127.0.0.1", port), 10)
        self.socket.settimeout(None)
        self.socket.sendall(b"AUTHENTICATE\r\nSETEVENTS CIRC STREAM\r\n")
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self):
        for line in self.socket.makefile(errors="replace"):
            words = line.split()
            if words[:2] == ["650", "CIRC"] and len(words) > 4 and words[3] == "BUILT":
                self.paths[words[2]] = [hop.split("~")[-1] for hop in words[4].split(",")]
            if words[:2] == ["650", "STREAM"] and words[3] == "SUCCEEDED":
                self.carried.append(words[4])

    def positions(self):
        """The nicknames at the second place and at the last of circuits that streams went over."""
        paths = [self.paths[circuit] for circuit in self.carried if circuit in self.paths]
        paths = [path for path in paths if len(path) == 3]
        return [path[1] for path in paths], [path[2] for path in paths]


def chosen(checks, lab, authorities, http):
    """An unmodified client of C tor, which chooses by itself."""
    control = free_port()
    via = program(lab, "client", authorities, f"ControlPort 127.0.0.1:{control}\nCookieAuthentication 0\n")
    seen = Control(control)
    with ThreadPoolExecutor(5) as pool:
        fetched = list(pool.map(lambda n: attempt(lambda: fetch(via, "127.0.0.1", http, 20_000, f"user{n}")), range(FETCHES)))
    checks.check(f"{FETCHES} fetches over circuits of their own", all(f is True for f in fetched), f"{fetched.count(True)}: {set(map(str, fetched))}")
    middles, exits = seen.positions()
    ours = [[name for name in names if name in OURS] for names in (middles, exits)]
    print(f"     of {len(middles)} circuits that carried streams, {len(ours[0])} had one of ours in the middle, {len(ours[1])} at the end", flush=True)
    checks.check("ours carried traffic as middle relays", len(ours[0]) > 0, middles)
    checks.check("ours carried traffic as exits", len(ours[1]) > 0, exits)
    return via


def carried(checks, mine, theirs, wire, before):
    """What the channels of circuits run over that the client of C tor has chosen by itself; `before` is whom ours had dialled over TLS when they did not
    know each other yet."""
    channels = {relay.name: relay.channels() for relay in mine}
    print("     channels that came in, over QUIC and TLS:", channels, flush=True)
    checks.check("among relays of ours there are channels over QUIC", sum(quic for quic, _ in channels.values()) > 0, channels)
    ours = {relay.port for relay in mine}
    for relay in mine:
        to = over_tcp(relay.process) - before[relay.name]
        checks.check(f"{relay.name} has dialled no relay of ours over TLS", not to & ours, (sorted(to), sorted(ours)))
    # One channel serves both, whoever has dialled.
    orports = {tor.orport for tor in theirs}
    dialled = set().union(*(over_tcp(relay.process) for relay in mine)) & orports
    came = set().union(*(over_tcp(tor.process) for tor in theirs)) & ours
    checks.check("and with relays of C tor over TLS", dialled | came, (sorted(orports), sorted(ours)))
    if wire:
        checks.check("no relay of C tor got a packet of UDP", wire.between(orports)[0] == 0, wire.udp)


def attempt(body):
    for _ in range(3):
        try:
            return body()
        except Exception as e:  # noqa: BLE001: whatever went wrong is the finding
            last = f"{type(e).__name__}: {e}"
    return last


def is_listed(checks, lab, authorities, mine, identities):
    began = time.monotonic()
    # Stable is who has been there for longer than half of all: of a young network at one moment these, at another those.
    wanted = {"Running", "Valid", "Exit", "Fast", "V2Dir", "Guard", "exits"}

    def whole():
        flags = listed(authorities[0])
        return all(wanted <= flags.get(relay.name, set()) for relay in mine) or time.sleep(1)
    try:
        wait_for("our relays in the consensus", whole, 90)
    except Exception:  # noqa: BLE001: what is missing is told below
        pass
    took, flags = time.monotonic() - began, listed(authorities[0])
    for relay in mine:
        have = flags.get(relay.name, set())
        checks.check(f"{relay.name} is {' '.join(sorted(wanted))}", wanted <= have, f"{sorted(have)}; {relay.text()[-600:]}")
    for relay in mine:
        print(f"     {relay.name} after {took:.0f} s: {sorted(flags.get(relay.name, ()))}", flush=True)
    _, found, said = consensus(authorities[0], identities)
    for relay in mine:
        keys, entry = relay.keys(), found.get(relay.name, {})
        same = (entry.get("onion"), entry.get("rsa")) == (keys["onion"], keys["rsa"])
        checks.check(f"{relay.name}'s keys are in it", same, f"{entry}, {said}")
    for relay in mine:
        mode = (relay.folder / "secret_id_key").stat().st_mode & 0o777
        checks.check(f"{relay.name}'s RSA key is for its owner alone", mode == 0o600, oct(mode))
    text = descriptor(authorities[1], mine[0].keys()["rsa"])
    for line in ("accept 127.0.0.0/8:*", "reject *:25", "hidden-service-dir", "tunnelled-dir-server", f"proto {PROTOCOLS}", "contact nobody <none@example.invalid>", "platform Hoplite "):
        checks.check(f"the descriptor that an authority gives has {line!r}", f"\n{line}" in text, text[:1500])


def late(checks, lab, authorities, resolver):
    """A relay that comes while one of the authorities is down."""
    down = authorities[2]
    down.process.stop()
    cedar = Ours(lab, "cedar", resolver, authorities).start()
    wait_for("two answers", lambda: cedar.text().count(TAKEN) >= 2, 30)
    missed = [line for line in cedar.text().splitlines() if REFUSED in line]
    checks.check("an authority that is down is told of in the log", missed and "cannot be reached" in missed[0], cedar.text()[-600:])
    down.start(authorities)
    taken = wait_for("the third", lambda: cedar.text().count(TAKEN) >= 3, 90)
    checks.check("and told again when it is back", taken, cedar.text()[-600:])
    return cedar


def impostor(checks, lab, authorities, resolver, amber):
    """One who has the RSA key of another relay, under an Ed25519 identity of its own."""
    mallory = Ours(lab, "mallory", resolver, authorities)
    subprocess.run([HOPLITE, "keygen", "--out", mallory.folder], check=True, capture_output=True)
    shutil.copy(amber.folder / "secret_id_key", mallory.folder / "secret_id_key")
    mallory.start()
    said = wait_for("its refusal", lambda: [line for line in mallory.text().splitlines() if REFUSED in line], 30) or [""]
    checks.check("two Ed25519 identities with one RSA key are refused, and why is in the log", "Ed25519" in said[0], said[0])
    checks.check("nobody has taken it", TAKEN not in mallory.text())
    mallory.process.stop()


def alone(lab, name, authorities, mine, home=None):
    """A client of C tor that reaches no authority, knows one of our relays, and leaves C tor's relays out: it has everything from ours."""
    nowhere = free_port()
    first = mine[0]
    extra = "".join(f"DirAuthority {a.name} orport={nowhere} no-v2 v3ident={a.v3} 127.0.0.1:{nowhere} {a.line.split()[-1]}\n" for a in authorities)
    extra += f"FallbackDir 127.0.0.1:{nowhere} orport={first.port} id={first.keys()['rsa']}\n"
    extra += "ExcludeNodes a0,a1,a2,r0,r1\nStrictNodes 1\nLog [dir]info file {0}\n".format(lab.folder / f"{name}.dir")
    return program(lab, name, [], extra)


def cached(checks, lab, authorities, mine, http, wire):
    """One of our relays is all that a client knows: its directory, and with the others guard, middle and exit."""
    before = sum(relay.given()["given"] for relay in mine)
    via = alone(lab, "alone", authorities, mine)
    checks.check("a C tor client has the whole directory from our relays alone", "Bootstrapped 100%" in via.text(), via.text()[-800:])
    checks.attempt("and fetches over them", lambda: fetch(via, "127.0.0.1", http, 100_000))
    if wire:
        between(checks, via, mine, http, wire)
    given = sum(relay.given()["given"] for relay in mine) - before
    checks.check("our directory caches gave it a consensus, certificates and microdescriptors", given >= 3, given)
    # Votes are each ten seconds: it asks for the next consensus while it has one that holds.
    asked = wait_for("a difference", lambda: sum(relay.given()["diffs"] for relay in mine) > 0 or time.sleep(1), 90)
    print("     requests to our directory caches:", {relay.name: relay.given() for relay in mine}, flush=True)
    checks.check("it was given a difference", asked)
    said = lab.folder / "alone.dir"
    applied = wait_for("it to be applied", lambda: "Applied consensus diff" in said.read_text() or time.sleep(1), 90)
    told = [line for line in said.read_text().splitlines() if "consensus diff" in line]
    print(f"      {told[-1:]}", flush=True)
    checks.check("and has applied it", applied and not any("Could not apply" in line for line in told), told[-4:])
    return via


def between(checks, via, mine, http, wire):
    """Three hops of ours: the client's channel to the first is TLS, and the two others are QUIC."""
    ports, size, udp, tcp = [relay.port for relay in mine], 1_000_000, 0, 0
    for n in range(6):
        # Two relays that had a channel over TLS before they knew each other take it for one circuit more, and dial over QUIC beside it. And a relay of
        # C tor, some time after its start, once sends up to a megabyte over circuits of its own to measure itself: over ours, too, and it counts here.
        before = wire.between(ports)
        checks.attempt("1 MB over relays of ours alone", lambda n=n: fetch(via, "127.0.0.1", http, size, f"between{n}"))
        udp, tcp = (after - at for after, at in zip(wire.between(ports), before))
        twice, once = udp > 2 * size, size < tcp < 1.8 * size
        if twice and once:
            break
    print(f"     of {size} bytes over three relays of ours came {udp} over UDP and {tcp} over TCP, in try {n + 1}", flush=True)
    checks.check("it went over QUIC between them, twice", twice, udp)
    checks.check("and over TLS once", once, tcp)


def theirs(checks, mine):
    """Our caches take C tor's differences."""
    for relay in mine:
        came = [line for line in relay.text().splitlines() if "a consensus of Tor's authorities was fetched" in line]
        as_difference = sum("as_difference=true" in line for line in came)
        print(f"     {relay.name}: {len(came)} consensuses, {as_difference} of them as differences", flush=True)
        checks.check(f"{relay.name} takes differences of C tor's authorities", as_difference > 0, came[-3:])


def ours_too(checks, lab, authorities, mine, http):
    """Our client has its consensus from directories of this network, later ones as differences, over circuits to one of three that are ours."""
    before = sum(relay.given()["given"] + relay.given()["diffs"] for relay in mine)
    os.environ["HOPLITE_LOG"] = "info,hoplite::listed=debug"
    via = our_client(lab, "ours", authorities)
    del os.environ["HOPLITE_LOG"]
    checks.attempt("our client fetches by this consensus", lambda: fetch(via, "127.0.0.1", http, 100_000))

    def renewals():
        return [line for line in via.text().splitlines() if "Tor's consensus was fetched" in line]
    wait_for("differences", lambda: sum("as_difference=true" in line for line in renewals()) >= 3 or time.sleep(1), 150)
    lines = renewals()
    checks.check("our client takes differences", sum("as_difference=true" in line for line in lines) >= 3, lines[-4:])
    given = sum(relay.given()["given"] + relay.given()["diffs"] for relay in mine) - before
    print(f"     {len(lines)} renewals of our client, {given} answers of our directory caches meanwhile", flush=True)
    via.stop()


def first_relays(checks, lab, authorities, orports, http):
    """Clients of ours over one path: a first relay of ours is reached over QUIC, one of C tor over TLS. Chosen by itself, it has to be Stable, which
    nobody is for sure who is as young as ours."""
    for path, how in ((["amber", "r0", "birch"], "QUIC"), (["r0", "amber", "birch"], "TLS")):
        via = our_client(lab, f"over{how}", authorities, path=path)
        checks.attempt(f"our client fetches over {path}", lambda via=via: fetch(via, "127.0.0.1", http, 20_000))
        to = over_tcp(via) & orports
        checks.check(f"over {how} to {path[0]}", len(to) == (how == "TLS"), sorted(to))
        via.stop()


def over(checks, lab, authorities, mine, via, http):
    """All authorities are gone, and the last consensus is over: who runs goes on, and who comes is given it for a day."""
    for authority in authorities:
        authority.process.stop()
    checks.attempt("without authorities a client goes on", lambda: fetch(via, "127.0.0.1", http, 100_000))
    # A consensus holds for six intervals of ten seconds.
    wait_for("the last consensus to be over", lambda: over_for(mine[0]) or time.sleep(1), 120)
    checks.attempt("and when the last consensus is over", lambda: fetch(via, "127.0.0.1", http, 100_000))
    late = alone(lab, "late", authorities, mine)
    checks.check("a client that comes then still has a directory", "Bootstrapped 100%" in late.text(), late.text()[-800:])
    checks.attempt("and fetches", lambda: fetch(late, "127.0.0.1", http, 100_000))
    lines = [line for line in mine[0].text().splitlines() if "a consensus of Tor's authorities cannot be had" in line]
    checks.check("our relay's log says that it has no newer one", lines, mine[0].text()[-600:])


def over_for(relay):
    """Whether a minute and more has gone since it had a consensus last: so long they hold."""
    until = next(line for line in document(relay).splitlines() if line.startswith("valid-until "))
    until = datetime.datetime.fromisoformat(until.removeprefix("valid-until ")).replace(tzinfo=datetime.timezone.utc)
    return until < datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(seconds=2)


def main():
    checks = Checks("C tor: relays of ours in its consensus, chosen by its client")
    if not all(map(shutil.which, ("tor", "tor-gencert"))):
        checks.skip("everything", Missing("tor or tor-gencert is not installed"))
        checks.done()
    with Lab() as lab:
        http, resolver, names = targets(lab)
        authorities, others = network(lab, names)
        orports = {tor.orport for tor in authorities + others}
        wait_for("the authorities", lambda: len(listed(authorities[0])) >= 5 or time.sleep(0.5), 90)
        mine = [Ours(lab, name, resolver, authorities).start() for name in OURS[:2]]
        for relay in mine:
            taken = wait_for("the authorities' answers", lambda relay=relay: relay.text().count(TAKEN) >= 3, 30)
            checks.check(f"three authorities have taken {relay.name}'s descriptor", taken, relay.text()[-600:])
        impostor(checks, lab, authorities, resolver, mine[0])
        mine.append(late(checks, lab, authorities, resolver))
        is_listed(checks, lab, authorities, mine, [authority.v3 for authority in authorities])
        wait_for("our relays to know each other", lambda: all(relay.knows(OURS) for relay in mine) or time.sleep(0.5), 60)
        before = {relay.name: over_tcp(relay.process) for relay in mine}
        wire = Wire.of(checks, orports | {relay.port for relay in mine})
        via = chosen(checks, lab, authorities, http)
        carried(checks, mine, authorities + others, wire, before)
        checks.attempt("1 MB more", lambda: fetch(via, "127.0.0.1", http, 1_000_000))
        over_ours = cached(checks, lab, authorities, mine, http, wire)
        theirs(checks, mine)
        ours_too(checks, lab, authorities, mine, http)
        first_relays(checks, lab, authorities, orports | {relay.port for relay in mine}, http)
        over(checks, lab, authorities, mine, over_ours, http)
        for relay in mine:
            checks.check(f"{relay.name}'s log has no panic", "panicked" not in relay.text(), relay.text()[-600:])
    checks.done()


if __name__ == "__main__":
    main()
