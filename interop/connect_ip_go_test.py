"""connect-ip-go, another independent client (Go, quic-go): CONNECT-IP with DNS_ASSIGN and PREF64. Skipped without Go."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from common import HERE, TOKEN, Checks, Lab

TOLD = """
[ip]
nameservers = ["192.0.2.53", "2001:db8::53"]
nat64 = ["64:ff9b::/96", "2001:db8:64::/48"]
"""


def run(checks, lab, port, binary):
    def call(token):
        template = f"https://localhost:{port}/.well-known/masque/ip/*/*/"
        return subprocess.run([binary, lab.authority.ca, template, token], capture_output=True, text=True, timeout=60)

    got = call(TOKEN)
    lines = got.stdout.splitlines()
    said = lambda word: sorted(line.split(" ", 1)[1] for line in lines if line.split(" ", 1)[0] == word)  # noqa: E731
    checks.check("addresses and routes are told", said("addresses") and said("routes"), got.stderr.strip())
    checks.check("DNS_ASSIGN: the nameservers, for all names",
                 said("nameserver") == ["192.0.2.53", "2001:db8::53"] and said("internal") == ['[""]'], got.stdout)
    checks.check("PREF64: the prefixes", said("nat64") == ["2001:db8:64::/48", "64:ff9b::/96"], got.stdout)
    checks.check("what the client tells is passed over, and the flow goes on", said("answered") == ["1"], got.stderr.strip())
    refused = call("wrong")
    checks.check("a wrong token: 407", refused.returncode != 0 and "407" in refused.stderr, refused.stderr.strip())


# Where this group may ping, which the machine's own network need not allow: a relay that may not has no CONNECT-IP.
ALLOWED = """ip link set lo up
echo 0 0 > /proc/sys/net/ipv4/ping_group_range
exec "$@"
"""


def namespace():
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    return ["unshare", *user, "--net", "sh", "-euc"]


def outside(checks):
    if not shutil.which("go"):
        checks.skip("connect-ip-go", "Go is not installed")
        checks.done()
    if subprocess.run([*namespace(), ALLOWED, "sh", "true"], capture_output=True).returncode:
        checks.skip("connect-ip-go", "this kernel gives no network namespace")
        checks.done()
    with tempfile.TemporaryDirectory(prefix="hoplite-interop-") as folder:
        binary = pathlib.Path(folder) / "connect_ip_go"
        go = lambda *words: subprocess.run(["go", *words], cwd=HERE / "connect_ip_go", capture_output=True, text=True)  # noqa: E731
        if (got := go("mod", "download")).returncode:
            checks.skip("connect-ip-go", f"its modules cannot be had here: {got.stderr.strip()[-200:]}")
            checks.done()
        built = go("build", "-o", binary, ".")
        if not checks.check("the client builds", built.returncode == 0, built.stderr.strip()):
            checks.done()
        again = [*namespace(), ALLOWED, "sh", sys.executable, __file__, binary]
        sys.exit(subprocess.run(again).returncode)


def main():
    checks = Checks("connect-ip-go")
    if len(sys.argv) == 1:
        outside(checks)
    with Lab() as lab:
        run(checks, lab, lab.relay("amber", extra=TOLD).port, pathlib.Path(sys.argv[1]))
        if checks.failed:
            lab.show_logs()
    checks.done()


if __name__ == "__main__":
    main()
