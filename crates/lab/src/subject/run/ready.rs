//! How one sees that a daemon is ready: its log, a file, a listener, an interface, a command. Looked at again and again, never waited on.

use std::{
    collections::BTreeMap,
    fs, io,
    net::{IpAddr, SocketAddr},
    os::fd::AsRawFd,
    path::{Path, PathBuf},
};

use rustix::{
    net::{AddressFamily, SocketType, socket},
    process::Signal,
};

use super::{
    fill::{Gap, Values},
    process::{Launch, Process},
    site::Site,
};
use crate::{log::Search, subject::Ready};

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
            let octets: [u8; 16] = words.concat().try_into().ok()?;
            Some(IpAddr::from(octets).to_canonical())
        }
        _ => None,
    }
}

fn serves(listener: SocketAddr, asked: SocketAddr) -> bool {
    let ip = listener.ip();
    let any = ip.is_unspecified() && (ip.is_ipv6() || asked.is_ipv4());
    listener.port() == asked.port() && (ip == asked.ip() || any)
}

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
    let answer = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFFLAGS, &raw mut request) };
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
