//! The interface: a TUN device with segmentation and checksum offload, from /dev/net/tun. `driver` makes it, the mediator gets the descriptor.
//! Linux `Documentation/networking/tuntap.rst`; virtio 1.2 §5.1.6 for the header before each packet.

use std::{
    fs::{File, OpenOptions},
    io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::OpenOptionsExt,
    },
    time::Duration,
};

use crate::errors::Complaint;

/// Where the kernel hands out TUN devices.
const DEVICE: &str = "/dev/net/tun";

/// linux/if_tun.h: what is newer than the C library's headers.
const TUN_F_USO4: libc::c_uint = 0x20;
const TUN_F_USO6: libc::c_uint = 0x40;
const TUN_F_CSUM: libc::c_uint = 0x01;
const TUN_F_TSO4: libc::c_uint = 0x02;
const TUN_F_TSO6: libc::c_uint = 0x04;

/// Longest first: what an older kernel does not know is left out.
const OFFLOADS: [libc::c_uint; 3] = [
    TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6 | TUN_F_USO4 | TUN_F_USO6,
    TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6,
    0,
];

/// How often, and after what pause, it is tried again to take a name that another process has.
const TRIES: u32 = 50;
const PAUSE: Duration = Duration::from_millis(20);

/// Makes the interface `name`. It goes when the descriptor is closed. Each packet has a virtio header of ten octets.
pub(super) fn open(name: &str) -> Result<OwnedFd, Complaint> {
    let file = device().map_err(|error| missing(&error))?;
    let mut tries = TRIES;
    while let Err(error) = attach(&file, name) {
        // A killed process has it until the kernel has closed all that was its own.
        if tries == 0 || error.raw_os_error() != Some(libc::EBUSY) {
            return Err(refused(name, &error));
        }
        tries -= 1;
        std::thread::sleep(PAUSE);
    }
    offload(&file).map_err(|error| refused(name, &error))?;
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
        .get_mut(..name.len())
        .filter(|_| (1..libc::IFNAMSIZ).contains(&name.len()));
    room.ok_or(io::ErrorKind::InvalidInput)?
        .copy_from_slice(name.as_bytes());
    let flags = libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
    back[..4].copy_from_slice(&flags.to_ne_bytes());
    #[expect(unsafe_code, reason = "no safe wrapper makes a TUN device")]
    // SAFETY: the descriptor is open, and the kernel reads and writes at most the 40 octets of an ifreq, which `request` has.
    let made = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, request.as_mut_ptr()) };
    match made {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn offload(file: &File) -> io::Result<()> {
    let mut refusal = Ok(());
    for features in OFFLOADS {
        #[expect(unsafe_code, reason = "no safe wrapper sets a TUN device's offloads")]
        // SAFETY: the descriptor is open, and the argument is a number.
        let set = unsafe {
            libc::ioctl(
                file.as_raw_fd(),
                libc::TUNSETOFFLOAD,
                libc::c_ulong::from(features),
            )
        };
        if set == 0 {
            return Ok(());
        }
        refusal = Err(io::Error::last_os_error());
    }
    refusal
}

/// Why there is no TUN device, and what to do.
fn missing(error: &io::Error) -> Complaint {
    let remedy = match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => {
            "load it with `modprobe tun`; give a container `--device /dev/net/tun`"
        }
        Some(libc::EACCES) => "let users open it with `chmod 666 /dev/net/tun`, or run as root",
        Some(libc::EPERM) => "start the container with `--device /dev/net/tun`",
        _ => "see whether `ip tuntap add mode tun` works here",
    };
    Complaint::new(format!("opening {DEVICE}"), error, remedy)
}

fn refused(name: &str, error: &io::Error) -> Complaint {
    let remedy = match error.raw_os_error() {
        Some(libc::EBUSY) => {
            "another program has an interface of this name: end it, or give another name in [device]"
        }
        Some(libc::EPERM) => "run as root, or with CAP_NET_ADMIN",
        _ => "give another name of 1 to 15 characters in [device]",
    };
    Complaint::new(format!("making the interface {name}"), error, remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_device_is_told_with_what_brings_it() {
        let said = |code| missing(&io::Error::from_raw_os_error(code)).to_string();
        assert!(said(libc::ENOENT).contains("modprobe tun"));
        assert!(said(libc::EACCES).contains("chmod 666 /dev/net/tun"));
    }

    #[test]
    fn a_name_that_does_not_fit_is_refused_before_the_kernel_sees_it() {
        let file = File::open("/dev/null").expect("there");
        for name in ["", "sixteen-letters-"] {
            let refused = attach(&file, name).expect_err("refused");
            assert_eq!(refused.kind(), io::ErrorKind::InvalidInput, "{name}");
        }
    }
}
