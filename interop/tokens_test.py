"""Private tokens in curl and Firefox: from `hoplite token` and from the issuer's page; spent, forged, of others, shown at two relays at once; the issuer
killed and its key rotated in the middle."""

import base64
import functools
import http.client
import http.server
import json
import re
import socket
import sqlite3
import ssl
import subprocess
import sys
import time

from client_test import fetch, reply
from common import HERE, HOPLITE, Checks, Lab, free_port, in_thread, port_open, wait_for
from firefox import BINARY, Firefox, MarionetteError, masque_extension

ACCOUNT, OTHER = "secret of ann", "secret of bób"
ISSUER = "issuer.test"
NAME = "target.test"
ROUNDS = 40


def issuer(lab, relays=(), tokens=500):
    """An issuer with a page; adds `.port`, `.pin`, and what `again` needs."""
    leaf, port, path = lab.authority.leaf("issuer", ["localhost", "127.0.0.1"]), free_port(), lab.folder / "issuer.toml"
    listed = ", ".join(f'{{ origin = "{origin}", address = "localhost:{at}" }}' for origin, at in relays)
    path.write_text(f'listen = "127.0.0.1:{port}"\nstore = "issuer.sqlite"\n[tls]\ncert = "{leaf.cert}"\nkey = "{leaf.key}"\n'
                    f'[[account]]\nname = "ann"\ntoken = "{ACCOUNT}"\ntokens_per_day = {tokens}\n'
                    f'[[account]]\nname = "bob"\ntoken = "{OTHER}"\n'
                    f'[page]\nissuer = "{ISSUER}"\nrelay = [{listed}]\n')
    return started(lab, path, port, leaf.pin)


def started(lab, path, port, pin):
    process = lab.run("issuer", [HOPLITE, "issuer", "--config", path])
    process.path, process.port, process.pin, process.store = path, port, pin, lab.folder / "issuer.sqlite"
    wait_for("the issuer", lambda: port_open("127.0.0.1", port) or not process.alive(), 60)
    if not process.alive():
        raise RuntimeError(f"the issuer ended: {process.text()}")
    return process


def again(lab, of):
    """The same issuer, which has ended, runs again."""
    return started(lab, of.path, of.port, of.pin)


def private(of, origin, again=0, spent="spent.sqlite", keys=None):
    """What a relay's file says of tokens."""
    return (f'\n[auth.private_tokens]\nissuer = "{ISSUER}"\norigin = "{origin}"\nkeys = "{keys or origin}-keys.json"\nspent = "{spent}"\n'
            f'directory = "https://127.0.0.1:{of.port}"\npin = "{of.pin}"\nrefresh = 1\nagain = {again}\n')


def client_file(lab, of, relays, keep=4, name="client"):
    """A client's file with `hoplite token` for each of these (relay, origin)."""
    path = lab.folder / f"{name}.toml"
    socks, web = free_port(), free_port()
    text = f'path = ["{relays[0][0].name}"]\n[socks]\nlisten = "127.0.0.1:{socks}"\n[http]\nlisten = "127.0.0.1:{web}"\n'
    text += (f'[[issuer]]\nname = "{ISSUER}"\naddress = "127.0.0.1:{of.port}"\npin = "{of.pin}"\ntoken = "{ACCOUNT}"\nkeep = {keep}\n'
             f'stock = "{name}.sqlite"\n')
    for relay, origin in relays:
        text += (f'[[relay]]\nname = "{relay.name}"\naddress = "127.0.0.1:{relay.port}"\npin = "{relay.pin}"\nissuer = "{ISSUER}"\n'
                 f'origin = "{origin}"\n')
    path.write_text(text)
    return path, socks


def token(file, relay):
    """What `hoplite token` prints; (token or None, what it complains of)."""
    done = subprocess.run([HOPLITE, "token", "--config", file, "--relay", relay.name], capture_output=True, text=True, timeout=90, check=False)
    return done.stdout.strip() or None, done.stderr


def refilled(file):
    """What `hoplite token` without a relay says is there, by name."""
    done = subprocess.run([HOPLITE, "--json", "token", "--config", file], capture_output=True, text=True, timeout=90, check=True)
    return {one["origin"]: one["left"] for one in json.loads(done.stdout)}


def curl(lab, relay, shown, target, how="password", times=1):
    """`times` transfers by one curl; its exit code, the last status of the proxy, what it fetched."""
    arguments = ["curl", "--silent", "--show-error", "--max-time", "30", "--proxytunnel", "--proxy", f"https://localhost:{relay.port}",
                 "--proxy-cacert", lab.authority.ca, "--cacert", lab.authority.ca, "--write-out", "\n%{http_connect}"]
    if shown:
        arguments += ["--proxy-user", f"x:{shown}"] if how == "password" else ["--proxy-header", f"Proxy-Authorization: {how}{shown}"]
    done = subprocess.run([*map(str, arguments), *[target] * times], capture_output=True, text=True, timeout=60, check=False)
    body, _, status = done.stdout.rpartition("\n")
    return done.returncode, status, body


def relayed(lab, relay, port):
    """A TLS connection to a relay over which nothing was asked yet."""
    context = ssl.create_default_context(cafile=str(lab.authority.ca))
    context.set_alpn_protocols(["http/1.1"])
    raw = socket.create_connection(("127.0.0.1", relay.port), 30)
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return context.wrap_socket(raw, server_hostname="localhost")


def connect(shown, port):
    return f'CONNECT 127.0.0.1:{port} HTTP/1.1\r\nHost: x\r\nProxy-Authorization: PrivateToken token="{shown}"\r\n\r\n'.encode()


def status(connection):
    got = b""
    while b"\r\n" not in got:
        more = connection.recv(4096)
        if not more:
            raise EOFError("the relay closed")
        got += more
    return int(got.split()[1])


def in_curl(checks, lab, relay, lasting, file, target):
    page = f"https://{NAME}:{target.ports['https1']}/hello"

    def passes(how):
        shown, wrong = token(file, relay)
        code, at_proxy, body = curl(lab, relay, shown, page, how)
        return code == 0 and "http/1.1" in body or f"exit {code}, {at_proxy} {wrong}"
    for how, what in (("password", "as the password of Basic"), ("PrivateToken token=", "by RFC 9577"), ("Bearer ", "as a bearer")):
        checks.attempt(f"curl: a token of hoplite token {what}", lambda: passes(how))

    def refused(shown):
        code, at_proxy, _ = curl(lab, relay, shown, page)
        return code != 0 and at_proxy == "407" or f"exit {code}, {at_proxy}"

    def twice():
        shown, _ = token(file, relay)
        first = curl(lab, relay, shown, page)
        return first[0] == 0 and refused(shown) or first
    checks.attempt("curl: a spent token is refused", twice)
    checks.attempt("curl: no token is refused", lambda: refused(None))
    checks.attempt("curl: a token for another relay is refused", lambda: refused(token(file, lasting)[0]))

    def forged():
        raw = bytearray(base64.urlsafe_b64decode(token(file, relay)[0]))
        raw[-1] ^= 1
        return refused(base64.urlsafe_b64encode(raw).decode())
    checks.attempt("curl: a forged token is refused", forged)

    def lasts():
        shown, _ = token(file, lasting)
        codes = [curl(lab, lasting, shown, page)[0] for _ in range(3)]
        return codes == [0, 0, 0] or codes
    checks.attempt("curl: where `again` says so, a token lets others of its holder in", lasts)

    def fills():
        full = refilled(file)
        token(file, relay)
        return set(full.values()) == {16} and refilled(file) == full or full
    checks.attempt("hoplite token: without a relay it fills the stock, and takes none", fills)


def at_once(checks, lab, relays, file, target):
    """One token at two processes with one file of what is spent: sent to both within a millisecond, and one lets it in."""
    port, apart, admitted, refused = target.ports["echo"], [], [], []
    for count in range(ROUNDS):
        pair = [relayed(lab, relay, port) for relay in (relays if count % 2 else reversed(relays))]
        asked = connect(token(file, relays[0])[0], target.ports["http"])
        begun = time.perf_counter()
        pair[0].sendall(asked)
        pair[1].sendall(asked)
        apart.append(time.perf_counter() - begun)
        answers = sorted(status(each) for each in pair)
        admitted.append(answers.count(200))
        refused.append(answers.count(407))
        for each in pair:
            each.close()
    within = sum(each < 0.001 for each in apart)
    checks.check(f"two relays, one token: {within} of {ROUNDS} within a millisecond, one lets it in each time",
                 admitted == [1] * ROUNDS and refused == [1] * ROUNDS, f"{admitted} {refused}")


def rotate(of):
    """The issuer's next epoch has begun, as far as its file knows."""
    with sqlite3.connect(of.store) as store:
        store.execute("UPDATE key SET epoch = epoch - 1")
    store.close()


def outage(checks, lab, of, relay, target):
    """The issuer killed, and its key rotated, while a client uses its tokens."""
    file, socks = client_file(lab, of, [(relay, "amber.test")], keep=4, name="standing")
    port = target.ports["http"]
    client = lab.run("standing", [HOPLITE, "client", "--config", file])
    client.socks = socks
    wait_for("the client", lambda: port_open("127.0.0.1", socks) or not client.alive())
    checks.attempt("a client opens flows with its tokens", lambda: fetch(client, "127.0.0.1", port))
    of.stop(how=9)
    checks.attempt("the issuer is killed: what is connected goes on", lambda: fetch(client, "127.0.0.1", port))
    client.stop()

    def from_stock():
        client = lab.run("standing", [HOPLITE, "client", "--config", file])
        client.socks = socks
        wait_for("the client", lambda: port_open("127.0.0.1", socks) or not client.alive(), 60)
        try:
            return fetch(client, "127.0.0.1", port)
        finally:
            client.stop()
    checks.attempt("the issuer is down: a client that starts lives on its stock", from_stock)
    kept, _ = token(file, relay)
    wrong = None
    for _ in range(8):
        more, wrong = token(file, relay)
        if more is None:
            break
    plain = wrong and "cannot be reached" in wrong and ISSUER in wrong and "Traceback" not in wrong
    checks.check("the stock is empty: hoplite token says that the issuer cannot be reached", more is None and plain, wrong)
    client = lab.run("empty", [HOPLITE, "client", "--config", file])
    client.socks = socks
    wait_for("the client", lambda: port_open("127.0.0.1", socks) or not client.alive(), 60)
    checks.attempt("the stock is empty: opening a flow is refused (SOCKS reply 2)", lambda: (got := reply(socks, "127.0.0.1", port)) == 2 or got)
    checks.check("the stock is empty: the client's log says why, once", client.text().count("no new tokens for now") == 1, client.text())
    client.stop()

    def is_read(times):
        return lambda: relay.text().count("the issuer's keys were read") >= times
    page = f"https://{NAME}:{target.ports['https1']}/hello"
    before = relay.text().count("the issuer's keys were read")
    rotate(of)
    of = again(lab, of)
    wait_for("the relay's look at the new keys", is_read(before + 1), 30)
    checks.attempt("the key is rotated: a token of the last one is taken", lambda: (got := curl(lab, relay, kept, page))[0] == 0 or got)
    checks.attempt("the key is rotated: so is one of the new one", lambda: (got := curl(lab, relay, token(file, relay)[0], page))[0] == 0 or got)
    old = token(file, relay)[0]
    of.stop()
    rotate(of)
    rotate(of)
    before = relay.text().count("the issuer's keys were read")
    of = again(lab, of)
    wait_for("the relay's look at the new keys", is_read(before + 1), 30)
    checks.attempt("two epochs later: a token of the old key is refused", lambda: (got := curl(lab, relay, old, page))[1] == "407" or got)

    def refilled():
        # What is left of the old key is of no use; the client is told so, and asks again.
        for _ in range(8):
            shown, wrong = token(file, relay)
            if shown and curl(lab, relay, shown, page)[0] == 0:
                return True
        return wrong
    checks.attempt("two epochs later: the client has tokens of the new key", refilled)
    return of


VECTORS = """<script type="module">
import { begin, finish, readKey } from "./blind.js";
const bytes = (hex) => Uint8Array.from(hex.match(/../g), (pair) => parseInt(pair, 16));
const hex = (all) => Array.from(all, (byte) => byte.toString(16).padStart(2, "0")).join("");
const found = [];
for (const one of await (await fetch("rfc9578-b2.json")).json()) {
  const key = await readKey(bytes(one.pkS));
  const challenge = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes(one.token_challenge)));
  const pending = await begin(key, challenge, bytes(one.nonce), bytes(one.salt), BigInt("0x" + one.blind));
  const token = await finish(pending, bytes(one.token_response));
  found.push(hex(pending.request) === one.token_request && hex(token) === one.token);
}
document.title = JSON.stringify(found);
</script>"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def vectors(checks, lab, browser):
    """The script of the page makes the requests and the tokens of RFC 9578, appendix B.2."""
    root = lab.folder / "vectors"
    root.mkdir()
    (root / "index.html").write_text(VECTORS)
    for file in (HERE.parent / "crates/hoplite/src/issuer/blind.js", HERE.parent / "crates/tokens/tests/rfc9578-b2.json"):
        (root / file.name).write_bytes(file.read_bytes())
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=root))
    leaf = lab.authority.leaf("vectors", ["localhost"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(leaf.cert, leaf.key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    in_thread(server.serve_forever)

    def right():
        browser.go(f"https://localhost:{server.server_port}/index.html")
        found = wait_for("the vectors", lambda: browser.script("return document.title"))
        return json.loads(found) == [True] * 5 or found
    checks.attempt("the page's script: vectors of RFC 9578, appendix B.2, in Firefox", right)
    server.shutdown()


FILL = """
for (const [id, value] of Object.entries(arguments[0])) document.getElementById(id).value = value;
document.getElementById("said").textContent = "";
document.getElementById("make").click();
"""
INLINE = """
const script = document.createElement("script");
try { script.append("document.title = 'ran'"); document.body.append(script); } catch { /* That is what is meant. */ }
return document.title;
"""
SAID = "const text = document.getElementById('said').textContent; return /Making/.test(text) ? '' : text"


def by_page(browser, of, **fields):
    """What the page says, and the tokens that it shows."""
    browser.go(f"https://localhost:{of.port}/")
    wait_for("the relays of the page", lambda: browser.script("return document.querySelectorAll('#relays option').length"))
    browser.script(FILL, fields)
    said = wait_for("the page", lambda: browser.script(SAID), 60)
    shown = browser.script("return [...document.querySelectorAll('#tokens code')].map(it => it.textContent)")
    return said, shown


class Heard(http.server.BaseHTTPRequestHandler):
    """Passes on to the issuer what a browser asks, and keeps both: (head of the request, its content, the answer's content)."""

    def pass_on(self):
        content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        issuer = http.client.HTTPSConnection("localhost", self.server.issuer, context=self.server.trust, timeout=30)
        issuer.request(self.command, self.path, content or None, dict(self.headers))
        answer = issuer.getresponse()
        given = answer.read()
        self.server.heard.append((f"{self.command} {self.path}\n{self.headers}", content, given))
        self.send_response(answer.status)
        for name in ("Content-Type", "Content-Security-Policy"):
            self.send_header(name, answer.headers[name])
        self.send_header("Content-Length", str(len(given)))
        self.end_headers()
        self.wfile.write(given)

    do_GET = do_POST = pass_on

    def log_message(self, *_):
        pass


def heard_by(lab, of):
    """Stands before the issuer's page; `.port`, and what it has `.heard`."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Heard)
    leaf = lab.authority.leaf("heard", ["localhost"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(leaf.cert, leaf.key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.issuer, server.trust, server.heard = of.port, ssl.create_default_context(cafile=str(lab.authority.ca)), []
    server.port = server.server_port
    in_thread(server.serve_forever)
    return server


def runs(content, length=8):
    return {content[at:at + length] for at in range(len(content) - length + 1)}


def compared(checks, lab, browser, of):
    """What the issuer hears of the page, beside the tokens that relays will see: nothing that is drawn comes again, and all are of one key."""
    between = heard_by(lab, of)
    said, shown = by_page(browser, between, account=ACCOUNT, relay="amber.test", number="8")
    raw = [base64.urlsafe_b64decode(token) for token in shown]
    # Type, nonce, challenge, key, signature: RFC 9578, section 6.1.
    drawn = [part for token in raw for part in (token[2:34], token[98:])]
    heard = [content for _, asked, given in between.heard for content in (asked, given)]
    common = runs(b"".join(heard)) & {run for part in drawn for run in runs(part)}
    asked = [asked for _, asked, _ in between.heard if asked]
    checks.check("page: what the issuer hears and the tokens have no eight bytes in common", len(raw) == 8 and asked and not common, f"{said} {common}")
    checks.check("page: all tokens are of one key and one challenge", len({token[34:98] for token in raw}) == 1)
    between.shutdown()


def in_page(checks, lab, of, relay, lasting, target):
    """What the page makes is taken once, by curl as the page writes it; returns a token for the relay whose tokens last, and the page's proxy line."""
    page = f"https://{NAME}:{target.ports['https1']}/hello"
    with Firefox(lab.folder, lab.authority.ca, name="firefox-page") as browser:
        vectors(checks, lab, browser)
        said, tokens = by_page(browser, of, account=ACCOUNT, relay="amber.test", number="3")
        checks.check("page: three tokens are made", said.startswith("3 made") and len(set(tokens)) == 3, said)
        line = browser.script("return document.getElementById('curl').textContent")

        def as_written():
            command = line.replace("https://example.org/", page).replace("curl ", f"curl -sS --proxy-cacert {lab.authority.ca} --cacert {lab.authority.ca} ")
            done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60, check=False)
            return done.returncode == 0 and "http/1.1" in done.stdout or done.stderr
        checks.attempt("page: its line for curl works", as_written)
        checks.attempt("page: a token is spent once", lambda: (got := curl(lab, relay, tokens[0], page))[1] == "407" or got)
        checks.attempt("page: the next one is taken", lambda: (got := curl(lab, relay, tokens[1], page))[0] == 0 or got)
        checks.attempt("page: not at another relay", lambda: (got := curl(lab, lasting, tokens[2], page))[1] == "407" or got)
        said, none = by_page(browser, of, account="somebody else", relay="amber.test", number="1")
        checks.check("page: another account's token is refused in the issuer's words", "no account has this token" in said and not none, said)
        foreign = browser.script("return performance.getEntriesByType('resource').map(it => it.name)")
        ours = all(name.startswith(f"https://localhost:{of.port}/") for name in foreign)
        checks.check("page: nothing is loaded from elsewhere, and no request names a relay", ours and not re.search("amber", " ".join(foreign)), foreign)
        checks.check("page: a script that is none of its files is not run", browser.script(INLINE) == "Tokens for a relay")
        compared(checks, lab, browser, of)
        _, lasts = by_page(browser, of, account=OTHER, relay="birch.test", number="2")
        return lasts, browser.script("return document.getElementById('proxy').textContent")


# Answers each question for a password, from now on.
LOGIN = """
const token = arguments[0];
const inside = (win) => [win, ...[...Array(win.frames.length).keys()].flatMap((at) => inside(win.frames[at]))];
const answer = () => {
  for (const win of [...Services.wm.getEnumerator(null)].flatMap(inside)) {
    const [name, password] = ["loginTextbox", "password1Textbox"].map((id) => win.document.getElementById(id));
    const dialog = win.document.querySelector("dialog");
    if (!name || !password || !dialog) continue;
    Services.prefs.setBoolPref("hoplite.asked", true);
    name.value = "x";
    password.value = token;
    dialog.acceptDialog();
  }
};
ChromeUtils.importESModule("resource://gre/modules/Timer.sys.mjs").setInterval(answer, 100);
"""
ASKED = "return Services.prefs.getBoolPref('hoplite.asked', false)"


def in_firefox(checks, lab, lasting, tokens, proxy, target):
    page = f"https://{NAME}:{target.ports['https1']}/"
    text = "return document.querySelector('#protocol')?.textContent"
    with Firefox(lab.folder, lab.authority.ca, name="firefox-masque-token") as browser:
        browser.install(masque_extension("localhost", lasting.port, tokens[0]))

        def loads():
            browser.go(page)
            got = browser.script(text)
            return got == "http/1.1" or got
        checks.attempt("Firefox: a page over HTTP/3 with a token of the page in a masque extension", loads)
    prefs = {"network.proxy.type": 2, "network.proxy.autoconfig_url": proxy}
    with Firefox(lab.folder, lab.authority.ca, prefs, name="firefox-login", system=True) as browser:
        def chrome(script, *args):
            browser.call("Marionette:SetContext", {"value": "chrome"})
            try:
                return browser.script(script, *args)
            finally:
                browser.call("Marionette:SetContext", {"value": "content"})

        def loaded():
            try:
                browser.go(page)
                return browser.script(text) == "http/1.1"
            except MarionetteError:  # WebDriver dismisses a question that it finds, unless it was answered before
                return False

        def asked():
            chrome(LOGIN, tokens[1])
            wait_for("the page", loaded, 90)
            return chrome(ASKED) or "it was not asked"
        checks.attempt("Firefox: the proxy line of the page, and a token as the password that it asks for", asked)


def main():
    checks = Checks("tokens")
    with Lab() as lab:
        target = lab.targets((NAME,))
        dns = f"127.0.0.1:{target.ports['dns']}"
        ports = {"amber": free_port(), "birch": free_port()}
        of = issuer(lab, relays=[(f"{name}.test", port) for name, port in ports.items()])
        make = functools.partial(lab.relay, dns=dns, tokens=())
        amber = make("amber", port=ports["amber"], extra=private(of, "amber.test"))
        # With amber's file it would know the keys already, and say nothing of them.
        cedar = make("cedar", extra=private(of, "amber.test", keys="cedar"))
        birch = make("birch", port=ports["birch"], extra=private(of, "birch.test", again=3600, spent="birch.sqlite"))
        for relay, name in ((amber, "amber"), (cedar, "cedar"), (birch, "birch")):
            relay.name = name
            wait_for("the issuer's keys", lambda: "the issuer's keys were read" in relay.text(), 60)
        file, _ = client_file(lab, of, [(amber, "amber.test"), (birch, "birch.test")], keep=16)
        in_curl(checks, lab, amber, birch, file, target)
        at_once(checks, lab, [amber, cedar], file, target)
        if BINARY:
            tokens, proxy = in_page(checks, lab, of, amber, birch, target)
            in_firefox(checks, lab, birch, tokens, proxy, target)
        else:
            checks.check("Firefox is installed", False, "apt-get install firefox-esr")
        of = outage(checks, lab, of, amber, target)
        heard = of.text() + "".join(relay.text() for relay in (amber, birch, cedar))
        told = [word for word in (ACCOUNT, OTHER, "ann", "bob", NAME) if re.search(rf"\b{word}\b", heard)]
        checks.check("no log of issuer or relays has an account, a token or a target in it", not told, told)
        if checks.failed:
            lab.show_logs()
    checks.done()


if __name__ == "__main__":
    main()
