//! TUN devices: where the kernel hands them out, and how one becomes an interface (Linux `Documentation/networking/tuntap.rst`).

use std::{
    fs::{File, OpenOptions},
    io,
    os::{fd::AsRawFd, unix::fs::OpenOptionsExt},
};

/// Where the kernel hands out TUN devices.
pub const DEVICE: &str = "/dev/net/tun";

/// What stands before each packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketHeader {
    /// Nothing.
    None,
    /// The virtio header of ten bytes (virtio 1.2 §5.1.6), which offloads need.
    Virtio,
}

/// A device that is no interface yet. It does not block.
///
/// # Errors
/// There is none, or no right to it.
pub fn device() -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    options.custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC);
    options.open(DEVICE)
}

/// Makes it the interface `name`, in the network namespace of the calling thread; takes one that its owner has made.
///
/// # Errors
/// A name that is none, no right to make it, or another process has it.
pub fn attach(device: &File, name: &str, header: PacketHeader) -> io::Result<()> {
    // `struct ifreq`: the name, then the flags.
    let mut request = [0_u8; 40];
    let (front, back) = request.split_at_mut(libc::IFNAMSIZ);
    let room = front
        .get_mut(..name.len())
        .filter(|_| (1..libc::IFNAMSIZ).contains(&name.len()));
    room.ok_or(io::ErrorKind::InvalidInput)?
        .copy_from_slice(name.as_bytes());
    let virtio = match header {
        PacketHeader::None => 0,
        PacketHeader::Virtio => libc::IFF_VNET_HDR,
    };
    let flags = libc::IFF_TUN | libc::IFF_NO_PI | virtio;
    back[..4].copy_from_slice(&flags.to_ne_bytes());
    #[expect(unsafe_code, reason = "no safe wrapper makes a TUN device")]
    // SAFETY: the descriptor is open, and the kernel reads and writes at most the 40 bytes of an ifreq, which `request` has.
    let made = unsafe { libc::ioctl(device.as_raw_fd(), libc::TUNSETIFF, request.as_mut_ptr()) };
    match made {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_does_not_fit_is_refused_before_the_kernel_sees_it() {
        let file = File::open("/dev/null").expect("there");
        for name in ["", "sixteen-letters-"] {
            let refused = attach(&file, name, PacketHeader::Virtio).expect_err("refused");
            assert_eq!(refused.kind(), io::ErrorKind::InvalidInput, "{name}");
        }
    }
}
