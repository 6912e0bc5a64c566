"""`hoplite run`: one program over two relays, as root and as a user without any right; what the network sees of it and of programs beside it, what is
left when something ends. A client, relays and a target in network namespaces; needs root to make these, and says so.
"""

import os
import shutil
import signal
import stat
import sys
import time

from common import HOPLITE, TOKEN, Checks, client_config, sha256, wait_for
from netns import RELAY_PORT, Capture, NetLab, ends, usable
from servers import payload

SIZE = 2_000_000
NOBODY = 65534


class Runs:
    """`hoplite run` on the client's host."""

    def __init__(self, lab):
        self.lab = lab
        entries = [(r.name, f"{r.v4}:{RELAY_PORT}", lab.leaves[r.name].pin, None) for r in lab.relays]
        self.config = lab.folder / "run.toml"
        self.config.write_text(client_config(entries, "127.0.0.1:1080", "127.0.0.1:8080", TOKEN))
        # Whom nobody can read serves nobody: folders of tests are private.
        lab.folder.chmod(0o755)
        self.config.chmod(0o644)
        self.program = lab.folder / "hoplite"
        shutil.copy(HOPLITE, self.program)
        self.program.chmod(0o755)
        # As distributions have it; some machines keep it for root.
        self.tun = lab.folder / "tun"
        os.mknod(self.tun, stat.S_IFCHR | 0o666, os.makedev(10, 200))
        self.tun.chmod(0o666)
        authority = lab.folder / "ca-for-all.pem"
        shutil.copy(lab.authority.ca, authority)
        authority.chmod(0o644)
        self.authority = authority

    def words(self, *program, user=0, options=None):
        # Each becomes the next.
        drop = ["unshare", "--mount", "sh", "-c", 'mount --bind "$0" /dev/net/tun; exec "$@"', str(self.tun),
                "setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all"] if user else []
        options = ["--config", self.config] if options is None else options
        return [*drop, self.program, "run", *map(str, options), "--", *map(str, program)]

    def call(self, *program, **more):
        return self.lab.client.call("env", "HOME=/tmp", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", *self.words(*program, **more))

    def curl(self, url, **more):
        return self.call("curl", "-sS", "--max-time", 20, "--cacert", self.authority, url, **more)


def carried(checks, lab, runs, user):
    """Names, addresses of both families, and what the network sees of it."""
    who = f"user {user}"
    expected = sha256(payload(SIZE))
    capture = Capture(lab.client, f"capture-{user}")
    for what, host in (("a name", "target.test"), ("an IPv4 address", lab.target.v4), ("an IPv6 address", f"[{lab.target.v6}]")):
        got = runs.curl(f"https://{host}/bytes/{SIZE}", user=user)
        checks.check(f"{who}: a download from {what}", got.returncode == 0 and sha256(got.stdout) == expected,
                     f"{got.returncode}: {got.stderr.decode()[-300:]}")
    seen = capture.stop()
    others = ends(seen) - {lab.client.v4, lab.client.v6}
    checks.check(f"{who}: the network sees the first relay alone", others == {lab.relays[0].v4}, others)
    checks.check(f"{who}: and no name", not any(b"target" in p[3] for p in seen))
    asked = runs.call("id", "-u", user=user)
    checks.check(f"{who}: the program is that user", asked.stdout.strip() == str(user).encode(), (asked.stdout, asked.stderr))
    sudo = runs.call("sh", "-c", "ip link set lo down; ip link add x type dummy", user=user)
    if user:
        checks.check(f"{who}: and has no rights over its network", sudo.returncode != 0, sudo)
    conf = runs.call("cat", "/etc/resolv.conf", user=user).stdout
    checks.check(f"{who}: its name servers are ours", b"nameserver 198.18.0.2" in conf, conf)


def codes(checks, runs):
    for what, program, code in (("its exit code", ("sh", "-c", "exit 7"), 7), ("that of a signal", ("sh", "-c", "kill -KILL $$"), 137),
                                ("a program that is not there", ("no-such-program",), 127), ("one that is none", ("/etc/passwd",), 126)):
        got = runs.call(*program, user=NOBODY)
        checks.check(f"{what} is told: {code}", got.returncode == code, f"{got.returncode}: {got.stderr.decode()[-300:]}")
    got = runs.call("cat", user=NOBODY)
    checks.check("standard input and output are the program's", got.returncode == 0, got)
    usage = runs.call("true", options=[])
    checks.check("without a file and without --offline it is wrong usage", usage.returncode == 2, usage)


def beside(checks, lab, runs):
    """The rest of the machine is not touched."""
    before = [lab.client.call("ip", *what).stdout for what in (("-o", "link"), ("route", "show", "table", "all"), ("rule",))]
    conf = open("/etc/resolv.conf").read()
    program = lab.client.run("beside", runs.words("sleep", 30, user=NOBODY))
    time.sleep(3)
    got = lab.client.call("curl", "-sS", "--max-time", 10, "-o", "/dev/null", "-w", "%{local_ip} %{size_download}", f"http://{lab.target.v4}/bytes/1000")
    checks.check("a program beside goes straight", got.stdout.decode().split() == [lab.client.v4, "1000"], got)
    after = [lab.client.call("ip", *what).stdout for what in (("-o", "link"), ("route", "show", "table", "all"), ("rule",))]
    checks.check("interfaces, routes and rules of the machine are as before", before == after, (before, after))
    checks.check("so is resolv.conf", conf == open("/etc/resolv.conf").read())
    program.stop(signal.SIGTERM)
    checks.check("SIGTERM reaches the program, and both end", not program.alive() and program.child.returncode == 128 + signal.SIGTERM,
                 program.child.returncode)


def blocked(checks, lab, runs):
    """Nothing passes without relays."""
    capture = Capture(lab.client, "capture-offline")
    got = runs.call("curl", "-sS", "--max-time", 3, f"http://{lab.target.v4}/bytes/10", options=["--offline"], user=NOBODY)
    checks.check("offline: the program has no network", got.returncode == 7, got)
    got = runs.call("curl", "-sS", "--max-time", 3, "http://target.test/bytes/10", options=["--offline"], user=NOBODY)
    checks.check("offline: and no names", got.returncode == 6, got)
    # Relays of before may still say something; the target knows names, too.
    seen = [packet[:3] for packet in capture.stop() if {lab.target.v4, lab.target.v6} & set(packet[:2])]
    checks.check("offline: nothing was sent", not seen, seen)

    mark = lab.folder / "begun"
    wrong = lab.folder / "wrong.toml"
    wrong.write_text(runs.config.read_text().replace(TOKEN, "not-the-token-that-they-want"))
    got = runs.call("touch", mark, options=["--config", wrong, "--wait", 5])
    checks.check("relays that refuse: the program does not begin, and it is told why",
                 got.returncode == 1 and not mark.exists() and b"token" in got.stderr, got)

    loop = f"echo $$ >{lab.folder}/turner; trap 'echo asked' TERM; while :; do curl -s --max-time 2 http://{lab.target.v4}/bytes/10; date +%s.%N >>{lab.folder}/turns; sleep 0.2; done"
    for name in ("turns", "turner"):
        (lab.folder / name).touch()
        (lab.folder / name).chmod(0o666)
    program = lab.client.run("orphan", runs.words("bash", "-c", loop, user=NOBODY))
    turns = lambda: len((lab.folder / "turns").read_text().splitlines())  # noqa: E731
    wait_for("the program's turns", lambda: turns() > 5 or not program.alive())
    # `setpriv` becomes hoplite, which `ip netns exec` has become.
    os.kill(program.child.pid, signal.SIGKILL)
    program.child.wait(10)
    time.sleep(0.5)
    capture = Capture(lab.client, "capture-orphan")
    begun = turns()
    wait_for("turns without hoplite", lambda: turns() > begun + 3, 60)
    seen = [p for p in capture.stop() if lab.target.v4 in p[:2]]
    checks.check("when hoplite is killed, what the program sends goes nowhere", not seen, len(seen))
    checks.check("and it was asked to end", "asked" in program.text(), program.text()[-200:])
    os.kill(int((lab.folder / "turner").read_text()), signal.SIGKILL)


def main():
    checks = Checks("one program over relays")
    if (why := usable()) is not None:
        checks.skip("everything", why)
        checks.done()
    with NetLab(relays=2) as lab:
        lab.start_targets()
        for relay in lab.relays:
            lab.start_relay(relay)
        runs = Runs(lab)
        for user in (0, NOBODY):
            checks.attempt(f"carried for user {user}", lambda: carried(checks, lab, runs, user))
        checks.attempt("exit codes", lambda: codes(checks, runs))
        checks.attempt("beside", lambda: beside(checks, lab, runs))
        checks.attempt("blocked", lambda: blocked(checks, lab, runs))
    checks.done()


if __name__ == "__main__":
    sys.exit(main())
