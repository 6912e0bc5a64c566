"""A network of circuits under attack from outside: three authorities, eight relays, an honest client, each a host; hostile ones beside them.

What an honest user notices (is every fetch served; time to the first octet, beside the idle network's) is printed for each attack; that he is served is
checked, how fast is not. The hostile program is the example `hostile` of crates/onion, built before: cargo build --release -p hoplite-onion --example hostile.
Needs root; takes three minutes. Parts by name: attacks_test.py skins circuits …; KNOWN=0 has relays read no list, as those of earlier versions.
"""

import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

from common import HERE, HOPLITE, Checks, Lab, quoted, wait_for
from netns import Host, ip, usable

HOSTILE = pathlib.Path(os.environ.get("HOSTILE", HOPLITE.parent / "examples/hostile")).resolve()
PORT, DIRECTORY, SOCKS = 443, 9030, 1080
BLACK_HOLE = "10.77.200.2:443"  # routed, and nobody is there
FETCHES = 30
KNOWN = os.environ.get("KNOWN", "1") == "1"  # whether relays read the list


class Network(Lab):
    """Authorities a1–a3, relays r1–r8, client, target, and the hostile hosts x1 to x3."""

    def __init__(self):
        super().__init__()
        self.prefix = f"att{os.getpid()}"
        self.router = f"{self.prefix}-router"
        self.namespaces = [self.router]
        ip("netns", "add", self.router)
        for key in ("net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"):
            subprocess.run(["ip", "netns", "exec", self.router, "sysctl", "-qw", key], check=True, capture_output=True)
        names = ["client", "target", "x1", "x2", "x3", "a1", "a2", "a3", *(f"r{i}" for i in range(1, 9))]
        self.hosts = {}
        for number, name in enumerate(names, 1):
            self.hosts[name] = host = Host(self, name, number)
            self.namespaces.append(host.ns)
        # Nobody answers there, and nobody says so.
        ip("route", "add", "blackhole", "10.77.200.0/24", ns=self.router)
        self.running = {}

    def __getitem__(self, name):
        return self.hosts[name]

    def __exit__(self, *error):
        super().__exit__(*error)
        for ns in self.namespaces:
            subprocess.run(["ip", "netns", "del", ns], capture_output=True, check=False)

    def start(self, name, *command, ready):
        process = self.running[name] = self[name].run(name, command)
        wait_for(name, lambda: ready in process.text() or not process.alive())
        if not process.alive():
            raise RuntimeError(f"{name} ended: {process.text()}")
        return process

    def authorities(self):
        self.names = []
        for name in ("a1", "a2", "a3"):
            made = subprocess.run([HOPLITE, "keygen", "--authority", "--out", self.folder / name], check=True, capture_output=True, text=True)
            self.names.append(f"{made.stdout.strip()}@{self[name].v4}:{DIRECTORY}")
        for name in ("a1", "a2", "a3"):
            path = self.folder / name / "directory.toml"
            path.write_text(f'authorities = {quoted(self.names)}\nlisten = "{self[name].v4}:{DIRECTORY}"\n'
                            f"interval = 8\nvoting = 2\nintervals = 1000\n[admission]\nprivate = true\n")
            self.start(name, HOPLITE, "directory", "--config", path, ready="the authority is up")

    def relays(self):
        publish = quoted(f"{self[a].v4}:{DIRECTORY}" for a in ("a1", "a2", "a3"))
        for number in range(1, 9):
            name = f"r{number}"
            path = self.folder / f"{name}.toml"
            path.write_text(f'name = "{name}"\nlisten = ["{self[name].v4}:{PORT}"]\nroles = ["ingress", "egress"]\nidentity = "{self.folder}/id-{name}"\n'
                            f'[onion]\nenabled = true\nopen = true\n[auth]\nopen = true\n[egress]\nallow = ["10.77.0.0/16"]\n'
                            f'[metrics]\nlisten = "127.0.0.1:9090"\n'
                            f'[directory]\npublish = {publish}\noperator = "{name}"\nevery = 1\n{self.listing()}')
            self.start(name, HOPLITE, "relay", "--config", path, ready="the relay is up")

    def listing(self):
        return f"authorities = {quoted(self.names)}\n" if KNOWN else ""

    def list(self):
        """The authorities' list, in a file."""
        path = self.folder / "list"
        path.write_bytes(self["x1"].call("curl", "-sS", f"http://{self['a1'].v4}:{DIRECTORY}/hoplite/list").stdout)
        return path

    def whole(self):
        return self.list().read_text().count("hoplite-descriptor 1") == 8

    def client(self):
        path = self.folder / "client.toml"
        path.write_text(f'overlay = "onion"\npath = ["r1", "r2", "r3"]\n[socks]\nlisten = "127.0.0.1:{SOCKS}"\n[http]\nlisten = "127.0.0.1:8080"\n'
                        f'[directory]\nauthorities = {quoted(self.names)}\napart = ["family", "operator"]\nwait = 60\n')
        self.start("client", HOPLITE, "client", "--config", path, ready="socks")

    def targets(self):
        process = self["target"].run("targets", [sys.executable, HERE / "servers.py", "--host", self["target"].v4,
                                                 "--cert", self.leaf.cert, "--key", self.leaf.key, "--http-port", 80])
        wait_for("targets", lambda: process.lines() or not process.alive())

    def __enter__(self):
        self.leaf = self.authority.leaf("target", ["target.test", self["target"].v4])
        self.targets()
        self.authorities()
        self.relays()
        wait_for("a list of eight relays", self.whole, 60)
        return self

    def fetch(self, user):
        """Seconds to the first octet over a circuit for this user alone, or None."""
        ran = self["client"].call("curl", "-s", "-o", "/dev/null", "--max-time", 30, "--socks5-hostname", f"127.0.0.1:{SOCKS}",
                                  "--proxy-user", f"{user}:x", "-w", "%{http_code} %{time_starttransfer} %{size_download}",
                                  f"http://{self['target'].v4}/bytes/50000")
        words = ran.stdout.decode().split()
        return float(words[1]) if ran.returncode == 0 and words[0] == "200" and words[2] == "50000" else None

    def honest(self, name):
        return [self.fetch(f"{name}{n}") for n in range(FETCHES)]

    def hostile(self, host, relay, seconds, *what):
        return self[host].run(f"{what[0]}-{relay}-from-{host}", [HOSTILE, self.list(), relay, seconds, *what])

    def memory(self):
        """The largest resident set of a relay, in MB."""
        most = 0
        for number in range(1, 9):
            pid = self.running[f"r{number}"].child.pid
            status = pathlib.Path(f"/proc/{pid}/status").read_text()
            most = max(most, int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS"))))
        return most / 1000


def told(times):
    good = sorted(t for t in times if t is not None)
    if not good:
        return "nothing was served"
    at = lambda share: good[min(len(good) - 1, int(share * len(good)))]  # noqa: E731
    return f"{len(good)}/{len(times)} served, first octet median {statistics.median(good) * 1000:.0f} ms, p95 {at(0.95) * 1000:.0f} ms"


ATTACKS = {
    "skins": lambda net: [net.hostile("x1", f"r{n}", 15, "skins", 4) for n in (1, 2, 3)],
    "circuits": lambda net: [net.hostile(x, "r1", 40, "circuits", 300) for x in ("x1", "x2", "x3")],
    "identities": lambda net: [net.hostile("x1", f"r{n}", 40, "identities", 5000) for n in (1, 2)],
    "black-hole": lambda net: [net.hostile("x1", f"r{n}", 15, "black-hole", BLACK_HOLE) for n in (1, 2)],
    "descriptors": lambda net: [net.hostile("x1", "r1", 15, "descriptors", *(f"{net[a].v4}:{DIRECTORY}" for a in ("a1", "a2", "a3")))],
    "reflect": lambda net: [net.hostile("x1", "r1", 15, "reflect", f"{net['x2'].v4}:4433")],
}


def forwarded(checks, net):
    """Before any honest circuit: r1 and r2 are made to meet at the attacker's machine."""
    running = [net.hostile("x1", "r1", 12, "forward", "r2", f"{net['x1'].v4}:441"), net.hostile("x1", "r2", 12, "forward", "r3", f"{net['x1'].v4}:442")]
    wait_for("channels over the attacker", lambda: all(process.lines() for process in running))
    time.sleep(1.5)
    net.client()
    times = net.honest("forward")
    print(f"     forward: {told(times)}", flush=True)
    for process in running:
        wait_for(process.name, lambda p=process: not p.alive(), 60)
    lines = [line for process in running for line in process.lines()]
    octets, extended = (sum(line.get(key, 0) for line in lines) for key in ("octets", "extended"))
    # What is left are keep-alives of the attacker's own channels; the honest fetches have 1.5 MB.
    checks.check(f"forward: nothing of others passes the attacker's machine ({octets} octets, {extended} channels)", octets < 100_000, octets)
    checks.check("forward: honest circuits are served", all(times), told(times))


def main():
    checks = Checks("attacks")
    why = usable()
    if why:
        checks.skip("all", why)
        return checks.done()
    wanted = sys.argv[1:] or list(ATTACKS)
    with Network() as net:
        forwarded(checks, net)
        idle = net.honest("idle")
        checks.check("the idle network serves", all(idle), told(idle))
        print(f"     idle: {told(idle)}; {net.memory():.0f} MB", flush=True)
        for name in wanted:
            if name in ATTACKS:
                running = ATTACKS[name](net)
                time.sleep(3)
                times = net.honest(name)
                print(f"     {name}: {told(times)}; {net.memory():.0f} MB", flush=True)
                for process in running:
                    wait_for(process.name, lambda p=process: not p.alive(), 60)
                    print(f"     {process.name}: {process.lines() or process.text()[-300:]}", flush=True)
                checks.check(f"{name}: honest circuits are served", all(times), told(times))
                if name == "descriptors":
                    listed = net.list().read_text().count("\nname nowhere\n")
                    checks.check("descriptors: none of them is in the list", listed == 0, f"{listed} are")
    checks.done()


if __name__ == "__main__":
    main()
