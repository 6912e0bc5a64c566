"""What a device does when the network changes under it: each way in which it can, with the time until traffic flows again and what is lost.

A client that is up over relays, in network namespaces. In each row three things go on while something happens to the network: a datagram each 50 ms that
the target sends back, one TCP connection by which 100 kB/s come, whose bytes are known, and a new TCP connection each 200 ms. What happens, happens
after two seconds; where it lasts for a while, times are counted from its end. Needs root; no test: device_test.py asserts for some of the rows that traffic comes back.

usage: matrix.py [--hops 1,3] [--repetitions 3] [--rows NAME,…] [--json FILE]
"""

import argparse
import contextlib
import json
import os
import pathlib
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
ECHO, STREAM = 9001, 9002
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
    """

    def __init__(self, name, begin, end=None, seconds=0.0, early=False, slow=False, prelude=None, restore=None):
        self.name, self.begin, self.end, self.seconds, self.early, self.slow = name, begin, end, seconds, early, slow
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


def links(lab, up):
    from netns import ip
    ip("link", "set", lab.client.router_end, up, ns=lab.router)


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


def signal_device(how):
    def send(lab):
        for pid in lab.client.daemons():
            os.kill(pid, how)
    return send


def relay(index, how):
    def act(lab):
        host = lab.path[index]
        lab.running[host.name].stop(how)
        lab.again(host)
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
    Row("UDP is dead for 8 s", lambda lab: router(lab, forward("meta l4proto udp drop")), open_again, 8),
    Row("UDP is throttled to 40 kB/s", lambda lab: router(lab, forward("meta l4proto udp limit rate over 40 kbytes/second burst 10 kbytes drop")), restore=open_again),
    Row("the network is gone for 10 s", lambda lab: links(lab, "down"), lambda lab: links(lab, "up"), 10),
    Row("another address", lambda lab: lab.client.renumber(77), restore=lambda lab: lab.client.renumber(2)),
    Row("the NAT takes another address", lambda lab: translated(lab, 201), prelude=lambda lab: translated(lab, 200), restore=open_again),
    Row("Wi-Fi to LTE", to_lte, restore=to_wifi),
    Row("LTE to Wi-Fi", to_wifi, prelude=to_lte),
    Row("the first relay drains, is killed after 10 s, and restarts", relay(0, signal.SIGTERM), slow=True),
    Row("the first relay is killed, and restarts", relay(0, signal.SIGKILL)),
    Row("the last relay is killed, and restarts", relay(-1, signal.SIGKILL)),
    Row("the device sleeps for 65 s", signal_device(signal.SIGSTOP), signal_device(signal.SIGCONT), 65),
]


# --- one run of a row --------------------------------------------------------------------------------------------------------------------------------------


def second_network(lab):
    """eth1 of the device, down: another network with another router's address."""
    from netns import ip
    ip("link", "add", "to-client2", "netns", lab.router, "type", "veth", "peer", "name", "eth1", "netns", lab.client.ns)
    ip("addr", "add", "10.78.1.1/24", "dev", "to-client2", ns=lab.router)
    ip("addr", "add", "10.78.1.2/24", "dev", "eth1", ns=lab.client.ns)
    ip("link", "set", "to-client2", "up", ns=lab.router)


def run(lab, row, hops):
    device, took = lab.client, None
    row.prelude(lab)
    try:
        if row.early:
            row.begin(lab)
        code, said, took = device.up(hops)
        if code:
            return {"error": f"up: {said[-300:]}"}
        seconds = BEFORE + row.seconds + AFTER
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
        return {"up": took, **judge(probe.lines()[-1], began, whole)}
    finally:
        row.restore(lab)
        device.down()
        if device.daemons():
            device.kill()


def judge(said, began, whole):
    """Seconds until each kind arrives without a pause again, None if it never does; datagrams that were lost; what became of the connection."""
    again = {}
    for name, times in said["arrived"].items():
        pause, times = PAUSE[name], sorted(times)
        gaps = zip([said["end"] - AFTER - BEFORE, *times], [*times, said["end"] - 1])
        flows = whole
        for earlier, later in gaps:
            # After three good seconds a pause is the machine's.
            if later - earlier > pause and later > flows and earlier < flows + 3:
                flows = later
        dead = not times or times[-1] < said["end"] - 1 - 2
        again[name] = None if dead else round(flows - whole, 2)
    lost = sum(when >= began for when in said["lost"])
    return {"again": again, "lost": lost, "stream": said["stream"]}


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
        return f"| {name} | {failed[0]} | | | | |"
    cells = [told([r["again"][kind] for r in results]) for kind in PAUSE]
    lost = sorted(r["lost"] for r in results)
    kept = sum(r["stream"] == "open" for r in results)
    return f"| {name} | {' | '.join(cells)} | {lost[len(lost) // 2]} ({lost[-1]}) | {kept} of {len(results)} |"


def table(hops, results):
    print(f"\n{hops} {'relay' if hops == 1 else 'relays'}: seconds until it flows again, median (worst)\n")
    print("| | datagrams | the open connection | new connections | datagrams lost | the connection lives |\n|---|---|---|---|---|---|")
    for name, runs in results.items():
        print(line(name, runs), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hops", default="1,3")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--rows", default="", help="parts of their names")
    parser.add_argument("--json", type=pathlib.Path, help="where all results go")
    options = parser.parse_args()
    from device import DeviceLab, usable
    if why := usable():
        sys.exit(f"matrix.py: {why}")
    chosen = [row for row in ROWS if not options.rows or any(part in row.name for part in options.rows.split(","))]
    everything = {}
    for hops in map(int, options.hops.split(",")):
        results = everything[hops] = {row.name: [] for row in chosen}
        with DeviceLab() as lab:
            lab.path = lab.relays[:hops]
            second_network(lab)
            server = lab.target.run("matrix-server", [sys.executable, __file__, "serve", lab.target.v4])
            from common import wait_for
            wait_for("the server", server.lines)
            for host in lab.path:
                lab.again(host)
            for repetition in range(options.repetitions):
                for row in chosen:
                    began = time.monotonic()
                    results[row.name].append(result := run(lab, row, hops))
                    print(f"{hops} hops, {repetition + 1}: {row.name}: {json.dumps(result)} ({time.monotonic() - began:.0f} s)", file=sys.stderr, flush=True)
        table(hops, results)
    if options.json:
        options.json.write_text(json.dumps(everything, indent=1))


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve(sys.argv[2])
    elif sys.argv[1:2] == ["probe"]:
        Probe(sys.argv[2], float(sys.argv[3])).run()
    else:
        main()
