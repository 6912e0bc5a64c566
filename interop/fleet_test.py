"""A fleet under load: three relays of one name behind `hoplite-lab balancer`, each a host, while clients download over QUIC and TCP. They show
private tokens of an issuer, which the relays mark as spent with one PostgreSQL.

One relay is killed, one drains, all are replaced one after the other, a client changes its address, the balancer starts again, a relay hangs,
the store of spent tokens hangs, is gone and comes back. Needs root; says so and passes when it is not.
"""

import hashlib
import http.server
import json
import os
import pathlib
import pwd
import re
import secrets
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

from common import HERE, HOPLITE, Checks, client_config, quoted, wait_for
from netns import NetLab, usable
from spent_store_test import Postgres

HOPLITE_LAB = pathlib.Path(os.environ.get("HOPLITE_LAB", HOPLITE.with_name("hoplite-lab"))).resolve()
PORT, METRICS, PAGES, ISSUER = 443, 9090, 8080, 8443
SIZE, PIECE, PAUSE = 10 * 65536, 65536, 0.25  # what a download is, and how the target paces it: 2.5 s
PARALLEL = 2  # downloads of each client at a time
DRAIN = 15
ACCOUNT = "the account of all clients"
UNCHECKED = 20  # connections a second that a relay lets in while nobody knows what is spent, when it is told to
# As docs/tokens.md has it for relays that may not make their table.
TABLE = """CREATE TABLE hoplite_spent (mark bytea PRIMARY KEY, until bigint);
CREATE INDEX hoplite_spent_until ON hoplite_spent USING brin (until);
GRANT INSERT, SELECT, DELETE ON hoplite_spent TO plain"""
PAYLOAD = b"".join(hashlib.sha256(struct.pack("!I", i)).digest() for i in range(SIZE // 32))


# The target: pages from wherever a program asks for them on, at its own pace.

class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        start = int(re.fullmatch(r"bytes=(\d+)-", self.headers.get("range", "bytes=0-"))[1])
        self.send_response(206 if start else 200)
        self.send_header("content-length", str(SIZE - start))
        self.end_headers()
        for at in range(start, SIZE, PIECE):
            time.sleep(PAUSE)
            self.wfile.write(PAYLOAD[at:at + PIECE])

    def log_message(self, *_):
        pass


def serve(address):
    with http.server.ThreadingHTTPServer((address, PAGES), Page) as server:
        server.daemon_threads = True
        print(json.dumps({"event": "up"}), flush=True)
        server.serve_forever()


# The program: it downloads again and again, and goes on from where a download broke off.

class Broken(Exception):
    pass


def receive(stream, count):
    data = b""
    while len(data) < count and (more := stream.recv(count - len(data))):
        data += more
    if len(data) < count:
        raise Broken("it ended early")
    return data


def fetch(socks, target, have, told):
    """Adds to `have` what one request brings; whether the target was reached, which is told at once."""
    opened = False
    try:
        with socket.create_connection(("127.0.0.1", socks), 20) as stream:
            stream.sendall(b"\x05\x01\x00")
            receive(stream, 2)
            stream.sendall(b"\x05\x01\x00\x01" + socket.inet_aton(target) + struct.pack("!H", PAGES))
            if (reply := receive(stream, 10))[1]:
                raise Broken(f"SOCKS reply {reply[1]}")
            stream.sendall(f"GET / HTTP/1.0\r\nrange: bytes={len(have)}-\r\n\r\n".encode())
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                head += receive(stream, 1)
            opened = True
            told()
            while len(have) < SIZE:
                if not (more := stream.recv(65536)):
                    raise Broken("it ended early")
                have += more
        return opened, None
    except (Broken, OSError) as e:
        return opened, f"{type(e).__name__}: {e}"


def load(socks, target, parallel):
    """Downloads until it is told to stop (SIGTERM), ends those that run, and says of each how it went."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    lock = threading.Lock()

    def say(**line):
        with lock:
            print(json.dumps(line), flush=True)

    def work():
        while not stop.is_set():
            have, began, broken, refused, why = bytearray(), time.monotonic(), 0, 0, []
            while len(have) < SIZE and broken + refused < 400:
                asked = time.monotonic()
                opened, error = fetch(socks, target, have, lambda asked=asked: say(event="answered", asked=asked))
                if error:
                    say(event="failed", asked=asked, opened=opened, why=error)
                    broken, refused = broken + opened, refused + (not opened)
                    why.append(error)
                    time.sleep(0.2)
            say(event="download", began=began, ended=time.monotonic(), right=bytes(have) == PAYLOAD, broken=broken, refused=refused, why=why)
    workers = [threading.Thread(target=work) for _ in range(parallel)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


class Client:
    """`hoplite client` and a program that downloads through it."""

    def __init__(self, fleet, host, name):
        self.fleet, self.host, self.name = fleet, host, name
        self.socks = fleet.next_port
        fleet.next_port += 1
        self.before = fleet.connections(host)
        path = fleet.lab.folder / f"{name}.toml"
        entry = ("fleet", f"{fleet.front.v4}:{PORT}", fleet.leaf.pin, None)
        path.write_text(client_config([entry], f"127.0.0.1:{self.socks}", "off", None, f"""issuer = "issuer.test"
origin = "fleet.test"

[[issuer]]
name = "issuer.test"
address = "{fleet.issuer.v4}:{ISSUER}"
pin = "{fleet.issuer_pin}"
token = "{ACCOUNT}"
stock = "{name}.sqlite"
keep = 4
"""))
        self.process = host.run(name, [HOPLITE, "client", "--config", path])
        fleet.lab._wait_port(host, "127.0.0.1", self.socks, self.process)
        self.program = None

    def start(self, parallel=PARALLEL):
        """Waits until it is connected, by the way that its host has, and begins to download; `relay` says where."""
        def risen():
            after = self.fleet.connections(self.host)
            return [name for name in after if after[name] > self.before[name]]
        self.relay = wait_for(f"a relay for {self.name}", risen)[0]
        return self.download(parallel)

    def download(self, parallel=1):
        words = [sys.executable, HERE / "fleet_test.py", "load", self.socks, self.fleet.lab.target.v4, parallel]
        self.program = self.host.run(f"{self.name}-program", words)
        return self

    def downloads(self, since=0.0):
        return [line for line in self.program.lines() if line["event"] == "download" and line["ended"] > since]

    def answered(self, since):
        """Whether the target has answered what was asked since then."""
        return any(line["event"] == "answered" and line["asked"] > since for line in self.program.lines())

    def refused(self, since):
        """What was said to the program, asked since then, when a flow was not opened."""
        return [line["why"] for line in self.program.lines() if line["event"] == "failed" and not line["opened"] and line["asked"] > since]

    def finish(self):
        """Lets what runs end."""
        self.program.child.send_signal(signal.SIGTERM)

    def ended(self):
        self.program.child.wait(60)
        self.process.stop()


class FleetLab(NetLab):
    """Its servers' folders go with it."""

    def __init__(self, relays):
        self.places = []
        super().__init__(relays)

    def __exit__(self, *error):
        super().__exit__(*error)
        for place in self.places:
            shutil.rmtree(place, ignore_errors=True)


class Fleet:
    """The relays, the balancer in front of them, and who uses them."""

    def __init__(self, lab):
        self.lab, self.next_port, self.clients = lab, 2000, []
        number = len(lab.hosts) + 1
        # The balancer; clients that have no UDP; one that changes its address; who gives tokens; who knows which are spent.
        for name in ("front", "tcp", "mover", "issuer", "store"):
            lab.hosts[name] = host = lab.host(name, number)
            lab.namespaces.append(host.ns)
            number += 1
        self.front, self.tcp, self.mover, self.issuer = (lab.hosts[name] for name in ("front", "tcp", "mover", "issuer"))
        # Nobody leaves the way that is tried, however slow the machine is.
        self.tcp.block_udp()
        for host in (lab.client, self.mover):
            self.block_tcp(host)
        # One identity, hence one pin, for all.
        self.leaf = lab.authority.leaf("fleet", ["fleet.test", self.front.v4])
        lab.leaves = {relay.name: self.leaf for relay in lab.relays}
        self.keys = {}  # by the configuration that has each: that of the version which runs, that of the next one
        for config in (1, 2):
            self.keys[config] = key = lab.folder / f"fleet-{config}.key"
            key.touch(0o600)
            key.write_text(secrets.token_hex(16))
        self.start_issuer()
        self.start_store(lab.hosts["store"])
        self.config, self.unchecked = 1, 0
        for relay in lab.relays:
            self.start_relay(relay)
        self.start_balancer()
        target = lab.target.run("target", [sys.executable, HERE / "fleet_test.py", "target", lab.target.v4])
        wait_for("the target", target.lines)

    def block_tcp(self, host):
        """To the fleet alone."""
        rules = f"table inet block {{\n chain out {{\n type filter hook output priority 0\n ip daddr {self.front.v4} meta l4proto tcp drop\n}}\n}}\n"
        subprocess.run([*host.prefix(), "nft", "-f", "-"], input=rules, text=True, check=True, capture_output=True)

    def start_issuer(self):
        leaf = self.lab.authority.leaf("issuer", ["issuer.test"])
        self.issuer_pin = leaf.pin
        path = self.lab.folder / "issuer.toml"
        path.write_text(f'listen = "{self.issuer.v4}:{ISSUER}"\nstore = "issuer.sqlite"\n[tls]\ncert = "{leaf.cert}"\nkey = "{leaf.key}"\n'
                        f'[[account]]\nname = "all"\ntoken = "{ACCOUNT}"\ntokens_per_day = 100000\n')
        process = self.issuer.run("issuer", [HOPLITE, "issuer", "--config", path])
        self.lab._wait_port(self.issuer, self.issuer.v4, ISSUER, process)

    def start_store(self, host):
        user = pwd.getpwnam("postgres")
        place = pathlib.Path(tempfile.mkdtemp(prefix="hoplite-store-", dir="/tmp"))  # the lab's folder is closed to that user
        self.lab.places.append(place)
        os.chown(place, user.pw_uid, user.pw_gid)
        self.store = Postgres(self.lab, place, user, host)
        self.store.sql(TABLE, "tokens")
        self.store_url = self.lab.folder / "store.url"
        self.store_url.touch(0o600)
        self.store_url.write_text(self.store.url)

    def number(self, relay):
        return f"{self.lab.relays.index(relay) + 1:04x}"

    def extra(self, relay):
        return f"""
[fleet]
config = {self.config}
server_id = "{self.number(relay)}"
key = "{self.keys[self.config]}"

[limits]
drain = {DRAIN}

[metrics]
listen = "{relay.v4}:{METRICS}"

[auth.private_tokens]
issuer = "issuer.test"
origin = "fleet.test"
keys = "{relay.name}-keys.json"
directory = "https://{self.issuer.v4}:{ISSUER}"
pin = "{self.issuer_pin}"
unchecked = {self.unchecked}

[auth.private_tokens.store]
url_file = "{self.store_url}"
"""

    def start_relay(self, relay):
        process = self.lab.start_relay(relay, self.extra(relay))
        wait_for(f"the issuer's keys at {relay.name}", lambda: (self.lab.folder / f"{relay.name}-keys.json").exists())
        return process

    def let_in_unchecked(self, number):
        """Each relay reads its file again while it serves."""
        self.unchecked = number
        for relay in self.lab.relays:
            process, path = self.lab.running[relay.name], self.lab.folder / f"{relay.name}.toml"
            mark = len(process.text())
            path.write_text(re.sub(r"^unchecked = \d+", f"unchecked = {number}", path.read_text(), flags=re.M))
            process.child.send_signal(signal.SIGHUP)
            wait_for(f"{relay.name} to reload", lambda: "were read again" in process.text()[mark:])  # noqa: B023

    def start_balancer(self):
        text = f"listen = {quoted([f'{self.front.v4}:{PORT}'])}\n"
        for config, key in self.keys.items():
            text += f'[[config]]\nid = {config}\nkey = "{key}"\n'
        for relay in self.lab.relays:
            text += f'[[relay]]\nserver_id = "{self.number(relay)}"\naddress = "{relay.v4}:{PORT}"\nhealth = "{relay.v4}:{METRICS}"\n'
        text += "[health]\nevery = 0.2\npatience = 1\nsilences = 2\n"
        path = self.lab.folder / "balancer.toml"
        path.write_text(text)
        log = self.lab.folder / "balancer.log"
        self.mark = len(log.read_text().splitlines()) if log.exists() else 0
        self.balancer = self.front.run("balancer", [HOPLITE_LAB, "balancer", path])
        for relay in self.lab.relays:
            self.wait_health(relay, "ready")

    def health(self, relay):
        """What the balancer said last of a relay."""
        lines = self.balancer.lines()[self.mark:]
        said = [line["health"] for line in lines if line["event"] == "health" and line["relay"] == self.number(relay)]
        return said[-1] if said else None

    def wait_health(self, relay, health):
        wait_for(f"{relay.name} {health}", lambda: self.health(relay) == health or not self.balancer.alive())

    def ask(self, relay, path):
        """(status, text) of what a relay answers beside its metrics; status 0 without an answer."""
        words = ["curl", "-sS", "--max-time", 2, "-w", "%{http_code}", f"http://{relay.v4}:{METRICS}{path}"]
        text = self.front.call(*words).stdout.decode()
        return int(text[-3:] or 0), text[:-3]

    def flows(self, relay):
        """Downloads that pass it now."""
        return sum(float(count) for count in re.findall(r"^hoplite_relay_tunnels_open{.*} (\S+)$", self.ask(relay, "/metrics")[1], re.M))

    def sum(self, metric):
        """Of all relays."""
        texts = [self.ask(relay, "/metrics")[1] for relay in self.lab.relays]
        return sum(float(count) for text in texts for count in re.findall(rf"^hoplite_relay_{metric}(?:{{.*}})? (\S+)$", text, re.M))

    def connections(self, host):
        """Those that are open over what a host has, QUIC or TCP, by the relays' names; none at a relay that does not answer."""
        transport = "tls" if host is self.tcp else "quic"
        metric = re.compile(rf'^hoplite_relay_connections_open{{transport="{transport}"}} (\S+)$', re.M)
        texts = {relay.name: self.ask(relay, "/metrics")[1] for relay in self.lab.relays}
        return {name: float(found[1]) if (found := metric.search(text)) else 0 for name, text in texts.items()}

    def add(self, host, name):
        client = Client(self, host, name).start()
        self.clients.append(client)
        return client

    def populate(self):
        """Clients over QUIC until each relay has one, which the balancer's hash decides, and a client over TCP for each relay."""
        for number in range(30):
            self.add(self.lab.client, f"quic-{number}")
            if {client.relay for client in self.clients} == {relay.name for relay in self.lab.relays}:
                break
        for number in range(3):
            self.add(self.tcp, f"tcp-{number}")

    def of(self, relay):
        return [client for client in self.clients if client.relay == relay.name]

    def where(self):
        return {client.name: client.relay for client in self.clients}

    def settle(self, since, patience=30):
        """Waits until every client has begun and ended a download since then."""
        wait_for("downloads of all clients", lambda: all(
            any(line["began"] > since for line in client.downloads(since)) for client in self.clients), patience)


def outcome(clients, since):
    """What went wrong with downloads that ended since then, for a check: nothing, if nothing did."""
    lines = [(client.name, line) for client in clients for line in client.downloads(since)]
    return [(name, line["broken"], line["refused"], line["why"]) for name, line in lines
            if not line["right"] or line["broken"] or line["refused"]] or (not lines and "no downloads")


def wrong(clients, since):
    """Downloads that did not end right, whatever became of them on their way."""
    return [(client.name, line["why"]) for client in clients for line in client.downloads(since) if not line["right"]]


# What happens to the fleet, one after the other. Each leaves all three relays ready.

def spread(checks, fleet):
    """Nothing happens."""
    since = time.monotonic()
    fleet.settle(since)
    checks.check("each relay has clients over QUIC, and one over TCP", all(
        any(c.host is fleet.lab.client for c in fleet.of(relay)) and any(c.host is fleet.tcp for c in fleet.of(relay))
        for relay in fleet.lab.relays), fleet.where())
    checks.check("all downloads are right and whole", not (bad := outcome(fleet.clients, since)), bad)


def killed(checks, fleet):
    """One of three relays is killed."""
    relay = fleet.lab.relays[0]
    mine, others = fleet.of(relay), [c for c in fleet.clients if c.relay != relay.name]
    since = time.monotonic()
    fleet.lab.running[relay.name].stop(signal.SIGKILL)
    new = [Client(fleet, host, f"new-{host.name}").start(1) for host in (fleet.lab.client, fleet.tcp)]
    fleet.wait_health(relay, "dead")
    fleet.settle(since)
    moved = [sum(line["broken"] for line in client.downloads(since)) for client in mine]
    checks.check("killed: its clients' downloads broke off and were moved", all(moved), moved)
    checks.check("killed: they ended right", not (bad := wrong(mine, since)), bad)
    checks.check("killed: those over other relays did not notice", not (bad := outcome(others, since)), bad)
    wait_for("downloads of new clients", lambda: all(client.downloads() for client in new))
    checks.check("killed: who came then was served by the others, by QUIC and by TCP",
                 not (bad := wrong(new, since)) and relay.name not in {c.relay for c in new}, bad)
    for client in new:
        client.finish()
    began = time.monotonic()
    fleet.start_relay(relay)
    fleet.wait_health(relay, "ready")
    for client in new:
        client.ended()
    checks.check("killed: back under its number it is ready", fleet.health(relay) == "ready", f"{time.monotonic() - began:.1f} s")


def drain(fleet, relay):
    """SIGTERM, with the relay's answers and the balancer's view once it has heard; its log from then on when it has ended, and what it had then."""
    process = fleet.lab.running[relay.name]
    wait_for(f"downloads by way of {relay.name}", lambda: fleet.flows(relay))
    mark = len(process.text())
    process.child.send_signal(signal.SIGTERM)
    fleet.wait_health(relay, "draining")
    answers = [fleet.ask(relay, path)[0] for path in ("/ready", "/live")]
    process.child.wait(DRAIN + 10)
    log = process.text()[mark:]
    return answers, log, "still open" not in log and "has stopped" in log


def drained(checks, fleet):
    """One drains while the others go on."""
    relay = fleet.lab.relays[1]
    since = time.monotonic()
    answers, log, whole = drain(fleet, relay)
    checks.check("draining: it lives and is not ready, and the balancer gives it nothing new", answers == [503, 200], answers)
    checks.check("draining: it has ended when its last download had", whole, log[-300:])
    fleet.settle(time.monotonic())
    checks.check("draining: no download was lost, and no new one refused", not (bad := outcome(fleet.clients, since)), bad)
    fleet.wait_health(relay, "dead")
    fleet.start_relay(relay)
    fleet.wait_health(relay, "ready")


def replaced(checks, fleet):
    """A new version is rolled out, with a new key: one after the other drains and starts again."""
    since = time.monotonic()
    fleet.config = 2
    for relay in fleet.lab.relays:
        _, log, whole = drain(fleet, relay)
        checks.check(f"roll-out: {relay.name} closed nothing", whole, log[-300:])
        fleet.start_relay(relay)
        fleet.wait_health(relay, "ready")
    fleet.settle(time.monotonic())
    checks.check("roll-out: no download was lost, and no new one refused", not (bad := outcome(fleet.clients, since)), bad)


def rebound(checks, fleet):
    """A client changes its address; the balancer starts again and knows nobody."""
    mover = fleet.add(fleet.mover, "mover")
    wait_for("a download", lambda: mover.downloads())
    since = time.monotonic()
    for last in range(77, 81):  # several: by its address alone it would come back to its relay once in three times
        moved = time.monotonic()
        fleet.mover.renumber(last)
        wait_for("an answer to the new address", lambda: mover.answered(moved))  # noqa: B023
    wait_for("a download from the last address", lambda: any(line["began"] > moved for line in mover.downloads(moved)))
    checks.check("another address: the client reached its relay by the ids of its connection", not (bad := outcome([mover], since)), bad)
    quic = [client for client in fleet.clients if client.host is not fleet.tcp]
    since = time.monotonic()
    fleet.balancer.stop(signal.SIGKILL)
    fleet.start_balancer()
    fleet.settle(since)
    checks.check("the balancer started again: connections over QUIC found their relays by their ids alone",
                 not (bad := outcome(quic, since)), bad)
    tcp = [client for client in fleet.clients if client.host is fleet.tcp]
    checks.check("the balancer started again: downloads over TCP were moved, and ended right", not (bad := wrong(tcp, since)), bad)


def hung(checks, fleet):
    """A relay hangs: it does not answer /live."""
    relay = fleet.lab.relays[2]
    process = fleet.lab.running[relay.name].child
    since = time.monotonic()
    process.send_signal(signal.SIGSTOP)
    try:
        answer = fleet.ask(relay, "/live")[0]
        checks.check("a relay that hangs does not answer that it lives", answer == 0, answer)
        fleet.wait_health(relay, "dead")
        new = Client(fleet, fleet.lab.client, "new-hung").start(1)
        wait_for("a download of a new client", lambda: new.downloads())
        checks.check("hung: who came then was served by the others", new.relay != relay.name and not wrong([new], since), new.relay)
        fleet.settle(since, 60)
        checks.check("hung: every client's downloads ended right", not (bad := wrong(fleet.clients, since)), bad)
        new.finish()
        new.ended()
    finally:
        process.send_signal(signal.SIGCONT)
    fleet.wait_health(relay, "ready")
    checks.check("hung: it is ready when it answers again", fleet.health(relay) == "ready")


def newcomer(fleet, name):
    """A client that comes and wants a download, whether or not it is let in."""
    return Client(fleet, fleet.lab.client, name).download()


def served(client):
    wait_for(f"a download of {client.name}", lambda: client.downloads(), 60)
    client.finish()
    client.ended()
    return not (bad := wrong([client], 0)), bad


def outage(checks, fleet):
    """The store of spent tokens hangs; then it is gone, and nobody may be let in; then some may, and a relay is killed; then it is back."""
    store, began = fleet.store, time.monotonic()
    store.freeze()
    try:
        late = newcomer(fleet, "late")
        wait_for("a refusal", lambda: late.refused(0))
        checks.check("store hangs: relays say that it does not answer", fleet.sum("spent_store_failures_total") > 0)
        fleet.settle(began)
    finally:
        store.freeze(False)
    checks.check("store hangs: who came then was refused, and served when it went on", *served(late))
    store.kill()
    gone, since = newcomer(fleet, "gone"), time.monotonic()
    wait_for("a refusal", lambda: gone.refused(0))
    fleet.settle(since)
    ready = {relay.name: fleet.health(relay) for relay in fleet.lab.relays}
    checks.check("store gone: each relay is ready: who was let in is served", set(ready.values()) == {"ready"}, ready)
    checks.check("store gone: downloads of those who were let in before did not notice", not (bad := outcome(fleet.clients, began)), bad)
    fleet.let_in_unchecked(UNCHECKED)
    checks.check("store gone, some may be let in: who waited is served", *served(gone))
    checks.check("store gone, some may be let in: relays count them", fleet.sum("tokens_unchecked_total") > 0)
    relay, since = fleet.lab.relays[0], time.monotonic()
    wait_for(f"downloads by way of {relay.name}", lambda: fleet.flows(relay))
    fleet.lab.running[relay.name].stop(signal.SIGKILL)
    fleet.wait_health(relay, "dead")
    fleet.settle(since, 60)
    moved = sum(line["broken"] for client in fleet.clients for line in client.downloads(since))
    bad = wrong(fleet.clients, since)
    checks.check("store gone and a relay killed: its clients' downloads were moved and ended right", moved and not bad, (moved, bad))
    store.start()
    fleet.start_relay(relay)
    fleet.wait_health(relay, "ready")
    fleet.let_in_unchecked(0)
    marks = store.marks()
    checks.check("store back: who comes is served", *served(newcomer(fleet, "back")))
    checks.check("store back: his token is marked", store.marks() > marks, (marks, store.marks()))
    checks.check("store back: relays say so", fleet.sum("spent_store_up") >= 1)


PARTS = (spread, killed, drained, replaced, rebound, hung, outage)


def main():
    checks = Checks("a fleet under load")
    if why := usable():
        checks.skip("network namespaces", why)
        checks.done()
    chosen = sys.argv[1:]  # parts by name; all without
    if why := Postgres.missing():
        checks.skip("a store of spent tokens", why)
        checks.done()
    with FleetLab(relays=3) as lab:
        fleet = Fleet(lab)
        fleet.populate()
        for part in PARTS:
            if chosen and part.__name__ not in chosen:
                continue
            began = time.monotonic()
            try:
                part(checks, fleet)
            except (Exception, subprocess.TimeoutExpired) as e:  # noqa: BLE001: the other parts go on
                checks.check(part.__doc__.splitlines()[0], False, f"{type(e).__name__}: {e}")
            print(f"({part.__name__}: {time.monotonic() - began:.0f} s)", flush=True)
        for client in fleet.clients:
            client.finish()
        for client in fleet.clients:
            client.ended()
        checks.check("the balancer lived through it", fleet.balancer.alive())
        if checks.failed:
            lab.show_logs()
    checks.done()


if __name__ == "__main__":
    if sys.argv[1:2] == ["target"]:
        serve(sys.argv[2])
    elif sys.argv[1:2] == ["load"]:
        load(int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
    else:
        main()
