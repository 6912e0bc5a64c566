//! TUN devices: a host's interfaces, read and written by the emulator, each made by a thread inside the host's namespace.
//! They have no header and persist until their namespace goes; that of `hoplite up` has one, and goes with its descriptor.

use std::{
    fs::File,
    io,
    os::fd::{AsRawFd, OwnedFd},
};

use hoplite_overlay::direct::tun::{self, DEVICE, PacketHeader};

use crate::errors::Failure;

/// Whether this process may make TUN devices at all; `doctor` and `__world` ask first.
///
/// # Errors
/// What is missing and the command that provides it.
pub fn check() -> Result<(), Failure> {
    tun::device().map(drop).map_err(|error| missing(&error))
}

/// Makes the interface `name` in the namespace of the calling thread.
pub(super) fn open(name: &str) -> Result<OwnedFd, Failure> {
    let file = tun::device().map_err(|error| missing(&error))?;
    let made = tun::attach(&file, name, PacketHeader::None).and_then(|()| stay(&file));
    made.map_err(|error| refused(name, &error))?;
    Ok(file.into())
}

/// The device goes with its namespace, not when its descriptor is closed: the kernel clears away a namespace with all devices in
/// one sweep, but takes tens of milliseconds for each alone.
fn stay(file: &File) -> io::Result<()> {
    let yes: libc::c_ulong = 1;
    #[expect(unsafe_code, reason = "no safe wrapper keeps a TUN device")]
    // SAFETY: the descriptor is open, and the argument is a number.
    let kept = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETPERSIST, yes) };
    match kept {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Why there is no TUN device, and what to do.
fn missing(error: &io::Error) -> Failure {
    let remedy = match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => {
            "load it with `modprobe tun`, or make the node with `mkdir -p /dev/net && mknod -m 666 /dev/net/tun c 10 200`; \
             give a container `--device /dev/net/tun`"
        }
        Some(libc::EACCES) => "let users open it with `chmod 666 /dev/net/tun`, or run as root",
        Some(libc::EPERM) => {
            "the container's device rules forbid it: start it with `--device /dev/net/tun`"
        }
        _ => "see whether `ip tuntap add mode tun` works here",
    };
    Failure::new(format!("opening {DEVICE}"), error, remedy)
}

fn refused(name: &str, error: &io::Error) -> Failure {
    Failure::new(
        format!("making the TUN device {name}"),
        error,
        "the lab must run as root or where unprivileged user namespaces are allowed",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(code: i32) -> String {
        missing(&io::Error::from_raw_os_error(code)).to_string()
    }

    #[test]
    fn a_missing_tun_device_is_told_with_the_command_that_makes_it() {
        let text = said(libc::ENOENT);
        assert!(text.starts_with("hoplite-lab: opening /dev/net/tun: No such file"));
        assert!(text.contains("modprobe tun") && text.contains("mknod"));
    }

    #[test]
    fn a_tun_device_that_only_root_may_open_is_told_apart_from_a_forbidden_one() {
        assert!(said(libc::EACCES).contains("chmod 666 /dev/net/tun"));
        assert!(said(libc::EPERM).contains("--device /dev/net/tun"));
    }
}
