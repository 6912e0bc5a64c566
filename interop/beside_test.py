"""`hoplite up` beside what else manages a machine's network, the real programs where they can be had: systemd-resolved, NetworkManager, WireGuard (wg-quick
with wireguard-go), Tailscale's scheme, bridges of containers, IPv6-only networks with NAT64 and 464XLAT (tayga), another network after a sleep.

A device under a systemd of its own, a relay and a target in network namespaces; its uplink is captured from before boot to the end, while `programs.py chatter`
talks by every way that there is. docs/device.md, "Beside others", has what each row shows. Needs root and a Debian root (`.ci/run packages`); says so and passes
without. usage: beside_test.py [ROW...], of ROWS below (all, without arguments); the boot comes before each.
"""

import collections
import contextlib
import ipaddress
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import types

from beside import DEBIAN, PROGRAMS, BesideLab, Rows
from common import Checks, Missing, wait_for
from device import describe
from netns import RELAY_PORT, ip
from units_test import usable

POOLS = ("198.18.", "198.19.", "fd68:6f70:6c69:7465:")
LLMNR, MDNS, DNS = 5355, 5353, 53
# Of a network's own: what resolved finds by LLMNR, by mDNS, by a search domain and by a domain of the uplink's.
ASKED = ("printer", "printer.local", "nas", "inside.corp.test", "target.test")


def booted(rows):
    """From boot on nothing leaves, neither of programs nor of resolved."""
    device, checks = rows.device, rows.checks
    device.boot()
    took = device.becomes("hoplite-block", "active", 30)
    checks.check(f"boot: it is blocked ({took or 0:.1f} s)", took is not None, device.log("hoplite-block"))
    took = device.becomes("systemd-resolved", "active", 30)
    checks.check("boot: the real systemd-resolved runs", took is not None and "systemd 252" in device.sh("resolvectl --version"), device.log("systemd-resolved"))
    rows.watch.since()
    # Once as it comes, and once it knows whom to ask.
    device.must(uplink(rows))
    ask(rows)
    rows.blocked("boot")
    rows.state("boot, resolved asks by LLMNR, mDNS and DNS")
    device.systemctl("stop", "hoplite-block")
    device.systemctl("disable", "hoplite-block")


def uplink(rows):
    """What a DHCP client tells resolved of the uplink."""
    return f"resolvectl dns eth0 {rows.lab.resolver}; resolvectl domain eth0 lan.test corp.test; resolvectl llmnr eth0 yes; resolvectl mdns eth0 yes; resolvectl flush-caches"


def ask(rows, *names):
    """All of the names at once, of resolved itself and by the stub as a plain program does; what it found."""
    names = names or ASKED
    plain = [rows.lab.run(f"ask-{name}-{time.monotonic_ns()}", ["timeout", "3", sys.executable, PROGRAMS, "ask", "127.0.0.53", name, 1], prefix=("ip", "netns", "exec", rows.device.ns))
             for name in names]
    query = "(timeout 4 resolvectl query --cache=no $it >/tmp/asked-$it 2>&1) & (timeout 4 getent ahosts $it >/dev/null) &"
    said = rows.device.sh(f"for it in {' '.join(names)}; do {query} done; wait; cd /tmp; tail -n +1 asked-*", 30)
    for process in plain:
        process.child.wait(10)
    return said


def spoken(frames):
    """The ways by which resolved asked: the chatter's own frames name nobody."""
    labels = (b"\x07printer", b"\x03nas", b"\x06inside\x04corp")
    return {describe(frame)[2] for frame in frames if describe(frame) and any(label in frame for label in labels)}


# --- systemd-resolved ----------------------------------------------------------------------------------------------------------------------------


def resolved(rows):
    """systemd-resolved: its stub in resolv.conf, servers and domains of a link, LLMNR and mDNS."""
    device, checks, name = rows.device, rows.checks, "resolved"
    stub(rows)
    said = ask(rows)
    ways = spoken(rows.watch.outgoing())
    checks.check(f"{name}, before: what must stay inside leaves now, by {sorted(ways)}", {LLMNR, MDNS, DNS} <= ways, said)
    seen = rows.seen_as("inside.corp.test"), rows.seen_as("nas")
    checks.check(f"{name}, before: programs reach names of the uplink's domains by themselves", seen == (device.v4, device.v4), seen)
    before = device.snapshot()
    if not rows.ups(name):
        return
    rows.watch.since()
    checks.check(f"{name}: it is told who resolves names, and resolv.conf stays", rows.status().get("dns") == "systemd-resolved" and "127.0.0.53" in device.sh("cat /etc/resolv.conf"), rows.status())
    ask(rows)
    rows.state(f"{name}, up: names of every kind asked")
    rows.carried(f"{name}, up", "target.test", "inside.corp.test", "target6.test")
    seen = rows.seen_as("nas")
    checks.check(f"{name}, up: a network's search list does not count", seen is None, seen)
    found = device.outside(sys.executable, PROGRAMS, "ask", "127.0.0.53", "inside.corp.test", 1).stdout.decode()
    checks.check(f"{name}, up: the stub answers for the uplink's domain with an address of ours", any(pool in dotted(found) for pool in POOLS), found)
    device.must("resolvectl domain eth0 lan.test corp.test new.test '~route.test'")
    time.sleep(1)
    rows.carried(f"{name}, domains of the uplink changed", "inside.new.test", "inside.corp.test")
    ask(rows, "inside.new.test", "inside.route.test")
    rows.state(f"{name}, domains of the uplink changed")
    device.systemctl("restart", "systemd-resolved")
    rows.carried(f"{name}, it is restarted", "target.test", "inside.corp.test")
    ask(rows)
    rows.state(f"{name}, it is restarted")
    rows.signal("KILL")
    ask(rows)
    rows.blocked(f"{name}, SIGKILL")
    rows.state(f"{name}, SIGKILL: names of every kind asked")
    rows.ups(f"{name}, after SIGKILL")
    rows.carried(f"{name}, after SIGKILL", "target.test")
    rows.state(f"{name}, after SIGKILL")
    device.must(uplink(rows))
    rows.downs(name)
    rows.same(f"{name}, after down", before)
    seen = rows.seen_as("inside.corp.test"), rows.seen_as("nas")
    checks.check(f"{name}, after down: names of the uplink's domains as before", seen == (device.v4, device.v4), seen)
    one_domain(rows)


def dotted(line):
    """The addresses in the bytes of an answer, for people."""
    answer = bytes.fromhex(json.loads(line.splitlines()[-1]).get("bytes", "")) if line else b""
    return " ".join(".".join(map(str, answer[at + 4:at + 8])) for at in range(len(answer)) if answer[at:at + 4][2:] == b"\x00\x04")


def stub(rows):
    """resolv.conf is resolved's stub, and the uplink has a server and domains."""
    device = rows.device
    # The link first: what stands in a file it takes for everybody's.
    device.must("ln -sf ../run/systemd/resolve/stub-resolv.conf /etc/resolv.conf; systemctl restart systemd-resolved")
    device.must(uplink(rows))
    rows.watch.since()


def one_domain(rows):
    """Some domains alone go through, of which the uplink has one as well; resolved forgets that when the process is killed."""
    device, checks, name = rows.device, rows.checks, "resolved, some domains"
    own, relays = device.v4, (rows.relay.v4, rows.relay.v6)
    if not rows.ups(name, '\n[takeover]\ninclude = { domains = ["new.test", "corp.test"] }\n'):
        return
    rows.watch.since()
    rows.carried(name, "inside.new.test")
    named = [frame for frame in rows.watch.outgoing() if b"\x03new\x04test" in frame]
    checks.check(f"{name}: no network was asked for it", not named, len(named))
    seen = rows.seen_as("inside.corp.test")
    named = [frame for frame in rows.watch.outgoing() if b"\x04corp\x04test" in frame]
    checks.check(f"{name}: of one that the uplink has as well it is asked besides us, as the docs have it", named and seen in (own, *relays), (len(named), seen))
    seen = rows.seen_as("target.test")
    checks.check(f"{name}: another name is left alone", seen == own, seen)
    rows.signal("KILL")
    time.sleep(0.5)
    seen = rows.seen_as("inside.new.test")
    checks.check(f"{name}, SIGKILL: it goes past, as the docs have it", seen == own, seen)
    rows.downs(name)


# --- NetworkManager ------------------------------------------------------------------------------------------------------------------------------

MANAGER = """[main]
plugins=keyfile
dns={dns}
rc-manager={manager}
no-auto-default=*
auth-polkit=false
systemd-resolved={resolved}
"""
CONNECTION = """[connection]
id=uplink
type=ethernet
interface-name=eth0
autoconnect=true
[ipv4]
method=manual
address1={v4}/24,{gateway4}
dns={resolver};
dns-search={search};
[ipv6]
method=manual
address1={v6}/64,{gateway6}
addr-gen-mode=stable-privacy
"""


def manager(rows):
    """NetworkManager: it manages the uplink and writes resolv.conf, as a file, as a link, and by resolved."""
    for how, dns in (("file", "default"), ("symlink", "default"), ("auto", "systemd-resolved")):
        rows.clean()
        managed(rows, how, dns)


def managed(rows, how, dns):
    device, checks, name = rows.device, rows.checks, f"NetworkManager, {'resolved' if dns != 'default' else how}"
    device.write("/etc/NetworkManager/NetworkManager.conf", MANAGER.format(manager=how, dns=dns, resolved=str(dns != "default").lower()))
    connection(rows, "lan.test")
    if how == "symlink":
        device.must("ln -sf ../run/NetworkManager/resolv.conf /etc/resolv.conf")
    if dns == "systemd-resolved":
        stub(rows)
    # Without a udev, as in containers.
    device.must("mount -o remount,bind,ro /sys; ip addr flush dev eth0; systemctl unmask --runtime NetworkManager; rm -f /etc/systemd/system/NetworkManager.service; "
                "systemctl daemon-reload; systemctl start NetworkManager", 90)
    device.must("nmcli device set eth0 managed yes; nmcli -w 30 connection up uplink", 60)
    manages = "Generated by NetworkManager" in device.sh("cat /etc/resolv.conf") if dns == "default" else rows.lab.resolver in device.sh("resolvectl dns eth0")
    checks.check(f"{name}: the real one manages the uplink and its names ({device.sh('nmcli -t -f VERSION general').strip()})", manages and "eth0:connected" in device.sh("nmcli -t -f DEVICE,STATE device"),
                 device.sh("nmcli device; cat /etc/resolv.conf"))
    # By IPv6, too: what waits for the router's link-layer address was sent before `up`, and leaves when that comes.
    for host, own in (("target.test", device.v4), (f"[{rows.target.v6}]", device.v6)):
        wait_for("the uplink's addresses", lambda: rows.seen_as(host) == own, 20)
    before = device.snapshot()
    if not rows.ups(name):
        return
    rows.watch.since()
    rows.carried(f"{name}, up")
    device.must("nmcli -w 30 connection up uplink", 60)
    rows.recovers(f"{name}, connected anew", 10)
    rows.carried(f"{name}, connected anew", "target.test")
    rows.state(f"{name}, connected anew")
    device.systemctl("restart", "NetworkManager")
    device.must("nmcli -w 30 connection up uplink", 60)
    rows.recovers(f"{name}, restarted", 10)
    rows.state(f"{name}, restarted")
    connection(rows, "other.test")
    device.must("nmcli connection reload; nmcli -w 30 connection up uplink", 60)
    rows.recovers(f"{name}, another search list", 10)
    rows.state(f"{name}, another search list")
    rows.signal("KILL")
    device.must("nmcli -w 30 connection up uplink", 60)
    rows.blocked(f"{name}, SIGKILL and connected anew")
    rows.state(f"{name}, SIGKILL and connected anew")
    rows.ups(f"{name}, after SIGKILL")
    rows.carried(f"{name}, after SIGKILL", "target.test")
    rows.downs(name)
    now = device.sh("cat /etc/resolv.conf" if dns == "default" else "resolvectl domain eth0")
    checks.check(f"{name}, after down: names are as it has them now", "other.test" in now and rows.seen_as("target.test") == device.v4, now)
    connection(rows, "lan.test")
    device.must("nmcli connection reload; nmcli -w 30 connection up uplink", 60)
    with contextlib.suppress(TimeoutError):
        wait_for("the uplink as before", lambda: device.snapshot() == before, 5)
    if how == "symlink":
        # It has found a file of ours where its link was, and written a file; that is given back.
        text = before.pop("resolv.conf").partition("# Generated")[2]
        now = device.sh("cat /etc/resolv.conf").partition("# Generated")[2]
        checks.check(f"{name}, after down, the old search list: what it wrote stands in resolv.conf", text and now == text, now)
    rows.same(f"{name}, after down, the old search list", before)


def connection(rows, search):
    device = rows.device
    text = CONNECTION.format(v4=device.v4, v6=device.v6, gateway4=f"10.77.{device.number}.1", gateway6=f"fd77:{device.number}::1", resolver=rows.lab.resolver, search=search)
    device.write("/etc/NetworkManager/system-connections/uplink.nmconnection", text, 0o600)


# --- WireGuard -----------------------------------------------------------------------------------------------------------------------------------

TUNNEL = """[Interface]
PrivateKey = {key}
Address = {address}/24, {six}/64
{more}
[Peer]
PublicKey = {peer}
AllowedIPs = {allowed}
"""
# It leaves that behind.
DOWN = "wg-quick down wg0; echo 0 > /proc/sys/net/ipv4/conf/all/src_valid_mark"


def wireguard(rows):
    """WireGuard: wg-quick's scheme for everything, up before us and after us, with reverse path filters."""
    device = rows.device
    server = wireguard_server(rows)
    kernel = subprocess.run(["ip", "netns", "exec", device.ns, "ip", "link", "add", "probe", "type", "wireguard"], capture_output=True).returncode == 0
    if kernel:
        ip("link", "del", "probe", ns=device.ns)
    print(f"     (wg-quick over {'the kernel' if kernel else 'wireguard-go'})")
    device.must("mkdir -p /run/wireguard")
    for filtered in (0, 1):
        device.must(f"for it in all default eth0; do echo {filtered} > /proc/sys/net/ipv4/conf/$it/rp_filter; done")
        name = f"WireGuard{', rp_filter' if filtered else ''}"
        alone = device.snapshot()
        rows.watch.since()
        device.must("wg-quick up wg0")
        tunnelled(rows, f"{name}, before")
        before = device.snapshot()
        if rows.ups(f"{name} first"):
            rows.watch.since()
            rows.carried(f"{name} first")
            through(rows, server, f"{name} first")
            spoke_quic(rows, f"{name} first")
            rows.killed(f"{name} first")
            rows.ups(f"{name} first, after SIGKILL")
            rows.carried(f"{name} first, after SIGKILL", "target.test")
            rows.downs(f"{name} first")
            rows.same(f"{name} first, after down", before)
            tunnelled(rows, f"{name} first, after down")
        device.must(DOWN)
        rows.same(f"{name} down", alone)
        if rows.ups(f"{name} last"):
            rows.watch.since()
            device.must("wg-quick up wg0")
            time.sleep(0.5)
            rows.carried(f"{name} last")
            # Until our rules stand before its own again, a socket may be opened by its rules.
            spoke_quic(rows, f"{name} last", ("10.9.0.2",))
            rows.killed(f"{name} last")
            device.must("wg-quick down wg0")
            rows.blocked(f"{name} last, SIGKILL, and the tunnel down")
            rows.state(f"{name} last, SIGKILL, and the tunnel down")
            rows.ups(f"{name} last, after SIGKILL")
            device.must("wg-quick up wg0")
            rows.downs(f"{name} last")
            tunnelled(rows, f"{name} last, after down")
            device.must(DOWN)
            rows.same(f"{name} last, after both", alone)
    excluded(rows)


def wireguard_server(rows):
    """The other end, at the target, by wireguard-go; and a page in the tunnel."""
    lab, device, target = rows.lab, rows.device, rows.target
    keys = {}
    for end in ("client", "server"):
        key = device.must("wg genkey").strip()
        keys[end] = key, subprocess.run(["chroot", device.root, "wg", "pubkey"], input=key.encode(), capture_output=True, check=True).stdout.decode().strip()
    (device.root / "etc/wireguard").mkdir(exist_ok=True)
    end = f"Endpoint = {target.v4}:51820\nPersistentKeepalive = 1"
    for file, mine, peer, host, allowed, more in (("wg0", "client", "server", 2, f"0.0.0.0/0, ::/0\n{end}", ""), ("wg7", "server", "client", 1, "10.9.0.2/32, fd09::2/128", "ListenPort = 51820\nTable = off")):
        text = TUNNEL.format(key=keys[mine][0], peer=keys[peer][1], address=f"10.9.0.{host}", six=f"fd09::{host}", allowed=allowed, more=more)
        (device.root / f"etc/wireguard/{file}.conf").write_text(text)
        (device.root / f"etc/wireguard/{file}.conf").chmod(0o600)
    server = target.run("wireguard-server", lab.inside(target, "mkdir -p /run/wireguard; wg-quick up wg7; while :; do wg show wg7 endpoints; sleep 0.3; done"))
    wait_for("the other end of WireGuard", lambda: not server.alive() or keys["client"][1] in server.text())
    target.run("tunnel-page", [sys.executable, "-m", "http.server", "--bind", "10.9.0.1", "8080"])
    return server


def tunnelled(rows, name):
    """Programs go through the tunnel, as soon as its ends have found each other."""
    with contextlib.suppress(TimeoutError):
        wait_for("the tunnel", lambda: rows.seen_as(rows.target.v4, timeout=3) == "10.9.0.2", 20)
    seen = rows.seen_as(rows.target.v4)
    rows.checks.check(f"{name}: programs go through the tunnel", seen == "10.9.0.2", f"{seen}: {rows.device.sh('wg; ip rule')}")


def through(rows, server, name):
    """The tunnel's own packets are a program's: its other end sees them come from the relay, once it sends by a new socket."""
    mark = len(server.text())
    # It holds on to the address that it sent from for as long as its peer sends there, and that is the uplink's, which is blocked.
    rows.device.must("wg set wg0 listen-port 51821")
    with contextlib.suppress(TimeoutError):
        wait_for("the tunnel's packets", lambda: rows.relay.v4 + ":" in server.text()[mark:], 10)
    rows.checks.check(f"{name}: the tunnel itself goes through the relay", rows.relay.v4 + ":" in server.text()[mark:], server.text()[-300:])


def spoke_quic(rows, name, but=()):
    """UDP to the relay comes and goes from the uplink's own address: others' marks and addresses have no part in it, or those of `but` for a moment."""
    frames = rows.watch.outgoing()
    rows.for_relay(name, frames)
    sources = {socket.inet_ntoa(frame[26:30]) for frame in frames if describe(frame) and describe(frame)[1] == rows.relay.v4}
    kinds = collections.Counter(describe(frame) for frame in frames)
    udp, tcp = (kinds[protocol, rows.relay.v4, RELAY_PORT] for protocol in (17, 6))
    rows.checks.check(f"{name}: the path is QUIC from the uplink's address ({udp} UDP, {tcp} TCP)", udp > tcp and sources - {*but} == {rows.device.v4}, sources)


def excluded(rows):
    """What the tunnel leads to can be excluded: then it is a tunnel over the relays."""
    device, checks, name = rows.device, rows.checks, "WireGuard, its network excluded"
    device.must("for it in all default eth0; do echo 0 > /proc/sys/net/ipv4/conf/$it/rp_filter; done")
    if rows.ups(name, '\n[takeover]\nexclude = { addresses = ["10.9.0.0/24"] }\n'):
        rows.watch.since()
        # One that was up before holds on to the address that it sent from for as long as its peer sends there.
        device.must("wg-quick up wg0")
        began = time.monotonic()
        page = ("curl", "-sS", "--max-time", 2, "-o", "/dev/null", "-w", "%{http_code} %{local_ip}", "http://10.9.0.1:8080/")
        with contextlib.suppress(TimeoutError):
            wait_for("the page", lambda: device.call(*page).stdout.decode() == "200 10.9.0.2", 30)
        done = device.call(*page).stdout.decode()
        checks.check(f"{name}: a page behind it is reached by the tunnel over the relay ({time.monotonic() - began:.0f} s)", done == "200 10.9.0.2", done)
        rows.carried(name, "target.test")
        rows.state(name)
        rows.downs(name)
    device.must(DOWN)


# --- Tailscale -----------------------------------------------------------------------------------------------------------------------------------

# tailscaled's router_linux.go and dns/direct.go: what it sets without netfilter's help and with nftables.
TAILSCALE = """
ip addr add 100.64.0.7/32 dev tailscale0; ip -6 addr add fd7a:115c:a1e0::7/128 dev tailscale0 nodad; ip link set tailscale0 up
ip route add 100.64.0.0/10 dev tailscale0 table 52; ip route add 100.100.100.100/32 dev tailscale0 table 52; ip -6 route add fd7a:115c:a1e0::/48 dev tailscale0 table 52
for it in -4 -6; do
  ip $it rule add pref 5210 fwmark 0x80000/0xff0000 table main; ip $it rule add pref 5230 fwmark 0x80000/0xff0000 table default
  ip $it rule add pref 5250 fwmark 0x80000/0xff0000 unreachable; ip $it rule add pref 5270 table 52
done
nft -f - <<END
table ip filter {{
  chain ts-input {{ iifname "lo" ip saddr 100.64.0.7 accept; iifname != "tailscale0" ip saddr 100.64.0.0/10 drop; }}
  chain ts-forward {{ iifname "tailscale0" meta mark set meta mark & 0xff00ffff | 0x40000; meta mark & 0xff0000 == 0x40000 accept; oifname "tailscale0" ip saddr 100.64.0.0/10 drop; oifname "tailscale0" accept; }}
  chain INPUT {{ type filter hook input priority filter; policy accept; jump ts-input; }}
  chain FORWARD {{ type filter hook forward priority filter; policy accept; jump ts-forward; }}
}}
table ip nat {{
  chain ts-postrouting {{ meta mark & 0xff0000 == 0x40000 masquerade; }}
  chain POSTROUTING {{ type nat hook postrouting priority srcnat; policy accept; jump ts-postrouting; }}
}}
END
cp /etc/resolv.conf /etc/resolv.pre-tailscale-backup.conf
printf '# resolv.conf(5) file generated by tailscale\\nnameserver 100.100.100.100\\nsearch tail7.ts.net lan.test\\n' > /etc/resolv.conf.new; mv /etc/resolv.conf.new /etc/resolv.conf
"""
UNTAILED = """
for it in -4 -6; do for pref in 5210 5230 5250 5270; do ip $it rule del pref $pref; done; done
ip addr flush dev tailscale0 scope global; ip route flush table 52; ip -6 route flush table 52; nft delete table ip filter; nft delete table ip nat
grep -q tailscale /etc/resolv.conf && mv /etc/resolv.pre-tailscale-backup.conf /etc/resolv.conf || rm /etc/resolv.pre-tailscale-backup.conf
"""


def tailscale(rows):
    """Tailscale's scheme: rules before all others, marks, a table and a resolver of its own; before us and after us."""
    device, checks, name = rows.device, rows.checks, "Tailscale's scheme"
    with neighbour(rows, "tailnet", "tailscale0", "100.64.0.1/10", "fd7a:115c:a1e0::1/48") as tailnet:
        # Somebody in the tailnet, who is its resolver too.
        names = ["--name", "peer.tail7.ts.net=100.64.0.1", "--name", f"target.test={rows.target.v4}"]
        leaf = rows.lab.authority.leaf("tailnet", ["peer.tail7.ts.net"])
        rows.lab.run("tailnet", [sys.executable, PROGRAMS.parent / "servers.py", "--host", "100.64.0.1", "--dns-host", "100.100.100.100", "--cert", leaf.cert, "--key", leaf.key,
                                 "--http-port", 80, "--dns-port", 53, *names], prefix=("ip", "netns", "exec", tailnet))
        alone = device.snapshot()
        device.must(TAILSCALE.format())
        with contextlib.suppress(TimeoutError):
            wait_for("the tailnet", lambda: rows.seen_as("peer.tail7.ts.net"), 10)
        checks.check(f"{name}, before: the tailnet is reached, by name", rows.seen_as("peer.tail7.ts.net") == "100.64.0.7", device.sh("cat /etc/resolv.conf"))
        before = device.snapshot()
        if rows.ups(f"{name} first"):
            rows.watch.since()
            seen = neighbours_see(rows, tailnet)
            rows.carried(f"{name} first")
            silent(rows, f"{name} first", seen)
            marked(rows, f"{name} first")
            rows.state(f"{name} first")
            rows.killed(f"{name} first")
            rows.downs(f"{name} first")
            rows.same(f"{name} first, after down", before)
        device.must(UNTAILED)
        rows.same(f"{name} gone", alone)
        if rows.ups(f"{name} last"):
            rows.watch.since()
            device.must(TAILSCALE.format())
            time.sleep(0.5)
            seen = neighbours_see(rows, tailnet)
            rows.carried(f"{name} last")
            silent(rows, f"{name} last", seen)
            marked(rows, f"{name} last")
            rows.state(f"{name} last")
            rows.killed(f"{name} last")
            rows.downs(f"{name} last")
            reached = rows.seen_as("peer.tail7.ts.net")
            checks.check(f"{name} last, after down: the tailnet is reached, by name", reached == "100.64.0.7", f"{reached}: {device.sh('cat /etc/resolv.conf')}")
            device.must(UNTAILED)
            rows.clean()
        tailnet_excluded(rows)


def tailnet_excluded(rows):
    """The tailnet excluded: it goes on by Tailscale's own rules, also when they came after ours, and by the uplink where there are none."""
    device, checks, name = rows.device, rows.checks, "Tailscale's scheme, its network excluded"
    device.must(TAILSCALE.format())
    if rows.ups(name, '\n[takeover]\nexclude = { addresses = ["100.64.0.0/10"] }\n'):
        rows.watch.since()
        seen = rows.seen_as("100.64.0.1")
        checks.check(f"{name}: it is reached", seen == "100.64.0.7", seen)
        rows.carried(name, "target.test")
        rows.state(name)
        device.must(UNTAILED + TAILSCALE.format())
        seen = rows.seen_as("100.64.0.1", timeout=10)
        checks.check(f"{name}, when its rules have come after ours: it is reached", seen == "100.64.0.7", seen)
        rows.carried(f"{name}, when its rules have come after ours", "target.test")
        rows.watch.since()
        device.must(UNTAILED)
        seen = rows.seen_as("100.64.0.1", timeout=2)
        past = {describe(frame) for frame in rows.watch.outgoing()}
        checks.check(f"{name}, and nobody there who has it: it goes by the uplink, as the docs have it", seen is None and (6, "100.64.0.1", 80) in past, (seen, past))
        rows.downs(name)


@contextlib.contextmanager
def neighbour(rows, what, device, *addresses):
    """A namespace behind another interface of the device."""
    ns = f"{rows.device.ns}-{what}"
    ip("netns", "add", ns)
    try:
        ip("link", "add", device, "netns", rows.device.ns, "type", "veth", "peer", "name", "eth0", "netns", ns)
        for address in (*addresses, *(["100.100.100.100/32"] if what == "tailnet" else [])):
            ip("addr", "add", address, "dev", "eth0", *(["nodad"] if ":" in address else []), ns=ns)
        for where, link in ((ns, "lo"), (ns, "eth0"), (rows.device.ns, device)):
            ip("link", "set", link, "up", ns=where)
        yield ns
    finally:
        # The other end goes with the namespace, but not at once.
        subprocess.run(["ip", "-n", rows.device.ns, "link", "del", device], check=False, capture_output=True)
        subprocess.run(["ip", "netns", "del", ns], check=False, capture_output=True)


def neighbours_see(rows, ns):
    """A capture behind that interface, of what programs of the device send."""
    return rows.lab.run(f"capture-{time.monotonic_ns()}", ["tcpdump", "-i", "eth0", "-n", "-l", "--immediate-mode", "(ip or ip6) and not icmp6 and not ip6 proto 0"], prefix=("ip", "netns", "exec", ns))


def silent(rows, name, capture):
    """Nothing of a program goes to the tailnet either."""
    wait_for("tcpdump", lambda: "listening on" in capture.text())
    for host in ("100.64.0.1", "peer.tail7.ts.net"):
        seen = rows.seen_as(host, timeout=2)
        rows.checks.check(f"{name}: {host} is not reached past the relays", seen is None, seen)
    rows.device.outside("timeout", 2, sys.executable, PROGRAMS, "ask", "100.100.100.100", "target.test", 1)
    capture.stop(signal.SIGINT)
    sent = [line for line in capture.text().splitlines() if re.match(r"\d\d:\d\d", line)]
    rows.checks.check(f"{name}: nothing goes to its interface", not sent, sent[:5])


def marked(rows, name):
    """What bears tailscaled's own mark goes over the relays as well: tailscaled is a program."""
    script = f"""import socket
for address in ('{rows.target.v4}', '{rows.target.v6}'):
    s = socket.socket(socket.AF_INET6 if ':' in address else socket.AF_INET, socket.SOCK_STREAM)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, 0x80000)
    s.settimeout(5)
    s.connect((address, 80))
    s.sendall(b'GET /peer HTTP/1.1\\r\\nhost: t\\r\\n\\r\\n')
    page = b''
    while not page.partition(b'\\r\\n\\r\\n')[2]:
        page += s.recv(65536)
    print(page.partition(b'\\r\\n\\r\\n')[2].decode())
"""
    done = rows.device.outside(sys.executable, "-c", script)
    seen = done.stdout.decode().split()
    rows.checks.check(f"{name}: what has its mark is seen as the relay", len(seen) == 2 and set(seen) <= {rows.relay.v4, rows.relay.v6}, f"{seen} {done.stderr.decode()[-200:]}")


# --- containers ----------------------------------------------------------------------------------------------------------------------------------

# What Docker 20 to 28 makes by iptables-nft for its bridge.
DOCKER = """
table ip nat {
  chain DOCKER { iifname "docker0" return; }
  chain PREROUTING { type nat hook prerouting priority dstnat; policy accept; fib daddr type local jump DOCKER; }
  chain OUTPUT { type nat hook output priority -100; policy accept; ip daddr != 127.0.0.0/8 fib daddr type local jump DOCKER; }
  chain POSTROUTING { type nat hook postrouting priority srcnat; policy accept; oifname != "docker0" ip saddr 172.17.0.0/16 masquerade; }
}
table ip filter {
  chain DOCKER { }
  chain DOCKER-USER { return; }
  chain DOCKER-ISOLATION-STAGE-2 { oifname "docker0" drop; return; }
  chain DOCKER-ISOLATION-STAGE-1 { iifname "docker0" oifname != "docker0" jump DOCKER-ISOLATION-STAGE-2; return; }
  chain FORWARD { type filter hook forward priority filter; policy drop; jump DOCKER-USER; jump DOCKER-ISOLATION-STAGE-1
    oifname "docker0" ct state related,established accept; oifname "docker0" jump DOCKER; iifname "docker0" oifname != "docker0" accept; iifname "docker0" oifname "docker0" accept; }
}
"""
FORGET = "nft delete table ip nat; nft delete table ip filter; echo 0 > /proc/sys/net/ipv4/ip_forward"


def containers(rows):
    """Bridges of Docker (by hand) and the real Podman: a container's packets are a guest's, blocked unless the gateway has its network."""
    for engine in (docker, podman):
        before = rows.device.snapshot()
        with engine(rows) as (name, network, inside):
            container(rows, name, network, inside)
        rows.same(f"{name} gone", before)


@contextlib.contextmanager
def docker(rows):
    """docker0 with a container's namespace behind it."""
    device = rows.device
    with neighbour(rows, "guest", "veth0", "172.17.0.2/16") as guest:
        ip("route", "add", "default", "via", "172.17.0.1", ns=guest)
        device.must(f"ip link add docker0 type bridge; ip link set veth0 master docker0 up; ip addr add 172.17.0.1/16 dev docker0; ip link set docker0 up; "
                    f"echo 1 > /proc/sys/net/ipv4/ip_forward; nft -f - <<'END'\n{DOCKER}END")
        yield "Docker's bridge", "172.17.0", ("ip", "netns", "exec", guest)
        device.must(f"{FORGET}; ip link del docker0")


@contextlib.contextmanager
def podman(rows):
    """A container of Debian's Podman, with netavark; its root is the device's."""
    device = rows.device
    device.must("mkdir -p /srv/guest; mountpoint -q /srv/guest || mount --bind / /srv/guest; podman run -d --name guest --cgroups=disabled --rootfs /srv/guest:O sleep 1000", 100)
    pid = device.must("podman inspect -f '{{.State.Pid}}' guest").strip()
    yield device.sh("podman --version").strip(), "10.88.0", ("nsenter", f"--net=/proc/{device.pid}/root/proc/{pid}/ns/net")
    device.must(f"podman rm -f -t 0 guest; {FORGET}")


# Says that something came, whatever becomes of an answer.
LISTENS = """
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("", 5555))
print("listens", flush=True)
while True:
    print("from", s.recvfrom(100)[1][0], flush=True)
"""


def one_way(rows, inside):
    """From whom a datagram of a container comes to the target."""
    listener = rows.lab.run(f"listens-{time.monotonic_ns()}", [sys.executable, "-c", LISTENS], prefix=("ip", "netns", "exec", rows.target.ns))
    wait_for("the listener", lambda: "listens" in listener.text())
    sends = f"import socket, time; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); [(s.sendto(b'x', ('{rows.target.v4}', 5555)), time.sleep(0.3)) for _ in range(5)]"
    sent = subprocess.run([*inside, sys.executable, "-c", sends], capture_output=True, timeout=30)
    time.sleep(1)
    listener.stop()
    return set(re.findall(r"from (\S+)", listener.text())), sent


def container(rows, name, network, inside):
    device, checks, target = rows.device, rows.checks, rows.target

    def reaches(timeout=5):
        return subprocess.run([*inside, "curl", "-sS", "--max-time", str(timeout), f"http://{target.v4}/peer"], capture_output=True).stdout.decode() or None

    with contextlib.suppress(TimeoutError):
        wait_for("the bridge", reaches, 10)
    seen = reaches()
    checks.check(f"{name}, before: a container is seen as the device", seen == device.v4, seen)
    came, sent = one_way(rows, inside)
    checks.check(f"{name}, before: its datagrams come from the device", came == {device.v4}, (came, sent))
    before = device.snapshot()
    talks = f"while :; do curl -s -o /dev/null --max-time 1 http://{target.v4}/; ping -c 1 -W 1 {target.v4} >/dev/null; done"
    talk = rows.lab.run(f"container-{network}", ["sh", "-c", talks], prefix=inside)
    if rows.ups(name):
        rows.watch.since()
        seen = reaches(3)
        checks.check(f"{name}: a container reaches nothing", seen is None, seen)
        came, sent = one_way(rows, inside)
        checks.check(f"{name}: nor do its datagrams, one way", not came, (came, sent))
        rows.carried(name, "target.test", target.v4)
        rows.state(name)
        rows.downs(name)
        rows.same(f"{name}, after down", before)
    gateway = f"{name}, gateway"
    if rows.ups(gateway, f'\n[takeover]\ngateway = ["{network}.0/16"]\n'):
        rows.watch.since()
        seen = reaches()
        checks.check(f"{gateway}: a container is seen as the relay", seen == rows.relay.v4, seen)
        came, sent = one_way(rows, inside)
        checks.check(f"{gateway}: its datagrams come from the relay", came == {rows.relay.v4}, (came, sent))
        found = subprocess.run([*inside, sys.executable, str(PROGRAMS), "ask", "198.18.0.2", "target.test", "1"], capture_output=True).stdout.decode()
        checks.check(f"{gateway}: it finds names by us", any(pool in dotted(found) for pool in POOLS), found)
        if name.startswith("podman"):
            seen = device.sh("podman run --rm --cgroups=disabled --rootfs /srv/guest:O curl -sS --max-time 5 http://target.test/peer").strip()
            checks.check(f"{gateway}: one that is started now is seen as the relay, by name", seen == rows.relay.v4, seen)
        got = device.call("curl", "-sS", "--max-time", 3, "-o", "/dev/null", "-w", "%{errormsg}", f"http://{network}.2:9/").stdout.decode()
        checks.check(f"{gateway}: the device reaches the container", "connect to" in got.lower() and "timed out" not in got.lower(), got)
        rows.state(gateway)
        rows.signal("KILL")
        seen = reaches(3)
        checks.check(f"{gateway}, SIGKILL: a container reaches nothing", seen is None, seen)
        rows.state(f"{gateway}, SIGKILL")
        rows.downs(gateway)
        rows.same(f"{gateway}, after down", before)
    talk.stop(signal.SIGKILL)


# --- networks with IPv6 alone ------------------------------------------------------------------------------------------------------------------------

# The network's own prefix: by the well-known one (64:ff9b::/96) no private address is reached (RFC 6052 section 3.1), and this lab's are private.
PREFIX = "2001:db8:64::"
# At the router: whoever speaks IPv6 reaches IPv4 (RFC 6146).
NAT64 = """
mkdir -p /run/nat64; printf 'tun-device nat64\\nipv4-addr 192.168.255.1\\nprefix PREFIX/96\\ndynamic-pool 192.168.255.0/24\\ndata-dir /run/nat64\\n' > /run/nat64/conf
tayga --mktun -c /run/nat64/conf; ip link set nat64 up; ip addr add 192.168.255.254/32 dev nat64; ip route add 192.168.255.0/24 dev nat64; ip -6 route add PREFIX/96 dev nat64
nft 'add table ip nat64; add chain ip nat64 out { type nat hook postrouting priority srcnat; }; add rule ip nat64 out ip saddr 192.168.255.0/24 masquerade'
exec tayga --nodetach -c /run/nat64/conf
""".replace("PREFIX", PREFIX)
# At the device: an IPv4 default route into a translator, which sends IPv6 from an address of its own (RFC 6877), as clatd has it.
CLAT = """
mkdir -p /run/clat; printf 'tun-device clat\\nipv4-addr 192.0.0.2\\nprefix PREFIX/96\\nmap 192.0.0.1 SIX\\ndata-dir /run/clat\\n' > /run/clat/conf
tayga --mktun -c /run/clat/conf; ip link set clat up; ip addr add 192.0.0.1/32 dev clat; ip route add default dev clat; ip -6 route add SIX dev clat
echo 1 > /proc/sys/net/ipv6/conf/all/forwarding; echo 1 > /proc/sys/net/ipv6/conf/eth0/proxy_ndp; ip -6 neigh replace proxy SIX dev eth0
""".replace("PREFIX", PREFIX)


def nat64(rows):
    """A network with IPv6 alone: the relay by its IPv6 address, by its IPv4 address as NAT64 has it, and by a CLAT."""
    device, checks, lab, target, relay, name = rows.device, rows.checks, rows.lab, rows.target, rows.relay, "IPv6 alone"
    without_a_route(rows)
    router = types.SimpleNamespace(ns=lab.router)
    process = lab.run("nat64", lab.inside(router, NAT64))
    translated = str(ipaddress.IPv6Address(int(ipaddress.IPv6Address(PREFIX)) + int(ipaddress.IPv4Address(relay.v4))))
    try:
        device.must(f"ip addr flush dev eth0 scope global; ip -6 addr add {device.v6}/64 dev eth0 nodad; ip -6 route replace default via fd77:{device.number}::1; "
                    f"printf 'nameserver {target.v6}\\n' > /etc/resolv.conf")
        with contextlib.suppress(TimeoutError):
            wait_for("NAT64", lambda: connects(rows, translated), 10)
        seen = rows.seen_as(f"[{target.v6}]"), rows.seen_as(target.v4)
        checks.check(f"{name}, before: IPv6 is reached and IPv4 is not, but by NAT64", seen == (device.v6, None) and connects(rows, translated), f"{seen}: {process.text()}")
        before = device.snapshot()
        for how, address in (("the relay by its IPv6 address", f"[{relay.v6}]"), ("the relay by NAT64's address of it", f"[{translated}]"), ("the relay by its IPv4 address", relay.v4)):
            how = f"{name}, {how}"
            if rows.held(how, relay=address, left=relay.v6 if relay.v6 in address else translated):
                rows.same(f"{how}, after down", before)
        clat(rows, translated)
    finally:
        process.stop(signal.SIGKILL)


def without_a_route(rows):
    """A network with both, whose way to the relay is missing, as for a moment while somebody sets it up anew: its name server is not asked for NAT64's prefix."""
    device, resolver, gateway, name = rows.device, rows.lab.resolver, f"10.77.{rows.device.number}.1", "IPv4 without a route to the relay"
    device.must(f"ip route replace {resolver} via {gateway}; ip route del default")
    routes = [device.sh(f"ip route get {address} 2>&1") for address in (resolver, rows.relay.v4)]
    rows.checks.check(f"{name}: the name server has one", f"via {gateway}" in routes[0] and f"via {gateway}" not in routes[1], routes)
    device.hoplite("up", "--block-only")
    rows.watch.since()
    code, said, took = device.up("", "--wait", "3")
    rows.checks.check(f"{name}: up says that the relay cannot be reached ({took:.0f} s)", code == 1 and "first relay" in said, f"exit {code}: {said}")
    rows.state(name)
    device.must(f"ip route replace default via {gateway}; ip route del {resolver}")
    rows.downs(name)


def connects(rows, address):
    """Whether the relay can be reached there at all."""
    words = ("-c", f"import socket; socket.create_connection(({address!r}, {RELAY_PORT}), 2)")
    return rows.device.outside(sys.executable, *words).returncode == 0


def clat(rows, translated):
    """464XLAT: IPv4 by a translator of the device's own. What comes out of it is forwarded, and nobody's packet, unless the file lets it pass."""
    device, checks, name = rows.device, rows.checks, "464XLAT"
    six = f"{device.v6.rpartition(':')[0]}:464"
    device.must(CLAT.replace("SIX", six))
    process = device.run("clat", ["tayga", "--nodetach", "-c", "/run/clat/conf"])
    try:
        with contextlib.suppress(TimeoutError):
            wait_for("the CLAT", lambda: rows.seen_as(rows.target.v4), 10)
        checks.check(f"{name}, before: IPv4 is reached", rows.seen_as(rows.target.v4), f"{six}: {process.text()}")
        before = device.snapshot()
        device.hoplite("up", "--block-only")
        rows.watch.since()
        code, said, took = device.up("", "--wait", "3")
        checks.check(f"{name}: what a translator in user space sends is blocked, and up says that the relay does not answer ({took:.0f} s)", code == 1 and "relay" in said, f"exit {code}: {said}")
        rows.state(name, translated)
        rows.downs(name)
        name = f"{name}, let pass"
        rows.held(name, f'\n[takeover]\nexclude = {{ addresses = ["{translated}/128"] }}\ngateway = ["{six}/128"]\n', left=translated, excluded=True)
        rows.same(f"{name}, after down", before)
    finally:
        process.stop(signal.SIGKILL)
        device.sh("ip link del clat; for it in conf/all/forwarding conf/eth0/proxy_ndp; do echo 0 > /proc/sys/net/ipv6/$it; done; ip -6 neigh flush proxy")


# --- asleep --------------------------------------------------------------------------------------------------------------------------------------


def asleep(rows):
    """Another network after a sleep: address, gateway and name servers are others when the processes go on."""
    device, checks, lab, name = rows.device, rows.checks, rows.lab, "asleep"
    router = f"to-{device.name}"
    ip("addr", "add", "10.78.1.1/24", "dev", router, ns=lab.router)
    ip("addr", "add", "fd78:1::1/64", "dev", router, "nodad", ns=lab.router)
    rows.ups(name)
    rows.watch.since()
    rows.carried(name, "target.test")
    held = rows.status()
    for moved, address, six, gateway, gateway6, search in (("another network", "10.78.1.9", "fd78:1::9", "10.78.1.1", "fd78:1::1", "new.test"),
                                                           ("the old one again, a link that was down", device.v4, device.v6, f"10.77.{device.number}.1", f"fd77:{device.number}::1", "old.test")):
        pids = rows.signal("STOP")
        rows.blocked(f"{name}, stopped")
        device.must(f"ip link set eth0 down; ip addr flush dev eth0; sleep 1; ip link set eth0 up; ip addr add {address}/24 dev eth0; ip -6 addr add {six}/64 dev eth0 nodad; "
                    f"ip route replace default via {gateway}; ip -6 route replace default via {gateway6}; "
                    f"printf 'search {search}\\nnameserver {lab.resolver}\\n' > /etc/resolv.conf.new; mv /etc/resolv.conf.new /etc/resolv.conf")
        rows.blocked(f"{name}, {moved}, still stopped")
        time.sleep(2)
        device.must(f"kill -CONT {' '.join(map(str, pids))}")
        rows.recovers(f"{name}, {moved}", 10)
        rows.carried(f"{name}, {moved}")
        rows.state(f"{name}, {moved}")
        told = rows.status()
        checks.check(f"{name}, {moved}: by the same processes", (told["pid"], told["worker"]) == (held["pid"], held["worker"]), told)
        checks.check(f"{name}, {moved}: names are ours again", "hoplite" in device.sh("head -n 1 /etc/resolv.conf"), device.sh("cat /etc/resolv.conf"))
    rows.downs(name)
    now = device.sh("cat /etc/resolv.conf")
    checks.check(f"{name}, after down: resolv.conf is the last network's", now == f"search old.test\nnameserver {lab.resolver}\n", now)
    seen = rows.seen_as("target.test")
    checks.check(f"{name}, after down: programs reach the target by themselves", seen == device.v4, seen)


ROWS = (resolved, manager, wireguard, tailscale, containers, nat64, asleep)


def main():
    checks = Checks("beside")
    why = usable() or (None if shutil.which("curl") else Missing("curl is not installed")) or (None if DEBIAN.exists() else Missing(f"no Debian root at {DEBIAN}"))
    if why:
        checks.skip("beside others", why)
        checks.done()
    chosen = sys.argv[1:]
    with BesideLab() as lab:
        names = {"inside.corp.test": lab.target.v4, "nas.lan.test": lab.target.v4, "inside.new.test": lab.target.v4, "inside.route.test": lab.target.v4}
        # What a resolver of a network with NAT64 answers (RFC 7050); nobody but nat64 asks for it.
        names["ipv4only.arpa"] = f"{PREFIX}c000:aa"
        lab.start_targets(*(word for name, address in names.items() for word in ("--name", f"{name}={address}")))
        lab.start_relay(lab.relays[0], listen="[::]")
        (lab.client.root / "etc/hoplite/client.toml").write_text(lab.client.config())
        rows = Rows(checks, lab)
        for row in (booted, *(row for row in ROWS if row.__name__ in (chosen or {row.__name__ for row in ROWS}))):
            began = time.monotonic()
            try:
                if row is not booted:
                    rows.clean()
                row(rows)
            except Exception as e:  # noqa: BLE001: the other rows go on
                checks.check(row.__doc__.splitlines()[0], False, f"{type(e).__name__}: {e}")
                if row is booted:
                    break
            print(f"     ({row.__name__}: {time.monotonic() - began:.0f} s)", flush=True)
        if checks.failed:
            lab.show_logs()
            with contextlib.suppress(RuntimeError):
                print(f"----- the device's own log\n{lab.client.sh('tail -n 40 /run/hoplite/*.log')}")
        lab.client.process.stop(signal.SIGKILL)
    checks.done()


if __name__ == "__main__":
    sys.exit(main())
