"""What the whole device costs, beside what people use instead, in one run: goodput, processor time, round trips, memory, new flows, wake-ups.

A client, relays and a target in network namespaces joined by veth (MTU 1500, no shaping); iperf3 from namespace to namespace. Subjects take turns in
each repetition: native, Hoplite over no relay (the mediator alone) and 1 to 3 hops, wireguard-go and OpenVPN where they are installed. Processor time
is that of each subject's own processes, both ends; iperf3 and the kernel's share of it are left out. Needs root, and a machine that does nothing else.

usage: device_bench.py [--seconds 5] [--repetitions 3] [--subjects native,hoplite-0,hoplite-1,…] [--only goodput,trips,memory,arrive,questions,idle] [--json]
A ten-minute download as in paper 003: device_bench.py --only goodput --seconds 600 --repetitions 1 --streams 1 --ways down
"""

import argparse
import contextlib
import hashlib
import json
import pathlib
import resource
import signal
import shutil
import socket
import statistics
import subprocess
import sys
import time

from common import HOPLITE, wait_for
from device import PROGRAMS, DeviceLab, usable

CASES = ("goodput", "trips", "memory", "arrive", "questions", "idle")
FLOWS, IPERF = 7001, 7004
# In a mount namespace of its own: sockets of daemons in a /run that nobody else sees.
OWN_RUN = 'mount -t tmpfs none /run; mkdir -p /run/wireguard; exec "$@"'


# --- subjects --------------------------------------------------------------------------------------------------------------------------------


class Native:
    """Nothing between client and target."""

    hops = 0

    def __init__(self, lab, name):
        self.lab, self.name, self.processes = lab, name, []

    def why_not(self):
        return None

    def start(self):
        pass

    def pids(self):
        """(who, pid) of every process whose time counts."""
        return []

    def stop(self):
        for process in reversed(self.processes):
            process.stop()
        self.processes = []

    def run(self, host, name, command):
        process = host.run(f"{self.name}-{name}-{time.monotonic_ns()}", command)
        self.processes.append(process)
        return process


class Up(Native):
    """`hoplite up` over so many hops; over none it is the mediator alone, straight to the target."""

    def __init__(self, lab, name):
        super().__init__(lab, name)
        self.hops = int(name.rpartition("-")[2])

    def start(self):
        top = "" if self.hops else 'overlay = "direct"\n'
        code, said, _ = self.lab.client.up(self.hops, '\n[takeover]\ndns = "off"\n', top=top)
        if code:
            raise RuntimeError(said.strip()[-300:])

    def pids(self):
        relays = [(f"relay{n + 1}", self.lab.running[r.name].child.pid) for n, r in enumerate(self.lab.relays[:self.hops])]
        worker = self.lab.client.status().get("worker")
        return [("client" if pid == worker else "helper", pid) for pid in self.lab.client.daemons()] + relays

    def stop(self):
        self.lab.client.down()


class Peer(Native):
    """A tunnel to relay 1, which puts its own address on what leaves it."""

    device, program = "tun0", ""

    def why_not(self):
        return None if shutil.which(self.program) else f"{self.program} is not installed"

    def start(self):
        relay = self.lab.relays[0]
        rules = "table ip peer {\n chain out {\n type nat hook postrouting priority 100\n ip saddr 10.78.0.0/16 masquerade\n }\n}\n"
        subprocess.run([*relay.prefix(), "nft", "-f", "-"], input=rules, text=True, check=True, capture_output=True)
        relay.call("sysctl", "-qw", "net.ipv4.ip_forward=1")
        self.begin(relay, self.lab.client)
        wait_for(self.name, lambda: self.lab.client.call("ping", "-c", "1", "-W", "0.5", "10.78.0.1").returncode == 0, 30)
        self.lab.client.call("ip", "route", "replace", f"{self.lab.target.v4}/32", "dev", self.device)

    def stop(self):
        super().stop()
        self.lab.relays[0].call("nft", "delete", "table", "ip", "peer")
        self.lab.client.call("ip", "route", "del", f"{self.lab.target.v4}/32")

    def pids(self):
        return [(who, process.child.pid) for who, process in zip(("relay1", "client"), self.processes)]


class OpenVpn(Peer):
    program = "openvpn"

    def begin(self, relay, client):
        leaves = {host.name: self.lab.authority.leaf(f"openvpn-{host.name}", [host.name]) for host in (relay, client)}
        own, peer = leaves[relay.name], leaves[client.name]
        common = ["openvpn", "--dev", self.device, "--dev-type", "tun", "--proto", "udp", "--cipher", "AES-128-GCM", "--data-ciphers", "AES-128-GCM",
                  "--disable-dco", "--topology", "subnet", "--port", 1194]
        server = [*common, "--local", relay.v4, "--server", "10.78.0.0", "255.255.0.0", "--dh", "none", "--keepalive", 10, 60,
                  "--cert", own.cert, "--key", own.key, "--peer-fingerprint", fingerprint(peer.cert)]
        user = [*common, "--client", "--remote", relay.v4, "--nobind", "--cert", peer.cert, "--key", peer.key, "--peer-fingerprint", fingerprint(own.cert)]
        user = [word for word in user if word not in ("--port", 1194)]
        for host, command in ((relay, server), (client, user)):
            process = self.run(host, "daemon", command)
            wait_for(process.name, lambda: "Initialization Sequence Completed" in process.text() or not process.alive(), 30)


class WireGuard(Peer):
    # As `go install` calls it, or as Debian does, whose version is years older.
    program, device = "wireguard" if shutil.which("wireguard") else "wireguard-go", "wg0"

    def begin(self, relay, client):
        keys = {host.name: wireguard_key() for host in (relay, client)}
        for host, peer, address, more in (
                (relay, client, "10.78.0.1/16", ["listen_port=51820"]), (client, relay, "10.78.1.1/16", [])):
            process = self.run(host, "daemon", ["unshare", "--mount", "--propagation", "private", "sh", "-euc", OWN_RUN, "sh", self.program, "-f", self.device])
            place = pathlib.Path(f"/proc/{process.child.pid}/root/run/wireguard/{self.device}.sock")
            wait_for(process.name, lambda: place.exists() or not process.alive())
            allowed = ["10.78.1.1/32"] if host is relay else ["10.78.0.1/32", f"{self.lab.target.v4}/32"]
            endpoint = [] if host is relay else [f"endpoint={relay.v4}:51820"]
            lines = ["set=1", f"private_key={keys[host.name][0]}", *more, f"public_key={keys[peer.name][1]}", *endpoint, *(f"allowed_ip={a}" for a in allowed)]
            with socket.socket(socket.AF_UNIX) as s:
                s.connect(str(place))
                s.sendall("\n".join(lines).encode() + b"\n\n")
                if b"errno=0" not in s.recv(1000):
                    raise RuntimeError("wireguard does not take its configuration")
            for words in (["address", "add", address, "dev", self.device], ["link", "set", self.device, "mtu", 1420, "up"]):
                host.call("ip", *words)


def wireguard_key():
    """(private, public), in hexadecimal."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
    key = X25519PrivateKey.generate()
    raw = serialization.Encoding.Raw
    return (key.private_bytes(raw, serialization.PrivateFormat.Raw, serialization.NoEncryption()).hex(),
            key.public_key().public_bytes(raw, serialization.PublicFormat.Raw).hex())


def fingerprint(cert):
    import ssl
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(pathlib.Path(cert).read_text())).digest().hex(":").upper()


def subject(lab, name):
    kind = {"native": Native, "openvpn": OpenVpn, "wireguard-go": WireGuard}.get(name, Up)
    return kind(lab, name)


# --- measures --------------------------------------------------------------------------------------------------------------------------------


def cpu_seconds(pid):
    """User and system time of a process's threads; ended threads count by ticks."""
    fine = sum(int((thread / "schedstat").read_text().split()[0]) for thread in pathlib.Path(f"/proc/{pid}/task").iterdir()) / 1e9
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return max(fine, (int(fields[11]) + int(fields[12])) / 100)


def status_of(pid, field):
    text = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in text.splitlines() if line.startswith(field + ":")).split()[1])


def wake_ups(pid):
    """How often its threads have slept and woken."""
    text = [(thread / "status").read_text() for thread in pathlib.Path(f"/proc/{pid}/task").iterdir()]
    return sum(int(line.split()[1]) for one in text for line in one.splitlines() if line.startswith("voluntary_ctxt_switches"))


def energy_joules():
    """What the processor packages have used, where the machine tells."""
    files = list(pathlib.Path("/sys/class/powercap").glob("intel-rapl:?/energy_uj"))
    with contextlib.suppress(OSError):
        return sum(int(f.read_text()) for f in files) / 1e6 if files else None
    return None


def goodput(subject, options):
    """One line for each direction and number of streams."""
    lab = subject.lab
    for way in options.ways:
        for streams in options.streams:
            words = ["iperf3", "-c", lab.target.v4, "-p", IPERF, "-t", options.seconds, "-P", streams, "-J", *(["-R"] if way == "down" else [])]
            for _ in range(3):  # its server takes one test at a time, and some time to see the end of the last one
                time.sleep(0.5)
                before, energy = {who: cpu_seconds(pid) for who, pid in subject.pids()}, energy_joules()
                result = json.loads(lab.client.call(*words, timeout=options.seconds + 60).stdout or "{}")
                total = result.get("end", {}).get("sum_received", {})
                if total.get("bytes"):
                    break
            if not total.get("bytes"):
                raise RuntimeError(f"iperf3: {result.get('error', 'nothing came')}")
            gb = total["bytes"] / 1e9
            spent = {who: round((cpu_seconds(pid) - before[who]) / gb, 3) for who, pid in subject.pids()}
            line = {"case": f"{way}load", "streams": streams, "goodput_bps": total["bits_per_second"], "cpu_s_per_gb": spent, "cpu_s_per_gb:all": sum(spent.values())}
            if energy is not None:
                line["joules_per_gb"] = (energy_joules() - energy) / gb
            yield line


def trips(subject, _):
    for kind, port in (("tcp", FLOWS), ("udp", 7)):
        got = subject.lab.client.program("trips", kind, subject.lab.target.v4, port, 3000)
        yield {"case": f"trip-{kind}", "median_ms": got.get("median_ms"), "p10_ms": got.get("p10_ms"), "p90_ms": got.get("p90_ms")}


def memory(subject, _, flows=10_000):
    """Resident memory of the client's process before, with so many flows open, and after."""
    pids = [pid for who, pid in subject.pids() if who == "client"]
    if not pids:
        return
    before = status_of(pids[0], "VmRSS")
    process = subject.run(subject.lab.client, "hold", [sys.executable, PROGRAMS, "hold", subject.lab.target.v4, FLOWS, flows, 4])
    wait_for("flows", lambda: process.lines() or not process.alive(), 180)
    at = status_of(pids[0], "VmRSS")
    process.child.wait(120)
    subject.processes.remove(process)
    held, answered = (process.lines() + [{}, {}])[:2]
    time.sleep(2)
    yield {"case": "memory", "flows": held.get("count"), "failed": held.get("failed"), "answered": answered.get("count"), "opened_per_s": held.get("count", 0) / held.get("seconds", 1),
           "before_mb": before / 1000, "with_flows_mb": at / 1000, "after_mb": status_of(pids[0], "VmRSS") / 1000, "peak_mb": status_of(pids[0], "VmHWM") / 1000}


def arrive(subject, _):
    """1,000 new flows a second for five seconds."""
    got = subject.lab.client.program("arrive", subject.lab.target.v4, FLOWS, 1000, 5)
    yield {"case": "arrive", **{key: got.get(key) for key in ("count", "failed", "rate", "median_ms", "p99_ms")}}


def questions(subject, _):
    """1,000 new UDP flows a second for twenty seconds, which is more than the device's table holds."""
    got = subject.lab.client.program("questions", subject.lab.target.v4, 7, 1000, 20)
    yield {"case": "questions", **{key: got.get(key) for key in ("count", "dropped", "rate", "median_ms", "p99_ms")}}


def idle(subject, _, seconds=100):
    """Wake-ups of the client's process when nobody wants anything."""
    pids = [pid for who, pid in subject.pids() if who == "client"]
    if not pids:
        return
    time.sleep(5)
    before, spent = wake_ups(pids[0]), cpu_seconds(pids[0])
    time.sleep(seconds)
    yield {"case": "idle", "wake_ups_per_s": (wake_ups(pids[0]) - before) / seconds, "cpu_ms_per_s": 1000 * (cpu_seconds(pids[0]) - spent) / seconds}


# --- one run ---------------------------------------------------------------------------------------------------------------------------------


def arguments():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words = lambda text: text.split(",")  # noqa: E731
    p.add_argument("--seconds", type=int, default=5)
    p.add_argument("--repetitions", type=int, default=3)
    p.add_argument("--streams", type=lambda text: [int(n) for n in text.split(",")], default=[1, 4])
    p.add_argument("--ways", type=words, default=["down", "up"])
    p.add_argument("--subjects", type=words, default=["native", "hoplite-0", "hoplite-1", "hoplite-2", "hoplite-3", "wireguard-go", "openvpn"])
    p.add_argument("--only", type=words, default=CASES)
    p.add_argument("--json", action="store_true", help="one object a line, each measurement by itself")
    return p.parse_args()


def measure(lab, options):
    """Every measurement: (subject, line)."""
    for repetition in range(options.repetitions):
        for name in options.subjects:
            one = subject(lab, name)
            if why := one.why_not():
                if repetition == 0:
                    print(f"skip {name}: {why}", file=sys.stderr)
                continue
            try:
                one.start()
                for case in options.only:
                    for line in globals()[case](one, options):
                        yield name, line
            except Exception as e:  # noqa: BLE001: the others go on
                print(f"FAIL {name}: {type(e).__name__}: {e}", file=sys.stderr)
            finally:
                one.stop()


def summary(rows):
    """Medians over the repetitions, lowest and highest in brackets, one line for each case and subject."""
    cases = list(dict.fromkeys((line["case"], line.get("streams")) for _, line in rows))
    for case, streams in cases:
        print(f"\n{case}" + (f", {streams} stream{'s' * (streams > 1)}" if streams else ""))
        for name in dict.fromkeys(name for name, _ in rows):
            lines = [line for n, line in rows if n == name and (line["case"], line.get("streams")) == (case, streams)]
            if lines:
                print(f"  {name:13}" + "  ".join(told(key, [line.get(key) for line in lines]) for key in lines[0] if key not in ("case", "streams")))


def told(key, values):
    if isinstance(values[0], dict):
        return f"{key} " + " + ".join(f"{who} {statistics.median(v.get(who, 0) for v in values):.2f}" for who in values[0])
    numbers = [v for v in values if isinstance(v, (int, float))]
    if not numbers:
        return f"{key} -"
    scale, key = (1e9, "Gbit/s") if key == "goodput_bps" else (1, key)
    low, middle, high = (f"{f(numbers) / scale:.5g}" for f in (min, statistics.median, max))
    return f"{key} {middle}" + (f" ({low}–{high})" if len(numbers) > 1 else "")


def main():
    options = arguments()
    if why := usable():
        sys.exit(f"device_bench: {why}")
    if not shutil.which("iperf3"):
        sys.exit("device_bench: iperf3 is not installed: apt-get install iperf3")
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    if "release" not in str(HOPLITE):
        print("device_bench: this is no release build, its figures mean little: cargo build --release", file=sys.stderr)
    rows = []
    with DeviceLab() as lab:
        lab.start_targets()
        lab.target.run("flow-server", [sys.executable, PROGRAMS, "flow-server", lab.target.v4, FLOWS])
        lab.target.run("iperf3", ["iperf3", "-s", "-p", IPERF])
        lab.target.call("sysctl", "-qw", "net.ipv4.ip_local_port_range=2000 65000", "net.core.somaxconn=8192")
        lab.client.call("sysctl", "-qw", "net.ipv4.ip_local_port_range=2000 65000")
        for relay in lab.relays:
            relay.call("sysctl", "-qw", "net.ipv4.ip_local_port_range=2000 65000")
            lab.start_relay(relay)
        for name, line in measure(lab, options):
            rows.append((name, line))
            if options.json:
                print(json.dumps({"subject": name, **line}), flush=True)
            else:
                print(f"{name}: {line['case']}", file=sys.stderr, flush=True)
    if not options.json:
        summary(rows)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    main()
