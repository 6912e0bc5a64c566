"""What relays of ours tell of themselves, as C tor's authorities give it and `stem` (1.8) reads it with validation: server descriptors, observed
bandwidth, extra-info documents with their noise, before and after a restart; their family, both ways and proven; and what `hoplite directory statistics`
makes of it.

Needs `tor`, `tor-gencert` and Python's `stem`.
"""

import io
import json
import shutil
import subprocess
import time
import urllib.request

from client_test import fetch
from common import HOPLITE, Checks, Lab, Missing, free_port, quoted, wait_for
from tor_relays_test import TAKEN, Ours, listed, network
from tor_test import client, targets

# Test networks alone have such short ones: docs/statistics.md.
PERIOD = 20
MB = 1_000_000
FIGURES = ("read_history_values", "write_history_values", "conn_bi_direct_end", "exit_kibibytes_written", "exit_kibibytes_read",
           "exit_streams_opened")
LINES = ("hidserv-v3-stats-end", "hidserv-rend-v3-relayed-cells", "hidserv-dir-v3-onions-seen", "padding-counts", "hoplite-circuits",
         "hoplite-noise")


def ours(lab, names, resolver, authorities):
    """Relays of ours with short periods, of one family, whose identities are kept elsewhere."""
    key = keygen("--family", "--out", lab.folder)
    relays = [Ours(lab, name, resolver, authorities, free_port()) for name in names]
    for relay in relays:
        keygen("--rsa", "--offline", "--master", lab.folder / f"safe-{relay.name}", "--out", relay.folder)
    fingerprints = {relay.name: relay.keys()["rsa"] for relay in relays}
    for relay in relays:
        others = [rsa for name, rsa in fingerprints.items() if name != relay.name]
        family = f"family = {quoted(others)}\nfamily_keys = {quoted([key['key']])}\n"
        text = relay.file.read_text().replace("contact = ", family + "contact = ")
        relay.file.write_text(text + f"\n[directory]\nstatistics = {PERIOD}\nbandwidth = 50_000_000\n")
        relay.start()
    return relays, fingerprints, key["public"]


def keygen(*options):
    return json.loads(subprocess.run([HOPLITE, "--json", "keygen", *options], check=True, capture_output=True).stdout)


def microdescriptors(authority):
    """Those of all relays in the consensus, by nickname."""
    def get(path):
        return urllib.request.urlopen(f"http://127.0.0.1:{authority.dirport}{path}", timeout=5).read().decode()
    digests, name = {}, None
    for line in get("/tor/status-vote/current/consensus-microdesc").splitlines():
        if line.startswith("r "):
            name = line.split()[1]
        elif line.startswith("m "):
            digests[name] = line.split()[1]
    return {name: get(f"/tor/micro/d/{digest}") for name, digest in digests.items()}


def is_family(checks, authority, relays, fingerprints, family):
    """What clients see of it."""
    def both():
        found = microdescriptors(authority)
        return found if all(relay.name in found for relay in relays) else time.sleep(1)
    found = wait_for("our relays' microdescriptors", both, 60) or {}
    for relay in relays:
        text, (other,) = found.get(relay.name, ""), [rsa for name, rsa in fingerprints.items() if name != relay.name]
        checks.check(f"{relay.name}'s microdescriptor names the other", f"family ${other}" in text or f"${other}" in text, text)
        checks.check(f"{relay.name}'s microdescriptor has the proven family", f"\nfamily-ids ed25519:{family}" in text, text)


def totals(checks, lab, authority):
    """`hoplite directory statistics`, twice: what was told twice counts once."""
    file, plot = lab.folder / "network.sqlite", lab.folder / "network.svg"
    command = [HOPLITE, "--json", "directory", "statistics", "--file", file, "--tor", f"127.0.0.1:{authority.dirport}", "--plot", plot]
    ran = [subprocess.run(command, capture_output=True, text=True, timeout=60) for _ in range(2)]
    checks.check("statistics of the network are gathered", all(one.returncode == 0 for one in ran), ran[0].stderr)
    rows = [json.loads(line) for line in ran[1].stdout.splitlines()]
    found = {row["figure"]: row for row in rows}
    streams = found.get("exit-streams-opened.443", {})
    checks.check("streams of an exit are told with what is uncertain of them", streams and streams["high"] - streams["low"] > 10_000, streams)
    checks.check("the second time there is nothing new but what was told since", "0 documents that cannot be used" in ran[1].stderr, ran[1].stderr)
    checks.check("and they are drawn", plot.read_text().count("<circle") >= len(found), plot.read_text()[:300])


def given(authority, what, kind):
    """What the authority has of all relays, by nickname, read by stem."""
    import stem.descriptor
    url = f"http://127.0.0.1:{authority.dirport}/tor/{what}/all"
    text = urllib.request.urlopen(url, timeout=5).read()
    read = stem.descriptor.parse_file(io.BytesIO(text), f"{kind} 1.0", validate=True)
    return {document.nickname: document for document in read}


def extra_info(authority, name):
    return given(authority, "extra", "extra-info").get(name)


def descriptor(authority, name):
    return given(authority, "server", "server-descriptor").get(name)


def told(authority, name):
    """Its extra-info document, once it has statistics."""
    def has_statistics():
        document = extra_info(authority, name)
        return document if document and document.exit_streams_opened else time.sleep(1)
    try:
        return wait_for(f"statistics of {name}", has_statistics, 3 * PERIOD)
    except Exception:  # noqa: BLE001: what is missing is told by whoever asked
        return extra_info(authority, name)


def is_read(checks, authority, name, when):
    document, server = told(authority, name), descriptor(authority, name)
    if document is None:
        checks.check(f"{when}: the authority gives {name}'s extra-info document", False)
        return None, server
    for figure in FIGURES:
        checks.check(f"{when}: stem reads {figure} of {name}", bool(getattr(document, figure)), str(document)[:1500])
    for line in LINES:
        checks.check(f"{when}: {line} is there", f"\n{line} " in str(document), str(document)[:1500])
    digest = server.extra_info_digest
    checks.check(f"{when}: {name}'s descriptor names that document", document.digest() == digest, f"{document.digest()} {digest}")
    ports = set(document.exit_streams_opened)
    checks.check(f"{when}: the ports that are told are always the same", ports == {22, 80, 443, 853, 993, 5222, "other"}, ports)
    return document, server


def main():
    checks = Checks("stem: what relays of ours tell C tor's authorities")
    if not all(map(shutil.which, ("tor", "tor-gencert"))):
        checks.skip("everything", Missing("tor or tor-gencert is not installed"))
        checks.done()
    try:
        import stem
    except ImportError:
        checks.skip("everything", Missing("stem is not installed"))
        checks.done()
    print(f"     stem {stem.__version__}", flush=True)
    with Lab() as lab:
        http, resolver, names = targets(lab)
        authorities, _ = network(lab, names)
        wait_for("the authorities", lambda: len(listed(authorities[0])) >= 5 or time.sleep(0.5), 90)
        relays, fingerprints, family = ours(lab, ("amber", "birch"), resolver, authorities)
        for relay in relays:
            wait_for("the authorities' answers", lambda relay=relay: relay.text().count(TAKEN) >= 3, 30)
        new = descriptor(authorities[0], "birch")
        checks.check("a relay that nobody has used yet says 100 kB/s", new.observed_bandwidth == 100_000, new.observed_bandwidth)
        checks.check("and what its operator says that it can carry", new.average_bandwidth == 50_000_000, new.average_bandwidth)
        path = [{"name": relay.name, "address": f"127.0.0.1:{relay.port}"} | relay.keys() for relay in relays]
        via = client(lab, path)
        for _ in range(8):
            checks.attempt("4 MB over both", lambda: fetch(via, "127.0.0.1", http, 4 * MB))
        is_family(checks, authorities[0], relays, fingerprints, family)
        first, server = is_read(checks, authorities[0], "birch", "running")
        seen = server.observed_bandwidth
        checks.check("the observed bandwidth is what was carried", MB / 10 < seen < 500 * MB, seen)
        print(f"     observed: {seen} bytes/s; streams told: {first and first.exit_streams_opened}", flush=True)
        kept = relays[1].folder / "statistics"
        checks.check("what is kept is for its owner alone", kept.stat().st_mode & 0o777 == 0o600, oct(kept.stat().st_mode))
        relays[1].process.stop()
        time.sleep(1)
        relays[1].start()
        wait_for("the authorities' answers", lambda: relays[1].text().count(TAKEN) >= 3, 30)
        again = descriptor(authorities[0], "birch")
        checks.check("after a restart the bandwidth is still known", again.observed_bandwidth >= seen, f"{again.observed_bandwidth} {seen}")
        is_read(checks, authorities[0], "birch", "after a restart")
        totals(checks, lab, authorities[0])
        for relay in relays:
            checks.check(f"{relay.name}'s log has no panic", "panicked" not in relay.text(), relay.text()[-600:])
    checks.done()


if __name__ == "__main__":
    main()
