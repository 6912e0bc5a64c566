//! The namespace: the test program starts itself again inside a fresh one, for one test.

use std::{
    env,
    fs::{File, OpenOptions},
    io,
    os::fd::{AsRawFd, OwnedFd},
    process::Command,
};

/// Set inside.
const MARK: &str = "HOPLITE_TEST_INSIDE";

/// Whether this is the test `name` in a network namespace of its own. If not, it is run there, or skipped.
pub(crate) fn inside(name: &str) -> bool {
    if env::var_os(MARK).is_some() {
        return true;
    }
    match possible() {
        Ok(()) => run(name),
        Err(why) => println!("skipped: {why}"),
    }
    false
}

fn run(name: &str) {
    let mut command = unshare();
    command.arg(env::current_exe().unwrap());
    command.args(["--exact", name, "--nocapture"]);
    let output = command.env(MARK, "1").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{complained}");
    assert!(said.contains("1 passed"), "{said}");
}

/// `unshare`, for root without and for others with a user namespace.
fn unshare() -> Command {
    let mut command = Command::new("unshare");
    match rustix::process::geteuid().is_root() {
        true => command.arg("--net"),
        false => command.args(["--map-root-user", "--net"]),
    };
    command.arg("--");
    command
}

fn possible() -> Result<(), String> {
    let tried = unshare()
        .args(["ip", "tuntap", "add", "probe0", "mode", "tun"])
        .output()
        .map_err(|error| format!("unshare cannot be run: {error}"))?;
    match tried.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&tried.stderr).trim().to_owned()),
    }
}

/// Makes the TUN device, gives it addresses, and turns loopback on.
pub(crate) fn device(mtu: u16) -> OwnedFd {
    let file = open().unwrap();
    ip(&format!("link set tun0 mtu {mtu} up"));
    ip("link set lo up");
    ip("addr add 198.18.0.1/32 dev tun0");
    ip("addr add fd68:6f70:6c69:7465::1/128 dev tun0 nodad");
    ip("route add default dev tun0 src 198.18.0.1");
    ip("-6 route add default dev tun0 src fd68:6f70:6c69:7465::1");
    file.into()
}

/// Runs `ip` with these arguments.
pub(crate) fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status();
    assert!(status.unwrap().success(), "ip {arguments}");
}

fn open() -> io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/net/tun")?;
    let mut request = [0_u8; 40];
    request[..4].copy_from_slice(b"tun0");
    let flags = libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
    request[libc::IFNAMSIZ..libc::IFNAMSIZ + 4].copy_from_slice(&flags.to_ne_bytes());
    // CSUM, TSO4, TSO6 of linux/if_tun.h.
    let offload: libc::c_ulong = 1 | 2 | 4;
    #[expect(unsafe_code, reason = "no safe wrapper makes a TUN device")]
    // SAFETY: the descriptor is open; the kernel reads and writes the 40 octets of an ifreq, which `request` has, and takes a number.
    let made = unsafe {
        libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, request.as_mut_ptr())
            | libc::ioctl(file.as_raw_fd(), libc::TUNSETOFFLOAD, offload)
    };
    match made {
        0 => Ok(file),
        _ => Err(io::Error::last_os_error()),
    }
}
