//! What leaves the machine while it is blocked: the firewall's and the routes' real text, in namespaces, against programs that try every way,
//! with a capture on the link. The machine is that of [`super::device`]; the link's far end lies in a namespace of its own, where a relay and
//! targets answer, so that who gets out is answered.

use super::device::{succeeds, succeeds_with_groups};

/// `world`: the far end, with a router, targets and room for a relay. `talkers` send all the time, bound to the interface and not. `left`
/// prints every frame that came from this machine since the last time and that it may not send.
const WORLD: &str = r#"
# tcpdump, which reads captures here, gives up all rights where it is root, and cannot in a namespace of users that has root alone.
mkdir bin
printf '#!/bin/sh\nexec unshare --user --map-user=1 %s "$@"\n' "$(command -v tcpdump)" > bin/tcpdump
chmod +x bin/tcpdump
PATH="$PWD/bin:$PATH"
mkdir -p /run/netns
ip netns add world
ip link set far0 netns world
in_world() { ip netns exec world "$@"; }
in_world ip link set lo up
for address in 192.0.2.254/24 10.0.0.254/24; do in_world ip address add "$address" dev far0; done
for address in 203.0.113.1/32 203.0.113.5/32 10.9.9.9/32; do in_world ip address add "$address" dev lo; done
in_world ip -6 address add 2001:db8::fe/64 dev far0 nodad
in_world ip -6 address add 2001:db8:1::1/128 dev lo nodad
in_world ip link set far0 up
in_world sysctl -qw net.ipv4.ip_forward=1
until_true ping -c 1 -W 1 203.0.113.1 > /dev/null
until_true ping -c 1 -W 1 2001:db8:1::1 > /dev/null
ours=$(ip -o link show eth0 | grep -o 'ether [0-9a-f:]*' | cut -d' ' -f2)
cat > capture.py <<'END'
import socket, struct, sys, time
device, file, link, source = sys.argv[1], open(sys.argv[2], "wb", 0), int(sys.argv[3]), bytes.fromhex("".join(sys.argv[4:]).replace(":", ""))
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
try:
    s.setsockopt(socket.SOL_SOCKET, 33, 1 << 24)  # SO_RCVBUFFORCE
except PermissionError:
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 24)
s.bind((device, 3))
file.write(struct.pack("=IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 1 << 18, link))
while True:
    frame, (_, _, kind, *_) = s.recvfrom(1 << 18)
    if frame[6:12] == source or not source and not (kind == 4 and device == "lo"):
        now = time.time()
        file.write(struct.pack("=IIII", int(now), int(now % 1 * 1000000), len(frame), len(frame)) + frame)
END
ip netns exec world python3 capture.py far0 frames.pcap 1 "$ours" &
until_true test -s frames.pcap
: > seen

cat > talk.py <<'END'
import os, socket, struct, sys, time
BIND = socket.SO_BINDTODEVICE
def quietly(what):
    try:
        what()
    except OSError:
        pass
def udp(family, to, bound):
    s = socket.socket(family, socket.SOCK_DGRAM)
    if bound:
        s.setsockopt(socket.SOL_SOCKET, BIND, b"eth0")
    quietly(lambda: s.sendto(b"stranger", (to, 9)))
    s.close()
def tcp(family, to):
    s = socket.socket(family, socket.SOCK_STREAM)
    s.setblocking(False)
    s.setsockopt(socket.SOL_SOCKET, BIND, b"eth0")
    quietly(lambda: s.connect((to, 80)))
    s.close()
def multicast():
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    quietly(lambda: s.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("192.0.2.1")))
    quietly(lambda: s.sendto(b"stranger", ("224.0.0.251", 5353)))
    s.close()
until = time.monotonic() + float(sys.argv[1])
while time.monotonic() < until:
    for bound in (True, False):
        udp(socket.AF_INET, "203.0.113.1", bound)
        udp(socket.AF_INET6, "2001:db8:1::1", bound)
        udp(socket.AF_INET, "192.0.2.254", bound)
    tcp(socket.AF_INET, "203.0.113.1")
    tcp(socket.AF_INET6, "2001:db8:1::1")
    multicast()
    open("rounds", "a").write("x")
    time.sleep(0.001)
END
talk() { python3 talk.py "$1"; }
talking() { : > rounds; python3 talk.py 600 & talker=$!; until_true test -s rounds; }
# They have gone round once more.
rounds() { n=$(wc -c < rounds); until_true sh -c "[ \$(wc -c < rounds) -gt $((n + ${1:-20})) ]"; }
silence() { kill "$talker"; wait "$talker" || true; }

cat > marked.py <<'END'
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, 0x686f6c)
s.sendto(b"marked %s" % sys.argv[1].encode(), ("192.0.2.254", 7))
END
# Frames as text, one a line, but ARP, neighbour discovery and reports of multicast listeners, and what `allowed` says.
frames() {
  tcpdump -n -t -r frames.pcap 'not arp and not (icmp6 and (ip6[40] >= 133 and ip6[40] <= 136)) and not (ip6[6] = 0 and ip6[48] = 143)' 2> /dev/null |
    grep -v '> 192.0.2.254.7: ' || true
}
allowed='^$'
left() {
  # Once a later frame is there, none is missing.
  mark=$((${mark:-0} + 1)); python3 marked.py "$mark"
  until_true sh -c "tcpdump -n -A -r frames.pcap 'udp port 7' 2> /dev/null | grep -q 'marked $mark\$'"
  frames > now
  tail -n +$(($(wc -l < seen) + 1)) now | grep -v "$allowed" | sort | uniq -c | head -n 20 > strangers || true
  cp now seen
  cat strangers
}
nothing_left() { left; if [ -s strangers ]; then cat strangers >&2; echo "it left: $1" >&2; exit 9; fi; }
talk 0.1; left > /dev/null
grep -q 203.0.113.1 strangers && grep -q 2001:db8:1::1 strangers && grep -q 224.0.0.251 strangers
# The nft that holds the copy of the table for a process; it is ended, as by a kernel that is short of memory, and there is another one.
holder() { pgrep -P "$1" -f 'nft --interactive$'; }
another_holder() { now=$(holder "$1") && [ "$now" != "$ended" ] && nft list table inet "$2" > /dev/null; }
holder_ends() { ended=$(holder "$1"); kill -9 "$ended"; until_true another_holder "$@"; }
is_firewalled() { "$HOPLITE" status --json | grep -q '"firewall":"stands"'; }
state > before
"#;

pub(crate) fn nothing_leaves(script: &str) {
    succeeds(&format!("{WORLD}\n{script}"));
}

/// In the far end's namespace: who asks port 7 of its targets is told how that looks from there, by TCP and UDP, and the network's name server says of
/// every name that it is one of them. `asks` tries all of it, and prints what it was told.
const TARGETS: &str = r#"
in_world ip address add 192.0.2.53/24 dev far0
cat > targets.py <<'END'
import select, socket
def at(family, kind, where):
    s = socket.socket(family, kind)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind(where)
    if kind == socket.SOCK_STREAM:
        s.listen()
    return s
targets = [at(family, kind, (to, 7)) for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM)
    for family, to in ((socket.AF_INET, "203.0.113.5"), (socket.AF_INET6, "2001:db8:1::1"))]
names = at(socket.AF_INET, socket.SOCK_DGRAM, ("192.0.2.53", 53))
while True:
    for s in select.select(targets + [names], [], [])[0]:
        if s is names:
            question, who = s.recvfrom(2000)
            end = question.index(0, 12) + 5
            found = b"\xc0\x0c\0\1\0\1\0\0\0\4\0\4" + socket.inet_aton("203.0.113.5") if question[end - 4:end - 2] == b"\0\1" else b""
            s.sendto(question[:2] + b"\x85\x80\0\1" + bytes([0, len(found) and 1]) + bytes(4) + question[12:end] + found, who)
        elif s.type == socket.SOCK_STREAM:
            connection, who = s.accept()
            connection.sendall(who[0].encode())
            connection.close()
        else:
            _, who = s.recvfrom(2000)
            s.sendto(who[0].encode(), who)
END
cat > ask.py <<'END'
import socket
for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
    for family, to in ((socket.AF_INET, "203.0.113.5"), (socket.AF_INET6, "2001:db8:1::1")):
        s = socket.socket(family, kind)
        s.settimeout(5)
        try:
            s.connect((to, 7))
            if kind == socket.SOCK_DGRAM:
                s.send(b"who")
            print(s.recv(99).decode())
        except OSError as e:
            print(kind, to, e)
try:
    print(socket.getaddrinfo("site.example", 7, socket.AF_INET, socket.SOCK_STREAM)[0][4][0])
except OSError as e:
    print(e)
END
in_world python3 targets.py &
asks() { "$@" python3 ask.py; "$@" ping -c 1 -W 5 203.0.113.5 | grep -o '1 received' || true; }
until_true sh -c 'ip netns exec world ss -luHn | grep -q 192.0.2.53:53'
asks env > by_themselves
cat by_themselves >&2
[ "$(cat by_themselves | tr '\n' ' ')" = "192.0.2.1 2001:db8::1 192.0.2.1 2001:db8::1 203.0.113.5 1 received " ]
"#;

#[test]
fn programs_of_an_excluded_group_and_in_the_portal_are_answered() {
    let script = r#"
mkdir /sys/fs/cgroup/a.slice
relay
cp client.toml plain.toml
printf '[takeover]\nexclude.cgroups = ["a.slice"]\n' >> client.toml
up
inside() { sh -c 'echo 0 > /sys/fs/cgroup/a.slice/cgroup.procs && exec "$@"' sh "$@"; }
for what in 'list tables' 'flush ruleset'; do
  nft $what > /dev/null
  until_true is_firewalled
  asks inside > excluded
  cat excluded >&2
  diff by_themselves excluded
done
"$HOPLITE" down
cp plain.toml client.toml
up
asks "$HOPLITE" portal -- > excluded
cat excluded >&2
diff by_themselves excluded
"$HOPLITE" down
"#;
    succeeds_with_groups(&format!("{WORLD}\n{TARGETS}\n{script}"));
}

#[test]
fn a_ping_to_an_excluded_name_is_answered_and_one_with_our_mark_still_does_not_leave() {
    let script = r#"
grep -q ' 4294967295$' /proc/self/uid_map || exit 0
sysctl -qw net.ipv4.ping_group_range='0 2147483647'
relay
printf '[takeover]\nexclude.domains = ["site.example"]\n' >> client.toml
up
ping -c 1 -W 5 site.example > answered || true
cat answered >&2
grep -q '^PING site.example (198.1' answered
grep -q '1 received' answered
left > /dev/null
python3 ping.py
nothing_left "a ping with our mark"
"$HOPLITE" down
"#;
    nothing_leaves(&format!("{TARGETS}\n{PING}\n{script}"));
}

#[test]
fn nothing_leaves_while_somebody_flushes_nftables_and_status_says_when_it_is_gone() {
    nothing_leaves(
        r#"
relay
up
left > /dev/null
talking
for what in 'flush ruleset' 'delete table inet hoplite' 'flush table inet hoplite' 'insert rule inet hoplite postrouting accept' \
    'add table inet hoplite { flags dormant; }' 'flush ruleset' 'flush ruleset'; do
  rounds
  nft $what
  until_true is_firewalled
  rounds
  nothing_left "$what"
done
process=$(cat /run/hoplite/lock)
# Somebody reads what it complains of: it would be ended by SIGPIPE otherwise.
sh -c 'echo > "$0"' "/proc/$(holder "$process")/fd/2"
holder_ends "$process" hoplite-held
nft flush ruleset
until_true is_firewalled
rounds
nothing_left "who held the copy was ended, and the tables were flushed"
kill -9 "$process"
until_true says blocked
rounds
nothing_left "the process killed"
silence
nft flush ruleset
says partly
"$HOPLITE" status | grep -q "the firewall is gone"
"$HOPLITE" down
state > after; diff before after
"#,
    );
}

#[test]
fn the_issuer_of_private_tokens_is_asked_while_all_else_is_blocked_and_status_says_when_they_have_run_out()
 {
    nothing_leaves(
        r#"
until_next_day=$((86400 - $(date +%s) % 86400))
if [ "$until_next_day" -lt 90 ]; then sleep "$until_next_day"; fi
mkdir issuer
printf 'listen = "192.0.2.254:8443"\n[[account]]\nname = "ann"\ntoken = "secret of ann"\ntokens_per_day = 3\n' > issuer/issuer.toml
in_world "$HOPLITE" issuer --config issuer/issuer.toml 2> issuer.log &
until_true grep -q 'the issuer is up' issuer.log
issuer_pin=$(grep -o 'sha256:[A-Za-z0-9_+/=-]*' issuer.log | head -n 1)
in_world python3 -c 'import ssl, urllib.request as u
print(u.urlopen("https://192.0.2.254:8443/.well-known/private-token-issuer-directory", context=ssl._create_unverified_context()).read().decode())' > keys.json
"$HOPLITE" keygen --out identity | grep -o 'sha256:[^"[:space:]]*' | head -n 1 > pin
printf 'listen = ["127.0.0.1:4433"]\nidentity = "identity"\n[auth.private_tokens]\nissuer = "i"\norigin = "r"\nkeys = "keys.json"\n' > relay.toml
"$HOPLITE" relay --config relay.toml 2> relay.log &
config 127.0.0.1:4433 > client.toml
printf 'issuer = "i"\n[[issuer]]\nname = "i"\naddress = "192.0.2.254:8443"\npin = "%s"\ntoken = "secret of ann"\nkeep = 3\nstock = "stock"\n' "$issuer_pin" >> client.toml
flows() { getent ahostsv4 "$1.example" | grep -q '^198\.1[89]\.'; }
allowed='> 192\.0\.2\.254\.8443: '
worker_now() { "$HOPLITE" status --json | sed 's/.*"worker":\([0-9]*\).*/\1/'; }
another() { now=$(worker_now) && [ "$now" != "$worker" ] && [ "$now" != 0 ]; }
"$HOPLITE" up --block-only
left > /dev/null
talking
up
flows first
"$HOPLITE" status | grep 'private tokens for r: 2 left'
rounds
nothing_left "up with tokens"
frames | grep -q "$allowed"
[ "$(stat -c '%u %a' stock)" = "$(id -u) 600" ]
for left_over in 1 0; do
  worker=$(worker_now)
  kill -KILL "$worker"
  until_true another
  until_true sh -c "'$HOPLITE' status --json | grep -q '\"left\":$left_over[,}]'"
done
until_true flows last
worker=$(worker_now)
kill -KILL "$worker"
until_true another
until_true sh -c "'$HOPLITE' status | grep 'private tokens for r have run out.*given no more: it answered 429'"
worker=$(worker_now)
rounds
nothing_left "without tokens"
[ "$(worker_now)" = "$worker" ]
is_blocked || past | grep -q hoplite0
silence
"$HOPLITE" down
"#,
    );
}

#[test]
fn nothing_leaves_at_boot_while_somebody_flushes_nftables_rules_and_routes() {
    nothing_leaves(
        r#"
"$HOPLITE" up --block-only --foreground > said &
block=$!
until_true is_firewalled
says blocked
left > /dev/null
talking
holder_ends $block hoplite-kept
for what in 'nft flush ruleset' 'ip rule flush table 26735' 'ip route flush table 26735' 'nft flush ruleset'; do
  rounds
  $what
  until_true says blocked
  rounds
  nothing_left "$what"
done
relay
up --keep-block
says up
nft flush ruleset
until_true is_firewalled
rounds
kill -9 "$(cat /run/hoplite/lock)"
until_true says blocked
until_true nft list table inet hoplite-kept > /dev/null
nft flush ruleset
until_true says blocked
rounds
nothing_left "up, killed, and flushed"
silence
kill -TERM $block
wait $block
says blocked
"$HOPLITE" down
state > after; diff before after
"#,
    );
}

/// As at shutdown: nftables' unit flushes, and right after it every process gets SIGTERM, those that hold the firewall among them.
#[test]
fn nothing_leaves_while_the_machine_is_shut_down_and_every_process_is_told_to_end() {
    nothing_leaves(
        r#"
"$HOPLITE" up --block-only --foreground > said &
block=$!
holds() { nft list table inet hoplite-kept > /dev/null 2>&1; }
until_true holds
until_true says blocked
left > /dev/null
talking
rounds
kill -TERM $(pgrep -P $block) || true
rounds
nft flush ruleset
until_true says blocked
rounds
nothing_left "whoever holds a copy was told to end, and the tables were flushed"
nft flush ruleset
kill -TERM $block $(pgrep -P $block) || true
wait $block
rounds
nothing_left "flushed, and every process told to end"
says blocked
silence
"$HOPLITE" down
state > after; diff before after
"#,
    );
}

#[test]
fn a_file_that_is_missing_or_wrong_blocks_everything_at_boot_and_is_told() {
    nothing_leaves(
        r#"
printf '[takeover]\nlan = true\nexclude.addresses = ["203.0.113.0/24"]\n' > lenient.toml
cp lenient.toml wrong.toml; echo 'nonsense = 7' >> wrong.toml
for file in missing.toml wrong.toml; do
  "$HOPLITE" up --block-only --config "$file" 2> why
  grep -q "$file" why
  says blocked
  left > /dev/null
  talk 0.1
  nothing_left "$file"
  "$HOPLITE" down
done
mkdir -p blocked; mount -t tmpfs -o ro tmpfs blocked
"$HOPLITE" up --block-only --run-dir blocked/no 2> why
grep -q "blocked/no" why
talk 0.1
nothing_left "no directory to run in"
"$HOPLITE" down
state > after; diff before after
"#,
    );
}

#[test]
fn an_excluded_control_group_that_does_not_exist_yet_opens_nothing_at_boot() {
    nothing_leaves(
        r#"
mount -t cgroup2 none /sys/fs/cgroup || exit 0
relay
printf '[takeover]\nexclude.cgroups = ["absent.slice/it.service"]\n' >> client.toml
"$HOPLITE" up --block-only --config client.toml 2> why
cat why >&2; grep -q 'no control group "absent.slice/it.service" yet' why
says blocked
talk 0.1
nothing_left "no such group"
up 2> why
grep -q 'no control group "absent.slice/it.service" yet' why
talk 0.1
nothing_left "no such group, up"
"$HOPLITE" down
state > after; diff before after
"#,
    );
}

#[test]
fn where_nft_fails_routes_block_at_boot_and_up_is_refused() {
    nothing_leaves(
        r#"
relay
printf '#!/bin/sh\necho it is broken >&2; exit 1\n' > nft; chmod 755 nft
real=$(readlink -f "$(command -v nft)")
mount --bind nft "$real"
if "$HOPLITE" up --block-only 2> why; then exit 9; fi
grep -q "it is broken" why
is_blocked
if up 2> why; then exit 9; fi
grep -q "it is broken" why
is_blocked
umount "$real"
"$HOPLITE" down
state > after; diff before after
"#,
    );
}

#[test]
fn a_firewall_that_nft_does_not_take_is_replaced_at_boot_by_one_that_lets_nothing_pass() {
    nothing_leaves(
        r#"
relay
printf '[takeover]\nexclude.addresses = ["203.0.113.0/24"]\n' >> client.toml
real=$(readlink -f "$(command -v nft)")
cp "$real" nft-real
cat > nft <<END
#!/bin/sh
if [ "\$1" != -f ]; then exec $TEMP/nft-real "\$@"; fi
cat > $TEMP/given
if grep -q 203.0.113 $TEMP/given; then echo "not that" >&2; exit 1; fi
exec $TEMP/nft-real -f $TEMP/given
END
chmod 755 nft
mount --bind nft "$real"
"$HOPLITE" up --block-only --config client.toml 2> why
grep -q "not that" why
says blocked
left > /dev/null
talk 0.1
nothing_left "a firewall that nft did not take"
"$HOPLITE" down
state > after; diff before after
"#,
    );
}

/// `dial.py`: programs with our mark that dial while the default route is taken away.
const DIALLING: &str = r#"
cat > dial.py <<'END'
import errno, socket, subprocess
def dial(to):
    s = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, 0x686f6c)
    s.setblocking(False)
    return s, s.connect_ex((to, 443))
# One that is under way when the route goes, and goes on with SYNs; one that begins without.
under_way, error = dial("198.51.100.9")
assert error == errno.EINPROGRESS, error
subprocess.check_call("ip route del default; ip -6 route del default", shell=True)
_, error = dial("203.0.113.5")
assert error == errno.ENETUNREACH or error == errno.EHOSTUNREACH, error
# A router that is bound to nothing sends as well as it can: the firewall has the last word.
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, 0x686f6c)
s.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"hoplite0")
try:
    s.sendto(b"through ourselves", ("203.0.113.5", 4433))
    raise SystemExit("a marked datagram went into the interface")
except OSError as e:
    assert e.errno in (errno.EPERM, errno.ENETUNREACH, errno.EHOSTUNREACH), e
# TCP's first SYN is sent again after a second and after three: RFC 6298.
under_way.settimeout(4)
try:
    under_way.recv(1)
except OSError:
    pass
END
"#;

#[test]
fn our_own_sockets_do_not_come_back_through_the_interface_while_the_uplink_has_no_default_route() {
    let script = r#"
"$HOPLITE" keygen --out identity > keygen.txt
grep -o 'sha256:[^"[:space:]]*' keygen.txt | head -n 1 > pin
printf 'listen = ["203.0.113.5:4433"]\nidentity = "identity"\n[auth]\nopen = true\n' > relay.toml
ip netns exec world "$HOPLITE" relay --config relay.toml 2> relay.log &
relay=$!
config 203.0.113.5:4433 > client.toml
up
# What comes back would be on our interface, and at the exit, which is the relay itself: on its loopback.
python3 capture.py hoplite0 loop.pcap 101 &
ip netns exec world python3 capture.py lo exit.pcap 1 &
until_true test -s loop.pcap
until_true test -s exit.pcap
# From now on QUIC is dropped, and of TLS over TCP what is as long as a ClientHello: the process that carries traffic dials by TLS, and its
# handshake stays half open, said again and again.
in_world nft 'add table ip no; add chain ip no in { type filter hook input priority 0; }; add rule ip no in udp dport 4433 drop; add rule ip no in tcp dport 4433 meta length > 150 drop'
kill -9 $relay; wait $relay || true
ip netns exec world "$HOPLITE" relay --config relay.toml 2> relay.log &
flow() { curl -s --max-time 2 --noproxy '*' http://203.0.113.5:1/ 2>&1 | cat; }
# The TLS connections to the relay that have not been answered: their ports, and how often they have said it again (`timer:(on,200ms,3)`).
said_again() { ss -Htno state established dst 203.0.113.5 dport = 4433 | sed -n 's/^.* [0-9.]*:\([0-9]*\) *203.*timer:(on,[^,]*,\([0-9]*\)).*/\1 \2/p'; }
# Somebody asks for a flow now and then; a busy machine takes its time to notice that the relay was killed.
half_open() { if [ $((n % 10)) -eq 0 ]; then flow & fi; said_again > half; read -r port times < half && [ "$times" -ge 1 ]; }
until_half_open() {
  n=0
  until half_open; do n=$((n + 1)); if [ "$n" -ge 600 ]; then echo "no TLS connection was left half open" >&2; cat relay.log >&2; exit 1; fi; sleep 0.1; done
}
goes_on() { now=$(said_again | sed -n "s/^$port //p"); [ -n "$now" ]; }
# Where a socket is gone, the kernel resets what still comes for it, with no mark: such a segment has no payload, and gets no further than the
# interface, since it has not the interface's address.
nothing_came_back() {
  for capture in loop exit; do
    tcpdump -n -r $capture.pcap 'dst host 203.0.113.5 and dst port 4433 or dst host 198.51.100.9' 2> /dev/null > looped || true
    if [ $capture = loop ]; then sed -i '/Flags \[R\.*\], .*length 0$/d' looped; fi
    cat looped >&2
    [ ! -s looped ]
  done
}
# It goes on while there is no route. One that was given up for its age meanwhile is tried again.
tries=0; now=
until [ -n "$now" ]; do
  tries=$((tries + 1)); [ "$tries" -le 5 ]
  until_half_open
  python3 dial.py & dialling=$!
  while goes_on && [ "$now" -lt $((times + 2)) ]; do sleep 0.05; done
  echo "port $port: said $times times before, ${now:-none} now" >&2
  wait $dialling
  nothing_came_back
  "$HOPLITE" status --json | grep -q '"state":"up"'
  ip route add default via 192.0.2.254
  ip -6 route add default via 2001:db8::fe
done
# It did say hello by the uplink before.
tcpdump -n -r frames.pcap "dst host 203.0.113.5 and tcp dst port 4433 and src port $port and greater 150" 2> /dev/null | grep -q .
in_world nft delete table ip no
flows() { flow; "$HOPLITE" status --json | grep -q '"connected":true'; }
until_true flows
nothing_came_back
"$HOPLITE" down
"#;
    nothing_leaves(&format!("{DIALLING}\n{script}"));
}

#[test]
fn routes_that_a_network_hands_out_let_nothing_past_whether_the_local_network_is_in_reach_or_not() {
    nothing_leaves(
        r#"
relay
# Option 121 (RFC 3442) as an attacker uses it: everything, in halves; one target; and a private network.
for to in 0.0.0.0/1 128.0.0.0/1 203.0.113.1/32 10.9.0.0/16; do ip route add "$to" via 192.0.2.254; done
ip -6 route add 2000::/4 via 2001:db8::fe
state > before
cp client.toml off.toml
(cat client.toml; printf '[takeover]\nlan = true\n') > on.toml
for file in off.toml on.toml; do
  "$HOPLITE" up --config "$file"
  for to in 203.0.113.1 198.51.100.1 2001:db8:1::1 10.200.0.1 172.16.9.9; do ip route get "$to" | grep -q hoplite0; done
  left > /dev/null
  # Multicast on the link and the link itself are the local network's.
  allowed='^$'; if [ "$file" = on.toml ]; then allowed='> 224.0.0.251'; fi
  talking; rounds 50; nft flush ruleset; until_true is_firewalled; rounds 50; silence
  nothing_left "$file"
  "$HOPLITE" down
  left > /dev/null
done
"$HOPLITE" up --config on.toml
ip route get 10.9.9.9 | grep -q eth0
ping -c 1 -W 2 10.9.9.9
"$HOPLITE" down
state > after; diff before after
"#,
    );
}

/// What other programs do to a machine: their rules and tables, written by hand.
const NEIGHBOURS: &str = r#"
sysctl -qw net.ipv4.ip_forward=1
# Docker: a bridge with a guest, masquerading, a chain of its own in the forward hook.
ip netns add guest
ip link add docker0 type bridge
ip link add veth0 type veth peer name eth0 netns guest
ip link set veth0 master docker0 up
ip address add 172.17.0.1/16 dev docker0
ip link set docker0 up
ip -n guest address add 172.17.0.2/16 dev eth0
ip -n guest link set eth0 up
ip -n guest route add default via 172.17.0.1
docker() { nft -f - <<END
table ip nat {
  chain POSTROUTING { type nat hook postrouting priority srcnat; policy accept; ip saddr 172.17.0.0/16 oifname != "docker0" masquerade; }
}
table ip filter {
  chain DOCKER-USER { return; }
  chain FORWARD {
    type filter hook forward priority filter; policy drop;
    jump DOCKER-USER
    oifname "docker0" ct state established,related accept
    iifname "docker0" accept
  }
}
END
}
# Tailscale: rules with lower numbers, a mark that means "past the tunnel", and a route into an interface of its own.
tailscale() {
  ip link add tailscale0 type veth peer name tailscale1; ip link set tailscale1 up
  ip address add 100.64.0.7/32 dev tailscale0
  ip link set tailscale0 up
  ip route add 100.64.0.0/10 dev tailscale0 table 52
  ip rule add pref 5210 fwmark 0x80000/0xff0000 table main
  ip rule add pref 5230 fwmark 0x80000/0xff0000 table default
  ip rule add pref 5250 fwmark 0x80000/0xff0000 unreachable
  ip rule add pref 5270 table 52
  nft -f - <<END
table ip mangle {
  chain OUTPUT { type route hook output priority mangle; policy accept; udp dport 9 meta mark set meta mark & 0xff00ffff | 0x80000; }
}
table ip6 mangle {
  chain OUTPUT { type route hook output priority mangle; policy accept; udp dport 9 meta mark set meta mark & 0xff00ffff | 0x80000; }
}
END
  ip -6 rule add pref 5210 fwmark 0x80000/0xff0000 table main
}
# wg-quick: everything that has not its mark by its table; the mark saved with the connection and restored.
wireguard() {
  ip link add wg0 type veth peer name wg1; ip link set wg1 up
  ip address add 10.66.0.2/32 dev wg0
  ip link set wg0 up
  ip route add default dev wg0 table 51820
  ip rule add pref 32764 not fwmark 51820 table 51820
  ip rule add pref 32763 table main suppress_prefixlength 0
  nft -f - <<END
table ip wg-quick-wg0 {
  chain preraw { type filter hook prerouting priority raw; policy accept; iifname != "wg0" ip daddr 10.66.0.2 fib saddr type != local drop; }
  chain premangle { type filter hook prerouting priority mangle; policy accept; meta l4proto udp meta mark set ct mark; }
  chain postmangle { type filter hook postrouting priority mangle; policy accept; meta l4proto udp meta mark 51820 ct mark set meta mark; }
}
END
}
firewalld() { nft -f - <<END
table inet firewalld
delete table inet firewalld
table inet firewalld {
  chain mangle_PREROUTING { type filter hook prerouting priority mangle + 10; policy accept; }
  chain filter_OUTPUT { type filter hook output priority filter + 10; policy accept; ct state { established, related } accept; oifname "lo" accept; accept; }
  chain filter_FORWARD { type filter hook forward priority filter + 10; policy accept; accept; }
}
END
}
guest() { ip netns exec guest python3 -c '
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for _ in range(20):
    s.sendto(b"guest", ("203.0.113.1", 9))
'; }
"#;

#[test]
fn rules_and_tables_of_docker_tailscale_wireguard_and_firewalld_let_nothing_past() {
    let script = r#"
relay
docker
guest
left > /dev/null
grep -q 203.0.113.1 strangers
up
tailscale; wireguard; firewalld
left > /dev/null
talking
for what in docker firewalld 'nft flush ruleset' docker firewalld 'ip rule show'; do
  guest
  rounds
  $what > /dev/null
  until_true is_firewalled
  rounds
  nothing_left "$what"
done
kill -9 "$(cat /run/hoplite/lock)"
until_true says blocked
guest
rounds
nothing_left "killed"
silence
"$HOPLITE" down
# And so that the checks above can fail:
talk 0.1; guest; left > /dev/null
grep -q 203.0.113.1 strangers
"#;
    nothing_leaves(&format!("{NEIGHBOURS}\n{script}"));
}

#[test]
fn a_bridged_guest_is_a_machine_of_its_own_and_the_host_behind_the_same_bridge_is_blocked() {
    nothing_leaves(
        r#"
ip netns add guest
ip link add br0 type bridge
# Where br_netfilter is there, it would hand what is bridged to the firewall (and it would be dropped).
for family in ip ip6; do sysctl -qw net.bridge.bridge-nf-call-${family}tables=0 2> /dev/null || true; done
ip link add veth0 type veth peer name eth0 netns guest
ip link set veth0 master br0 up
ip address flush dev eth0
ip link set eth0 master br0
ip link set br0 address "$ours"
ip address add 192.0.2.1/24 dev br0
ip -6 address add 2001:db8::1/64 dev br0 nodad
ip link set br0 up
ip route replace default via 192.0.2.254
ip -6 route replace default via 2001:db8::fe
ip -n guest address add 192.0.2.77/24 dev eth0
ip -n guest link set eth0 up
ip -n guest route add default via 192.0.2.254
sed -i s/eth0/br0/ talk.py
talk 0.1
left > /dev/null
grep -q 203.0.113.1 strangers
relay
up
left > /dev/null
talking; rounds 50; silence
nothing_left "the host"
# docs/device.md says so: what a bridge forwards is no packet of this machine's.
until_true ip netns exec guest ping -c 1 -W 1 203.0.113.1 > /dev/null
nothing_left "the host, the guest talking"
"$HOPLITE" down
"#,
    );
}

#[test]
fn dhcp_reaches_who_is_on_the_link_and_nobody_behind_a_router() {
    nothing_leaves(
        r#"
cat > dhcp.py <<'END'
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
if sys.argv[2:]:
    s.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"eth0")
s.bind(("", 68))
try:
    s.sendto(b"lease", (sys.argv[1], 67))
except OSError as e:
    print(e)
END
relay
up
left > /dev/null
for to in 203.0.113.1 10.9.9.9; do
  python3 dhcp.py $to; python3 dhcp.py $to bound
done
nothing_left "DHCP to who is not on the link"
python3 dhcp.py 255.255.255.255 bound
python3 dhcp.py 192.0.2.254 bound
python3 dhcp.py 192.0.2.254
left > /dev/null
grep -q '255.255.255.255.67' strangers
grep -q '2 .* 192.0.2.254.67' strangers
"$HOPLITE" down
"#,
    );
}

#[test]
fn switches_hear_which_neighbour_discovery_groups_this_machine_listens_to() {
    nothing_leaves(
        r#"
relay
up
cat > join.py <<'END'
import socket, struct
s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
where = socket.if_nametoindex("eth0")
s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, socket.inet_pton(socket.AF_INET6, "ff02::1:ff00:7777") + struct.pack("@I", where))
import time
time.sleep(20)
END
python3 join.py &
joined=$!
heard() { tcpdump -n -vv -r frames.pcap 'ip6[6] = 0 and ip6[48] = 143' 2> /dev/null | grep -q 'ff02::1:ff00:7777'; }
until_true heard
kill $joined
nothing_left "reports of listeners"
"$HOPLITE" down
"#,
    );
}

#[test]
fn answers_that_inherit_the_mark_of_what_came_in_do_not_leave() {
    nothing_leaves(
        r#"
sysctl -qw net.ipv4.conf.all.rp_filter=1 net.ipv4.conf.eth0.rp_filter=1 net.ipv4.tcp_fwmark_accept=1 net.ipv4.fwmark_reflect=1 net.ipv6.fwmark_reflect=1
python3 -c 'import socket, time
s = socket.create_server(("", 22))
time.sleep(600)' &
listener=$!
poke() { in_world python3 -c '
import socket
for port in (22, 23):
    s = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    s.settimeout(0.5)
    try:
        s.connect(("192.0.2.1", port))
        print("answered")
    except ConnectionRefusedError:
        print("refused")
    except OSError:
        pass
'; in_world ping -c 1 -W 1 192.0.2.1 || true; }
until_true sh -c 'ss -ltn | grep -q :22'
poke | grep -q answered
relay
up
# Somebody else's table saves marks with connections and restores them.
nft -f - <<END
table ip saves {
  chain in { type filter hook prerouting priority mangle; policy accept; ct mark set meta mark; }
  chain out { type route hook output priority mangle; policy accept; meta mark 0 meta mark set ct mark; }
}
END
left > /dev/null
poke > poked
if grep -E 'answered|refused| 1 received' poked; then exit 9; fi
nothing_left "an answer"
kill $listener
"$HOPLITE" down
"#,
    );
}

/// `hears`: what the services of all addresses have heard since the last time, once what was written last is heard, which is excluded. UDP-Lite is heard
/// where the kernel has it.
const SERVICES: &str = r#"
cat > services.py <<'END'
import select, socket
services = []
for family, all, protocol in ((socket.AF_INET, "0.0.0.0", 0), (socket.AF_INET, "0.0.0.0", 136), (socket.AF_INET6, "::", 0)):
    try:
        s = socket.socket(family, socket.SOCK_DGRAM, protocol)
    except OSError as e:
        print(e)
        continue
    if family == socket.AF_INET6:
        s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    s.bind((all, 7777))
    services.append(s)
heard = open("heard", "a", 1)
while True:
    for s in select.select(services, [], [])[0]:
        what, who = s.recvfrom(2000)
        try:
            s.sendto(b"echo", who)
        except OSError:
            pass
        print(what.decode(), file=heard)
END
cat > write.py <<'END'
import socket, sys
for source, port, to, *protocol in (
    ("203.0.113.1", 99, "192.0.2.1", 136),
    ("203.0.113.1", 99, "192.0.2.1"), ("2001:db8:1::1", 99, "2001:db8::1"), ("192.0.2.254", 99, "192.0.2.1"), ("192.0.2.254", 99, "192.0.2.255"),
    ("203.0.113.1", 99, "198.18.0.1"), ("198.18.0.2", 53, "192.0.2.1"), ("203.0.113.5", 99, "192.0.2.1"),
):
    try:
        s = socket.socket(socket.AF_INET6 if ":" in to else socket.AF_INET, socket.SOCK_DGRAM, *protocol)
    except OSError:
        continue
    s.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
    s.bind((source, port))
    s.sendto(f"{sys.argv[1]} {source} {to}".encode(), (to, 7777))
END
in_world ip address add 198.18.0.2/32 dev lo
in_world ip route add 198.18.0.1/32 via 192.0.2.1
python3 services.py &
until_true sh -c 'ss -luHn6 | grep -q :7777'
round=0
hears() {
  round=$((round + 1))
  in_world python3 write.py $round
  until_true grep -q "^$round 203.0.113.5" heard
  grep "^$round " heard | cut -d ' ' -f 2,3 | sort
}
"#;

#[test]
fn who_writes_to_a_service_of_all_addresses_is_not_answered_through_the_relays() {
    let script = r#"
ip address add 198.18.0.1/32 dev lo
hears > before_up
ip address del 198.18.0.1/32 dev lo
[ "$(wc -l < before_up)" -ge 7 ]
relay
printf '[takeover]\nexclude.addresses = ["203.0.113.5/32"]\n' >> client.toml
up
for what in 'list tables' 'flush ruleset' 'list tables'; do
  nft $what > /dev/null
  hears > strangers
  cat strangers >&2
  [ "$(cat strangers)" = "203.0.113.5 192.0.2.1" ]
  until_true is_firewalled
done
"$HOPLITE" status --json | grep -q '"udp_opened":0[,}]'
"$HOPLITE" down
"#;
    nothing_leaves(&format!("{SERVICES}\n{script}"));
}

#[test]
fn who_has_talked_with_a_service_before_is_no_more_let_in_where_a_group_is_excluded() {
    let script = r#"
mkdir /sys/fs/cgroup/a.slice
nft 'table inet tracks { chain tracked { type filter hook prerouting priority 0; ct state new accept; }; }'
ip address add 198.18.0.1/32 dev lo
hears > before_up
ip address del 198.18.0.1/32 dev lo
[ "$(wc -l < before_up)" -ge 7 ]
relay
printf '[takeover]\nexclude = { addresses = ["203.0.113.5/32"], cgroups = ["a.slice"] }\n' >> client.toml
up
hears > strangers
cat strangers >&2
[ "$(cat strangers)" = "203.0.113.5 192.0.2.1" ]
"$HOPLITE" status --json | grep -q '"udp_opened":0[,}]'
"$HOPLITE" down
"#;
    succeeds_with_groups(&format!("{WORLD}\n{SERVICES}\n{script}"));
}

#[test]
fn a_long_datagram_reaches_our_own_socket_in_its_fragments() {
    nothing_leaves(
        r#"
cat > long.py <<'END'
import socket
s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, 0x686f6c)
s.bind(("::", 7777))
open("listens", "w").write("x")
for _ in range(2):
    what, who = s.recvfrom(9000)
    print(len(what), who[0], file=open("heard", "a"))
END
relay
up
python3 long.py &
until_true test -s listens
in_world python3 -c '
import socket
for family, source, to in ((socket.AF_INET, "203.0.113.1", "192.0.2.1"), (socket.AF_INET6, "2001:db8:1::1", "2001:db8::1")):
    s = socket.socket(family, socket.SOCK_DGRAM)
    s.bind((source, 0))
    s.sendto(bytes(4000), (to, 7777))
'
until_true grep -q '4000 ::ffff:203.0.113.1' heard
until_true grep -q '4000 2001:db8:1::1' heard
"$HOPLITE" down
"#,
    );
}

#[test]
fn nobody_but_a_guest_goes_through_the_relays_as_one() {
    nothing_leaves(
        r#"
sysctl -qw net.ipv4.ip_forward=1
ip netns add guest
ip link add guests type veth peer name eth0 netns guest
ip address add 10.7.0.1/24 dev guests
ip link set guests up
ip -n guest address add 10.7.0.2/24 dev eth0
ip -n guest link set eth0 up
ip -n guest route add default via 10.7.0.1
for address in 10.7.0.2/32 198.18.0.1/32; do in_world ip address add $address dev lo; done
in_world ip route add 203.0.113.99/32 via 192.0.2.1
cat > forwarded.py <<'END'
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind((sys.argv[1], 0))
s.sendto(b"forwarded", ("203.0.113.99", 9))
END
relay
printf '[takeover]\ngateway = ["10.7.0.0/24"]\n' >> client.toml
up
in_world python3 forwarded.py 10.7.0.2
in_world python3 forwarded.py 198.18.0.1
opened() { "$HOPLITE" status --json | grep -q "\"udp_opened\":$1[,}]"; }
any_opened() { if opened 0; then return 1; fi; }
ip netns exec guest python3 forwarded.py 10.7.0.2
until_true any_opened
opened 1
"$HOPLITE" down
"#,
    );
}

/// `ping.py` sets our mark.
const PING: &str = r#"
cat > ping.py <<'END'
import socket
def ping(family, protocol, kind, to):
    s = socket.socket(family, socket.SOCK_RAW, protocol)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, 0x686f6c)
    try:
        s.sendto(bytes([kind, 0, 0xff - kind, 0xff, 0, 0, 0, 0]), (to, 0))
    except OSError as e:
        print(e)
ping(socket.AF_INET, socket.IPPROTO_ICMP, 8, "203.0.113.1")
ping(socket.AF_INET6, socket.IPPROTO_ICMPV6, 128, "2001:db8:1::1")
END
"#;

#[test]
fn a_ping_that_may_set_our_mark_does_not_leave() {
    let script = r#"
python3 ping.py
left > /dev/null
grep -q '203.0.113.1: ICMP echo' strangers && grep -q '2001:db8:1::1: ICMP6, echo' strangers
relay
up
left > /dev/null
for what in 'list tables' 'flush ruleset' 'list tables'; do
  nft $what > /dev/null
  python3 ping.py
  nothing_left "$what"
  until_true is_firewalled
done
"$HOPLITE" down
"#;
    nothing_leaves(&format!("{PING}\n{script}"));
}

#[test]
fn single_labels_are_not_asked_of_neighbours_where_the_local_network_is_in_reach() {
    nothing_leaves(
        r#"
cat > ask.py <<'END'
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
s.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("10.0.0.1"))
question = bytes([0, 7, 1, 0x10, 0, 1]) + bytes(6) + b"\x07secrets\x00\x00\x01\x00\x01"
answer = bytes([0, 7, 0x85, 0, 0, 0, 0, 1]) + bytes(4) + b"\x07secrets\x00\x00\x01\x00\x01"
for what, to in ((question, ("224.0.0.252", 5355)), (question, ("10.0.0.255", 137)), (question, ("10.0.0.254", 137)), (answer, ("10.0.0.254", 137))):
    try:
        s.sendto(what, to)
    except OSError as e:
        print(e)
END
ip address add 10.0.0.1/24 dev eth0
relay
printf '[takeover]\nlan = true\n' >> client.toml
up
left > /dev/null
python3 ask.py
left > /dev/null
cat strangers >&2
[ "$(grep -c . strangers)" = 1 ]
grep -q '> 10.0.0.254.137: ' strangers
"$HOPLITE" down
"#,
    );
}
