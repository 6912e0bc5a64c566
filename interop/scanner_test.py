"""The scanner in a network of C tor: relays that are shaped 1 : 2 : 4 get weights in that ratio, from a file that its authorities read.

Needs `tor` and `tor-gencert`. With `sbws` in the path, and SBWS=1, Debian's scanner measures the same network afterwards (SBWS=alone: without ours).
"""

import http.server
import os
import pathlib
import re
import shutil
import subprocess
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

from common import HOPLITE, Checks, Lab, Missing, free_port, quoted, wait_for
from tor_test import Tor, targets

# In thousands of bytes a second; C tor's relays have 76.8 at least.
SHAPED = {"s1": 100, "s2": 200, "s4": 400}
ROUNDS = int(os.environ.get("ROUNDS", "2"))


def network(lab, names, bandwidths):
    """Three authorities, which are relays too, two fast relays more, and the shaped ones."""
    authorities = [Tor(lab, f"a{i}", True, names) for i in range(3)]
    fast = [Tor(lab, f"r{i}", False, names) for i in range(2)]
    shaped = [Tor(lab, name, False, names) for name in SHAPED]
    with ThreadPoolExecutor() as pool:
        list(pool.map(Tor.certify, authorities))
    for tor in authorities:
        # Who is an exit follows from what relays say.
        tor.torrc = tor.torrc.replace("TestingDirAuthVoteExit *\n", "")
        tor.torrc += f"V3BandwidthsFile {bandwidths}\nConsensusParams ExtendByEd25519ID=1\n"
    for tor in fast:
        # sbws measures exits behind relays that are none.
        tor.torrc = tor.torrc.replace("ExitPolicy accept *:*", "ExitPolicy reject *:*").replace("ExitRelay 1", "ExitRelay 0")
    for tor, rate in zip(shaped, SHAPED.values()):
        # Else what comes from loopback is not shaped.
        tor.torrc += f"CountPrivateBandwidth 1\nBandwidthRate {rate * 1000} bytes\nBandwidthBurst {rate * 1000} bytes\n"
    for tor in authorities + fast + shaped:
        tor.start(authorities)
    return authorities, fast + shaped


def consensus(authority):
    """The words of each relay's `w` line."""
    url = f"http://127.0.0.1:{authority.dirport}/tor/status-vote/current/consensus"
    try:
        text = urllib.request.urlopen(url, timeout=5).read().decode()
    except OSError:
        return {}
    found, name = {}, None
    for line in text.splitlines():
        if line.startswith("r "):
            name = line.split()[1]
        elif line.startswith("w ") and name:
            found[name] = dict(word.split("=") for word in line.split()[1:])
    return found


def lines(path):
    """The header of a bandwidth file, and its relays' lines by nickname."""
    header, relays = {}, {}
    for line in pathlib.Path(path).read_text().splitlines()[1:]:
        pairs = dict(word.split("=", 1) for word in line.split(" ") if "=" in word)
        if "bw" in pairs and "nick" in pairs:
            relays[pairs["nick"]] = pairs
        else:
            header |= pairs
    return header, relays


def ours(lab, authorities, file, results):
    """Our scanner, with a target of its own."""
    port = free_port()
    named = quoted(f"{tor.v3}@127.0.0.1:{tor.dirport}" for tor in authorities)
    path = lab.folder / "scan.toml"
    path.write_text(f'overlay = "onion"\nhops = 2\n\n[directory]\napart = ["family"]\ncache = "scan.sqlite"\n\n[directory.tor]\n'
                    f'authorities = {named}\ntesting = true\n\n[scan]\nlisten = "127.0.0.1:{port}"\nresults = "{results}"\nfile = "{file}"\n'
                    f'write = 5\npause = 10\nat_once = 2\n')
    return lab.run("scanner", [HOPLITE, "directory", "scan", "--config", path])


def ratios(weights):
    """By how many percent each is off 1 : 2 : 4."""
    total, parts = sum(weights), sum(SHAPED.values())
    return [round(100 * (weight / total * parts / part - 1)) for weight, part in zip(weights, SHAPED.values())]


class Big(http.server.BaseHTTPRequestHandler):
    """What sbws wants: a large file, pieces of which can be asked for."""

    protocol_version = "HTTP/1.1"
    size = 1 << 30

    def do_HEAD(self):
        self.send_response(200)
        self.send_header("Content-Length", str(self.size))
        self.send_header("Accept-Ranges", "bytes")
        self.end_headers()

    def do_GET(self):
        first, last = map(int, re.match(r"bytes=(\d+)-(\d+)", self.headers.get("Range", f"bytes=0-{self.size - 1}")).groups())
        self.send_response(206)
        self.send_header("Content-Length", str(last - first + 1))
        self.send_header("Content-Range", f"bytes {first}-{last}/{self.size}")
        self.end_headers()
        left, chunk = last - first + 1, os.urandom(1 << 16)
        try:
            while left > 0:
                self.wfile.write(chunk[:left])
                left -= min(left, len(chunk))
        except OSError:
            self.close_connection = True

    def log_message(self, *_):
        pass


def sbws(checks, lab, authorities):
    """Debian's scanner on the same network."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Big)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    home = lab.folder / "sbws"
    home.mkdir()
    (home / "tor").mkdir(mode=0o700)
    extra = "".join(f"    {line}\n" for tor in authorities for line in [tor.line.strip()])
    config = lab.folder / "sbws.ini"
    config.write_text(f"""[general]
data_period = 1
http_timeout = 10
reset_bw_ipv4_changes = off
reset_bw_ipv6_changes = off
[paths]
sbws_home = {home}
[destinations]
usability_test_interval = 30
own = on
[destinations.own]
url = http://127.0.0.1:{server.server_address[1]}/big
verify = False
country = ZZ
[tor]
extra_lines =
    TestingTorNetwork 1
    EnforceDistinctSubnets 0
{extra}
[scanner]
nickname = none
country = ZZ
measurement_threads = 1
[relayprioritizer]
measure_authorities = on
fraction_relays = 1.0
min_relays = 8
[logging]
to_file = no
level = info
""")
    made = home / "v3bw" / "latest.v3bw"
    limit = time.monotonic() + int(os.environ.get("SBWS_SECONDS", "600"))
    found, loops = {}, 0
    while time.monotonic() < limit:
        # In a testing network it ends after each loop.
        loops += 1
        scanner = lab.run(f"sbws-{loops}", ["sbws", "-c", config, "scanner"])
        while scanner.alive() and time.monotonic() < limit:
            time.sleep(1)
        scanner.stop()
        subprocess.run(["sbws", "-c", config, "generate", "--secs-away", "1"], timeout=60, capture_output=True)
        if made.exists():
            found = lines(made)[1]
            if all(int(found.get(name, {}).get("success", 0)) >= ROUNDS for name in SHAPED):
                break
    measured = [name for name in SHAPED if int(found.get(name, {}).get("success", 0)) > 0]
    checks.check("sbws has measured the shaped relays", len(measured) == len(SHAPED), f"{measured} {scanner.text()[-1500:]}")
    for name in SHAPED & found.keys():
        pairs = found[name]
        print(f"     sbws {name}: bw={pairs['bw']} bw_median={pairs.get('bw_median')} success={pairs.get('success')}", flush=True)
    if len(measured) == len(SHAPED):
        print(f"     sbws: off by {ratios([int(found[name]['bw']) for name in SHAPED])} % (weights), "
              f"{ratios([int(found[name].get('bw_median', 1)) for name in SHAPED])} % (medians)", flush=True)


def scan(checks, lab, authorities, everybody):
    """What our scanner finds, and what becomes of it."""
    file, results = lab.folder / "bandwidth", lab.folder / "scan.jsonl"
    began = time.monotonic()
    scanner = ours(lab, authorities, file, results)

    def often():
        return file.exists() and all(int(lines(file)[1].get(name, {}).get("success", 0)) >= 2 * ROUNDS for name in everybody)
    try:
        wait_for("measurements", lambda: often() or not scanner.alive() or time.sleep(1), 900)
    except Exception as e:  # noqa: BLE001: what is missing is told below
        print(f"     {e}", flush=True)
    checks.check("the scanner is there", scanner.alive(), scanner.text()[-1500:])
    header, found = lines(file)
    print(f"     after {time.monotonic() - began:.0f} s; header: {header}", flush=True)
    for name in sorted(found):
        print(f"     {name}: bw={found[name]['bw']} bw_median={found[name].get('bw_median')} success={found[name]['success']}"
              f" error_circ={found[name]['error_circ']} error_stream={found[name]['error_stream']}"
              f" desc_bw_avg={found[name]['desc_bw_avg']} desc_bw_obs_last={found[name].get('desc_bw_obs_last')}", flush=True)
    # What relays say of themselves is a cap on `bw`: the ratio to the mean is what was measured.
    off = ratios([float(found[name]["r_strm"]) for name in SHAPED])
    print(f"     ours: {[found[name]['r_strm'] for name in SHAPED]} times the mean, off by {off} %", flush=True)
    checks.check("what was measured is 1 : 2 : 4, within 15 %", all(abs(percent) <= 15 for percent in off), off)
    off = ratios([int(found[name]["bw"]) for name in SHAPED])
    print(f"     weights: off by {off} %", flush=True)
    checks.check("the file's weights are 1 : 2 : 4, within 15 %", all(abs(percent) <= 15 for percent in off), off)

    def measured():
        words = consensus(authorities[0])
        return all("Unmeasured" not in words.get(name, {"Unmeasured": ""}) for name in SHAPED) or time.sleep(1)
    wait_for("the consensus with measured weights", measured, 60)
    words = consensus(authorities[0])
    checks.check("the consensus has measured weights", all("Unmeasured" not in words[name] for name in SHAPED), words)
    off = ratios([int(words[name]["Bandwidth"]) for name in SHAPED])
    print(f"     consensus: {[words[name]['Bandwidth'] for name in SHAPED]}, off by {off} %", flush=True)
    checks.check("the consensus's weights are 1 : 2 : 4, within 15 %", all(abs(percent) <= 15 for percent in off), off)
    text = scanner.text()
    checks.check("the scanner's log has no panic and no relay", "panicked" not in text and not any(name in text for name in SHAPED), text[-600:])
    scanner.stop()


def main():
    checks = Checks("C tor: weights from our scanner, for relays shaped 1 : 2 : 4")
    if not all(map(shutil.which, ("tor", "tor-gencert"))):
        checks.skip("everything", Missing("tor or tor-gencert is not installed"))
        checks.done()
    with Lab() as lab:
        _, _, names = targets(lab)
        authorities, relays = network(lab, names, lab.folder / "bandwidth")
        everybody = {tor.name for tor in authorities + relays}
        wait_for("the consensus", lambda: everybody <= consensus(authorities[0]).keys() or time.sleep(0.5), 90)
        checks.check("before, nobody is measured", all(pairs.get("Unmeasured") == "1" for pairs in consensus(authorities[0]).values()))
        if os.environ.get("SBWS") != "alone":
            scan(checks, lab, authorities, everybody)
        if os.environ.get("SBWS") and shutil.which("sbws"):
            sbws(checks, lab, authorities)
    checks.done()


if __name__ == "__main__":
    main()
