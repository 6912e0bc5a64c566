"""The units of deploy/ under a real systemd: it is PID 1 of namespaces of its own (processes, mounts, network, control groups), with a copy of /etc.

Two machines of a router: a relay (hoplite-relay.service) and a device (hoplite-block.service, hoplite-device.service), as the docs install them. The device's
uplink is captured from before its systemd begins to after everything is stopped. Needs root and the program systemd; says so and passes without them.
"""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

from common import HERE, HOPLITE, TOKEN, Checks, Missing, sha256, wait_for
from device import PROGRAMS, Watch, describe, strangers
from netns import RELAY_PORT, Host, NetLab, usable as netns_usable
from servers import payload

UNITS = HERE.parent / "deploy"
SIZE = 100_000
SYSTEMD = next((place for place in ("/lib/systemd/systemd", "/usr/lib/systemd/systemd") if os.path.exists(place)), None)

# Outside: a control group of its own, whose namespace systemd will take for the whole tree.
OUTSIDE = """
mkdir -p "$PLACE/groups"
mount -t cgroup2 none "$PLACE/groups"
mkdir "$PLACE/groups/$GROUP"
echo $$ > "$PLACE/groups/$GROUP/cgroup.procs"
exec unshare --pid --fork --kill-child --mount --uts --ipc --cgroup --propagation private sh -euc "$INSIDE"
"""

# Inside: the machine's / read-only, and all that changes in memory. `container` keeps systemd from looking after devices, clocks and disks.
INSIDE = """
hostname machine
root="$PLACE/root"
mkdir "$root"
mount --bind / "$root"
mount -o remount,bind,ro "$root"
for place in etc var run tmp root home dev usr/local/bin mnt; do mount -t tmpfs -o mode=755 none "$root/$place"; done
chmod 1777 "$root/tmp"
cp -a "$PLACE/etc/." "$root/etc/"
mount --bind "$PLACE/bin" "$root/usr/local/bin"
"""

# What a kernel gives, and systemd as the first process of that root.
BOOT = """
mount -t proc none "$root/proc"
mount -t sysfs none "$root/sys"
mount -t cgroup2 none "$root/sys/fs/cgroup"
mkdir "$root/dev/net" "$root/dev/pts" "$root/dev/shm"
for node in null zero full random urandom tty net/tun; do touch "$root/dev/$node"; mount --bind "/dev/$node" "$root/dev/$node"; done
mount -t devpts -o newinstance,ptmxmode=0666 none "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
cd "$root"
pivot_root . mnt
umount -l /mnt
exec env -i container=interop PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin SYSTEMD="$SYSTEMD" "$SYSTEMD" --system --show-status=no --log-level=warning
"""

# What no test needs, and what would look at the real machine.
MASKED = ("dbus.service", "dbus.socket", "getty.target", "console-getty.service", "systemd-logind.service", "systemd-networkd.service", "systemd-resolved.service",
          "systemd-timesyncd.service", "systemd-tmpfiles-setup.service", "systemd-tmpfiles-clean.timer", "systemd-journal-catalog-update.service",
          "systemd-update-utmp.service", "systemd-update-done.service", "systemd-user-sessions.service", "systemd-sysusers.service", "systemd-firstboot.service",
          "ldconfig.service", "cron.service", "ssh.service", "tor.service", "apparmor.service", "e2scrub_reap.service", "remote-fs.target", "timers.target")


class Machine(Host):
    """A host with a systemd of its own."""

    inside = INSIDE + BOOT

    def __init__(self, lab, name, number):
        super().__init__(lab, name, number)
        self.place, self.pid = lab.folder / f"machine-{name}", None
        self.place.mkdir()
        self.make_root(number)
        link = json.loads(subprocess.run(["ip", "-n", self.ns, "-j", "link", "show", "eth0"], capture_output=True, check=True).stdout)
        self.mac = bytes.fromhex(link[0]["address"].replace(":", ""))

    def make_root(self, number):
        """What of its root is not this machine's."""
        (self.place / "bin").mkdir()
        etc = self.place / "etc"
        (etc / "systemd/system").mkdir(parents=True)
        for kept in ("passwd", "group", "shadow", "nsswitch.conf", "ld.so.cache", "ssl", "alternatives", "protocols", "services", "iproute2"):
            if os.path.exists(f"/etc/{kept}"):
                subprocess.run(["cp", "-a", f"/etc/{kept}", etc], check=True)
        self.settle(etc, number)

    def settle(self, etc, number):
        """Who it is, whom it asks for names, and what it does without."""
        (etc / "machine-id").write_text(f"{number:032x}\n")
        (etc / "resolv.conf").write_text(f"nameserver {self.lab.resolver}\n")
        for unit in MASKED:
            (etc / "systemd/system" / unit).symlink_to("/dev/null")

    def install(self, units, enabled):
        """As the docs have it: the program, the units, and links for those that boot."""
        self.program()
        where = self.place / "etc/systemd/system"
        for unit in units:
            shutil.copy(UNITS / unit, where)
        for unit, target in enabled.items():
            (where / f"{target}.wants").mkdir(exist_ok=True)
            (where / f"{target}.wants" / unit).symlink_to(f"/etc/systemd/system/{unit}")

    def program(self):
        """Puts a new copy of hoplite in the place of the one that may be running."""
        new = self.place / "bin/hoplite.new"
        shutil.copy(HOPLITE, new)
        new.rename(self.place / "bin/hoplite")

    def boot(self):
        """Starts systemd, and waits until it has an answer for systemctl."""
        group = f"hoplite-units-{os.getpid()}-{self.name}"
        env = {"PLACE": str(self.place), "GROUP": group, "INSIDE": self.inside, "SYSTEMD": SYSTEMD}
        command = ["unshare", "--mount", "--propagation", "private", "sh", "-euc", OUTSIDE]
        self.process = self.lab.run(f"systemd-{self.name}", [*super().prefix(), *command], env=env)
        self.lab.groups.append(group)
        outer = self.process.child.pid
        children = pathlib.Path(f"/proc/{outer}/task/{outer}/children")
        wait_for("systemd", lambda: not self.process.alive() or (children.read_text().split() and self.began(children.read_text().split()[0])))
        if not self.process.alive():
            raise RuntimeError(f"systemd ended: {self.process.text()}")

    def began(self, pid):
        try:
            if os.path.basename(os.readlink(f"/proc/{pid}/exe")) != "systemd":
                return False
        except FileNotFoundError:  # one of the script's own programs, which has ended
            return False
        self.pid = int(pid)
        return self.systemctl("is-system-running") in ("initializing", "starting", "running", "degraded")

    def prefix(self):
        if not self.pid:
            return super().prefix()
        return ("nsenter", "--target", str(self.pid), "--mount", "--net", "--pid", "--ipc", "--uts", "--cgroup", "--")

    def systemctl(self, *words):
        return self.call("systemctl", *words, timeout=100).stdout.decode().strip()

    def show(self, unit, what):
        return self.systemctl("show", "--value", "--property", what, unit)

    def becomes(self, unit, state, seconds):
        """How long it took; None if it took longer."""
        began = time.monotonic()
        try:
            wait_for(unit, lambda: self.systemctl("is-active", unit) == state, seconds)
        except TimeoutError:
            return None
        return time.monotonic() - began

    def log(self, unit):
        return self.call("journalctl", "--no-pager", "-n", 25, "-o", "cat", "-u", unit).stdout.decode()

    def fetches(self, url, *more):
        got = self.call("curl", "-gsS", "--max-time", 4, *more, url)
        return sha256(got.stdout) == sha256(payload(SIZE))


class UnitsLab(NetLab):
    """A device and a relay with systemd, a target without."""

    def __init__(self):
        self.resolver, self.groups = "10.77.3.2", []  # the target's address
        super().__init__(relays=1)

    def host(self, name, number):
        return (Host if name == "target" else Machine)(self, name, number)

    def __exit__(self, *error):
        super().__exit__(*error)
        # Their namespaces are gone with PID 1; control groups stay.
        script = 'mount -t cgroup2 none "$0" && for group; do find "$0/$group" -depth -type d -exec rmdir {} + ; done'
        subprocess.run(["unshare", "--mount", "sh", "-c", script, "/mnt", *self.groups], check=False, capture_output=True)


def usable():
    """None, or why there can be no systemd."""
    if why := netns_usable():
        return why
    if not SYSTEMD or not shutil.which("systemctl"):
        return Missing("systemd is not installed")
    if not pathlib.Path("/dev/net/tun").exists():
        return "no /dev/net/tun"
    probe = 'mount -t cgroup2 none /mnt && d=/mnt/hoplite-probe-$$ && mkdir "$d" && rmdir "$d" && mount -t proc none /proc'
    done = subprocess.run(["unshare", "--mount", "--pid", "--fork", "--cgroup", "sh", "-c", probe], capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else f"no namespaces or control groups of version 2 for it: {done.stderr.strip()}"


# --- the relay ---------------------------------------------------------------------------------------------------------------------------------


def relay_config(lab, leaf):
    return f"""name = "r1"
listen = ["[::]:{RELAY_PORT}"]
[tls]
cert = "/etc/hoplite/cert.pem"
key = "/etc/hoplite/key.pem"
[egress]
allow = ["{lab.target.v4}/32", "{lab.target.v6}/128"]
resolver = ["{lab.target.v4}:53"]
[[auth.token]]
name = "user"
token = "{TOKEN}"
"""


def relay_unit(checks, lab):
    """hoplite-relay.service: a user that exists only while it runs, files that it reads by its group."""
    relay = lab.relays[0]
    leaf = lab.leaves["r1"] = lab.authority.leaf("r1", [relay.v4, "r1"])
    etc = relay.place / "etc"
    with (etc / "group").open("a") as groups:
        groups.write("hoplite:x:990:\n")
    (etc / "hoplite").mkdir()
    for name, source in (("cert.pem", leaf.cert), ("key.pem", leaf.key)):
        shutil.copy(source, etc / "hoplite" / name)
    (etc / "hoplite/relay.toml").write_text(relay_config(lab, leaf))
    subprocess.run(["sh", "-euc", 'chown -R 0:990 "$0"; chmod -R u=rwX,g=rX,o= "$0"', etc / "hoplite"], check=True)
    relay.install(["hoplite-relay.service"], {})
    soon = etc / "systemd/system/hoplite-relay.service.d"
    soon.mkdir()
    (soon / "soon.conf").write_text("[Service]\nWatchdogSec=6\n")
    relay.boot()
    relay.systemctl("start", "hoplite-relay")
    state = relay.becomes("hoplite-relay", "active", 10)
    checks.check("relay: it starts", state is not None, relay.log("hoplite-relay"))
    pid = relay.show("hoplite-relay", "MainPID")
    told = relay.call("cat", f"/proc/{pid}/status").stdout.decode()
    fields = dict(line.split(":\t", 1) for line in told.splitlines() if ":\t" in line)
    uids, caps = set(fields.get("Uid", "0").split()), int(fields.get("CapEff", "0"), 16)
    checks.check(f"relay: a user of its own ({uids}), no right but to ports below 1024, no new ones, system calls filtered",
                 uids and "0" not in uids and caps == 1 << 10 and fields.get("NoNewPrivs") == "1" and fields.get("Seccomp") == "2", fields)
    relay.systemctl("reload", "hoplite-relay")
    checks.check("relay: a reload leaves the process", relay.show("hoplite-relay", "MainPID") == pid and relay.systemctl("is-active", "hoplite-relay") == "active",
                 relay.log("hoplite-relay"))
    relay.call("kill", "-STOP", pid)
    try:
        wait_for("another process", lambda: relay.show("hoplite-relay", "MainPID") not in (pid, "0") and relay.systemctl("is-active", "hoplite-relay") == "active", 30)
    except TimeoutError:
        pass
    hung = "watchdog" in relay.log("hoplite-relay").lower()
    checks.check("relay: one that hangs is killed by the watchdog, and started again", hung and relay.systemctl("is-active", "hoplite-relay") == "active", relay.log("hoplite-relay"))
    relay.systemctl("stop", "hoplite-relay")
    result = relay.show("hoplite-relay", "Result")
    checks.check("relay: it stops, and well", result == "success", f"{result}: {relay.log('hoplite-relay')}")


# --- the device --------------------------------------------------------------------------------------------------------------------------------


# As Debian has it: whatever stood before is flushed when it starts, when it is reloaded and when it stops, at shutdown as well.
NFTABLES = """[Unit]
Description=nftables
Wants=network-pre.target
Before=network-pre.target shutdown.target
Conflicts=shutdown.target
DefaultDependencies=no
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/sbin/nft -f /etc/nftables.conf
ExecReload=/usr/sbin/nft -f /etc/nftables.conf
ExecStop=/usr/sbin/nft flush ruleset
[Install]
WantedBy=sysinit.target
"""
RULES = """#!/usr/sbin/nft -f
flush ruleset
table inet filter { chain output { type filter hook output priority filter; policy accept; }; }
"""


class Session:
    def __init__(self, checks, lab):
        self.checks, self.lab, self.device, self.relay = checks, lab, lab.client, lab.relays[0]
        self.watch = Watch(lab.client)
        # Not one of the machine's processes: it talks from before its systemd begins to after its end.
        self.chatter = lab.client.run("chatter", [sys.executable, PROGRAMS, "chatter", "eth0", lab.client.v4, lab.client.v6, lab.target.v4, lab.target.v6,
                                                  "10.77.1.1", lab.resolver])

    def status(self):
        lines = self.device.call("hoplite", "status", "--json").stdout.decode().splitlines()
        return json.loads(lines[-1]) if lines else {}

    def firewalled(self, name):
        """The firewall is there, as it was loaded, or will be at once."""
        try:
            wait_for("the firewall", lambda: self.status().get("firewall") == "stands", 10)
        except TimeoutError:
            pass
        told = self.status()
        self.checks.check(f"{name}: status says that the firewall {told.get('firewall')}", told.get("firewall") == "stands", told)

    def state(self, name):
        """All that left the device since the last state was for the relay."""
        frames = self.watch.outgoing()
        wrong = strangers(frames, self.relay.v4)
        self.checks.check(f"{name}: of {len(frames)} frames that left, none is for anybody but the relay", not wrong, wrong)

    def blocked(self, name):
        target = self.lab.target
        urls = [f"http://target.test/bytes/{SIZE}", f"http://{target.v4}/bytes/{SIZE}", f"http://[{target.v6}]/bytes/{SIZE}"]
        script = " & ".join(f"curl -gsS --max-time 1 -o /dev/null {url} && echo {url}" for url in urls)
        got = self.device.call("sh", "-c", f"{script} & wait").stdout.decode().split()
        self.checks.check(f"{name}: programs reach nothing", not got, got)

    def up(self, name, seconds):
        took = self.device.becomes("hoplite-device", "active", seconds)
        fine = took is not None and self.device.fetches(f"http://target.test/bytes/{SIZE}")
        self.checks.check(f"{name}: traffic flows ({took or 0:.1f} s)", fine, self.device.log("hoplite-device"))

    def pid(self):
        return self.device.show("hoplite-device", "MainPID")


def device_config(lab):
    leaf = lab.leaves["r1"]
    return f"""path = ["r1"]
token = "{TOKEN}"
[[relay]]
name = "r1"
address = "{lab.relays[0].v4}:{RELAY_PORT}"
pin = "{leaf.pin}"
"""


def booted(session):
    """From boot on nothing passes; then the relay is there, and traffic flows."""
    device, checks = session.device, session.checks
    etc = device.place / "etc/hoplite"
    etc.mkdir()
    # The administrator made a mistake in a file that lets much pass.
    (etc / "client.toml").write_text(device_config(session.lab) + f'[takeover]\nlan = true\nexclude.addresses = ["{session.lab.target.v4}/32"]\nnonsense = 7\n')
    (device.place / "etc/systemd/system/nftables.service").write_text(NFTABLES)
    (device.place / "etc/nftables.conf").write_text(RULES)
    device.install(["hoplite-block.service", "hoplite-device.service"],
                   {"nftables.service": "sysinit.target", "hoplite-block.service": "sysinit.target", "hoplite-device.service": "multi-user.target"})
    checks.check("before: programs reach the target", device.fetches(f"http://{session.lab.target.v4}/bytes/{SIZE}"))
    session.watch.since()
    device.boot()
    took = device.becomes("hoplite-block", "active", 20)
    checks.check(f"boot: it is blocked ({took or 0:.1f} s)", took is not None, device.log("hoplite-block"))
    before = [device.show(unit, "ActiveEnterTimestampMonotonic") for unit in ("hoplite-block", "network-pre.target")]
    checks.check("boot: before anybody may set up the network", "0" != before[0] and int(before[0]) <= int(before[1]), before)
    order = [device.show("nftables", "ActiveEnterTimestampMonotonic"), device.show("hoplite-block", "ExecMainStartTimestampMonotonic")]
    checks.check("boot: after nftables.service has flushed what was there", "0" != order[0] and int(order[0]) <= int(order[1]), order)
    session.watch.since()
    session.blocked("boot, a wrong file")
    session.state("boot, a wrong file")
    log = device.log("hoplite-block")
    checks.check("boot, a wrong file: the log names it", "client.toml" in log and "nonsense" in log, log)
    (etc / "client.toml").write_text(device_config(session.lab))
    subprocess.run(["cp", etc / "client.toml", f"/proc/{device.pid}/root/etc/hoplite/client.toml"], check=True)
    device.systemctl("reload", "hoplite-block")
    session.blocked("boot, no relay")
    for _ in range(3):
        device.systemctl("reload", "nftables")
        session.firewalled("boot, no relay, nftables.service reloaded")
    told = session.status()
    checks.check(f"boot, no relay: status says {told.get('state')}", told.get("state") in ("blocked", "starting"), told)
    session.state("boot, no relay")
    session.relay.systemctl("start", "hoplite-relay")
    session.up("boot, the relay is there", 30)
    rights = dict(line.split(":\t", 1) for line in device.call("cat", f"/proc/{session.pid()}/status").stdout.decode().splitlines() if ":\t" in line)
    wanted = sum(1 << right for right in (12, 1, 3, 0, 7, 6, 5, 8))  # NET_ADMIN, DAC_OVERRIDE, FOWNER, CHOWN, SETUID, SETGID, KILL, SETPCAP
    checks.check("up: no rights but those of the unit", int(rights.get("CapBnd", "-1"), 16) == wanted and rights.get("NoNewPrivs") == "1" and rights.get("Seccomp") == "2", rights)
    told = json.loads(device.call("hoplite", "status", "--json").stdout.decode().splitlines()[-1])
    worker = dict(line.split(":\t", 1) for line in device.call("cat", f"/proc/{told['worker']}/status").stdout.decode().splitlines() if ":\t" in line)
    none = all(int(worker.get(which, "-1"), 16) == 0 for which in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"))
    user = set(worker.get("Uid", "0").split())
    checks.check("up: the process that reads the network is a user of its own and has no right", none and user in ({"1900000000"}, {"65534"}) and worker.get("NoNewPrivs") == "1", worker)
    filters, before = (int(of.get("Seccomp_filters", "0")) for of in (worker, rights))
    checks.check("up: it is refused calls beside those that the unit refuses", filters > before, (filters, before))
    session.state("up")


def flushed(session):
    """nftables.service reloaded, stopped and started while it is up."""
    for verb in ("reload", "stop", "start", "restart"):
        session.device.systemctl(verb, "nftables")
        session.firewalled(f"up, nftables.service: {verb}")
    session.checks.check("up, nftables.service: traffic flows", session.device.fetches(f"http://target.test/bytes/{SIZE}"))
    session.state("up, nftables.service reloaded, stopped, started")


def crashed(session):
    """SIGKILL: blocked until systemd has started it again."""
    device, pid = session.device, session.pid()
    device.call("kill", "-KILL", pid)
    wait_for("the process's end", lambda: session.pid() != pid, 5)
    session.blocked("SIGKILL")
    session.up("SIGKILL: started again", 20)
    session.checks.check("SIGKILL: by systemd", session.pid() != pid and device.show("hoplite-device", "NRestarts") != "0", device.log("hoplite-device"))
    session.state("SIGKILL and after")


def upgraded(session):
    """Another program in the place of the old one: nothing changes until the restart, and nothing leaks in it."""
    device = session.device
    inode = lambda: os.stat(f"/proc/{device.pid}/root/proc/{session.pid()}/exe").st_ino  # noqa: E731
    old = inode()
    device.program()
    session.checks.check("upgrade: the old one goes on", inode() == old and device.fetches(f"http://target.test/bytes/{SIZE}"))
    device.systemctl("restart", "hoplite-device")
    session.up("upgrade: after the restart", 20)
    session.checks.check("upgrade: it is the new one", inode() != old)
    session.state("upgrade")


def stopped(session):
    """The device stopped: blocked. The block stopped: open, and all as before."""
    device, checks = session.device, session.checks
    device.systemctl("stop", "hoplite-device")
    checks.check("stop: it ends well", device.show("hoplite-device", "Result") == "success", device.log("hoplite-device"))
    session.blocked("stop")
    for verb in ("reload", "restart"):
        device.systemctl(verb, "nftables")
        session.firewalled(f"stop, nftables.service: {verb}")
    session.state("stop")
    pid = device.show("hoplite-block", "MainPID")
    device.call("kill", "-TERM", pid)
    wait_for("the end of the block's process", lambda: device.show("hoplite-block", "MainPID") != pid, 5)
    for _ in range(3):
        session.blocked("stop, the block's process killed by SIGTERM")
    took = device.becomes("hoplite-block", "active", 20)
    checks.check(f"stop, the block's process killed by SIGTERM: started again by systemd ({took or 0:.1f} s)", took is not None, device.log("hoplite-block"))
    session.blocked("stop, the block's process started again")
    session.state("stop, the block's process killed by SIGTERM")
    device.systemctl("start", "hoplite-device")
    session.up("start again", 20)
    session.state("start again")
    device.systemctl("stop", "hoplite-block")
    states = [device.systemctl("is-active", unit) for unit in ("hoplite-block", "hoplite-device")]
    checks.check("hoplite-block stopped: so is the device", states == ["inactive", "inactive"], states)
    checks.check("hoplite-block stopped: programs reach the target by themselves", device.fetches(f"http://{session.lab.target.v4}/bytes/{SIZE}"),
                 device.log("hoplite-block"))
    left = device.call("sh", "-c", "nft list tables | grep hoplite; ip rule | grep 2672; ip -6 rule | grep 2672; ip link show hoplite0 2>/dev/null").stdout.decode()
    checks.check("hoplite-block stopped: nothing is left", not left, left)
    resolv = device.call("cat", "/etc/resolv.conf").stdout.decode()
    checks.check("hoplite-block stopped: resolv.conf is the old one", resolv == f"nameserver {session.lab.resolver}\n", resolv)
    kinds = {describe(frame) for frame in session.watch.outgoing()} - {None}
    checks.check("hoplite-block stopped: and the capture shows it", any(kind[1] == session.lab.target.v4 for kind in kinds), kinds)


def shut_down(session):
    """The machine is shut down: blocked until its last process is gone, and nobody opens after that."""
    device, checks = session.device, session.checks
    for unit in ("hoplite-block", "hoplite-device"):
        device.systemctl("start", unit)
    session.up("before the shutdown", 20)
    session.watch.since()
    device.systemctl("poweroff", "--no-block")
    try:
        wait_for("the machine's end", lambda: not device.process.alive(), 90)
    except TimeoutError as e:
        return checks.check("shutdown: the machine ends", False, e)
    # The talker goes on.
    time.sleep(1)
    session.state("shutdown")
    device.pid = None
    tables = device.call("nft", "list", "tables").stdout.decode()
    return checks.check("shutdown: the firewall is there to the end", "table inet hoplite\n" in tables, tables)


def verified(checks):
    """What systemd itself finds wrong with the units."""
    if not shutil.which("systemd-analyze"):
        return checks.skip("systemd-analyze", Missing("it is not installed"))
    units = [str(UNITS / unit) for unit in ("hoplite-relay.service", "hoplite-block.service", "hoplite-device.service")]
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", *units], capture_output=True, text=True, check=False)
    # The program is not installed on the machine that tests.
    said = [line for line in done.stderr.splitlines() if "hoplite" in line and "is not executable" not in line]
    checks.check("systemd-analyze verify finds nothing wrong", not said, said)
    return None


def main():
    checks = Checks("units")
    if why := usable():
        checks.skip("units under systemd", why)
        checks.done()
    verified(checks)
    with UnitsLab() as lab:
        lab.start_targets()
        relay_unit(checks, lab)
        session = Session(checks, lab)
        for part in (booted, flushed, crashed, upgraded, stopped, shut_down):
            began = time.monotonic()
            part(session)
            print(f"     ({part.__name__}: {time.monotonic() - began:.0f} s)", flush=True)
        if checks.failed:
            lab.show_logs()
        for machine in (session.device, session.relay):
            machine.process.stop(signal.SIGKILL)
    checks.done()


if __name__ == "__main__":
    sys.exit(main())
