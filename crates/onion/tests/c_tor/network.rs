//! A network of C tor on loopback: one authority and three relays, all of them directories of onion services, and a client that is told what to do
//! through its control port.

use std::{
    fs::{self, DirBuilder, File},
    io::Write,
    net::{Ipv4Addr, SocketAddr},
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    process::{self, Child, Command, Stdio},
    sync::atomic::{AtomicU16, Ordering::Relaxed},
    time::Duration,
};

use hoplite_crypto::onion::{
    client_authorisation::ClientSecret,
    service_keys::OnionAddress,
    time_period::{Schedule, TimePeriod},
};
use hoplite_onion::path::Relay;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
};

use crate::{
    limit,
    tor::{keys, relay_of},
};

/// Seconds between two consensuses.
const VOTING: u64 = 20;
const EVERYBODY: &str = "
TestingTorNetwork 1
AssumeReachable 1
ShutdownWaitLength 0
SafeLogging 0
PathsNeededToBuildCircuits 0.67
";
const RELAY: &str = "
SocksPort 0
ExitRelay 1
ExitPolicyRejectPrivate 0
ExitPolicy accept *:*
ServerDNSAllowBrokenConfig 1
ServerDNSDetectHijacking 0
ServerDNSTestAddresses
ContactInfo none@example.invalid
";
/// The second interval is the first one too, so that all periods of onion services have one length.
const AUTHORITY: &str = "
AuthoritativeDirectory 1
V3AuthoritativeDirectory 1
TestingV3AuthInitialVotingInterval 20
TestingV3AuthInitialVoteDelay 4
TestingV3AuthInitialDistDelay 4
V3AuthVotingInterval 20
V3AuthVoteDelay 4
V3AuthDistDelay 4
V3AuthNIntervalsValid 3
TestingDirAuthVoteExit *
TestingDirAuthVoteGuard *
TestingDirAuthVoteHSDir *
MinUptimeHidServDirectoryV2 0
TestingMinExitFlagThreshold 0
";
/// With four relays, of which vanguards keep three, C tor finds no path now and then; interop/tor_services_test.py has them on.
const CLIENT: &str = "
VanguardsLiteEnabled 0
SocksPort 127.0.0.1:auto ExtendedErrors
ControlPort 127.0.0.1:auto
UseEntryGuards 0
ConfluxEnabled 0
";

/// How the network divides time.
pub(crate) fn schedule() -> Schedule {
    Schedule::testing(VOTING)
}

/// Running, and ended with the test.
pub(crate) struct Network {
    relays: Vec<Relay>,
    control: BufReader<TcpStream>,
    socks: SocketAddr,
    /// Where the client's keys for services are.
    authorisations: PathBuf,
    _running: Running,
}

/// What is ended with the test, before its files go.
struct Running {
    children: Vec<Child>,
    home: tempfile::TempDir,
}

impl Network {
    /// Ready when the client is: it takes half a minute.
    pub(crate) async fn start() -> Self {
        let mut running = Running {
            children: Vec::new(),
            home: tempfile::tempdir().unwrap(),
        };
        let home = running.home.path().to_owned();
        let subnet = subnet();
        let members: Vec<_> = (0..4).map(|n| Member::new(&home, subnet, n)).collect();
        let authority = members[0].certify();
        for member in &members {
            let kind = if member.is_authority() { AUTHORITY } else { "" };
            let ports = format!(
                "Address {}\nORPort {} IPv4Only\nDirPort {} IPv4Only\n",
                member.or.ip(),
                member.or,
                member.dir
            );
            running
                .children
                .push(member.run(&[&authority, RELAY, kind, &ports]));
        }
        let client = Member::new(&home, subnet, 9);
        let authorisations = home.join("authorisations");
        let kept = DirBuilder::new().mode(0o700).create(&authorisations);
        kept.unwrap();
        let kept = format!("ClientOnionAuthDir {}\n", authorisations.display());
        running
            .children
            .push(client.run(&[&authority, CLIENT, &kept]));
        for member in members.iter().chain([&client]) {
            limit(member.said("Bootstrapped 100%")).await;
        }
        let opened = |what| listener(&client.log(), what);
        let control = TcpStream::connect(opened("Opened Control listener"));
        let relays = members.iter();
        let mut network = Self {
            relays: relays
                .map(|member| relay_of(member.or, keys(&member.home)))
                .collect(),
            control: BufReader::new(control.await.unwrap()),
            socks: opened("Opened Socks listener"),
            authorisations,
            _running: running,
        };
        assert_eq!(network.ask("AUTHENTICATE").await, "250 OK");
        network
    }

    /// Its relays.
    pub(crate) fn relays(&self) -> &[Relay] {
        &self.relays
    }

    /// What the client answers to a command: the last line of it.
    pub(crate) async fn ask(&mut self, command: &str) -> String {
        let command = format!("{command}\r\n");
        self.control.write_all(command.as_bytes()).await.unwrap();
        let mut last = String::new();
        while last.as_bytes().get(3) != Some(&b' ') {
            last.clear();
            assert_ne!(self.control.read_line(&mut last).await.unwrap(), 0);
        }
        last.trim_end().to_owned()
    }

    /// The time period of onion services by the client's consensus.
    pub(crate) async fn period(&mut self) -> TimePeriod {
        let asked = "GETINFO consensus/valid-after\r\n";
        self.control.write_all(asked.as_bytes()).await.unwrap();
        let (mut answer, mut end) = (String::new(), String::new());
        self.control.read_line(&mut answer).await.unwrap();
        self.control.read_line(&mut end).await.unwrap();
        let date = answer.split('=').nth(1).expect("a date").trim();
        let date = Command::new("date")
            .args(["-u", "+%s", "-d", date])
            .output();
        let seconds = String::from_utf8(date.unwrap().stdout).unwrap();
        schedule().period(seconds.trim().parse().unwrap())
    }

    /// Has the client bring a descriptor to the directories that are responsible for it.
    pub(crate) async fn post(&mut self, label: &str, descriptor: &str) -> String {
        let text = descriptor.replace('\n', "\r\n");
        self.ask(&format!("+HSPOST HSADDRESS={label}\r\n{text}."))
            .await
    }

    /// Gives the client a key for this service in place of the one before, as a file, and has it forget what it could not open.
    pub(crate) async fn authorise(&mut self, service: &OnionAddress, client: &ClientSecret) {
        let file = client.file(service);
        fs::write(self.authorisations.join("a.auth_private"), file.as_bytes()).unwrap();
        for signal in ["SIGNAL RELOAD", "SIGNAL NEWNYM"] {
            assert_eq!(self.ask(signal).await, "250 OK");
        }
    }

    /// Has the client serve a service whose port 80 leads to this one; the service's name without `.onion`.
    pub(crate) async fn add_service(&mut self, port: u16) -> String {
        let asked = format!("ADD_ONION NEW:ED25519-V3 Flags=DiscardPK Port=80,127.0.0.1:{port}");
        let answer = self.answers(&asked).await;
        let mut lines = answer.lines();
        let label = lines.find_map(|line| line.strip_prefix("250-ServiceID="));
        label.expect("a service").to_owned()
    }

    /// The descriptor of such a service, once there is one.
    pub(crate) async fn descriptor(&mut self, label: &str) -> String {
        loop {
            let answer = self
                .answers(&format!("GETINFO hs/service/desc/id/{label}"))
                .await;
            let text = answer.split_once("=\r\n").map(|(_, text)| text);
            let text = text.and_then(|text| text.split_once("\r\n.\r\n"));
            if let Some((text, _)) = text
                && text.contains("hs-descriptor")
            {
                return format!("{}\n", text.replace("\r\n", "\n"));
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }

    /// All that the client answers to a command.
    async fn answers(&mut self, command: &str) -> String {
        let command = format!("{command}\r\n");
        self.control.write_all(command.as_bytes()).await.unwrap();
        let (mut all, mut in_data) = (String::new(), false);
        loop {
            let mut line = String::new();
            assert_ne!(self.control.read_line(&mut line).await.unwrap(), 0);
            all.push_str(&line);
            match line.as_bytes().get(3) {
                _ if in_data => in_data = line != ".\r\n",
                Some(b'+') => in_data = true,
                Some(b' ') => return all,
                _ => {}
            }
        }
    }

    /// What the client's SOCKS port says of a stream to this name.
    pub(crate) async fn open(&self, name: &str) -> u8 {
        self.reach(name).await.0
    }

    /// The same, with the stream, which stands if that is 0.
    pub(crate) async fn reach(&self, name: &str) -> (u8, TcpStream) {
        let mut stream = TcpStream::connect(self.socks).await.unwrap();
        let length = u8::try_from(name.len()).unwrap();
        let request = [&[5, 1, 0, 5, 1, 0, 3, length], name.as_bytes(), &[0, 80]].concat();
        stream.write_all(&request).await.unwrap();
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).await.unwrap();
        (answer[3], stream)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        for child in &mut self.children {
            drop((child.kill(), child.wait()));
        }
        if std::thread::panicking() {
            for member in [0, 1, 2, 3, 9] {
                let home = self.home.path().join(member.to_string());
                let read = |name| fs::read_to_string(home.join(name)).unwrap_or_default();
                let (early, log) = (read("early"), read("log"));
                let dull = |line: &&str| line.contains("[info]");
                let notices: Vec<_> = log.lines().filter(|line| !dull(line)).collect();
                println!("--- member {member} said\n{early}{}", notices.join("\n"));
                let details: Vec<_> = log.lines().filter(dull).collect();
                let last = &details[details.len().saturating_sub(30)..];
                println!("--- and at the end\n{}", last.join("\n"));
            }
        }
    }
}

/// One C tor: the first is the authority.
struct Member {
    number: u8,
    home: PathBuf,
    or: SocketAddr,
    dir: SocketAddr,
}

impl Member {
    fn new(network: &Path, [a, b]: [u8; 2], number: u8) -> Self {
        let home = network.join(number.to_string());
        fs::create_dir_all(home.join("keys")).unwrap();
        let ip = Ipv4Addr::new(127, a, b, number + 1);
        Self {
            number,
            home,
            or: SocketAddr::from((ip, 9001)),
            dir: SocketAddr::from((ip, 9030)),
        }
    }

    fn is_authority(&self) -> bool {
        self.number == 0
    }

    fn log(&self) -> PathBuf {
        self.home.join("log")
    }

    fn tor(&self) -> Command {
        let tor = std::env::var_os("TOR").unwrap_or_else(|| "tor".into());
        let mut command = Command::new(tor);
        command.arg("--DataDirectory").arg(&self.home);
        command.args(["--Nickname", &format!("member{}", self.number)]);
        command
    }

    /// Makes an authority's keys: everybody's line about it.
    fn certify(&self) -> String {
        let mut made = Command::new("tor-gencert")
            .args(["--create-identity-key", "--passphrase-fd", "0", "-m", "12"])
            .args(["-a", &self.dir.to_string()])
            .args([
                "-i",
                "authority_identity_key",
                "-s",
                "authority_signing_key",
            ])
            .args(["-c", "authority_certificate"])
            .current_dir(self.home.join("keys"))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut passphrase = made.stdin.take().expect("piped");
        passphrase.write_all(b"pass\n").unwrap();
        drop(passphrase);
        assert!(made.wait().unwrap().success());
        let certificate = self.home.join("keys/authority_certificate");
        let certificate = fs::read_to_string(certificate).unwrap();
        let mut lines = certificate.lines();
        let v3 = lines.find_map(|line| line.strip_prefix("fingerprint "));
        let nobody = "x 127.0.0.1:1 ffffffffffffffffffffffffffffffffffffffff";
        let listed = self
            .tor()
            .args(["--quiet", "--list-fingerprint", "--ignore-missing-torrc"])
            .args([
                "-f",
                "/nonexistent",
                "--ORPort",
                "1",
                "--DirAuthority",
                nobody,
            ])
            .args(["--ContactInfo", "x"])
            .output()
            .unwrap();
        let listed = String::from_utf8(listed.stdout).unwrap();
        let line = listed.lines().last().expect("a fingerprint");
        let fingerprint: String = line.split_whitespace().skip(1).collect();
        format!(
            "DirAuthority member0 orport={} no-v2 v3ident={} {} {fingerprint}\n",
            self.or.port(),
            v3.expect("a fingerprint"),
            self.dir
        )
    }

    fn run(&self, torrc: &[&str]) -> Child {
        let path = self.home.join("torrc");
        fs::write(&path, [EVERYBODY, &torrc.concat()].concat()).unwrap();
        let log = format!("info file {}", self.log().display());
        let command = &mut self.tor();
        let command = command.arg("-f").arg(path).args(["--Log", &log]);
        let early = File::create(self.home.join("early")).unwrap();
        command.stdout(early).stderr(Stdio::null());
        command.spawn().unwrap()
    }

    async fn said(&self, what: &str) {
        while !fs::read_to_string(self.log()).is_ok_and(|log| log.contains(what)) {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

/// The start of a loopback network of its own: a port on 127.0.0.1 that was free a moment ago may be another program's when C tor asks for it.
fn subnet() -> [u8; 2] {
    static MADE: AtomicU16 = AtomicU16::new(0);
    let process = process::id().to_be_bytes();
    let made = MADE.fetch_add(1, Relaxed);
    (u16::from_be_bytes([process[2], process[3]]).wrapping_add(made) | 0x8000).to_be_bytes()
}

fn listener(log: &Path, what: &str) -> SocketAddr {
    let log = fs::read_to_string(log).unwrap();
    let line = log.lines().find(|line| line.contains(what));
    let port = line.and_then(|line| line.rsplit(':').next()?.trim().parse().ok());
    SocketAddr::from((Ipv4Addr::LOCALHOST, port.expect("a port")))
}
