"""Arti, Tor's implementation in Rust, as it comes from its registry: its client at exits and at services of ours, and our client at its services.

A private network of C tor on loopback; a service of C tor is there to tell a fault of ours from one of the network. Relays of ours have no part
in it: they are not in C tor's consensus, and Arti goes to no relay that is not.

Needs `arti` (in $ARTI, or in the path; `.ci/run arti` builds it), `tor` and `tor-gencert`.
"""

import base64
import os
import shutil
import subprocess
import time

from client_test import fetch, reply
from common import Checks, Lab, Missing, free_port, quoted, wait_for
from tor_services_test import MANY, RELAYS, carries, eventually, hostname, keys, network, ours, program, served, service, uploaded
from tor_test import consensus, many, targets, upload

ARTI = os.environ.get("ARTI", "arti")
# Where C tor is told that a network is one of tests, a time period is as long as a run of the shared random value: 24 intervals.
# Arti reads its length from the consensus, where C tor puts none, and takes five minutes for the least.
INTERVAL = 15
VOTING = f"""TestingV3AuthInitialVotingInterval {INTERVAL}
V3AuthVotingInterval {INTERVAL}
"""
# Seconds that the services of Arti take to be tried, with some to spare.
CALM = 150
# Relays are all on one address, targets are local, the voting interval is INTERVAL.
CONFIG = """[application]
allow_running_as_root = true

[proxy]
socks_listen = {socks}

[logging]
console = "info"

[storage]
cache_dir = "{home}/cache"
state_dir = "{home}/state"
port_info_file = "{home}/ports.json"

[[storage.keystore.ctor.clients]]
id = "authorised"
path = "{home}/auth"

[tor_network]
fallback_caches = [{caches}]

[tor_network.authorities]
v3idents = {identities}
uploads = {addresses}
downloads = {addresses}
votes = {addresses}

[address_filter]
allow_local_addrs = true

[path_rules]
ipv4_subnet_family_prefix = 33
ipv6_subnet_family_prefix = 129

[override_net_params]
hsdir_interval = {period}
"""
SERVICE = """
[onion_services.{name}]
proxy_ports = [["80", "127.0.0.1:{port}"], ["*", "reject"]]
"""
RESTRICTED = """restricted_discovery.enabled = true
restricted_discovery.static_keys = {{ bob = "{key}" }}
"""


class Network:
    """What Arti's file says of the network."""

    def __init__(self, authorities, relays):
        self.identities = quoted(authority.v3 for authority in authorities)
        self.addresses = "[" + ", ".join(quoted([f"127.0.0.1:{authority.dirport}"]) for authority in authorities) + "]"
        self.caches = ", ".join(self.cache(relays[authority.name]) for authority in authorities)

    @staticmethod
    def cache(relay):
        identity = base64.urlsafe_b64decode(relay["onion"] + "==")[:32]
        ed25519 = base64.b64encode(identity).decode().rstrip("=")
        rsa = relay["rsa"].replace(" ", "")
        return f'{{ rsa_identity = "{rsa}", ed_identity = "{ed25519}", orports = ["{relay["address"]}"] }}'


def arti(lab, name, net, services="", auth=()):
    """Arti's proxy, perhaps with services. `auth`: lines of its keys for services, as C tor's client has them."""
    home, socks = lab.folder / name, free_port()
    (home / "auth").mkdir(parents=True, mode=0o700, exist_ok=True)
    home.chmod(0o700)
    for number, line in enumerate(auth):
        file = home / "auth" / f"{number}.auth_private"
        file.write_text(line + "\n")
        file.chmod(0o600)
    started = lab.run(f"arti-{name}", [ARTI, "-c", config(lab, name, net, socks, services), "proxy"])
    started.socks = socks
    wait_for(f"{name} to know the network", lambda: "proxy now functional" in started.text() or not started.alive(), 120)
    return started


def config(lab, name, net, socks, services):
    file = lab.folder / f"{name}.toml"
    text = CONFIG.format(home=lab.folder / name, socks=socks, caches=net.caches, identities=net.identities, addresses=net.addresses,
                         period=24 * INTERVAL // 60)
    file.write_text(text + services)
    return file


def address(lab, name, net, nickname, services):
    """The name of a service that Arti has not run yet."""
    home = lab.folder / name
    home.mkdir(mode=0o700, exist_ok=True)
    (home / "auth").mkdir(mode=0o700, exist_ok=True)
    file = config(lab, name, net, free_port(), services)
    command = [ARTI, "-c", file, "hss", "--nickname", nickname, "onion-address", "--generate", "if-needed"]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.split()[-1]


def exits(checks, lab, net, http):
    """The control: exits of C tor."""
    reader = arti(lab, "reader", net)
    checks.attempt("their exit: a target", lambda: eventually(lambda: fetch(reader, "127.0.0.1", http, 1000)))
    checks.attempt("their exit: a name", lambda: fetch(reader, "target.test", http, 1000))
    checks.attempt("their exit: 1 MiB down", lambda: fetch(reader, "127.0.0.1", http, 1 << 20))
    checks.attempt("their exit: 1 MiB up", lambda: upload(reader, "127.0.0.1", http, 1 << 20))
    checks.attempt(f"their exit: {MANY} streams at once", lambda: many(reader, http, MANY))
    reader.stop()


def our_services(checks, lab, authorities, net, http):
    """Services of ours, and Arti's client; C tor's beside them."""
    tables = service("open", http) + service("restricted", http)
    bob = ours(lab, "bob", authorities, tables)
    everybodys, restricted = hostname(lab.folder / "open.keys"), hostname(lab.folder / "restricted.keys")
    bob.stop()
    _, told, private = keys(lab, restricted)
    clients = lab.folder / "restricted.keys" / "authorized_clients"
    clients.mkdir(mode=0o700, exist_ok=True)
    (clients / "carol.auth").write_text(told + "\n")
    (clients / "carol.auth").chmod(0o600)
    bob = published(ours(lab, "bob", authorities, tables))
    folder = lab.folder / "theirs"
    uploaded(program(lab, "host", authorities, served(folder, [f"80 127.0.0.1:{http}"])), 1)
    carol = arti(lab, "carol", net, auth=[private])
    carries(checks, "Arti's client, C tor's service", carol, hostname(folder))
    carries(checks, "Arti's client, our service", carol, everybodys)
    carries(checks, "Arti's client, our service for authorised clients", carol, restricted)
    dave = arti(lab, "dave", net)
    said = reply(dave.socks, restricted, 80, timeout=120)
    checks.check("without a key of it, Arti's client is told so", said == 0xF4, f"{said:#x}")
    checks.check("a port that our service does not serve is refused", reply(carol.socks, everybodys, 81, timeout=120) != 0)
    checks.attempt("and then it is reached again", lambda: eventually(lambda: fetch(carol, everybodys, 80, 1000), 20))
    bob.stop()
    published(ours(lab, "bob", authorities, tables))
    checks.attempt("started again with its keys, Arti's client reaches it", lambda: eventually(lambda: fetch(carol, everybodys, 80, 1000), 120))
    return everybodys


def published(bob):
    wait_for("both services", lambda: bob.text().count("an onion service is published") > 1, 90)
    return bob


def calm():
    """Until the time period goes on for a while. Arti publishes for the next one only where there is a shared random value for it, which a network
    has after two of its runs; before that its services are not found for a minute when the period changes, by whatever client."""
    length = 24 * INTERVAL
    left = length - (time.time() - length / 2) % length
    if left < CALM:
        time.sleep(left + 4 * INTERVAL)


def their_services(checks, lab, authorities, net, http):
    """Services of Arti, and our client; C tor's beside it."""
    calm()
    tables = SERVICE.format(name="open", port=http), SERVICE.format(name="restricted", port=http)
    everybodys, restricted = (address(lab, "keeper", net, name, "".join(tables)) for name in ("open", "restricted"))
    folder, told, private = keys(lab, restricted)
    arti(lab, "keeper", net, "".join(tables) + RESTRICTED.format(key=told))
    alice = ours(lab, "alice", authorities, onion=f'client_keys = "{folder}"')
    frank = program(lab, "frank", authorities, auth=[private])
    checks.attempt("C tor's client, Arti's service: reached", lambda: eventually(lambda: fetch(frank, everybodys, 80, 1000), 120))
    carries(checks, "our client, Arti's service", alice, everybodys)
    carries(checks, "our client, Arti's service for authorised clients", alice, restricted)
    eve = ours(lab, "eve", authorities)
    checks.check("without a key of it, not allowed", reply(eve.socks, restricted, 80) == 2)
    checks.check("a port that it does not serve is refused", reply(alice.socks, everybodys, 81) != 0)
    checks.attempt("and then it is reached again", lambda: eventually(lambda: fetch(alice, everybodys, 80, 1000), 20))


def main():
    checks = Checks("Arti: its client and its services with ours, over a network of C tor")
    if not all(map(shutil.which, ("tor", "tor-gencert"))):
        checks.skip("everything", Missing("tor or tor-gencert is not installed"))
        checks.done()
    if not shutil.which(ARTI):
        checks.skip("everything", Missing("arti is not installed: `.ci/run arti` builds it"))
        checks.done()
    print(subprocess.run([ARTI, "--version"], check=True, capture_output=True, text=True).stdout.splitlines()[0], flush=True)
    with Lab() as lab:
        http, _, names = targets(lab)
        authorities = network(lab, names, VOTING)
        identities = [authority.v3 for authority in authorities]

        def whole():
            code, found, _ = consensus(authorities[0], identities)
            return found if code == 0 and len(found) == RELAYS else time.sleep(0.5)
        net = Network(authorities, wait_for("a consensus with all relays", whole, 120))
        exits(checks, lab, net, http)
        our_services(checks, lab, authorities, net, http)
        their_services(checks, lab, authorities, net, http)
    checks.done()


if __name__ == "__main__":
    main()
