"""Faults in a private network of C tor's authorities with relays of ours: two machines with one key, an address that changes, a relay that comes and goes,
clocks that are wrong, a disk that is full, authorities that forge, keep back or are gone.

Needs `tor` and `tor-gencert`; root for a small disk, and libfaketime for clocks. Parts by name: twins, moves, flaps, hibernates, clocks, disk, vote, lies, expires.
"""

import contextlib
import datetime
import http.server
import os
import pathlib
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.request

from client_test import fetch, reply
from common import HOPLITE, Checks, Lab, Missing, free_port, quoted, wait_for
from tor_relays_test import Ours, attempt, document, listed, network
from tor_services_test import ours as our_client
from tor_services_test import program
from tor_test import targets

FAKETIME = "/usr/lib/{}/faketime/libfaketimeMT.so.1"
ELSEWHERE = "lists this relay at addresses that are not its own"
UNWRITTEN = "the directory cache cannot be written"
WANTED = {"Running", "Valid"}


class Net:
    """The authorities, and what a relay of ours needs to be one of theirs."""

    def __init__(self, lab):
        self.lab = lab
        self.http, self.resolver, names = targets(lab)
        self.authorities, self.relays = network(lab, names)
        wait_for("the authorities", lambda: len(listed(self.authorities[0])) >= 5 or time.sleep(0.5), 120)

    def relay(self, name, **more):
        return Ours(self.lab, name, self.resolver, self.authorities, **more)

    def port_of(self, name):
        """The port at which the consensus has the relay."""
        url = f"http://127.0.0.1:{self.authorities[0].dirport}/tor/status-vote/current/consensus"
        lines = urllib.request.urlopen(url, timeout=5).read().decode().splitlines()
        found = [int(line.split()[7]) for line in lines if line.startswith(f"r {name} ")]
        return found[0] if len(found) == 1 else found

    def until(self, what, condition, seconds=90):
        """Whether it came so."""
        with contextlib.suppress(TimeoutError):
            return wait_for(what, lambda: condition() or time.sleep(0.5), seconds)
        return False

    def runs(self, name):
        return WANTED <= listed(self.authorities[0]).get(name, set())


def published(checks, net, name, **more):
    relay = net.relay(name, **more).start()
    checks.check(f"{name} is listed", net.until("it to be listed", lambda: net.runs(name), 120), relay.text()[-600:])
    return relay


def twins(checks, net):
    """Two machines with one key: authorities list the one that has told of itself last, and both operators are told."""
    first = published(checks, net, "amber")
    checks.check("alone, nothing is said of another machine", ELSEWHERE not in first.text())
    second = net.relay("copy")
    shutil.copytree(first.folder, second.folder)
    second.file.write_text(second.file.read_text().replace('name = "copy"', 'name = "amber"'))
    second.start()
    won = net.until("the later one", lambda: net.port_of("amber") == second.port)
    checks.check("the consensus has one relay of that key, the one that told of itself last", won, net.port_of("amber"))
    told = net.until("the first to be told", lambda: ELSEWHERE in first.text())
    checks.check("the first one's log says that another machine has its keys", told, first.text()[-600:])
    seen = set()
    for _ in range(30):
        seen.add(net.port_of("amber"))
        time.sleep(1)
    checks.check("it does not flap", seen == {second.port}, seen)
    first.process.stop()
    first.start()
    checks.check("the first one is started again, and wins", net.until("the first", lambda: net.port_of("amber") == first.port), net.port_of("amber"))
    checks.check("and the second is told", net.until("the second to be told", lambda: ELSEWHERE in second.text()), second.text()[-600:])
    checks.check("no address is in what is said", all("127.0.0.1:" not in line for line in second.text().splitlines() if ELSEWHERE in line))
    first.process.stop()
    second.process.stop()


def moves(checks, net):
    """Another address, under the same identity."""
    relay = published(checks, net, "birch")
    relay.process.stop()
    before, relay.port = relay.port, free_port()
    relay.file.write_text(relay.file.read_text().replace(f":{before}", f":{relay.port}"))
    relay.start()
    moved = net.until("the new address", lambda: net.port_of("birch") == relay.port and net.runs("birch"))
    checks.check("the authorities list it where it is now", moved, (net.port_of("birch"), relay.port))
    via = program(net.lab, "mover", net.authorities, "UseEntryGuards 0\nExitNodes birch\nStrictNodes 1\n")
    checks.attempt("a client of C tor goes out there", lambda: attempt(lambda: fetch(via, "127.0.0.1", net.http, 20_000)))
    checks.check("its operator is not told of another machine", ELSEWHERE not in relay.text())
    via.stop()
    relay.process.stop()


def flaps(checks, net):
    """It goes and comes: authorities test it themselves."""
    relay = published(checks, net, "cedar")
    relay.process.stop()
    gone = net.until("it to be gone", lambda: "Running" not in listed(net.authorities[0]).get("cedar", set()), 300)
    checks.check("who does not answer is not Running any more", gone)
    relay.start()
    checks.check("who is back is Running again, without a hand", net.until("it to be back", lambda: net.runs("cedar"), 120), relay.text()[-600:])
    relay.process.stop()


def hibernates(checks, net):
    """A relay of C tor has used up what it may carry in a day, while a client of ours runs."""
    relay = published(checks, net, "birch")
    via = our_client(net.lab, "wakeful", net.authorities)
    sleeper = net.relays[0]
    sleeper.process.stop()
    awake = sleeper.torrc
    sleeper.torrc += "CountPrivateBandwidth 1\nAccountingStart day 00:00\nAccountingMax 4 MBytes\n"
    sleeper.start(net.authorities)
    went = []

    def is_asleep():
        went.append(attempt(lambda: fetch(via, "127.0.0.1", net.http, 100_000, user=f"h{len(went)}")))
        return "Going dormant" in sleeper.process.text() or "Bandwidth soft limit reached" in sleeper.process.text()
    checks.check("a relay of C tor goes to sleep", net.until("it to be asleep", is_asleep, 180), sleeper.process.text()[-600:])
    # When authorities miss it is its own affair: it answers on connections that stand until it has nothing left at all.
    gone = net.until("it to be gone", lambda: "Running" not in listed(net.authorities[0]).get(sleeper.name, set()) or not is_asleep(), 120)
    after = [attempt(lambda n=n: fetch(via, "127.0.0.1", net.http, 100_000, user=f"a{n}")) for n in range(10)]
    print(f"      {went.count(True)} of {len(went)} fetches while it went to sleep, {after.count(True)} of 10 after that; it is {'not ' if gone else ''}Running", flush=True)
    checks.check("the client of ours goes on, over other relays", went.count(True) == len(went) and after.count(True) == 10, [one for one in went + after if one is not True])
    checks.check("it has not ended, nor panicked", via.alive() and "panicked" not in via.text(), via.text()[-600:])
    via.stop()
    relay.process.stop()
    sleeper.process.stop()
    sleeper.torrc = awake
    sleeper.start(net.authorities)
    net.until("it to be back", lambda: net.runs(sleeper.name), 120)


def library():
    found = [pathlib.Path(FAKETIME.format(name)) for name in ("x86_64-linux-gnu", "aarch64-linux-gnu")]
    return next((path for path in found if path.exists()), None)


def clocks(checks, net):
    """Relays whose clock is wrong; the network's is right."""
    if not library():
        checks.skip("clocks that are wrong", Missing("apt-get install faketime"))
        return
    for name, off, serves in (("soon", "+30s", True), ("fast", "+3h", False), ("slow", "-3h", False)):
        relay = net.relay(name)
        os.environ |= {"LD_PRELOAD": str(library()), "FAKETIME": off, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
        try:
            relay.start()
        finally:
            for key in ("LD_PRELOAD", "FAKETIME", "FAKETIME_DONT_FAKE_MONOTONIC"):
                del os.environ[key]
        if serves:
            came = net.until("a consensus", lambda relay=relay: "a consensus of Tor's authorities was fetched" in relay.text(), 60)
            checks.check(f"a cache whose clock is off by {off} goes on", came, relay.text()[-600:])
        else:
            said = net.until("its complaint", lambda relay=relay: told_of_time(relay), 60)
            checks.check(f"a cache whose clock is off by {off} says so", said, relay.text()[-900:])
            checks.check(f"and gives nothing that it does not believe ({off})", not (relay.folder / "tor-directory.sqlite").exists() or not kept(relay))
        print(f"      {off}: {[line.split(' ', 2)[-1][:220] for line in relay.text().splitlines() if ' WARN ' in line][-3:]}", flush=True)
        checks.check(f"{name} has not ended, nor panicked", relay.process.alive() and "panicked" not in relay.text(), relay.text()[-600:])
        relay.process.stop()


def told_of_time(relay):
    return [line for line in relay.text().splitlines() if "a consensus of Tor's authorities" in line and ("clock" in line or "time" in line or "over" in line)]


def kept(relay):
    """Whether it keeps a consensus."""
    with contextlib.suppress(sqlite3.Error, TypeError):
        return bool(document(relay))
    return False


@contextlib.contextmanager
def small_disk(folder, kilobytes):
    folder.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k,mode=700", "tmpfs", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=False)


def fill(folder):
    """Until nothing more goes in."""
    file = folder / "full"
    with file.open("wb", buffering=0) as out, contextlib.suppress(OSError):
        while True:
            out.write(bytes(1024))
    return file


def disk(checks, net):
    """The disk of a relay that keeps consensuses is full for a while."""
    if os.geteuid() != 0:
        checks.skip("a full disk", "a small disk needs root")
        return
    relay = net.relay("elder")
    with small_disk(relay.folder, 4096):
        relay.start()
        checks.check("elder is listed", net.until("it to be listed", lambda: net.runs("elder"), 120), relay.text()[-600:])
        wait_for("its consensus", lambda: kept(relay) or time.sleep(0.5), 60)
        full = fill(relay.folder)
        said = net.until("its complaint", lambda: UNWRITTEN in relay.text(), 90)
        checks.check("a cache whose disk is full says so", said, relay.text()[-600:])
        before = document(relay)
        checks.check("what it has kept is whole", before.startswith("network-status-version 3") and before.rstrip().endswith("-----END SIGNATURE-----"))
        via = program(net.lab, "reader", net.authorities, f"UseEntryGuards 0\nExitNodes elder\nStrictNodes 1\n")
        checks.attempt("it carries on", lambda: attempt(lambda: fetch(via, "127.0.0.1", net.http, 20_000)))
        via.stop()
        full.unlink()
        later = net.until("a later one", lambda: kept(relay) and document(relay) != before, 120)
        checks.check("when there is room it keeps the next consensus", later, relay.text()[-600:])
        checks.check("its log has no panic", "panicked" not in relay.text(), relay.text()[-600:])
        relay.process.stop()


def authorities_of_ours(lab):
    """Three, in folders of their own; and what each is known by."""
    folders, named = [lab.folder / f"authority{n}" for n in range(3)], []
    for folder in folders:
        made = subprocess.run([HOPLITE, "keygen", "--authority", "--out", folder], check=True, capture_output=True, text=True)
        named.append((made.stdout.strip(), f"127.0.0.1:{free_port()}"))
    for folder, (_, address) in zip(folders, named):
        file = f'authorities = {quoted("@".join(one) for one in named)}\nlisten = "{address}"\ninterval = 8\nvoting = 2\nintervals = 1000\nhsdir_uptime = 0\n'
        (folder / "directory.toml").write_text(file + "[admission]\nprivate = true\n")
    return folders, named


def signers(address):
    """When the list of this authority begins, and who has signed it; 0 while there is none."""
    try:
        text = urllib.request.urlopen(f"http://{address}/hoplite/list", timeout=5).read().decode()
    except OSError:
        return 0, set()
    lines = text.splitlines()
    begins = next(int(line.split()[1]) for line in lines if line.startswith("valid-after "))
    return begins, {line.split()[1] for line in lines if line.startswith("signed ")}


def vote(checks, net):
    """The disk of one of three authorities of ours is full while they vote."""
    if os.geteuid() != 0:
        checks.skip("a full disk during a vote", "a small disk needs root")
        return
    lab = net.lab
    folders, named = authorities_of_ours(lab)
    kept = {file.name: file.read_bytes() for file in folders[0].iterdir()}
    shutil.rmtree(folders[0])
    key = named[0][0]
    with small_disk(folders[0], 1024):
        for name, content in kept.items():
            (folders[0] / name).write_bytes(content)
            (folders[0] / name).chmod(0o600)
        running = [lab.run(f"authority{n}", [HOPLITE, "directory", "--config", folder / "directory.toml"]) for n, folder in enumerate(folders)]
        others = [address for _, address in named[1:]]
        checks.check("three authorities sign", net.until("three signatures", lambda: key in signers(others[0])[1], 90), running[0].text()[-600:])
        full = fill(folders[0])
        went = net.until("lists without it", lambda: key not in signers(others[0])[1], 60)
        checks.check("with a full disk it signs nothing, and the others go on", went, signers(others[0]))
        complaints = [line for line in running[0].text().splitlines() if " WARN " in line or " ERROR " in line]
        print(f"      {[line.split(' ', 2)[-1][:200] for line in complaints][-3:]}", flush=True)
        checks.check("it says so", any("full" in line or "space" in line for line in complaints), complaints[-3:])
        begins = signers(others[0])[0]
        checks.check("they go on", net.until("a later list", lambda: signers(others[0])[0] > begins, 60))
        checks.check("it has not ended", running[0].alive(), running[0].text()[-600:])
        full.unlink()
        checks.check("when there is room it signs again", net.until("its signature", lambda: key in signers(others[0])[1], 90), running[0].text()[-600:])
        running[0].stop()
        running[0] = lab.run("authority0-again", [HOPLITE, "directory", "--config", folders[0] / "directory.toml"])
        checks.check("what it has kept is whole: it starts with it", net.until("its start", lambda: "the authority is up" in running[0].text(), 30), running[0].text()[-600:])
        for one in running:
            one.stop()


class Liar(http.server.ThreadingHTTPServer):
    """An authority's DirPort, changed on the way: `how` turns the text of a consensus into what is given."""

    def __init__(self, authority, how):
        self.authority, self.how, self.asked = authority, how, 0
        super().__init__(("127.0.0.1", 0), Answers)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def dirport(self):
        return self.server_address[1]

    @property
    def v3(self):
        return self.authority.v3


class Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self):  # noqa: N802: the library's name
        server = self.server
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{server.authority.dirport}{self.path.removesuffix('.z')}", timeout=5) as came:
                body = came.read()
        except OSError:
            self.send_error(404)
            return
        if "consensus" in self.path:
            server.asked += 1
            body = server.how(body)
        if body is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def cut(body):
    return body[:len(body) // 2]


def forged(body):
    return body.replace(b"Exit Fast", b"BadExit Exit Fast", 1)


def unsigned(body):
    """One signature of three."""
    head, *signatures = body.split(b"directory-signature ")
    return head + b"directory-signature " + signatures[0]


def lies(checks, net):
    """What a cache asks does not come as authorities have signed it. One true authority is enough."""
    for name, how in (("forges", forged), ("gives half of it", cut), ("leaves signatures out", unsigned), ("withholds", lambda _: None)):
        liars = [Liar(authority, how) for authority in net.authorities]
        relay = Ours(net.lab, f"w{how.__name__.strip('<>')}", net.resolver, liars)
        relay.start()
        asked = net.until("its question", lambda liars=liars: sum(liar.asked for liar in liars) >= 3, 60)
        net.until("its complaint", lambda relay=relay: "cannot be had" in relay.text(), 20)
        print(f"      {name}: {[line.split(' ', 2)[-1][:160] for line in relay.text().splitlines() if 'cannot be had' in line][:1]}", flush=True)
        checks.check(f"where every authority {name}, the cache keeps nothing", asked and not kept(relay), relay.text()[-600:])
        checks.check(f"where every authority {name}, it says so", "a consensus of Tor's authorities cannot be had" in relay.text(), relay.text()[-600:])
        liars[1].how = bytes
        checks.check(f"when one of them no longer {name}, it has a consensus", net.until("a consensus", lambda relay=relay: kept(relay), 120), relay.text()[-600:])
        relay.process.stop()
        for liar in liars:
            liar.shutdown()


def expires(checks, net):
    """No consensus comes any more while a client of ours runs: the last good one serves until its time is over."""
    # The authorities are relays too, and go with their relays.
    relay = published(checks, net, "amber")
    via = our_client(net.lab, "lasting", net.authorities, path=["r0", "amber", "r1"])
    checks.attempt("a client of ours fetches", lambda: attempt(lambda: fetch(via, "127.0.0.1", net.http, 20_000)))
    until = last_time(net)
    for authority in net.authorities:
        authority.process.stop()
    went = []
    while time.time() < until - 3:
        went.append(reply(via.socks, "127.0.0.1", net.http, user=f"u{len(went)}"))
        time.sleep(2)
    checks.check("without authorities it goes on until the consensus is over", went and not any(went), went)
    said = [line for line in via.text().splitlines() if "WARN" in line]
    checks.check("and says that it has no later one", any("renewing Tor's consensus" in line for line in said), said[-3:])
    time.sleep(max(0, until + 62 - time.time()))
    # A circuit or two stand ready for whoever comes next.
    after = [reply(via.socks, "127.0.0.1", net.http, user=f"after{n}") for n in range(6)]
    checks.check("when it is over, streams on new circuits are refused", after[-1] not in (0, None), after)
    said = [line.split(" ", 2)[-1][:200] for line in via.text().splitlines() if "WARN" in line]
    print(f"      it went on for {len(went)} streams, {went.count(0)} of them opened; then SOCKS {after}; {said[-3:]}", flush=True)
    checks.check("and the log says why", any("stale" in line or "over" in line for line in said), said[-4:])
    checks.check("it has not ended, nor panicked", via.alive() and "panicked" not in via.text(), via.text()[-600:])
    via.stop()
    relay.process.stop()


def last_time(net):
    url = f"http://127.0.0.1:{net.authorities[0].dirport}/tor/status-vote/current/consensus-microdesc"
    text = urllib.request.urlopen(url, timeout=5).read().decode()
    line = next(line for line in text.splitlines() if line.startswith("valid-until "))
    return datetime.datetime.fromisoformat(line.removeprefix("valid-until ") + "+00:00").timestamp()


PARTS = {part.__name__: part for part in (twins, moves, flaps, hibernates, clocks, disk, vote, lies, expires)}


def main():
    checks = Checks("Faults: relays of ours in C tor's network")
    if not all(map(shutil.which, ("tor", "tor-gencert"))):
        checks.skip("everything", Missing("tor or tor-gencert is not installed"))
        checks.done()
    wanted = sys.argv[1:] or list(PARTS)
    with Lab() as lab:
        net = Net(lab)
        for name in wanted:
            print(f"  -- {name}", flush=True)
            try:
                PARTS[name](checks, net)
            except Exception as e:  # noqa: BLE001: whatever went wrong is the finding
                checks.check(f"{name} is tried to its end", False, f"{type(e).__name__}: {e}")
    checks.done()


if __name__ == "__main__":
    main()
