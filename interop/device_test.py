"""The whole device over `hoplite up`: real programs that know nothing of it, and a capture on the uplink in every state.

A device with one uplink, three relays and a target in network namespaces. `programs.py chatter` talks all the time by every way that a program may
choose (bound to the uplink, from its address, multicast, raw IP, fragments), and the target pokes the device; in no state may a frame leave that is not
for the first relay. Needs root; says so and passes when it is not. usage: device_test.py [PART...], of PARTS (all, without arguments) and LONG below.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

from common import HOPLITE, Checks, Missing, sha256, wait_for
from device import NAME, PROGRAMS, DeviceLab, Watch, describe, strangers, usable
from device_apart import apart
from device_browser import browser
from device_circuits import circuits
from device_modes import modes, sleep
from device_storms import storms
from netns import RELAY_PORT, Capture, packets
from servers import payload

FLOWS = int(os.environ.get("HOPLITE_DEVICE_FLOWS", 1000))
FLOW_PORT, GIT_PORT, SSH_PORT, IPERF_PORT = 7001, 7002, 7003, 7004
SMALL, SIZE = 100_000, 3_000_000
POOLS = ("198.18.", "198.19.", "fd68:6f70:6c69:7465:")


class Session:
    """The lab, its capture, and what the parts ask of them."""

    def __init__(self, checks, lab):
        self.checks, self.lab, self.device, self.target = checks, lab, lab.client, lab.target
        self.names = ("target.test", "target6.test")
        self.watch = None

    def state(self, name, but=()):
        """Ends a state: all that left the device in it was for the first relay (or for addresses that it may use), and did not name a target."""
        frames = self.watch.outgoing()
        wrong = {what: count for what, count in strangers(frames, self.lab.relays[0].v4).items() if what[1] not in but}
        others = f" or {', '.join(but)}" if but else ""
        self.checks.check(f"{name}: of {len(frames)} frames that left, none is for anybody but the first relay{others}", not wrong, dict(list(wrong.items())[:12]))
        self.checks.check(f"{name}: no frame names a target", but or not any(b"target" in f for f in frames))

    def seen_as(self, url, *prefix):
        """The address that a target sees; None when it is not reached."""
        words = ["curl", "-sS", "--max-time", "5", f"{url}/peer"]
        return self.device.call(*prefix, *words).stdout.decode() or None

    def carries(self, url=f"http://target.test/bytes/{SMALL}", timeout=8):
        got = self.device.curl(url, timeout=timeout)
        return sha256(got.stdout) == sha256(payload(int(url.rpartition("/")[2]))) or f"curl {got.returncode}: {got.stderr.decode().strip()}, {len(got.stdout)} bytes"

    def recovers(self, what, limit):
        """Traffic flows again within `limit` seconds; the rest of the session needs it anyway."""
        began = time.monotonic()
        try:
            wait_for("traffic", lambda: self.carries(timeout=5) is True, 60)
        except TimeoutError as e:
            return self.checks.check(what, False, e)
        took = time.monotonic() - began
        return self.checks.check(f"{what} ({took:.1f} s)", took < limit, f"{took:.1f} s, {limit} s allowed")

    def blocked(self, name):
        """Nothing of a program gets through: by name, address, IPv6 or echo."""
        urls = f"http://target.test/ http://{self.target.v4}/ http://[{self.target.v6}]/"
        script = f"for url in {urls}; do (curl -gsS --max-time 1 -o /dev/null $url && echo $url) & done; ping -c 1 -W 1 {self.target.v4} >/dev/null && echo echo; wait"
        got = self.device.sh(script).split()
        self.checks.check(f"{name}: programs reach nothing", not got, got)

    def ups(self, name, hops=2, extra="", *more, **how):
        code, said, took = self.device.up(hops, extra, *more, **how)
        return self.checks.check(f"{name}: up returns ({took:.1f} s)", code == 0, f"exit {code}: {said[-400:]}")

    def downs(self, name):
        code, said, took = self.device.down()
        fine = self.checks.check(f"{name}: down returns ({took:.1f} s)", code == 0 and not self.device.daemons(), f"exit {code}: {said[-400:]}, {self.device.daemons()}")
        for pid in self.device.daemons():
            os.kill(pid, signal.SIGKILL)  # the next part wants to begin afresh
        return fine

    def same(self, name, before):
        now = self.device.snapshot()
        for what in before:
            self.checks.check(f"{name}: {what} as before", now[what] == before[what], difference(before[what], now[what]))


def difference(before, now):
    before, now = before.splitlines(), now.splitlines()
    return "; ".join([f"- {line}" for line in before if line not in now] + [f"+ {line}" for line in now if line not in before])[:400] or "another order"


# --- what runs beside ------------------------------------------------------------------------------------------------------------------------


def target_servers(lab):
    """HTTP/1.1, 2 and 3, UDP echo, DNS (servers.py); flows, git, ssh, iperf3."""
    names = ["--name", f"fresh.test={lab.target.v4}", "--name", f"deep.target6.test={lab.target.v6}"]
    names += ["--alias", "alias.test=target6.test", "--alias", "alias.target6.test=target.test"]
    servers = lab.start_targets("--alt-svc", "--hints", *names)
    lab.target_servers = servers
    program = [sys.executable, PROGRAMS]
    flows = [lab.target.run(f"flow-server{n}", [*program, "flow-server", host, FLOW_PORT]) for n, host in enumerate((lab.target.v4, lab.target.v6))]
    for server in flows:
        wait_for(server.name, lambda: server.lines() or not server.alive())
    lab.flow_servers = flows
    repository(lab)
    git = lab.target.run("git-server", [*program, "git-server", lab.target.v4, GIT_PORT, lab.folder / "git"])
    wait_for("git-server", lambda: git.lines() or not git.alive())
    if shutil.which("iperf3"):
        lab.target.run("iperf3-server", ["iperf3", "-s", "-p", IPERF_PORT, "--forceflush"])
    lab.ssh = ssh_server(lab)
    return servers


def repository(lab):
    """A repository of some megabytes to clone."""
    folder = lab.folder / "git"
    work = lab.folder / "git-work"
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", "-C", work]
    work.mkdir()
    for words in (["init", "-q", "-b", "main"], *[["add", "."], ["commit", "-q", "-m", "files"]]):
        for n in range(30):
            (work / f"file{n}").write_bytes(payload(1 << 20)[n * 33000:(n + 1) * 33000])
        subprocess.run([*git, *words], check=True, capture_output=True)
    folder.mkdir()
    subprocess.run(["git", "clone", "-q", "--bare", work, folder / "files.git"], check=True, capture_output=True)
    lab.git_head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()


def ssh_server(lab):
    """dropbear in a mount namespace where /root is a folder of ours; None without it."""
    if not shutil.which("dropbear") or not shutil.which("ssh"):
        return None
    home, key, host = lab.folder / "ssh-root", lab.folder / "ssh-key", lab.folder / "ssh-host"
    (home / ".ssh").mkdir(parents=True, mode=0o700)
    home.chmod(0o700)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True, capture_output=True)
    shutil.copy(f"{key}.pub", home / ".ssh/authorized_keys")
    (home / ".ssh/authorized_keys").chmod(0o600)
    made = subprocess.run(["dropbearkey", "-t", "ed25519", "-f", host], check=True, capture_output=True, text=True).stdout
    public = re.search(r"^ssh-ed25519 \S+", made, re.M)[0]
    (lab.folder / "known_hosts").write_text(f"[target.test]:{SSH_PORT} {public}\n")
    script = f'mount --bind "{home}" /root; exec dropbear -F -E -s -P "{lab.folder}/dropbear.pid" -r "{host}" -p {lab.target.v4}:{SSH_PORT}'
    return lab.target.run("dropbear", ["unshare", "--mount", "--propagation", "private", "sh", "-euc", script])


def noise(session):
    """The device that never stops to talk, and the target that asks it for answers."""
    device, target = session.device, session.target
    session.chatter = device.run("chatter", [sys.executable, PROGRAMS, "chatter", "eth0", device.v4, device.v6, target.v4, target.v6,
                                             "10.77.1.1", session.lab.resolver])
    session.poker = target.run("poker", [sys.executable, PROGRAMS, "poker", device.v4, device.v6])
    device.run("listener", [sys.executable, "-c", "import socket,time\ns=socket.create_server(('',22))\ntime.sleep(1e6)"])


# --- real programs ---------------------------------------------------------------------------------------------------------------------------


def programs(session, name):
    """Everything that people run, with nothing configured."""
    web(session, name)
    dns(session, name)
    tools(session, name)
    datagrams(session, name)
    thousand(session, name)


def web(session, name):
    checks, path = session.checks, f"bytes/{SIZE}"
    for what, url, more in (("plain", f"http://target.test/{path}", []), ("HTTP/1.1", f"https://target.test/{path}", ["--http1.1"]),
                            ("HTTP/2", f"https://target.test/{path}", ["--http2"]), ("IPv6", f"https://target6.test/{path}", []),
                            ("an IPv4 address", f"https://{session.target.v4}/{path}", []), ("an IPv6 address", f"https://[{session.target.v6}]/{path}", [])):
        got = session.device.curl(url, *more, timeout=30)
        checks.check(f"{name}: curl, {what}", sha256(got.stdout) == sha256(payload(SIZE)), f"curl {got.returncode}: {got.stderr.decode().strip()}")
    file = session.lab.folder / "upload"
    file.write_bytes(payload(SIZE))
    got = session.device.curl("https://target.test/upload", "--http1.1", "-H", "Expect:", "--data-binary", f"@{file}", timeout=30)
    checks.check(f"{name}: curl uploads", got.stdout.decode() == sha256(payload(SIZE)), got.stderr.decode())
    for host in session.names:
        got = session.device.program("http3", host, 443, f"/bytes/{SIZE}", session.lab.authority.ca)
        checks.check(f"{name}: HTTP/3 (aioquic), {host}", got.get("sha256") == sha256(payload(SIZE)), got)


def dns(session, name):
    checks, device = session.checks, session.device
    found = device.program("resolve", "target.test")
    pooled = isinstance(found.get("found"), list) and all(a.startswith(POOLS) for a in found["found"])
    checks.check(f"{name}: a name is answered from the pool ({found.get('ms', 0):.0f} ms)", pooled and found["found"], found)
    servers = re.findall(r"^nameserver (\S+)", device.sh("cat /etc/resolv.conf"), re.M)
    server = servers[0] if servers else session.lab.resolver
    for over in ("udp", "tcp"):
        got = device.program("ask", server, "target.test", 1, over)
        checks.check(f"{name}: DNS over {over.upper()}: an address", got.get("code") == 0 and got.get("answers") == 1, got)
        got = device.program("ask", server, "target.test", 16, over)
        checks.check(f"{name}: DNS over {over.upper()}: TXT comes from the target's own server", b"target.test" in bytes.fromhex(got.get("bytes", ""))[28:], got)
    if shutil.which("dig"):
        got = device.call("dig", "+short", "+time=5", "target.test", "A", "target6.test", "AAAA").stdout.decode().split()
        checks.check(f"{name}: dig", len(got) == 2 and all(a.startswith(POOLS) for a in got), got)
    else:
        checks.skip(f"{name}: dig", Missing("dig is not installed"))
    if isinstance(found.get("found"), list):
        reverse = ".".join(reversed(next((a for a in found["found"] if "." in a), "198.18.0.9").split("."))) + ".in-addr.arpa"
        got = device.program("ask", server, reverse, 12)
        checks.check(f"{name}: the reverse of a pool's address is the name", b"\x06target\x04test\x00" in bytes.fromhex(got.get("bytes", "")), got)
    got = device.program("refused", "tcp", "nobody.test", 80)
    checks.check(f"{name}: a name that is none is told when the flow opens", got.get("seconds", 99) < 10 and "bytes" not in str(got.get("end")) and got.get("end"), got)


def tools(session, name):
    """git, ssh, ping, iperf3."""
    checks, device, lab = session.checks, session.device, session.lab
    clone = lab.folder / f"clone-{time.monotonic_ns()}"
    got = device.call("git", "clone", "-q", f"http://target.test:{GIT_PORT}/files.git", clone)
    head = subprocess.run(["git", "-C", clone, "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    checks.check(f"{name}: git clones", head == lab.git_head, got.stderr.decode()[-300:])
    if lab.ssh:
        words = ["ssh", "-i", lab.folder / "ssh-key", "-p", SSH_PORT, "-o", f"UserKnownHostsFile={lab.folder}/known_hosts", "-o", "BatchMode=yes", "root@target.test"]
        got = subprocess.run([*device.prefix(), *map(str, words), "sha256sum"], input=payload(SIZE), capture_output=True, timeout=60, check=False)
        checks.check(f"{name}: ssh carries its input", got.stdout.decode().startswith(sha256(payload(SIZE))), got.stderr.decode()[-300:])
    else:
        checks.skip(f"{name}: ssh", Missing("ssh or dropbear is not installed"))
    echo(session, name)
    if not shutil.which("iperf3"):
        return checks.skip(f"{name}: iperf3", Missing("it is not installed"))
    for what, more in (("4 streams up", ["-P", "4"]), ("1 stream down", ["-R"]), ("UDP", ["-u", "-b", "5M", "-l", "1100"])):
        for _ in range(3):  # its server takes one test at a time, and some time to see the end of the last one
            got = device.call("iperf3", "-c", session.target.v4, "-p", IPERF_PORT, "-t", "1", "-J", *more).stdout.decode()
            result = json.loads(got) if got.startswith("{") else {"error": got}
            if not re.search("busy|control message", result.get("error", "")):
                break
            time.sleep(0.5)
        total = result.get("end", {}).get("sum_received") or result.get("end", {}).get("sum") or {}
        lost = total.get("lost_percent", 0)
        checks.check(f"{name}: iperf3, {what} ({total.get('bits_per_second', 0) / 1e6:.0f} Mbit/s)", total.get("bytes", 0) > 100_000 and lost < 10, result.get("error") or total)


def echo(session, name):
    """Echo is answered by who is asked, and by nobody else."""
    if not session.lab.ip_relays:
        return session.checks.skip(f"{name}: ping", "relays here do not serve CONNECT-IP")
    for what, words in (("a name", ["target.test"]), ("an IPv6 address", ["-6", session.target.v6]), ("1,200 bytes", ["-s", "1200", session.target.v4])):
        got = session.device.call("ping", "-c", "3", "-i", "0.2", "-W", "3", *words).stdout.decode()
        session.checks.check(f"{name}: ping, {what}", " 0% packet loss" in got, got[-300:])
    nobody = session.target.v4.rpartition(".")[0] + ".99"
    got = session.device.call("ping", "-c", "2", "-i", "0.2", "-W", "1", nobody).stdout.decode()
    session.checks.check(f"{name}: an address where nobody is does not answer", " 0 received" in got, got[-300:])


def datagrams(session, name):
    checks, device = session.checks, session.device
    for _ in range(2):  # a machine that stands still for a moment loses some
        got = device.program("video", "target.test", 7, 3)
        if got.get("back", 0) > 0.98 * got.get("sent", 1):
            break
    checks.check(f"{name}: a video call's datagrams come back, each once ({got.get('median_ms') or 0:.1f} ms)",
                 got.get("back", 0) > 0.98 * got.get("sent", 1) and not got["doubled"] and not got["wrong"], got)
    for host in session.names:
        got = device.program("sizes", host, 7)
        steps = got.get("steps", {"": None})
        checks.check(f"{name}: datagrams of the largest size and of none pass, {host} (the kernel knows {got.get('mtu')})",
                     all(size == str(back) for size, back in list(steps.items())[1:]), got)
    relay = session.lab.relays[-1].v4  # no relay may go there
    got = device.program("refused", "udp", relay, 9)
    checks.check(f"{name}: datagrams that the relay refuses are told ({got.get('end')})", "Error" in str(got.get("end")), got)
    got = device.program("refused", "tcp", relay, 9)
    checks.check(f"{name}: a flow that the relay refuses is told ({got.get('end')})", "Error" in str(got.get("end")) and "imeout" not in str(got.get("end")), got)
    got = device.program("refused", "tcp", session.target.v4, 9)
    checks.check(f"{name}: a port where nobody listens is told ({got.get('end')})", "Error" in str(got.get("end")) and got.get("seconds", 99) < 15, got)


def thousand(session, name, count=None):
    """Flows of every kind at random, by name and address, against checksums at both ends."""
    checks, target, count = session.checks, session.target, count or FLOWS
    marks = [len(server.lines()) for server in session.lab.flow_servers]
    places = [f"target.test:{FLOW_PORT}", f"{target.v4}:{FLOW_PORT}", f"target6.test:{FLOW_PORT}"]
    got = session.device.program("flows", count, 200, 7, *places, timeout=180)
    if not checks.check(f"{name}: {count} flows at random, none wrong ({got.get('seconds', 0):.0f} s)", got.get("wrong") == {}, got if "error" in got else (got.get("wrong"), got.get("first"))):
        return
    ends = lambda: {line["id"]: line for server, mark in zip(session.lab.flow_servers, marks) for line in server.lines()[mark:] if line.get("event") == "flow"}  # noqa: E731
    with contextlib.suppress(TimeoutError):
        wait_for("the last flow's end", lambda: len(ends()) >= count * 7 // 8, 10)  # empty ones have no number
    ends = ends()
    wrong = [i for i, digest in got["early"].items() if ends.get(int(i), {}).get("sha256") != digest]
    checks.check(f"{name}: what was sent after the server had closed its side arrived, {len(got['early'])} times", not wrong, wrong[:10])
    wrong = [i for i in got["resets"] if ends.get(i, {}).get("end") != "reset"]
    checks.check(f"{name}: the target sees the programs' resets as resets, {len(got['resets'])} times", not wrong, f"{len(wrong)}, such as {ends.get(wrong[0]) if wrong else ''}")
    allowed = {r.v4 for r in session.lab.relays} | {r.v6 for r in session.lab.relays}
    peers = {line["peer"] for line in ends.values()}
    checks.check(f"{name}: the target has seen relays only", peers and peers <= allowed, peers - allowed)


# --- states ----------------------------------------------------------------------------------------------------------------------------------


def states(session):
    """Before, up, programs, relays killed, the process killed, up again, another address, another DNS, down."""
    checks, device, lab = session.checks, session.device, session.lab
    kinds = set()
    with contextlib.suppress(TimeoutError):
        wait_for("the talkers", lambda: len(kinds.update({describe(f) for f in session.watch.outgoing()} - {None}) or kinds) > 12, 10)
    checks.check(f"before: what must stay inside leaves now ({len(kinds)} kinds), so that the checks below can fail", len(kinds) > 12, kinds)
    checks.attempt("before: programs reach the target", session.carries)
    before = device.snapshot()
    if not session.ups("up"):
        return
    session.watch.since()
    checks.attempt("up: traffic flows when up returns", session.carries)
    programs(session, "two hops")
    session.state("two hops")
    status(session)
    killed_relays(session)
    killed_process(session)
    session.downs("down")
    session.watch.since()
    session.same("down", before)
    checks.attempt("down: programs reach the target by themselves", session.carries)
    kinds = {describe(f) for f in session.watch.outgoing()} - {None}
    checks.check("down: and the capture shows it", any(k[1] == lab.target.v4 for k in kinds), kinds)


def status(session):
    told = session.device.status()
    session.checks.check("status tells something, in JSON", "exit" not in told and told, told)
    text = session.device.hoplite("status")[1]
    named = [word for word in ("target.test", session.target.v4, session.target.v6) if word in text + json.dumps(told)]
    session.checks.check("status names no target", not named, named)


def killed_relays(session):
    for number in (1, 0):
        relay = session.lab.relays[number]
        session.lab.running[relay.name].stop(signal.SIGKILL)
        session.blocked(f"relay {number + 1} killed")
        session.state(f"relay {number + 1} killed")
        session.lab.again(relay)
        session.recovers(f"relay {number + 1} back: traffic flows again", 20)
    session.checks.check("the process lived through it", session.device.daemons())
    session.state("relays back")


def killed_process(session):
    session.device.kill()
    session.blocked("SIGKILL")
    session.state("SIGKILL")
    session.ups("after SIGKILL")
    session.checks.attempt("after SIGKILL: traffic flows again", session.carries)
    session.state("after SIGKILL")


def changes(session):
    """The uplink's address and the DNS change while it is up; the process sleeps."""
    checks, device, lab = session.checks, session.device, session.lab
    if not session.ups("changes", 2):
        return
    session.watch.since()
    out = lab.folder / "moved.bin"
    transfer = device.run("curl-moved", ["curl", "-sS", "--max-time", 60, "--limit-rate", "5M", "-o", out, "http://target.test/bytes/20000000"])
    time.sleep(1)
    device.renumber(77)
    session.recovers("another address: traffic flows", 10)
    with contextlib.suppress(subprocess.TimeoutExpired):
        transfer.child.wait(65)
    checks.check("another address: the download that ran completes, checksum", out.exists() and sha256(out.read_bytes()) == sha256(payload(20_000_000)), transfer.text()[-200:])
    session.state("another address")
    device.resolv(f"nameserver {session.lab.resolver}\n")
    time.sleep(0.5)
    checks.attempt("another DNS: names are found", session.carries)
    found = device.program("resolve", "target.test")
    session.state(f"another DNS ({found.get('found')})")
    for pid in device.daemons():
        os.kill(pid, signal.SIGSTOP)
    time.sleep(2)
    session.blocked("suspended")
    for pid in device.daemons():
        os.kill(pid, signal.SIGCONT)
    session.recovers("woken: traffic flows", 10)
    session.state("suspended and woken")
    device.renumber(2)
    session.recovers("the old address again: traffic flows", 10)
    session.downs("changes")
    servers = re.findall(r"^nameserver (\S+)", device.sh("cat /etc/resolv.conf"), re.M)
    checks.check("after down the resolver is one that answers without us", servers == [lab.resolver], servers)
    checks.attempt("changes: after down programs reach the target", session.carries)
    write_resolv(session)
    session.watch.since()


def write_resolv(session):
    session.device.sh(f"cp {session.device.place}/resolv.conf /etc/resolv.conf")


def hops(session):
    """One and three hops: a part of the programs."""
    for count in (1, 3):
        if not session.ups(f"{count} hops", count):
            continue
        session.watch.since()
        web(session, f"{count} hops")
        echo(session, f"{count} hops")
        datagrams(session, f"{count} hops")
        thousand(session, f"{count} hops", FLOWS // 4)
        session.state(f"{count} hops")
        session.downs(f"{count} hops")
    session.watch.since()


# --- choices -----------------------------------------------------------------------------------------------------------------------------------


def choices(session):
    """What the file may except: address ranges, domains, users, the local network; one program for a captive portal. How flows open."""
    device, target = session.device, session.target
    relay, own, own6 = session.lab.relays[0].v4, device.v4, device.v6
    by_name, by_v4, by_v6 = "http://target6.test", f"http://{target.v4}", f"http://[{target.v6}]"
    nobody = ("setpriv", "--reuid", "65534", "--clear-groups")
    cases = {
        "nothing excepted": ("", [(by_name, (), "relay"), (by_v4, (), relay)], ()),
        "excluded addresses": (f'exclude = {{ addresses = ["{target.v4}/32"] }}', [(by_v4, (), own), (by_v6, (), "relay")], (target.v4,)),
        "excluded domain": ('exclude = { domains = ["target6.test"] }', [(by_name, (), own6), (by_v4, (), relay)], (target.v6, target.v4)),
        "excluded user": ("exclude = { users = [65534] }", [(by_v4, nobody, own), (by_v4, (), relay)], (target.v4,)),
        "included user only": ("include = { users = [65534] }", [(by_v4, nobody, relay), (by_v4, (), own)], None),
    }
    for name, (key, asked, but) in cases.items():
        if not session.ups(name, 1, f"\n[takeover]\n{key}\n"):
            continue
        session.watch.since()
        for url, prefix, expected in asked:
            seen = session.seen_as(url, *prefix)
            fine = seen not in (None, own, own6) if expected == "relay" else seen == expected
            session.checks.check(f"{name}: {url} as {' '.join(prefix[1:3]) or 'root'} is seen as it must be", fine, f"{seen}, expected {expected}")
        if but is not None:
            session.state(name, but)
        session.downs(name)
    included_domain(session)
    later_server(session)
    route(session)
    gateway(session)
    opening(session)
    local_network(session)
    portal(session)
    session.watch.since()


def included_domain(session):
    """One domain alone goes through: it and what is below it, whatever it leads to; all else is left alone, also what leads there."""
    name, device, target, checks = "included domain", session.device, session.target, session.checks
    own = (device.v4, device.v6)

    def asked():
        lines = [line for server in session.lab.target_servers for line in server.lines() if line.get("event") == "dns"]
        return [line for line in lines if line["name"].endswith("target6.test") and line["peer"] in own]

    before = len(asked())
    if not session.ups(name, 1, '\n[takeover]\ninclude = { domains = ["target6.test"] }\n'):
        return
    for host in ("target6.test", "deep.target6.test", "alias.target6.test"):
        seen = session.seen_as(f"http://{host}")
        checks.check(f"{name}: {host} is seen as the relay", seen not in (None, *own), seen)
    for host in ("target.test", "alias.test", target.v4, f"[{target.v6}]"):
        seen = session.seen_as(f"http://{host}")
        checks.check(f"{name}: {host} is seen as the device", seen in own, seen)
    records = {host: device.sh(f"dig +short HTTPS {host}").strip() for host in ("target6.test", "target.test")}
    checks.check(f"{name}: an HTTPS record tells no address of it, and one of another name is there", not records["target6.test"] and target.v4 in records["target.test"], records)
    checks.check(f"{name}: no network was asked for it", len(asked()) == before, asked())
    for pid in device.daemons():
        os.kill(pid, signal.SIGKILL)
    seen = session.seen_as("http://target6.test")
    checks.check(f"{name}: after SIGKILL it is not reached", seen is None, seen)
    seen = session.seen_as(f"http://{target.v4}")
    checks.check(f"{name}: … and an address is", seen in own, seen)
    session.downs(name)
    checks.attempt(f"{name}: after down it is reached by itself", lambda: session.seen_as("http://target6.test") == device.v6)


def later_server(session):
    """One user alone goes through, and the network comes to name another server: what he asks that one is answered here as well, and no exit asks it."""
    name, device, checks = "included user, another name server", session.device, session.checks

    def found():
        said = device.call("setpriv", "--reuid", "65534", "--clear-groups", "getent", "ahosts", "target.test").stdout.decode()
        return {line.split()[0] for line in said.splitlines()}

    def pooled():
        addresses = found()
        return bool(addresses) and all(address.startswith(POOLS) for address in addresses)

    if not session.ups(name, 1, "\n[takeover]\ninclude = { users = [65534] }\n"):
        return
    checks.attempt(f"{name}: the one of the start is answered for", lambda: pooled() or found())
    device.resolv("nameserver 203.0.113.53\n")
    try:
        wait_for("an answer from the pool", pooled, 30)
        checks.check(f"{name}: the later one is answered for", True)
    except TimeoutError:
        checks.check(f"{name}: the later one is answered for", False, found())
    write_resolv(session)
    session.downs(name)


def route(session):
    """The names of one domain take another path: programs are seen as its last relay there, and as the first path's everywhere else."""
    name, lab, checks = "route", session.lab, session.checks
    first, second = lab.relays[:2]
    extra = f'\n[[route]]\ndomains = ["target6.test"]\npath = ["{second.name}"]\n'
    extra += f'\n[[relay]]\nname = "{second.name}"\naddress = "{second.v4}:{RELAY_PORT}"\npin = "{lab.leaves[second.name].pin}"\n'
    if not session.ups(name, 1, extra):
        return
    session.watch.since()
    for host, relay in (("target6.test", second.v6), ("deep.target6.test", second.v6), ("alias.target6.test", second.v4),
                        ("target.test", first.v4), ("alias.test", first.v6), (f"[{session.target.v6}]", first.v6)):
        seen = session.seen_as(f"http://{host}")
        checks.check(f"{name}: {host} is seen as the relay of its path", seen == relay, f"{seen}, expected {relay}")
    session.state(name, (second.v4,))
    session.downs(name)


def gateway(session):
    """A network behind the device goes through as well, and nothing of it passes while traffic is blocked."""
    name, device, target, checks = "gateway", session.device, session.target, session.checks
    relay, guest = session.lab.relays[0], f"{device.ns}-guest"
    inside = ("ip", "netns", "exec", guest)
    device.sh("sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1")
    subprocess.run(["ip", "netns", "add", guest], check=True)
    try:
        for command in ("link add lan0 netns {device} type veth peer name eth0 netns {guest}", "-n {device} addr add 192.168.7.1/24 dev lan0", "-n {device} link set lan0 up",
                        "-n {guest} addr add 192.168.7.2/24 dev eth0", "-n {guest} link set eth0 up", "-n {guest} route add default via 192.168.7.1",
                        "-n {device} addr add fd07::1/64 dev lan0 nodad", "-n {guest} addr add fd07::2/64 dev eth0 nodad", "-n {guest} -6 route add default via fd07::1"):
            subprocess.run(["ip", *command.format(device=device.ns, guest=guest).split()], check=True)

        def curl(url, timeout=5):
            return subprocess.run([*inside, "curl", "-sS", "--max-time", str(timeout), url], capture_output=True).stdout

        if not session.ups(name, 1, '\n[takeover]\ngateway = ["192.168.7.0/24"]\n', "--gateway", "fd07::/64"):
            return
        session.watch.since()
        got = curl(f"http://{target.v4}/peer").decode()
        checks.check(f"{name}: a machine behind is seen as the relay", got == relay.v4, got)
        got = curl(f"http://[{target.v6}]/peer").decode()
        checks.check(f"{name}: a machine behind is seen as the relay, IPv6", got == relay.v6, got)
        found = subprocess.run([*inside, "dig", "+short", "+time=3", "+tries=1", "@198.18.0.2", "target.test"], capture_output=True).stdout.decode().strip()
        got = curl(f"http://{found}/peer").decode()
        checks.check(f"{name}: it finds names by us ({found})", found.startswith(POOLS) and got == relay.v4, got)
        checks.check(f"{name}: {SIZE} bytes arrive there as they are", sha256(curl(f"http://{target.v4}/bytes/{SIZE}", 20)) == sha256(payload(SIZE)))
        got = device.call("ping", "-c", "1", "-W", "2", "192.168.7.2").returncode
        checks.check(f"{name}: the device reaches it", got == 0, got)
        session.state(name)
        device.kill()
        checks.check(f"{name}: after SIGKILL it reaches nothing", not curl(f"http://{target.v4}/peer") and not curl(f"http://[{target.v6}]/peer"))
        session.downs(name)
    finally:
        subprocess.run(["ip", "netns", "del", guest], check=True)
        device.sh("sysctl -qw net.ipv4.ip_forward=0 net.ipv6.conf.all.forwarding=0")


def opening(session):
    """When a program's connection counts as open, and how it learns that it is not: what it says at once travels with the request, or it has to wait."""
    for how, error in (("optimistic", "ConnectionResetError"), ("pessimistic", "ConnectionRefusedError")):
        name = f"open = {how}"
        if not session.ups(name, 2, f'\n[flows]\nopen = "{how}"\n'):
            continue
        session.watch.since()
        session.checks.attempt(f"{name}: traffic flows", session.carries)
        got = session.device.program("refused", "tcp", session.target.v4, 9)
        session.checks.check(f"{name}: a port where nobody listens is told as it must be ({got.get('end')})", error in str(got.get("end")), got)
        got = session.device.program("refused", "tcp", "nobody.test", 80)
        session.checks.check(f"{name}: a name that is none is told when the flow opens ({got.get('end')})", "Error" in str(got.get("end")) and got.get("seconds", 99) < 10, got)
        thousand(session, name, FLOWS // 4)
        session.state(name)
        session.downs(name)


def local_network(session):
    near = f"{session.device.v4.rpartition('.')[0]}.1"
    for lan in (False, True):
        if not session.ups(f"lan = {lan}", 1, f"\n[takeover]\nlan = {str(lan).lower()}\n"):
            continue
        session.watch.since()
        got = session.device.call("ping", "-c", "1", "-W", "1", near).returncode == 0
        session.checks.check(f"lan = {lan}: the neighbour answers: {got}", got == lan)
        session.state(f"lan = {lan}", (near, f"{near.rpartition('.')[0]}.255", "255.255.255.255", "224.0.0.251", "ff02::fb") if lan else ())
        session.downs(f"lan = {lan}")


def portal(session):
    """One program may go by itself."""
    if not session.device.sh("test -w /sys/fs/cgroup/cgroup.procs && echo yes"):
        return session.checks.skip("captive portal", "no control groups of version 2 that could be mounted and written")
    if not session.ups("captive portal", 1):
        return
    url = f"http://{session.target.v4}/peer"
    got = session.device.call(str(HOPLITE), "portal", "--", "curl", "-sS", "--max-time", "5", url).stdout.decode()
    session.checks.check("captive portal: its program goes by itself", got == session.device.v4, got)
    seen = session.seen_as(url[:-5])
    session.checks.check("captive portal: and nobody else", seen == session.lab.relays[0].v4, seen)
    got = session.device.call(str(HOPLITE), "portal", "--", "curl", "-sS", "--max-time", "5", "http://target.test/peer").stdout.decode()
    session.checks.check("captive portal: its program finds names by itself", got == session.device.v4, got)
    for path, code, words in (("success.txt", 0, "wants no login"), ("portal", 1, "at login.test"), ("peer", 1, "wants one first")):
        done = session.device.call(str(HOPLITE), "portal", "--detect", "--url", f"http://target.test/{path}")
        said = (done.stdout + done.stderr).decode()
        session.checks.check(f"captive portal: {path} is told for what it is", done.returncode == code and words in said, f"exit {done.returncode}: {said}")
    done = session.device.call(str(HOPLITE), "portal", "--detect", "--url", f"http://{session.target.v4}:9/")
    session.checks.check("captive portal: where nobody answers, why", done.returncode == 1 and b"refused" in done.stderr, done.stderr)
    left = session.device.sh("ls -d /sys/fs/cgroup/hoplite-portal; nft list tables | grep portal")
    session.checks.check("captive portal: nothing of it stays", not left, left)
    session.downs("captive portal")


# --- faults ------------------------------------------------------------------------------------------------------------------------------------


def faults(session):
    """Boot, two instances, a relay that is not there, an interface that somebody removes, a read-only /etc, no nftables, IPv6 disabled, --no-block."""
    for fault in (boot, two_instances, no_relay, interface_removed, link_instead, read_only, no_nftables, no_ipv6, no_block):
        before = session.device.snapshot()
        try:
            fault(session)
        except Exception as e:  # noqa: BLE001: the other faults go on
            session.checks.check(fault.__doc__.splitlines()[0], False, f"{type(e).__name__}: {e}")
        session.downs(fault.__name__)
        now = session.device.snapshot()
        wrong = {what: difference(before[what], now[what]) for what in before if now[what] != before[what]}
        session.checks.check(f"{fault.__name__}: all as before", not wrong, wrong)
        write_resolv(session)
        session.watch.since()


def two_instances(session):
    """A second one is refused, and leaves the first alone."""
    session.ups("two instances", 1)
    session.watch.since()
    code, said, _ = session.device.up(1)
    session.checks.check("two instances: the second is refused, and says why", code == 1 and "hoplite" in said and len(said.splitlines()) < 5, f"exit {code}: {said[-300:]}")
    session.checks.attempt("two instances: the first goes on", session.carries)
    session.state("two instances")


def boot(session):
    """From boot on nothing passes; `up` says why it cannot begin, and it stays so until the relay is there."""
    relay = session.lab.relays[0]
    session.lab.running[relay.name].stop(signal.SIGKILL)
    try:
        code, said, _ = session.device.hoplite("up", "--block-only")
        session.checks.check("boot: up --block-only returns, and no process stays", code == 0 and not session.device.daemons(), f"exit {code}: {said[-300:]}")
        session.watch.since()
        session.blocked("boot")
        code, said, took = session.device.up(1, "", "--wait", "2")
        session.checks.check(f"boot, no relay: up says why ({took:.0f} s)", code == 1 and says_why(said) and took < 30, f"exit {code}: {said[-400:]}")
        session.blocked("boot, no relay")
        session.checks.check("boot, no relay: status says so", session.device.status().get("state") == "blocked", session.device.status())
    finally:
        session.lab.again(relay)
    session.ups("boot, the relay is there", 1)
    session.checks.attempt("boot, the relay is there: traffic flows", session.carries)
    session.state("boot")


def says_why(said):
    """One line: what failed, why, what to do."""
    last = said.strip().splitlines()[-1]
    return last.startswith("hoplite: bringing the device up: ") and "relay" in last


def no_relay(session):
    """Without --block-only a failed `up` undoes everything."""
    relay = session.lab.relays[0]
    session.lab.running[relay.name].stop(signal.SIGKILL)
    try:
        before = session.device.snapshot()
        code, said, took = session.device.up(1, "", "--wait", "2")
        session.checks.check(f"no relay: up says why ({took:.0f} s)", code == 1 and says_why(said) and took < 30, f"exit {code}: {said[-400:]}")
        session.same("no relay", before)
    finally:
        session.lab.again(relay)


def interface_removed(session):
    """Somebody removes the interface: nothing leaks, and it is told."""
    session.ups("interface removed", 1)
    session.watch.since()
    session.device.sh(f"ip link del {NAME}")
    time.sleep(2)
    session.state("interface removed")
    works = session.carries(timeout=3) is True
    told = json.dumps(session.device.status())
    print(f"     traffic {'flows' if works else 'is blocked'}; status: {told[:300]}")
    if not session.device.daemons():
        session.ups("after the interface was removed", 1)
        session.checks.attempt("after the interface was removed: traffic flows again", session.carries)
    elif not works:
        session.recovers("the interface is made again", 15)
    session.state("after the interface was removed")


def link_instead(session):
    """resolv.conf is a symbolic link, as resolvconf and NetworkManager make it."""
    session.device.sh("mkdir -p /run/resolvconf; mv /etc/resolv.conf /run/resolvconf/resolv.conf; ln -s ../run/resolvconf/resolv.conf /etc/resolv.conf")
    before = session.device.snapshot()["resolv.conf"]
    session.ups("resolv.conf is a link", 1)
    session.watch.since()
    session.checks.attempt("resolv.conf is a link: names are found", session.carries)
    session.state("resolv.conf is a link")
    session.downs("resolv.conf is a link")
    now = session.device.snapshot()["resolv.conf"]
    session.checks.check("resolv.conf is a link: so it is again", now == before, difference(before, now))
    session.device.sh("rm /etc/resolv.conf; cp /run/resolvconf/resolv.conf /etc/resolv.conf")


def read_only(session):
    """/etc cannot be written: whoever resolv.conf names is answered by us."""
    session.device.sh("mount -o remount,ro,bind /etc")
    try:
        session.ups("read-only /etc", 1)
        session.watch.since()
        session.checks.attempt("read-only /etc: names are found", session.carries)
        found = session.device.program("resolve", "target.test").get("found")
        session.checks.check("read-only /etc: and answered here", isinstance(found, list) and all(a.startswith(POOLS) for a in found), found)
        session.state("read-only /etc")
        session.downs("read-only /etc")
    finally:
        session.device.sh("mount -o remount,rw,bind /etc")


def no_nftables(session):
    """Without nftables `up` refuses, and with --no-firewall routes alone hold what they can: all but IPv4 of programs that bind to an interface."""
    device, checks = session.device, session.checks
    places = [place for place in ("/usr/sbin/nft", "/usr/bin/nft", "/sbin/nft", "/bin/nft", "/usr/local/sbin/nft", "/usr/local/bin/nft") if os.path.exists(place)]
    hidden = sorted({os.path.realpath(place) for place in places})
    before = device.snapshot()
    for place in hidden:
        device.sh(f"mount --bind /dev/null {place}")
    try:
        code, said, _ = device.up(1)
        checks.check("no nftables: up refuses, and says why", code == 1 and "there is no nftables" in said, f"exit {code}: {said[-400:]}")
        code, said, _ = device.up(1, "", "--no-firewall")
        checks.check("no nftables: with --no-firewall it returns", code == 0, f"exit {code}: {said[-400:]}")
        session.watch.since()
        checks.attempt("no nftables: traffic flows", session.carries)
        device.kill()
        session.blocked("no nftables, SIGKILL")
        wrong = strangers(session.watch.outgoing(), session.lab.relays[0].v4)
        # Bound to the uplink, a program is taken at its word that its target is on the link: ARP asks for it, and nobody answers for who is not.
        onlink = (".".join(device.v4.split(".")[:3]) + ".", "224.0.0.", "255.255.255.255", "ff02:")
        wrong = {what: count for what, count in wrong.items() if not str(what[1]).startswith(onlink)}
        checks.check("no nftables: nothing left but to the link itself", not wrong, wrong)
        device.down()
    finally:
        for place in hidden:
            device.sh(f"umount {place}")
    session.same("no nftables", before)


def no_ipv6(session):
    """IPv6 is disabled: everything else works."""
    session.device.sh("sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1")
    try:
        session.ups("IPv6 disabled", 1)
        session.watch.since()
        session.checks.attempt("IPv6 disabled: traffic flows", session.carries)
        session.state("IPv6 disabled")
        session.downs("IPv6 disabled")
    finally:
        session.device.sh("sysctl -qw net.ipv6.conf.all.disable_ipv6=0 net.ipv6.conf.default.disable_ipv6=0; "
                          f"ip addr add {session.device.v6}/64 dev eth0 nodad; ip -6 route replace default via fd77:1::1")


def no_block(session):
    """--no-block: after SIGKILL programs reach the target by themselves."""
    session.ups("--no-block", 1, "", "--no-block")
    session.checks.attempt("--no-block: traffic flows", session.carries)
    session.device.kill()
    time.sleep(1)
    session.checks.attempt("--no-block: after SIGKILL programs reach an address by themselves",
                           lambda: session.carries(f"http://{session.target.v4}/bytes/{SMALL}"))
    session.ups("--no-block: again", 1)


# --- two clients at the target ---------------------------------------------------------------------------------------------------------------

# TTL, traffic class, segment size, receive buffer; and the system's own settings.
DRESSES = {
    "one": ((0, 64, 1460, 212992), {"ipv4.tcp_timestamps": 1, "ipv4.tcp_sack": 1, "ipv4.tcp_window_scaling": 1, "ipv4.tcp_ecn": 0, "ipv4.ip_default_ttl": 64,
                                    "ipv4.ip_no_pmtu_disc": 0, "ipv6.auto_flowlabels": 1}),
    "other": ((0xb8, 128, 800, 8192), {"ipv4.tcp_timestamps": 0, "ipv4.tcp_sack": 0, "ipv4.tcp_window_scaling": 0, "ipv4.tcp_ecn": 1, "ipv4.ip_default_ttl": 128,
                                       "ipv4.ip_no_pmtu_disc": 1, "ipv6.auto_flowlabels": 0}),
}
# What the programs' sockets are bound to, in one dress and the other.
# Below those that the kernel gives out by itself.
OWN_PORTS = {"one": 26001, "other": 26002}


def headers(session):
    """Two systems' settings, one picture at the target (privacy = "anonymity")."""
    checks, session.source_ports = session.checks, {"direct": set(), "up": set()}
    direct = {dress: picture(session, dress, "direct", session.device.v4, session.device.v6) for dress in DRESSES}
    for kind in sorted(direct["one"]):
        checks.check(f"headers, direct: {kind} differs between the two, so that the check below can fail", direct["one"][kind] != direct["other"].get(kind), direct["one"][kind])
    if not session.ups("headers", 2):
        return
    session.watch.since()
    last = session.lab.relays[1]
    ours = {dress: picture(session, dress, "up", last.v4, last.v6) for dress in DRESSES}
    for kind in sorted(ours["one"] | ours["other"]):
        one, other = ours["one"].get(kind), ours["other"].get(kind)
        checks.check(f"headers, up: {kind} is the same for both: {one}", one == other, other)
    wanted = {"IPv4 TCP", "IPv4 TCP SYN", "IPv4 UDP", "IPv6 TCP", "IPv6 TCP SYN", "IPv6 UDP"}
    checks.check("headers, up: all kinds were seen", wanted <= set(ours["one"]), sorted(ours["one"]))
    both, seen = set(OWN_PORTS.values()), session.source_ports
    checks.check("headers, direct: the target sees the programs' source ports, so that the check below can fail", both <= seen["direct"], seen["direct"])
    checks.check("headers, up: it sees none of them", not both & seen["up"] and seen["up"], seen["up"])
    session.state("headers")
    session.downs("headers")
    session.watch.since()


def picture(session, dress, name, *sources):
    """What the target's link shows of an exchange: the values of each kind's header fields."""
    (tos, ttl, segment, buffer), settings = DRESSES[dress]
    device, target = session.device, session.target
    words = " ".join(f"net.{key}={value}" for key, value in settings.items())
    device.sh(f"sysctl -qw {words} net.ipv6.conf.eth0.hop_limit={ttl}")
    capture = Capture(target, f"headers-{name}-{dress}")
    try:
        for host in (target.v4, target.v6):
            got = device.program("dressed", host, 80, 7, tos, ttl, segment, buffer, OWN_PORTS[dress])
            session.checks.check(f"headers, {name}, {dress}: {host} answers", got.get("bytes", 0) >= 20000 and got.get("datagrams") == 1101, got)
            if name == "direct" or session.lab.ip_relays:
                device.call("ping", "-c", "2", "-i", "0.2", "-W", "2", "-Q", str(tos), "-t", str(ttl), host)
    finally:
        capture.process.stop(signal.SIGINT)
        device.sh("sysctl -qw " + " ".join(f"net.{key}={value}" for key, value in DRESSES["one"][1].items()) + " net.ipv6.conf.eth0.hop_limit=64")
    seen = {}
    for _, source, _, protocol, frame in packets(capture.path):
        if source in sources and (fields := header_fields(protocol, frame)):
            seen.setdefault(fields[0], set()).add(fields[1:])
            if protocol in (6, 17):
                start = 54 if fields[0].startswith("IPv6") else 14 + 4 * (frame[14] & 15)
                session.source_ports[name].add(int.from_bytes(frame[start:start + 2]))
    return {kind: sorted(values) for kind, values in seen.items()}


def header_fields(protocol, frame):
    """(kind, fields…) of a packet: all that a client's system could show and that is not random or a matter of time. None for what chatter sends."""
    if frame[12:14] == b"\x08\x00":
        version, start, ip_fields = "IPv4", 14 + 4 * (frame[14] & 15), ("ttl", frame[22], "tos", frame[15], "flags", frame[20] >> 5, "ihl", frame[14] & 15)
    else:
        version, start, ip_fields = "IPv6", 54, ("hops", frame[21], "class", (frame[14] & 15) << 4 | frame[15] >> 4, "labelled", frame[15:18] != bytes([frame[15] & 0xf0, 0, 0]))
    rest = frame[start:]
    if protocol == 6 and rest[2:4] == b"\x00\x50":
        options = tcp_options(rest[20:4 * (rest[12] >> 4)])
        if rest[13] & 2:
            return f"{version} TCP SYN", *ip_fields, "flags", rest[13], "window", int.from_bytes(rest[14:16]), "options", options
        if not 4 * (rest[12] >> 4) < len(rest):
            return None
        return f"{version} TCP", *ip_fields, "flags", rest[13] & 0xe0, "urgent", rest[18:20].hex(), "options", tuple(k for k in options if k[0] not in (1, 5))
    if protocol == 17 and rest[2:4] == b"\x00\x07" and rest[8:9] == b"d":
        return f"{version} UDP", *ip_fields, "length", int.from_bytes(rest[4:6]), "checksum", rest[6:8] != b"\0\0"
    if protocol == {"IPv4": 1, "IPv6": 58}[version] and rest[0] in (8, 128) and len(rest) > 40:
        return f"{version} echo", *ip_fields, "code", rest[1], "bytes", len(rest)
    return None


def tcp_options(options):
    """(kind, value) in order; timestamps without their values."""
    found, at = [], 0
    while at < len(options) and options[at]:
        if options[at] == 1:
            found.append((1, ""))
            at += 1
            continue
        size = max(options[at + 1], 2)
        found.append((options[at], "" if options[at] == 8 else options[at + 2:at + size].hex()))
        at += size
    return tuple(found)


# ---------------------------------------------------------------------------------------------------------------------------------------------


def start_relays(checks, lab):
    try:
        lab.again(lab.relays[0])
    except RuntimeError as e:
        checks.skip("CONNECT-IP", f"the relay does not start with it: {str(e).strip()[-200:]}")
        lab.ip_relays = False
        lab.again(lab.relays[0])
    for relay in lab.relays[1:]:
        lab.again(relay)


# All, and those that run only when they are named.
PARTS = (states, hops, changes, headers, choices, apart, faults, circuits, modes, storms, browser)
LONG = (sleep,)


def main():
    checks = Checks("device")
    if why := usable():
        checks.skip("a device in a namespace", why)
        checks.done()
    chosen = sys.argv[1:]
    with DeviceLab() as lab:
        target_servers(lab)
        start_relays(checks, lab)
        session = Session(checks, lab)
        session.watch = Watch(lab.client)
        noise(session)
        parts = [part for part in PARTS + LONG if part.__name__ in (chosen or {part.__name__ for part in PARTS})]
        for part in parts:
            began = time.monotonic()
            try:
                part(session)
            except Exception as e:  # noqa: BLE001: the other parts go on
                checks.check(part.__doc__.splitlines()[0], False, f"{type(e).__name__}: {e}")
            if lab.client.daemons():
                session.downs(part.__name__)
            print(f"     ({part.__name__}: {time.monotonic() - began:.0f} s)", flush=True)
        if checks.failed:
            lab.show_logs()
            print(f"----- the device's own log\n{lab.client.sh('tail -n 40 /run/hoplite/*.log')}")
    checks.done()


if __name__ == "__main__":
    main()
