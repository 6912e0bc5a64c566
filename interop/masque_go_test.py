"""masque-go, another independent client (Go, quic-go): CONNECT-UDP by QUIC DATAGRAM frames, and HTTP/3 inside. Skipped without Go."""

import shutil
import subprocess
import sys

from common import HERE, TOKEN, Checks, Lab, free_port, sha256, wait_for
from servers import payload


def run(checks, lab, targets, port, binary):
    template = f"https://localhost:{port}/.well-known/masque/udp/{{target_host}}/{{target_port}}/"
    size = 20_000_000

    def call(*words, token=TOKEN):
        return subprocess.run([binary, lab.authority.ca, template, token, *map(str, words)], capture_output=True,
                              text=True, timeout=90)

    def echo(host):
        got = call("echo", f"{host}:{targets.ports['echo']}", 1, 64, 1000, 1200, 1250)
        return got.returncode == 0 or got.stderr.strip()

    def download(host):
        got = call("get", f"https://localhost:{targets.ports['https']}/bytes/{size}", f"{host}:{targets.ports['https']}")
        return got.stdout.strip() == sha256(payload(size)) or got.stderr.strip() or "wrong checksum"

    def refused(token):
        got = call("echo", f"127.0.0.1:{targets.ports['echo']}", 1, token=token)
        return got.returncode != 0 and "407" in got.stderr or f"{got.returncode} {got.stderr.strip()}"

    checks.attempt("CONNECT-UDP: payloads of 1..1250 bytes come back", lambda: echo("127.0.0.1"))
    checks.attempt("CONNECT-UDP: by name", lambda: echo("target.test"))
    checks.attempt("HTTP/3 inside: 20 MB, checksum", lambda: download("127.0.0.1"))
    checks.attempt("HTTP/3 inside, by name: 20 MB, checksum", lambda: download("target.test"))
    checks.attempt("a wrong token: 407", lambda: refused("wrong"))


def main():
    checks = Checks("masque-go")
    if not shutil.which("go"):
        checks.skip("masque-go", "Go is not installed")
        checks.done()
    with Lab() as lab:
        binary = lab.folder / "masque_go"
        go = lambda *words: subprocess.run(["go", *words], cwd=HERE / "masque_go", capture_output=True, text=True)  # noqa: E731
        if (got := go("mod", "download")).returncode:
            checks.skip("masque-go", f"its modules cannot be had here: {got.stderr.strip()[-200:]}")
            checks.done()
        built = go("build", "-o", binary, ".")
        if not checks.check("the client builds", built.returncode == 0, built.stderr.strip()):
            checks.done()
        targets = lab.targets()
        if len(sys.argv) > 1:  # some other proxy, to check the checks: its command, with {port} {cert} {key}
            leaf, port = lab.authority.leaf("proxy", ["localhost", "127.0.0.1"]), free_port()
            proxy = lab.run("proxy", [w.format(port=port, cert=leaf.cert, key=leaf.key) for w in sys.argv[1:]])
            wait_for("the proxy", lambda: "ready" in proxy.text())
        else:
            port = lab.relay("amber", dns=f"127.0.0.1:{targets.ports['dns']}").port
        run(checks, lab, targets, port, binary)
        if checks.failed:
            lab.show_logs()
    checks.done()


if __name__ == "__main__":
    main()
