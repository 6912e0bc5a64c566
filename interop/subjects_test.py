"""Subjects of the lab whose programs nothing in CI brings: masque-go, sing-box, GotaTun, Arti, and C tor behind tun2proxy. Each whose program is there is run with everything
that it carries; the lab itself sees that checksums are right and that no server sees the client's address.

Only when it is named: `.ci/run subjects` builds the programs, by the commands that the subjects' files give, and runs it. Needs no root.
"""

import json
import re
import shutil
import socket
import struct
import subprocess
import sys
import urllib.request

from common import Authority, Checks, HERE, Missing, sha256
from lab_test import LAB, Scratch, logs
from servers import payload

DOWNLOADS = """
[[workload]]
name = "down"
kind = "download"
bytes = "2MB"
count = 2
[[workload]]
name = "down3"
kind = "download"
bytes = "2MB"
connections = 3
group = "2"
[[workload]]
name = "up"
kind = "upload"
bytes = "2MB"
group = "3"
[[workload]]
name = "trips"
kind = "request"
count = 20
group = "4"
"""
# 1200 bytes: a masque-go closes a flow that has a larger one than its packets.
DATAGRAMS = """
[[workload]]
name = "echo"
kind = "udp-echo"
size = 1200
count = 50
interval = "10ms"
group = "5"
[[workload]]
name = "rate"
kind = "udp-rate"
rate = "5Mbit"
time = "2s"
down = true
group = "6"
[[workload]]
name = "http3"
kind = "http"
version = 3
bytes = "2MB"
packet = 1200
group = "7"
"""
# For TARGET, whose address only the DNS at the server knows, and which only the exits ask.
TARGET, BODY = "target.test", 100_000


def star(hosts, subject, workloads, more=""):
    """Every host has a link to one router; the client's has 20 Mbit/s."""
    text = f'repetitions = 1\nseed = 5\ntimeout = "8min"\n{more}\n[[router]]\nname = "core"\n'
    for host in hosts:
        rate = 'rate = "20Mbit"\nqueue = "100kB"\n' if host == "client" else ""
        text += f'[[host]]\nname = "{host}"\n[[link]]\nends = ["{host}", "core"]\ndelay = "2ms"\n{rate}'
    return text + f"[[subject]]\n{subject}\n{workloads}"


def relays(count):
    return ["client", *(f"relay{n}" for n in range(1, count + 1)), "server"]


TOR = ["client", *(f"authority{n}" for n in (1, 2, 3)), *(f"relay{n}" for n in (1, 2, 3)), "server"]
# Of which program a subject is, in which network, with which parameters, and what it carries.
TRIED = {
    "masque-go, one hop": ("masque_go", relays(1), 'use = "masque-go"', DATAGRAMS),
    "masque-go, four hops": ("masque_go", relays(4), 'use = "masque-go"\nwith = { hops = 4 }', DATAGRAMS),
    "sing-box, one hop": ("sing-box", relays(1), 'use = "sing-box"', DOWNLOADS + DATAGRAMS),
    "sing-box, three hops": ("sing-box", relays(3), 'use = "sing-box"\nwith = { hops = 3 }', DOWNLOADS + DATAGRAMS),
    "GotaTun": ("gotatun", relays(1), 'use = "wireguard-go"\nwith = { daemon = "gotatun" }', DOWNLOADS + DATAGRAMS),
    "C tor behind a TUN": ("tun2proxy-bin", TOR, 'use = "tor"\nwith = { device = true, relays = 3 }', DOWNLOADS),
    "Arti": ("arti", TOR, 'use = "tor"\nwith = { arti = true, relays = 3 }', DOWNLOADS),
}


def install(program):
    """How the doctor says that it is installed."""
    said = subprocess.run([LAB, "doctor", "--json"], capture_output=True, text=True, timeout=120).stdout
    lines = [json.loads(line) for line in said.splitlines()]
    return next((line["install"] for line in lines if line["check"] == program), "the doctor does not know it")


def missing(program):
    """Why a subject cannot be tried here, if so."""
    needs = [program, *(["tor", "tor-gencert"] if program in ("tun2proxy-bin", "arti") else ["openssl"])]
    absent = next((name for name in needs if not shutil.which(name)), None)
    return absent and Missing(f"{absent} is not installed: {install(absent)}")


def figures(scratch, out):
    """What the report says, in one line for a reader."""
    wanted = {"goodput_bps": "Mbit/s", "rtt_ms": "ms"}
    found = [line for line in scratch.report(out) if line.get("metric") in wanted]
    told = [f"{line.get('workload')} {line['median'] / (1e6 if line['metric'] == 'goodput_bps' else 1):.2f} {wanted[line['metric']]}" for line in found]
    return ", ".join(told)


def carries(scratch, name):
    _, hosts, subject, workloads = TRIED[name]
    scenario = scratch.scenario(re.sub(r"\W+", "-", name), star(hosts, subject, workloads))
    out = scratch.run(scenario, timeout=900)
    print(f"     {name}: {figures(scratch, out)}", flush=True)


# --- names through the device -------------------------------------------------------------------------------------------------------------


def ask(resolver):
    """Runs on the client's host: the target by its name, as a program without SOCKS would; one JSON line."""
    question = struct.pack(">6H", 7, 0x100, 1, 0, 0, 0) + b"".join(bytes([len(p)]) + p.encode() for p in TARGET.split(".")) + b"\0\0\1\0\1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.settimeout(10)
        s.sendto(question, (resolver, 53))
        answer = s.recv(512)
    address = ".".join(map(str, answer[-4:]))
    with urllib.request.urlopen(f"http://{address}/bytes/{BODY}", timeout=60) as got:
        body = got.read()
    print(json.dumps({"address": address, "sha256": sha256(body)}))


def names(scratch, checks):
    """A name goes to the exit: by an address of the device's own; nobody but an exit asks a resolver."""
    leaf = Authority(scratch.path / "tls").leaf("target", [TARGET])
    tor = (HERE.parent / "subjects/tor.toml").read_text().replace('name = "tor"', 'name = "tor-names"', 1)
    tor = tor.replace("ServerDNSDetectHijacking 0", "ServerDNSDetectHijacking 0\nServerDNSResolvConfFile {dir}/resolv.conf", 1)
    servers = [sys.executable, HERE / "servers.py", "--host", "{ip:server}", "--cert", leaf.cert, "--key", leaf.key,
               "--http-port", 80, "--dns-port", 53, "--name", f"{TARGET}={{ip:server}}"]
    (scratch.path / "subjects/tor-names.toml").write_text(f"""{tor}
[[file]]
path = "resolv.conf"
text = "nameserver {{ip:server}}\\n"
[[step]]
name = "servers"
host = "server"
command = {json.dumps([str(word) for word in servers])}
ready = [{{ tcp = "{{ip:server}}:80" }}]
[[step]]
name = "ask"
host = "client"
command = {json.dumps([sys.executable, __file__, "ask", "10.78.0.2"])}
run = "once"
ready_within = "90s"
""")
    workload = '[[workload]]\nkind = "download"\nbytes = "10kB"\n'
    subject = 'use = "tor-names"\nwith = { device = true, relays = 3 }'
    out = scratch.run(scratch.scenario("names", star(TOR, subject, workload, "[keep]\nlogs = true")), timeout=900)
    told = json.loads(logs(out)["ask"])
    checks.check("a name has an address of the device's own", re.match(r"198\.1[89]\.", told["address"]), told)
    checks.check(f"by which {BODY} bytes come from it, checksum", told["sha256"] == sha256(payload(BODY)), told)
    log, = out.rglob("logs/servers.log")
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    asked = {line["peer"] for line in lines if line.get("event") == "dns" and line["name"].rstrip(".").lower() == TARGET}
    came = {line["peer"].rsplit(":", 1)[0] for line in lines if line.get("event") == "request"}
    print(f"     the resolver was asked by {asked}, the target by {came}", flush=True)
    checks.check("one exit asks the resolver, and the target", len(asked) == 1 and asked == came, f"{asked}, {came}")


# --- a scenario that can do without -------------------------------------------------------------------------------------------------------


def left_out(scratch, checks):
    """`device` as it comes, on a machine with a program and without."""
    said = subprocess.run([LAB, "run", "device", "--out", scratch.path / "device", "--dry-run", "--json"], capture_output=True, text=True, timeout=120)
    lines = [json.loads(line) for line in said.stdout.splitlines()]
    planned = {line["subject"] for line in lines if line["event"] == "plan"}
    without = {line["subject"]: line["missing"] for line in lines if line["event"] == "left-out"}
    there = not missing("tun2proxy-bin")
    checks.check(f"scenario device: tor-up is {'planned' if there else 'left out'}", ("tor-up" in planned, "tor-up" in without) == (there, not there),
                 f"{planned}, {without}")
    checks.check("and the others are planned", {"native", "hoplite-up"} <= planned, planned)


def main(parts):
    checks = Checks("subjects")
    if not LAB.exists():
        checks.check(f"{LAB} is built", False)
        checks.done()
    scratch = Scratch()
    print(f"     results in {scratch.path}", flush=True)
    wanted = lambda name: not parts or any(part in name for part in parts)  # noqa: E731
    if wanted("left out"):
        checks.attempt("left out", lambda: left_out(scratch, checks))
    for name, (program, *_) in TRIED.items():
        if wanted(name):
            why = missing(program)
            checks.skip(name, why) if why else checks.attempt(name, lambda: carries(scratch, name))
    if wanted("names"):
        why = missing("tun2proxy-bin")
        checks.skip("names", why) if why else checks.attempt("names", lambda: names(scratch, checks))
    if not checks.failed:
        shutil.rmtree(scratch.path, ignore_errors=True)
    checks.done()


if __name__ == "__main__":
    if sys.argv[1:2] == ["ask"]:
        ask(sys.argv[2])
    else:
        main(sys.argv[1:])
