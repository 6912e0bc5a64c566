"""The lab held against other people's instruments: ping and iperf3 through its links, distributions from its captures, a competitor by TOML
alone, an egress that changes and the servers that follow it, campaigns killed and resumed, a user who is not root, the report in a real browser.
Needs no root, but is more exact with it."""

import collections
import csv
import json
import math
import os
import pathlib
import random
import re
import shutil
import signal
import sqlite3
import statistics
import struct
import subprocess
import time

from common import Checks, HERE, HOPLITE, Missing

LAB = pathlib.Path(os.environ.get("HOPLITE_LAB", HOPLITE.parent / "hoplite-lab")).resolve()

# For any machine: what is tried here is that the lab works.
GATE = """
[gate]
late_share = "100%"
late_us_max = 1000000
steal = "100%"
cpu_pressure = 1
"""


class Scratch:
    """A directory for scenarios, subjects and results; kept on failure."""

    def __init__(self):
        import tempfile
        self.path = pathlib.Path(tempfile.mkdtemp(prefix="hoplite-lab-"))
        (self.path / "subjects").mkdir()

    def scenario(self, name, text):
        path = self.path / f"{name}.toml"
        path.write_text(f'name = "{name}"\nsummary = "a test"\n{text}{GATE}')
        return path

    def subject(self, name, text):
        (self.path / "subjects" / f"{name}.toml").write_text(f'name = "{name}"\nsummary = "a test"\n{text}')

    def run(self, scenario, *more, check=True, timeout=300):
        out = self.path / f"out-{scenario.stem}"
        done = subprocess.run([LAB, "run", scenario, "--out", out, "--json", *more], capture_output=True, text=True, timeout=timeout)
        if check and done.returncode:
            raise AssertionError(f"run {scenario.name}: exit {done.returncode}: {done.stderr[-2000:]}")
        return out

    def report(self, out):
        done = subprocess.run([LAB, "report", out, "--json"], capture_output=True, text=True, timeout=120)
        if done.returncode:
            raise AssertionError(f"report: exit {done.returncode}: {done.stderr[-2000:]}")
        return [json.loads(line) for line in done.stdout.splitlines()]


def two_hosts(link, more="", link_more=""):
    return f"""
repetitions = 1
seed = 7
timeout = "90s"
{more}
[[host]]
name = "client"
[[host]]
name = "server"
[[link]]
ends = ["client", "server"]
name = "wire"
{link}
{link_more}
"""


def logs(out):
    """step -> what it wrote to stdout, of every kept attempt of a campaign."""
    return {path.stem: path.read_text(errors="replace") for path in out.rglob("logs/*.out")}


def packets(path):
    """(seconds, ip packet) of a nanosecond capture of raw IP."""
    data = path.read_bytes()
    magic, = struct.unpack_from("<I", data)
    assert magic == 0xA1B23C4D, hex(magic)
    at = 24
    while at + 16 <= len(data):
        seconds, nanos, kept, _ = struct.unpack_from("<IIII", data, at)
        yield seconds + nanos / 1e9, data[at + 16:at + 16 + kept]
        at += 16 + kept


def numbered(path, sender):
    """The datagrams from `sender` in a capture by their content (a datagram of the rate workload is unlike every other): key -> [times]."""
    seen = collections.OrderedDict()
    for when, packet in packets(path):
        if packet[0] >> 4 == 4 and packet[9] == 17 and packet[12:16] == sender:
            seen.setdefault(packet[20:], []).append(when)
    return seen


def talker(path):
    """The IPv4 address that sent most of a capture's packets."""
    (address, _), = collections.Counter(packet[12:16] for _, packet in packets(path) if packet[0] >> 4 == 4).most_common(1)
    return address


# --- other people's instruments through a link -------------------------------------------------------------------------------------------


def instruments(scratch, checks):
    """ping and iperf3 are subjects here: steps of a TOML file, nothing else."""
    for tool in ("ping", "iperf3"):
        if not shutil.which(tool):
            return checks.skip("ping and iperf3 through a link", Missing(f"{tool} is not installed"))
    scratch.subject("instruments", """
[[step]]
name = "ping"
host = "client"
command = ["ping", "-n", "-i", "0.02", "-c", "300", "{ip:server}"]
run = "once"
ready_within = "60s"
[[step]]
name = "ping6"
host = "client"
command = ["ping", "-6", "-n", "-i", "0.02", "-c", "50", "-t", "9", "{ip6:server}"]
run = "once"
ready_within = "60s"
[[step]]
name = "iperf-server"
host = "server"
command = ["iperf3", "-s", "--forceflush"]
ready = [{ log = "listening" }]
[[step]]
name = "iperf"
host = "client"
command = ["iperf3", "-c", "{ip:server}", "-t", "8", "-O", "2", "-J"]
run = "once"
ready_within = "60s"
""")
    scenario = scratch.scenario("instruments", two_hosts(
        'rate = "10Mbit"\ndelay = "10ms"\nqueue = "100kB"', """
[keep]
logs = true
[[subject]]
use = "instruments"
[[workload]]
name = "download"
kind = "download"
from = "client"
to = "server"
bytes = "10kB"
"""))
    found = logs(scratch.run(scenario))
    times = [float(t) for t in re.findall(r"ttl=64 time=([\d.]+) ms", found["ping"])]
    middle = statistics.median(times) if times else 0
    print(f"     ping: n = {len(times)}, median {middle:.2f} ms, p99 {sorted(times)[int(len(times) * 0.99) - 1] if times else 0:.2f} ms of 20")
    checks.check("ping sees every answer with its TTL kept", len(times) == 300, f"{len(times)} of 300")
    checks.check("ping never sees less than the nominal round trip, and not much more", times and min(times) >= 19.99 and middle < 25, f"{middle} ms")
    checks.check("ping sees IPv6", found["ping6"].count("bytes from") == 50, found["ping6"][-300:])
    sent = json.loads(found["iperf"])
    rate, asked = sent["end"]["sum_received"]["bits_per_second"], 10e6 * 1448 / 1500
    print(f"     iperf3: {rate / 1e6:.3f} Mbit/s of {asked / 1e6:.3f}, {sent['end']['sum_sent']['retransmits']} retransmissions")
    checks.check("iperf3 sees the rate that the link allows", 0.97 * asked < rate < 1.01 * asked, f"{rate} of {asked}")
    checks.check("the bottleneck's drops are retransmissions to TCP", sent["end"]["sum_sent"]["retransmits"] > 0)


# --- distributions, from the captures ----------------------------------------------------------------------------------------------------


def flow(scratch, name, link):
    """20,000 datagrams through `link`: their delays in order of sending (None: lost), and the order in which they came."""
    scenario = scratch.scenario(name, two_hosts(link, """
[keep]
pcap = ["wire"]
snaplen = 300
[[subject]]
use = "native"
[[workload]]
name = "rate"
kind = "udp-rate"
from = "client"
to = "server"
size = 200
rate = "3.2Mbit"
time = "10s"
"""))
    out = scratch.run(scenario)
    near, = [p for p in out.rglob("wire.pcap")]
    far, = [p for p in out.rglob("wire.far.pcap")]
    sender = talker(near)  # the server's report of what it received goes the other way
    left, came = numbered(near, sender), numbered(far, sender)
    left = {key: times[0] for key, times in left.items() if len(key) > 150}
    delays = [came[key][0] - when if key in came else None for key, when in left.items()]
    order = [key for key in came if key in left]
    place = {key: i for i, key in enumerate(left)}
    return delays, [place[key] for key in order]


def kolmogorov(values, width):
    """The largest distance between the values' distribution and the even one on 0..width."""
    values = sorted(values)
    return max(abs((i + 1) / len(values) - min(max(v / width, 0), 1)) for i, v in enumerate(values))


def overtaken(order):
    """How many came after a later one."""
    highest, count = -1, 0
    for place in order:
        count, highest = count + (place < highest), max(place, highest)
    return count


def distributions(scratch, checks):
    delays, order = flow(scratch, "jitter-reordering", 'delay = "5ms"\njitter = { width = "10ms", shape = "uniform", reorder = true }')
    extra = [d - 0.005 for d in delays if d is not None]
    distance = kolmogorov(extra, 0.010)
    print(f"     uniform jitter: n = {len(extra)}, distance {distance:.4f}, {overtaken(order)} overtaken")
    checks.check("jitter follows its distribution", len(extra) > 15000 and distance < 0.03, distance)
    checks.check("with reordering packets overtake each other", overtaken(order) > len(order) / 10)
    delays, order = flow(scratch, "jitter-in-order", 'delay = "5ms"\njitter = { width = "10ms", shape = "uniform", reorder = false }')
    checks.check("without reordering none does", overtaken(order) == 0, overtaken(order))
    checks.check("no packet is earlier than its link allows", min(d for d in delays if d is not None) >= 0.005 - 1e-6, min(d for d in delays if d is not None))  # floating seconds
    delays, _ = flow(scratch, "gilbert-elliott", 'loss = { p = "1%", r = "25%", good = 0, bad = 1 }')
    gilbert(checks, [d is None for d in delays])


def gilbert(checks, lost):
    """Bursts are geometric with mean 1/r = 4, gaps with mean 1/p = 100."""
    share, bursts = sum(lost) / len(lost), []
    for previous, here in zip([False] + lost, lost):
        if here and not previous:
            bursts.append(0)
        if here:
            bursts[-1] += 1
    mean = sum(bursts) / max(1, len(bursts))
    print(f"     Gilbert-Elliott: {share:.4f} lost of 0.0385, bursts of {mean:.2f} of 4, n = {len(bursts)} bursts")
    # Four standard errors of so many geometric bursts.
    checks.check("bursts are as long as r says", abs(mean - 4) < 4 * math.sqrt(12 / max(1, len(bursts))), mean)
    checks.check("bursts are as frequent as p says", abs(len(bursts) - len(lost) * 0.0385 / 4) < 4 * math.sqrt(len(lost) * 0.0385 / 4), len(bursts))


# --- a competitor by TOML alone ----------------------------------------------------------------------------------------------------------


def competitor(scratch, checks):
    """The example of docs/scenarios.md, run."""
    if not shutil.which("ss-server"):
        return checks.skip("a competitor by TOML alone", Missing("shadowsocks-libev is not installed"))
    shutil.copy(HERE.parent / "examples/lab/shadowsocks.toml", scratch.path / "subjects/shadowsocks.toml")
    scenario = scratch.scenario("competitor", """
repetitions = 2
seed = 3
baseline = "native"
[[host]]
name = "client"
[[host]]
name = "relay1"
[[host]]
name = "server"
[[router]]
name = "core"
[[link]]
ends = ["client", "core"]
delay = "5ms"
[[link]]
ends = ["relay1", "core"]
delay = "5ms"
[[link]]
ends = ["server", "core"]
delay = "5ms"
[[subject]]
use = "native"
[[subject]]
use = "shadowsocks"
[[workload]]
name = "download"
kind = "download"
from = "client"
to = "server"
bytes = "200kB"
[[workload]]
name = "echo"
kind = "udp-echo"
from = "client"
to = "server"
size = 100
count = 20
interval = "20ms"
""")
    rows = scratch.report(scratch.run(scenario))
    rows = {(row["subject"], row.get("workload"), row["metric"]): row for row in rows if "median" in row}
    times = {subject: rows[subject, "download", "ttlb_s"] for subject in ("native", "shadowsocks")}
    checks.check("both downloaded in both repetitions", all(row["n"] == 2 for row in times.values()), times)
    checks.check("a proxy costs time to the first byte", times["shadowsocks"]["median"] > times["native"]["median"], times)
    checks.check("its datagrams came back", rows["shadowsocks", "echo", "loss_share"]["median"] == 0, rows)


# --- killed and resumed ------------------------------------------------------------------------------------------------------------------

SMALL = """
repetitions = 20
seed = 5
[[host]]
name = "client"
[[host]]
name = "server"
[[link]]
ends = ["client", "server"]
delay = "1ms"
[matrix]
size = ["1kB", "5kB"]
[[subject]]
use = "native"
[[workload]]
name = "download"
kind = "download"
from = "client"
to = "server"
bytes = "{size}"
"""


def left_behind():
    """Processes of the lab that nobody waits for any more."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and "__world" in (entry / "cmdline").read_text() and str(LAB) in os.readlink(entry / "exe"):
                found.append(entry.name)
        except OSError:
            continue
    return found


def resumed(scratch, checks):
    scenario, out, kills = scratch.scenario("killed", SMALL), scratch.path / "out-killed", 0
    chance = random.Random(11)
    for _ in range(10):
        running = subprocess.Popen([LAB, "run", scenario, "--out", out, "--json"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            running.wait(chance.uniform(0.05, 1.2))
        except subprocess.TimeoutExpired:
            running.send_signal(signal.SIGKILL)
            kills += 1
        running.wait()
    deadline = time.monotonic() + 5
    while left_behind() and time.monotonic() < deadline:
        time.sleep(0.1)
    checks.check("nothing lives on after SIGKILL", not left_behind(), left_behind())
    scratch.run(scenario)
    database = sqlite3.connect(f"file:{out}/results.sqlite?mode=ro", uri=True)
    verdicts = collections.Counter(v for v, in database.execute("select verdict from run"))
    print(f"     killed {kills} times; {dict(verdicts)}")
    checks.check("killed at random and resumed: 40 repetitions, none lost, none doubled", sum(verdicts.values()) == 40 and kills > 0, verdicts)
    samples = list((out / "samples").glob("*.parquet"))
    checks.check("each has its samples", len(samples) == 40, len(samples))
    rows = [row for row in scratch.report(out) if row.get("metric") == "ttlb_s" and "median" in row]
    checks.check("the report counts each once", [row["n"] for row in rows] == [20, 20], rows)
    refused = subprocess.run([LAB, "run", scenario, "--out", out, "--seed", "6"], capture_output=True, text=True)
    checks.check("another seed is refused in the same directory", refused.returncode != 0 and "seed" in refused.stderr, refused.stderr)
    return out


# --- a relay whose egress changes ---------------------------------------------------------------------------------------------------------

# What `private-relay` draws, at rates that any machine holds: the second repetition leaves by a place with a server and a node of its own, and little
# bandwidth; without a relay the way to the node that is nearest is narrow.
SITES = """
repetitions = 2
timeout = "90s"
baseline = "native"
[matrix]
udp = ["passes", "blocked"]
[rotation]
egress = ["relay2", "relay3"]
[[host]]
name = "client"
[[host]]
name = "relay{i}"
repeat = 3
[[host]]
name = "server{i + 1}"
repeat = 2
[[host]]
name = "node{i}"
repeat = 2
[[router]]
name = "core"
[[router]]
name = "place"
[[link]]
name = "access"
ends = ["client", "core"]
rate = "20Mbit"
delay = "2ms"
queue = "100kB"
udp = "{udp == 'passes'}"
[[link]]
ends = ["core", "place"]
delay = "5ms"
[[link]]
ends = ["relay{i}", "core"]
repeat = 2
delay = "1ms"
[[link]]
ends = ["relay3", "place"]
rate = "6Mbit"
queue = "100kB"
[[link]]
ends = ["server2", "core"]
[[link]]
ends = ["server3", "place"]
[[link]]
name = "narrow"
ends = ["node1", "core"]
rate = "2Mbit"
delay = "2ms"
queue = "50kB"
[[link]]
ends = ["node2", "place"]
[[subject]]
use = "native"
[[subject]]
use = "hoplite"
label = "hoplite-2"
with = { hops = 2, relays = 3, paths = [["relay1", "{egress}"]] }
[[workload]]
name = "speed"
kind = "download"
to = ["server2", "server3"]
bytes = "2MB"
connections = 3
[[workload]]
name = "bulk"
kind = "download"
to = ["node1", "node2"]
bytes = "500kB"
group = "2"
"""


def sites(scratch, checks):
    out = scratch.run(scratch.scenario("sites", SITES), timeout=900)
    rows = [row for row in scratch.report(out) if "p95" in row and row["workload"]]

    def values(metric, subject, workload):
        return {row["case"]["udp"]: row["mean"] if row["statistic"] == "mean" else row["median"]
                for row in rows if (row["metric"], row["subject"], row["workload"]) == (metric, subject, workload)}
    by = {egress: values(f"goodput_bps:{egress}", "hoplite-2", "speed") for egress in ("relay2", "relay3")}
    print(f"     by egress, in bit/s: {by}")
    checks.check("a speed test's figures are there by egress, the narrow one's below its rate, the other's above",
                 all(by["relay3"].get(udp, 9e9) < 6e6 < by["relay2"].get(udp, 0) for udp in ("passes", "blocked")), by)
    checks.check("native has no egress to be told apart by", not values("goodput_bps:client", "native", "speed"))
    shares = {subject: [values(f"served_share:server{i}", subject, "speed").get("passes") for i in (2, 3)] for subject in ("native", "hoplite-2")}
    checks.check("its server is near the client without a relay, and near the egress of each repetition with it",
                 shares == {"native": [1, 0], "hoplite-2": [0.5, 0.5]}, shares)
    told = {(row["organization"], row["sponsor"]) for row in csv.DictReader((out / "export/speedtest.csv").open())}
    checks.check("each line of the export has egress and server",
                 told == {("native", "server2"), ("hoplite-2 by relay2", "server2"), ("hoplite-2 by relay3", "server3")}, told)
    bulk = {subject: values("goodput_bps", subject, "bulk") for subject in ("native", "hoplite-2")}
    print(f"     bulk, in bit/s: {bulk}")
    checks.check("the native route is narrow", all(0 < rate < 2e6 for rate in bulk["native"].values()), bulk)
    served = {values(f"served_share:node{i}", "hoplite-2", "bulk").get("passes") for i in (1, 2)}
    checks.check("half of what goes by a relay takes the other one, and is faster than any on it", served == {0.5}
                 and values("goodput_bps:relay3", "hoplite-2", "bulk").get("passes", 0) > 2e6, (served, bulk))
    database = sqlite3.connect(f"file:{out}/results.sqlite?mode=ro", uri=True)
    dropped = collections.Counter()
    for case, subject, drops in database.execute("select parameters, subject, drops from run join link on run.id = link.run where name = 'access>'"):
        dropped[json.loads(case)["udp"], subject] += json.loads(drops).get("udp", 0)
    print(f"     packets of UDP that were dropped: {dict(dropped)}")
    checks.check("where UDP is blocked a client tries it, and does without",
                 dropped["blocked", "hoplite-2"] > 0 and sum(dropped.values()) == dropped["blocked", "hoplite-2"], dropped)
    checks.check("and nothing failed", verdicts(out) == {"ok": 8}, verdicts(out))
    figures = [path.name for path in (out / "figures").glob("ecdf-by-egress-*.svg")]
    checks.check("distributions are drawn by egress", any("goodput-speed" in name for name in figures), figures)


# --- a user who is not root --------------------------------------------------------------------------------------------------------------

# In a mount namespace of one's own: /dev/net/tun with the mode $1, then the rest of the command line.
DEVICE = """
mode=$1; shift
mount -t tmpfs -o mode=755 none "$PLACE/dev"
mknod -m "$mode" "$PLACE/dev/tun" c 10 200
mount --bind "$PLACE/dev/tun" /dev/net/tun
"""
# A small disk, a campaign that fills it; room, and the same campaign again. Its results are copied to where they can be seen.
FULL = DEVICE + """
mount -t tmpfs -o size=34m,mode=777 none "$PLACE/disk"
for size in 34m 200m; do
  mount -o "remount,size=$size" "$PLACE/disk"
  "$@" >"$PLACE/$size.out" 2>"$PLACE/$size.err" || echo "exit $?" >>"$PLACE/$size.err"
done
cp -r "$PLACE/disk/out" "$PLACE/copy"
"""


class Nobody:
    """A user without any right, with binaries and a directory of his own. Nothing of the machine is changed for him."""

    def __init__(self, scratch):
        scratch.path.chmod(0o755)
        self.path = scratch.path / "nobody"
        for part in ("dev", "disk", "home"):
            (self.path / part).mkdir(parents=True)
        for program in (LAB, HOPLITE):
            shutil.copy(program, self.path / program.name)
        self.path.chmod(0o755)
        (self.path / "home").chmod(0o777)
        self.lab = self.path / LAB.name

    def why_not(self):
        """Why he cannot be had here."""
        if os.geteuid() != 0:
            return "it takes root to make a device that a test may forbid"
        done = self.call("666", "true", script=DEVICE + 'exec "$@"')
        return done.returncode and f"no mount namespace with a device in it, or no such user: {done.stderr.strip()}"

    def start(self, mode, *command, script=DEVICE + 'exec "$@"', **how):
        user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all"]
        environment = {**os.environ, "PLACE": str(self.path), "HOME": str(self.path / "home")}
        return subprocess.Popen(["unshare", "-m", "sh", "-euc", script, "sh", mode, *user, *command], env=environment, text=True,
                                cwd=self.path / "home", stdout=subprocess.PIPE, stderr=subprocess.PIPE, **how)

    def call(self, mode, *command, **how):
        running = self.start(mode, *command, **how)
        out, err = running.communicate(timeout=180)
        return subprocess.CompletedProcess(command, running.returncode, out, err)


def verdicts(out):
    database = sqlite3.connect(f"file:{out}/results.sqlite?mode=ro&immutable=1", uri=True)
    return collections.Counter(v for v, in database.execute("select verdict from run"))


def unprivileged(scratch, checks):
    nobody = Nobody(scratch)
    if why := nobody.why_not():
        return checks.skip("a user who is not root", why)
    told(nobody, checks)
    smoke(scratch, nobody, checks)
    full(scratch, nobody, checks)


def told(nobody, checks):
    for command in (["doctor"], ["run", "smoke", "--out", nobody.path / "home/none"]):
        done = nobody.call("600", nobody.lab, *command)
        last = done.stderr.strip().splitlines()[-1:]
        checks.check(f"{command[0]} names the device that only root may open, and the command that opens it",
                     done.returncode == 1 and last and "TUN" in last[0].upper() and "chmod 666 /dev/net/tun" in last[0], done.stderr)


def smoke(scratch, nobody, checks):
    """The scenario that the README tells users to run."""
    scenario = scratch.path / "smoke.toml"
    scenario.write_text((HERE.parent / "scenarios/smoke.toml").read_text())
    scenario.chmod(0o644)
    out = nobody.path / "home/out"
    command = ["666", nobody.lab, "run", scenario, "--repetitions", "1", "--out", out, "--json"]
    running = nobody.start(*command)
    first = json.loads(running.stdout.readline())
    second = nobody.call(*command)
    said, wrong = running.communicate(timeout=180)
    checks.check("a second run in the same directory is refused",
                 second.returncode == 1 and f"another run is writing there (pid {running.pid})" in second.stderr, second.stderr)
    checks.check("it leaves the first one alone", first["event"] == "start" and running.returncode == 0, wrong)
    done = json.loads(said.splitlines()[-1])
    checks.check("a user without rights gets every repetition, and a report", done.get("ok") == 4 and (out / "report.html").stat().st_size > 10000, said)
    rows = nobody.call("666", nobody.lab, "report", out, "--json")
    checks.check("he can write it again", rows.returncode == 0 and '"hoplite-3"' in rows.stdout, rows.stderr)


def full(scratch, nobody, checks):
    scenario = scratch.scenario("full", two_hosts('delay = "1ms"', """
[keep]
pcap = ["wire"]
snaplen = 65535
[[subject]]
use = "native"
[[workload]]
name = "download"
kind = "download"
from = "client"
to = "server"
bytes = "8MB"
""").replace("repetitions = 1", "repetitions = 4"))
    scenario.chmod(0o644)
    done = nobody.call("666", nobody.lab, "run", scenario, "--out", nobody.path / "disk/out", "--json", script=FULL)
    if not checks.check("a campaign on a small disk comes back", done.returncode == 0, done.stderr):
        return
    events = [[json.loads(line) for line in (nobody.path / f"{size}.out").read_text().splitlines()] for size in ("34m", "200m")]
    over = [[event["id"] for event in each if event["event"] == "run"] for each in events]
    said = (nobody.path / "34m.err").read_text()
    print(f"     {len(over[0])} of 4 repetitions fit on the disk: {said.splitlines()[-2:]}")
    checks.check("a full disk is told with what to do", "free some space and run the same command again" in said and "exit 1" in said, said)
    checks.check("given room it goes on where it was", over[0] and sorted(set(over[0] + over[1])) == sorted(over[0] + over[1]) and len(over[0] + over[1]) == 4, over)
    checks.check("and nothing is lost", verdicts(nobody.path / "copy") == {"ok": 4}, (verdicts(nobody.path / "copy"), (nobody.path / "200m.err").read_text()))


# --- the report in a browser -------------------------------------------------------------------------------------------------------------


def browser(scratch, checks, out):
    import firefox
    from common import Authority
    if not firefox.BINARY or not shutil.which("certutil"):
        return checks.skip("the report in a browser", Missing("no Firefox"))
    page = out / "report.html"
    authority = Authority(scratch.path / "ca")
    with firefox.Firefox(scratch.path, authority.ca) as window:
        window.go(page.as_uri())
        title = window.script("return document.title")
        checks.check("Firefox opens the page from the file", bool(title), title)
        svgs = window.script("return [...document.querySelectorAll('svg')].map(s => s.getBoundingClientRect().width)")
        checks.check("figures are drawn", svgs and all(width > 50 for width in svgs), svgs)
        asked = window.script("return performance.getEntriesByType('resource').map(e => e.name)")
        checks.check("it asks nobody for anything", not asked, asked)
        wide = window.script("return document.documentElement.scrollWidth <= window.innerWidth + 1")
        checks.check("it does not scroll sideways", wide)
    for kind in ("svg", "png"):
        figures = list((out / "figures").glob(f"*.{kind}"))
        checks.check(f"each figure is a {kind} file too", figures and all(f.stat().st_size > 500 for f in figures), figures)


def main():
    checks = Checks("the lab")
    if not LAB.exists():
        checks.check(f"{LAB} is built", False)
        checks.done()
    scratch = Scratch()
    print(f"     results in {scratch.path}")
    for part in (instruments, distributions, competitor, sites, unprivileged):
        checks.attempt(part.__name__, lambda: part(scratch, checks))
    out = None

    def killed():
        nonlocal out
        out = resumed(scratch, checks)
    checks.attempt("resumed", killed)
    if out:
        checks.attempt("browser", lambda: browser(scratch, checks, out))
    if not checks.failed:
        shutil.rmtree(scratch.path, ignore_errors=True)
    checks.done()


if __name__ == "__main__":
    main()
