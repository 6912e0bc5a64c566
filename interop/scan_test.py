"""Our scanner over relays of ours, and authorities of ours that vote by its file: relays shaped 1 : 2 : 4, all of which say the same of themselves, get
weights in that ratio; one of three scanners lies, and is outvoted.

Authorities, relays and the scanner are processes, each in a namespace of its own. Needs root; takes some minutes, since transfers over slow relays do.
"""

import os
import re
import time

from common import HOPLITE, Checks, wait_for
from netns import usable
from onion_network import AUTHORITIES, RELAYS, OnionNetwork

# Payload both ways together, in bit/s; others have FAST. It is what a program has that needs no shaper of the kernel's.
SHAPED = {"r1": 1_000_000, "r2": 2_000_000, "r3": 4_000_000}
FAST = 16_000_000
# What each relay says of itself, in bytes a second: ten times what the slowest carries one way.
SAID = 625_000
LIAR, GAIN = AUTHORITIES[-1], 10
ROUNDS = int(os.environ.get("ROUNDS", "4"))


class ScannedNetwork(OnionNetwork):
    """Its relays are shaped, and its authorities read a bandwidth file, each its own."""

    def _name_relay(self, name):
        super()._name_relay(name)
        path = self.folder / f"{name}.toml"
        path.write_text(path.read_text().replace("[directory]\n", f"[limits]\nbandwidth = {SHAPED.get(name, FAST)}\n[directory]\nbandwidth = {SAID}\n"))

    def authority_starts(self, name):
        path = self.folder / name / "directory.toml"
        if "bandwidth_file" not in path.read_text():
            path.write_text(f'bandwidth_file = "bandwidth"\n{path.read_text()}')
        super().authority_starts(name)

    def scanner_starts(self):
        address = f'{self["client"].v4}:8800'
        scan = f'[scan]\nlisten = "{address}"\ntarget = "{address}"\nwrite = 5\npause = 5\nat_once = 2\nfile = "scanned"\nresults = "scan.jsonl"\n'
        return self.start("scanner", HOPLITE, "directory", "scan", "--config", self._file("scan", scan), ready="", host="client")

    def scanned(self):
        """The relays' lines of the scanner's file, by name."""
        path, found = self.folder / "scanned", {}
        for line in path.read_text().splitlines() if path.exists() else ():
            pairs = dict(word.split("=", 1) for word in line.split() if "=" in word)
            if "bw" in pairs and "nick" in pairs:
                found[pairs["nick"]] = pairs
        return found

    def give(self):
        """The scanner's file to all authorities, as two of three vantage points would have it; the third one's says that r1 is ten times as fast."""
        text = (self.folder / "scanned").read_text()
        lie = re.sub(r"(?m)^(?=.*\bnick=r1\b)(.*\bbw=)(\d+)", lambda line: f"{line[1]}{int(line[2]) * GAIN}", text)
        for name in AUTHORITIES:
            path = self.folder / name / "bandwidth"
            path.with_suffix(".new").write_text(lie if name == LIAR else text)
            path.with_suffix(".new").rename(path)
        return lie != text

    def measured(self):
        """What the list says was measured, by name."""
        found, name = {}, None
        for line in self.list().splitlines():
            if line.startswith("name "):
                name = line.split()[1]
            elif line.startswith("measured ") and name:
                found[name] = int(line.split()[1])
        return found


def off(values):
    """By how many percent each of the shaped relays' is off their ratio."""
    total, parts = sum(values[name] for name in SHAPED), sum(SHAPED.values())
    return {name: round(100 * (values[name] / total * parts / rate - 1)) for name, rate in SHAPED.items()}


def main():
    checks = Checks("relays of ours, measured by our scanner, voted by our authorities")
    if why := usable():
        checks.skip("a network of namespaces", why)
        checks.done()
    with ScannedNetwork() as net:
        checks.check("before, nobody is measured", not net.measured())
        began, scanner = time.monotonic(), net.scanner_starts()

        def often():
            found = net.scanned()
            return all(int(found.get(name, {}).get("success", 0)) >= ROUNDS for name in SHAPED) or not scanner.alive() or time.sleep(1)
        wait_for("measurements", often, 840)
        found = net.scanned()
        for name in sorted(found):
            print(f"     {name}: bw={found[name]['bw']} r_strm={found[name].get('r_strm')} bw_median={found[name].get('bw_median')}"
                  f" success={found[name]['success']}", flush=True)
        measured = off({name: float(found[name]["r_strm"]) for name in SHAPED})
        print(f"     after {time.monotonic() - began:.0f} s off by {measured} %", flush=True)
        checks.check("what was measured is 1 : 2 : 4, within 15 %", all(abs(percent) <= 15 for percent in measured.values()), measured)
        weights = off({name: int(found[name]["bw"]) for name in SHAPED})
        checks.check("the file's weights are, too", all(abs(percent) <= 15 for percent in weights.values()), weights)
        checks.check("a lie can be told", net.give())
        wait_for("a list of who was measured", lambda: set(SHAPED) <= net.measured().keys() or time.sleep(1), 90)
        listed = off(net.measured())
        print(f"     list: {net.measured()}, off by {listed} %", flush=True)
        checks.check("the list says the same: one scanner of three that lies is outvoted", all(abs(p) <= 15 for p in listed.values()), listed)
        text = scanner.text()
        relays = "|".join(re.escape(net[name].v4) for name in RELAYS)
        found = re.search(rf"panicked|\br[1-9]\b|{relays}", text)
        checks.check("the scanner's log has no panic, no relay and no relay's address", not found, f"{found} {text[-600:]}")
        scanner.stop()
    checks.done()


if __name__ == "__main__":
    main()
