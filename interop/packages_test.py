"""What `packaging/package.py` makes, in a clean Debian root: installed, used, upgraded under traffic, and removed. Needs root, and the root itself as a tar
(`.ci/run packages` makes it once, of this machine's mirror; HOPLITE_DEBIAN names another): nothing is fetched here.

Parts by name: made (twice, from two directories), image, roots (deb, rpm and Arch's package, each in a root where nothing runs), machine (the deb under a
systemd that is PID 1, with a capture of the uplink).
"""

import gzip
import hashlib
import json
import os
import pathlib
import re
import shutil
import signal
import stat
import subprocess
import sys
import time

from common import HERE, HOPLITE, Checks, Lab, Missing, Process, wait_for
from device import Watch
from netns import Host
from units_test import BOOT, SIZE, Machine, Session, UnitsLab, device_config, usable

ROOT = HERE.parent
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "hoplite-ci"
DEBIAN = pathlib.Path(os.environ.get("HOPLITE_DEBIAN", CACHE / "debian-2.tar"))
STATIC = pathlib.Path(os.environ.get("HOPLITE_STATIC", ROOT / "target/package/x86_64-unknown-linux-musl/release"))
UNITS = ("hoplite-relay", "hoplite-block", "hoplite-device", "hoplite-monitor", "hoplite-monitor-server")
# By systemd 252; less is better. The device and the block set up the network as root, with some of its rights.
EXPOSED = {"hoplite-relay": 1.7, "hoplite-block": 3.3, "hoplite-device": 3.4, "hoplite-monitor": 5.4, "hoplite-monitor-server": 7.2}
OLD = "0.1.9"
# Whoever installs anything leaves these behind: package managers, systemd, the backups of passwd(5).
OF_OTHERS = re.compile(r"/(proc|sys|dev|run|tmp|srv|var/(lib/(dpkg|apt|systemd|rpm|pacman)|log|cache|tmp))(/|$)|/etc/(\.pwd\.lock|[a-z]+-)$|/(usr/)?lib/sysimage(/|$)|/root(/|$)")


def package(out, *more, root=ROOT, **env):
    """Runs it; what it made, by their names."""
    command = [sys.executable, root / "packaging/package.py", "--programs", HOPLITE.parent, "--out", out, "--level", "1", *more]
    subprocess.run(list(map(str, command)), check=True, stdout=subprocess.DEVNULL, env={**os.environ, "SOURCE_DATE_EPOCH": "1700000000", **env})
    return {path.name: path for path in pathlib.Path(out).iterdir()}


def only(made, ending, lab=False):
    return next(path for name, path in made.items() if name.endswith(ending) and ("-lab" in name) == lab)


# --- what is made --------------------------------------------------------------------------------------------------------------------------------


def made(checks, folder):
    """The same again from another directory, by somebody with other habits; signed by a key of theirs."""
    first = package(folder / "first", "deb", "rpm", "arch")
    elsewhere = folder / "another/directory/of/another/depth"
    left = shutil.ignore_patterns("target", ".git", "__pycache__", "results")
    shutil.copytree(ROOT, elsewhere, ignore=left, symlinks=True)
    keys = folder / "keys"
    keys.mkdir(mode=0o700)
    gpg = ["gpg", "--homedir", str(keys), "--batch", "--quiet"]
    subprocess.run([*gpg, "--passphrase", "", "--quick-generate-key", "operator@example.org", "default", "default", "never"], check=True, capture_output=True)
    sign = " ".join([*gpg, "--armor", "--detach-sign"])
    before = os.umask(0o077)
    try:
        second = package(folder / "second", "deb", "rpm", "arch", "--sign", sign, root=elsewhere, TZ="Asia/Kolkata", LC_ALL="C")
    finally:
        os.umask(before)
    differ = [name for name, path in first.items() if path.read_bytes() != second[name].read_bytes()]
    checks.check(f"{len(first)} files are the same, bit by bit, from another directory", len(first) == 9 and not differ, differ or list(first))
    sums = subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=folder / "first", capture_output=True, text=True, check=False)
    checks.check("the checksums are right", sums.returncode == 0, sums.stdout)
    verified = subprocess.run([*gpg, "--verify", folder / "second/SHA256SUMS.asc", folder / "second/SHA256SUMS"], capture_output=True, text=True, check=False)
    checks.check("their signature is the operator's", verified.returncode == 0, verified.stderr)
    forged = subprocess.run([*gpg, "--verify", folder / "second/SHA256SUMS.asc", only(second, ".cdx.json", lab=True)], capture_output=True, check=False)
    checks.check("and of nothing else", forged.returncode != 0)
    bill = json.loads(next(path for name, path in first.items() if re.fullmatch(r"hoplite-[0-9.]+cdx\.json", name)).read_text())
    names = {part["name"] for part in bill["components"]}
    checks.check(f"the SBOM has what is compiled in ({len(names)}), and not what tests need", {"quinn-proto", "rustls", "tokio"} <= names and not {"proptest", "hoplite-testing"} & names)
    bare = [part["name"] for part in bill["components"] if not part["name"].startswith("hoplite") and not ("hashes" in part and "licenses" in part)]
    checks.check("each crate of it with licence and digest", not bare, bare)
    return first


# --- images --------------------------------------------------------------------------------------------------------------------------------------


# What an engine does with --cap-drop all --cap-add NET_BIND_SERVICE: the root, the bounding set, the user, the program.
ENGINE = """
import ctypes, os, sys
root, user, group, *command = sys.argv[1:]
os.chroot(root)
os.chdir("/")
PR_CAPBSET_DROP, CAP_NET_BIND_SERVICE, CAP_LAST = 24, 10, 63
for right in range(CAP_LAST + 1):
    if right != CAP_NET_BIND_SERVICE:
        ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, right, 0, 0, 0)
os.setgroups([])
os.setgid(int(group))
os.setuid(int(user))
os.execv(command[0], command)
"""


def image(checks, folder):
    """The image unpacked as an engine does, its entry point run as its user, alone in namespaces."""
    if not (STATIC / "hoplite").exists():
        return checks.skip("tarball and image", f"no static programs in {STATIC}: `.ci/run static` builds them")
    files = package(folder / "static", "tarball", "image", "--static", STATIC)
    layout, root = folder / "layout", folder / "image"
    unpack(only(files, ".oci.tar"), layout)
    wrong = [path.name for path in (layout / "blobs/sha256").iterdir() if hashlib.sha256(path.read_bytes()).hexdigest() != path.name]
    checks.check("image: each blob has the digest that it is called by", not wrong, wrong)

    def blob(told):
        path = layout / "blobs" / told["digest"].replace(":", "/")
        return path if path.stat().st_size == told["size"] else None

    manifest = json.loads(blob(json.loads((layout / "index.json").read_text())["manifests"][0]).read_text())
    config = json.loads(blob(manifest["config"]).read_text())
    unpack(blob(manifest["layers"][0]), root)
    user, entry = config["config"]["User"], config["config"]["Entrypoint"]
    plain = gzip.decompress(blob(manifest["layers"][0]).read_bytes())
    checks.check("image: the layer is what the configuration says", config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(plain).hexdigest()}"])
    checks.check(f"image: its user is not root ({user})", all(int(part) > 0 for part in user.split(":")))
    # What the operator and the engine bring.
    subprocess.run([STATIC / "hoplite", "init", "127.0.0.1", "--name", "relay", "--role", "egress", "--out", root / "etc/hoplite"], check=True, capture_output=True)
    subprocess.run(["chown", "-R", user, root / "etc/hoplite"], check=True)
    (root / "etc/resolv.conf").write_text("nameserver 127.0.0.1\n")
    alone = ["unshare", "--net", "--pid", "--fork", "--kill-child", "sh", "-euc", 'ip link set lo up; exec "$@"', "sh", sys.executable, "-c", ENGINE, root, *user.split(":")]
    told = subprocess.run([*alone, *entry, "--version"], capture_output=True, text=True, check=False)
    checks.check(f"image: {told.stdout.strip()}", told.returncode == 0 and told.stdout.startswith("hoplite "), told.stderr)
    relay = Process("image", [*alone, *entry, *config["config"]["Cmd"]], folder)
    try:
        wait_for("the relay of the image", lambda: " is up" in relay.text() or not relay.alive())
        pid = descendants(relay.child.pid)[-1]
        status = pathlib.Path(f"/proc/{pid}/status").read_text() if pid else ""
        checks.check("image: its relay serves port 443, as that user and with no right but that", relay.alive() and f"Uid:\t{user.split(':')[0]}\t" in status and "CapEff:\t0000000000000400" in status,
                     relay.text() + status)
    finally:
        relay.stop(signal.SIGKILL)
    top = folder / "local"
    unpack(only(files, ".tar.gz"), top)
    for program in ("hoplite", "hoplite-lab"):
        told = subprocess.run([next(top.iterdir()) / "bin" / program, "--version"], capture_output=True, text=True, env={}, check=False)
        checks.check(f"tarball: {told.stdout.strip()}, which needs no library", told.returncode == 0 and told.stdout.startswith(program), told.stderr)
    return None


def unpack(archive, place):
    place.mkdir()
    subprocess.run(["tar", "--xattrs", "--xattrs-include=security.capability", "-xpf", archive, "-C", place], check=True)


def descendants(pid):
    """A process and those below it, by first children, the youngest last."""
    found = [pid]
    while below := pathlib.Path(f"/proc/{found[-1]}/task/{found[-1]}/children").read_text().split():
        found.append(int(below[0]))
    return found


# --- roots where nothing runs ---------------------------------------------------------------------------------------------------------------------


class CleanRoot:
    """Debian, and nothing else; commands run in it with a network of their own."""

    def __init__(self, place):
        self.place = pathlib.Path(place)
        self.place.mkdir(parents=True)
        subprocess.run(["tar", "--numeric-owner", "-xpf", DEBIAN, "-C", self.place], check=True)
        (self.place / "srv").mkdir(exist_ok=True)

    def sh(self, script, *words):
        """In namespaces; `$root` is the root, for what is run from outside of it, and `in_root` runs inside. /run is empty, as of a machine that is off."""
        head = 'root=$0; for it in dev proc; do mount --rbind /$it "$root/$it"; done; mount -t tmpfs none "$root/run"; in_root() { chroot "$root" "$@"; }\n'
        command = ["unshare", "--mount", "--net", "--pid", "--fork", "sh", "-uc", head + script, self.place, *words]
        env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8", "HOME": "/root"}
        return subprocess.run(list(map(str, command)), capture_output=True, text=True, env=env, check=False)

    def listing(self):
        return listing(self.place)


def listing(root):
    """What is in a root that somebody could miss: kind, mode, owner, and the contents of /etc."""
    found = {}
    for folder, folders, files in os.walk(root):
        below = "/" + os.path.relpath(folder, root).removeprefix(".")
        folders[:] = [name for name in folders if not OF_OTHERS.search(os.path.join(below, name))]
        for name in [*folders, *files]:
            path = os.path.join(below, name)
            if OF_OTHERS.search(path):
                continue
            full = os.path.join(folder, name)
            told = os.lstat(full)
            content = hashlib.sha256(pathlib.Path(full).read_bytes()).hexdigest() if path.startswith("/etc/") and stat.S_ISREG(told.st_mode) else ""
            found[path] = (stat.filemode(told.st_mode), told.st_uid, told.st_gid, content)
    return found


def differences(before, after):
    return sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))


MANAGERS = {
    # What it is called by, how both packages come into a root, and how they go for good.
    "deb": ("_amd64.deb", "in_root apt-get install -y -q {files}", "in_root dpkg --purge hoplite hoplite-lab"),
    "rpm": (".rpm", 'rpm --root "$root" --nodeps -i {files}', 'rpm --root "$root" -e hoplite hoplite-lab'),
    "arch": (".pkg.tar.zst", 'printf "[options]\\nArchitecture = auto\\nSigLevel = Never\\n" > "$root/srv/pacman.conf"; mkdir -p "$root/var/lib/pacman"; '
             'pacman --root "$root" --config "$root/srv/pacman.conf" --noconfirm -Udd {outside}', 'pacman --root "$root" --config "$root/srv/pacman.conf" --noconfirm -Rdd hoplite hoplite-lab'),
}


def roots(checks, folder, files):
    """Each package in a root of its own: what it puts there, and that it goes."""
    for kind, (ending, comes, goes) in MANAGERS.items():
        root = CleanRoot(folder / f"root-{kind}")
        before = root.listing()
        named = []
        for lab in (False, True):
            path = only(files, ending, lab)
            shutil.copy(path, root.place / "srv")
            named.append(path.name)
        inside = " ".join(f"/srv/{name}" for name in named)
        outside = " ".join(f'"$root/srv/{name}"' for name in named)
        done = root.sh(comes.format(files=outside if kind == "rpm" else inside, outside=outside))
        checks.check(f"{kind}: it installs", done.returncode == 0, done.stdout + done.stderr)
        present(checks, kind, root)
        if kind == "deb":
            units(checks, root)
            documents(checks, root.place)
        if kind == "deb":
            without = 'in_root mkdir /run/hoplite; setpriv --bounding-set=-net_admin --inh-caps=-net_admin chroot "$root" dpkg --purge hoplite && exit 7; in_root hoplite --version'
            done = root.sh(without)
            checks.check("deb: it stays where it cannot open what may be blocked, and says so", done.returncode == 0 and "may still be blocked" in done.stderr, done.stdout + done.stderr)
        # Somebody else's block, in the network that this root happens to be worked on in.
        done = root.sh(f'nft add table inet hoplite || exit 9; {goes} || exit 8; nft list table inet hoplite')
        checks.check(f"{kind}: it goes", done.returncode not in (8, 9), done.stdout + done.stderr)
        checks.check(f"{kind}: and opens no block of the machine that this root is an image on", "table inet hoplite" in done.stdout, done.stdout + done.stderr)
        left = differences(before, root.listing())
        if kind != "deb":
            # There is no purge: the group and the user of files that may be there stay.
            left = [path for path in left if path not in {"/etc/group", "/etc/gshadow", "/etc/passwd", "/etc/shadow"}]
        checks.check(f"{kind}: nothing is left", not left, left)
        shutil.rmtree(root.place)


def present(checks, kind, root):
    for program in ("hoplite", "hoplite-lab"):
        told = root.sh(f"in_root {program} --version")
        checks.check(f"{kind}: {told.stdout.strip()}", told.returncode == 0 and told.stdout.startswith(f"{program} "), told.stderr)
    group = dict(line.split(":")[::2] for line in (root.place / "etc/group").read_text().splitlines())
    people = {line.split(":")[0] for line in (root.place / "etc/passwd").read_text().splitlines()}
    etc = (root.place / "etc/hoplite").stat()
    checks.check(f"{kind}: /etc/hoplite is open to the group hoplite alone", stat.S_IMODE(etc.st_mode) == 0o750 and etc.st_uid == 0 and str(etc.st_gid) == group.get("hoplite"), (oct(etc.st_mode), etc.st_gid, group))
    checks.check(f"{kind}: the monitor's user is there", "hoplite-monitor" in people, people)
    enabled = [str(path) for path in (root.place / "etc/systemd/system").rglob("hoplite*")]
    checks.check(f"{kind}: nothing starts before somebody wants it", not enabled, enabled)


def units(checks, root):
    """What systemd says of the units where their programs are."""
    names = [f"{unit}.service" for unit in UNITS]
    done = root.sh(f"in_root systemd-analyze verify --man=no {' '.join(names)}")
    said = [line for line in done.stderr.splitlines() if "hoplite" in line]
    checks.check("systemd-analyze verify finds nothing wrong", done.returncode == 0 and not said, done.stderr)
    for unit in UNITS:
        done = root.sh(f"in_root systemd-analyze security --no-pager --offline=true {unit}.service")
        rated = re.search(r"Overall exposure level for \S+: ([0-9.]+)", done.stdout)
        score = float(rated[1]) if rated else 10
        checks.check(f"systemd-analyze security: {unit} {score}", score <= EXPOSED[unit], done.stdout[-300:] + done.stderr)


def documents(checks, place):
    """Man pages and completions, read by those who read them."""
    pages = sorted((place / "usr/share/man/man1").glob("hoplite*.1"))
    wrong = []
    for page in pages:
        read = subprocess.run(["man", "--warnings", "-E", "UTF-8", "-l", page], capture_output=True, text=True, env={**os.environ, "MANWIDTH": "100", "LC_ALL": "C.UTF-8", "PAGER": "cat"}, check=False)
        if read.returncode or read.stderr or not {"NAME", "SYNOPSIS", "OPTIONS"} <= set(read.stdout.split()):
            wrong.append((page.name, read.stderr))
    names = {page.name for page in pages}
    checks.check(f"{len(pages)} man pages render without a warning", {"hoplite.1", "hoplite-relay.1", "hoplite-lab.1", "hoplite-lab-run.1"} <= names and not wrong, wrong or names)
    # "A line that was begun" and what each shell offers for it.
    bash = 'source "$0"; COMP_WORDS=("$1" "$2"); COMP_CWORD=1; $(complete -p "$1" | sed "s/.*-F \\([^ ]*\\).*/\\1/") "$1" "$2" "$1"; echo "${COMPREPLY[@]}"'
    zsh = 'fpath=("$1" $fpath); autoload -Uz compinit; compinit -u -D; print -r -- "$_comps[$2]"; autoload -Uz +X "$_comps[$2]" && whence -f "$_comps[$2]"'
    for program, word, wanted in (("hoplite", "rel", "relay"), ("hoplite-lab", "cal", "calibrate")):
        share = place / "usr/share"
        told = {"bash": ["bash", "-c", bash, share / "bash-completion/completions" / program, program, word],
                "zsh": ["zsh", "-f", "-c", zsh, "zsh", share / "zsh/vendor-completions", program],
                "fish": ["fish", "--no-config", "-c", f'source {share}/fish/vendor_completions.d/{program}.fish; complete -C "{program} {word}"']}
        for shell, command in told.items():
            if not shutil.which(shell):
                checks.skip(f"{shell} completes {program}", Missing(f"{shell} is not installed"))
                continue
            done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
            checks.check(f"{shell} completes {program}", wanted in done.stdout and not done.stderr, done.stdout[-500:] + done.stderr)


# --- a machine -----------------------------------------------------------------------------------------------------------------------------------

# A root of its own that stays; what a machine forgets when it is off is in memory.
OWN = """
hostname machine
root="$PLACE/root"
mount --bind "$root" "$root"
for place in run tmp dev mnt; do mount -t tmpfs -o mode=755 none "$root/$place"; done
chmod 1777 "$root/tmp"
"""


class Installed(Machine):
    """A clean Debian with a systemd of its own."""

    inside = OWN + BOOT

    def make_root(self, number):
        self.root = CleanRoot(self.place / "root").place
        (self.root / "etc/resolv.conf").unlink(missing_ok=True)
        # As systemd-tmpfiles makes it at boot, which is left out here.
        (self.root / "var/lib/private").mkdir(mode=0o700, exist_ok=True)
        self.settle(self.root / "etc", number)

    def call(self, *command, timeout=150):
        env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive", "HOME": "/root"}
        return subprocess.run([*self.prefix(), "env", "-i", *(f"{key}={value}" for key, value in env.items()), *map(str, command)], capture_output=True, timeout=timeout)

    def apt(self, *words):
        done = self.call("apt-get", "-y", "-q", *words)
        return done.returncode, (done.stdout + done.stderr).decode()

    def inode(self, unit):
        """Of the program that a unit's process runs."""
        pid = self.show(unit, "MainPID")
        return os.stat(f"/proc/{self.pid}/root/proc/{pid}/exe").st_ino if pid != "0" else None


class PackagesLab(UnitsLab):
    """A device with a Debian of its own; a relay and a target without."""

    def host(self, name, number):
        return (Installed if name == "client" else Host)(self, name, number)


class Upgrade(Session):
    """What units_test looks at, of a machine with a package."""

    def both(self, name, before):
        """The units run the new program."""
        device = self.device

        def renewed():
            return all(device.systemctl("is-active", unit) == "active" and device.inode(unit) not in (None, before[unit]) for unit in before)

        try:
            wait_for("the new program", renewed, 60)
        except TimeoutError:
            pass
        self.checks.check(f"{name}: {', '.join(before)} run the new program", renewed(), "".join(map(device.log, before)))


def machine(checks, lab, old, new):
    """Installed, used, upgraded under traffic, purged."""
    device = lab.client
    for label, path in (("old", old), ("new", new)):
        shutil.copy(path, device.root / f"srv/{label}.deb")
    session = Upgrade(checks, lab)
    device.boot()
    wait_for("systemd", lambda: device.systemctl("is-system-running") in ("running", "degraded"), 60)
    before = listing(device.root)
    code, said = device.apt("install", "/srv/old.deb")
    checks.check("an older version installs", code == 0 and OLD in device.call("dpkg", "-s", "hoplite").stdout.decode(), said)
    states = {unit: device.systemctl("is-enabled", f"{unit}.service") for unit in UNITS[:3]}
    checks.check("its units are known, and wait", set(states.values()) == {"disabled"}, states)
    relay(checks, device)
    checks.check("before: programs reach the target", device.fetches(f"http://{lab.target.v4}/bytes/{SIZE}"))
    etc = device.root / "etc/hoplite"
    (etc / "client.toml").write_text(device_config(lab))
    device.systemctl("enable", "--now", "hoplite-block", "hoplite-device")
    session.up("the device, as the docs have it", 30)
    session.watch.since()
    upgrade(checks, session)
    wrong_file(checks, session, etc)
    removed(checks, session)
    purged(checks, session, before)


def relay(checks, device):
    """A relay in five minutes, as operating.md has it."""
    script = "hoplite init machine.test --role egress --out /etc/hoplite && chown -R root:hoplite /etc/hoplite && chmod -R u=rwX,g=rX,o= /etc/hoplite && systemctl start hoplite-relay"
    done = device.call("sh", "-euc", script)
    serves = device.call("bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/443").returncode == 0
    checks.check("a relay of the package serves when `systemctl start` returns", done.returncode == 0 and serves, done.stderr.decode() + device.log("hoplite-relay"))


def upgrade(checks, session):
    """The new version over the running one: nothing leaves but for the relay, and the firewall stands throughout."""
    device = session.device
    before = {unit: device.inode(unit) for unit in ("hoplite-block", "hoplite-device", "hoplite-relay")}
    looker = 'while [ ! -e /tmp/enough ]; do nft list table inet hoplite >/dev/null 2>&1 || echo gone; done'
    look = device.run("looker", ["sh", "-c", looker])
    code, said = device.apt("install", "/srv/new.deb")
    checks.check("the new version installs over the running one", code == 0 and OLD not in device.call("dpkg", "-s", "hoplite").stdout.decode(), said)
    session.both("upgrade", before)
    session.up("upgrade", 60)
    (pathlib.Path(f"/proc/{device.pid}/root/tmp") / "enough").touch()
    look.child.wait(10)
    checks.check("upgrade: the firewall's table stood all the time", not look.text(), look.text()[:200])
    session.firewalled("upgrade")
    session.state("upgrade")


def wrong_file(checks, session, etc):
    """The same again while a file is wrong: the upgrade goes on, and blocks."""
    device, right = session.device, (etc / "client.toml").read_text()
    (etc / "client.toml").write_text(right + "nonsense = 7\n")
    before = device.show("hoplite-block", "MainPID")

    def restarted():
        block = device.show("hoplite-block", "MainPID") not in (before, "0") and device.systemctl("is-active", "hoplite-block") == "active"
        return block and device.systemctl("is-active", "hoplite-device") != "active"

    code, said = device.apt("install", "--reinstall", "/srv/new.deb")
    checks.check("a wrong file makes no upgrade fail", code == 0, said)
    try:
        wait_for("the new block, without the device", restarted, 30)
    except TimeoutError as late:
        checks.check("a wrong file: the block's process is there", False, f"{late}: {device.log('hoplite-block')}")
    session.blocked("upgrade with a wrong file")
    session.state("upgrade with a wrong file")
    (etc / "client.toml").write_text(right)
    device.systemctl("reload", "hoplite-block")
    device.systemctl("restart", "hoplite-device")
    session.up("the file put right", 30)


def removed(checks, session):
    """Removed while its units run, and installed again: the administrator's files have stayed."""
    device, lab = session.device, session.lab
    code, said = device.apt("remove", "hoplite")
    checks.check("it is removed while it runs", code == 0, said)
    checks.check("removed: programs reach the target by themselves", device.fetches(f"http://{lab.target.v4}/bytes/{SIZE}"))
    code, said = device.apt("install", "/srv/new.deb")
    checks.check("removed: it is installed again, and its files are there", code == 0 and (device.root / "etc/hoplite/client.toml").exists(), said)
    session.watch.since()
    done = device.call("hoplite", "up", "--config", "/etc/hoplite/client.toml")
    checks.check("`hoplite up` by hand", done.returncode == 0 and device.fetches(f"http://target.test/bytes/{SIZE}"), done.stderr.decode())
    device.call("sh", "-c", f"kill -KILL {session.status().get('pid')}")
    session.blocked("by hand, and killed")


def purged(checks, session, before):
    """Removed for good: open, and as it was."""
    device, lab = session.device, session.lab
    code, said = device.apt("purge", "hoplite")
    checks.check("it is purged", code == 0, said)
    checks.check("purge: programs reach the target by themselves", device.fetches(f"http://{lab.target.v4}/bytes/{SIZE}"))
    left = device.call("sh", "-c", "nft list tables | grep hoplite; ip rule | grep 2672; ip -6 rule | grep 2672; ip link show hoplite0 2>/dev/null; ls -d /run/hoplite* 2>/dev/null").stdout.decode()
    checks.check("purge: nothing of it is in the kernel or in /run", not left, left)
    running = device.call("sh", "-c", "cat /proc/[0-9]*/comm").stdout.decode().split()
    checks.check("purge: no process of it is left", "hoplite" not in running, running)
    known = device.call("systemctl", "list-unit-files", "hoplite*", "--no-legend").stdout.decode()
    checks.check("purge: systemd knows none of its units", not known.strip(), known)
    left = differences(before, listing(device.root))
    checks.check("purge: no file is left, and none is another", not left, left)


def main():
    checks = Checks("packages")
    why = usable()
    for tool in ("cargo", "rpmbuild", "pacman", "zstd", "strip", "gpg", "man", "apt-get"):
        why = why or (None if shutil.which(tool) else Missing(f"{tool} is not installed"))
    why = why or (None if DEBIAN.exists() else Missing(f"no clean Debian root at {DEBIAN}"))
    if why:
        checks.skip("packages", why)
        checks.done()
    wanted = sys.argv[1:] or ["made", "image", "roots", "machine"]
    with Lab() as scratch:
        folder = scratch.folder
        began = time.monotonic()

        def lap(part):
            nonlocal began
            print(f"     ({part}: {time.monotonic() - began:.0f} s)", flush=True)
            began = time.monotonic()

        files = made(checks, folder) if "made" in wanted else package(folder / "first", "deb", "rpm", "arch") if wanted != ["image"] else {}
        lap("made")
        if "image" in wanted:
            image(checks, folder)
            lap("image")
        if "roots" in wanted:
            roots(checks, folder, files)
            lap("roots")
        if "machine" in wanted:
            old = package(folder / "old", "deb", "--version", OLD)
            with PackagesLab() as lab:
                lab.start_targets()
                lab.start_relay(lab.relays[0])
                machine(checks, lab, only(old, ".deb"), only(files, ".deb"))
                if checks.failed:
                    lab.show_logs()
                lab.client.process.stop(signal.SIGKILL)
            lap("machine")
    checks.done()


if __name__ == "__main__":
    sys.exit(main())
