"""Our client and relays of ours in one network with C tor: a private one on loopback with authorities of its own, whose consensus we read.

Needs `tor` and `tor-gencert`. Circuits alone, and faults on them, are held against lone relays of C tor by
`cargo test -p hoplite-onion --test c_tor -- --ignored`.
"""

import json
import shutil
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

from client_test import SocksError, exactly, fetch, reply, socks
from common import HOPLITE, Checks, Lab, Missing, free_port, port_open, quoted, sha256, wait_for
from servers import payload

MB = 1_000_000
# C tor checks these against each other: a first consensus after 5 to 10 s.
VOTING = """AuthoritativeDirectory 1
V3AuthoritativeDirectory 1
TestingV3AuthInitialVotingInterval 5
TestingV3AuthInitialVoteDelay 2
TestingV3AuthInitialDistDelay 2
V3AuthVotingInterval 10
V3AuthVoteDelay 2
V3AuthDistDelay 2
V3AuthNIntervalsValid 6
TestingDirAuthVoteExit *
TestingDirAuthVoteGuard *
TestingMinExitFlagThreshold 0
"""
# RefuseUnknownExits: relays of ours are in no consensus, and stand before an exit of theirs.
RELAY = """TestingTorNetwork 1
AssumeReachable 1
Nickname {name}
DataDirectory {home}
Log notice stdout
ShutdownWaitLength 0
SafeLogging 0
Address 127.0.0.1
ORPort 127.0.0.1:{orport} IPv4Only
DirPort 127.0.0.1:{dirport} IPv4Only
SocksPort 0
ExitRelay 1
ExitPolicyRejectPrivate 0
ExitPolicy reject *:25
ExitPolicy accept *:*
RefuseUnknownExits 0
ServerDNSResolvConfFile {resolver}
ServerDNSAllowBrokenConfig 1
ServerDNSDetectHijacking 0
ServerDNSSearchDomains 0
ServerDNSTestAddresses
ContactInfo none@example.invalid
"""


class Tor:
    """One relay of C tor, perhaps an authority."""

    def __init__(self, lab, name, is_authority, resolver):
        self.lab, self.name, self.is_authority = lab, name, is_authority
        self.home = lab.folder / name
        (self.home / "keys").mkdir(parents=True, mode=0o700)
        self.home.chmod(0o700)
        self.orport, self.dirport = free_port(), free_port()
        self.torrc = RELAY.format(name=name, home=self.home, orport=self.orport, dirport=self.dirport, resolver=resolver)
        if is_authority:
            self.torrc += VOTING

    def certify(self):
        """An authority's keys; its v3 identity, and its line for everybody's file."""
        keys = self.home / "keys"
        subprocess.run(["tor-gencert", "--create-identity-key", "--passphrase-fd", "0", "-i", "authority_identity_key",
                        "-s", "authority_signing_key", "-c", "authority_certificate", "-m", "12",
                        "-a", f"127.0.0.1:{self.dirport}"], cwd=keys, input=b"pass\n", check=True, capture_output=True)
        text = (keys / "authority_certificate").read_text()
        self.v3 = next(line.split()[1] for line in text.splitlines() if line.startswith("fingerprint "))
        nobody = "x 127.0.0.1:1 ffffffffffffffffffffffffffffffffffffffff"
        listed = subprocess.run(["tor", "--quiet", "--list-fingerprint", "--ignore-missing-torrc", "-f", "/nonexistent",
                                 "--ORPort", "1", "--DataDirectory", self.home, "--Nickname", self.name, "--DirAuthority", nobody,
                                 "--ContactInfo", "x"], check=True, capture_output=True, text=True).stdout
        fingerprint = "".join(listed.splitlines()[-1].split()[1:])
        self.line = (f"DirAuthority {self.name} orport={self.orport} no-v2 v3ident={self.v3} "
                     f"127.0.0.1:{self.dirport} {fingerprint}\n")

    def start(self, authorities):
        path = self.lab.folder / f"{self.name}.torrc"
        path.write_text(self.torrc + "".join(a.line for a in authorities))
        self.process = self.lab.run(f"tor-{self.name}", ["tor", "-f", path])


def targets(lab):
    """What circuits of the network lead to: the port of a web server, the address of a DNS server that knows `target.test`, and the file by which a tor
    asks it."""
    ports = lab.targets({"target.test": "127.0.0.1"}).ports
    resolver, names = f"127.0.0.1:{ports['dns']}", lab.folder / "resolv.conf"
    names.write_text(f"nameserver {resolver}\n")
    return ports["http"], resolver, names


def network(lab, resolver):
    """Three authorities, which are relays too, and two relays more."""
    authorities = [Tor(lab, f"a{i}", True, resolver) for i in range(3)]
    relays = [Tor(lab, f"r{i}", False, resolver) for i in range(2)]
    with ThreadPoolExecutor() as pool:
        list(pool.map(Tor.certify, authorities))
    for tor in authorities + relays:
        tor.start(authorities)
    return authorities, relays


def consensus(source, identities):
    """What `hoplite tor-relays` makes of the directory's documents: (exit code, relays by name, what it complained of)."""
    command = [HOPLITE, "--json", "tor-relays", "--from", f"127.0.0.1:{source.dirport}"]
    for identity in identities:
        command += ["--authority", identity]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    relays = [json.loads(line) for line in ran.stdout.splitlines()]
    return ran.returncode, {relay["name"]: relay for relay in relays}, ran.stderr


def ours(lab, name, resolver):
    """A relay of ours that C tor accepts; what clients write of it."""
    folder, port = lab.folder / name, free_port()
    keygen = [HOPLITE, "--json", "keygen"]
    made = json.loads(subprocess.run([*keygen, "--rsa", "--out", folder], check=True, capture_output=True).stdout)
    path = lab.folder / f"{name}.toml"
    path.write_text(f'name = "{name}"\nlisten = ["127.0.0.1:{port}"]\nroles = ["ingress", "egress"]\nidentity = "{folder}"\n\n'
                    f'[onion]\nenabled = true\n\n[egress]\nallow = ["127.0.0.0/8"]\nresolver = ["{resolver}"]\n')
    relay = lab.run(name, [HOPLITE, "relay", "--config", path])
    wait_for(f"relay {name}", lambda: " is up" in relay.text() or not relay.alive())
    return {"name": name, "address": f"127.0.0.1:{port}", "onion": made["onion"], "rsa": made["rsa"]}


def client(lab, path, congestion_control=True, name=None):
    """A client of ours through these relays; adds `.socks`."""
    port, name = free_port(), name or "client-" + "-".join(relay["name"] for relay in path)
    text = f'overlay = "onion"\npath = {quoted(relay["name"] for relay in path)}\n\n[socks]\nlisten = "127.0.0.1:{port}"\n'
    text += f'\n[http]\nlisten = "127.0.0.1:{free_port()}"\n'
    text += f"\n[onion]\ncongestion_control = {str(congestion_control).lower()}\n"
    for relay in path:
        text += "\n[[relay]]\n" + "".join(f'{key} = "{relay[key]}"\n' for key in ("name", "address", "onion", "rsa"))
    file = lab.folder / f"{name}.toml"
    file.write_text(text)
    started = lab.run(name, [HOPLITE, "client", "--config", file])
    started.socks = port
    wait_for("the client", lambda: port_open("127.0.0.1", port) or not started.alive())
    if not started.alive():
        raise RuntimeError(f"the client ended: {started.text()}")
    return started


def body(s):
    """The body of one HTTP answer; the server keeps the connection."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += exactly(s, 1)
    length = next(line for line in head.decode().splitlines() if line.lower().startswith("content-length:"))
    return exactly(s, int(length.split(":")[1]))


def upload(via, host, port, size):
    data = payload(size)
    s, _ = socks(via.socks, 1, host, port)
    with s:
        s.sendall(f"POST /upload HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {size}\r\n\r\n".encode())
        s.sendall(data)
        answer = body(s)
    return answer == sha256(data).encode() or f"wrong checksum: {answer[-80:]!r}"


def half_closed(via, host, port, size):
    """The program has said all that it will; the answer must still come whole."""
    s, _ = socks(via.socks, 1, host, port)
    with s:
        s.sendall(f"GET /bytes/{size} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        s.shutdown(socket.SHUT_WR)
        answer = body(s)
    return answer == payload(size) or f"{len(answer)} bytes came"


def carries(checks, what, via, http, sizes=(MB, 20 * MB)):
    for size in sizes:
        checks.attempt(f"{what}: {size // MB} MB down", lambda size=size: fetch(via, "127.0.0.1", http, size))
        checks.attempt(f"{what}: {size // MB} MB up", lambda size=size: upload(via, "127.0.0.1", http, size))


def many(via, http, count=40):
    with ThreadPoolExecutor(count) as pool:
        results = list(pool.map(lambda _: fetch(via, "127.0.0.1", http, 50_000), range(count)))
    return all(result is True for result in results) or f"{results.count(True)} of {count}"


def answers(checks, via, http):
    checks.attempt("a name is resolved by their exit", lambda: fetch(via, "target.test", http, 1000))
    checks.check("an unknown name is no host", reply(via.socks, "nobody.test", 80) == 4)
    # On loopback C tor often forgets that it was refused ("Didn't recognize errno"), and says MISC.
    checks.check("a closed port is refused", reply(via.socks, "127.0.0.1", free_port()) in (1, 5))
    checks.check("what their policy forbids is not allowed", reply(via.socks, "127.0.0.1", 25) == 2)
    checks.attempt("half-closed, the answer still comes", lambda: half_closed(via, "127.0.0.1", http, MB))
    checks.attempt("40 streams at once", lambda: many(via, http))


def gone(s, seconds, nudge):
    """Whether the stream ends. C tor often has a DESTROY wait for the next cell on the channel: so there is one now and then, for other circuits."""
    s.settimeout(2)
    for number in range(seconds // 2):
        try:
            return s.recv(1) == b""
        except ConnectionError:
            return True
        except TimeoutError:
            nudge(number)
    return False


def killed(checks, via, victim, http):
    """A relay of theirs dies under a stream."""
    s, _ = socks(via.socks, 1, "127.0.0.1", http)
    with s:
        victim.process.child.kill()
        victim.process.child.wait()
        ended = gone(s, 20, lambda number: reply(via.socks, "127.0.0.1", http, user=f"nudge{number}"))
    checks.check("a stream over a relay that was killed ends", ended)
    began = time.monotonic()
    code = reply(via.socks, "127.0.0.1", http, timeout=90)
    checks.check("the next one is told so", code not in (0, None), f"SOCKS reply {code} after {time.monotonic() - began:.1f} s")
    log = via.text()
    checks.check("the log names no relay's address", "127.0.0.1:" not in log.split(" is up", 1)[-1].partition("\n")[2], log[-500:])


def main():
    checks = Checks("C tor: its relays, its consensus, and ours among them")
    if not all(map(shutil.which, ("tor", "tor-gencert"))):
        checks.skip("everything", Missing("tor or tor-gencert is not installed"))
        checks.done()
    with Lab() as lab:
        http, resolver, names = targets(lab)
        authorities, relays = network(lab, names)
        mine = [ours(lab, name, resolver) for name in ("amber", "birch")]
        identities = [authority.v3 for authority in authorities]
        began = time.monotonic()

        def whole():
            code, found, _ = consensus(authorities[0], identities)
            return found if code == 0 and len(found) == 5 else time.sleep(0.5)
        theirs = wait_for("a consensus with all relays", whole, 60)
        checks.check(f"their consensus is read ({time.monotonic() - began:.0f} s after the start)", True)
        # The same authority's: another one may publish it a moment later.
        code, _, said = consensus(authorities[0], identities[:1] + ["1" * 40, "2" * 40])
        checks.check("one that too few known authorities have signed is forged", code == 1 and "forged" in said, said)
        a, b, c = theirs["a0"], theirs["r0"], theirs["r1"]
        amber, birch = mine
        via = client(lab, [a, b, c])
        carries(checks, "three of theirs", via, http)
        answers(checks, via, http)
        carries(checks, "three of theirs without congestion control", client(lab, [a, b, c], False, "plain"), http)
        mixed = {"ours, theirs, ours": [amber, b, birch], "theirs, ours, theirs": [b, amber, c], "ours as exit": [b, c, amber],
                 "ours as guard": [amber, b, c]}
        for what, path in mixed.items():
            carries(checks, what, client(lab, path), http, (MB, 5 * MB))
        killed(checks, via, relays[0], http)
    checks.done()


if __name__ == "__main__":
    main()
