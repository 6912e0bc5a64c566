"""Firefox ESR, headless: straight at a relay with a masque extension, and through our client's SOCKS with remote DNS.

The pages are HTTP/1.1, HTTP/2 and HTTP/3 from local servers whose name only the relay's resolver knows, so a page that loads went through.
"""

import sys

from common import TOKEN, Checks, Lab, free_port, sha256, wait_for
from firefox import BINARY, Firefox, MarionetteError, masque_extension
from servers import payload

NAME = "target.test"
SIZE = 5_000_000

HASH = """
const done = arguments[arguments.length - 1];
fetch(arguments[0], {cache: 'no-store'}).then(async r => {
  const body = await r.arrayBuffer();
  const hash = await crypto.subtle.digest('SHA-256', body);
  done([...new Uint8Array(hash)].map(b => b.toString(16).padStart(2, '0')).join(''));
}, e => done('failed: ' + e));
"""


def page(browser, url, protocol):
    browser.go(url)
    got = browser.script("return document.querySelector('#protocol')?.textContent")
    return got == protocol or f"the page says {got!r}"


def download(browser, url):
    """The same origin's 5 MB, hashed in the page."""
    got = browser.script_async(HASH, f"{url}/bytes/{SIZE}")
    return got == sha256(payload(SIZE)) or got


def refuses(browser, url):
    try:
        browser.go(url)
        return not browser.script("return !!document.querySelector('#protocol')") or "the page loaded"
    except MarionetteError as e:
        # An error page, or a question for a password that nobody answers.
        return any(word in str(e) for word in ("about:neterror", "timed out", "alert open")) or str(e)


def urls(targets):
    return {"http/1.1": f"https://{NAME}:{targets.ports['https1']}", "h2": f"https://{NAME}:{targets.ports['https']}"}


def straight(checks, lab, targets, port):
    """The masque extension at a relay, no client of ours."""
    h3 = {"network.http.http3.alt-svc-mapping-for-testing": f"{NAME};h3=:{targets.ports['https']}"}
    with Firefox(lab.folder, lab.authority.ca, name="firefox-masque") as browser:
        browser.install(masque_extension("localhost", port, TOKEN))
        for protocol, url in urls(targets).items():
            checks.attempt(f"masque: {protocol} page", lambda: page(browser, url + "/", protocol))
            checks.attempt(f"masque: {protocol} 5 MB, checksum", lambda: download(browser, url))
    with Firefox(lab.folder, lab.authority.ca, h3, name="firefox-masque-h3") as browser:
        browser.install(masque_extension("localhost", port, TOKEN))
        url = urls(targets)["h2"]

        def h3_page():
            # The first request may win by HTTP/2 while the HTTP/3 one is still being set up.
            def once():
                browser.go(url + "/")
                return browser.script("return document.querySelector('#protocol')?.textContent") == "h3"
            return wait_for("an HTTP/3 page", once, 20) and None
        checks.attempt("masque: h3 page by CONNECT-UDP", h3_page)
        checks.attempt("masque: h3 5 MB, checksum", lambda: download(browser, url))
    with Firefox(lab.folder, lab.authority.ca, name="firefox-wrong-token") as browser:
        browser.install(masque_extension("localhost", port, "wrong"))
        browser.call("WebDriver:SetTimeouts", {"pageLoad": 5000})
        checks.attempt("masque: a wrong token loads no page", lambda: refuses(browser, urls(targets)["h2"] + "/"))


def through_client(checks, lab, targets, client, hops):
    socks = {"network.proxy.type": 1, "network.proxy.socks": "127.0.0.1", "network.proxy.socks_port": client.socks,
             "network.proxy.socks_version": 5, "network.proxy.socks_remote_dns": True}
    http = {"network.proxy.type": 1, "network.proxy.http": "127.0.0.1", "network.proxy.http_port": client.http,
            "network.proxy.ssl": "127.0.0.1", "network.proxy.ssl_port": client.http}
    for way, prefs in (("SOCKS", socks), ("HTTP proxy", http)):
        with Firefox(lab.folder, lab.authority.ca, prefs, name=f"firefox-{way.split()[0].lower()}-{hops}") as browser:
            for protocol, url in urls(targets).items():
                checks.attempt(f"{way}, {hops} hops: {protocol} page", lambda: page(browser, url + "/", protocol))
            checks.attempt(f"{way}, {hops} hops: 5 MB, checksum", lambda: download(browser, urls(targets)["h2"]))
            plain = f"http://{NAME}:{targets.ports['http']}/"
            checks.attempt(f"{way}, {hops} hops: plain HTTP page", lambda: page(browser, plain, "http/1.1"))
            if len(sys.argv) == 1:
                checks.attempt(f"{way}, {hops} hops: a name that does not exist shows an error page",
                               lambda: refuses(browser, "https://nowhere.test/"))


def main():
    checks = Checks("firefox")
    if not BINARY:
        checks.check("Firefox is installed", False, "apt-get install firefox-esr")
        checks.done()
    with Lab() as lab:
        targets = lab.targets((NAME,))
        if len(sys.argv) > 1:  # some other proxy, to check the checks: its command, with {port} {cert} {key}
            leaf, port = lab.authority.leaf("proxy", ["localhost", "127.0.0.1"]), free_port()
            proxy = lab.run("proxy", [w.format(port=port, cert=leaf.cert, key=leaf.key) for w in sys.argv[1:]])
            wait_for("the proxy", lambda: "ready" in proxy.text())
            straight(checks, lab, targets, port)
        else:
            dns = f"127.0.0.1:{targets.ports['dns']}"
            birch = lab.relay("birch", dns=dns)
            straight(checks, lab, targets, birch.port)
            amber = lab.relay("amber", roles=["ingress"], relays=[birch])
            client = lab.client([amber, birch])
            through_client(checks, lab, targets, client, 2)
        if checks.failed:
            lab.show_logs()
    checks.done()


if __name__ == "__main__":
    main()
