"""A machine with everything that else manages a network: Debian with systemd-resolved, NetworkManager, wg-quick and tayga, under a systemd of its own.

Used by beside_test.py; needs root and the Debian root that `.ci/run packages` makes.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import time

from common import HERE, HOPLITE, TOKEN, wait_for
from device import describe, strangers
from device_test import difference
from netns import RELAY_PORT, Host
from packages_test import DEBIAN, Installed
from units_test import SIZE, UNITS, Session, UnitsLab

PROGRAMS = HERE / "programs.py"
# It asks by every way that a network has.
RESOLVED = "[Resolve]\nLLMNR=yes\nMulticastDNS=yes\nDNSSEC=no\nFallbackDNS=\n"
# The uplink as the lab makes it, for those who want to begin afresh.
PLAIN = """
ip addr flush dev eth0 scope global; ip route flush table main; while ip -6 route del default 2>/dev/null; do :; done
ip link set eth0 up
ip addr add {v4}/24 dev eth0; ip -6 addr add {v6}/64 dev eth0 nodad
ip route replace default via {gateway4}; ip -6 route replace default via {gateway6}
rm -f /etc/resolv.conf; printf '%s' '{resolv}' > /etc/resolv.conf
"""
RESOLV = "# written by hand\nsearch lan.test\nnameserver {0}\n"


class Beside(Installed):
    """The device: its programs are Debian's, and begin when a row wants them."""

    def make_root(self, number):
        super().make_root(number)
        etc = self.root / "etc"
        units = etc / "systemd/system"
        for wanted in ("dbus.service", "dbus.socket", "systemd-resolved.service"):
            (units / wanted).unlink()
        for unwanted in ("NetworkManager.service", "NetworkManager-wait-online.service", "NetworkManager-dispatcher.service", "tayga.service", "polkit.service",
                         "systemd-udevd.service", "systemd-udev-trigger.service", "systemd-udevd-control.socket", "systemd-udevd-kernel.socket"):
            (units / unwanted).unlink(missing_ok=True)
            (units / unwanted).symlink_to("/dev/null")
        (etc / "systemd/resolved.conf.d").mkdir()
        (etc / "systemd/resolved.conf.d/beside.conf").write_text(RESOLVED)
        (etc / "resolv.conf").unlink()
        (etc / "resolv.conf").symlink_to("../run/systemd/resolve/stub-resolv.conf")
        (etc / "hoplite").mkdir()
        shutil.copy(HOPLITE, self.root / "usr/local/bin/hoplite")
        (self.root / "usr/bin/hoplite").symlink_to("/usr/local/bin/hoplite")
        shutil.copy(UNITS / "hoplite-block.service", units)
        (units / "sysinit.target.wants").mkdir(exist_ok=True)
        (units / "sysinit.target.wants/hoplite-block.service").symlink_to("/etc/systemd/system/hoplite-block.service")

    def call(self, *command, timeout=150):
        """In the device alone: rows write resolv.conf, and without its systemd that would be the one of the machine that tests."""
        if not self.pid or not self.process.alive():
            raise RuntimeError("the device does not run")
        return super().call(*command, timeout=timeout)

    def sh(self, script, timeout=60):
        done = self.call("sh", "-c", script, timeout=timeout)
        return done.stdout.decode()

    def must(self, script, timeout=60):
        """A step that has to work, or nothing of the row means anything."""
        done = self.call("sh", "-euc", script, timeout=timeout)
        if done.returncode:
            raise RuntimeError(f"{script.strip().splitlines()[-1]}: {(done.stdout + done.stderr).decode()[-600:]}")
        return done.stdout.decode()

    def write(self, path, text, mode=0o644):
        """A file of the running machine."""
        place = f"/proc/{self.pid}/root{path}"
        os.makedirs(os.path.dirname(place), exist_ok=True)
        with open(place, "w") as file:
            file.write(text)
        os.chmod(place, mode)

    def outside(self, *command, timeout=60):
        """A program of the machine that tests, in this one's network."""
        return subprocess.run(["ip", "netns", "exec", self.ns, *map(str, command)], capture_output=True, timeout=timeout)

    def plain(self):
        """The uplink, its addresses and resolv.conf as written by hand; nobody who manages them."""
        gateways = {"gateway4": f"10.77.{self.number}.1", "gateway6": f"fd77:{self.number}::1"}
        self.systemctl("stop", "systemd-resolved", "NetworkManager")
        self.must(PLAIN.format(v4=self.v4, v6=self.v6, resolv=RESOLV.format(self.lab.resolver), **gateways))

    # --- hoplite -----------------------------------------------------------------------------------------------------------------------

    def config(self, extra="", relay=None):
        """The client's file: one relay, named by its address."""
        leaf = self.lab.leaves["r1"]
        return f'path = ["r1"]\ntoken = "{TOKEN}"\n[[relay]]\nname = "r1"\naddress = "{relay or self.lab.relays[0].v4}:{RELAY_PORT}"\npin = "{leaf.pin}"\n{extra}'

    def hoplite(self, *words, timeout=60):
        """(exit code, what it said, seconds). Its output is a file: a pipe would last as long as the daemon does."""
        began = time.monotonic()
        self.call("true")
        process = self.run(f"hoplite-{words[0]}-{time.monotonic_ns()}", ["hoplite", *words])
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.child.wait(timeout)
        return process.child.poll(), process.text(), time.monotonic() - began

    def up(self, extra="", *more, relay=None):
        self.write("/etc/hoplite/client.toml", self.config(extra, relay))
        return self.hoplite("up", "--config", "/etc/hoplite/client.toml", *more)

    # --- what must be as it was ----------------------------------------------------------------------------------------------------------

    def snapshot(self):
        """All that `up` may change, as text."""
        commands = {
            "addresses": "ip addr | sed 's/valid_lft.*//'", "rules": "ip rule; ip -6 rule",
            "routes": "ip route show table all; ip -6 route show table all | sed 's/expires [0-9]*sec//'", "nftables": "nft --stateless list ruleset",
            "resolv.conf": "ls -l --time-style=+ /etc/resolv.conf; cat /etc/resolv.conf", "/etc": "ls -A /etc",
            "sysctls": "cd /proc/sys/net; grep -r . ipv4/conf/all ipv4/conf/eth0 ipv4/ip_forward ipv6/conf/all ipv6/conf/eth0 2>/dev/null | sort",
        }
        if self.systemctl("is-active", "systemd-resolved") == "active":
            commands["resolved"] = "for it in dns domain llmnr mdns default-route; do resolvectl $it; done"
        self.sh("for n in $(seq 50); do ip -6 addr show tentative | grep -q . || break; sleep 0.1; done")
        return {name: self.sh(script) for name, script in commands.items()}


class BesideLab(UnitsLab):
    """The device, a relay and a target; all hosts but the first without a systemd."""

    def host(self, name, number):
        return (Beside if name == "client" else Host)(self, name, number)

    def inside(self, host, script):
        """The words of a command of Debian's, for another host: its root is the device's, and what it leaves ends with it."""
        binds = 'for it in dev sys; do mount --rbind /$it "$0/$it"; done; mount -t proc none "$0/proc"; mount -t tmpfs none "$0/run"; exec chroot "$0" sh -euc "$1"'
        alone = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private"]
        return ["ip", "netns", "exec", host.ns, *alone, "sh", "-euc", binds, self.client.root, script]


class Rows(Session):
    """What each row asks of the device."""

    def __init__(self, checks, lab):
        super().__init__(checks, lab)
        self.target = lab.target

    def state(self, name, relay=None, excluded=False):
        """All that left by the uplink since the last state was for the relay, which may have another address in this network."""
        return self.for_relay(name, self.watch.outgoing(), relay, excluded)

    def for_relay(self, name, frames, relay=None, excluded=False):
        """The same of frames that somebody wants to look at, too."""
        wrong = strangers(frames, relay or self.relay.v4)
        if excluded:
            # The file lets pass all that is for the relay's address: the system's own answer, too, to a packet that comes after its socket has closed.
            wrong.pop((socket.IPPROTO_ICMPV6, relay, 0), None)
        # Whose it was, its content tells.
        first = next((frame.hex() for frame in frames if describe(frame) in wrong), None)
        return self.checks.check(f"{name}: of {len(frames)} frames that left, none is for anybody but the relay", not wrong, (dict(list(wrong.items())[:12]), first))

    def seen_as(self, host, *prefix, timeout=6):
        """The address that the target sees; None when it is not reached."""
        return self.device.call(*prefix, "curl", "-gsS", "--max-time", timeout, f"http://{host}/peer").stdout.decode() or None

    def carried(self, name, *hosts):
        """What programs ask for is asked by the relay."""
        for host in hosts or ("target.test", self.target.v4, f"[{self.target.v6}]"):
            seen = self.seen_as(host)
            self.checks.check(f"{name}: {host} is seen as the relay", seen in (self.relay.v4, self.relay.v6), seen)

    def carries(self):
        return self.device.fetches(f"http://target.test/bytes/{SIZE}")

    def recovers(self, name, limit):
        """Traffic flows again; how long it took."""
        began = time.monotonic()
        with contextlib.suppress(TimeoutError):
            wait_for("traffic", self.carries, max(limit, 30))
        took = time.monotonic() - began
        return self.checks.check(f"{name}: traffic flows ({took:.1f} s)", took < limit, f"{took:.1f} s, {limit} s allowed")

    def ups(self, name, extra="", *more, relay=None):
        code, said, took = self.device.up(extra, *more, relay=relay)
        return self.checks.check(f"{name}: up returns ({took:.1f} s)", code == 0, f"exit {code}: {said[-500:]}")

    def downs(self, name):
        code, said, took = self.device.hoplite("down")
        return self.checks.check(f"{name}: down returns ({took:.1f} s)", code == 0, f"exit {code}: {said[-500:]}")

    def signal(self, how):
        """To both processes."""
        told = self.status()
        pids = [told[which] for which in ("pid", "worker") if told.get(which)]
        self.device.must(f"kill -{how} {' '.join(map(str, pids))}")
        return pids

    def killed(self, name):
        """SIGKILL: blocked, and nothing leaves."""
        pids = self.signal("KILL")
        self.device.sh(f"for n in $(seq 50); do test -e /proc/{pids[0]} || break; sleep 0.1; done")
        self.blocked(f"{name}, SIGKILL")
        return self.state(f"{name}, SIGKILL")

    def held(self, name, extra="", relay=None, left=None, excluded=False):
        """Up, and traffic flows; after SIGKILL nothing does; down. All the while nothing leaves but for `left`. Whether it came up."""
        if not self.ups(name, extra, relay=relay):
            return False
        self.watch.since()
        self.carried(name)
        self.state(name, left, excluded)
        self.signal("KILL")
        self.blocked(f"{name}, SIGKILL")
        self.state(f"{name}, SIGKILL", left, excluded)
        self.downs(name)
        return True

    def same(self, name, before):
        now = self.device.snapshot()
        wrong = {what: difference(before[what], now.get(what, "")) for what in before if now.get(what) != before[what]}
        return self.checks.check(f"{name}: {', '.join(before)} as before", not wrong, wrong)

    def clean(self):
        """Whatever a row has left is no affair of the next."""
        self.device.hoplite("down")
        self.device.plain()
        self.watch.since()


__all__ = ["DEBIAN", "PROGRAMS", "Beside", "BesideLab", "Rows"]
