#!/usr/bin/env python3
"""Makes what people install: packages of Debian (deb), of Fedora (rpm) and of Arch (arch), a tarball and a container's image of static programs, with what is
in them (SBOM), whose licences, and their checksums.

    packaging/package.py [deb rpm arch tarball image]     all of them, when none is named

Two runs over the same programs, wherever they are, give the same bytes: times are SOURCE_DATE_EPOCH's or the commit's, owners are root, names are sorted. The
programs are built without the paths of this machine, so that they can be the same too. Needs cargo, strip (binutils), zstd, and rpmbuild for rpm; for tarball and image Rust's target
x86_64-unknown-linux-musl and musl-gcc. What a package puts where: docs/install.md.
"""

import argparse
import dataclasses
import datetime
import gzip
import hashlib
import io
import json
import os
import pathlib
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import uuid

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
FORMATS = ("deb", "rpm", "arch", "tarball", "image")
STATIC = ("tarball", "image")
LICENCE = "MIT OR Apache-2.0"
MACHINE = platform.machine()
DEBIAN = {"x86_64": "amd64", "aarch64": "arm64"}
# Whom the image's process is: nobody of the host, the same as in deploy/Containerfile.
IMAGE_USER = 10001
# The right to open ports below 1024, permitted and effective, as setcap(8) writes it (struct vfs_cap_data, revision 2).
NET_BIND_SERVICE = bytes.fromhex("01000002" "00040000" "00000000" "00000000" "00000000")


def fail(doing, why, remedy):
    sys.exit(f"package: {doing}: {why}: {remedy}")


def run(*command, **more):
    try:
        return subprocess.run([str(word) for word in command], check=True, stdout=subprocess.PIPE, **more).stdout
    except FileNotFoundError:
        return fail(f"running {command[0]}", "there is no such program", "install it; the head of this file names all")
    except subprocess.CalledProcessError as error:
        return fail(f"running {' '.join(map(str, command))}", f"exit {error.returncode}", "see above")


# --- what is in a package ------------------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Package:
    """Files by their absolute paths, and what a manager of packages is told of them."""

    name: str
    summary: str
    about: str
    units: list
    version: str
    epoch: int
    maintainer: str
    files: dict = dataclasses.field(default_factory=dict)  # path: bytes
    modes: dict = dataclasses.field(default_factory=dict)  # path: mode, where it is not 0o644 or a directory's 0o755
    config: list = dataclasses.field(default_factory=list)  # files that the administrator may change
    recommends: dict = dataclasses.field(default_factory=dict)  # package: what for

    def mode(self, path):
        return self.modes.get(path, 0o644 if path in self.files else 0o755)

    def directories(self):
        """All above its files, each before what is in it."""
        above = {str(parent) for path in [*self.files, *self.modes] for parent in pathlib.PurePosixPath(path).parents}
        return sorted((above | {path for path in self.modes if path not in self.files}) - {"/"})

    def own_directories(self):
        """Those that go with it, unless another package has them too."""
        return [path for path in self.directories() if re.search("/(hoplite|bash-completion|zsh|fish)", path)]

    def script(self):
        text = (HERE / "common.sh").read_text() + (HERE / f"{self.name}.sh").read_text()
        return f"name={self.name}\nunits='{' '.join(self.units)}'\n{text}"

    def glibc(self):
        """The oldest glibc that has every symbol that its programs ask for."""
        asked = {tuple(map(int, found.split(b"."))) for data in self.files.values() if data.startswith(b"\x7fELF") for found in re.findall(rb"\0GLIBC_(2\.\d+)", data)}
        return ".".join(map(str, max(asked, default=(2, 0))))


def stripped(program):
    """A program without what only debuggers read."""
    with tempfile.TemporaryDirectory() as place:
        run("strip", "--strip-all", "-o", f"{place}/program", program)
        return pathlib.Path(place, "program").read_bytes()


def shared(program):
    """Man pages and completions as the program writes them itself, by their places below share."""
    with tempfile.TemporaryDirectory() as place:
        run(program, "__share", place)
        found = sorted(path for path in pathlib.Path(place).rglob("*") if path.is_file())
        return {str(path.relative_to(place)): path.read_bytes() for path in found}


def texts(folder, pattern):
    return {path.name: path.read_bytes() for path in sorted((ROOT / folder).glob(pattern))}


def unit(path):
    """A unit of deploy/, which names the program where who installs by hand has put it."""
    return path.read_bytes().replace(b"/usr/local/bin/", b"/usr/bin/")


def hoplite(package):
    """The product: its empty directory for files, and all that there is to read."""
    files, doc = package.files, "/usr/share/doc/hoplite"
    files |= {f"{doc}/{each}": (ROOT / each).read_bytes() for each in ("README.md", "CHANGELOG.md")}
    files |= {f"{doc}/docs/{each}": data for each, data in texts("docs", "*.md").items()}
    files |= {f"{doc}/examples/{each}": data for each, data in texts("examples", "*.toml").items()}
    files["/etc/hoplite/environment"] = (HERE / "environment").read_bytes()
    package.config = ["/etc/hoplite/environment"]
    package.modes["/etc/hoplite"] = 0o750
    package.recommends = {"nftables": "hoplite up, the firewall of the whole device"}


def lab(package):
    """What measures: its scenarios and subjects are built in, and there to be read."""
    doc = "/usr/share/doc/hoplite-lab"
    for folder, source in (("scenarios", "scenarios"), ("subjects", "subjects"), ("examples", "examples/lab")):
        package.files |= {f"{doc}/{folder}/{each}": data for each, data in texts(source, "*.toml").items()}
    package.modes["/etc/hoplite-lab"] = 0o755
    package.recommends = {"hoplite": "its subject of that name", "iproute2": "addresses and routes of emulated hosts"}


# Name: what it is, in a line and in some; where its units are, and which; what else is in it.
KINDS = {
    "hoplite": ("traffic through several relays, so that nobody sees both ends",
                "Carries a device's traffic over several relays that different people run, over QUIC (MASQUE) and\n"
                "circuits in Tor's wire format, so that nobody on the way sees both who asks and what is asked.",
                "deploy", ["hoplite-relay.service", "hoplite-block.service", "hoplite-device.service"], hoplite),
    "hoplite-lab": ("emulated networks, subjects, workloads, and their figures",
                    "Puts Hoplite and its competitors on emulated networks, and measures what they carry and cost;\n"
                    "measures real networks for months.",
                    "deploy/lab", ["hoplite-monitor.service", "hoplite-monitor-server.service"], lab),
}


def installed(args, name, programs, parts):
    """The package of one program; `parts` is its inventory."""
    summary, about, folder, units, more = KINDS[name]
    package = Package(name, summary, about, units, args.version, args.epoch, args.maintainer)
    files, doc = package.files, f"/usr/share/doc/{name}"
    files[f"/usr/bin/{name}"] = stripped(programs / name)
    package.modes[f"/usr/bin/{name}"] = 0o755
    files |= {f"/usr/share/{place}": data for place, data in shared(programs / name).items()}
    files |= {f"/usr/lib/systemd/system/{each}": unit(ROOT / folder / each) for each in units}
    for kind, place in (("sysusers", "sysusers.d/{}.conf"), ("tmpfiles", "tmpfiles.d/{}.conf"), ("preset", "systemd/system-preset/90-{}.preset")):
        if (source := HERE / f"{name}.{kind}").exists():
            files[f"/usr/lib/{place.format(name)}"] = source.read_bytes()
    files[f"{doc}/copyright"] = f"Licence: {LICENCE}. The texts are beside, those of the crates that are compiled in too.\n".encode()
    files |= {f"{doc}/{each}": (ROOT / each).read_bytes() for each in ("LICENSE-MIT", "LICENSE-APACHE")}
    files |= {f"{doc}/{each}": data for each, data in parts.items()}
    more(package)
    return package


# --- what is in a program ------------------------------------------------------------------------------------------------------------------------


def inventory(args, name):
    """What is compiled into a program, as `cargo metadata` resolves it: CycloneDX 1.5, and the licences. What only builds or tests is not there."""
    resolved = args.metadata["resolve"]["nodes"]
    packages = {each["id"]: each for each in args.metadata["packages"]}
    needs = {node["id"]: sorted(dep["pkg"] for dep in node["deps"] if any(kind["kind"] is None for kind in dep["dep_kinds"])) for node in resolved}
    root = next(each["id"] for each in packages.values() if each["name"] == name)
    seen, todo = set(), [root]
    while todo:
        if (each := todo.pop()) not in seen:
            seen.add(each)
            todo += needs[each]
    locked = {(each["name"], each["version"]): each.get("checksum") for each in tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]}

    def ref(each):
        return f"pkg:cargo/{packages[each]['name']}@{packages[each]['version']}"

    def component(each):
        package = packages[each]
        told = {"type": "library", "bom-ref": ref(each), "name": package["name"], "version": package["version"], "purl": ref(each)}
        if package["license"]:
            told["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
        if checksum := locked.get((package["name"], package["version"])):
            told["hashes"] = [{"alg": "SHA-256", "content": checksum}]
        return told

    parts = sorted(seen - {root}, key=ref)
    bom = {"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
           "metadata": {"timestamp": utc(args.epoch), "component": component(root) | {"type": "application", "version": args.version}},
           "components": [component(each) for each in parts],
           "dependencies": [{"ref": ref(each), "dependsOn": sorted(map(ref, needs[each]))} for each in [root, *parts]]}
    bom["serialNumber"] = f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(bom, sort_keys=True))}"
    return {"sbom.cdx.json": (json.dumps(bom, indent=1, sort_keys=True) + "\n").encode(), "LICENSES-of-crates.txt": licences([packages[each] for each in parts])}


def licences(packages):
    """Each text once, under the crates that have it."""
    found = {}
    for package in packages:
        folder = pathlib.Path(package["manifest_path"]).parent
        for path in sorted(folder.glob("*")):
            if path.is_file() and re.match(r"(LICEN[CS]E|COPYING|NOTICE)", path.name, re.IGNORECASE):
                text = path.read_text(errors="replace").strip()
                found.setdefault(text, set()).add(f"{package['name']} {package['version']}")
    blocks = (f"{', '.join(sorted(whose))}\n\n{text}\n" for text, whose in sorted(found.items(), key=lambda each: sorted(each[1])))
    return f"\n{'-' * 80}\n".join(blocks).encode()


def utc(epoch):
    return datetime.datetime.fromtimestamp(epoch, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


# --- archives ------------------------------------------------------------------------------------------------------------------------------------


def tar(entries, epoch, form=tarfile.GNU_FORMAT):
    """(name, data or None for a directory, mode, attributes) in this order, all root's."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        for name, data, mode, *attributes in entries:
            info = tarfile.TarInfo(name)
            info.mtime, info.mode = epoch, mode
            info.uname = info.gname = "root"
            info.pax_headers = attributes[0] if attributes else {}
            if data is None:
                info.type = tarfile.DIRTYPE
                archive.addfile(info)
            else:
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def members(package, prefix):
    """All of a package as members of a tar, each directory before what is in it."""
    paths = sorted([*package.directories(), *package.files])
    return [(prefix + path[1:] + ("" if path in package.files else "/"), package.files.get(path), package.mode(path)) for path in paths]


def gzipped(data, epoch):
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", compresslevel=9, mtime=epoch) as file:
        file.write(data)
    return out.getvalue()


def zstd(data, level):
    # One thread: with more the bytes depend on how many.
    return run("zstd", "--quiet", f"-{level}", "--single-thread", "--stdout", input=data)


def size(package):
    return sum(map(len, package.files.values()))


# --- Debian --------------------------------------------------------------------------------------------------------------------------------------

DEB_SCRIPTS = {
    "postinst": 'if [ "$1" = configure ]; then if [ -z "$2" ]; then installed; else upgraded; fi; fi',
    "prerm": 'if [ "$1" = remove ]; then removing; fi',
    "postrm": 'case "$1" in remove) removed ;; purge) removed; purged ;; esac',
}


def deb(package, args):
    """deb(5): an ar of two tars."""
    package = dataclasses.replace(package, files={path.replace("/zsh/site-functions/", "/zsh/vendor-completions/"): data for path, data in package.files.items()})
    control = f"""Package: {package.name}
Version: {package.version}
Architecture: {DEBIAN[MACHINE]}
Maintainer: {package.maintainer}
Installed-Size: {size(package) // 1024}
Depends: libc6 (>= {package.glibc()}), libgcc-s1
Recommends: {', '.join(package.recommends)}
Section: net
Priority: optional
Description: {package.summary}
""" + "".join(f" {line}\n" for line in package.about.splitlines())
    sums = "".join(f"{hashlib.md5(data).hexdigest()}  {path[1:]}\n" for path, data in sorted(package.files.items()) if path not in package.config)
    parts = [("./", None, 0o755), ("./control", control.encode(), 0o644), ("./md5sums", sums.encode(), 0o644)]
    if package.config:
        parts.append(("./conffiles", "".join(f"{path}\n" for path in package.config).encode(), 0o644))
    parts += [(f"./{script}", f"#!/bin/sh\n{package.script()}\n{call}\n".encode(), 0o755) for script, call in DEB_SCRIPTS.items()]
    payload = tar([("./", None, 0o755), *members(package, "./")], package.epoch)
    out = b"!<arch>\n"
    for name, data in (("debian-binary", b"2.0\n"), ("control.tar.zst", zstd(tar(parts, package.epoch), args.level)), ("data.tar.zst", zstd(payload, args.level))):
        out += f"{name:<16}{package.epoch:<12}{0:<6}{0:<6}{'100644':<8}{len(data):<10}`\n".encode() + data + b"\n" * (len(data) % 2)
    return {f"{package.name}_{package.version}_{DEBIAN[MACHINE]}.deb": out}


# --- Fedora --------------------------------------------------------------------------------------------------------------------------------------

RPM_SCRIPTS = {
    "post": 'if [ "$1" = 1 ]; then installed; else upgraded; fi',
    "preun": 'if [ "$1" = 0 ]; then removing; fi',
    "postun": 'if [ "$1" = 0 ]; then removed; fi',
}


def rpm_line(package, path):
    kind = "%config(noreplace) " if path in package.config else ""
    kind += "" if path in package.files else "%dir "
    return f'{kind}%attr({package.mode(path):04o},root,root) "{path}"\n'


def rpm(package, args):
    """By rpmbuild, from files that are there already: nothing is compiled, stripped or compressed by it."""
    with tempfile.TemporaryDirectory() as place:
        stage = pathlib.Path(place, "stage")
        for path in package.directories():
            (stage / path[1:]).mkdir(parents=True, exist_ok=True)
        for path, data in package.files.items():
            (stage / path[1:]).write_bytes(data)
            (stage / path[1:]).chmod(package.mode(path))
        script = package.script().replace("%", "%%")
        spec = f"""Name: {package.name}
Version: {package.version}
Release: 1
Summary: {package.summary}
License: {LICENCE}
Packager: {package.maintainer}
{"".join(f"Recommends: {each}{chr(10)}" for each in package.recommends)}
%description
{package.about}
%install
cp -a {stage}/. %{{buildroot}}/
%files
{"".join(rpm_line(package, path) for path in [*package.own_directories(), *sorted(package.files)])}
{"".join(f"%{which}{chr(10)}{script}{chr(10)}{call}{chr(10)}" for which, call in RPM_SCRIPTS.items())}"""
        pathlib.Path(place, "package.spec").write_text(spec)
        defined = {"_topdir": f"{place}/build", "_rpmdir": f"{place}/out", "_build_name_fmt": "%%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm",
                   "_buildhost": "localhost", "use_source_date_epoch_as_buildtime": 1, "clamp_mtime_to_source_date_epoch": 1, "source_date_epoch_from_changelog": 0,
                   "_binary_payload": f"w{args.level}.zstdio", "_build_id_links": "none", "debug_package": "%{nil}", "__os_install_post": "%{nil}"}
        words = [word for key, value in defined.items() for word in ("--define", f"{key} {value}")]
        done = subprocess.run(["rpmbuild", "-bb", "--quiet", "--target", f"{MACHINE}-linux", *words, f"{place}/package.spec"], capture_output=True, text=True, check=False,
                              env={**os.environ, "SOURCE_DATE_EPOCH": str(package.epoch), "LC_ALL": "C"})
        if done.returncode:
            fail("running rpmbuild", done.stderr, "see there")
        return {path.name: path.read_bytes() for path in pathlib.Path(place, "out").iterdir()}


# --- Arch ----------------------------------------------------------------------------------------------------------------------------------------

ARCH_SCRIPTS = "post_install() { installed; }\npost_upgrade() { upgraded; }\npre_remove() { removing; }\npost_remove() { removed; }\n"


def arch(package, args):
    """What makepkg would make: a tar that begins with what pacman is told (PKGINFO(5), mtree(5))."""
    version = f"{package.version}-1"
    info = {"pkgname": package.name, "pkgbase": package.name, "pkgver": version, "pkgdesc": package.summary, "builddate": package.epoch, "packager": package.maintainer,
            "size": size(package), "arch": MACHINE, "license": LICENCE}
    lines = [f"{key} = {value}" for key, value in info.items()]
    lines += [f"backup = {path[1:]}" for path in package.config] + [f"depend = glibc>={package.glibc()}", "depend = gcc-libs"]
    lines += [f"optdepend = {each}: {why}" for each, why in package.recommends.items()]
    told = [(".INSTALL", f"{package.script()}\n{ARCH_SCRIPTS}".encode(), 0o644), (".PKGINFO", "\n".join([*lines, ""]).encode(), 0o644)]
    rest = members(package, "")
    tree = "#mtree\n/set type=file uid=0 gid=0 mode=644\n"
    for name, data, mode in [*told, *rest]:
        tree += f"./{name.rstrip('/')} time={package.epoch}.0 mode={mode:o} "
        tree += "type=dir\n" if data is None else f"size={len(data)} sha256digest={hashlib.sha256(data).hexdigest()}\n"
    first = sorted([*told, (".MTREE", gzipped(tree.encode(), package.epoch), 0o644)])
    return {f"{package.name}-{version}-{MACHINE}.pkg.tar.zst": zstd(tar([*first, *rest], package.epoch), args.level)}


# --- static programs -----------------------------------------------------------------------------------------------------------------------------


def dynamic(data):
    """Whether it asks for a dynamic linker (a program header of type PT_INTERP)."""
    offset, entry, count = (int.from_bytes(data[at:at + size], "little") for at, size in ((32, 8), (54, 2), (56, 2)))
    return any(int.from_bytes(data[offset + i * entry:][:4], "little") == 3 for i in range(count))


def tarball(packages, args):
    """Both programs, to be laid over /usr/local, of which the units know, or any other place."""
    top = f"hoplite-{args.version}-{MACHINE}-linux"
    entries = {}
    for package in packages:
        for path, data in package.files.items():
            # Users, presets and /etc are a package's.
            if path.startswith(("/usr/bin", "/usr/share", "/usr/lib/systemd/system/")):
                data = data.replace(b"/usr/bin/hoplite", b"/usr/local/bin/hoplite") if path.endswith(".service") else data
                entries[top + path.removeprefix("/usr")] = (data, package.mode(path))
    above = {str(parent) for path in entries for parent in pathlib.PurePosixPath(path).parents} - {"."}
    listed = sorted([(f"{path}/", None, 0o755) for path in above] + [(path, *entry) for path, entry in entries.items()])
    return {f"{top}.tar.gz": gzipped(tar(listed, args.epoch), args.epoch)}


def blob(kind, data, blobs):
    digest = hashlib.sha256(data).hexdigest()
    blobs[f"blobs/sha256/{digest}"] = data
    return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": f"sha256:{digest}", "size": len(data)}


def image(packages, args):
    """An image after the OCI's image layout: one layer with one program that needs nothing else, a user who is not root, no shell."""
    package, doc = packages[0], "usr/share/doc/hoplite"
    capability = {"SCHILY.xattr.security.capability": NET_BIND_SERVICE.decode()}
    people = f"root:x:0:0::/:/sbin/nologin\nhoplite:x:{IMAGE_USER}:{IMAGE_USER}::/:/sbin/nologin\n"
    layer = [("etc/", None, 0o755), ("etc/group", f"root:x:0:\nhoplite:x:{IMAGE_USER}:\n".encode(), 0o644), ("etc/hoplite/", None, 0o755),
             ("etc/passwd", people.encode(), 0o644), ("tmp/", None, 0o1777), ("usr/", None, 0o755), ("usr/bin/", None, 0o755),
             ("usr/bin/hoplite", package.files["/usr/bin/hoplite"], 0o755, capability), ("usr/share/", None, 0o755), ("usr/share/doc/", None, 0o755),
             (f"{doc}/", None, 0o755)]
    layer += [(f"{doc}/{each}", package.files[f"/{doc}/{each}"], 0o644) for each in ("LICENSE-APACHE", "LICENSE-MIT", "LICENSES-of-crates.txt", "sbom.cdx.json")]
    plain, blobs = tar(layer, args.epoch, tarfile.PAX_FORMAT), {}
    architecture = DEBIAN[MACHINE]
    config = {"created": utc(args.epoch), "architecture": architecture, "os": "linux",
              "config": {"User": f"{IMAGE_USER}:{IMAGE_USER}", "Entrypoint": ["/usr/bin/hoplite"], "Cmd": ["relay", "--config", "/etc/hoplite/relay.toml"],
                         "ExposedPorts": {"443/tcp": {}, "443/udp": {}}, "StopSignal": "SIGTERM", "WorkingDir": "/",
                         "Labels": {"org.opencontainers.image.title": "hoplite", "org.opencontainers.image.version": args.version, "org.opencontainers.image.licenses": LICENCE}},
              "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(plain).hexdigest()}"]}}
    manifest = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "config": blob("config.v1+json", json.dumps(config, sort_keys=True).encode(), blobs),
                "layers": [blob("layer.v1.tar+gzip", gzipped(plain, args.epoch), blobs)]}
    listed = blob("manifest.v1+json", json.dumps(manifest, sort_keys=True).encode(), blobs)
    listed |= {"platform": {"architecture": architecture, "os": "linux"}, "annotations": {"org.opencontainers.image.ref.name": args.version}}
    index = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [listed]}
    files = blobs | {"index.json": json.dumps(index, sort_keys=True).encode(), "oci-layout": b'{"imageLayoutVersion":"1.0.0"}'}
    entries = [("blobs/", None, 0o755), ("blobs/sha256/", None, 0o755)] + [(path, data, 0o644) for path, data in sorted(files.items())]
    return {f"hoplite-{args.version}-{MACHINE}.oci.tar": tar(entries, args.epoch)}


# --- building ------------------------------------------------------------------------------------------------------------------------------------


def build(args, target):
    """Both programs, in a directory of their own: other flags than those of `cargo build` would have everything built again there."""
    home = os.environ.get("CARGO_HOME") or pathlib.Path.home() / ".cargo"
    places = {pathlib.Path(home).resolve(): "/usr/src/cargo", ROOT: "/usr/src/hoplite"}
    flags = [flag for flag in os.environ.get("CARGO_ENCODED_RUSTFLAGS", "").split("\x1f") if flag] or os.environ.get("RUSTFLAGS", "").split()
    flags += [f"--remap-path-prefix={here}={there}" for here, there in places.items()]
    maps = " ".join(f"-ffile-prefix-map={here}={there}" for here, there in places.items())
    env = {**os.environ, "CARGO_ENCODED_RUSTFLAGS": "\x1f".join(flags), "CFLAGS": f"{os.environ.get('CFLAGS', '')} {maps}".strip(), "CARGO_INCREMENTAL": "0",
           "SOURCE_DATE_EPOCH": str(args.epoch), "CARGO_TARGET_DIR": str(ROOT / "target/package")}
    env.pop("RUSTFLAGS", None)
    wanted = [word for name in KINDS for word in ("-p", name)]
    run("cargo", "build", "--locked", "--release", *wanted, "--target", target, cwd=ROOT, env=env)
    return ROOT / "target/package" / target / "release"


def epoch_of_commit():
    if told := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(told)
    if not (ROOT / ".git").exists():
        fail("finding the time of all files", "this is no git repository", "set SOURCE_DATE_EPOCH, in seconds since 1970")
    return int(run("git", "-C", ROOT, "log", "-1", "--format=%ct"))


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("formats", nargs="*", metavar="FORMAT", help=" ".join(FORMATS))
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "target/packages", metavar="DIR", help="where packages go (target/packages)")
    parser.add_argument("--programs", type=pathlib.Path, metavar="DIR", help="programs that are built already, for deb, rpm and arch")
    parser.add_argument("--static", type=pathlib.Path, metavar="DIR", help="static programs that are built already, for tarball and image")
    parser.add_argument("--version", help="instead of the workspace's")
    parser.add_argument("--maintainer", default="the Hoplite project", metavar="NAME", help="whom packages name")
    parser.add_argument("--level", type=int, default=19, choices=range(1, 20), metavar="N", help="how hard zstd tries, 1 to 19 (19)")
    parser.add_argument("--sign", metavar="COMMAND", help="signs the checksums: called with the path of SHA256SUMS behind it, such as 'gpg --armor --detach-sign'")
    args = parser.parse_args()
    args.formats = args.formats or list(FORMATS)
    if wrong := set(args.formats) - set(FORMATS):
        fail("choosing the formats", f"there is no {', '.join(sorted(wrong))}", f"give some of {', '.join(FORMATS)}")
    args.version = args.version or tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    if not re.fullmatch(r"[0-9]+(\.[0-9]+)*", args.version):
        fail("choosing the version", f"{args.version!r} does not sort alike everywhere", "give numbers and dots")
    args.epoch = epoch_of_commit()
    return args


def main():
    args = arguments()
    if MACHINE not in DEBIAN:
        fail("choosing the architecture", f"there are no packages for {MACHINE}", f"use one of {', '.join(DEBIAN)}")
    host = f"{MACHINE}-unknown-linux-gnu"
    metadata = run("cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", host, cwd=ROOT)
    args.metadata = json.loads(metadata)
    parts = {name: inventory(args, name) for name in KINDS}
    made = {f"{name}-{args.version}.cdx.json": parts[name]["sbom.cdx.json"] for name in KINDS}
    if wanted := [each for each in args.formats if each not in STATIC]:
        programs = args.programs or build(args, host)
        for package in [installed(args, name, programs, parts[name]) for name in KINDS]:
            for each in wanted:
                made |= {"deb": deb, "rpm": rpm, "arch": arch}[each](package, args)
    if wanted := [each for each in args.formats if each in STATIC]:
        programs = args.static or build(args, f"{MACHINE}-unknown-linux-musl")
        packages = [installed(args, name, programs, parts[name]) for name in KINDS]
        if any(dynamic(package.files[f"/usr/bin/{package.name}"]) for package in packages):
            fail("making what needs nothing else", f"the programs in {programs} ask for a dynamic linker", "build them for musl, or leave --static out")
        for each in wanted:
            made |= {"tarball": tarball, "image": image}[each](packages, args)
    made["SHA256SUMS"] = "".join(f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in sorted(made.items())).encode()
    args.out.mkdir(parents=True, exist_ok=True)
    for name, data in made.items():
        (args.out / name).write_bytes(data)
    print(made["SHA256SUMS"].decode(), end="")
    if args.sign:
        run(*shlex.split(args.sign), args.out / "SHA256SUMS")


if __name__ == "__main__":
    if not shutil.which("cargo"):
        fail("asking cargo what is compiled in", "there is no cargo", "install a Rust toolchain")
    main()
