"""What a device does when the network changes under it: each way in which it can, with the time until traffic flows again and what is lost.

A client that is up over relays, in network namespaces. In each row three things go on while something happens to the network: a datagram each 50 ms that
the target sends back, one TCP connection by which 100 kB/s come, whose bytes are known, and a new TCP connection each 200 ms. What happens, happens
after two seconds; where it lasts for a while, times are counted from its end. Needs root; no test: matrix_test.py asserts for some of the rows that traffic comes back.

usage: matrix.py [--paths 1,3,circuits] [--repetitions 3] [--rows NAME,…] [--json FILE]
"""

import argparse
import collections
import contextlib
import json
import os
import pathlib
import signal
import socket
import statistics
import struct
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
ECHO, STREAM = 9001, 9002
NETLINK_NETFILTER = 12
# What the relays of circuits speak beside what all do.
PROTOCOLS = "Conflux=1 Datagram=1 Relay=6"
# A pause of so much between two arrivals is an interruption: datagrams come each 50 ms, pieces of the stream each 20, new connections each 200.
PAUSE = {"datagrams": 0.25, "stream": 0.25, "new connections": 0.6}
BEFORE, AFTER = 2.0, 20.0
PIECE = 2000


# --- the target, and the program on the device: run in their namespaces, they need nothing of ours ---------------------------------------------------------


def pattern(offset, size):
    return bytes((offset + i) % 251 for i in range(size))


def serve(host):
    echo = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    echo.bind((host, ECHO))
    listener = socket.create_server((host, STREAM), backlog=128)
    threading.Thread(target=echo_forever, args=(echo,), daemon=True).start()
    print("{}", flush=True)
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=send_forever, args=(connection,), daemon=True).start()


def echo_forever(echo):
    while True:
        data, peer = echo.recvfrom(2048)
        with contextlib.suppress(OSError):
            echo.sendto(data, peer)


def send_forever(connection):
    offset, began = 0, time.monotonic()
    with contextlib.suppress(OSError), connection:
        while True:
            connection.sendall(pattern(offset, PIECE))
            offset += PIECE
            time.sleep(max(0.0, began + offset / PIECE * 0.02 - time.monotonic()))


class Probe:
    """What arrived when, by the clock that all namespaces share."""

    def __init__(self, host, seconds):
        self.host, self.end = host, time.monotonic() + seconds
        self.arrived = {name: [] for name in PAUSE}
        self.sent, self.echoed, self.stream = [], set(), "open"

    def run(self):
        parts = [threading.Thread(target=part, daemon=True) for part in (self.datagrams, self.download, self.connections)]
        for part in parts:
            part.start()
        for part in parts:
            part.join(max(0.0, self.end + 1 - time.monotonic()))
        lost = [when for n, when in enumerate(self.sent) if n not in self.echoed]
        print(json.dumps({"arrived": self.arrived, "lost": lost, "stream": self.stream, "end": self.end}), flush=True)
        os._exit(0)

    def datagrams(self):
        flow = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        flow.connect((self.host, ECHO))
        threading.Thread(target=self.echoes, args=(flow,), daemon=True).start()
        while time.monotonic() < self.end - 1:
            self.sent.append(time.monotonic())
            with contextlib.suppress(OSError):
                flow.send((len(self.sent) - 1).to_bytes(8) + bytes(92))
            time.sleep(0.05)
        time.sleep(1)

    def echoes(self, flow):
        while True:
            try:
                number = int.from_bytes(flow.recv(2048)[:8])
            except OSError:
                time.sleep(0.01)
                continue
            self.arrived["datagrams"].append(time.monotonic())
            self.echoed.add(number)

    def download(self):
        offset = 0
        try:
            with socket.create_connection((self.host, STREAM), timeout=10) as stream:
                stream.settimeout(0.1)
                while time.monotonic() < self.end:
                    try:
                        data = stream.recv(65536)
                    except TimeoutError:
                        continue
                    if not data:
                        raise ConnectionError("it ended")
                    if data != pattern(offset, len(data)):
                        self.stream = "other bytes"
                        return
                    offset += len(data)
                    self.arrived["stream"].append(time.monotonic())
        except OSError as error:
            self.stream = f"broken: {error}"

    def connections(self):
        while time.monotonic() < self.end - 1:
            threading.Thread(target=self.connect, daemon=True).start()
            time.sleep(0.2)

    def connect(self):
        with contextlib.suppress(OSError), socket.create_connection((self.host, STREAM), timeout=8) as stream:
            stream.settimeout(8)
            if stream.recv(1):
                self.arrived["new connections"].append(time.monotonic())


# --- what happens ------------------------------------------------------------------------------------------------------------------------------------------


class Row:
    """One thing that happens to a network. `seconds`: how long it lasts; 0: it has happened and stays. `early`: before the device is up.

    `slow`: times count from when it has happened, not from when it began to. `prelude`: what must have happened before, and is no part of it.
    `env`: what the device's processes begin with. `named`: the first relay has to have a name, and circuits over relays of a file have none.
    `after`: how long is looked at what follows.
    """

    def __init__(self, name, begin, end=None, seconds=0.0, early=False, slow=False, prelude=None, restore=None, env=lambda lab: [], named=False, after=AFTER):
        self.named, self.after = named, after
        self.name, self.begin, self.end, self.seconds, self.early, self.slow, self.env = name, begin, end, seconds, early, slow, env
        self.prelude = prelude or (lambda lab: None)
        self.restore = restore or end or (lambda lab: None)


def router(lab, rules):
    """Rules of the router in front of the device; without any there are none again."""
    nft = ["ip", "netns", "exec", lab.router, "nft"]
    subprocess.run([*nft, "delete", "table", "ip", "matrix"], capture_output=True, check=False)
    if rules:
        subprocess.run([*nft, "-f", "-"], input=f"table ip matrix {{\n{rules}\n}}\n", text=True, check=True, capture_output=True)


def open_again(lab):
    router(lab, "")


def forward(*rules):
    """Rules for what passes between the device and its networks, both ways."""
    lines = "\n".join(f"ip {way} 10.77.1.0/24 {rule}" for rule in rules for way in ("saddr", "daddr"))
    return f"chain pass {{\ntype filter hook forward priority 0\n{lines}\n}}"


def translated(lab, last):
    """The device is behind an address of its router's."""
    public = f"10.77.1.{last}"
    router(lab, f"chain way {{\ntype filter hook prerouting priority -300\nip saddr {lab.client.v4} ip saddr set {public}\nip daddr {public} ip daddr set {lab.client.v4}\n}}")


def behind_nat(lab, ports):
    """The device is behind an address of its router's, with ports of these alone, and what the router knew of its flows is forgotten."""
    protocols = "\n".join(f"ip saddr 10.77.1.0/24 meta l4proto {protocol} masquerade to :{ports}" for protocol in ("udp", "tcp"))
    router(lab, f"chain way {{\ntype nat hook postrouting priority 100\n{protocols}\n}}")
    subprocess.run(["ip", "netns", "exec", lab.router, sys.executable, __file__, "forget"], check=True)


def forget_flows():
    """Empties the kernel's table of connections: a message of nfnetlink (IPCTNL_MSG_CT_DELETE without any attribute), answered by an error of 0."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER) as netlink:
        netlink.send(struct.pack("=IHHIIBBH", 20, 1 << 8 | 2, 1 | 4, 1, 0, 0, 0, 0))
        answer = struct.unpack_from("=IHHIIi", netlink.recv(4096))
    sys.exit(0 if answer[1] == 2 and answer[5] == 0 else f"matrix.py: the kernel does not forget its connections: {answer}")


def links(lab, up):
    from netns import ip
    host = lab.client
    ip("link", "set", host.router_end, up, ns=lab.router)
    if up == "up":
        # The kernel forgets IPv6 addresses of a link that goes down; a router would give itself its own again.
        ip("addr", "replace", f"fd77:{host.number}::1/64", "dev", host.router_end, "nodad", ns=lab.router)


def other_network(lab, leave, enter, gateway):
    """The device leaves one network, and is in another: as a telephone from Wi-Fi to LTE."""
    from netns import ip
    ip("link", "set", enter, "up", ns=lab.client.ns)
    ip("link", "set", leave, "down", ns=lab.client.ns)
    ip("route", "replace", "default", "via", gateway, "dev", enter, ns=lab.client.ns)


def to_lte(lab):
    other_network(lab, "eth0", "eth1", "10.78.1.1")


def to_wifi(lab):
    other_network(lab, "eth1", "eth0", "10.77.1.1")


def only(lab, version):
    """The device's link has addresses of one version of IP alone: as in networks of telephones, and in those that have none of theirs."""
    from netns import ip
    host = lab.client
    kinds = {4: ((), f"{host.v4}/24", "10.77.1.1"), 6: (("-6",), f"{host.v6}/64", "fd77:1::1")}
    for kind, (flags, address, gateway) in sorted(kinds.items(), key=lambda pair: pair[0] != version):
        if kind == version:
            ip("addr", "replace", address, "dev", "eth0", *(["nodad"] if kind == 6 else []), ns=host.ns)
            ip(*flags, "route", "replace", "default", "via", gateway, "dev", "eth0", ns=host.ns)
        else:
            for words in (("addr", "del", address), ("route", "del", "default")):
                subprocess.run(["ip", "-n", host.ns, *flags, *words, "dev", "eth0"], capture_output=True, check=False)


def only_v4(lab):
    only(lab, 4)


def only_v6(lab):
    only(lab, 6)


def both(lab):
    only_v4(lab)
    from netns import ip
    ip("addr", "replace", f"{lab.client.v6}/64", "dev", "eth0", "nodad", ns=lab.client.ns)
    ip("-6", "route", "replace", "default", "via", "fd77:1::1", "dev", "eth0", ns=lab.client.ns)


def carries_v6(lab, carries):
    """Whether the router passes IPv6 on; it announces it all the while, and says nothing of what it drops."""
    script = f"echo {int(carries)} > /proc/sys/net/ipv6/conf/all/forwarding"
    subprocess.run(["ip", "netns", "exec", lab.router, "sh", "-c", script], check=True)


def dead_v6(lab):
    carries_v6(lab, False)


def live_v6(lab):
    carries_v6(lab, True)


def clock(lab):
    """The file by which libfaketime sets the clocks of the device's processes."""
    return lab.folder / "clock"


def own_clocks(lab):
    library = next(place for triple in os.listdir("/usr/lib") if os.path.exists(place := f"/usr/lib/{triple}/faketime/libfaketimeMT.so.1"))
    clock(lab).write_text("+0\n")
    return [f"LD_PRELOAD={library}", f"FAKETIME_TIMESTAMP_FILE={clock(lab)}", "FAKETIME_CACHE_DURATION=1", "FAKETIME_XRESET=1"]


def a_day_later(lab):
    clock(lab).write_text("+86400\n")
    signal_device(signal.SIGCONT)(lab)


def signal_device(how):
    def send(lab):
        for pid in lab.client.daemons():
            os.kill(pid, how)
    return send


def relay(index, how):
    def act(lab):
        host = lab.path[index]
        lab.running[host.name].stop(how)
        start(lab, host)
    return act


def black_hole(lab):
    """What is larger vanishes, and nobody is told. Batches of packets would be larger than each of them."""
    for host in (lab.client, first(lab)):
        host.no_offload()
    router(lab, forward("meta length > 1280 drop"))


def no_black_hole(lab):
    router(lab, "")
    for host in (lab.client, first(lab)):
        host.offload()


def leg(host, size):
    """Both ends of a host's link."""
    return lambda lab: host(lab).mtu(size)


def device(lab):
    return lab.client


def first(lab):
    return lab.path[0]


def last(lab):
    return lab.path[-1]


ROWS = [
    Row("nothing happens", lambda lab: None),
    *(Row(f"the device's link takes {size} bytes", leg(device, size), early=True, restore=leg(device, 1500)) for size in (1280, 1400, 9000)),
    *(Row(f"the last relay's link takes {size} bytes", leg(last, size), early=True, restore=leg(last, 1500)) for size in (1280, 9000)),
    Row("a black hole from the beginning: more than 1,280 bytes vanish", black_hole, early=True, restore=no_black_hole),
    Row("a black hole: from now on more than 1,280 bytes vanish", black_hole, restore=no_black_hole),
    Row("UDP is blocked from the beginning", lambda lab: router(lab, forward("meta l4proto udp drop")), early=True, restore=open_again),
    Row("only TCP's port 443 passes", lambda lab: router(lab, forward("tcp dport 443 accept", "tcp sport 443 accept", "drop")), early=True, restore=open_again),
    Row("UDP dies, and stays dead", lambda lab: router(lab, forward("meta l4proto udp drop")), restore=open_again),
    Row("UDP is dead for 8 s", lambda lab: router(lab, forward("meta l4proto udp drop")), open_again, 8, after=35.0),
    Row("UDP is throttled to 40 kB/s", lambda lab: router(lab, forward("meta l4proto udp limit rate over 40 kbytes/second burst 10 kbytes drop")), restore=open_again),
    Row("the network is gone for 10 s", lambda lab: links(lab, "down"), lambda lab: links(lab, "up"), 10),
    Row("another address", lambda lab: lab.client.renumber(77), restore=lambda lab: lab.client.renumber(2)),
    Row("the NAT takes another address", lambda lab: translated(lab, 201), prelude=lambda lab: translated(lab, 200), restore=open_again),
    Row("the NAT forgets, and gives other ports", lambda lab: behind_nat(lab, "30000-39999"), prelude=lambda lab: behind_nat(lab, "20000-29999"), restore=open_again),
    Row("from a network with IPv4 alone to one with IPv6 alone", only_v6, prelude=only_v4, restore=both, named=True),
    Row("from a network with IPv6 alone to one with IPv4 alone", only_v4, prelude=only_v6, restore=both, named=True),
    Row("IPv6 is announced, and carries nothing", dead_v6, early=True, restore=live_v6, named=True),
    Row("IPv6 carries nothing any more", dead_v6, restore=live_v6, named=True),
    Row("Wi-Fi to LTE", to_lte, restore=to_wifi),
    Row("LTE to Wi-Fi", to_wifi, prelude=to_lte),
    Row("the first relay drains, is killed after 10 s, and restarts", relay(0, signal.SIGTERM), slow=True),
    Row("the first relay is killed, and restarts", relay(0, signal.SIGKILL)),
    Row("the last relay is killed, and restarts", relay(-1, signal.SIGKILL)),
    Row("the device sleeps for 65 s", signal_device(signal.SIGSTOP), signal_device(signal.SIGCONT), 65),
    Row("the device sleeps for a day", signal_device(signal.SIGSTOP), a_day_later, 65, env=own_clocks),
]


# --- the paths --------------------------------------------------------------------------------------------------------------------------------------------


def set_up(lab, path):
    """The relays of a path, as many as it says, or three of circuits. The first one has a name with addresses of both versions of IP; circuits know no names."""
    from common import HERE, TOKEN, quoted, wait_for
    from netns import RELAY_PORT
    lab.circuits = path == "circuits"
    lab.path = lab.relays[:3 if lab.circuits else int(path)]
    second_network(lab)
    name, addresses = f"{lab.path[0].name}.test", f"{lab.path[0].v4},{lab.path[0].v6}"
    leaf = lab.authority.leaf("target", ["target.test"])
    for host in (lab.target.v4, lab.target.v6):
        names = ["--dns-port", 53, "--name", f"{name}={addresses}"]
        server = lab.target.run(f"names-{host}", [sys.executable, HERE / "servers.py", "--host", host, "--cert", leaf.cert, "--key", leaf.key, *names])
        wait_for("the name server", lambda: server.lines() or not server.alive())
    lab.client.resolv(f"nameserver {lab.target.v4}\nnameserver {lab.target.v6}\n")
    server = lab.target.run("matrix-server", [sys.executable, __file__, "serve", lab.target.v4])
    wait_for("the server", server.lines)
    text = f'path = {quoted(r.name for r in lab.path)}\n' + ('overlay = "onion"\n' if lab.circuits else f'token = "{TOKEN}"\n')
    for host in lab.path:
        start(lab, host)
        known = f'onion = "{onion_key(lab, host)}"\nprotocols = "{PROTOCOLS}"' if lab.circuits else f'pin = "{lab.leaves[host.name].pin}"'
        text += f'\n[[relay]]\nname = "{host.name}"\naddress = "{host.v4}:{RELAY_PORT}"\n{known}\n'
    lab.file, lab.named = lab.folder / f"device-{path}.toml", lab.folder / f"device-{path}-named.toml"
    lab.file.write_text(text)
    lab.named.write_text(text.replace(f"{lab.path[0].v4}:", f"{name}:"))


def onion_key(lab, host):
    """The key of a relay's circuits; makes its identity."""
    from common import HOPLITE
    identity = lab.folder / f"identity-{host.name}"
    if not identity.exists():
        made = subprocess.run([HOPLITE, "keygen", "--json", "--out", identity], check=True, capture_output=True, text=True)
        (lab.folder / f"onion-{host.name}").write_text(json.loads(made.stdout)["onion"])
    return (lab.folder / f"onion-{host.name}").read_text()


def start(lab, host):
    """A relay, for the first time or again; it listens for both versions of IP."""
    top, extra = "", ""
    if lab.circuits:
        onion_key(lab, host)
        top, extra = f'identity = "{lab.folder}/identity-{host.name}"\n', "\n[onion]\nenabled = true\nopen = true\nudp = true\n"
    lab.start_relay(host, extra, top=top, listen="[::]")


# --- one run of a row --------------------------------------------------------------------------------------------------------------------------------------


def second_network(lab):
    """eth1 of the device, down: another network with another router's address."""
    from netns import ip
    ip("link", "add", "to-client2", "netns", lab.router, "type", "veth", "peer", "name", "eth1", "netns", lab.client.ns)
    ip("addr", "add", "10.78.1.1/24", "dev", "to-client2", ns=lab.router)
    ip("addr", "add", "10.78.1.2/24", "dev", "eth1", ns=lab.client.ns)
    ip("link", "set", "to-client2", "up", ns=lab.router)


class Carried:
    """Which way the device's packets take, by counters of its router: QUIC is UDP, TLS is TCP. Counts while it is entered."""

    def __init__(self, lab):
        self.nft = ["ip", "netns", "exec", lab.router, "nft"]
        self.seen, self.ends = [], threading.Event()
        self.watch = threading.Thread(target=self.look, daemon=True)

    def __enter__(self):
        ways = "\n".join(f'iifname "to-client*" meta l4proto {protocol} counter name {way}' for way, protocol in (("QUIC", "udp"), ("TLS", "tcp")))
        rules = f"table inet carried {{\ncounter QUIC {{ }}\ncounter TLS {{ }}\nchain pass {{\ntype filter hook forward priority 10\n{ways}\n}}\n}}\n"
        subprocess.run([*self.nft, "-f", "-"], input=rules, text=True, check=True, capture_output=True)
        self.watch.start()
        return self

    def __exit__(self, *error):
        self.ends.set()
        self.watch.join()
        subprocess.run([*self.nft, "delete", "table", "inet", "carried"], check=True, capture_output=True)

    def look(self):
        while True:
            told = json.loads(subprocess.run([*self.nft, "-j", "list", "counters", "table", "inet", "carried"], check=True, capture_output=True).stdout)
            counts = {entry["counter"]["name"]: entry["counter"]["bytes"] for entry in told["nftables"] if "counter" in entry}
            self.seen.append((time.monotonic(), counts))
            if self.ends.wait(1):
                return

    def ways(self):
        """(when, which ways, as text) of each second. A few packets of the one that rests do not count."""
        for (_, before), (when, after) in zip(self.seen, self.seen[1:]):
            yield when, " and ".join(way for way in ("QUIC", "TLS") if after[way] - before[way] > 300)


def run(lab, row):
    device = lab.client
    row.prelude(lab)
    try:
        if row.early:
            row.begin(lab)
        code, said, took = device.hoplite("up", "--config", lab.named if row.named else lab.file, env=row.env(lab))
        if code:
            return {"error": f"up: {said[-300:]}"}
        seconds = BEFORE + row.seconds + row.after
        with Carried(lab) as carried:
            probe = device.run(f"probe-{time.monotonic_ns()}", [sys.executable, __file__, "probe", lab.target.v4, seconds])
            time.sleep(BEFORE)
            began = time.monotonic()
            if not row.early:
                row.begin(lab)
                time.sleep(row.seconds)
            if row.end and row.seconds:
                row.end(lab)
            whole = time.monotonic() if row.seconds or row.slow else began
            probe.child.wait(seconds + 30)
        said = probe.lines()[-1]
        return {"up": took, **judge(said, began, whole, seconds), "over": over(list(carried.ways()), whole, said["end"])}
    finally:
        row.restore(lab)
        device.down()
        if device.daemons():
            device.kill()


def judge(said, began, whole, seconds):
    """Seconds until each kind arrives without a pause again, None if it never does; datagrams that were lost; what became of the connection."""
    again = {}
    for name, times in said["arrived"].items():
        pause, times = PAUSE[name], sorted(times)
        gaps = zip([said["end"] - seconds, *times], [*times, said["end"] - 1])
        flows = whole
        for earlier, later in gaps:
            # After three good seconds a pause is the machine's.
            if later - earlier > pause and later > flows and earlier < flows + 3:
                flows = later
        dead = not times or times[-1] < said["end"] - 1 - 2
        again[name] = None if dead else round(flows - whole, 2)
    lost = sum(when >= began for when in said["lost"])
    return {"again": again, "lost": lost, "stream": said["stream"]}


def over(ways, whole, end):
    """What all goes over at the end, and since when: seconds after what happened was over; 0 if always. What was open over TLS stays there."""
    ways = [(when, way) for when, way in ways if whole < when < end - 1]
    last = ways[-1][1] if ways else ""
    others = [when for when, way in ways if way != last]
    return last or "nothing", round(max(others, default=whole) - whole, 1)


# --- the table ---------------------------------------------------------------------------------------------------------------------------------------------


def told(values):
    """Median and worst."""
    if any(v is None for v in values):
        return f"never ({sum(v is None for v in values)} of {len(values)})"
    middle, worst = statistics.median(values), max(values)
    return f"{middle:.1f}" if f"{middle:.1f}" == f"{worst:.1f}" else f"{middle:.1f} ({worst:.1f})"


def line(name, results):
    failed = [r["error"] for r in results if "error" in r]
    if failed:
        return f"| {name} | {failed[0]} | | | | | |"
    cells = [told([r["again"][kind] for r in results]) for kind in PAUSE]
    lost = sorted(r["lost"] for r in results)
    kept = sum(r["stream"] == "open" for r in results)
    ways = collections.Counter(r["over"][0] for r in results)
    way = ", ".join(way if len(ways) == 1 else f"{way} ({count})" for way, count in ways.items())
    since = told([r["over"][1] for r in results])
    return f"| {name} | {' | '.join(cells)} | {lost[len(lost) // 2]} ({lost[-1]}) | {kept} of {len(results)} | {way}{'' if since == '0.0' else f' after {since}'} |"


def table(path, results):
    title = {"1": "one relay", "circuits": "circuits over three relays"}.get(path, f"{path} relays")
    print(f"\n{title}: seconds until it flows again, median (worst)\n")
    print("| | datagrams | the open connection | new connections | datagrams lost | the connection lives | goes over at the end |\n|---|---|---|---|---|---|---|")
    for name, runs in results.items():
        print(line(name, runs), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--paths", default="1,3,circuits", help="numbers of relays, and circuits over three")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--rows", default="", help="parts of their names")
    parser.add_argument("--json", type=pathlib.Path, help="where all results go")
    options = parser.parse_args()
    from device import DeviceLab, usable
    if why := usable():
        sys.exit(f"matrix.py: {why}")
    chosen = [row for row in ROWS if not options.rows or any(part in row.name for part in options.rows.split(","))]
    everything = {}
    for path in options.paths.split(","):
        rows = [row for row in chosen if path != "circuits" or not row.named]
        results = everything[path] = {row.name: [] for row in rows}
        with DeviceLab() as lab:
            set_up(lab, path)
            for repetition in range(options.repetitions):
                for row in rows:
                    began = time.monotonic()
                    results[row.name].append(result := run(lab, row))
                    print(f"{path}, {repetition + 1}: {row.name}: {json.dumps(result)} ({time.monotonic() - began:.0f} s)", file=sys.stderr, flush=True)
        table(path, results)
    if options.json:
        options.json.write_text(json.dumps(everything, indent=1))


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve(sys.argv[2])
    elif sys.argv[1:2] == ["probe"]:
        Probe(sys.argv[2], float(sys.argv[3])).run()
    elif sys.argv[1:2] == ["forget"]:
        forget_flows()
    else:
        main()
