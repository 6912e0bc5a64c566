//! Every built-in subject for real: a megabyte through it, over perfect links, as root. Those whose programs are missing are skipped.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "helpers of tests are tests"
)]

use std::{
    fs::File,
    io::{BufRead, BufReader, Read, Write},
    os::fd::OwnedFd,
    path::Path,
    process::Stdio,
    sync::Arc,
    thread,
    time::Instant,
};

use hoplite_lab::{
    experiments::{
        scenario,
        subject::run::{PATIENCE, Running, start},
        trial::Trial,
        workload::{Order, Ports, Transfer, Way},
    },
    netns::{Lab, Tun, tun},
};
use rustix::event::{PollFd, PollFlags, poll};

const LAB: &str = env!("CARGO_BIN_EXE_hoplite-lab");

/// A star: every host has a link to the router `core`.
fn scenario(hosts: &[&str], subject: &str, workloads: &str) -> String {
    let mut text = "name = \"try\"\nrepetitions = 1\n[sysctl]\n\"net.ipv4.tcp_congestion_control\" = false\n[[router]]\nname = \"core\"\n".to_owned();
    for host in hosts {
        text += &format!("[[host]]\nname = \"{host}\"\n[[link]]\nends = [\"{host}\", \"core\"]\n");
    }
    text + "[[subject]]\n" + subject + workloads
}

const DOWNLOAD: &str = "[[workload]]\nkind = \"download\"\nbytes = \"1MB\"\ncount = 3\n";
const UPLOAD: &str = "[[workload]]\nkind = \"upload\"\nbytes = \"1MB\"\n";
const ECHO: &str = "[[workload]]\nkind = \"udp-echo\"\ncount = 20\ninterval = \"5ms\"\n";

/// Why a subject cannot be tried here, if so.
fn missing(programs: &[&str]) -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("only root may make namespaces in a process with threads".into());
    }
    if let Err(why) = tun::check() {
        return Some(why.to_string());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places: Vec<_> = std::env::split_paths(&path).collect();
    places.extend(["/usr/sbin".into(), "/sbin".into()]);
    places.extend(Path::new(LAB).parent().map(Path::to_owned));
    let absent = |program: &&&str| !places.iter().any(|place| place.join(program).exists());
    programs
        .iter()
        .find(absent)
        .map(|program| format!("{program} is not installed"))
}

/// Carries every packet to the host that it is for, at once.
fn switch(lab: &Lab, tuns: Vec<Tun>) {
    let port = |tun: Tun| (lab.host(&tun.host).unwrap().addresses, tun.fd);
    let ports: Arc<Vec<_>> = Arc::new(tuns.into_iter().map(port).collect());
    for from in 0..ports.len() {
        let ports = Arc::clone(&ports);
        thread::spawn(move || {
            let mut packet = [0; 2000];
            while let Some(packet) = read(&ports[from].1, &mut packet) {
                let is_for = |addresses: &hoplite_lab::topology::Addresses| match packet[0] >> 4 {
                    4 => packet[16..20] == addresses.v4.octets(),
                    _ => packet[24..40] == addresses.v6.octets(),
                };
                if let Some((_, to)) = ports.iter().find(|(addresses, _)| is_for(addresses)) {
                    File::from(to.try_clone().unwrap()).write_all(packet).ok();
                }
            }
        });
    }
}

fn read<'a>(from: &OwnedFd, packet: &'a mut [u8]) -> Option<&'a [u8]> {
    let mut file = File::from(from.try_clone().ok()?);
    loop {
        poll(&mut [PollFd::new(from, PollFlags::IN)], None).ok()?;
        match file.read(packet) {
            Ok(0) => return None,
            Ok(length) => return Some(&packet[..length]),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => return None,
        }
    }
}

/// A subject that runs.
struct Try {
    trial: Trial,
    lab: Lab,
    running: Running,
}

fn begin(text: &str, root: &Path, attempt: u32) -> Try {
    let path = root.join("try.toml");
    std::fs::write(&path, text).unwrap();
    let scenario = scenario::load(&path).unwrap_or_else(|failure| panic!("{failure}"));
    let key = scenario.keys().remove(0);
    let dir = root.join(format!("attempt{attempt}"));
    std::fs::create_dir(&dir).unwrap();
    let trial = scenario.trial(&key, &dir, &root.join("shared"));
    let trial = trial.unwrap_or_else(|failure| panic!("{failure}"));
    let (lab, tuns) = Lab::build(&trial.topology, &trial.sysctls).unwrap();
    switch(&lab, tuns);
    let began = Instant::now();
    let running = start(&trial.subject, &lab, &dir, &trial.shared)
        .unwrap_or_else(|outcome| panic!("{outcome:?}"));
    println!(
        "{} is ready after {:?}",
        trial.subject.label,
        began.elapsed()
    );
    Try {
        trial,
        lab,
        running,
    }
}

impl Try {
    /// Runs every workload, one after another.
    fn transfers(&self) -> Vec<Transfer> {
        let server = self.lab.host("server").unwrap();
        let mut serve = server
            .command([LAB, "__serve"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(serve.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let transfers = self.trial.workloads.iter().flat_map(|plan| self.work(plan));
        transfers.collect()
    }

    fn work(&self, plan: &hoplite_lab::experiments::workload::Plan) -> Vec<Transfer> {
        let way = self.running.ways().iter().find(|way| way.host == plan.from);
        let address = self.lab.host(&plan.to).unwrap().addresses.v4.to_string();
        let order = Order {
            plan: plan.clone(),
            way: way.map_or(Way::Direct, |way| way.way.clone()),
            target: way.and_then(|way| way.target.clone()).unwrap_or(address),
            fresh_names: false,
            nearest: Default::default(),
            ports: Ports::default(),
            seed: 1,
            qlog: None,
            interface: None,
            surroundings: None,
        };
        let host = self.lab.host(&plan.from).unwrap();
        let mut work = host
            .command([LAB, "__work"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = work.stdin.take().unwrap();
        writeln!(stdin, "{}", serde_json::to_string(&order).unwrap()).unwrap();
        drop(stdin);
        let lines = BufReader::new(work.stdout.take().unwrap()).lines();
        lines
            .map(|line| serde_json::from_str(&line.unwrap()).unwrap())
            .collect()
    }

    /// Ends it and sees that nothing had to be killed.
    fn end(self) {
        self.running
            .check()
            .unwrap_or_else(|outcome| panic!("{outcome:?}"));
        let began = Instant::now();
        for stopped in self.running.stop(PATIENCE) {
            println!(
                "{:<12} {:>6} ms {:>5} MB",
                stopped.name,
                stopped.life_cpu.as_millis(),
                stopped.peak_memory / 1_000_000
            );
            assert!(!stopped.killed, "{} had to be killed", stopped.name);
        }
        println!("stopped after {:?}", began.elapsed());
    }
}

/// Everything arrives, and the server never sees the client itself if it must not.
fn all_arrive(tried: &Try) {
    let transfers = tried.transfers();
    assert!(!transfers.is_empty());
    let client = std::net::IpAddr::from(
        tried
            .lab
            .host(&tried.trial.workloads[0].from)
            .unwrap()
            .addresses
            .v4,
    );
    for one in &transfers {
        println!(
            "{} {}: first byte {:?} us, last {:?} us, {:?} bytes, {} round trips, seen as {:?}",
            one.workload,
            one.number,
            one.phases.first_byte,
            one.phases.last_byte,
            one.moved,
            one.round_trips.len(),
            one.seen_as
        );
        assert_eq!(one.error, None);
        if tried.trial.subject.hides_client {
            assert_ne!(one.seen_as, Some(client), "{one:?}");
        }
    }
}

fn try_out(programs: &[&str], hosts: &[&str], subject: &str, workloads: &str) {
    if let Some(why) = missing(programs) {
        println!("skipped: {why}");
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let text = scenario(hosts, subject, workloads);
    for attempt in 1..=2 {
        let tried = begin(&text, root.path(), attempt);
        all_arrive(&tried);
        tried.end();
    }
}

#[test]
fn native_carries_everything() {
    let all = [DOWNLOAD, UPLOAD, ECHO].concat();
    try_out(&[], &["client", "server"], "use = \"native\"\n", &all);
}

#[test]
fn hoplite_carries_everything_over_no_relay() {
    let all = [DOWNLOAD, UPLOAD, ECHO].concat();
    let subject = "use = \"hoplite\"\nwith = { hops = 0 }\n";
    try_out(&["hoplite"], &["client", "server"], subject, &all);
}

#[test]
fn hoplite_carries_everything_over_two_relays() {
    let all = [DOWNLOAD, UPLOAD, ECHO].concat();
    let subject = "use = \"hoplite\"\nwith = { hops = 2, acks = \"1ms\", congestion = \"bbr\" }\n";
    try_out(
        &["hoplite"],
        &["client", "relay1", "relay2", "server"],
        subject,
        &all,
    );
}

#[test]
fn circuits_carry_streams_over_quic_tls_and_whichever_is_there_on_paths_of_their_own() {
    let hosts = ["client1", "client2", "relay1", "relay2", "relay3", "server"];
    let workload = "[[workload]]\nkind = \"download\"\nbytes = \"1MB\"\nfrom = \"client2\"\n";
    let paths =
        "paths = [[\"relay1\", \"relay2\", \"relay3\"], [\"relay3\", \"relay2\", \"relay1\"]]";
    for with in [
        format!("channel = \"quic\", {paths}"),
        "channel = \"tls\", congestion_control = false".to_owned(),
        "channel = \"auto\", ahead = 1".to_owned(),
        "ahead = 0, warm = false".to_owned(),
        "over = [\"quic\", \"tls\", \"quic\"]".to_owned(),
        "over = [\"tls\", \"quic\", \"tls\"]".to_owned(),
    ] {
        let subject =
            format!("use = \"hoplite-onion\"\nwith = {{ relays = 3, clients = 2, {with} }}\n");
        try_out(&["hoplite"], &hosts, &subject, workload);
    }
}

/// Of the hosts of a network with a directory.
fn with_directory() -> Vec<String> {
    let authorities = (1..=3).map(|n| format!("authority{n}"));
    let relays = (1..=7).map(|n| format!("relay{n}"));
    let ends = ["client", "server"].map(str::to_owned);
    authorities.chain(relays).chain(ends).collect()
}

#[test]
fn circuits_of_a_directory_carry_streams_by_an_exit_and_to_an_onion_service() {
    let hosts = with_directory();
    let hosts: Vec<&str> = hosts.iter().map(String::as_str).collect();
    for with in [
        "service = true",
        "conflux = \"off\", cgo = \"off\"",
        "channel = \"tls\"",
    ] {
        let subject = format!("use = \"hoplite-directory\"\nwith = {{ {with} }}\n");
        try_out(&["hoplite"], &hosts, &subject, &[DOWNLOAD, UPLOAD].concat());
    }
}

#[test]
fn hoplite_takes_every_policy_that_its_subject_can_write() {
    let all = [DOWNLOAD, ECHO].concat();
    for with in [
        "acks_up = \"none\", acks_down = \"0.5rtt\", acks_after = 10, mode = \"tunnelled\", congestion = \"cubic\", forwarding = false",
        "acks = \"extension\", mode = \"forwarded\", transform = \"identity\"",
        "acks = \"none-up\", transform = \"scramble\", congestion = \"off\"",
        "relay_acks = \"0.25rtt\", relay_congestion = \"newreno\"",
    ] {
        let subject = format!("use = \"hoplite\"\nwith = {{ hops = 1, {with} }}\n");
        try_out(
            &["hoplite"],
            &["client", "relay1", "server"],
            &subject,
            &all,
        );
    }
}

#[test]
fn hoplite_up_carries_everything_of_programs_that_know_nothing_of_it() {
    let all = [DOWNLOAD, UPLOAD, ECHO].concat();
    try_out(
        &["hoplite", "nft"],
        &["client", "relay1", "relay2", "server"],
        "use = \"hoplite-up\"\nwith = { hops = 2 }\n",
        &all,
    );
}

const TOR: [&str; 10] = [
    "client",
    "authority1",
    "authority2",
    "authority3",
    "relay1",
    "relay2",
    "relay3",
    "relay4",
    "relay5",
    "server",
];

#[test]
fn tor_carries_everything_by_an_exit() {
    let subject = "use = \"tor\"\n";
    try_out(
        &["tor", "tor-gencert"],
        &TOR,
        subject,
        &[DOWNLOAD, UPLOAD].concat(),
    );
}

#[test]
#[ignore = "a private Tor network takes a minute to make: run it when subjects/tor.toml changes"]
fn tor_takes_the_path_that_it_is_told() {
    let subject = "use = \"tor\"\nwith = { paths = [[\"relay4\", \"relay2\", \"relay5\"]] }\n";
    try_out(&["tor", "tor-gencert"], &TOR, subject, DOWNLOAD);
}

#[test]
#[ignore = "a private Tor network takes a minute to make: run it when subjects/tor.toml changes"]
fn tor_carries_everything_by_two_circuits_at_once() {
    let subject = "use = \"tor\"\nwith = { conflux = \"on\" }\n";
    try_out(&["tor", "tor-gencert"], &TOR, subject, DOWNLOAD);
}

#[test]
#[ignore = "a private Tor network takes a minute to make: run it when subjects/tor.toml changes"]
fn tor_carries_everything_to_an_onion_service() {
    let subject = "use = \"tor\"\nwith = { service = true }\n";
    try_out(&["tor", "tor-gencert"], &TOR, subject, DOWNLOAD);
}

#[test]
#[ignore = "a private Tor network takes a minute to make: run it when subjects/tor.toml changes"]
fn tor_carries_everything_of_programs_that_know_nothing_of_it() {
    let subject = "use = \"tor\"\nwith = { device = true }\n";
    try_out(
        &["tor", "tor-gencert", "tun2proxy-bin"],
        &TOR,
        subject,
        &[DOWNLOAD, UPLOAD].concat(),
    );
}

#[test]
fn openvpn_carries_everything() {
    let all = [DOWNLOAD, UPLOAD, ECHO].concat();
    try_out(
        &["openvpn", "openssl", "nft", "ping"],
        &["client", "relay1", "server"],
        "use = \"openvpn\"\n",
        &all,
    );
}

#[test]
fn wireguard_go_carries_everything() {
    let all = [DOWNLOAD, UPLOAD, ECHO].concat();
    let programs = [
        "wireguard",
        "openssl",
        "perl",
        "ip",
        "nft",
        "ping",
        "unshare",
    ];
    try_out(
        &programs,
        &["client", "relay1", "server"],
        "use = \"wireguard-go\"\n",
        &all,
    );
}

#[test]
fn masque_go_carries_datagrams_over_one_proxy_and_two() {
    let hosts = ["client", "relay1", "relay2", "server"];
    for hops in [1, 2] {
        let subject = format!("use = \"masque-go\"\nwith = {{ hops = {hops} }}\n");
        try_out(&["masque_go", "openssl"], &hosts, &subject, ECHO);
    }
}

#[test]
fn hoplite_chooses_relays_itself_and_serves_several_clients_on_paths_of_their_own() {
    let hosts = ["client1", "client2", "relay1", "relay2", "relay3", "server"];
    let workload = "[[workload]]\nkind = \"download\"\nbytes = \"1MB\"\nfrom = \"client2\"\n";
    for with in [
        "random = true",
        "paths = [[\"relay1\", \"relay2\"], [\"relay3\", \"relay1\"]]",
    ] {
        let subject =
            format!("use = \"hoplite\"\nwith = {{ hops = 2, relays = 3, clients = 2, {with} }}\n");
        try_out(&["hoplite"], &hosts, &subject, workload);
    }
}
