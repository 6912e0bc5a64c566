//! A network namespace for the calling thread, and for the threads that it starts.
//! Shared by the test programs of this crate.

use std::{fs, future::Future, io, process::Command};

use hoplite_overlay::direct::echo_is_permitted;

/// Who may open ping sockets in this namespace.
const RANGE: &str = "/proc/sys/net/ipv4/ping_group_range";

/// Runs a test where ping sockets are allowed: as things are, or in a namespace that is made for it.
pub(crate) fn with_echoes<F: Future<Output = ()>>(test: impl FnOnce() -> F + Send + 'static) {
    with(allow_echoes, test);
}

/// Runs a test in a thread of its own, once `prepare` has changed what that sees; if it cannot, says so and tests nothing.
/// What `prepare` makes lives as long as the test.
pub(crate) fn with<T, F: Future<Output = ()>>(
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

#[expect(clippy::print_stderr, reason = "a test says why it checked nothing")]
pub(crate) fn skipped(why: &dyn std::fmt::Display) {
    eprintln!("skipped: not possible here: {why}");
}

/// Lets this thread open ping sockets: as it is, or in a namespace of its own with a loopback device.
///
/// # Errors
/// Neither works: no right to make a namespace.
pub(crate) fn allow_echoes() -> io::Result<()> {
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
pub(crate) fn open_range() -> io::Result<()> {
    fs::write(RANGE, "0 2147483647")?;
    echo_is_permitted(false)
}

/// Takes this thread into a namespace of its own.
///
/// # Errors
/// No right, or no `ip` program to bring up the loopback device.
#[expect(unsafe_code, reason = "unshare has no safe wrapper that is built in")]
pub(crate) fn enter() -> io::Result<()> {
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
pub(crate) fn run(arguments: &[&str]) -> io::Result<()> {
    let status = Command::new("ip").args(arguments).status()?;
    match status.success() {
        true => Ok(()),
        false => Err(io::Error::other(format!(
            "ip {} failed",
            arguments.join(" ")
        ))),
    }
}
