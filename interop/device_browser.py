"""A browser as people install it: Firefox with a fresh profile, nothing configured, nothing switched off. A part of device_test.py.

`device_browser.py drive FOLDER CA` is what runs in the device's namespace; it prints a JSON line.
"""

import os
import shutil
import sys
import time

from common import HERE, Missing, sha256, wait_for
from firefox import BINARY, Firefox
from firefox_test import HASH
from programs import say
from servers import SITE, payload

SIZE = 2_000_000
# How long after its start the browser has looked after itself: connectivity, captive portal, settings, lists.
STARTING = 12
# What makes it testable, and nothing else: its remote control does not change settings, and an authority of the user's own does not turn off HTTP/3.
PREFS = {"remote.prefs.recommended": False, "network.http.http3.disable_when_third_party_roots_found": False}


def drive(folder, ca):
    """The page with all that belongs to it, then again until it comes by HTTP/3, then a download."""
    began, found = time.monotonic(), {}
    with Firefox(folder, ca, PREFS, name="firefox-device", quiet=False) as browser:
        browser.go("https://target.test/site")
        wait_for("the page's script", lambda: browser.script("return document.title").startswith("done"), 15)
        found["first"], found["title"] = browser.next_hop(), browser.script("return document.title")
        found["resources"] = browser.script("return performance.getEntriesByType('resource').map(e => new URL(e.name).pathname)")
        found["image"] = browser.script("return document.querySelector('img').naturalWidth")

        def by_http3():
            browser.go("https://target.test/site")
            return browser.next_hop() == "h3"
        try:
            wait_for("a page by HTTP/3", by_http3, 20)
            found["http3"] = True
        except TimeoutError:
            found["http3"] = browser.next_hop()
        found["sha256"] = browser.script_async(HASH, f"https://target.test/bytes/{SIZE}")
        time.sleep(max(0, began + STARTING - time.monotonic()))
    say(event="browser", seconds=time.monotonic() - began, **found)


def browser(session):
    """A browser that nobody configured: its pages come by the relays, and so does all that it says to its maker."""
    if not BINARY or not shutil.which("certutil"):
        return session.checks.skip("a browser", Missing("apt-get install firefox-esr libnss3-tools"))
    if not session.ups("browser", 2):
        return
    checks, device, lab = session.checks, session.device, session.lab
    logs = [process for process in lab.processes if process.name.startswith("targets")]
    marks = [len(log.lines()) for log in logs]
    session.watch.since()
    folder = lab.folder / "browser"
    folder.mkdir()
    got = device.program("drive", folder, lab.authority.ca, file=HERE / "device_browser.py", timeout=120)
    lines = [line for log, mark in zip(logs, marks) for line in log.lines()[mark:]]
    requests = [line for line in lines if line.get("event") == "request"]
    wanted = set(SITE)
    seen = {line["path"] for line in requests}
    checks.check(f"browser: the page and all that belongs to it are fetched, {len(wanted)} things ({got.get('first')})",
                 wanted <= seen and got.get("title") == "done by fetch" and got.get("image") == 8, got if "error" in got else (wanted - seen, got))
    checks.check("browser: it goes on by HTTP/3", got.get("http3") is True and any(line["protocol"] == "h3" for line in requests), got)
    checks.check("browser: a download, checksum", got.get("sha256") == sha256(payload(SIZE)), got)
    peers = {line["peer"] for line in requests}
    relays = {relay.v4 for relay in lab.relays} | {relay.v6 for relay in lab.relays}
    checks.check("browser: the target has seen relays only", peers and peers <= relays, peers - relays)
    own = {line["name"] for line in lines if line.get("event") == "dns" and line["name"].endswith((".mozilla.com", ".mozilla.net", ".firefox.com", ".mozilla.org"))}
    checks.check(f"browser: it also calls its maker, by the last relay's resolver ({len(own)} names)", own, {line.get("name") for line in lines if line.get("event") == "dns"})
    canary = device.program("ask", "198.18.0.2", "use-application-dns.net", 1)
    checks.check("browser: it is told to leave names to the device (its canary)", canary.get("code") == 3, canary)
    session.state("browser")
    session.downs("browser")
    session.watch.since()


if __name__ == "__main__":
    os.umask(0o077)
    drive(*sys.argv[2:])
