//! Network namespaces of a test's own: [`with`] and [`with_echoes`] run a test in a thread that has one, [`inside`] in a process that
//! has one and, as root of a user namespace, may make devices.

use std::{
    env,
    fs::{self, OpenOptions},
    future::Future,
    io,
    os::fd::{AsRawFd, OwnedFd},
    process::Command,
};

use hoplite_overlay::direct::{echo_is_permitted, tun};

/// Who may open ping sockets in this namespace.
const RANGE: &str = "/proc/sys/net/ipv4/ping_group_range";

/// Runs a test where ping sockets are allowed: as things are, or in a namespace that is made for it.
pub fn with_echoes<F: Future<Output = ()>>(test: impl FnOnce() -> F + Send + 'static) {
    with(allow_echoes, test);
}

/// Runs a test in a thread of its own, once `prepare` has changed what that sees; if it cannot, says so and tests nothing.
/// What `prepare` makes lives as long as the test.
pub fn with<T, F: Future<Output = ()>>(
    prepare: impl FnOnce() -> io::Result<T> + Send + 'static,
    test: impl FnOnce() -> F + Send + 'static,
) {
    let run = move || {
        let _made = match prepare() {
            Ok(made) => made,
            Err(why) => return skipped(&why),
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.expect("a runtime").block_on(test());
    };
    std::thread::spawn(run).join().expect("the test");
}

/// Says why a test checked nothing.
#[expect(clippy::print_stderr, reason = "a test says why it checked nothing")]
pub fn skipped(why: &dyn std::fmt::Display) {
    eprintln!("skipped: not possible here: {why}");
}

/// Lets this thread open ping sockets: as it is, or in a namespace of its own with a loopback device.
///
/// # Errors
/// Neither works: no right to make a namespace.
pub fn allow_echoes() -> io::Result<()> {
    if echo_is_permitted(false).is_ok() {
        return Ok(());
    }
    enter()?;
    open_range()
}

/// Lets everybody in this thread's namespace open ping sockets.
///
/// # Errors
/// The namespace is somebody else's.
pub fn open_range() -> io::Result<()> {
    fs::write(RANGE, "0 2147483647")?;
    echo_is_permitted(false)
}

/// Takes this thread into a namespace of its own.
///
/// # Errors
/// No right, or no `ip` program to bring up the loopback device.
#[expect(unsafe_code, reason = "unshare has no safe wrapper that is built in")]
pub fn enter() -> io::Result<()> {
    // SAFETY: no memory is touched; only what this thread sees of the network changes.
    let entered = unsafe { libc::unshare(libc::CLONE_NEWNET) };
    if entered != 0 {
        return Err(io::Error::last_os_error());
    }
    run(&["link", "set", "lo", "up"])
}

/// Runs `ip` in this thread's namespace.
///
/// # Errors
/// It is not there, or fails.
pub fn run(arguments: &[&str]) -> io::Result<()> {
    let status = Command::new("ip").args(arguments).status()?;
    if status.success() {
        Ok(())
    } else {
        let failed = format!("ip {} failed", arguments.join(" "));
        Err(io::Error::other(failed))
    }
}

/// Set in the process that [`inside`] starts.
const MARK: &str = "HOPLITE_TEST_INSIDE";

/// Whether this is the test `name` (its whole path) in a process and a network namespace of its own, whose root it is. If not, the
/// test program starts itself again inside a fresh one for this test alone, or skips it where that or a TUN device is not to be had.
///
/// # Panics
/// The test has failed inside.
pub fn inside(name: &str) -> bool {
    if env::var_os(MARK).is_some() {
        return true;
    }
    match tun_is_possible() {
        Ok(()) => run_inside(name),
        Err(why) => skipped(&why),
    }
    false
}

fn run_inside(name: &str) {
    let program = env::current_exe().expect("a path");
    let mut command = unshare();
    command.arg(program).args(["--exact", name, "--nocapture"]);
    let output = command.env(MARK, "1").output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{complained}");
    assert!(said.contains("1 passed"), "{said}");
}

/// `unshare`, for root without and for others with a user namespace.
fn unshare() -> Command {
    let mut command = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        command.arg("--map-root-user");
    }
    command.args(["--net", "--"]);
    command
}

fn tun_is_possible() -> Result<(), String> {
    let mut probe = unshare();
    probe.args(["ip", "tuntap", "add", "probe0", "mode", "tun"]);
    let tried = probe.output();
    let tried = tried.map_err(|error| format!("unshare cannot be run: {error}"))?;
    if tried.status.success() {
        Ok(())
    } else {
        Err(String::from_utf8_lossy(&tried.stderr).trim().to_owned())
    }
}

/// The interface `hoplite0`, up, with an address of each family and all routes of this namespace into it. `offloads` are those of
/// `TUNSETOFFLOAD`; headers are virtio's.
///
/// # Panics
/// It is not to be had, as in a namespace that is not the test's own.
pub fn tun(mtu: u16, offloads: u32) -> OwnedFd {
    let file = OpenOptions::new().read(true).write(true).open(tun::DEVICE);
    let file = file.expect("a device");
    tun::attach(&file, "hoplite0", tun::PacketHeader::Virtio).expect("an interface");
    let offloads = libc::c_ulong::from(offloads);
    #[expect(unsafe_code, reason = "no safe wrapper sets the offloads")]
    // SAFETY: the descriptor is open, and the kernel takes a number.
    let set = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETOFFLOAD, offloads) };
    assert_eq!(set, 0, "{}", io::Error::last_os_error());
    for line in [
        "link set lo up",
        "addr add 198.18.0.1/32 dev hoplite0",
        &format!("link set hoplite0 up mtu {mtu}"),
        "route add default dev hoplite0 src 198.18.0.1",
        "-6 addr add fd68:6f70:6c69:7465::1/128 dev hoplite0 nodad",
        "-6 route add default dev hoplite0 src fd68:6f70:6c69:7465::1",
    ] {
        run(&line.split(' ').collect::<Vec<_>>()).expect("`ip` does so");
    }
    wait_for_local_route();
    file.into()
}

/// The kernel takes packets to a new IPv6 address only when a worker of its has been at it, also without duplicate address detection.
fn wait_for_local_route() {
    let mut show = Command::new("ip");
    show.args(["-6", "route", "show", "table", "local", "dev", "hoplite0"]);
    let is_there = || {
        let output = show.output().expect("ip runs").stdout;
        String::from_utf8_lossy(&output).contains("fd68:6f70:6c69:7465::1")
    };
    let attempts = std::iter::repeat_with(is_there).take(1000);
    assert!(attempts.into_iter().any(|there| there), "no local route");
}
