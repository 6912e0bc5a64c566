"""Programs told apart by control group, and traffic by the interface that it would leave by: excluded, or alone taken.

Parts of device_test.py.
"""

import os
import signal
import subprocess
import sys
import time

from common import wait_for

# Between the device and the target, beside the uplink; and what is behind the target.
NEAR, FAR, BEHIND = "10.8.0.1", "10.8.0.2", "10.44.0.1"

# At all addresses of the target; its other servers are at some.
PORT = 7080
SERVER = f"""import http.server
class Peer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.client_address[0].encode())
http.server.ThreadingHTTPServer(("0.0.0.0", {PORT}), Peer).serve_forever()"""


def apart(session):
    """Control groups that come late or are made anew, excluded and alone taken; interfaces, excluded and alone taken."""
    if session.device.sh("test -w /sys/fs/cgroup/cgroup.procs && echo yes"):
        excluded_group(session)
        for strict in (False, True):
            included_group(session, strict)
    else:
        session.checks.skip("control groups", "no control groups of version 2 that could be mounted and written")
    interfaces(session)
    session.watch.since()


class Group:
    """A control group of the device's."""

    def __init__(self, session, what):
        self.device, self.name = session.device, f"hoplite-{what}-{os.getpid()}.slice"
        self.path = f"/sys/fs/cgroup/{self.name}"
        self.inside = ("sh", "-c", f'echo 0 > {self.path}/cgroup.procs && exec "$@"', "sh")

    def make(self):
        self.device.sh(f"mkdir {self.path}")

    def number(self):
        return self.device.sh(f"stat -c %i {self.path} 2> /dev/null").strip()

    def empty(self):
        """Waits until its programs have ended for the kernel, too."""
        wait_for("its last program's end", lambda: "populated 0" in self.device.sh(f"cat {self.path}/cgroup.events"), 10)

    def remove(self):
        """Waits until the kernel has let its last program go."""
        self.device.sh(f"for n in $(seq 50); do [ -d {self.path} ] || break; rmdir {self.path} 2> /dev/null && break; sleep 0.1; done")


def are_seen(session, name, cases):
    for what, seen, expected in cases:
        session.checks.check(f"{name}: {what} is seen as it must be", seen in expected, f"{seen}, expected {expected}")


def marked(device, group):
    """Whether nftables knows the group as it is now."""
    return group.number() and f'comment "{group.number()}"' in device.sh("nft list table inet hoplite-marks")


def excluded_group(session):
    """The programs of a control group go by themselves, also where it is made when all is up, and made anew."""
    name, device = "excluded group", session.device
    group, url, relay = Group(session, "past"), f"http://{session.target.v4}", (session.lab.relays[0].v4,)
    try:
        if not session.ups(name, 1, f'\n[takeover]\nexclude = {{ cgroups = ["{group.name}"] }}\n'):
            return
        session.watch.since()
        for how in ("made when it is up", "made anew"):
            group.make()
            session.checks.attempt(f"{name}: {how}, it is known", lambda: wait_for("its mark", lambda: marked(device, group), 5) or True)
            six = f"http://[{session.target.v6}]"
            are_seen(session, f"{name}, {how}", [
                ("its program", session.seen_as(url, *group.inside), (device.v4,)), ("anybody else", session.seen_as(url), relay),
                ("its program, IPv6", session.seen_as(six, *group.inside), (device.v6,)),
                ("its program, by name", session.seen_as("http://target.test", *group.inside), (device.v4,)),
                ("anybody else, by name", session.seen_as("http://target.test"), relay)])
            group.remove()
        session.state(name, (session.target.v4, session.target.v6))
        group.make()
        if session.ups(f"{name}, replaced by a file that excludes nothing", 1, "", "--replace"):
            are_seen(session, f"{name}, replaced", [("its program", session.seen_as(url, *group.inside), relay)])
        group.remove()
        session.downs(name)
        if session.ups(f"{name}, --no-block", 1, f'\n[takeover]\nexclude = {{ cgroups = ["{group.name}"] }}\n', "--no-block"):
            group.make()
            wait_for("its mark", lambda: marked(device, group), 5)
            are_seen(session, f"{name}, --no-block", [("its program", session.seen_as(url, *group.inside), (device.v4,)), ("anybody else", session.seen_as(url), relay)])
            session.downs(f"{name}, --no-block")
    finally:
        group.remove()


def included_group(session, strict):
    """The programs of a control group alone are taken, whatever happens to the group, the firewall and the process; its group is made for them."""
    name, device, checks = f"included group{', strict reverse path' if strict else ''}", session.device, session.checks
    group, url, own = Group(session, "only"), f"http://{session.target.v4}", (session.device.v4, session.device.v6)
    relay = (session.lab.relays[0].v4, session.lab.relays[0].v6)
    filters = device.sh("cd /proc/sys/net/ipv4/conf; grep -H . */rp_filter").split()
    if strict:
        device.sh("cd /proc/sys/net/ipv4/conf; for file in */rp_filter; do echo 1 > $file; done")
    before = device.snapshot()
    talking = None
    try:
        if not session.ups(name, 1, f'\n[takeover]\ninclude = {{ cgroups = ["{group.name}"] }}\n'):
            return
        checks.check(f"{name}: it was made", group.number() and marked(device, group), group.number())
        session.watch.since()

        def cases(when):
            six = f"http://[{session.target.v6}]"
            are_seen(session, f"{name}, {when}", [
                ("its program", session.seen_as(url, *group.inside), relay), ("its program, IPv6", session.seen_as(six, *group.inside), relay),
                ("its program, by name", session.seen_as("http://target.test", *group.inside), relay),
                ("anybody else", session.seen_as(url), own), ("anybody else, by name", session.seen_as("http://target.test"), own)])

        cases("at first")
        old = group.number()
        group.remove()
        checks.attempt(f"{name}: removed, it is made again", lambda: wait_for("it", lambda: group.number() not in ("", old) and marked(device, group), 5) or True)
        cases("made again")
        script = f'while :; do curl -s --max-time 2 {url}/peer || echo none; echo; done'
        talking = device.run("talking", [*group.inside, "sh", "-c", script])
        for _ in range(5):
            device.sh("nft flush ruleset")
            time.sleep(0.3)
        checks.attempt(f"{name}: flushed, the firewall is made again", lambda: wait_for("it", lambda: marked(device, group), 5) or True)
        device.kill()
        time.sleep(1)
        checks.check(f"{name}: after SIGKILL others go on", session.seen_as(url) in own)
        if session.ups(f"{name}, again", 1, f'\n[takeover]\ninclude = {{ cgroups = ["{group.name}"] }}\n'):
            time.sleep(1)
        talking.stop(signal.SIGKILL)
        group.empty()
        answers = set(talking.text().split())
        checks.check(f"{name}: through all of that its programs were seen as the relay or not at all", relay[0] in answers and not answers & set(own), answers)
        session.downs(name)
        group_left = group.number()
        checks.check(f"{name}: after down it is gone", not group_left, group_left)
        # What the block leaves while nobody is up is closed for it alone.
        config = device.config(1, f'\n[takeover]\ninclude = {{ cgroups = ["{group.name}"] }}\n')
        code, said, _ = device.hoplite("up", "--block-only", "--config", config)
        checks.check(f"{name}: block-only", code == 0, said)
        are_seen(session, f"{name}, block-only", [("its program", session.seen_as(url, *group.inside), (None,)), ("anybody else", session.seen_as(url), own)])
        session.downs(f"{name}, block-only")
        group.remove()
        session.same(name, before)
    finally:
        if talking:
            talking.stop(signal.SIGKILL)
        if device.daemons():
            session.downs(name)
        group.remove()
        for line in filters if strict else ():
            path, _, value = line.partition(":")
            device.sh(f"echo {value} > /proc/sys/net/ipv4/conf/{path}")


def interfaces(session):
    """What is bound to an interface and what is behind it goes by it; and, the other way round, what would leave by one interface alone is taken."""
    device, target, checks = session.device, session.target, session.checks
    relay, url = (session.lab.relays[0].v4,), f"http://{target.v4}"
    for command in (f"link add via9 netns {device.ns} type veth peer name far9 netns {target.ns}", f"-n {device.ns} addr add {NEAR}/24 dev via9",
                    f"-n {device.ns} link set via9 up", f"-n {target.ns} addr add {FAR}/24 dev far9", f"-n {target.ns} link set far9 up",
                    f"-n {target.ns} addr add {BEHIND}/32 dev lo"):
        subprocess.run(["ip", *command.split()], check=True)
    near, behind = f"http://{FAR}:{PORT}", f"http://{BEHIND}:{PORT}"
    serving = target.run("peers", [sys.executable, "-c", SERVER])
    try:
        checks.attempt("interfaces: there is a server", lambda: wait_for("it", lambda: session.seen_as(near) == NEAR, 10) or True)
        device.sh(f"ip route add default via {FAR} dev via9 metric 900")
        name = "excluded interface"
        if session.ups(name, 1, '\n[takeover]\nexclude = { interfaces = ["via9", "absent9"] }\n'):
            session.watch.since()
            are_seen(session, name, [
                ("what is on its link", session.seen_as(near), (NEAR,)), ("all else", session.seen_as(url), relay),
                ("what is bound to it", device.sh(f"curl -sS --interface via9 --max-time 5 {url}/peer"), (NEAR,))])
            device.sh(f"ip route add 10.44.0.0/16 via {FAR} dev via9")
            checks.attempt(f"{name}: where a new route leads is excluded", lambda: wait_for("it", lambda: session.seen_as(behind) == NEAR, 5) or True)
            device.sh("ip route del 10.44.0.0/16")
            checks.attempt(f"{name}: and is not without it", lambda: wait_for("it", lambda: session.seen_as(behind) != NEAR, 5) or True)
            session.state(name)
            session.downs(name)
        name = "included interface"
        if session.ups(name, 1, '\n[takeover]\ninclude = { interfaces = ["eth0"] }\n'):
            session.watch.since()
            are_seen(session, name, [("what would leave by it", session.seen_as(url), relay), ("what would leave by another", session.seen_as(near), (NEAR,)),
                                     ("what would leave by it, by name", session.seen_as("http://target.test"), relay)])
            session.state(name)
            device.kill()
            are_seen(session, f"{name}, after SIGKILL", [("what would leave by it", session.seen_as(url), (None,)), ("what would leave by another", session.seen_as(near), (NEAR,))])
            session.downs(name)
    finally:
        serving.stop(signal.SIGKILL)
        subprocess.run(["ip", "-n", device.ns, "link", "del", "via9"], check=True)
        subprocess.run(["ip", "-n", target.ns, "addr", "del", f"{BEHIND}/32", "dev", "lo"], check=True)
