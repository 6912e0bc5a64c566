"""An egress by region on the wire: a client, an ingress with a geofeed, an egress with pools, and a target that looks up who comes in what is published.

The target believes nothing but `hoplite geofeed print`, which it reads by itself. Needs root; says so and passes when it is not.
"""

import csv
import http.server
import ipaddress
import json
import signal
import socket
import sys

from common import HOPLITE, TOKEN, Checks, wait_for
from netns import RELAY_PORT, SOCKS, NetLab, ip, usable

MIRROR = 8088
# What each pool is called in the feed, and where its addresses are.
POOLS = {
    "DE-BE": ("203.0.113.0/28", "2001:db8:be::/64"),
    "DE": ("203.0.113.16/28", "2001:db8:de::/64"),
    "FR-IDF": ("203.0.113.32/28", "2001:db8:1df::/64"),
    "": ("203.0.113.48/28", "2001:db8:0::/64"),
}


def look_up(feed, address):
    """The region of an address by the longest prefix of a geofeed, RFC 8805; None where the feed does not have it."""
    address, found = ipaddress.ip_address(address), (-1, None)
    for prefix, country, region, *_ in csv.reader(line for line in feed.splitlines() if line and not line.startswith("#")):
        net = ipaddress.ip_network(prefix)
        if address in net and net.prefixlen > found[0]:
            found = (net.prefixlen, region or country)
    return found[1]


def mirror(path, host):
    """Runs on the target: says each client its address and where that is."""
    feed = open(path, encoding="utf-8").read()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            seen = self.client_address[0]
            body = json.dumps({"address": seen, "region": look_up(feed, seen)}).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    class Server(http.server.ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

    server = Server((host, MIRROR), Handler)
    print(json.dumps({"up": True}), flush=True)
    server.serve_forever()


class RegionLab(NetLab):
    """Two relays; the pools are routed to the second one, which takes them for its own."""

    def __init__(self):
        super().__init__(relays=2)
        self.ingress, self.egress = self.relays
        for v4, v6 in POOLS.values():
            ip("route", "add", v4, "via", self.egress.v4, ns=self.router)
            ip("-6", "route", "add", v6, "via", self.egress.v6, ns=self.router)
            ip("route", "add", "local", v4, "dev", "lo", ns=self.egress.ns)
            ip("-6", "route", "add", "local", v6, "dev", "lo", ns=self.egress.ns)

    def start(self):
        tables = "".join(f'\n[[egress.pool]]\n{f"region = {json.dumps(region)}" if region else ""}\naddresses = {json.dumps(nets)}\n'
                         for region, nets in POOLS.items())
        self.feed = self.folder / "clients.csv"
        self.place("DE,DE-BE,,")
        self.start_relay(self.egress, tables)
        self.start_relay(self.ingress)
        # Its file has a table [ingress] already.
        path = self.folder / f"{self.ingress.name}.toml"
        path.write_text(path.read_text().replace("[ingress]\n", f'[ingress]\ngeofeed = "{self.feed}"\n'))
        self.reload()
        published = self.hoplite(self.egress, "geofeed", "print", "--config", self.config())
        self.published = self.folder / "published.csv"
        self.published.write_bytes(published.stdout)
        for name, host in (("mirror", self.target.v4), ("mirror6", self.target.v6)):
            server = self.target.run(name, [sys.executable, __file__, "mirror", self.published, host])
            wait_for(name, lambda: server.lines() or not server.alive())
            if not server.lines():
                raise RuntimeError(server.text())

    def config(self):
        return self.folder / f"{self.egress.name}.toml"

    def hoplite(self, host, *words):
        return host.call(HOPLITE, *words)

    def place(self, where):
        """Has the ingress's file say so of its clients' addresses."""
        self.feed.write_text(f"{ipaddress.ip_network(self.client.v4 + '/24', strict=False)},{where}\n")

    def reload(self):
        relay = self.running[self.ingress.name]
        mark = len(relay.text())
        relay.child.send_signal(signal.SIGHUP)
        wait_for("SIGHUP", lambda: "read again" in relay.text()[mark:] or "stay" in relay.text()[mark:])
        return relay.text()[mark:]

    def targets(self):
        return {"IPv4": f"http://{self.target.v4}:{MIRROR}/", "IPv6": f"http://[{self.target.v6}]:{MIRROR}/"}

    def seen(self, url, user=None):
        """What the target sees of a program behind the client."""
        at = f"{user}:x@" if user else ""
        got = self.curl(url, proxy=f"socks5h://{at}127.0.0.1:{SOCKS}")
        return json.loads(got.stdout) if got.stdout else {"address": None, "region": f"curl {got.returncode}: {got.stderr.decode().strip()}"}

    def lying(self, shown, url):
        """curl straight at the egress, which shows what it likes: the status of CONNECT and what the target sees."""
        headers = [word for field in (f"Hoplite-Region: {shown}", f"Proxy-Authorization: Bearer {TOKEN}") for word in ("--proxy-header", field)]
        got = self.client.call("curl", "-sS", "--max-time", 20, "--proxy", f"https://{self.egress.v4}:{RELAY_PORT}", "--proxy-cacert", self.authority.ca,
                               "--proxytunnel", *headers, "-w", "\n%{http_connect}", url)
        body, _, status = got.stdout.decode().rpartition("\n")
        return int(status or 0), json.loads(body) if body else None


def published(checks, lab):
    feed = lab.published.read_text()
    expected = {(net, region) for region, nets in POOLS.items() for net in nets}
    rows = {(str(ipaddress.ip_network(row[0])), row[2] or row[1]) for row in csv.reader(feed.splitlines())}
    expected = {(str(ipaddress.ip_network(net)), region) for net, region in expected}
    checks.check("`hoplite geofeed print` has every pool where it is", rows == expected, f"{rows ^ expected}")
    checked = lab.hoplite(lab.egress, "geofeed", "check", lab.published, "--config", lab.config())
    checks.check("`hoplite geofeed check` finds it right, and in accord with the pools", checked.returncode == 0, checked.stderr.decode())
    wrong = lab.folder / "wrong.csv"
    wrong.write_text(feed.replace("DE,DE-BE", "FR,FR-ARA"))
    checked = lab.hoplite(lab.egress, "geofeed", "check", wrong, "--config", lab.config())
    checks.check("a feed that has them elsewhere is told, by the pool's key", checked.returncode == 2 and b"egress.pool[0].addresses" in checked.stderr,
                 checked.stderr.decode())
    for host, there in ((lab.egress, True), (lab.client, False)):
        said = lab.hoplite(host, "check", "--config", lab.config())
        missing = said.stderr.count(b"does not lead to this host")
        fine = said.returncode == 0 and missing == (0 if there else 2 * len(POOLS))
        checks.check(f"`hoplite check` {'misses no' if there else 'misses every'} address of a pool on {'the egress' if there else 'another host'}", fine,
                     said.stderr.decode())


def modes(checks, lab):
    """What the user chose to show is the region of the address that the target sees, from the first flow on."""
    for mode, extra, expected in (("none", "", ""), ("country", 'zone = "Europe/Berlin"\n', "DE"), ("keep", "", "DE-BE")):
        client = lab.start_client(2, f"client-{mode}", f'\n[tunnel]\nregion = "{mode}"\n{extra}')
        for family, url in lab.targets().items():
            seen = lab.seen(url)
            checks.check(f'region = "{mode}", {family}: the target finds the address in {expected or "no region"}', seen["region"] == expected, str(seen))
        client.stop()


def moved(checks, lab):
    """The ingress's file changes while it runs; a wrong one changes nothing."""
    for where, says, expected in (("FR,DE-BE,,", "line 1: region DE-BE is not in country FR", "DE-BE"), ("FR,FR-IDF,Paris,", "read again", "FR-IDF")):
        lab.place(where)
        told = lab.reload()
        checks.check(f"SIGHUP with {where!r}: the relay says so", says in told, told)
        client = lab.start_client(2, f"client-{expected}-{says[:4]}", '\n[tunnel]\nregion = "keep"\n')
        for family, url in lab.targets().items():
            seen = lab.seen(url)
            checks.check(f"and a client that connects then is seen in {expected}, {family}", seen["region"] == expected, str(seen))
        client.stop()


def apart(checks, lab):
    """One address for one user's flows, another for another's; both of the region."""
    client = lab.start_client(2, "client-users", '\n[tunnel]\nregion = "keep"\n')
    url = lab.targets()["IPv6"]
    one, again, other = (lab.seen(url, user) for user in ("alice", "alice", "bob"))
    checks.check("flows with one isolation token have one address", one == again and one["address"], f"{one} {again}")
    checks.check("flows with another have another", one["address"] != other["address"], f"{one} {other}")
    checks.check("of the same region", one["region"] == other["region"] == "FR-IDF", f"{one} {other}")
    client.stop()


def lies(checks, lab):
    """Who shows what is not so gets an address of that place, and nothing else."""
    for shown, expected in (("FR-IDF", "FR-IDF"), ("DE-BE", "DE-BE"), ("DE-BY", "DE"), ("US", ""), ("FR-IDF, DE-BE", ""), ("203.0.113.1", "")):
        for family, url in lab.targets().items():
            status, seen = lab.lying(shown, url)
            fine = status == 200 and seen and seen["region"] == expected
            checks.check(f"a client that shows {shown!r} is seen in {expected or 'no region'}, {family}", fine, f"{status} {seen}")
    forbidden = ((lab.ingress.v4, 22), ("203.0.113.1", 22), ("127.0.0.1", 22))
    told = {(shown, host): lab.lying(shown, f"http://{host}:{port}/")[0]
            for shown in ("DE-BE", "FR-IDF", "-") for host, port in forbidden}
    checks.check("whatever it shows, what is forbidden stays so: other hosts, the pools, the relay's own", set(told.values()) == {403}, str(told))
    logs = "".join((lab.folder / f"relay-{relay.name}.log").read_text() for relay in lab.relays)
    # Of the ingress, what it said of its wrong file is no client's.
    kept = [line for line in logs.splitlines() if "line 1: region" not in line]
    told = [line for line in kept if any(word in line for word in ("FR-IDF", "DE-B", lab.client.v4))]
    checks.check("neither relay's log has the region or the address of a client", not told, str(told))


def main():
    checks = Checks("regions_test")
    why = usable()
    if why:
        checks.skip("everything", why)
        checks.done()
    with RegionLab() as lab:
        lab.start()
        for part in (published, modes, moved, apart, lies):
            part(checks, lab)
    checks.done()


if __name__ == "__main__":
    if sys.argv[1:2] == ["mirror"]:
        mirror(*sys.argv[2:])
    else:
        main()
