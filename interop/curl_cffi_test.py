"""libcurl's own proxies (PyPI's curl_cffi) against a relay, by HTTP/3, 2 and 1.1: CONNECT for HTTP/1.1 and 2, CONNECT-UDP for HTTP/3.

curl sends DATAGRAM capsules on the request stream, not QUIC DATAGRAM frames, and expects them back so.
"""

import io
import sys

from common import TOKEN, Checks, Lab, in_thread, sha256
from curl_cffi import Curl, CurlError, CurlInfo, CurlOpt

HTTPS, HTTPS2, HTTPS3 = 2, 3, 8  # CURLPROXY_HTTPS, _HTTPS2, _HTTPS3 (the last: libcurl 8.21 built with it)
VERSIONS = {"http/1.1": (2, "https1"), "h2": (3, "https"), "h3": (31, "https")}  # CURL_HTTP_VERSION_1_1, 2_0, 3ONLY
MEGABYTES_20 = 20_000_000


class Answer:
    def __init__(self, status, body, headers):
        self.status, self.body, self.headers = status, body, headers

    def header(self, name):
        for line in reversed(self.headers.decode(errors="replace").splitlines()):
            key, _, value = line.partition(":")
            if key.strip().lower() == name:
                return value.strip()
        return None


def fetch(url, ca, version, proxy=None, token=TOKEN, timeout=60, kind=HTTPS3, post=None, password=None):
    """One transfer; raises CurlError when curl does."""
    curl, body, headers = Curl(), io.BytesIO(), io.BytesIO()
    try:
        curl.setopt(CurlOpt.URL, url.encode())
        curl.setopt(CurlOpt.CAINFO, str(ca).encode())
        curl.setopt(CurlOpt.HTTP_VERSION, version)
        curl.setopt(CurlOpt.WRITEDATA, body)
        curl.setopt(CurlOpt.HEADERDATA, headers)
        curl.setopt(CurlOpt.TIMEOUT_MS, timeout * 1000)
        if post is not None:
            curl.setopt(CurlOpt.POST, 1)
            curl.setopt(CurlOpt.POSTFIELDS, post)
            curl.setopt(CurlOpt.POSTFIELDSIZE, len(post))
        if proxy:
            curl.setopt(CurlOpt.PROXY, proxy.encode())
            curl.setopt(CurlOpt.PROXYTYPE, kind)
            curl.setopt(CurlOpt.HTTPPROXYTUNNEL, 1)
            curl.setopt(CurlOpt.PROXY_CAINFO, str(ca).encode())
            if password:
                curl.setopt(CurlOpt.PROXYUSERPWD, f"anybody:{password}".encode())
            elif token:
                curl.setopt(CurlOpt.PROXYHEADER, [f"Proxy-Authorization: Bearer {token}".encode()])
        curl.perform()
        return Answer(curl.getinfo(CurlInfo.RESPONSE_CODE), body.getvalue(), headers.getvalue())
    finally:
        curl.close()


def run(lab, checks, targets, proxy):
    ca = lab.authority.ca
    expected = sha256(fetch(f"https://localhost:{targets.ports['https']}/bytes/{MEGABYTES_20}", ca, 3).body)

    def url(protocol, path, host="127.0.0.1"):
        return f"https://{host}:{targets.ports[VERSIONS[protocol][1]]}{path}"

    def get(protocol, path, **more):
        return fetch(url(protocol, path), ca, VERSIONS[protocol][0], proxy, **more)

    def page(protocol, kind):
        answer = get(protocol, "/hello", kind=kind)
        seen = answer.header("x-protocol")
        return (answer.status, seen) == (200, protocol) or f"{answer.status} {seen}"

    def download(protocol, kind):
        answer = get(protocol, f"/bytes/{MEGABYTES_20}", kind=kind)
        return sha256(answer.body) == expected or f"{answer.status}, {len(answer.body)} bytes, wrong checksum"

    def upload(protocol, kind):
        data = bytes(range(256)) * 8192
        answer = get(protocol, "/upload", post=data, kind=kind)
        return answer.body.decode() == sha256(data) or f"{answer.status} {answer.body[:80]}"

    def refused(protocol, kind, token):
        try:
            answer = get(protocol, "/hello", token=token, timeout=15, kind=kind)
        except CurlError as e:  # for CONNECT over HTTP/3 curl keeps the status to itself; aioquic_masque.py reads it
            return e.code == 7 or f"curl said: {e}"
        return f"it was let through: {answer.status}"

    def several():
        threads = [in_thread(lambda p=p: get(p, "/bytes/1000000")) for p in list(VERSIONS) * 3]
        for thread, _ in threads:
            thread.join(60)
        bad = [box.get("error") or len(box["result"].body) for _, box in threads
               if "result" not in box or len(box["result"].body) != 1_000_000]
        return not bad or str(bad)

    def by_name(name):
        answer = fetch(url("h2", "/", name), ca, 3, proxy)
        return answer.status == 200 or answer.status

    for kind, carrier in ((HTTPS3, "HTTP/3"), (HTTPS2, "HTTP/2"), (HTTPS, "HTTP/1.1")):
        for protocol in VERSIONS:
            way = f"{carrier} {'CONNECT-UDP' if protocol == 'h3' else 'CONNECT'}"
            checks.attempt(f"{protocol} page through {way}", lambda: page(protocol, kind))
            checks.attempt(f"{protocol} 20 MB download through {way}, checksum", lambda: download(protocol, kind))
            checks.attempt(f"{protocol} 2 MB upload through {way}, checksum", lambda: upload(protocol, kind))
            checks.attempt(f"{protocol} with a wrong token through {way} is refused",
                           lambda: refused(protocol, kind, "wrong"))
            checks.attempt(f"{protocol} without a token through {way} is refused",
                           lambda: refused(protocol, kind, None))
    def basic():
        answer = fetch(url("h2", "/"), ca, 3, proxy, password=TOKEN)
        return answer.status == 200 or answer.status

    checks.attempt("the token as the password of Basic authentication", basic)
    checks.attempt("nine transfers at once, all protocols", several)
    for name in ("localhost", "target.test"):
        checks.attempt(f"target by name: {name}", lambda: by_name(name))


def main():
    checks = Checks("curl_cffi")
    with Lab() as lab:
        targets = lab.targets()
        if len(sys.argv) > 1:  # some other proxy, to check the checks: its command, with {port} {cert} {key}
            from common import free_port, wait_for
            leaf, port = lab.authority.leaf("proxy", ["localhost", "127.0.0.1"]), free_port()
            words = [w.format(port=port, cert=leaf.cert, key=leaf.key) for w in sys.argv[1:]]
            proxy = lab.run("proxy", words)
            wait_for("the proxy", lambda: "ready" in proxy.text())
        else:
            relay = lab.relay("amber", dns=f"127.0.0.1:{targets.ports['dns']}")
            port = relay.port
        run(lab, checks, targets, f"https://localhost:{port}")
        if checks.failed:
            lab.show_logs()
    checks.done()


if __name__ == "__main__":
    main()
