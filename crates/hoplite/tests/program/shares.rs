//! Programs of one machine that share the places of `up`, for real: one that keeps them all busy, and those of another user beside it.
//! The machine is that of [`super::device`]; relay and target lie in a namespace of their own at the link's far end.

use super::device::succeeds;

/// `target` answers what it is sent byte by byte at port 7,
/// and at port 80 at once, or for `/wait` when the file `go` is there. `hog` keeps 900 connections to port 7 busy, and opens one for each
/// that is reset.
const SHARED: &str = r#"
patiently() { n=0; until "$@"; do n=$((n + 1)); [ "$n" -lt 1200 ]; sleep 0.1; done; }
ulimit -n 8192
mkdir -p /run/netns
ip netns add world
ip link set far0 netns world
in_world() { ip netns exec world "$@"; }
in_world ip link set lo up
in_world ip address add 192.0.2.254/24 dev far0
in_world ip address add 203.0.113.5/32 dev lo
in_world ip link set far0 up
patiently ping -c 1 -W 1 203.0.113.5 > /dev/null
"$HOPLITE" keygen --out identity > keygen.txt
grep -o 'sha256:[^"[:space:]]*' keygen.txt | head -n 1 > pin
printf 'listen = ["192.0.2.254:4433"]\nidentity = "identity"\n[auth]\nopen = true\n[egress]\nallow = ["203.0.113.5"]\n' > relay.toml
in_world "$HOPLITE" relay --config relay.toml 2> relay.log &
config 192.0.2.254:4433 > client.toml
printf '[flows]\ntcp = 600\n' >> client.toml

cat > target.py <<'END'
import asyncio, os
async def echo(reader, writer):
    try:
        while bytes := await reader.read(64):
            writer.write(bytes)
            await writer.drain()
    except OSError:
        pass
    writer.close()
async def answer(reader, writer):
    try:
        request = await reader.readuntil(b"\r\n\r\n")
        open("asked", "a").write(request.split()[1].decode() + "\n")
        while b"/wait" in request and not os.path.exists("go"):
            await asyncio.sleep(0.05)
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 6\r\n\r\nserved")
        await writer.drain()
    except (OSError, asyncio.IncompleteReadError):
        pass
    writer.close()
async def main():
    await asyncio.start_server(echo, "203.0.113.5", 7, backlog=1000)
    await asyncio.start_server(answer, "203.0.113.5", 80)
    open("target-is-up", "w").close()
    await asyncio.Event().wait()
asyncio.run(main())
END
in_world python3 target.py &
patiently test -e target-is-up

cat > hog.py <<'END'
import asyncio
opening = asyncio.Semaphore(50)
async def keep_busy():
    while True:
        try:
            async with opening:
                reader, writer = await asyncio.open_connection("203.0.113.5", 7)
        except OSError:
            continue
        try:
            while True:
                writer.write(b"x")
                if not await reader.read(64):
                    break
                await asyncio.sleep(0.5)
        except OSError:
            pass
        writer.close()
async def main():
    await asyncio.gather(*(keep_busy() for _ in range(900)))
asyncio.run(main())
END
ask() { quiet curl -s --noproxy '*' --max-time "$1" "http://203.0.113.5/$2"; }
# How often the hog has lost one of its places.
lost() { "$HOPLITE" status --json | grep -o '"tcp_rested":[0-9]*' | cut -d: -f2; }
has_lost() { [ "$(lost)" -ge "$1" ]; }
"#;

/// What both tests do once `hog` and `quiet` are there, each of which runs a program.
const TOGETHER: &str = r#"
up
(ask 300 wait > waited; echo done >> waited) &
patiently grep -qs wait asked
hog python3 hog.py 2> hog.log &
hog=$!
# Each place was looked at many times by now.
patiently has_lost 300
for n in 1 2 3 4 5; do [ "$(ask 60 "$n")" = served ]; done
patiently has_lost $(($(lost) + 100))
touch go
patiently grep -qs done waited
grep -q served waited
kill "$hog"
"$HOPLITE" down
"#;

#[test]
fn a_program_that_keeps_all_places_busy_takes_none_from_another_user() {
    succeeds(&format!(
        r#"
grep -q ' 4294967295$' /proc/self/uid_map || exit 0
{SHARED}
hog() {{ exec "$@"; }}
quiet() {{ setpriv --reuid 1000 --regid 1000 --clear-groups "$@"; }}
{TOGETHER}
"#
    ));
}

#[test]
fn a_program_that_keeps_all_places_busy_takes_none_from_another_of_its_user_in_another_control_group()
 {
    succeeds(&format!(
        r#"
mkdir "$TEMP/groups"
mount -t cgroup2 none "$TEMP/groups" || exit 0
group=$(mktemp -d "$TEMP/groups/hoplite-test-XXXXXX") || exit 0
leave() {{ echo 1 > "$group/cgroup.kill"; n=0; until rmdir "$group" 2> /dev/null; do n=$((n + 1)); [ "$n" -lt 100 ]; sleep 0.1; done; }}
trap leave EXIT
{SHARED}
hog() {{ exec sh -c 'echo $$ > "$0/cgroup.procs"; exec "$@"' "$group" "$@"; }}
quiet() {{ "$@"; }}
{TOGETHER}
"#
    ));
}
