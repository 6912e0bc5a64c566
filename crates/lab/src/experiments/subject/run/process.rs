//! One process of a subject: where it runs (the hosts of a network; tests have one that is just this machine), how it is started with its
//! logs, and how one sees that it is ready: a log, a file, a listener, an interface, a command. Looked at again and again, never waited on.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io,
    net::{IpAddr, SocketAddr},
    os::fd::AsRawFd,
    path::{Path, PathBuf},
};

use rustix::{
    net::{AddressFamily, SocketType, socket},
    process::{Pid, Signal, kill_process_group, test_kill_process_group},
};

use super::fill::{Gap, Values};
use crate::{
    experiments::subject::Ready,
    log::{self, Search},
    netns::{self, Lab},
    topology::Addresses,
};

/// What is run, with nothing left to fill in.
#[derive(Debug)]
pub(super) struct Launch<'a> {
    /// For the names of its logs.
    pub(super) name: &'a str,
    /// Where.
    pub(super) host: &'a str,
    /// The program and its arguments.
    pub(super) command: &'a [String],
    /// Added to the environment.
    pub(super) env: &'a BTreeMap<String, String>,
    /// Where it runs and where `logs/` is.
    pub(super) dir: &'a Path,
    /// Whether stdout goes to a file of its own, `NAME.out`.
    pub(super) apart: bool,
}

/// A process that was started.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) name: String,
    pub(super) host: String,
    pub(super) inner: netns::Process,
    /// What it writes to stderr, and to stdout unless that goes apart.
    pub(super) log: PathBuf,
    /// What it writes to stdout.
    pub(super) out: PathBuf,
}

impl Process {
    /// Starts it.
    pub(super) fn start(site: &dyn Site, launch: &Launch<'_>) -> io::Result<Self> {
        if launch.command.is_empty() {
            let why = "its command is empty";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let logs = launch.dir.join("logs");
        fs::create_dir_all(&logs)?;
        let log = logs.join(format!("{}.log", launch.name));
        let out = if launch.apart {
            logs.join(format!("{}.out", launch.name))
        } else {
            log.clone()
        };
        let program = Program {
            command: launch.command,
            env: launch.env,
            dir: launch.dir,
            out: fresh(&out)?,
            log: appended(&log)?,
        };
        Ok(Self {
            name: launch.name.to_owned(),
            host: launch.host.to_owned(),
            inner: site.spawn(launch.host, program)?,
            log,
            out,
        })
    }

    /// How it ended, if it has.
    pub(super) fn end(&self) -> Option<netns::Exit> {
        self.inner.exit()
    }

    /// Whether nothing of its group is left.
    pub(super) fn gone(&self) -> bool {
        let left = self.group().map(test_kill_process_group);
        self.end().is_some() && !matches!(left, Some(Ok(())))
    }

    /// Sends a signal to the whole group, also when its first process has ended. A group that is gone does not mind.
    pub(super) fn signal(&self, signal: Signal) {
        self.group().map(|group| kill_process_group(group, signal));
    }

    fn group(&self) -> Option<Pid> {
        Pid::from_raw(i32::try_from(self.inner.pid).ok()?)
    }

    /// The end of what it wrote.
    pub(super) fn tail(&self) -> String {
        let log = log::tail(&self.log);
        if self.out == self.log {
            log
        } else {
            let both = format!("{}\n{log}", log::tail(&self.out));
            both.trim().to_owned()
        }
    }
}

fn appended(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}

/// Empty, and written to at its end: a daemon may write its log through two descriptors.
fn fresh(path: &Path) -> io::Result<File> {
    File::create(path)?;
    appended(path)
}

/// A set of named hosts in which programs can be started.
pub trait Site {
    /// The addresses of a host; `None` if there is no such host.
    fn addresses(&self, host: &str) -> Option<Addresses>;

    /// Starts a program inside a host, in a process group of its own.
    ///
    /// # Errors
    /// If it cannot be started.
    fn spawn(&self, host: &str, program: Program<'_>) -> io::Result<netns::Process>;

    /// Calls `look` on a thread whose network is the host's, and hands on what it says.
    ///
    /// # Errors
    /// Those of `look`, or if no such thread can be had.
    fn inside(&self, host: &str, look: Look) -> io::Result<bool>;
}

/// A question that is asked inside a host.
pub type Look = Box<dyn FnOnce() -> io::Result<bool> + Send>;

/// What is to be started.
#[derive(Debug)]
pub struct Program<'a> {
    /// The program and its arguments.
    pub command: &'a [String],
    /// Added to the lab's own environment for processes.
    pub env: &'a BTreeMap<String, String>,
    /// Where it runs.
    pub dir: &'a Path,
    /// Where its stdout goes.
    pub out: File,
    /// Where its stderr goes.
    pub log: File,
}

impl Site for Lab {
    fn addresses(&self, host: &str) -> Option<Addresses> {
        Some(self.host(host)?.addresses)
    }

    fn spawn(&self, host: &str, program: Program<'_>) -> io::Result<netns::Process> {
        let none = || io::Error::other(format!("there is no host {host:?}"));
        let mut launch = self.host(host).ok_or_else(none)?.command(program.command);
        for (name, value) in program.env {
            launch = launch.env(name, value);
        }
        let launch = launch.directory(program.dir);
        launch.stdout(program.out).stderr(program.log).spawn()
    }

    fn inside(&self, host: &str, look: Look) -> io::Result<bool> {
        let none = || io::Error::other(format!("there is no host {host:?}"));
        self.host(host).ok_or_else(none)?.enter(look)?
    }
}

/// One condition, and what was seen of it so far.
#[derive(Debug)]
pub(super) struct Watch {
    what: What,
    words: String,
}

#[derive(Debug)]
enum What {
    Text(Search, PathBuf),
    Tcp(SocketAddr),
    Interface(String),
    Command(Vec<String>, Option<Process>),
}

impl Watch {
    /// A condition of the daemon that logs to `log`.
    pub(super) fn new(ready: &Ready, log: &Path, values: &Values<'_>) -> Result<Self, Gap> {
        let (what, words) = match ready {
            Ready::Log(text) => {
                let text = values.fill(text)?;
                let words = format!("the text {text:?} in its log");
                (What::Text(Search::new(&text), log.to_owned()), words)
            }
            Ready::File { path, text } => {
                let path = values.dir.join(values.fill(path)?);
                let text = values.fill(text)?;
                let words = format!("the text {text:?} in {}", path.display());
                (What::Text(Search::new(&text), path), words)
            }
            Ready::Tcp(address) => {
                let words = format!("a listener at {address}");
                (What::Tcp(*address), words)
            }
            Ready::Interface(name) => {
                let name = values.fill(name)?;
                let words = format!("the interface {name}, up");
                (What::Interface(name), words)
            }
            Ready::Command(command) => {
                let command = values.all(command)?;
                let words = format!("'{}' to end with 0", command.join(" "));
                (What::Command(command, None), words)
            }
        };
        Ok(Self { what, words })
    }

    /// What is waited for, in words.
    pub(super) fn words(&self) -> &str {
        &self.words
    }

    /// Whether it is so by now. `name` and `host` are the daemon's.
    pub(super) fn look(&mut self, name: &str, host: &str, values: &Values<'_>) -> io::Result<bool> {
        match &mut self.what {
            What::Text(search, path) => search.found(path),
            What::Tcp(address) => {
                let address = *address;
                values.site.inside(host, Box::new(move || listens(address)))
            }
            What::Interface(interface) => {
                let interface = interface.clone();
                values.site.inside(host, Box::new(move || up(&interface)))
            }
            What::Command(command, running) => {
                let name = format!("{name}.ready");
                let launch = Launch {
                    name: &name,
                    host,
                    command,
                    env: &BTreeMap::new(),
                    dir: values.dir,
                    apart: false,
                };
                ask(values.site, &launch, running)
            }
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let What::Command(_, Some(process)) = &self.what {
            process.signal(Signal::KILL);
        }
    }
}

/// Starts the command unless it runs; takes its answer when it has ended.
fn ask(site: &dyn Site, launch: &Launch<'_>, running: &mut Option<Process>) -> io::Result<bool> {
    let Some(process) = running else {
        *running = Some(Process::start(site, launch)?);
        return Ok(false);
    };
    let Some(end) = process.end() else {
        return Ok(false);
    };
    *running = None;
    Ok(end.status.success())
}

/// Whether something listens there in this thread's network: seen in the kernel's tables, so that the daemon does not notice.
fn listens(address: SocketAddr) -> io::Result<bool> {
    let tables = ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"];
    for table in tables {
        let text = match fs::read_to_string(table) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            text => text?,
        };
        if text
            .lines()
            .filter_map(listener)
            .any(|at| serves(at, address))
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The address of a line of the table if its socket listens (state 0A).
fn listener(line: &str) -> Option<SocketAddr> {
    let mut fields = line.split_ascii_whitespace().skip(1);
    let (address, port) = fields.next()?.split_once(':')?;
    let state = fields.nth(1)?;
    let port = u16::from_str_radix(port, 16).ok()?;
    (state == "0A").then_some(SocketAddr::new(hexadecimal(address)?, port))
}

/// An address as the kernel prints it: words of 32 bits in the machine's own order.
fn hexadecimal(text: &str) -> Option<IpAddr> {
    let word = |at: usize| {
        let digits = text.get(at * 8..at * 8 + 8)?;
        u32::from_str_radix(digits, 16).ok().map(u32::to_ne_bytes)
    };
    match text.len() {
        8 => Some(IpAddr::from(word(0)?)),
        32 => {
            let words = [word(0)?, word(1)?, word(2)?, word(3)?];
            let bytes: [u8; 16] = words.concat().try_into().ok()?;
            Some(IpAddr::from(bytes).to_canonical())
        }
        _ => None,
    }
}

fn serves(listener: SocketAddr, asked: SocketAddr) -> bool {
    let ip = listener.ip();
    let any = ip.is_unspecified() && (ip.is_ipv6() || asked.is_ipv4());
    listener.port() == asked.port() && (ip == asked.ip() || any)
}

/// `linux/sockios.h`; libc's constant is not of the type that musl's ioctl takes.
const SIOCGIFFLAGS: libc::Ioctl = 0x8913;

/// Whether this thread's network has such an interface and it is up.
fn up(name: &str) -> io::Result<bool> {
    let socket = socket(AddressFamily::INET, SocketType::DGRAM, None)?;
    // SAFETY: an all-zero `ifreq` is a valid value: a name and a union of integers.
    #[expect(unsafe_code, reason = "a C struct has no default")]
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.len() >= request.ifr_name.len() {
        let why = format!("{name:?} is too long for an interface");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    // SAFETY: SIOCGIFFLAGS reads and writes one `ifreq`, which lives longer than the call.
    #[expect(unsafe_code, reason = "no safe wrapper asks for an interface's flags")]
    let answer = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCGIFFLAGS, &raw mut request) };
    match answer {
        0 => {
            // SAFETY: the kernel has just written the flags into the union.
            #[expect(unsafe_code, reason = "the answer is in a C union")]
            let flags = unsafe { request.ifr_ifru.ifru_flags };
            Ok(i32::from(flags) & libc::IFF_UP != 0)
        }
        _ => match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::ENODEV) => Ok(false),
            error => Err(error),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv6Addr, TcpListener};

    use super::*;

    #[test]
    fn a_listener_is_seen_without_connecting_and_its_absence_too() {
        // A port that is free again may be another test's the next moment, at any address.
        let is_seen_to_go = || {
            let v4 = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = v4.local_addr().unwrap();
            assert!(listens(address).unwrap());
            let other = SocketAddr::new([127, 0, 0, 2].into(), address.port());
            let elsewhere = listens(other).unwrap();
            drop(v4);
            !elsewhere && !listens(address).unwrap()
        };
        assert!((0..20).any(|_| is_seen_to_go()));
    }

    #[test]
    fn a_listener_at_any_address_serves_both_families() {
        let any = TcpListener::bind("[::]:0").unwrap();
        let port = any.local_addr().unwrap().port();
        assert!(listens(SocketAddr::new([127, 0, 0, 1].into(), port)).unwrap());
        assert!(listens(SocketAddr::new(Ipv6Addr::LOCALHOST.into(), port)).unwrap());
        let v4 = TcpListener::bind("0.0.0.0:0").unwrap();
        let port = v4.local_addr().unwrap().port();
        assert!(!listens(SocketAddr::new(Ipv6Addr::LOCALHOST.into(), port)).unwrap());
    }

    #[test]
    fn the_loopback_is_up_and_an_absent_interface_is_not() {
        assert!(up("lo").unwrap());
        assert!(!up("absent7").unwrap());
        assert!(up("a-name-that-is-too-long").is_err());
    }

    #[test]
    fn lines_that_are_no_listeners_are_passed_over() {
        assert_eq!(listener("  sl  local_address rem_address   st"), None);
        let established = "0: 0100007F:1F90 0100007F:9C40 01 00000000:00000000";
        assert_eq!(listener(established), None);
        assert_eq!(listener("0: zz:1F90 0:0 0A"), None);
    }
}
