"""A network of circuits with a directory of its own, each of its machines a namespace with its own address: authorities, relays that are exits and
HSDirs too, a device, a client, a host of onion services, and a target. Used by onion_services_test.py; needs root.

Who has which role in it is told by what anybody could see who looks: captures, relays' counters, the target's log, the files of client and service.
"""

import base64
import collections
import contextlib
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time

from common import HERE, HOPLITE, Lab, quoted, wait_for
from device import Device
from netns import Capture, Host, ip, packets

PORT, DIRECTORY, METRICS, SOCKS, INTERVAL = 443, 9030, 9090, 1080, 8
AUTHORITIES, RELAYS = ("a1", "a2", "a3"), tuple(f"r{n}" for n in range(1, 10))
# The first that are sampled, nearest first: others are used only when these fail.
FIRST_GUARDS = 3
SERVED = ("80=127.0.0.1:80", "7/udp=127.0.0.1:7", "53/udp=127.0.0.1:53", "443/udp=127.0.0.1:443", "5000/udp=127.0.0.1:5000")


class OnionNetwork(Lab):
    """Its hosts by name. With it authorities and relays are up; `serve`, `client` and `device_file` are for what uses them."""

    def __init__(self):
        super().__init__()
        self.prefix = f"onion{os.getpid()}"
        self.router = f"{self.prefix}-router"
        self.namespaces, self.hosts, self.running, self.identities = [self.router], {}, {}, {}
        ip("netns", "add", self.router)
        for key in ("net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"):
            subprocess.run(["ip", "netns", "exec", self.router, "sysctl", "-qw", key], check=True, capture_output=True)
        self.resolver = "10.77.2.2"  # the target's, which the device would ask by itself
        for number, name in enumerate(("device", "target", "client", "service", *AUTHORITIES, *RELAYS), 1):
            self.hosts[name] = host = (Device if name == "device" else Host)(self, name, number)
            self.namespaces.append(host.ns)

    def __getitem__(self, name):
        return self.hosts[name]

    def __enter__(self):
        try:
            self.servers("target", self["target"].v4, ["target.test", self["target"].v4])
            self._name_authorities()
            for name in AUTHORITIES:
                self.authority_starts(name)
            for name in RELAYS:
                self._name_relay(name)
                self.relay_starts(name)
            wait_for("a list of all relays", self.is_whole, 90)
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise
        return self

    def __exit__(self, *error):
        for pid in self["device"].daemons():
            os.kill(pid, signal.SIGKILL)
        super().__exit__(*error)
        for ns in self.namespaces:
            subprocess.run(["ip", "netns", "del", ns], capture_output=True, check=False)

    def start(self, name, *command, ready, host=None):
        log = self.folder / f"{name}.log"
        mark = len(log.read_text()) if log.exists() else 0  # one that is started again writes on
        process = self.running[name] = self[host or name].run(name, command)
        wait_for(name, lambda: ready in process.text()[mark:] or not process.alive(), 90)
        if not process.alive():
            raise RuntimeError(f"{name} ended: {process.text()[-2000:]}")
        return process

    # --- the directory and the relays ------------------------------------------------------------------------------------------------------

    def _name_authorities(self):
        named = []
        for name in AUTHORITIES:
            made = subprocess.run([HOPLITE, "keygen", "--authority", "--out", self.folder / name], check=True, capture_output=True, text=True)
            named.append(f"{made.stdout.strip()}@{self[name].v4}:{DIRECTORY}")
        self.authorities = quoted(named)
        for name in AUTHORITIES:
            (self.folder / name / "directory.toml").write_text(
                f'authorities = {self.authorities}\nlisten = "{self[name].v4}:{DIRECTORY}"\ninterval = {INTERVAL}\nvoting = 2\nintervals = 1000\n'
                "hsdir_uptime = 0\n[admission]\nprivate = true\n")

    def authority_starts(self, name):
        self.start(name, HOPLITE, "directory", "--config", self.folder / name / "directory.toml", ready="the authority is up")

    def _name_relay(self, name):
        identity, target = self.folder / f"id-{name}", self["target"].v4
        made = subprocess.run([HOPLITE, "keygen", "--json", "--out", identity], check=True, capture_output=True, text=True)
        onion = json.loads(made.stdout)["onion"]
        self.identities[base64.urlsafe_b64decode(onion + "==")[:32]] = name
        publish = quoted(f"{self[authority].v4}:{DIRECTORY}" for authority in AUTHORITIES)
        (self.folder / f"{name}.toml").write_text(
            f'name = "{name}"\nlisten = ["{self[name].v4}:{PORT}"]\nroles = ["ingress", "egress"]\nidentity = "{identity}"\n'
            f'[onion]\nenabled = true\nopen = true\nhsdir = true\n[auth]\nopen = true\n[egress]\nallow = ["10.77.0.0/16"]\nresolver = ["{target}:53"]\n'
            f'[metrics]\nlisten = "127.0.0.1:{METRICS}"\n'
            f'[directory]\npublish = {publish}\noperator = "{name}"\nevery = 1\nauthorities = {self.authorities}\n')

    def relay_starts(self, name):
        self.start(name, HOPLITE, "relay", "--config", self.folder / f"{name}.toml", ready="the relay is up")

    def list(self, authority="a1"):
        """The authority's list; nothing while there is none."""
        return self["target"].call("curl", "-s", "--max-time", 5, f"http://{self[authority].v4}:{DIRECTORY}/hoplite/list").stdout.decode()

    def list_begins(self, authority):
        """When the authority's list begins, in seconds since 1970."""
        begins = re.search(r"^valid-after (\d+)$", self.list(authority), re.M)
        return int(begins[1]) if begins else 0

    def is_whole(self):
        return len(re.findall(r"\nflags [a-z ]*hsdir", self.list())) == len(RELAYS)

    # --- who uses them ---------------------------------------------------------------------------------------------------------------------

    def servers(self, host, address, names):
        """Web over TCP and QUIC, DNS, an echo, and who answers calls."""
        leaf = self.authority.leaf(host, names)
        commands = {
            "servers": [HERE / "servers.py", "--host", address, "--cert", leaf.cert, "--key", leaf.key, "--tls-port", 443, "--http-port", 80,
                        "--echo-port", 7, "--dns-port", 53, "--name", f"target.test={self['target'].v4}"],
            "callee": [HERE / "call.py", "answer", address, 5000],
        }
        for what, command in commands.items():
            process = self.running[f"{what}-{host}"] = self[host].run(f"{what}-{host}", [sys.executable, *command])
            wait_for(process.name, lambda: process.lines() or not process.alive())  # noqa: B023: waited for here
            if not process.alive():
                raise RuntimeError(process.text())

    def _file(self, name, more=""):
        path = self.folder / f"{name}.toml"
        path.write_text(f'overlay = "onion"\n[directory]\nauthorities = {self.authorities}\napart = ["family", "operator"]\nwait = 60\n'
                        f'cache = "{name}.sqlite"\n[onion]\nchannel = "quic"\n{more}')
        return path

    def device_file(self):
        """For `hoplite up`."""
        return self._file("device")

    def client_starts(self, name="client", host="client", more=""):
        """`hoplite client`, perhaps again."""
        if name in self.running:
            self.running[name].stop()
        path = self._file(name, f'[socks]\nlisten = "127.0.0.1:{SOCKS}"\n[http]\nlisten = "off"\n{more}')
        return self.start(name, HOPLITE, "client", "--config", path, "--run-dir", self.folder / f"run-{name}", ready="socks", host=host)

    def serve(self, services=1):
        """A host of so many services, all with the same servers behind them; their names. Perhaps again."""
        tables = "".join(f'[[service]]\nkeys = "{n}.keys"\nports = {quoted(SERVED)}\n' for n in range(services))
        self.client_starts("service", "service", tables)
        return [(self.folder / f"{n}.keys/hostname").read_text().strip() for n in range(services)]

    def services(self):
        """What the host of services says of them."""
        said = self["service"].call(HOPLITE, "status", "--json", "--run-dir", self.folder / "run-service", "--name", "client").stdout.decode()
        return json.loads(said)["services"] if said.startswith("{") else []

    def are_introduced(self):
        """Whether all services have their introduction points."""
        services = self.services()
        return bool(services) and all(len(one["introduction_points"]) == 3 for one in services)

    def are_published(self):
        """Whether all HSDirs that are to have their descriptors have them, too."""
        return self.are_introduced() and all(one["told"] == one["hsdirs"] > 0 for one in self.services())

    def heals(self):
        """Until all relays are listed and all services introduced."""
        wait_for("a list of all relays", self.is_whole, 90)
        wait_for("all introduction points", self.are_introduced, 120)

    # --- who has which role ----------------------------------------------------------------------------------------------------------------

    def host_of(self, address):
        return next((name for name, host in self.hosts.items() if address in (host.v4, host.v6)), None)

    def entries(self, name):
        """The relays that may have seen a client, by its own file: those that it drew first, and whose circuits it has used. That can be a fourth one: of
        two circuits for the same streams the second begins at a guard that is no relay of the first."""
        used = self._kept(name, "SELECT identity FROM guard WHERE confirmed IS NOT NULL")
        return self._kept(name, "SELECT identity FROM guard ORDER BY place")[:max(FIRST_GUARDS, len(used) + FIRST_GUARDS - 1)]

    def second_layer(self, name):
        return self._kept(name, "SELECT identity FROM vanguard WHERE layer = 2")

    def _kept(self, name, query):
        with contextlib.closing(sqlite3.connect(self.folder / f"{name}.sqlite")) as store:
            return [self.identities[bytes(row[0])] for row in store.execute(query)]

    def neighbours(self, name, seconds=1):
        """Whom a host exchanges packets with, those with the most bytes first."""
        capture, own = Capture(self[name], f"neighbours-{name}-{time.monotonic_ns()}"), self[name].v4
        time.sleep(seconds)
        capture.process.stop(signal.SIGINT)  # it need not be whole
        count = collections.Counter()
        for _, source, destination, _, frame in packets(capture.path):
            count[self.host_of(destination if source == own else source)] += len(frame)
        return [host for host, _ in count.most_common()]

    def metric(self, relay, name):
        """The sum of a relay's metric over its labels that `name` does not tell."""
        text = self[relay].call("curl", "-s", "--max-time", 5, f"http://127.0.0.1:{METRICS}/metrics").stdout.decode()
        return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(f"hoplite_relay_{name}"))

    def counted(self, what, body):
        """The relays whose counter of onion services grew while `body` ran, those where it grew most first."""
        name = f'onion_services_total{{what="{what}"}}'
        before = {relay: self.metric(relay, name) for relay in RELAYS}
        body()
        grown = collections.Counter({relay: self.metric(relay, name) - before[relay] for relay in RELAYS})
        return [relay for relay, count in grown.most_common() if count > 0]


__all__ = ["AUTHORITIES", "DIRECTORY", "PORT", "RELAYS", "SOCKS", "Capture", "OnionNetwork"]
