"""Onion services and circuits as programs, observers and misfortune find them: UDP by real programs, captures at every relay, each role killed.

Three authorities, nine relays, a device with `hoplite up`, a client, a host of services and a target in network namespaces. How long a call's
datagrams take, and how long it takes until something works again, is printed; that it does is checked. Needs root; five minutes.
usage: onion_services_test.py [PART...] of PARTS below; ROUNDS=3 kills each role three times, and has some hang as often.
"""

import os
import re
import shutil
import signal
import statistics
import sys
import threading
import time

from common import HERE, Checks, in_thread, sha256, wait_for
from device import PROGRAMS, usable
from onion_network import AUTHORITIES, DIRECTORY, INTERVAL, PORT, RELAYS, SOCKS, Capture, OnionNetwork
from servers import payload

ROUNDS = int(os.environ.get("ROUNDS", 1))
CALL, SIZE, UDP, TCP = 20, 300_000, 17, 6
BOUND = 120  # seconds within which everything has to work again
NEWCOMERS = 4


# --- UDP by real programs, and captures meanwhile ----------------------------------------------------------------------------------------------


def programs(checks, net):
    """dig, HTTP/3 and a call over circuits, to a target and to a service, while every host's link is recorded."""
    seen = {name: Capture(net[name], f"seen-{name}") for name in ("device", "service", "target", *AUTHORITIES, *RELAYS)}
    service, = net.serve()
    net.servers("service", "127.0.0.1", ["localhost", service])
    wait_for("the service's descriptors", net.are_published, 90)
    served = time.time()
    device = net["device"]
    code, said, took = device.hoplite("up", "--config", net.device_file(), "--wait", "60", timeout=90)
    if not checks.check(f"up returns ({took:.1f} s)", code == 0, f"exit {code}: {said[-400:]}"):
        return
    up = time.time()
    for what, host in (("an exit", "target.test"), ("a service", service)):
        asked(checks, net, what, net["target"].v4 if what == "an exit" else service)
        fetched(checks, net, what, host)
    calls(checks, net, {"an exit": net["target"].v4, "a service": service})
    code, said, _ = device.hoplite("down")
    checks.check("down returns", code == 0, said[-400:])
    packets = {name: list(capture.stop_timed()) for name, capture in seen.items()}
    views(checks, net, packets, service, {"device": up, "service": served})


def asked(checks, net, what, server):
    """The resolver on the way there answers by itself what it is asked for addresses; TXT is the server's own."""
    for kind, expected in (("A", net["target"].v4), ("TXT", '"target.test"')):
        got = net["device"].call("dig", "+short", "+time=10", "+tries=3", f"@{server}", "target.test", kind).stdout.decode().strip()
        checks.check(f"dig asks a DNS server behind {what}: {kind}", got == expected, got)


def fetched(checks, net, what, host):
    expected = sha256(payload(SIZE))
    got = net["device"].curl(f"http://{host}/bytes/{SIZE}", timeout=30)
    checks.check(f"curl fetches {SIZE} bytes behind {what}", sha256(got.stdout) == expected, got.stderr.decode())
    got = net["device"].program("http3", host, 443, f"/bytes/{SIZE}", net.authority.ca)
    checks.check(f"HTTP/3 (aioquic) fetches them behind {what}", got.get("sha256") == expected, got)


def calls(checks, net, to):
    """All at once."""
    running = {what: in_thread(lambda host=host: net["device"].program("call", host, 5000, CALL, file=HERE / "call.py")) for what, host in to.items()}
    heard = {}
    for what, (thread, box) in running.items():
        thread.join()
        heard[f"from {what}"] = box.get("result", {}).get("heard") or box
    callees = {"to an exit": "callee-target", "to a service": "callee-service"}
    for what, callee in callees.items():
        wait_for(callee, lambda: len(net.running[callee].lines()) > 1, 30)  # noqa: B023: waited for here
        heard[what] = net.running[callee].lines()[-1]["heard"]
    for what, one in heard.items():
        fine = one.get("sent") == CALL * 50 and not any(one[key] for key in ("lost", "doubled", "changed", "overtaken"))
        checks.check(f"a call of {CALL} s, {what}: all 50 datagrams a second, whole and in order", fine, one)
        if fine:
            print(f"     {what}: one way median {one['median_ms']:.1f} ms, p99 {one['p99_ms']:.1f} ms, most {one['most_ms']:.1f} ms (n={one['sent']})", flush=True)


def views(checks, net, packets, service, since):
    """Who has seen whose address and whose name."""
    def ends(name, after=0):
        return {net.host_of(end) or end for when, *two, _, _ in packets[name] if when > after for end in two} - {name}

    for name in ("device", "service"):
        guards, seers = net.entries(name), {relay for relay in RELAYS if name in ends(relay)}
        checks.check(f"of the relays, none but its guards sees the {name} ({', '.join(sorted(seers))})", seers and seers <= set(guards), guards)
        left = [packet for packet in packets[name] if packet[1] == net[name].v4 and packet[0] > since[name]]
        wrong = [packet[:4] for packet in left if packet[3] != UDP or net.host_of(packet[2]) not in guards or port_of(packet) != PORT]
        checks.check(f"all of {len(left)} packets that leave the {name} then are QUIC for its guards", left and not wrong, wrong[:5])
        early = {(net.host_of(packet[2]), port_of(packet)) for packet in packets[name] if packet[1] == net[name].v4 and packet[0] <= since[name]}
        places = {(relay, PORT) for relay in guards} | {(authority, DIRECTORY) for authority in AUTHORITIES}
        checks.check(f"before, it asked guards and authorities alone ({len(early)} of them)", early <= places, early - places)
        checks.check(f"the target does not see the {name}", name not in ends("target"))
    relays = ends("target") & set(RELAYS)
    checks.check(f"the target is seen from exits ({', '.join(sorted(relays))}), and the service's link never meets it",
                 relays and "target" not in ends("service") and "service" not in ends("device"))
    label = service.partition(".")[0].encode()
    named = [name for name, seen in packets.items() if any(label in packet[4].lower() for packet in seen)]
    checks.check("no packet anywhere has the service's name", not named, named)
    told = {end for name, seen in packets.items() for packet in seen if b"target" in packet[4] for end in (net.host_of(packet[1]), net.host_of(packet[2]))}
    checks.check("the target's name passes between exits and the target alone", "target" in told and told - {"target"} <= relays, told)


def port_of(packet):
    """Where to."""
    frame = packet[4]
    start = 14 + 4 * (frame[14] & 15)
    return int.from_bytes(frame[start + 2:start + 4])


# --- every role killed under load ---------------------------------------------------------------------------------------------------------------


class Loop:
    """A program that fetches and fetches, over the circuit of one token; one that fails is tried again at once."""

    def __init__(self, net, name, url):
        self.net, self.name, self.url, self.done, self.over = net, name, url, [], False
        self.thread, _ = in_thread(self._run)

    def _run(self):
        while not self.over:
            began = time.monotonic()
            fine = fetch(self.net, self.url, self.name)
            self.done.append((began, time.monotonic(), fine))
            if not fine:
                time.sleep(0.2)

    def works_since(self, moment):
        """When the first fetch that began later had ended well."""
        return next((ended for began, ended, fine in list(self.done) if fine and began > moment), None)

    def stop(self):
        self.over = True
        self.thread.join()


def fetch(net, url, token, size=100_000):
    got = net["client"].call("curl", "-s", "-o", "/dev/null", "--max-time", BOUND, "--socks5-hostname", f"127.0.0.1:{SOCKS}", "--proxy-user", f"{token}:x",
                             "-w", "%{http_code} %{size_download}", f"{url}/bytes/{size}", timeout=BOUND + 10)
    return got.stdout.decode() == f"200 {size}"


class Load:
    """What runs while something is killed: fetches over a standing circuit to the service, others through exits; and those who come anew after it."""

    def __init__(self, net, services):
        self.net, self.services, self.visited, self.tokens = net, services, 1, 0
        self.service, self.target = f"http://{services[0]}", f"http://{net['target'].v4}"
        self.loops = {"service": Loop(net, self.token(), self.service), "exits": Loop(net, self.token(), self.target)}

    def token(self):
        self.tokens += 1
        return f"token{self.tokens}"

    def newcomers(self, count=NEWCOMERS, since=0, url=None):
        """Until each has fetched something from the service over a circuit of its own: after how many seconds."""
        def comes(token):
            while not fetch(self.net, url or self.service, token):
                if time.monotonic() - since > BOUND:
                    raise TimeoutError(f"somebody new after {BOUND} s")
                time.sleep(0.2)
            return time.monotonic() - since
        since = since or time.monotonic()
        running = [in_thread(lambda token=self.token(): comes(token)) for _ in range(count)]
        for thread, _ in running:
            thread.join()
        return [box["result"] if "result" in box else BOUND for _, box in running]

    def first_visit(self, since):
        """To a service whose descriptor the client does not have."""
        url, self.visited = f"http://{self.services[self.visited]}", self.visited + 1
        return self.newcomers(1, since, url)

    def meets_anew(self):
        """The loop to the service has another circuit; its rendezvous point."""
        self.loops["service"].stop()
        token = self.token()
        points = self.net.counted("joined", lambda: fetch(self.net, self.service, token))
        self.loops["service"] = Loop(self.net, token, self.service)
        return points[:1]

    def stop(self):
        for loop in self.loops.values():
            loop.stop()


def guard_of(name):
    return lambda net, load: net.neighbours(name)[:1]


def second_layer(net, load):
    """Behind the client's guard."""
    (guard,), second = guard_of("client")(net, load), net.second_layer("client")
    return [host for host in net.neighbours(guard) if host in second][:1]


def introduction_points(net, load):
    return net.counted("introduced", load.newcomers)


def the_exit(net, load):
    """Of the loop's circuit, as the target tells it."""
    words = ["curl", "-s", "--max-time", 20, "--proxy", f"socks5h://{load.loops['exits'].name}:x@127.0.0.1:{SOCKS}", f"{load.target}/peer"]
    return [net.host_of(net["client"].call(*words).stdout.decode())]


def hsdirs(net, load):
    """Two that neither the client nor the service begins a circuit with."""
    used = net.neighbours("client") + net.neighbours("service") + net.second_layer("client")
    return [relay for relay in RELAYS if relay not in used and net.metric(relay, "onion_hsdir_descriptors")][:2]


# Who is killed, and how it is found.
ROLES = {
    "nobody": lambda net, load: [],
    "the client's guard": guard_of("client"),
    "the service's guard": guard_of("service"),
    "a relay of the client's second layer": second_layer,
    "an introduction point": lambda net, load: introduction_points(net, load)[:1],
    "all introduction points": introduction_points,
    "the rendezvous point": lambda net, load: load.meets_anew(),
    "an exit": the_exit,
    "two HSDirs": hsdirs,
    "an authority": lambda net, load: ["a3"],
    "the service": lambda net, load: ["service"],
}
# Of these also what happens when the machine hangs instead.
HANG = ("the client's guard", "a relay of the client's second layer", "an exit")


class Kill:
    """One role's end, again and again."""

    def __init__(self, role, hangs=False):
        self.role, self.hangs = role, hangs
        self.name = f"{role}, hanging" if hangs else role
        self.took = {"service": [], "exits": [], "newcomers": [], "first visit": [], "next list": []}

    def run(self, checks, net, load):
        names = ROLES[self.role](net, load)
        if not names and self.role != "nobody":
            return checks.check(f"{self.name}: who it is is known", False, names)
        for name in names:
            net.running[name].child.send_signal(signal.SIGSTOP if self.hangs else signal.SIGKILL)
        since = time.monotonic()
        if self.role == "the service":
            again, _ = in_thread(lambda: self.mend(net, load, names))
        try:
            took = self.watch(net, load, names, since)
            for what, times in took.items():
                self.took[what] += times
            told = ", ".join(f"{what} {max(times):.1f} s" for what, times in took.items())
            return checks.check(f"{self.name} ({', '.join(names)}): all works again ({told})", max(map(max, took.values())) < BOUND)
        except TimeoutError as e:
            return checks.check(f"{self.name} ({', '.join(names)}): all works again", False, e)
        finally:
            again.join() if self.role == "the service" else self.mend(net, load, names)
            net.heals()

    def watch(self, net, load, names, since):
        took = {"newcomers": load.newcomers(since=since)}
        if self.role in ("nobody", "two HSDirs"):
            took["first visit"] = load.first_visit(since if names else time.monotonic())
        for what, loop in load.loops.items():
            ended = wait_for(f"a fetch by the loop, {what}", lambda: loop.works_since(since), BOUND)  # noqa: B023: waited for here
            took[what] = [ended - since]
        if self.role == "an authority":
            began = time.time()
            wait_for("a list without it", lambda: net.list_begins("a1") > began, BOUND)
            took["next list"] = [time.monotonic() - since]
        return took

    def mend(self, net, load, names):
        for name in names:
            if self.hangs:
                net.running[name].child.send_signal(signal.SIGCONT)
                continue
            net.running[name].stop(signal.SIGKILL)
            if name == "service":
                net.serve(len(load.services))
            elif name in AUTHORITIES:
                net.authority_starts(name)
            else:
                net.relay_starts(name)

    def row(self):
        def told(times):
            if not times:
                return "–"
            return f"{times[0]:.1f}" if len(times) == 1 else f"{statistics.median(times):.1f} ({max(times):.1f})"
        return f"| {self.name} | " + " | ".join(told(times) for times in self.took.values()) + " |"


def kills(checks, net):
    """Each role ends by SIGKILL while programs fetch, or hangs."""
    services = net.serve(1 + 2 * ROUNDS)
    if "servers-service" not in net.running:
        net.servers("service", "127.0.0.1", ["localhost", services[0]])
    wait_for("the services' descriptors", net.are_published, 90)
    net.client_starts()
    load = Load(net, services)
    table = [Kill(role) for role in ROLES] + [Kill(role, hangs=True) for role in HANG if ROUNDS > 1]
    checks.check("the service is reached before", all(time < BOUND for time in load.newcomers()))
    try:
        for _ in range(ROUNDS):
            for kill in table:
                kill.run(checks, net, load)
    finally:
        load.stop()
    lost = [loop.name for loop in load.loops.values() if not any(fine for _, _, fine in loop.done)]
    checks.check("every loop has fetched something", not lost, lost)
    print("Seconds until it works again: one, or the median (most)\n| | " + " | ".join(table[0].took) + " |\n|" + "---|" * (1 + len(table[0].took)))
    for kill in table:
        print(kill.row())


PARTS = (programs, kills)
# Killing takes minutes, and more on a busy machine: it is run by name.
UNASKED = ["programs"]


def main():
    checks = Checks("onion services")
    if why := usable():
        checks.skip("a network of namespaces", why)
        checks.done()
    chosen = sys.argv[1:]
    with OnionNetwork() as net:
        for part in PARTS:
            if part.__name__ not in (chosen or UNASKED):
                continue
            began = time.monotonic()
            try:
                part(checks, net)
            except Exception as e:  # noqa: BLE001: the other parts go on
                checks.check(part.__doc__.splitlines()[0], False, f"{type(e).__name__}: {e}")
            print(f"     ({part.__name__}: {time.monotonic() - began:.0f} s)", flush=True)
        if checks.failed:
            net.show_logs()
            print(f"----- the device's own log\n{net['device'].sh('tail -n 40 /run/hoplite/*.log')}")
    checks.done()


if __name__ == "__main__":
    main()
