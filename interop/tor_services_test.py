"""Onion services across with C tor: our client and its services, its client and ours, over a private network of C tor whose consensus is our
client's directory.

Needs `tor` and `tor-gencert`. C tor is left as it comes, with its vanguards and Conflux.
"""

import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

from client_test import fetch, reply
from common import HOPLITE, Checks, Lab, Missing, free_port, port_open, quoted, wait_for
from tor_test import Tor, consensus, targets, upload

HSDIRS = """TestingDirAuthVoteHSDir *
MinUptimeHidServDirectoryV2 0
"""
PROGRAM = """TestingTorNetwork 1
DataDirectory {home}
Log [rend]info notice stdout
ShutdownWaitLength 0
SafeLogging 0
SocksPort 127.0.0.1:{socks} ExtendedErrors
ClientOnionAuthDir {home}/auth
"""
RELAYS = 7
MANY = 12


def network(lab, resolver, voting=""):
    """Three authorities, which are relays too, and relays more: all of them exits and HSDirs. `voting`: lines of the authorities' files."""
    authorities = [Tor(lab, f"a{i}", True, resolver) for i in range(3)]
    relays = [Tor(lab, f"r{i}", False, resolver) for i in range(RELAYS - 3)]
    with ThreadPoolExecutor() as pool:
        list(pool.map(Tor.certify, authorities))
    for tor in authorities:
        tor.torrc += HSDIRS + voting
    for tor in authorities + relays:
        tor.start(authorities)
    return authorities


def program(lab, name, authorities, extra="", auth=()):
    """A C tor that is no relay: a client, or a host of services. `auth`: lines of its keys for services."""
    home, socks = lab.folder / name, free_port()
    (home / "auth").mkdir(parents=True, mode=0o700)
    home.chmod(0o700)
    for number, line in enumerate(auth):
        file = home / "auth" / f"{number}.auth_private"
        file.write_text(line + "\n")
        file.chmod(0o600)
    torrc = lab.folder / f"{name}.torrc"
    torrc.write_text(PROGRAM.format(home=home, socks=socks) + "".join(a.line for a in authorities) + extra)
    started = lab.run(f"tor-{name}", ["tor", "-f", torrc])
    started.socks, started.home = socks, home
    wait_for(f"{name} to know the network", lambda: "Bootstrapped 100%" in started.text() or not started.alive(), 90)
    return started


def served(folder, ports, authorised=None):
    """Lines of a C tor's file for a service; its directory, with the key of an authorised client if there is one."""
    folder.mkdir(parents=True, mode=0o700)
    if authorised:
        (folder / "authorized_clients").mkdir(mode=0o700)
        (folder / "authorized_clients" / "alice.auth").write_text(authorised + "\n")
    return f"HiddenServiceDir {folder}\n" + "".join(f"HiddenServicePort {port}\n" for port in ports)


def uploaded(host, services):
    """Until C tor has brought both descriptors of each service to all HSDirs: in a small network all are responsible."""
    said = "Uploaded hidden service descriptor (status 200"
    wait_for("services of C tor", lambda: host.text().count(said) >= 2 * RELAYS * services, 120)


def hostname(folder):
    file = folder / "hostname"
    return wait_for("a service's name", lambda: file.exists() and file.read_text().strip(), 30)


def keys(lab, address):
    """`hoplite keygen --onion-client`: the directory of a client's key, what the service is told, and the line of C tor's client."""
    folder = lab.folder / f"keys-{address[:8]}"
    ran = subprocess.run([HOPLITE, "keygen", "--onion-client", address, "--out", folder], check=True, capture_output=True, text=True)
    told = next(line for line in ran.stdout.splitlines() if line.startswith("descriptor:x25519:"))
    private = next(folder.glob("*.auth_private")).read_text().strip()
    return folder, told, private


def ours(lab, name, authorities, tables="", onion="", ports=None, wait=True, path=()):
    """A client of ours whose directory is the network's consensus. `path`: the relays of all circuits, by their nicknames."""
    socks, http = free_port(), free_port()
    ports = ports or [authority.dirport for authority in authorities]
    names = [f"{authority.v3}@127.0.0.1:{port}" for authority, port in zip(authorities, ports)]
    text = f'overlay = "onion"\nsocks.listen = "127.0.0.1:{socks}"\nhttp.listen = "127.0.0.1:{http}"\n\n'
    text += f"path = {quoted(path)}\n\n" if path else ""
    text += f'[directory]\ncache = "{name}.sqlite"\napart = ["family"]\n\n'
    text += f"[directory.tor]\nauthorities = {quoted(names)}\ntesting = true\n\n[onion]\n{onion}\n\n{tables}"
    file = lab.folder / f"{name}.toml"
    file.write_text(text)
    started = lab.run(f"{name}-{time.monotonic_ns()}", [HOPLITE, "client", "--config", file])
    started.socks = socks
    if wait:
        wait_for("the client", lambda: port_open("127.0.0.1", socks) or not started.alive(), 60)
        if not started.alive():
            raise RuntimeError(f"the client ended: {started.text()}")
    return started


def service(name, port, extra=""):
    return f'[[service]]\nkeys = "{name}.keys"\nports = ["80=127.0.0.1:{port}"]\n{extra}\n'


def eventually(body, seconds=60):
    """Until it is True: descriptors take a moment to be where the other end looks."""
    end, last = time.monotonic() + seconds, None
    while time.monotonic() < end:
        try:
            last = body()
            if last is True or last is None:
                return True
        except Exception as e:  # noqa: BLE001: whatever went wrong is the finding
            last = f"{type(e).__name__}: {e}"
        time.sleep(1)
    return last


def many(via, host):
    with ThreadPoolExecutor(MANY) as pool:
        results = list(pool.map(lambda _: fetch(via, host, 80, 50_000), range(MANY)))
    return all(result is True for result in results) or f"{results.count(True)} of {MANY}"


def carries(checks, what, via, host):
    checks.attempt(f"{what}: reached", lambda: eventually(lambda: fetch(via, host, 80, 1000)))
    checks.attempt(f"{what}: 1 MiB down", lambda: fetch(via, host, 80, 1 << 20))
    checks.attempt(f"{what}: 1 MiB up", lambda: upload(via, host, 80, 1 << 20))
    checks.attempt(f"{what}: {MANY} streams at once", lambda: many(via, host))


def their_services(checks, lab, authorities, http):
    """Services of C tor, and our client."""
    open_one, for_some = lab.folder / "their-open", lab.folder / "their-restricted"
    ports = [f"80 127.0.0.1:{http}"]
    # The address of the second must be known before its client's key: C tor makes it, and is started again.
    first = program(lab, "maker", authorities, served(for_some, ports))
    address = hostname(for_some)
    first.stop()
    folder, told, _ = keys(lab, address)
    (for_some / "authorized_clients").mkdir(mode=0o700, exist_ok=True)
    (for_some / "authorized_clients" / "alice.auth").write_text(told + "\n")
    lines = f"HiddenServiceDir {for_some}\nHiddenServicePort {ports[0]}\n"
    uploaded(program(lab, "host", authorities, served(open_one, ports) + lines), 2)
    alice = ours(lab, "alice", authorities, onion=f'client_keys = "{folder}"')
    carries(checks, "our client, their service", alice, hostname(open_one))
    carries(checks, "our client, their service for authorised clients", alice, address)
    eve = ours(lab, "eve", authorities)
    checks.check("without a key of it, not allowed", reply(eve.socks, address, 80) == 2)
    checks.check("a port that it does not serve is refused", reply(eve.socks, hostname(open_one), 81) != 0)
    checks.attempt("and then it is reached again", lambda: eventually(lambda: fetch(eve, hostname(open_one), 80, 1000), 20))
    checks.attempt("a target beyond an exit of theirs", lambda: fetch(eve, "127.0.0.1", http, 100_000))
    return alice


def our_services(checks, lab, authorities, http):
    """Services of ours, and C tor's client."""
    tables = service("open", http) + service("restricted", http)
    bob = ours(lab, "bob", authorities, tables)
    address, restricted = hostname(lab.folder / "open.keys"), hostname(lab.folder / "restricted.keys")
    bob.stop()
    _, told, private = keys(lab, restricted)
    clients = lab.folder / "restricted.keys" / "authorized_clients"
    clients.mkdir(mode=0o700, exist_ok=True)
    (clients / "carol.auth").write_text(told + "\n")
    (clients / "carol.auth").chmod(0o600)
    bob = ours(lab, "bob", authorities, tables)
    published = wait_for("both services", lambda: bob.text().count("an onion service is published") > 1, 90)
    checks.check("our services are published at their HSDirs", published)
    carol = program(lab, "carol", authorities, auth=[private])
    carries(checks, "their client, our service", carol, address)
    carries(checks, "their client, our service for authorised clients", carol, restricted)
    dave = program(lab, "dave", authorities)
    checks.check("without a key of it, their client is told so", reply(dave.socks, restricted, 80, timeout=90) in (0xF4, 0xF5))
    bob.stop()
    bob = ours(lab, "bob", authorities, tables)
    wait_for("both services", lambda: bob.text().count("an onion service is published") > 1, 90)
    reached = eventually(lambda: fetch(carol, address, 80, 1000), 120)
    said = f"{reached}; the service: {bob.text()[-2000:]}; their client: {carol.text()[-2000:]}"
    checks.check("started again with its keys, their client reaches it", reached is True, said)
    return address


def directories(checks, lab, authorities, alice, http):
    """What our client does with the consensus."""
    news = "there is a new list of relays"
    checks.attempt("the consensus is renewed", lambda: bool(wait_for("a newer one", lambda: news in alice.text(), 90)))
    checks.check("over circuits, without a failure", "renewing Tor's consensus" not in alice.text(), alice.text()[-600:])
    alice.stop()
    # Nobody is there to be asked.
    closed = [free_port() for _ in authorities]
    again = ours(lab, "alice", authorities, ports=closed)
    checks.attempt("what is kept is used", lambda: fetch(again, "127.0.0.1", http, 1000))
    mode = (lab.folder / "alice.sqlite").stat().st_mode & 0o777
    checks.check("for this user alone", mode == 0o600, oct(mode))

    class Stranger:
        v3, dirport = "1" * 40, authorities[0].dirport
    wrong = ours(lab, "wrong", [Stranger, *authorities[:1]], wait=False)
    wait_for("it to give up", lambda: not wrong.alive(), 60)
    checks.check("a consensus that too few known authorities have signed is forged", "forged" in wrong.text(), wrong.text()[-300:])


def main():
    checks = Checks("C tor: onion services of its and of ours, over its network")
    if not all(map(shutil.which, ("tor", "tor-gencert"))):
        checks.skip("everything", Missing("tor or tor-gencert is not installed"))
        checks.done()
    with Lab() as lab:
        http, _, names = targets(lab)
        authorities = network(lab, names)
        identities = [authority.v3 for authority in authorities]

        def whole():
            code, found, _ = consensus(authorities[0], identities)
            return code == 0 and len(found) == RELAYS or time.sleep(0.5)
        wait_for("a consensus with all relays", whole, 90)
        alice = their_services(checks, lab, authorities, http)
        our_services(checks, lab, authorities, http)
        directories(checks, lab, authorities, alice, http)
    checks.done()


if __name__ == "__main__":
    main()
