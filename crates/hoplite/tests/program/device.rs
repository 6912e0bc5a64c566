//! `up`, `down` and `status` for real: in namespaces of their own, never on the machine's routes, rules, firewall or resolv.conf.

use std::ffi::OsStr;

use crate::namespaces::{ended_well, inside};

/// A machine with an uplink that leads nowhere, and a relay on its loopback. `state` prints all that `up` may touch.
const MACHINE: &str = r#"
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs /etc
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs "$TEMP"
cd "$TEMP"
echo 'nameserver 192.0.2.53' > /etc/resolv.conf
ip link set lo up
ip link add eth0 type veth peer name far0
ip link set far0 up
ip address add 192.0.2.1/24 dev eth0
ip -6 address add 2001:db8::1/64 dev eth0 nodad
ip link set eth0 up
ip route add default via 192.0.2.254
ip -6 route add default via 2001:db8::fe
state() {
  ip rule; ip -6 rule
  ip route show table main
  ip route show table 26735 2> /dev/null || true
  ip -6 route show table 26735 2> /dev/null || true
  nft list ruleset 2> /dev/null | sed 's/packets [0-9]* bytes [0-9]*//' | sort; cat /etc/resolv.conf; ls -A /etc; ip -o link | cut -d: -f2
  cat /proc/sys/net/ipv4/conf/all/src_valid_mark
}
past() { ip route get 203.0.113.1 2>&1 || true; ip -6 route get 2001:db8:1::1 2>&1 || true; }
config() {
  printf 'path = ["r"]\n[[relay]]\nname = "r"\naddress = "%s"\npin = "%s"\n' "$1" "$(cat pin)"
}
relay() {
  "$HOPLITE" keygen --out identity > keygen.txt
  grep -o 'sha256:[^"[:space:]]*' keygen.txt | head -n 1 > pin
  printf 'listen = ["127.0.0.1:4433"]\nidentity = "identity"\n[auth]\nopen = true\n' > relay.toml
  "$HOPLITE" relay --config relay.toml 2> relay.log &
  config 127.0.0.1:4433 > client.toml
}
is_blocked() { if past | grep -E 'eth0|hoplite0'; then return 1; fi; }
says() { "$HOPLITE" status --json | grep -q "\"state\":\"$1\""; }
until_true() {
  n=0
  until "$@"; do n=$((n + 1)); if [ "$n" -ge 100 ]; then echo "it has not come true: $*" >&2; exit 1; fi; sleep 0.1; done
}
up() { "$HOPLITE" up --config client.toml "$@"; }
state > before
"#;

/// A control group of its own is the root of the tree: a portal's has one name, and tests run beside each other.
const GROUPS: &str = r#"
mkdir "$TEMP/groups"
mount -t cgroup2 none "$TEMP/groups" || exit 0
cd "$TEMP/groups"
group=$(mktemp -d hoplite-test-XXXXXX)
echo $$ > "$group/cgroup.procs"
status=0
unshare --cgroup sh -euc "$SCRIPT" || status=$?
echo $$ > cgroup.procs
echo 1 > "$group/cgroup.kill"
n=0
until find "$group" -depth -type d -exec rmdir {} + 2> /dev/null; do n=$((n + 1)); [ "$n" -lt 100 ]; sleep 0.1; done
exit $status
"#;

/// The script, with control groups of its own and a portal that waits in the background once it passes.
pub(crate) fn succeeds_with_groups(script: &str) {
    let script = format!(
        "{MACHINE}\nmount -t tmpfs tmpfs /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup\n{PORTAL}\n{script}"
    );
    let quoted = script.replace('\'', r"'\''");
    ends_well(&format!("SCRIPT='{quoted}'\nexport SCRIPT\n{GROUPS}"));
}

/// `opened` starts one whose program says its number and stays, whatever it is asked; `closed` is true when nothing of it is left.
const PORTAL: &str = r#"
opened() {
  "$HOPLITE" portal -- sh -c 'trap "" INT TERM HUP; echo $$ > inside; sleep 1000 & wait; wait' 2> portal.log &
  portal=$!
  until_true test -s inside
  program=$(cat inside)
  nft list table inet hoplite-portal | grep -q 0x00686f6c
  grep -q 0::/hoplite-portal "/proc/$program/cgroup"
}
hole_closed() { if nft list table inet hoplite-portal 2> /dev/null; then return 1; fi; }
closed() { hole_closed && ! [ -e "/proc/$program" ] && ! [ -e /sys/fs/cgroup/hoplite-portal ]; }
"#;

pub(crate) fn succeeds(script: &str) {
    ends_well(&format!("{MACHINE}\n{script}"));
}

fn ends_well(script: &str) {
    let program = OsStr::new(env!("CARGO_BIN_EXE_hoplite"));
    if let Some(output) = inside(script, &[("HOPLITE", program)]) {
        ended_well(&output);
    }
}

#[test]
fn what_is_blocked_for_boot_is_open_again_after_down() {
    succeeds(
        r#"
past | grep -q eth0
"$HOPLITE" up --block-only
is_blocked
ip route get 203.0.113.1 mark 0x686f6c | grep -q eth0
says blocked
"$HOPLITE" up --block-only
"$HOPLITE" down
says down
state > after; diff before after
"$HOPLITE" down
"#,
    );
}

#[test]
fn without_a_path_nothing_is_changed_and_what_was_blocked_stays_blocked() {
    succeeds(
        r#"
relay
config 192.0.2.77:443 > client.toml
if up --wait 1 2> why; then exit 9; fi
cat why >&2; grep -q "first relay" why
state > after; diff before after
"$HOPLITE" up --block-only
if up --wait 1; then exit 9; fi
is_blocked
says blocked
"$HOPLITE" down
state > after; diff before after
"#,
    );
}

#[test]
fn where_everything_shall_be_left_blocked_it_is_also_when_traffic_has_never_flowed() {
    succeeds(&format!(
        r#"
{WORKER}
relay
is_closed() {{ cat why >&2; says blocked; is_blocked; grep -q "everything stays blocked" why; "$HOPLITE" down; state > after; diff before after; }}
# The worker comes to the end of its patience; before anything is taken; is killed; says nothing.
config 192.0.2.77:443 > client.toml
if up --wait 1 --keep-block 2> why; then exit 9; fi
is_closed
cp client.toml good.toml
printf 'hops = 1\n[directory]\nauthorities = ["%s@192.0.2.77:7000"]\nwait = 1\n' "$("$HOPLITE" keygen --authority --out authority)" > client.toml
if up --wait 1 --keep-block 2> why; then exit 9; fi
is_closed
cp good.toml client.toml
for signal in KILL STOP; do
  "$HOPLITE" up --config client.toml --foreground --keep-block --wait "$(if [ $signal = KILL ]; then echo 600; else echo 1; fi)" 2> why &
  main=$!
  until_true says starting
  worker=$(worker_now)
  kill -$signal "$worker"
  # A minute is more than it waits for a silent one.
  n=0; until grep -qs '^State:.*zombie' /proc/$main/status || ! [ -e /proc/$main ]; do n=$((n + 1)); [ "$n" -lt 600 ]; sleep 0.1; done
  if wait $main; then exit 9; fi
  is_closed
done
if up --wait 1 2> why; then exit 9; fi
grep -q "goes its usual way" why
state > after; diff before after
"#
    ));
}

#[test]
fn half_a_block_that_stood_before_is_a_whole_one_when_up_fails() {
    succeeds(
        r#"
relay
config 192.0.2.77:443 > client.toml
unrouted() { ip route flush table 26735; ip -6 route flush table 26735; }
for what in 'ip route flush table 26735' 'ip -6 rule flush table 26735' unrouted 'nft flush ruleset'; do
  "$HOPLITE" up --block-only
  $what
  says partly
  if up --wait 1 2> why; then exit 9; fi
  grep -q "everything stays blocked" why
  says blocked
  is_blocked
  "$HOPLITE" down
  state > after; diff before after
done
"#,
    );
}

#[test]
fn a_killed_process_leaves_everything_blocked_until_the_next_one_takes_over() {
    succeeds(
        r#"
relay
up
says up
past | grep -q hoplite0
if ip -6 route get 2001:db8:1::1 oif eth0 | grep eth0; then exit 9; fi
ip route replace default via 192.0.2.253
ip -6 route replace default via 2001:db8::fd dev eth0
ip -6 route replace default via 2001:db8::fe dev eth0
ip route replace default via 192.0.2.254
grep -q 198.18.0.2 /etc/resolv.conf
getent ahostsv4 site.example | grep -q '^198\.1[89]\.'
getent ahostsv6 site.example | grep -q '^fd68:6f70:6c69:7465:'
if up 2> why; then exit 9; fi
grep -q "up already" why
kill -9 "$(cat /run/hoplite/lock)"
until_true says blocked
is_blocked
up
says up
"$HOPLITE" down
says down
state > after; diff before after
"#,
    );
}

/// `worker` is the number of the process that carries the traffic; `as_worker` runs a program as who that is, with the rights that it has.
const WORKER: &str = r#"
worker_now() { "$HOPLITE" status --json | sed 's/.*"worker":\([0-9]*\).*/\1/'; }
field() { sed -n "s/^$1:[[:space:]]*//p" "/proc/$worker/status"; }
as_worker() {
  setpriv --reuid "$(field Uid | cut -f 1)" --regid "$(field Gid | cut -f 1)" --clear-groups --inh-caps=-all --bounding-set=-all --no-new-privs "$@"
}
"#;

#[test]
fn the_process_that_reads_what_the_network_sends_has_no_right_at_all() {
    succeeds(&format!(
        r#"
{WORKER}
relay
up 7< client.toml 8> inherited
worker=$(worker_now)
[ "$worker" != "$(cat /run/hoplite/lock)" ]
for set in CapInh CapPrm CapEff CapBnd CapAmb; do [ "$(field $set)" = 0000000000000000 ]; done
[ "$(field NoNewPrivs)" = 1 ]
if ls -l "/proc/$worker/fd" | grep inherited; then exit 9; fi
if grep -q ' 4294967295$' /proc/self/uid_map; then
  own=1900000000
  [ "$(field Uid)" = "$(printf "$own\t$own\t$own\t$own")" ]
  [ "$(field Gid)" = "$(printf "$own\t$own\t$own\t$own")" ]
  [ -z "$(field Groups | tr -d ' ')" ]
fi
getent ahostsv4 site.example | grep -q '^198\.1[89]\.'
"$HOPLITE" down
if [ -e "/proc/$worker" ]; then exit 9; fi
printf '[takeover]\nuser = 0\n' >> client.toml
if "$HOPLITE" check --config client.toml 2> why; then exit 9; fi
grep -q 'takeover.user' why
"#
    ));
}

#[test]
fn whoever_takes_over_the_process_that_reads_the_network_cannot_open_what_is_blocked() {
    succeeds(&format!(
        r#"
{WORKER}
grep -q ' 4294967295$' /proc/self/uid_map || exit 0
relay
chmod 600 client.toml
up
state > up
worker=$(worker_now)
for command in 'nft flush ruleset' 'ip rule flush' 'ip route flush table 26735' 'ip link delete hoplite0' 'ip link set hoplite0 down' \
  '"$HOPLITE" down' 'kill -KILL "$(cat /run/hoplite/lock)"' 'echo > /etc/resolv.conf' 'echo 0 > /proc/sys/net/ipv4/ip_forward' \
  'kill -KILL $PPID' 'cat client.toml'; do
  if as_worker sh -c "$command" 2> /dev/null; then echo "$command" >&2; exit 9; fi
done
state > again; diff up again
past | grep -q hoplite0
"$HOPLITE" down
state > after; diff before after
"#
    ));
}

#[test]
fn when_the_process_that_carries_traffic_is_killed_nothing_passes_until_another_one_carries_it() {
    succeeds(&format!(
        r#"
{WORKER}
relay
up
state > up
main=$(cat /run/hoplite/lock)
worker=$(worker_now)
kill -STOP "$main"
kill -KILL "$worker"
if past | grep eth0; then exit 9; fi
kill -CONT "$main"
another() {{ now=$(worker_now) && [ "$now" != "$worker" ] && [ "$now" != 0 ]; }}
until_true another
[ "$main" = "$(cat /run/hoplite/lock)" ]
until_true sh -c 'getent ahostsv4 third.example | grep -q "^198\.1[89]\."'
state > again; diff up again
kill -STOP "$(worker_now)"
says up
"$HOPLITE" down
state > after; diff before after
"#
    ));
}

#[test]
fn what_is_new_of_the_directory_is_kept_where_only_root_may_write() {
    succeeds(
        r#"
name="$("$HOPLITE" keygen --authority --out authority)@127.0.0.1:7000"
printf 'authorities = ["%s"]\nlisten = "127.0.0.1:7000"\ninterval = 8\nvoting = 2\nintervals = 1000\n[admission]\nprivate = true\n' "$name" > authority/directory.toml
"$HOPLITE" directory --config authority/directory.toml 2> directory.log &
authority=$!
printf 'name = "r"\nlisten = ["127.1.0.1:4433"]\nidentity = "identity"\n[auth]\nopen = true\n[directory]\npublish = ["127.0.0.1:7000"]\nevery = 1\n' > relay.toml
mkdir -m 700 kept
printf 'hops = 1\n[directory]\nauthorities = ["%s"]\nwait = 60\ncache = "kept/cache"\n' "$name" > client.toml
# A list without the relay may be kept for hours; the next start asks anew all the same.
is_published() { grep -q 'a list is published' directory.log; }
n=0
until is_published; do n=$((n + 1)); [ "$n" -lt 600 ]; sleep 0.1; done
up --wait 1 2> why || true
"$HOPLITE" down
"$HOPLITE" relay --config relay.toml 2> relay.log &
is_listed() { grep -A 99 'a list is signed.*relays=1' directory.log | grep -q 'a list is published'; }
n=0
until is_listed; do n=$((n + 1)); [ "$n" -lt 600 ]; sleep 0.1; done
up --wait 60
"$HOPLITE" down
[ "$(stat -c '%u %s' kept/cache | cut -d ' ' -f 1)" = "$(id -u)" ]
kill $authority
up --wait 60
says up
"$HOPLITE" down
"#,
    );
}

#[test]
fn a_relay_of_the_list_lets_the_device_in_by_private_tokens_of_its_issuer() {
    succeeds(
        r#"
mkdir issuer kept
printf 'listen = "127.0.0.1:8443"\n[[account]]\nname = "ann"\ntoken = "secret of ann"\n' > issuer/issuer.toml
"$HOPLITE" issuer --config issuer/issuer.toml 2> issuer.log &
name="$("$HOPLITE" keygen --authority --out authority)@127.0.0.1:7000"
printf 'authorities = ["%s"]\nlisten = "127.0.0.1:7000"\ninterval = 8\nvoting = 2\nintervals = 1000\n[admission]\nprivate = true\n' "$name" > authority/directory.toml
"$HOPLITE" directory --config authority/directory.toml 2> directory.log &
until_true grep -q 'the issuer is up' issuer.log
issuer_pin=$(grep -o 'sha256:[A-Za-z0-9_+/=-]*' issuer.log | head -n 1)
python3 -c 'import ssl, urllib.request as u
print(u.urlopen("https://127.0.0.1:8443/.well-known/private-token-issuer-directory", context=ssl._create_unverified_context()).read().decode())' > keys.json
printf 'name = "r"\nlisten = ["127.1.0.1:4433"]\nidentity = "identity"\n[auth.private_tokens]\nissuer = "i"\norigin = "fleet"\nkeys = "keys.json"\n[directory]\npublish = ["127.0.0.1:7000"]\nevery = 1\n' > relay.toml
"$HOPLITE" relay --config relay.toml 2> relay.log &
is_listed() { grep -A 99 'a list is signed.*relays=1' directory.log | grep -q 'a list is published'; }
n=0
until is_listed; do n=$((n + 1)); [ "$n" -lt 600 ]; sleep 0.1; done
chmod 700 kept
printf 'hops = 1\n[directory]\nauthorities = ["%s"]\nwait = 60\ncache = "kept/cache"\n' "$name" > client.toml
if up --wait 5 2> why; then exit 1; fi
grep -q 'takes tokens of an issuer that you have' why
"$HOPLITE" down
printf '[[issuer]]\nname = "i"\naddress = "127.0.0.1:8443"\npin = "%s"\ntoken = "secret of ann"\nstock = "kept/stock"\n' "$issuer_pin" >> client.toml
up --wait 60
says up
"$HOPLITE" status | grep 'private tokens for fleet: 3 left'
[ "$(stat -c '%u %a' kept/stock)" = "$(id -u) 600" ]
"$HOPLITE" down
"#,
    );
}

#[test]
fn what_others_remove_is_made_again() {
    succeeds(
        r#"
relay
up
state > up
ip link delete hoplite0
until_true ip link show hoplite0
until_true sh -c 'ip route show table 26735 | grep -q hoplite0'
ip rule flush table 26735
ip route flush table 26735
ip -6 route flush table 26735
again() { state > again; diff up again > /dev/null; }
until_true again
ip link set hoplite0 down
until_true again
echo 'nameserver 192.0.2.99' > /etc/resolv.conf
until_true grep -q 198.18.0.2 /etc/resolv.conf
"$HOPLITE" down
grep -q 192.0.2.99 /etc/resolv.conf
"#,
    );
}

#[test]
fn what_others_remove_while_the_kernel_has_more_to_tell_than_it_can_keep_is_made_again() {
    succeeds(
        r#"
relay
up
state > up
process=$(cat /run/hoplite/lock)
kill -STOP "$process"
n=0
while [ "$n" -lt 3000 ]; do
  n=$((n + 1))
  echo "route add 203.0.$((n / 250)).$((n % 250)) dev eth0"
done > flood
ip -batch flood
ip rule flush table 26735
ip -6 route flush table 26735
ip link set hoplite0 down
sed s/add/delete/ flood > ebb
ip -batch ebb
sed 1d /proc/net/netlink | { while read -r _ protocol _ _ _ _ _ _ lost _; do [ "$protocol $lost" = "0 0" ] || [ "$protocol" != 0 ] || exit 0; done; exit 9; }
kill -CONT "$process"
again() { state > again; diff up again > /dev/null; }
until_true again
"$HOPLITE" down
state > after; diff before after
"#,
    );
}

#[test]
fn what_others_remove_while_we_are_still_taking_is_made_again() {
    succeeds(
        r#"
relay
mkdir -p /run/systemd/resolve
echo 'nameserver 192.0.2.53' > /run/systemd/resolve/resolv.conf
echo 'nameserver 127.0.0.53' > /etc/resolv.conf
mount -t tmpfs tmpfs /usr/local/bin
cat > /usr/local/bin/resolvectl <<END
#!/bin/sh
if [ "\$1" = flush-caches ] && ! [ -e "$TEMP/meddled" ]; then
  : > "$TEMP/meddled"
  $(command -v ip) rule flush table 26735
fi
END
chmod 755 /usr/local/bin/resolvectl
up
[ -e meddled ]
until_true sh -c 'ip rule | grep -q 26735'
until_true sh -c 'past=$(ip route get 203.0.113.1); echo "$past" | grep -q hoplite0'
"$HOPLITE" down
"#,
    );
}

#[test]
fn what_another_program_has_set_is_still_there_after_down() {
    succeeds(
        r#"
relay
marks=/proc/sys/net/ipv4/conf/all/src_valid_mark
echo 1 > /proc/sys/net/ipv4/conf/eth0/rp_filter
up
[ "$(cat $marks)" = 1 ]
"$HOPLITE" down
[ "$(cat $marks)" = 0 ]
ip rule add pref 100 to 10.9.0.0/16 lookup main protocol 104
up
ip rule add pref 32000 fwmark 0x77 lookup main protocol 104
"$HOPLITE" down
ip rule | grep -q '^100:.*10.9.0.0/16'
ip rule | grep -q '^32000:.*0x77'
[ "$(cat $marks)" = 1 ]
if ip rule | grep 26735; then exit 9; fi
"#,
    );
}

#[test]
fn a_rule_that_another_program_puts_before_ours_comes_after_them_or_is_told() {
    succeeds(
        r#"
relay
up
into() { ip route get 198.51.100.1 | grep -q hoplite0; }
told() { "$HOPLITE" status --json | grep -q "\"before\":$1,"; }
ip rule add to 198.51.100.0/24 lookup main
until_true into
ip rule add pref 5210 to 198.51.100.0/24 lookup main
until_true into
told 0
ip rule flush table 26735
until_true into
ip rule add pref 3 to 198.51.100.0/24 lookup main
until_true told 1
"$HOPLITE" status | grep -q 'come before ours'
"$HOPLITE" down
if ip rule | grep -E '26735|0x686f6c'; then exit 9; fi
[ "$(ip rule | grep -c 198.51.100.0/24)" = 3 ]
if up --wait 5 2> why; then exit 9; fi
grep -q 'rules of other programs' why
if ip rule | grep -E '26735|0x686f6c'; then exit 9; fi
"#,
    );
}

#[test]
fn a_signal_gives_everything_back_or_leaves_the_block_if_asked_to() {
    succeeds(
        r#"
relay
up
kill -TERM "$(cat /run/hoplite/lock)"
until_true says down
state > after; diff before after
up --keep-block
kill -TERM "$(cat /run/hoplite/lock)"
until_true says blocked
is_blocked
if grep -q hoplite /etc/resolv.conf; then exit 9; fi
"$HOPLITE" down
state > after; diff before after
"#,
    );
}

#[test]
fn without_a_block_a_killed_process_leaves_the_old_way() {
    succeeds(
        r#"
relay
up --no-block
past | grep -q hoplite0
kill -9 "$(cat /run/hoplite/lock)"
until_true says down
past | grep -q eth0
"$HOPLITE" down
state > after; diff before after
"#,
    );
}

#[test]
fn a_read_only_etc_and_a_machine_without_ipv6_come_up_too() {
    succeeds(
        r#"
relay
mount --bind /etc /etc
mount -o remount,bind,ro /etc
echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6
echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6
up
"$HOPLITE" status --json | grep -q '"dns":"answered"'
getent ahostsv4 site.example | grep -q '^198\.1[89]\.'
past | grep -q hoplite0
"$HOPLITE" down
grep -q 192.0.2.53 /etc/resolv.conf
"#,
    );
}

#[test]
fn a_relay_that_is_given_by_name_is_found_also_when_everything_is_blocked() {
    succeeds(
        r#"
command -v python3 || exit 0
relay
config relay.example:4433 > client.toml
cat > names.py <<'END'
import socket
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("127.0.0.9", 53))
while True:
    question, asker = server.recvfrom(512)
    end = question.index(0, 12) + 5
    head, question, kind = question[:2], question[12:end], question[end - 3]
    answer = b"\xc0\x0c\0\1\0\1\0\0\0\x3c\0\4\x7f\0\0\1" if kind == 1 else b""
    server.sendto(head + b"\x81\x80\0\1\0" + bytes([kind == 1]) + b"\0" * 4 + question + answer, asker)
END
python3 names.py &
names=$!
echo 'nameserver 127.0.0.9' > /etc/resolv.conf
state > before
up
kill -9 "$(cat /run/hoplite/lock)"
until_true says blocked
up
says up
"$HOPLITE" down
state > after; diff before after
up
cp /etc/resolv.conf ours; cp /etc/resolv.conf.hoplite old
"$HOPLITE" down
mv ours /etc/resolv.conf; mv old /etc/resolv.conf.hoplite
up
"$HOPLITE" down
state > after; diff before after
kill $names
if up --wait 1 2> why; then exit 9; fi
state > after; diff before after
"#,
    );
}

#[test]
fn where_systemd_resolved_runs_it_is_told_and_its_file_stays() {
    succeeds(
        r#"
relay
mkdir -p /run/systemd/resolve
echo 'nameserver 192.0.2.53' > /run/systemd/resolve/resolv.conf
echo 'nameserver 127.0.0.53' > /etc/resolv.conf
mount -t tmpfs tmpfs /usr/local/bin
printf 'Global:\nLink 2 (eth0): corp.example\nLink 9 (hoplite0): ~.\n' > domains
cat > /usr/local/bin/resolvectl <<END
#!/bin/sh
if [ "\$*" = domain ]; then cat "$TEMP/domains"; else echo "\$@" >> "$TEMP/told"; fi
END
chmod 755 /usr/local/bin/resolvectl
state > before
up
"$HOPLITE" status --json | grep -q '"dns":"systemd-resolved"'
grep -q '^dns hoplite0 198.18.0.2 fd68:6f70:6c69:7465::2$' told
grep -q '^domain hoplite0 ~. ~corp.example$' told
printf 'Link 2 (eth0): corp.example ~vpn.example\nLink 9 (hoplite0): ~. ~corp.example\n' > domains
echo 'nameserver 192.0.2.54' > /run/systemd/resolve/new
mv /run/systemd/resolve/new /run/systemd/resolve/resolv.conf
until_true grep -q '^domain hoplite0 ~. ~corp.example ~vpn.example$' told
: > told
ip link delete hoplite0
until_true grep -q '^dns hoplite0 ' told
"$HOPLITE" down
grep -q '^revert hoplite0$' told
state > after; diff before after
"#,
    );
}

#[test]
fn the_right_to_set_up_the_network_is_enough() {
    succeeds(
        r#"
relay
mount -t tmpfs tmpfs /dev/net
mknod /dev/net/tun c 10 200 || exit 0
chmod 666 /dev/net/tun
cp "$HOPLITE" /run/program; chmod 755 /run/program "$TEMP"
mkdir run; chown 1000 run
capable() {
  setpriv --reuid 1000 --regid 1000 --clear-groups --inh-caps=-all,+net_admin \
    --ambient-caps=-all,+net_admin --bounding-set=-all,+net_admin "$@"
}
capable /run/program up --config client.toml --run-dir "$TEMP/run"
past | grep -q hoplite0
nft list tables | grep -q hoplite
grep -q 192.0.2.53 /etc/resolv.conf
capable /run/program down --run-dir "$TEMP/run"
state > after; diff before after
"#,
    );
}

#[test]
fn without_nftables_routes_alone_block() {
    succeeds(
        r#"
relay
for place in /usr/sbin /sbin /usr/bin /bin; do
  if [ -e "$place/nft" ]; then mount --bind /dev/null "$place/nft"; fi
done
if nft list tables; then exit 9; fi
if up 2> why; then exit 9; fi
grep -q "there is no nftables" why
state > after; diff before after
up --no-firewall 2> log || cat log
says up
kill -9 "$(cat /run/hoplite/lock)"
until_true says blocked
is_blocked
"$HOPLITE" down
says down
past | grep -q eth0
"#,
    );
}

#[test]
fn what_is_excluded_goes_its_own_way() {
    succeeds(
        r#"
# The kernel takes no rule about users that a namespace does not have: who is not root has root alone here.
[ "$(awk '{ n += $3 } END { print n }' /proc/self/uid_map)" -gt 3000 ] || exit 0
relay
cat >> client.toml <<END
[takeover]
lan = true
exclude = { addresses = ["203.0.113.0/24"], users = [1000, "2000-2999"] }
END
up
past | grep -q eth0
ip route get 198.51.100.1 | grep -q hoplite0
ip route get 198.51.100.1 uid 2500 | grep -q eth0
ip route get 198.18.7.7 uid 2500 | grep -q hoplite0
ip route add 10.7.0.0/16 via 192.0.2.254
ip route get 10.7.0.9 | grep -q eth0
ip route get 10.8.0.9 | grep -q hoplite0
ip route del 10.7.0.0/16
kill -9 "$(cat /run/hoplite/lock)"
until_true says blocked
unreachable() { if ip route get 198.51.100.1; then return 1; fi; }
until_true unreachable
ip route get 198.51.100.1 uid 2500 | grep -q eth0
"$HOPLITE" down
state > after; diff before after
"#,
    );
}

#[test]
fn one_program_passes_in_the_portal_and_asks_the_networks_name_server() {
    succeeds_with_groups(
        r#"
relay
up
"$HOPLITE" portal -- sh -euc 'grep -q 192.0.2.53 /etc/resolv.conf; grep -q 0::/hoplite-portal /proc/self/cgroup; nft list table inet hoplite-portal' > inside
grep -q 0x00686f6c inside
grep -q 198.18.0.2 /etc/resolv.conf
if nft list table inet hoplite-portal; then exit 9; fi
if "$HOPLITE" portal -- false; then exit 9; fi
"$HOPLITE" down
state > after; diff before after
"#,
    );
}

#[test]
fn a_portal_that_gets_a_signal_closes_and_ends_what_it_started() {
    succeeds_with_groups(
        r#"
for signal in INT TERM; do
  rm -f inside
  opened
  kill -$signal "$portal"
  if wait "$portal"; then exit 9; fi
  closed
done
"#,
    );
}

#[test]
fn a_killed_portal_lets_nothing_pass_and_up_ends_what_it_started() {
    succeeds_with_groups(
        r#"
opened
"$HOPLITE" up --block-only
kill -KILL "$portal"
until_true hole_closed
"$HOPLITE" up --block-only
closed
"$HOPLITE" down
state > after; diff before after
"#,
    );
}

#[test]
fn down_ends_what_a_portal_started_be_it_killed_or_open() {
    succeeds_with_groups(
        r#"
opened
kill -KILL "$portal"
until_true hole_closed
"$HOPLITE" down
closed
rm inside
opened
"$HOPLITE" down
if wait "$portal"; then exit 9; fi
closed
"#,
    );
}

#[test]
fn an_open_portal_stays_when_the_device_comes_up_and_a_second_one_is_refused() {
    succeeds_with_groups(
        r#"
opened
if "$HOPLITE" portal -- true 2> why; then exit 9; fi
grep -q "passes already" why
"$HOPLITE" up --block-only
[ -e "/proc/$program" ]
nft list table inet hoplite-portal > /dev/null
if nft delete table inet hoplite-portal; then exit 9; fi
"$HOPLITE" down
"#,
    );
}
