//! Onion services and `hoplite up`, for real, in namespaces of their own: programs that know nothing of circuits reach services by name, the device
//! serves one of its own, and `hoplite status` says how they do.

use crate::device::succeeds;

/// An authority, six relays, a client that serves `amber`, and a device that serves `birch`. Programs ask by Python: its resolver is the system's.
const NETWORK: &str = r#"
name="$("$HOPLITE" keygen --authority --out authority)@127.0.0.1:9030"
printf 'authorities = ["%s"]\nlisten = "127.0.0.1:9030"\ninterval = 8\nvoting = 2\nintervals = 1000\nhsdir_uptime = 0\n[admission]\nprivate = true\n' "$name" > authority/directory.toml
"$HOPLITE" directory --config authority/directory.toml 2> directory.log &
for n in 1 2 3 4 5 6; do
  "$HOPLITE" keygen --out "identity$n" > keygen.txt
  printf 'name = "relay%s"\nlisten = ["127.%s.0.1:4433"]\nidentity = "identity%s"\n[egress]\nallow = ["127.0.0.0/8"]\n[directory]\npublish = ["127.0.0.1:9030"]\nevery = 1\nauthorities = ["%s"]\n[onion]\nenabled = true\nhsdir = true\n' "$n" "$n" "$n" "$name" > "relay$n.toml"
  "$HOPLITE" relay --config "relay$n.toml" 2> "relay$n.log" &
done
mkdir web-amber web-birch
echo 'from amber' > web-amber/index.html
echo 'from birch' > web-birch/index.html
(cd web-amber && python3 -m http.server --bind 127.0.0.1 8080 > /dev/null 2>&1) &
(cd web-birch && python3 -m http.server --bind 127.0.0.1 8081 > /dev/null 2>&1) &
onion() {
  printf 'overlay = "onion"\nsocks.listen = "127.0.0.1:%s"\nhttp.listen = "127.0.0.1:%s"\n[directory]\nauthorities = ["%s"]\nwait = 120\ncache = "%s.sqlite"\n[[service]]\nkeys = "%s.keys"\nports = ["80=127.0.0.1:%s"%s]\n' "$2" "$3" "$name" "$1" "$1" "$4" "${5-}"
}
python3 -c '
import socket
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("127.0.0.1", 5353))
while True:
    payload, program = server.recvfrom(2000)
    server.sendto(payload, program)
' &
patiently() { n=0; until "$@"; do n=$((n + 1)); [ "$n" -lt 900 ] || return 1; sleep 0.2; done; }
# The first list may have been voted on before any relay was there.
lists() { sed -n '/a list is signed.*relays=6/,$p' directory.log | grep -q 'a list is published'; }
fetch() { python3 -c 'import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=60).read().decode())' "$1"; }
"#;

#[test]
fn programs_reach_onion_services_through_the_device_and_it_serves_its_own() {
    succeeds(&format!(
        r#"
{NETWORK}
patiently lists
onion amber 1080 1081 8080 ', "53/udp=127.0.0.1:5353"' > amber.toml
"$HOPLITE" client --config amber.toml --run-dir clients 2> amber.log &
onion birch 1082 1083 8081 > client.toml
patiently grep -qs 'an onion service is published' amber.log || {{ tail -n 20 amber.log relay1.log directory.log >&2; exit 9; }}
up --wait 60
amber=$(cat amber.keys/hostname)
birch=$(cat birch.keys/hostname)
told() {{ "$HOPLITE" status --json | python3 -c 'import json, sys; s = json.load(sys.stdin)["services"][0]; sys.exit(not (s["told"] == s["hsdirs"] > 0))'; }}
patiently told

fetch "http://$amber/" | grep -q 'from amber'
fetch "http://www.$amber/" | grep -q 'from amber'
fetch "http://$birch/" | grep -q 'from birch'
# What is none does not exist; what is nobody's, or mistyped, is not reached.
resolves() {{ python3 -c 'import socket, sys; print(socket.getaddrinfo(sys.argv[1], 80, socket.AF_INET)[0][4][0])' "$1" 2> /dev/null; }}
if resolves example.onion; then exit 9; fi
if fetch "http://zz${{amber#??}}/" 2> /dev/null; then exit 9; fi
resolves "$amber" | grep -q '^198\.1[89]\.'
# Datagrams go to the service that has a UDP port, and back.
python3 - "$(resolves "$amber")" <<'PYTHON'
import socket, sys
flow = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
flow.settimeout(1)
flow.connect((sys.argv[1], 53))
def answer(payload):
    # The first wait for a circuit, and a queue of datagrams may be full.
    for _ in range(60):
        flow.send(payload)
        try:
            return flow.recv(2000)
        except TimeoutError:
            pass
for length in (5, 600, 1200):
    payload = bytes([length % 251]) * length
    got = answer(payload)
    while got != payload and got is not None:
        got = flow.recv(2000)
    assert got == payload, (length, got and len(got))
PYTHON
# To the one that has none they are told to be out of reach.
python3 - "$(resolves "$birch")" <<'PYTHON'
import socket, sys
flow = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
flow.settimeout(20)
flow.connect((sys.argv[1], 80))
flow.send(b"hello")
try:
    flow.recv(9)
    sys.exit("somebody answered")
except TimeoutError:
    sys.exit("nobody said that it is out of reach")
except OSError:
    pass
PYTHON

"$HOPLITE" status --json > up.json
"$HOPLITE" status > up.txt
"$HOPLITE" status --run-dir clients --name client --json > client.json
"$HOPLITE" status --run-dir clients --name client > client.txt
python3 - "$amber" "$birch" <<'PYTHON'
import json, sys
amber, birch = sys.argv[1:]
up, client = (json.load(open(name)) for name in ("up.json", "client.json"))
assert up["state"] == "up" and client["state"] == "client", (up["state"], client)
for said, address in ((up, birch), (client, amber)):
    (service,) = said["services"]
    assert service["address"] == address, service
    assert 1 <= len(service["introduction_points"]) <= 3, service
    assert len({{one["period"] for one in service["descriptors"]}}) == 2, service
    assert all(one["revision"] > 0 for one in service["descriptors"]), service
    assert service["clients"] >= 1, service
assert up["service_circuits"] >= 1 and client["service_circuits"] == 0, (up, client)
assert f"onion service {{birch}}: introduction points for" in open("up.txt").read()
assert f"onion service {{amber}}: introduction points for" in open("client.txt").read()
PYTHON
"$HOPLITE" down
"#
    ));
}
