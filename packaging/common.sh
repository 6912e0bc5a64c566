# What a package does when it comes and goes. $name is the package, $units are its units. Each manager of packages calls these by its own names.
set -e

# With systemd as PID 1: not in the root of an image that is being made.
booted() { [ -d /run/systemd/system ]; }
has() { command -v "$1" >/dev/null 2>&1; }

# What a package has of its own to do, when it has.
restart() { systemctl --no-block try-restart $units; }
open() { :; }

installed() {
    if has systemd-sysusers && [ -e "/usr/lib/sysusers.d/$name.conf" ]; then systemd-sysusers "$name.conf"; fi
    if has systemd-tmpfiles && [ -e "/usr/lib/tmpfiles.d/$name.conf" ]; then systemd-tmpfiles --create "$name.conf"; fi
    if booted; then systemctl daemon-reload; fi
}

# Files that an administrator has still to mend do not make an upgrade fail: the log of the unit tells of them.
upgraded() {
    installed
    if booted; then restart || true; fi
}

removing() {
    if booted; then systemctl stop $units; fi
    open
    if has systemctl; then systemctl --no-reload --quiet disable $units || true; fi
}

removed() {
    if booted; then systemctl daemon-reload; fi
}
