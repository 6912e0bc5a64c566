"""Bad input and faults: programs that flood, packets that are none, queues that are full, the overlay gone in the middle of everything.

Parts of device_test.py. Through each of them the same process lives on, memory stays bounded, other flows go on, what was done is counted, and nothing
leaves by the uplink but what goes to the first relay.
"""

import json
import os
import re
import signal
import sys
import time

from common import HERE, wait_for
from device import NAME, PROGRAMS

HOSTILE = HERE / "hostile.py"
FLOW_PORT, DEAF_PORT = 7001, 7005
# Where the target is a black hole, a wall, and an end of the network: see `walls`.
HOLE, WALL, NO_ROUTE = 20000, 25001, 25002
TABLE = "tcp_table_in_the_test"


def storms(session):
    """Rubbish, overlapping segments, SYN flood, DNS storm, a full queue, readers that do not read, the overlay gone."""
    if not session.ups("storms", 2, f"\n[flows]\ntcp = {TCP_FLOWS}\n[dns]\nprivate = true\n"):
        return
    walls(session)
    session.watch.since()
    pids = session.device.daemons()
    try:
        for storm in (rubbish, overlapping, syn_flood, dns_storm, full_queue, slow_readers, overlay_gone):
            began = time.monotonic()
            try:
                storm(session)
            except Exception as e:  # noqa: BLE001: the other storms go on
                session.checks.check(storm.__doc__.splitlines()[0], False, f"{type(e).__name__}: {e}")
            name = storm.__name__.replace("_", " ")
            session.checks.check(f"{name}: the same process goes on", session.device.daemons() == pids, session.device.daemons())
            session.state(name)
            print(f"     ({name}: {time.monotonic() - began:.0f} s)", flush=True)
    finally:
        session.device.sh(f"nft delete table inet {TABLE}")
        session.target.call("nft", "delete", "table", "inet", TABLE)
    session.downs("storms")
    session.watch.since()


# Small, so that a flood fills it; a quarter of them may be half-open.
TCP_FLOWS = 4096


def walls(session):
    """Ports of the target that never answer and that say by ICMP that nobody is there; ports of the device whose segments its kernel does not see."""
    target = f"tcp dport {HOLE}-{HOLE + 4999} drop; tcp dport {WALL} reject with icmpx type host-unreachable; tcp dport {NO_ROUTE} reject with icmpx type no-route"
    nft(session.target, f"chain i {{ type filter hook input priority 0; {target}; }}")
    nft(session.device, f"chain i {{ type filter hook input priority -300; iifname {NAME} tcp dport 61000-61999 drop; }}")


def nft(host, chain):
    text = f"table inet {TABLE} {{\n{chain}\n}}\n"
    file = host.lab.folder / f"{host.name}.nft"
    file.write_text(text)
    done = host.call("nft", "-f", file)
    if done.returncode:
        raise RuntimeError(done.stderr.decode())


# --- what is looked at -------------------------------------------------------------------------------------------------------------------------


def resident(session):
    """Megabytes of memory that the processes have."""
    return sum(int(re.search(r"VmRSS:\s+(\d+)", open(f"/proc/{pid}/status").read())[1]) for pid in session.device.daemons()) / 1024


def counters(session):
    told = session.device.status()
    return told["counters"], told["flows"]


def gained(session, before):
    now = counters(session)[0]
    return {name: now[name] - count for name, count in before.items() if now[name] != count}


def beside(session, name, *words):
    """Starts a program that somebody else's flows must survive."""
    return session.device.run(f"{name}-{time.monotonic_ns()}", [sys.executable, HOSTILE, *words])


def end_of(process, timeout=60):
    """Its last line of JSON, or what went wrong."""
    try:
        process.child.wait(timeout)
    except Exception:  # noqa: BLE001: too long
        process.stop(signal.SIGKILL)
    lines = process.lines()
    return lines[-1] if lines else {"error": process.text()[-300:]}


def others(session, name, count=40):
    """Flows of programs that have nothing to do with it."""
    places = [f"target.test:{FLOW_PORT}", f"{session.target.v4}:{FLOW_PORT}", f"target6.test:{FLOW_PORT}"]
    got = session.device.program("flows", count, 16, 11, *places, timeout=90)
    took = got.get("seconds", 0)
    session.checks.check(f"{name}: meanwhile {count} flows of others, none wrong ({took:.1f} s)", got.get("wrong") == {} and took < 30, got.get("first") or got)


# --- the storms --------------------------------------------------------------------------------------------------------------------------------


def rubbish(session):
    """Malformed, truncated, spoofed packets, fragments, options, jumbo and empty ones."""
    before, memory = counters(session)[0], resident(session)
    storm = beside(session, "rubbish", "rubbish", NAME, session.target.v4, session.target.v6, 12_000, 5)
    others(session, "rubbish")
    said = end_of(storm)
    session.checks.check(f"rubbish: {said.get('kinds')} kinds and {said.get('sent')} packets were sent", said.get("sent", 0) > 10_000 and said["kinds"] > 40, said)
    got, grown = gained(session, before), resident(session) - memory
    for what in ("malformed", "bad_checksum", "foreign", "unroutable", "fragments", "options", "other_dropped", "dns_malformed"):
        session.checks.check(f"rubbish: {what} counts it ({got.get(what)})", got.get(what, 0) > 0, got)
    session.checks.check(f"rubbish: memory grew by {grown:.0f} MB", grown < 50)


def overlapping(session):
    """Segments that overlap, come in any order, twice, and with other bytes in an old place."""
    for seed in (1, 2):
        got = end_of(beside(session, "overlap", "overlap", NAME, session.target.v4, FLOW_PORT, 200_000, seed))
        session.checks.check(f"overlapping segments: the target gets each byte once ({got.get('pieces')} pieces)", got.get("right"), got)


def syn_flood(session):
    """A program opens connections by the thousand to where nobody answers."""
    before, memory, most = counters(session)[0], resident(session), 0
    count = 10_000
    storm = beside(session, "syn-flood", "syn-flood", session.target.v4, HOLE, count, 2500)
    others(session, "SYN flood")
    while storm.alive():
        most = max(most, counters(session)[1]["tcp"])
        time.sleep(0.2)
    said = end_of(storm)
    most = max(most, counters(session)[1]["tcp"])
    got, grown = gained(session, before), resident(session) - memory
    session.checks.check(f"SYN flood: {said.get('sent')} SYNs in {said.get('seconds', 0):.1f} s, never more than {most} flows", said.get("sent", 0) > count * 0.9 and 0 < most <= TCP_FLOWS, said)
    made_room = got.get("tcp_evicted", 0) + got.get("tcp_dropped", 0)
    session.checks.check(f"SYN flood: {made_room} are counted as having made room", made_room > count / 2, got)
    session.checks.check(f"SYN flood: memory grew by {grown:.0f} MB", grown < 80)
    session.checks.attempt("SYN flood: traffic flows at once afterwards", session.carries)


def dns_storm(session):
    """Questions for names that nobody asked before: more than there are temporary addresses, and more than the relay looks up for a client."""
    count = 500_000
    server = re.findall(r"^nameserver (\S+)", session.device.sh("cat /etc/resolv.conf"), re.M)[0]
    before, memory = counters(session)[0], resident(session)
    storm = beside(session, "dns-storm", "dns-storm", server, count, "n")
    # The relay allows a second's worth of questions at once: others come when that is used up.
    wait_for("half of the storm", lambda: gained(session, before).get("dns_exhausted", 0) > count / 2 or not storm.alive(), 30)
    others(session, "DNS storm")
    said = end_of(storm)
    got, grown = gained(session, before), resident(session) - memory
    codes = said.get("codes", {})
    session.checks.check(f"DNS storm: {said.get('heard')} of {said.get('asked')} questions are answered in {said.get('seconds', 0):.1f} s {codes}",
                         said.get("asked") == count and said["heard"] > count * 0.95, said)
    session.checks.check(f"DNS storm: each name that has an address has its own, {said.get('addresses')} of at most 16384",
                         0 < said.get("addresses", 0) == codes.get("0") <= 16_384, said)
    session.checks.check(f"DNS storm: the rest is counted ({got.get('dns_exhausted')})", got.get("dns_exhausted", 0) > count / 2, got)
    session.checks.check(f"DNS storm: memory grew by {grown:.0f} MB", grown < 40)
    session.checks.attempt("DNS storm: afterwards a name that is known is found", session.carries)
    session.checks.attempt("DNS storm: afterwards a name that is new is found", lambda: session.carries("http://fresh.test/bytes/100000"))


def full_queue(session):
    """More packets than the queue holds, while nobody takes them."""
    dropped = lambda: json.loads(session.device.sh(f"ip -s -j link show {NAME}"))[0]["stats64"]["tx"]["dropped"]  # noqa: E731
    before, memory = dropped(), resident(session)
    for pid in session.device.daemons():
        os.kill(pid, signal.SIGSTOP)
    try:
        said = session.device.program("blast", session.target.v4, 7, 20_000, file=HOSTILE)
    finally:
        for pid in session.device.daemons():
            os.kill(pid, signal.SIGCONT)
    lost = dropped() - before
    session.checks.check(f"a full queue: the kernel drops what does not fit, {lost} of {said.get('sent')}", lost > 0, said)
    session.recovers("a full queue: traffic flows", 5)
    storm = beside(session, "blast", "blast", session.target.v4, 7, 60_000)
    others(session, "a flood of datagrams")
    end_of(storm)
    grown = resident(session) - memory
    session.checks.check(f"a full queue: memory grew by {grown:.0f} MB", grown < 80)


def slow_readers(session):
    """Programs that ask for much and read nothing, and targets that are sent much and read nothing."""
    target, count = session.target, 40
    # What may wait in the client of each, in MB: the default of [tunnel] stream_window and what its packets' buffers are larger; or what is on its way.
    for name, program, talks, most in (("programs that do not read", "never-read", ["talks"], 8), ("targets that do not read", "never-written", [], 3)):
        deaf = target.run(f"deaf-server-{program}", [sys.executable, HOSTILE, "deaf-server", target.v4, DEAF_PORT, *talks])
        wait_for("the deaf server", lambda: deaf.lines() or not deaf.alive())  # noqa: B023
        memory = resident(session)
        storm = beside(session, program, program, target.v4, DEAF_PORT, count, 60)
        wait_for(name, lambda: storm.lines() or not storm.alive(), 30)
        time.sleep(2)
        others(session, name)
        grown = resident(session) - memory
        alive = storm.alive()
        storm.stop()
        deaf.stop()
        session.checks.check(f"{name}: {count} flows cost {grown / count:.2f} MB each, {most} at most", alive and grown / count < most, storm.text()[-200:])


def overlay_gone(session):
    """The first relay dies in the middle of a thousand flows, idle and busy ones: all are told, none is cut short in silence."""
    count = int(os.environ.get("HOPLITE_DEVICE_FLOWS", 1000))
    relay, target, memory = session.lab.relays[0], session.target, resident(session)
    busy = session.device.run(f"busy-{time.monotonic_ns()}", [sys.executable, PROGRAMS, "flows", count, 200, 3, f"target.test:{FLOW_PORT}", f"{target.v4}:{FLOW_PORT}"])
    idle = session.device.run(f"idle-{time.monotonic_ns()}", [sys.executable, PROGRAMS, "wait-ends", target.v4, FLOW_PORT, count])
    wait_for("idle flows", lambda: idle.lines() or not idle.alive(), 60)
    session.lab.running[relay.name].stop(signal.SIGKILL)
    killed = time.monotonic()
    told = end_of(idle, 40)
    took = time.monotonic() - killed
    session.checks.check(f"the overlay gone: {told.get('count')} idle flows are told, by a reset, after {took:.1f} s",
                         told.get("count") == count and told.get("kinds") == {"ConnectionResetError": count} and took < 20, told)
    session.blocked("the overlay gone")
    open_now = counters(session)[1]["tcp"]
    session.lab.again(relay)
    said = end_of(busy, 120)
    wrong = said.get("wrong", {"?": 1})
    silent = {what: n for what, n in wrong.items() if not re.search("Reset|Refused|OSError|Unreachable", what)}
    session.checks.check(f"the overlay gone: of {count} busy flows {sum(wrong.values())} broke, each with an error, none cut short in silence", wrong and not silent, said.get("first", said))
    session.recovers("the overlay back: traffic flows", 20)
    others(session, "the overlay back")
    grown = resident(session) - memory
    session.checks.check(f"the overlay gone: {open_now} flows stayed, memory grew by {grown:.0f} MB", open_now < count and grown < 80)
