"""A network of circuits under attack from outside: three authorities, eight relays, an honest client, each a host; hostile ones beside them.

What an honest user notices is printed for each attack: is every fetch of a standing client served, and every client that starts anew, and how soon
(time to the first byte, and from the program's start to it, beside the idle network's). That they are served is checked, and that what the attack does
to the relay or the list has a bound; how fast is not. Each bound is far above what is seen, and far below what the attacker asks for.
The hostile programs are examples, built before: cargo build --release -p hoplite-onion --example hostile; … -p hoplite-relay --example floods.
Needs root; takes ten minutes. Parts by name: attacks_test.py skins circuits …; KNOWN=0 has relays read no list, as those of earlier versions.
"""

import contextlib
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import time

from common import HERE, HOPLITE, Checks, Lab, quoted, wait_for
from netns import Host, ip, usable

EXAMPLES = pathlib.Path(os.environ.get("EXAMPLES", HOPLITE.parent / "examples")).resolve()
PORT, DIRECTORY, SOCKS, INTERVAL = 443, 9030, 1080, 8
BLACK_HOLE = "10.77.200.2:443"  # routed, and nobody is there
FORGED = "10.79.0.1"  # the first of as many addresses as an attacker likes, where nobody is
FETCHES, NEWCOMERS = 30, 5
LEAST, LONG = 15, 600  # seconds that an attack lasts: until all is fetched, and so long at least
KNOWN = os.environ.get("KNOWN", "1") == "1"  # whether relays read the list
AUTHORITIES, RELAYS, HOSTILE = ("a1", "a2", "a3"), tuple(f"r{n}" for n in range(1, 9)), ("x1", "x2", "x3")
FEW_PLACES = "r4"  # a relay with so few places that three hosts can take all of them
PLACES = 2048


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
        names = ["client", "target", *HOSTILE, *AUTHORITIES, *RELAYS]
        self.hosts = {}
        for number, name in enumerate(names, 1):
            self.hosts[name] = host = Host(self, name, number)
            self.namespaces.append(host.ns)
        # Nobody answers there, and nobody says so.
        for nowhere in ("10.77.200.0/24", "10.79.0.0/16"):
            ip("route", "add", "blackhole", nowhere, ns=self.router)
        for name in HOSTILE:
            # Addresses by the hundred; and x1's network lets it forge them.
            ip("route", "add", "local", f"10.78.{self[name].number}.0/24", "dev", "lo", ns=self[name].ns)
            ip("route", "add", f"10.78.{self[name].number}.0/24", "via", self[name].v4, ns=self.router)
        ip("route", "add", "local", "10.79.0.0/16", "dev", "lo", ns=self["x1"].ns)
        self.running = {}

    def __getitem__(self, name):
        return self.hosts[name]

    def __exit__(self, *error):
        super().__exit__(*error)
        for ns in self.namespaces:
            subprocess.run(["ip", "netns", "del", ns], capture_output=True, check=False)

    def start(self, name, *command, ready, host=None):
        log = self.folder / f"{name}.log"
        mark = len(log.read_text()) if log.exists() else 0  # one that is started again writes on
        process = self.running[name] = self[host or name].run(name, command)
        wait_for(name, lambda: ready in process.text()[mark:] or not process.alive())
        if not process.alive():
            raise RuntimeError(f"{name} ended: {process.text()}")
        return process

    def authorities(self):
        self.keys = {}
        for name in AUTHORITIES:
            made = subprocess.run([HOPLITE, "keygen", "--authority", "--out", self.folder / name], check=True, capture_output=True, text=True)
            self.keys[name] = made.stdout.strip()
        self.names = [f"{key}@{self[name].v4}:{DIRECTORY}" for name, key in self.keys.items()]
        for name in AUTHORITIES:
            path = self.folder / name / "directory.toml"
            path.write_text(f'authorities = {quoted(self.names)}\nlisten = "{self.directory(name)}"\n'
                            f"interval = {INTERVAL}\nvoting = 2\nintervals = 1000\n[admission]\nprivate = true\n")
            self.authority_starts(name)

    def authority_starts(self, name):
        self.start(name, HOPLITE, "directory", "--config", self.folder / name / "directory.toml", ready="the authority is up")

    def directory(self, name):
        return f"{self[name].v4}:{DIRECTORY}"

    def relays(self):
        for name in RELAYS:
            self.relay_starts(name, AUTHORITIES, self.few(name))

    def few(self, name):
        return f"[limits]\nconnections = {PLACES}\nconnections_per_client = {PLACES // 16}\n" if name == FEW_PLACES else ""

    def relay_again(self, name, onion=""):
        self.running[name].stop(signal.SIGKILL)  # it would drain first
        self.relay_starts(name, AUTHORITIES, self.few(name), onion=onion)

    def relay_starts(self, name, authorities, more="", host=None, onion=""):
        publish = quoted(self.directory(a) for a in authorities)
        path = self.folder / f"{name}.toml"
        path.write_text(f'name = "{name}"\nlisten = ["{self[host or name].v4}:{PORT}"]\nroles = ["ingress", "egress"]\nidentity = "{self.folder}/id-{name}"\n'
                        f'[onion]\nenabled = true\nopen = true\n{onion}[auth]\nopen = true\n[egress]\nallow = ["10.77.0.0/16"]\n{more}'
                        f'[metrics]\nlisten = "127.0.0.1:9090"\n'
                        f'[directory]\npublish = {publish}\noperator = "{name}"\nevery = 1\n{self.listing()}')
        self.start(name, HOPLITE, "relay", "--config", path, ready="the relay is up", host=host)

    def listing(self):
        return f"authorities = {quoted(self.names)}\n" if KNOWN else ""

    def asked(self, authority, path):
        return self["target"].call("curl", "-sS", "--max-time", 5, f"http://{self.directory(authority)}/hoplite/{path}").stdout.decode()

    def list(self):
        """The authorities' list, in a file; others may be reading the last."""
        path = self.folder / "list"
        path.with_suffix(".new").write_text(self.asked("a1", "list"))
        return path.with_suffix(".new").replace(path)

    def whole(self):
        return self.list().read_text().count("hoplite-descriptor 1") == 8

    def client_config(self, name, path, socks):
        file = self.folder / f"{name}.toml"
        file.write_text(f'overlay = "onion"\npath = {quoted(path)}\n[socks]\nlisten = "127.0.0.1:{socks}"\n[http]\nlisten = "off"\n'
                        f'[directory]\nauthorities = {quoted(self.names)}\napart = ["family", "operator"]\nwait = 60\ncache = "{name}.sqlite"\n')
        return file

    def client(self, name="client", path=("r1", "r2", "r3"), socks=SOCKS):
        """A client that stands before an attack begins."""
        self.start(name, HOPLITE, "client", "--config", self.client_config(name, path, socks), ready="socks", host="client")
        return self.running[name]

    def targets(self):
        process = self["target"].run("targets", [sys.executable, HERE / "servers.py", "--host", self["target"].v4,
                                                 "--cert", self.leaf.cert, "--key", self.leaf.key, "--http-port", 80])
        wait_for("targets", lambda: process.lines() or not process.alive())

    def __enter__(self):
        self.leaf = self.authority.leaf("target", ["target.test", self["target"].v4])
        try:
            self.targets()
            self.authorities()
            self.relays()
            wait_for("a list of eight relays", self.whole, 60)
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise
        return self

    def fetch(self, user, socks=SOCKS):
        """Seconds to the first byte over a circuit for this user alone, or None."""
        ran = self["client"].call("curl", "-s", "-o", "/dev/null", "--max-time", 30, "--socks5-hostname", f"127.0.0.1:{socks}",
                                  "--proxy-user", f"{user}:x", "-w", "%{http_code} %{time_starttransfer} %{size_download}",
                                  f"http://{self['target'].v4}/bytes/50000")
        words = ran.stdout.decode().split()
        return float(words[1]) if ran.returncode == 0 and words[0] == "200" and words[2] == "50000" else None

    def honest(self, name, socks=SOCKS):
        return [self.fetch(f"{name}{n}", socks) for n in range(FETCHES)]

    def newcomer(self, name, path):
        """Seconds from the start of a client that knows nothing to its first byte, or None."""
        socks = SOCKS + 100
        file = self.client_config(name, path, socks)
        began = time.monotonic()
        process = self["client"].run(name, [HOPLITE, "client", "--config", file])
        try:
            while "socks" not in process.text():
                if not process.alive() or time.monotonic() - began > 60:
                    return None
                time.sleep(0.005)
            ready = time.monotonic() - began
            first = self.fetch(name, socks)
            return first and ready + first
        finally:
            process.stop()

    def newcomers(self, name, path=("r1", "r2", "r3")):
        return [self.newcomer(f"{name}-new{n}", path) for n in range(NEWCOMERS)]

    def hostile(self, host, relay, *what, program="hostile", seconds=LONG):
        words = [str(word) for word in what[:2] if "/" not in str(word)]
        return self[host].run(f"{'-'.join(words)}-{relay}-from-{host}", [EXAMPLES / program, self.list(), relay, seconds, *what])

    def flood(self, host, relay, *what):
        return self.hostile(host, relay, *what, program="floods")

    def addresses(self, host, count):
        return [f"10.78.{self[host].number}.{n}" for n in range(1, count + 1)]

    def status(self, name, key):
        """A line of the process's status, in MB."""
        status = pathlib.Path(f"/proc/{self.running[name].child.pid}/status").read_text()
        return int(re.search(rf"^{key}:\s+(\d+) kB", status, re.M)[1]) / 1000

    def memory(self, name):
        return self.status(name, "VmRSS")

    def peak(self, name):
        """The largest resident set since `peak_begins`, in MB."""
        return self.status(name, "VmHWM")

    def peak_begins(self, name):
        pathlib.Path(f"/proc/{self.running[name].child.pid}/clear_refs").write_text("5")

    def metric(self, relay, name):
        """The sum of a relay's metric over its labels that `name` does not tell."""
        text = self[relay].call("curl", "-sS", "http://127.0.0.1:9090/metrics").stdout.decode()
        values = [line.rsplit(" ", 1)[1] for line in text.splitlines() if line.startswith(f"hoplite_relay_{name}")]
        return sum(map(float, values))


def told(times):
    good = sorted(t for t in times if t is not None)
    if not good:
        return "nothing was served"
    at = lambda share: good[min(len(good) - 1, int(share * len(good)))]  # noqa: E731
    return f"{len(good)}/{len(times)} served, first byte median {statistics.median(good) * 1000:.0f} ms, p95 {at(0.95) * 1000:.0f} ms"


class Part:
    """An attack: how it starts, which process feels it (whose memory grows by so many MB at most; `onion` are settings of all relays on the path), and what
    else is to be seen of it."""

    def __init__(self, starts, *, feels="r1", path=("r1", "r2", "r3"), most_memory=250, also=None, onion=""):
        self.starts, self.feels, self.path, self.most_memory, self.also, self.onion = starts, feels, path, most_memory, also, onion

    def run(self, checks, net, name):
        others = None
        if self.feels in RELAYS:
            # What earlier attacks have left in its memory, and in its counters, is not this one's.
            for relay in self.path if self.onion else (self.feels,):
                net.relay_again(relay, self.onion)
        if self.path[0] != "r1":
            others = net.client(f"client-{name}", self.path, SOCKS + 1)
        warm = (net.fetch(f"warm{name}{n}", SOCKS + 1 if others else SOCKS) for n in range(FETCHES))
        checks.check(f"{name}: the network serves before", any(warm))
        before = net.memory(self.feels)
        net.peak_begins(self.feels)
        with contextlib.ExitStack() as after:
            running = self.starts(net, after)
            began = time.monotonic()
            time.sleep(4)
            times = net.honest(name, SOCKS + 1 if others else SOCKS)
            new = net.newcomers(name, self.path)
            if self.also:
                self.also(checks, net, name)
            time.sleep(max(0, began + LEAST - time.monotonic()))
            lasted = all(process.alive() for process in running)
            peak = net.peak(self.feels)
            for process in running:
                process.stop()
        if others:
            others.stop()
        print(f"     {name}: {told(times)}; newcomers: {told(new)}; memory of {self.feels}: "
              f"{before:.0f} MB before, {peak:.0f} at most, {net.memory(self.feels):.0f} after", flush=True)
        for process in running:
            print(f"     {process.name}: {process.lines()[-1:] or process.text()[-300:]}", flush=True)
        checks.check(f"{name}: the attack lasts as long as it is looked at", lasted, "it ended before")
        checks.check(f"{name}: honest circuits are served", all(times), told(times))
        checks.check(f"{name}: who comes anew is served", all(new), told(new))
        checks.check(f"{name}: memory of {self.feels} grows within a bound", peak - before < self.most_memory, f"{before:.0f} to {peak:.0f} MB")


def forged(net, after, relay_of_path, rate, first, count):
    if first == net["client"].v4:
        ip("route", "add", "local", f"{first}/32", "dev", "lo", ns=net["x1"].ns)
        after.callback(ip, "route", "del", "local", f"{first}/32", "dev", "lo", ns=net["x1"].ns)
    return [net.flood("x1", relay_of_path, "initials", rate, first, count)]


def unproven(checks, net, name):
    asked = net.metric("r1", "retries_total")
    checks.check(f"{name}: addresses have to be proven ({asked:.0f} Retries)", asked > 1000, asked)


def held(most):
    def check(checks, net, name):
        there = net.metric("r1", "connections_open")
        checks.check(f"{name}: the relay keeps {there:.0f} connections, at most {most}", there <= most, there)
    return check


def idle(kind):
    # Twelve addresses with all that one may have: more than there may be of all.
    return lambda net, _: [net.flood(x, "r1", kind, 1000, *net.addresses(x, 4)) for x in HOSTILE]


def directory_asked(net, _):
    where = ",".join(net.directory(a) for a in AUTHORITIES)
    return [net.hostile(x, "r1", "ask", where, *net.addresses(x, 8)) for x in HOSTILE]


def list_goes_on(checks, net, name):
    """Lists are published while the attack lasts, whole and with nothing put in."""
    text = net.list().read_text()
    begins = int(re.search(r"^valid-after (\d+)$", text, re.M)[1])
    checks.check(f"{name}: the list is as new as it should be", time.time() - begins < 3 * INTERVAL, f"{time.time() - begins:.0f} s old")
    checks.check(f"{name}: it has the eight relays and no more", text.count("hoplite-descriptor 1") == 8, text.count("hoplite-descriptor 1"))


def two_faced(net, after):
    """The third authority votes towards the first for a relay that the first alone knows, and towards the second as the list has it."""
    net.relay_starts("hidden", ["a1"], host="x2")
    after.callback(lambda: net.running["hidden"].stop())
    vote = net.folder / "vote"

    def shown():
        due = (int(time.time()) // INTERVAL + 1) * INTERVAL
        vote.write_text(net.asked("a1", f"vote/{due}/{net.keys['a1']}"))
        return "\nname hidden\n" in vote.read_text()
    wait_for("a vote for the hidden relay", shown, 60)
    net.running["a3"].stop()
    after.callback(net.authority_starts, "a3")
    process = net.hostile("a3", "r1", "two-faced", net.folder / "a3/authority.key", net.directory("a3"), vote, net["a1"].v4)
    net.lied = len(net.running["a1"].text())
    wait_for("it is found out", lambda: "two different votes" in net.running["a1"].text()[net.lied:], 30)
    return [process]


def one_list(checks, net, name):
    """Both honest authorities publish the same, for some periods."""
    seen = {}
    end = time.monotonic() + 2 * INTERVAL
    while time.monotonic() < end:
        for authority in ("a1", "a2"):
            text = net.asked(authority, "list")
            if begins := re.search(r"^valid-after (\d+)$", text, re.M):
                seen.setdefault(int(begins[1]), {})[authority] = text.split("\nsigned ")[0]
        time.sleep(0.3)
    both = [lists for lists in seen.values() if len(lists) == 2]
    checks.check(f"{name}: both others published lists for the same times ({len(both)})", len(both) >= 2, len(both))
    checks.check(f"{name}: they are the same", all(lists["a1"] == lists["a2"] for lists in both))
    checks.check(f"{name}: they have the eight relays", all(lists["a1"].count("hoplite-descriptor 1") == 8 for lists in both),
                 [lists["a1"].count("hoplite-descriptor 1") for lists in both])
    checks.check(f"{name}: no client speaks of a split", not any("two different lists" in p.text() for p in net.processes if "client" in p.name))
    list_goes_on(checks, net, name)


def no_stranger_listed(checks, net, name):
    listed = net.list().read_text().count("\nname nowhere\n")
    checks.check(f"{name}: none of them is in the list", listed == 0, f"{listed} are")


STALLED = 200  # circuits of each hostile host


def stall(net):
    return "stalls", "r2", "r3", f"{net['target'].v4}:80", "/bytes/300000", STALLED


def stalls(net, _):
    """Of 600 circuits nothing is taken: they hold what r2 may send to r1 ahead of readers, 256 MiB."""
    running = [net.hostile(x, "r1", *stall(net)) for x in HOSTILE]
    wait_for("circuits that stall", lambda: all(p.lines() and p.lines()[-1]["answered"] >= STALLED for p in running), 60)
    return running


def room_is_made(checks, net, name):
    # More than is left of the channel's window.
    ran = net["client"].call("curl", "-s", "-o", "/dev/null", "--max-time", 60, "--socks5-hostname", f"127.0.0.1:{SOCKS}", "--proxy-user", f"{name}:x",
                             "-w", "%{size_download} %{time_total}", f"http://{net['target'].v4}/bytes/60000000")
    checks.check(f"{name}: a download over the same relays goes on ({ran.stdout.decode()})", ran.returncode == 0, ran.stdout)
    ended = net.metric("r1", 'onion_channel_faults_total{what="ended_for_room"}')
    checks.check(f"{name}: r1 ends circuits that nobody reads ({ended:.0f})", ended > 100, ended)
    again = net["x1"].run("stalls-again", [EXAMPLES / "hostile", net.list(), "r1", 10, *stall(net)])
    wait_for("the end of another attempt", lambda: not again.alive(), 40)
    made = again.lines()[-1]["answered"]
    checks.check(f"{name}: he has few circuits over r2 then ({made} of {STALLED})", made < STALLED / 4, again.text()[-300:])


def cells(kind):
    return lambda net, _: [net.hostile("x1", f"r{n}", "cells", kind, 4) for n in (1, 2, 3)]


def flood(*what):
    return lambda net, _: [net.flood("x1", f"r{n}", *what) for n in (1, 3)]


ATTACKS = {
    "skins": Part(lambda net, _: [net.hostile("x1", f"r{n}", "skins", 4) for n in (1, 2, 3)]),
    "circuits": Part(lambda net, _: [net.hostile(x, "r1", "circuits", 300) for x in HOSTILE]),
    "identities": Part(lambda net, _: [net.hostile("x1", f"r{n}", "identities", 5000) for n in (1, 2)]),
    "black-hole": Part(lambda net, _: [net.hostile("x1", f"r{n}", "black-hole", BLACK_HOLE) for n in (1, 2)]),
    "extend": Part(lambda net, _: [net.hostile("x1", f"r{n}", "extend", f"r{m}", 8) for n in range(1, 9) for m in range(1, 9) if n != m and (m - n) % 8 < 3]),
    # Each test that fails leaves a connection behind, for seconds.
    "descriptors": Part(lambda net, _: [net.hostile("x1", "r1", "descriptors", *map(net.directory, AUTHORITIES))],
                        feels="a1", most_memory=150, also=no_stranger_listed),
    "reflect": Part(lambda net, _: [net.hostile("x1", "r1", "reflect", f"{net['x2'].v4}:4433")]),
    # What a relay has not looked at yet it keeps, up to `onion.queued` (1 GiB).
    "cells-drop": Part(lambda net, _: [net.hostile("x1", "r1", "cells", "drop", 64)], most_memory=1300),
    "cells-unknown": Part(cells("unknown")),
    "cells-garbage": Part(cells("garbage")),
    "cells-destroy": Part(cells("destroy")),
    # By default `queued` of one of the three would end some of them before they have all of the channel.
    "stalls": Part(stalls, most_memory=500, also=room_is_made, onion="queued = 4294967296\n"),
    "initials": Part(lambda net, after: forged(net, after, "r1", 3000, FORGED, 60000), also=unproven),
    "initials-client": Part(lambda net, after: forged(net, after, "r1", 3000, net["client"].v4, 1), also=unproven),
    "idle2": Part(idle("idle2"), most_memory=900, also=held(12000)),
    "idle3": Part(idle("idle3"), most_memory=900, also=held(12000)),
    "busy": Part(lambda net, _: [net.flood(x, FEW_PLACES, "busy", f"{net['target'].v4}:80", 64, *net.addresses(x, 16)) for x in HOSTILE],
                 feels=FEW_PLACES, path=(FEW_PLACES, "r5", "r6")),
    "reset2": Part(flood("reset2", BLACK_HOLE, 8)),
    "reset3": Part(flood("reset3", BLACK_HOLE, 1)),
    "continuation": Part(flood("continuation", 8)),
    "settings": Part(flood("settings", 32)),
    "pings": Part(flood("pings", 32)),
    "directory": Part(directory_asked, feels="a1", also=list_goes_on),
    "two-faced": Part(two_faced, feels="a1", also=one_list),
}


def forwarded(checks, net):
    """Before any honest circuit: r1 and r2 are made to meet at the attacker's machine."""
    running = [net.hostile("x1", "r1", "forward", "r2", f"{net['x1'].v4}:441", seconds=12), net.hostile("x1", "r2", "forward", "r3", f"{net['x1'].v4}:442", seconds=12)]
    wait_for("channels over the attacker", lambda: all("extended" in process.text() for process in running))
    time.sleep(1.5)
    net.client()
    times = net.honest("forward")
    print(f"     forward: {told(times)}", flush=True)
    for process in running:
        wait_for(process.name, lambda p=process: not p.alive(), 60)
    carried = sum(process.lines()[-1]["bytes"] for process in running)
    extended = sum(line.get("extended", 0) for process in running for line in process.lines())
    # What is left are keep-alives of the attacker's own channels; the honest fetches have 1.5 MB.
    checks.check(f"forward: nothing of others passes the attacker's machine ({carried} bytes, {extended} channels)", carried < 100_000, carried)
    checks.check("forward: honest circuits are served", all(times), told(times))


def main():
    checks = Checks("attacks")
    why = usable()
    if why:
        checks.skip("all", why)
        return checks.done()
    if missing := [name for name in ("hostile", "floods") if not (EXAMPLES / name).exists()]:
        checks.check(f"the hostile programs are in {EXAMPLES}: the head of this test says how they are built", False, ", ".join(missing))
        return checks.done()
    wanted = sys.argv[1:] or list(ATTACKS)
    with Network() as net:
        forwarded(checks, net)
        times, new = net.honest("idle"), net.newcomers("idle")
        checks.check("the idle network serves", all(times) and all(new), (told(times), told(new)))
        print(f"     idle: {told(times)}; newcomers: {told(new)}; memory of r1: {net.memory('r1'):.0f} MB", flush=True)
        for name in wanted:
            ATTACKS[name].run(checks, net, name)
    checks.done()


if __name__ == "__main__":
    main()
