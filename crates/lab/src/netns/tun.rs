//! TUN devices: a host's interfaces, read and written by the emulator, each made by a thread inside the host's namespace.
//! Linux `Documentation/networking/tuntap.rst`.
//!
//! `hoplite up` opens its own elsewhere: with a virtio header and offloads, gone with its descriptor, and under a name that its user chose;
//! these are bare and persist until their namespace goes. What is left in common is one ioctl, and no room below both programs has devices.

use std::{
    fs::{File, OpenOptions},
    io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::OpenOptionsExt,
    },
};

use crate::errors::Failure;

/// Where the kernel hands out TUN devices.
const DEVICE: &str = "/dev/net/tun";

/// Whether this process may make TUN devices at all; `doctor` and `__world` ask first.
///
/// # Errors
/// What is missing and the command that provides it.
pub fn check() -> Result<(), Failure> {
    device().map(drop).map_err(|error| missing(&error))
}

/// Makes the interface `name` in the namespace of the calling thread.
pub(super) fn open(name: &str) -> Result<OwnedFd, Failure> {
    let file = device().map_err(|error| missing(&error))?;
    attach(&file, name).map_err(|error| refused(name, &error))?;
    Ok(file.into())
}

fn device() -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    options.custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC);
    options.open(DEVICE)
}

/// `TUNSETIFF` with a `struct ifreq`: the name, then the flags.
fn attach(file: &File, name: &str) -> io::Result<()> {
    let mut request = [0_u8; 40];
    let (front, back) = request.split_at_mut(libc::IFNAMSIZ);
    let room = front
        .get_mut(..name.len().min(libc::IFNAMSIZ - 1))
        .unwrap_or_default();
    room.copy_from_slice(name.as_bytes().get(..room.len()).unwrap_or_default());
    let flags = libc::IFF_TUN | libc::IFF_NO_PI;
    back[..4].copy_from_slice(&flags.to_ne_bytes());
    #[expect(unsafe_code, reason = "no safe wrapper makes a TUN device")]
    // SAFETY: the descriptor is open, and the kernel reads and writes at most the 40 bytes of an ifreq, which `request` has.
    let made = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, request.as_mut_ptr()) };
    if made != 0 {
        return Err(io::Error::last_os_error());
    }
    stay(file)
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
