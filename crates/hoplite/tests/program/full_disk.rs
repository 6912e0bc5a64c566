//! `up`, `down` and the block on a disk without room: refused or done, never half, and nothing leaves. The machine is that of [`super::device`].

use super::{block::nothing_leaves, device::succeeds};

/// `small`: a directory with 16 pages. `fill` leaves none of them, or as many as it is told; `room` gives all back.
const SMALL: &str = r#"
small() { mkdir -p "$1"; mount -t tmpfs -o mode=755,size=64k${2:-} tmpfs "$1"; }
fill() {
  cat /dev/zero > "$1/filler" 2> /dev/null || true
  truncate -s $(($(stat -c %s "$1/filler") / 4096 * 4096 - ${2:-0} * 4096)) "$1/filler"
}
room() { rm "$1/filler"; }
"#;

#[test]
fn where_resolv_conf_cannot_be_written_up_fails_and_nothing_of_it_is_left() {
    succeeds(&format!(
        r#"{SMALL}
relay
small /etc
echo 'nameserver 192.0.2.53' > /etc/resolv.conf
fill /etc
state > then
if up 2> said; then exit 1; fi
grep -q 'changing /etc/resolv.conf: .*make room on the disk' said
state | diff then -
room /etc
up
"$HOPLITE" down
state | diff before -
"#
    ));
}

#[test]
fn a_mounted_resolv_conf_is_given_back_whole_when_there_is_room_again() {
    succeeds(&format!(
        r#"{SMALL}
relay
small etc
{{ echo 'nameserver 192.0.2.53'; seq -f '# line %g of a long file' 600; }} > etc/resolv.conf
cp etc/resolv.conf old
mount --bind etc/resolv.conf /etc/resolv.conf
up
grep -q '^# hoplite' /etc/resolv.conf
fill etc
if "$HOPLITE" down 2> said; then exit 1; fi
grep -q 'make room on the disk' said
grep -q '^# hoplite' /etc/resolv.conf
if "$HOPLITE" down; then exit 1; fi
room etc
"$HOPLITE" down
cmp old /etc/resolv.conf
"#
    ));
}

#[test]
fn names_are_taken_again_on_a_full_disk_and_when_the_directory_can_be_written_again() {
    succeeds(&format!(
        r#"{SMALL}
relay
small /etc
echo 'nameserver 192.0.2.53' > /etc/resolv.conf
up
fill /etc
# As a program does that writes the file itself: what it writes fits where ours was.
echo 'nameserver 192.0.2.54' > /etc/resolv.conf
until_true grep -q '^# hoplite' /etc/resolv.conf
mkdir etc
mount --bind /etc etc
mount --bind /etc /etc
mount -o remount,bind,ro /etc
echo 'nameserver 192.0.2.55' > etc/resolv.conf
sleep 1
grep -q 192.0.2.55 /etc/resolv.conf
umount /etc
until_true grep -q '^# hoplite' /etc/resolv.conf
"$HOPLITE" down
grep -q 192.0.2.55 /etc/resolv.conf
"#
    ));
}

#[test]
fn what_cannot_be_written_of_the_firewall_makes_nobody_make_it_again_and_again() {
    succeeds(&format!(
        r#"{SMALL}
relay
small /run/hoplite
fill /run/hoplite 1
"$HOPLITE" up --foreground --config client.toml > said 2> log &
until_true grep -q 'is up' said
sleep 2
[ "$(grep -c 'made again' log)" -le 1 ]
if "$HOPLITE" status --json | grep -q '"firewall":"changed"'; then exit 1; fi
nft flush ruleset
until_true nft list table inet hoplite > /dev/null
kill -9 "$(cat /run/hoplite/lock || pgrep -f 'up --foreground')"
until_true is_blocked
if says partly; then exit 1; fi
"$HOPLITE" down
room /run/hoplite
state | diff before -
"#
    ));
}

#[test]
fn the_block_holds_and_is_opened_where_nothing_can_be_written() {
    nothing_leaves(&format!(
        r#"{SMALL}
relay
small /run/hoplite
fill /run/hoplite
"$HOPLITE" up --block-only --foreground > /dev/full &
until_true nft list table inet hoplite-kept > /dev/null
left > /dev/null
talking
for n in 1 2 3 4 5; do
  rounds
  nft flush ruleset
  until_true nft list table inet hoplite > /dev/null
done
rounds
nothing_left "flush ruleset"
silence
up
says up
"$HOPLITE" down
state | diff before -
"#
    ));
}

#[test]
fn where_the_lock_finds_no_room_what_shall_stay_blocked_is_blocked_and_down_opens() {
    succeeds(&format!(
        r#"{SMALL}
relay
small /run/hoplite ,nr_inodes=1
if up --keep-block 2> said; then exit 1; fi
grep -q 'everything stays blocked' said
is_blocked
if "$HOPLITE" down 2> said; then exit 1; fi
grep -q 'No space left' said
state | diff before -
if up 2> said; then exit 1; fi
state | diff before -
"#
    ));
}
