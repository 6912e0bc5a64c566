"""The workload `browse` of the lab with real browsers: pages loaded straight and over two relays, their samples, their HAR files, whom the server saw, who was
asked for names; and what goes wrong in a visit, each a sample with its reason. Firefox ESR and Chromium."""

import csv
import json
import os
import shutil
import socket
import stat
import subprocess

from common import Checks, Missing
from firefox import BINARY
from lab_test import LAB, Scratch, packets

# The client has an access link; names are known to a resolver that is not the server.
NETWORK = """
repetitions = 1
timeout = "10min"
baseline = "native"
[[host]]
name = "client"
[[host]]
name = "relay{i}"
repeat = 2
[[host]]
name = "server"
[[host]]
name = "resolver"
[[router]]
name = "core"
[[link]]
name = "access"
ends = ["client", "core"]
rate = "%s"
delay = "5ms"
queue = "500kB"
[[link]]
ends = ["relay{i}", "core"]
repeat = 2
delay = "2ms"
[[link]]
ends = ["server", "core"]
delay = "5ms"
[[link]]
ends = ["resolver", "core"]
"""

SUBJECTS = """
[keep]
har = true
pcap = ["access"]
[[subject]]
use = "native"
[[subject]]
use = "hoplite"
label = "hoplite-2"
with = { hops = 2, relays = 2 }
"""

PAGES = 2


def visits(out):
    return list(csv.DictReader((out / "export/visits.csv").open()))


def hars(out):
    """(run, HAR) of every visit that was kept."""
    return [(path.relative_to(out).parts[1], json.loads(path.read_text())["log"]) for path in sorted(out.rglob("har/*/*.har"))]


def seen_as(entry):
    """None of an answer whose headers the browser keeps to itself."""
    return next((h["value"] for h in entry["response"]["headers"] if h["name"].lower() == "x-seen-as"), None)


def asked_names(capture):
    """Names that were asked for in the clear on the client's link."""
    names = set()
    for _, packet in packets(capture):
        udp = packet[(packet[0] & 15) * 4:]
        if packet[0] >> 4 == 4 and packet[9] == 17 and udp[2:4] == b"\0\x35":
            labels, rest = [], udp[20:]
            while rest and rest[0]:
                labels.append(rest[1:1 + rest[0]].decode())
                rest = rest[1 + rest[0]:]
            names.add(".".join(labels))
    return names


def loads(scratch, checks, browser):
    scenario = scratch.scenario(f"browse-{browser}", NETWORK % "50Mbit" + SUBJECTS + f"""
[[workload]]
kind = "browse"
browser = "{browser}"
pages = {PAGES}
visits = 2
resolver = "resolver"
""")
    out = scratch.run(scenario, timeout=900)
    rows = visits(out)
    for subject, egress in (("native", "client"), ("hoplite-2", "relay2")):
        mine = [row for row in rows if row["subject"] == subject]
        where = f"{browser}, {subject}"
        checks.check(f"{where}: every page twice", sorted((r["page"], r["visit"]) for r in mine) ==
                     [(str(p), str(v)) for p in range(1, PAGES + 1) for v in (1, 2)], mine)
        checks.check(f"{where}: none failed", not any(row["error"] for row in mine), [row["why"] for row in mine])
        checks.check(f"{where}: each is labelled with its egress", {row["egress"] for row in mine} == {egress}, {row["egress"] for row in mine})
        times = [[float(row[key]) for key in ("tls_ms", "dom_content_loaded_ms", "page_load_ms")] for row in mine]
        checks.check(f"{where}: TLS, then the document, then the page", all(0 < tls < dom <= load for tls, dom, load in times), times)
        print(f"     {where}: page load {sorted(round(t[2]) for t in times)} ms, TLS {sorted(round(t[0], 1) for t in times)} ms, "
              f"requests over HTTP/1.1, 2, 3: {[sum(int(r[f'requests_http{v}']) for r in mine) for v in (1, 2, 3)]}")
        runs = {row["run"] for row in mine}
        for run in runs:
            capture, = (out / "runs" / run).rglob("access.pcap")
            asked = asked_names(capture)
            of_pages = {name for name in asked if name.endswith(".pages.test")}
            checks.check(f"{where}: names of pages are asked {'of the resolver' if subject == 'native' else 'of nobody but the proxy'}",
                         bool(of_pages) == (subject == "native"), of_pages)
            # The machine's own name is Firefox's, or that of a library below it.
            checks.check(f"{where}: nothing else is asked for by Firefox", browser != "firefox" or not asked - of_pages - {socket.gethostname()}, asked)
        kept = [har for run, har in hars(out) if run in runs]
        checks.check(f"{where}: a HAR file of each visit", len(kept) == 2 * PAGES, len(kept))
        entries = [entry for har in kept for entry in har["entries"]]
        checks.check(f"{where}: its requests all came", {entry["response"]["status"] for entry in entries} == {200}, "")
        checks.check(f"{where}: over the versions of HTTP that are offered",
                     {"HTTP/1.1", "HTTP/2"} <= {entry["response"]["httpVersion"] for entry in entries} <= {"HTTP/1.1", "HTTP/2", "HTTP/3"}, "")
        checks.check(f"{where}: each server saw one address", len({seen_as(entry) for entry in entries} - {None}) == 1, {seen_as(e) for e in entries})
        checks.check(f"{where}: each has its times", all(entry["timings"]["wait"] > 0 for entry in entries)
                     and any(entry["timings"]["ssl"] > 0 for entry in entries), "")
        checks.check(f"{where}: onLoad is that of the sample", sorted(round(har["pages"][0]["pageTimings"]["onLoad"]) for har in kept) ==
                     sorted(round(t[2]) for t in times), "")
    lines = [row for row in scratch.report(out) if row["metric"] == "page_load_s" and "median" in row]
    checks.check(f"{browser}: the report has page load with n", [row["n"] for row in lines] == [2 * PAGES] * 2, lines)
    figures = list((out / "figures").glob("*ecdf*page-load*.svg")) + list((out / "figures").glob("*page-load*ecdf*.svg"))
    checks.check(f"{browser}: and draws its distribution", bool(figures), [f.name for f in (out / "figures").iterdir()])


# A SOCKS5 proxy that hangs up on everybody after the first few connections to pages, and lives on.
FICKLE = r'''
import socket, struct, sys, threading
pages = []
def pump(a, b):
    try:
        while data := a.recv(65536):
            b.sendall(data)
    except OSError:
        pass
    for s in (a, b):
        try: s.shutdown(socket.SHUT_RDWR)
        except OSError: pass
def serve(c):
    c.recv(262); c.sendall(b"\5\0")
    head = c.recv(5); name = c.recv(head[4]); port, = struct.unpack("!H", c.recv(2))
    if name.endswith(b".pages.test"):
        pages.append(name)
    if len(pages) > int(sys.argv[1]):
        c.close(); return
    far = socket.create_connection((name.decode(), port))
    c.sendall(b"\5\0\0\1\0\0\0\0\0\0")
    threading.Thread(target=pump, args=(c, far), daemon=True).start()
    pump(far, c)
l = socket.create_server(("127.0.0.1", 1080)); print("ready", flush=True)
while True:
    c, _ = l.accept()
    threading.Thread(target=serve, args=(c,), daemon=True).start()
'''


def faults(scratch, checks):
    """One visit each; the campaign takes it, for the workload may fail."""
    proxy = scratch.path / "fickle.py"
    proxy.write_text(FICKLE)
    scratch.subject("fickle", f"""
[[step]]
name = "proxy"
host = "client"
command = ["python3", "{proxy}", "2"]
ready = [{{ log = "ready" }}]
[[way]]
host = "client"
way = "socks"
address = "127.0.0.1:1080"
""")
    scratch.subject("nobody", """
[[way]]
host = "client"
way = "socks"
address = "127.0.0.1:1080"
""")

    def one(name, rate, subject, more="", environment=None):
        scenario = scratch.scenario(f"fault-{name}", NETWORK.replace('baseline = "native"\n', "") % rate + f"""
[keep]
har = true
[[subject]]
use = "{subject}"
[[workload]]
kind = "browse"
pages = 1
resolver = "resolver"
may_fail = true
{more}
""")
        out = scratch.path / f"out-{name}"
        done = subprocess.run([LAB, "run", scenario, "--out", out, "--json"], capture_output=True, text=True, timeout=300,
                              env={**os.environ, **(environment or {})})
        if done.returncode:
            raise AssertionError(done.stderr[-2000:])
        row, = visits(out)
        return row, out

    def program(name, script):
        """A directory with a program that is called as the browser is."""
        folder = scratch.path / name
        folder.mkdir()
        path = folder / "firefox-esr"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
        return {"PATH": f"{folder}:{os.environ['PATH']}"}

    row, out = one("never", "200kbit", "native", 'timeout = "8s"')
    checks.check("a page that is not loaded in time: TIMEOUT, with how far it came", row["error"] == "TIMEOUT" and "objects had come" in row["why"], row)
    checks.check("its HAR file is kept", len(hars(out)) == 1 and hars(out)[0][1]["entries"], "")
    row, _ = one("nobody", "50Mbit", "nobody")
    checks.check("a proxy that is not there: PROXY", row["error"] == "PROXY", row)
    row, _ = one("fickle", "50Mbit", "fickle")
    checks.check("a proxy that dies in the visit: the visit has failed, and says how many requests did",
                 row["error"] and "requests failed" in row["why"], row)
    row, _ = one("none", "50Mbit", "native", environment=program("none", "echo no display >&2; exit 3"))
    checks.check("a browser that ends at its start: MISC, with its last words", row["error"] == "MISC" and "no display" in row["why"], row)
    # So long after it is there even on a slow machine it is in its visit, and at that rate still.
    there = 'until [ -s "$HOME/WebDriverBiDiServer.json" ]; do sleep 0.1; done; sleep 25'
    crash = f'{BINARY} "$@" & p=$!; {there}; kill -SEGV $p; wait $p; exit 139'
    row, _ = one("crash", "50kbit", "native", 'timeout = "100s"', environment=program("crash", crash))
    checks.check("a browser that crashes in the visit: CLOSED", row["error"] == "CLOSED", row)
    hang = f'{BINARY} "$@" & p=$!; {there}; kill -STOP $p; wait $p'
    row, _ = one("hang", "50kbit", "native", 'timeout = "50s"', environment=program("hang", hang))
    checks.check("a browser that hangs in the visit: STALL", row["error"] == "STALL" and "hangs" in row["why"], row)


def main():
    checks = Checks("a browser as a workload")
    if not LAB.exists():
        checks.check(f"{LAB} is built", False)
        checks.done()
    if not BINARY or not shutil.which("certutil"):
        checks.skip("Firefox as a workload", Missing("no Firefox, or no certutil"))
        checks.done()
    scratch = Scratch()
    print(f"     results in {scratch.path}")
    checks.attempt("Firefox", lambda: loads(scratch, checks, "firefox"))
    if shutil.which("chromedriver"):
        checks.attempt("Chromium", lambda: loads(scratch, checks, "chromium"))
    else:
        checks.skip("Chromium as a workload", Missing("chromium-driver is not installed"))
    checks.attempt("faults", lambda: faults(scratch, checks))
    if not checks.failed:
        shutil.rmtree(scratch.path, ignore_errors=True)
    checks.done()


if __name__ == "__main__":
    main()
