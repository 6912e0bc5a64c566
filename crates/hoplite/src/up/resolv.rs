//! /etc/resolv.conf: put aside, replaced, given back. `driver` does it, `facts` looks first. resolv.conf(5).
//!
//! Whatever stood there, a file or a link, stands there again afterwards. A crash at any time leaves the old one or ours, whole, and the old
//! one beside it, and so does a disk that is full.

use std::{
    collections::BTreeSet,
    fs,
    io::{self, Write},
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
};

use hoplite_wire::HostName;

/// Our file's first line.
const MARKER: &str =
    "# hoplite: names are answered by `hoplite up`; `hoplite down` puts the old file back";

/// Domains of one interface beside the root (LINK_SEARCH_DOMAINS_MAX of systemd-resolved is 256).
const DOMAINS: usize = 255;

/// The system's.
const SYSTEM: &str = "/etc/resolv.conf";

/// The file and where the old one waits.
#[derive(Clone, Debug)]
pub(super) struct ResolvConf {
    path: PathBuf,
    /// Beside it: it must survive a reboot as ours does.
    kept: PathBuf,
    /// What stood in one that is mounted; that lives no longer than the machine runs.
    overwritten: PathBuf,
}

impl ResolvConf {
    /// The system's.
    pub(super) fn system(run_dir: &Path) -> Self {
        Self::at(Path::new(SYSTEM), run_dir)
    }

    /// The one at `path`.
    pub(super) fn at(path: &Path, run_dir: &Path) -> Self {
        Self {
            path: path.to_owned(),
            kept: beside(path, "hoplite"),
            overwritten: run_dir.join("resolv.conf"),
        }
    }

    /// Where it is written whom the networks say to ask: in it, or in what was put aside.
    pub(super) fn sources(&self) -> Vec<PathBuf> {
        vec![self.path.clone(), self.kept.clone()]
    }

    /// Whether it can be replaced.
    pub(super) fn is_replaceable(&self) -> bool {
        let directory = self.path.parent().unwrap_or_else(|| Path::new("/"));
        rustix::fs::access(directory, rustix::fs::Access::WRITE_OK).is_ok()
    }

    /// Whether it can be written.
    pub(super) fn is_writable(&self) -> bool {
        rustix::fs::access(&self.path, rustix::fs::Access::WRITE_OK).is_ok()
    }

    /// Whether something is mounted on it, so that nothing can be put in its place.
    pub(super) fn is_mounted(&self) -> bool {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let path = fs::canonicalize(&self.path).unwrap_or_else(|_| self.path.clone());
        let point = |line: &str| line.split(' ').nth(4).map(PathBuf::from);
        mounts.lines().filter_map(point).any(|point| point == path)
    }

    /// Whether it is ours.
    pub(super) fn is_ours(&self) -> bool {
        is_marked(&self.path)
    }

    /// The servers that the system asks, or would without us.
    pub(super) fn servers(&self) -> Vec<SocketAddr> {
        servers_of(&fs::read_to_string(self.before()).unwrap_or_default())
    }

    /// How names are looked up without us, but for whom is asked: search list and options.
    fn habits(&self) -> String {
        let text = fs::read_to_string(self.before()).unwrap_or_default();
        let words = ["search", "domain", "options", "sortlist"];
        let is_one = |line: &&str| {
            let first = line.split_whitespace().next();
            first.is_some_and(|first| words.contains(&first))
        };
        text.lines()
            .filter(is_one)
            .map(|line| format!("{line}\n"))
            .collect()
    }

    /// The file that the system would have without us.
    fn before(&self) -> &Path {
        let kept = [&self.kept, &self.overwritten];
        let kept = kept.into_iter().find(|path| path.exists());
        kept.filter(|_| self.is_ours()).unwrap_or(&self.path)
    }

    /// Puts ours in its place at one stroke; what stood there is kept, be it a link. With the `same_habits` only whom to ask is new.
    pub(super) fn replace(&self, servers: &[IpAddr], same_habits: bool) -> io::Result<()> {
        let text = self.text(servers, same_habits);
        if fs::read_to_string(&self.path).is_ok_and(|now| now == text) {
            return Ok(());
        }
        let aside = beside(&self.path, "hoplite-kept");
        let new = beside(&self.path, "hoplite-new");
        let keep = || {
            duplicate(&self.path, &aside)?;
            rename(&aside, &self.kept)
        };
        let put = || {
            if !self.is_ours() && self.path.symlink_metadata().is_ok() {
                keep()?;
            }
            write_new(&new, &text)?;
            rename(&new, &self.path)
        };
        let done = put();
        // What could not be written whole; and what was one file with the one kept before is still there (rename(2)).
        for left in [&aside, &new] {
            fs::remove_file(left).unwrap_or_default();
        }
        done
    }

    /// Writes ours into it.
    pub(super) fn overwrite(&self, servers: &[IpAddr], same_habits: bool) -> io::Result<()> {
        let text = self.text(servers, same_habits);
        if !self.is_ours() {
            let old = fs::read(&self.path)?;
            let new = beside(&self.overwritten, "new");
            fs::write(&new, old)?;
            fs::rename(&new, &self.overwritten)?;
        }
        write_in_place(&self.path, text.as_bytes())
    }

    /// Where all names are ours there is no search list, not even the one that the system's own name would give: a name means the same in every
    /// network.
    fn text(&self, servers: &[IpAddr], same_habits: bool) -> String {
        let lines = servers
            .iter()
            .map(|server| format!("nameserver {server}\n"));
        let habits = if same_habits {
            self.habits()
        } else {
            "search .\n".to_owned()
        };
        format!(
            "{MARKER}\n{}{habits}options edns0\n",
            lines.collect::<String>()
        )
    }

    /// Gives the old one back. If somebody has written a new one meanwhile, that stays.
    pub(super) fn give_back(&self) -> io::Result<()> {
        let is_ours = self.is_ours();
        if self.kept.symlink_metadata().is_ok() {
            if is_ours {
                rename(&self.kept, &self.path)?
            } else {
                fs::remove_file(&self.kept)?
            }
        } else if self.overwritten.exists() {
            if is_ours {
                write_in_place(&self.path, &fs::read(&self.overwritten)?)?;
            }
            fs::remove_file(&self.overwritten)?;
        } else if is_ours {
            // There was none before.
            fs::remove_file(&self.path)?;
        }
        Ok(())
    }
}

fn beside(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(end);
    name.into()
}

fn is_marked(path: &Path) -> bool {
    fs::read_to_string(path).is_ok_and(|text| text.starts_with(MARKER))
}

/// The same file or link under another name: itself, which takes no room, or where that cannot be one for the same owner and mode as far as we may.
fn duplicate(path: &Path, new: &Path) -> io::Result<()> {
    remove_if_there(new)?;
    if fs::hard_link(path, new).is_ok() {
        return Ok(());
    }
    match fs::read_link(path) {
        Ok(target) => std::os::unix::fs::symlink(target, new),
        Err(_) => {
            fs::copy(path, new)?;
            fs::File::open(new)?.sync_all()
        }
    }
}

/// So that it is done when this returns, whatever happens to the machine (rename(2), fsync(2)).
fn rename(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)?;
    let directory = to.parent().unwrap_or_else(|| Path::new("/"));
    fs::File::open(directory)?.sync_all()
}

/// Writes over what is there, which is not touched before there is room for all of it.
fn write_in_place(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).open(path)?;
    let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
    let before = file.metadata()?.len();
    match rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, length.max(1)) {
        // Some have no such thing.
        Err(rustix::io::Errno::OPNOTSUPP) | Ok(()) => {}
        Err(error) => {
            file.set_len(before)?;
            return Err(error.into());
        }
    }
    file.write_all(bytes)?;
    file.set_len(length)?;
    file.sync_all()
}

fn write_new(path: &Path, text: &str) -> io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    remove_if_there(path)?;
    let mut options = fs::OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o644)
        .open(path)?;
    file.write_all(text.as_bytes())?;
    // Every program reads it, whatever our umask.
    file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644))?;
    file.sync_all()
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Domains that systemd-resolved has for one interface or another, or for all, as domains that only route: from what `resolvectl domain` tells.
/// Those of the interface `ours` do not count; as many as one may have.
pub(super) fn routed(told: &str, ours: &str) -> Vec<String> {
    let ours = format!("({ours}):");
    let mut domains = BTreeSet::new();
    let mut counts = true;
    for line in told.lines() {
        let begins = line.starts_with("Global") || line.starts_with("Link ");
        counts = if begins {
            !line.contains(&ours)
        } else {
            counts
        };
        let listed = if begins {
            line.split_once(':').map_or("", |(_, rest)| rest)
        } else {
            line
        };
        let names = listed.split_whitespace().filter(|_| counts);
        let names = names.filter_map(|it| HostName::new(it.trim_start_matches('~')).ok());
        domains.extend(names.map(|name| format!("~{}", name.as_str())));
    }
    domains.into_iter().take(DOMAINS).collect()
}

/// The servers in a file's text.
pub(super) fn servers_of(text: &str) -> Vec<SocketAddr> {
    let server = |line: &'_ str| {
        let mut words = line.split_whitespace();
        words.next().filter(|word| *word == "nameserver")?;
        words.next().map(str::to_owned)
    };
    let address = |word: String| {
        let plain = word.split('%').next()?;
        plain.parse::<IpAddr>().ok()
    };
    text.lines()
        .filter_map(server)
        .filter_map(address)
        .map(|ip| SocketAddr::new(ip, 53))
        .collect()
}

#[cfg(test)]
mod tests {
    //! In a directory of its own, never the machine's file.

    use tempfile::TempDir;

    use super::*;

    const OURS: [IpAddr; 1] = [IpAddr::V4(std::net::Ipv4Addr::new(198, 18, 0, 2))];

    fn etc(old: Option<&str>) -> (TempDir, ResolvConf) {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("resolv.conf");
        if let Some(old) = old {
            fs::write(&path, old).expect("written");
        }
        let run = directory.path().join("run");
        fs::create_dir(&run).expect("made");
        let conf = ResolvConf::at(&path, &run);
        (directory, conf)
    }

    fn names(directory: &TempDir) -> Vec<String> {
        let entries = fs::read_dir(directory.path()).expect("readable");
        let mut names: Vec<_> = entries
            .map(|entry| {
                entry
                    .expect("an entry")
                    .file_name()
                    .into_string()
                    .expect("text")
            })
            .collect();
        names.sort();
        names
    }

    fn read(conf: &ResolvConf) -> String {
        fs::read_to_string(&conf.path).expect("there")
    }

    #[test]
    fn a_file_is_replaced_by_ours_and_given_back_without_a_trace() {
        let (directory, conf) = etc(Some("nameserver 192.0.2.1\n"));
        conf.replace(&OURS, false).expect("replaced");
        assert!(read(&conf).ends_with("nameserver 198.18.0.2\nsearch .\noptions edns0\n"));
        assert_eq!(conf.servers(), ["192.0.2.1:53".parse().expect("one")]);
        conf.replace(&OURS, false).expect("replaced again");
        conf.give_back().expect("given back");
        assert_eq!(read(&conf), "nameserver 192.0.2.1\n");
        assert_eq!(names(&directory), ["resolv.conf", "run"]);
        conf.give_back().expect("nothing to do");
    }

    #[test]
    fn a_link_is_a_link_again_and_its_target_was_never_written() {
        let (directory, conf) = etc(None);
        let target = directory.path().join("target");
        fs::write(&target, "nameserver 192.0.2.1\n").expect("written");
        std::os::unix::fs::symlink("target", &conf.path).expect("linked");
        conf.replace(&OURS, false).expect("replaced");
        assert!(read(&conf).contains("198.18.0.2"));
        assert_eq!(
            fs::read_to_string(&target).expect("there"),
            "nameserver 192.0.2.1\n"
        );
        conf.give_back().expect("given back");
        assert_eq!(
            fs::read_link(&conf.path).expect("a link"),
            Path::new("target")
        );
    }

    #[test]
    fn where_there_was_none_there_is_none_again() {
        let (directory, conf) = etc(None);
        conf.replace(&OURS, false).expect("made");
        conf.give_back().expect("given back");
        assert_eq!(names(&directory), ["run"]);
    }

    #[test]
    fn one_that_somebody_wrote_meanwhile_becomes_the_one_to_give_back() {
        let (_directory, conf) = etc(Some("nameserver 192.0.2.1\n"));
        conf.replace(&OURS, false).expect("replaced");
        fs::write(&conf.path, "nameserver 192.0.2.9\n").expect("written");
        assert_eq!(conf.servers(), ["192.0.2.9:53".parse().expect("one")]);
        conf.replace(&OURS, false).expect("replaced");
        assert_eq!(conf.servers(), ["192.0.2.9:53".parse().expect("one")]);
        conf.give_back().expect("given back");
        assert_eq!(read(&conf), "nameserver 192.0.2.9\n");
    }

    #[test]
    fn one_that_is_mounted_is_written_and_written_back() {
        let (directory, conf) = etc(Some("nameserver 192.0.2.1\n"));
        conf.overwrite(&OURS, false).expect("written");
        assert!(conf.is_ours());
        assert_eq!(conf.servers(), ["192.0.2.1:53".parse().expect("one")]);
        conf.overwrite(&OURS, false).expect("written again");
        conf.give_back().expect("given back");
        assert_eq!(read(&conf), "nameserver 192.0.2.1\n");
        assert_eq!(names(&directory), ["resolv.conf", "run"]);
    }

    #[test]
    fn servers_are_read_as_the_system_does() {
        let text = "# nameserver 192.0.2.9\nsearch a\n nameserver  192.0.2.1 # one\nnameserver fe80::1%eth0\nnameserver x\n";
        let expected: Vec<SocketAddr> = ["192.0.2.1:53", "[fe80::1]:53"]
            .iter()
            .map(|text| text.parse().expect("an address"))
            .collect();
        assert_eq!(servers_of(text), expected);
    }

    #[test]
    fn domains_of_other_interfaces_are_known_whether_they_search_or_route() {
        let told = "Global: global.example\nLink 1 (lo):\nLink 2 (eth0): corp.example ~vpn.example\n   more.example\nLink 3 (hoplite0): ~. ~old.example\nLink 4 (wlan0): ~. x..y Corp.Example\n";
        let expected = [
            "~corp.example",
            "~global.example",
            "~more.example",
            "~vpn.example",
        ];
        assert_eq!(routed(told, "hoplite0"), expected);
    }

    #[test]
    fn where_only_some_names_are_taken_the_way_names_are_looked_up_stays() {
        let before = "# a network's\nnameserver 192.0.2.1\nsearch lan\noptions ndots:2\n";
        let (_directory, conf) = etc(Some(before));
        for _ in 0..2 {
            conf.replace(&OURS, true).expect("replaced");
            let ends = "\nnameserver 198.18.0.2\nsearch lan\noptions ndots:2\noptions edns0\n";
            assert!(read(&conf).ends_with(ends), "{}", read(&conf));
        }
        conf.give_back().expect("given back");
        conf.overwrite(&OURS, true).expect("written");
        assert!(read(&conf).contains("search lan\n"));
    }

    #[test]
    fn a_link_is_still_followed_for_servers_while_ours_stands_in_its_place() {
        let (directory, conf) = etc(None);
        let target = directory.path().join("target");
        fs::write(&target, "nameserver 192.0.2.1\n").expect("written");
        std::os::unix::fs::symlink("target", &conf.path).expect("linked");
        conf.replace(&OURS, false).expect("replaced");
        fs::write(&target, "nameserver 192.0.2.2\n").expect("written");
        assert_eq!(conf.servers(), ["192.0.2.2:53".parse().expect("one")]);
    }
}
