"""Headless Firefox driven over Marionette, without geckodriver: a profile, a CA, an extension, pages. Used by firefox_test.py."""

import base64
import io
import json
import pathlib
import shutil
import socket
import subprocess
import tempfile
import zipfile

from common import Process, free_port, port_open, wait_for

BINARY = shutil.which("firefox-esr") or shutil.which("firefox")

# Quiet: no telemetry, updates, portals or lists; nothing but what the test asks for.
QUIET = {
    "app.normandy.enabled": False,
    "app.update.auto": False,
    "app.update.disabledForTesting": True,
    "browser.aboutConfig.showWarning": False,
    "browser.cache.disk.enable": False,
    "browser.cache.memory.enable": False,
    "browser.newtabpage.enabled": False,
    "browser.region.network.url": "",
    "browser.safebrowsing.blockedURIs.enabled": False,
    "browser.safebrowsing.downloads.enabled": False,
    "browser.safebrowsing.malware.enabled": False,
    "browser.safebrowsing.phishing.enabled": False,
    "browser.search.update": False,
    "browser.shell.checkDefaultBrowser": False,
    "browser.startup.homepage": "about:blank",
    "browser.startup.page": 0,
    "datareporting.policy.dataSubmissionEnabled": False,
    "dom.push.connection.enabled": False,
    "extensions.blocklist.enabled": False,
    "extensions.getAddons.cache.enabled": False,
    "extensions.update.enabled": False,
    "media.gmp-manager.updateEnabled": False,
    "network.captive-portal-service.enabled": False,
    "network.connectivity-service.enabled": False,
    "network.dns.disableIPv6": False,
    "network.prefetch-next": False,
    "network.trr.mode": 5,
    "security.OCSP.enabled": 0,
    "security.remote_settings.crlite_filters.enabled": False,
    "services.settings.server": "data:,#none",
    "signon.rememberSignons": False,
    "toolkit.telemetry.enabled": False,
    "toolkit.telemetry.server": "data:,",
    # A CA of the user's own otherwise turns HTTP/3 off.
    "network.http.http3.disable_when_third_party_roots_found": False,
}


class MarionetteError(Exception):
    pass


class Firefox:
    """One browser with a profile of its own; a context manager. `system`: its own windows can be scripted, too."""

    def __init__(self, folder, ca, prefs=None, name="firefox", env=None, quiet=True, system=False):
        self.profile = pathlib.Path(tempfile.mkdtemp(prefix="profile-", dir=folder))
        self.port = free_port()
        self._trust(ca)
        settings = {**(QUIET if quiet else {}), "marionette.port": self.port, **(prefs or {})}
        lines = [f"user_pref({json.dumps(k)}, {json.dumps(v)});" for k, v in settings.items()]
        (self.profile / "user.js").write_text("\n".join(lines))
        command = [BINARY, "--headless", "--no-remote", "--marionette", "--profile", self.profile, "about:blank"]
        command += ["-remote-allow-system-access"] * system
        home = {"HOME": str(self.profile), "MOZ_HEADLESS": "1", "MOZ_CRASHREPORTER_DISABLE": "1"}
        self.process = Process(name, command, folder, env={**home, **(env or {})})
        self.count, self.buffer = 0, b""
        try:
            wait_for("Marionette", lambda: port_open("127.0.0.1", self.port) or not self.process.alive(), 60)
            self.socket = socket.create_connection(("127.0.0.1", self.port), 30)
            self.socket.settimeout(60)
            self._receive()
            self.call("WebDriver:NewSession", {"capabilities": {"alwaysMatch": {"pageLoadStrategy": "normal"}}})
            self.call("WebDriver:SetTimeouts", {"pageLoad": 25000, "script": 60000})
        except Exception:
            self.process.stop()
            raise

    def _trust(self, ca):
        store = f"sql:{self.profile}"
        run = lambda *words: subprocess.run(["certutil", *words, "-d", store], check=True, capture_output=True)  # noqa: E731
        run("-N", "--empty-password")
        run("-A", "-n", "interop", "-t", "C,,", "-i", str(ca))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        try:
            self.call("Marionette:Quit", {"flags": ["eForceQuit"]})
        except (OSError, MarionetteError):
            pass
        self.process.stop(patience=5)

    def _receive(self):
        while b":" not in self.buffer:
            self._more()
        size, _, rest = self.buffer.partition(b":")
        self.buffer = rest
        while len(self.buffer) < int(size):
            self._more()
        message, self.buffer = self.buffer[:int(size)], self.buffer[int(size):]
        return json.loads(message)

    def _more(self):
        data = self.socket.recv(65536)
        if not data:
            raise ConnectionError("Marionette closed")
        self.buffer += data

    def call(self, command, parameters=None):
        self.count += 1
        message = json.dumps([0, self.count, command, parameters or {}]).encode()
        self.socket.sendall(b"%d:%s" % (len(message), message))
        while True:
            answer = self._receive()
            if answer[0] == 1 and answer[1] == self.count:
                break
        if answer[2]:
            raise MarionetteError(f"{answer[2].get('error')}: {answer[2].get('message')}")
        return answer[3]

    def install(self, files):
        """A temporary extension of these files."""
        blob = io.BytesIO()
        with zipfile.ZipFile(blob, "w") as z:
            for name, text in files.items():
                z.writestr(name, text)
        path = self.profile / "extension.xpi"
        path.write_bytes(blob.getvalue())
        return self.call("Addon:Install", {"path": str(path), "temporary": True})

    def go(self, url):
        self.call("WebDriver:Navigate", {"url": url})

    def script(self, text, *args):
        return self.call("WebDriver:ExecuteScript", {"script": text, "args": list(args)})["value"]

    def script_async(self, text, *args):
        """`text` calls its last argument with the result."""
        return self.call("WebDriver:ExecuteAsyncScript", {"script": text, "args": list(args)})["value"]

    def screenshot(self, path):
        data = self.call("WebDriver:TakeScreenshot", {"full": True})["value"]
        pathlib.Path(path).write_bytes(base64.b64decode(data))

    def next_hop(self):
        """What the page's own request was carried by, as the browser says: h2, h3, http/1.1."""
        return self.script("return performance.getEntriesByType('navigation')[0].nextHopProtocol")


def masque_extension(host, port, token=None, template=None):
    """The extension of docs/clients.md."""
    template = template or f"https://{host}:{port}/.well-known/masque/udp/{{target_host}}/{{target_port}}/"
    answer = {"type": "masque", "host": host, "port": port, "masqueTemplate": template}
    if token:
        answer["proxyAuthorizationHeader"] = f"Bearer {token}"
    manifest = {
        "manifest_version": 2, "name": "relay", "version": "1.0",
        "browser_specific_settings": {"gecko": {"id": "relay@example.org"}},
        "permissions": ["proxy", "<all_urls>"],
        "background": {"scripts": ["relay.js"]},
    }
    script = ("browser.proxy.onRequest.addListener(() => (" + json.dumps(answer) + "), {urls: ['<all_urls>']});"
              "browser.proxy.onError.addListener(e => console.error(e.message));")
    return {"manifest.json": json.dumps(manifest), "relay.js": script}
