//! `hoplite directory scan`: measures relays over circuits, as a client of their network, and writes a bandwidth file for authorities. What is measured and
//! what it is worth is decided in `hoplite_directory::scanner`; here are its circuits, its target's socket, its clock and its files.

use std::{
    collections::HashSet,
    fs::{self, File, OpenOptions},
    io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use clap::Args;
use hoplite_directory::{
    fetch,
    path_selection::Network,
    scanner::{
        Candidate, Failure as Unmeasured, Measurement, Outcome, Place, Rates, Results, Scanner,
        target::{self, Expected},
        weights::{self, About},
    },
    tor::server_descriptor::SaidBandwidths,
};
use hoplite_onion::{
    Onion,
    channel::Dialer,
    path::{Fixed, Relay},
};
use hoplite_overlay::{Direct, Overlay};
use hoplite_wire::{
    Target,
    directory::{Descriptor, Key},
    networks::host_network,
    tor::bandwidth_file::ALL,
};
use serde::{Deserialize, Serialize};
use tokio::{
    net::TcpListener,
    task::{JoinSet, spawn_blocking},
    time::{Instant, sleep},
};
use tracing::{debug, info, warn};

use super::{listen, now};
use crate::{
    client::{self, Underlay},
    config::client::{self as config, Client, scan::Scan},
    http_server::{self, Places, Watched},
    listed::{self, Listed},
    process::{self, Asked, Signals},
    say::Failure,
};

/// How often is looked what there is to do.
const TURN: Duration = Duration::from_secs(1);
/// How often the relays' server descriptors are asked for at most.
const MIN_DESCRIPTORS_PAUSE: Duration = Duration::from_secs(60);
/// Of how many authorities: one alone could leave some out.
const AUTHORITIES: usize = 2;
/// Bytes of a file of results that are read, the last ones.
const LARGEST: u64 = 256 << 20;
/// Results that are appended to a file before it is written anew without those that count no more; and as many as count.
const APPENDED: usize = 10_000;

/// `hoplite directory scan`
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The TOML file: a client's, with a table `scan`.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

/// Measures until it is stopped.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let mut client = config::load(&options.config)?;
    let Some(scan) = client.config.scan.clone() else {
        let why = "the file has no [scan]";
        let remedy = "add it: examples/scan.toml explains its keys";
        return Err(Failure::new("starting the scanner", why, remedy));
    };
    // Each circuit is another one's, of relays that are named: nothing is to be kept of which come first.
    if let Some(directory) = &mut client.config.directory {
        directory.guards = false;
    }
    process::raise_file_limit();
    process::current_thread_runtime()?.block_on(async {
        let mut signals = Signals::listen()?;
        let (listener, address) = listen(scan.listen).await?;
        let underlay = Underlay::default();
        let listed = listed::prepare(&mut client, &underlay.tunnels, None).await?;
        let Some(listed) = listed else {
            let why = "the file names relays instead of a directory";
            let remedy = "add [directory], or [directory.tor]";
            return Err(Failure::new("starting the scanner", why, remedy));
        };
        let expected = Expected::default();
        let mut driver = Driver::new(&client, &scan, &listed, expected.clone(), &underlay)?;
        info!(target = %address, "the scanner is up");
        let below: Arc<dyn Overlay> = Arc::new(underlay.tunnels.clone());
        let stopped = async {
            while signals.next().await == Asked::Reload {
                info!("a scanner reads its file only when it starts: start it again");
            }
        };
        tokio::select! {
            () = serve(listener, expected, scan.connections) => {}
            () = listed.keep(Arc::clone(&below), below, |_| {}) => {}
            () = driver.run() => {}
            () = stopped => {}
        }
        driver.write().await;
        info!("the scanner has stopped");
        Ok(())
    })
}

/// The target. There is always a place for whoever comes: when all are taken, the address with the most gives way by its stillest. Who has named a transfer
/// that is expected needs none.
async fn serve(listener: TcpListener, expected: Expected, connections: usize) {
    let places = Places::new(connections, connections);
    loop {
        match listener.accept().await {
            Ok((stream, from)) => {
                let from = http_server::Client {
                    address: host_network(from.ip()),
                    is_known: false,
                };
                let place = Arc::new(places.enter(from));
                let (watched, expected) =
                    (Watched::new(stream, Arc::clone(&place)), expected.clone());
                tokio::spawn(async move {
                    tokio::select! {
                        () = target::serve(watched, &expected, || place.release()) => {}
                        () = place.lost() => {}
                    }
                });
            }
            // No descriptor is left, or the connection is gone: what else may help than to wait.
            Err(_) => sleep(TURN).await,
        }
    }
}

/// What is measured, and what is known by then.
struct Driver {
    scan: Scan,
    listed: Listed,
    network: Arc<Network>,
    scanner: Scanner,
    circuits: Circuits,
    below: Direct,
    /// Authorities of Tor's, who have its relays' descriptors; how long they may take.
    authorities: (Vec<Target>, Duration),
    said: SaidBandwidths,
    asked: Option<Instant>,
    started: u64,
    log: Option<File>,
    /// Results in the file beside those that it was written with.
    appended: usize,
    running: JoinSet<Outcome>,
}

/// How a circuit is built and measured.
#[derive(Clone)]
struct Circuits {
    dialer: Arc<dyn Dialer>,
    config: hoplite_onion::Config,
    target: Target,
    expected: Expected,
}

impl Circuits {
    async fn measure(self, path: Vec<Relay>) -> Result<Rates, Unmeasured> {
        let onion = Onion::new(self.dialer, Arc::new(Fixed(path)), self.config);
        target::measure(&onion, &self.target, &self.expected).await
    }
}

impl Driver {
    fn new(
        client: &Client,
        scan: &Scan,
        listed: &Listed,
        expected: Expected,
        underlay: &Underlay,
    ) -> Result<Self, Failure> {
        let started = now();
        let oldest = started.saturating_sub(scan.keep.as_secs());
        let results = kept(&scan.results, oldest)
            .and_then(|results| rewrite(&scan.results, &results).map(|()| results))
            .map_err(|error| Failure::file("keeping results in", &scan.results, &error))?;
        let directory = client.config.directory.clone().unwrap_or_default();
        let authorities = directory.tor.iter().flat_map(|tor| &tor.authorities);
        let authorities = authorities.map(|one| Target::from(one.address)).collect();
        let config = hoplite_onion::Config {
            // One circuit, and no other that would take from it.
            ahead: 0,
            conflux: false,
            attempts: 1,
            ..client.config.onion.clone()
        };
        Ok(Self {
            scan: scan.clone(),
            listed: listed.clone(),
            network: Arc::default(),
            scanner: Scanner::new(scan.scanner(), results),
            circuits: Circuits {
                dialer: client::dialer_of_circuits(client, listed, underlay),
                config,
                target: scan.reached().into(),
                expected,
            },
            below: underlay.tunnels.clone(),
            authorities: (authorities, directory.wait.saturating_mul(3)),
            said: SaidBandwidths::default(),
            asked: None,
            started,
            log: None,
            appended: 0,
            running: JoinSet::new(),
        })
    }

    async fn run(&mut self) {
        let mut random = client::random();
        let mut written = Instant::now();
        loop {
            self.renew().await;
            while let Some(measurement) = self.scanner.next(now(), &mut random) {
                self.begin(measurement);
            }
            tokio::select! {
                Some(done) = self.running.join_next() => {
                    if let Ok(outcome) = done {
                        self.note(&outcome);
                    }
                }
                () = sleep(TURN) => {}
            }
            if written.elapsed() >= self.scan.write {
                self.write().await;
                self.tidy().await;
                written = Instant::now();
            }
        }
    }

    /// Takes up a newer list.
    async fn renew(&mut self) {
        let Ok(network) = self.listed.current() else {
            return;
        };
        let is_new = !Arc::ptr_eq(&network, &self.network);
        let is_late = self
            .asked
            .is_none_or(|asked| asked.elapsed() >= MIN_DESCRIPTORS_PAUSE);
        if is_new && is_late {
            self.ask_what_relays_say().await;
        }
        if is_new {
            self.network = network;
            let relays = self.network.relays().iter();
            let relays = relays.filter(|relay| relay.onion.is_some());
            let relays: Vec<_> = relays.map(|relay| self.candidate(relay)).collect();
            let listed = relays.iter().filter_map(|relay| relay.rsa_id);
            let listed: HashSet<_> = listed.collect();
            self.said.retain(|rsa_id| listed.contains(rsa_id));
            self.scanner.renew(relays);
        }
    }

    /// Of Tor's relays; ours say it in the list.
    async fn ask_what_relays_say(&mut self) {
        let (mut authorities, patience) = self.authorities.clone();
        client::shuffle(&mut authorities);
        self.asked = Some(Instant::now());
        // Who leaves some out makes nobody forgotten.
        let (mut all, mut heard) = (self.said.clone(), 0);
        for authority in authorities.iter().take(AUTHORITIES + 1) {
            let text = match fetch(&self.below, authority, "/tor/server/all", ALL, patience).await {
                Ok(text) => text,
                Err(error) => {
                    debug!("descriptors of Tor's relays: {error}");
                    continue;
                }
            };
            let mut said = all.clone();
            let hearing = spawn_blocking(move || said.hear(&text).map(|()| said));
            match hearing.await {
                Ok(Ok(said)) => (all, heard) = (said, heard + 1),
                Ok(Err(error)) => warn!("descriptors of Tor's relays cannot be read: {error}"),
                Err(_) => {}
            }
            if heard == AUTHORITIES {
                break;
            }
        }
        self.said = all;
    }

    fn candidate(&self, relay: &Descriptor) -> Candidate {
        let port = self.scan.reached().port();
        let tor = self.network.tor_relay(&relay.identity);
        let rsa_id = tor.map(|tor| tor.rsa_id);
        let said = rsa_id.and_then(|rsa_id| self.said.of(&rsa_id));
        let unsaid = if tor.is_some() {
            u64::MAX
        } else {
            relay.bandwidth
        };
        let permits = relay
            .exit
            .as_ref()
            .is_some_and(|ports| ports.contains(port));
        Candidate {
            identity: relay.identity,
            rsa_id,
            nickname: relay.name.clone(),
            exits: relay.roles.egress && permits,
            average: said.map_or(unsaid, |said| said.average),
            observed: said.map(|said| said.observed),
            believed: relay.bandwidth,
        }
    }

    fn begin(&mut self, measurement: Measurement) {
        let known = measurement.path.iter().filter_map(|identity| {
            let listed = self.network.relay(identity)?;
            client::relay_of_list(&self.network, listed)
        });
        let known: Vec<_> = known.collect();
        if known.len() != measurement.path.len() {
            self.scanner.given_up(&measurement.relay);
            return;
        }
        let circuits = self.circuits.clone();
        self.running.spawn(async move {
            let rates = circuits.measure(known).await;
            Outcome {
                at: now(),
                of: measurement,
                rates,
            }
        });
    }

    fn note(&mut self, outcome: &Outcome) {
        debug!(?outcome, "measured");
        self.scanner.measured(outcome);
        if let Err(error) = self.append(outcome) {
            // It counts all the same, until the scanner is started again.
            warn!("a result cannot be kept: {error}");
            self.log = None;
        }
    }

    fn append(&mut self, outcome: &Outcome) -> io::Result<()> {
        let log = match self.log.take() {
            Some(log) => log,
            None => OpenOptions::new()
                .append(true)
                .create(true)
                .open(&self.scan.results)?,
        };
        self.appended = self.appended.saturating_add(1);
        self.log.insert(log).write_all(line(outcome)?.as_bytes())
    }

    /// Writes the file of results anew, if most of what it has counts no more.
    async fn tidy(&mut self) {
        let results = self.scanner.results();
        if self.appended <= results.iter().count().max(APPENDED) {
            return;
        }
        let (path, results) = (self.scan.results.clone(), results.clone());
        (self.log, self.appended) = (None, 0);
        let written = spawn_blocking(move || rewrite(&path, &results)).await;
        if let Ok(Err(error)) = written {
            warn!("the file of results cannot be written anew: {error}");
        }
    }

    /// Writes the bandwidth file, if there is enough for one.
    async fn write(&mut self) {
        let (with, keep) = (self.scan.with.clone(), self.scan.keep.as_secs());
        let others = spawn_blocking(move || {
            let oldest = now().saturating_sub(keep);
            let others = with.iter().filter_map(|path| {
                let results = kept(path, oldest);
                let told = |error: &io::Error| {
                    warn!(file = %path.display(), "results of another vantage point: {error}");
                };
                results.inspect_err(told).ok()
            });
            others.collect::<Vec<_>>()
        });
        let others = others.await.unwrap_or_default();
        let mut points = vec![self.scanner.results()];
        points.extend(&others);
        let about = About {
            version: env!("CARGO_PKG_VERSION"),
            started: self.started,
            now: now(),
        };
        let relays = self.scanner.relays();
        let Some(file) = weights::bandwidth_file(&points, relays, &self.scan.scanner(), about)
        else {
            info!("nothing was measured lately: the bandwidth file stays as it is");
            return;
        };
        let voted = file.relays.iter().filter(|relay| relay.votes).count();
        match replace(&self.scan.file, &file.to_string()) {
            Ok(()) => info!(relays = voted, "the bandwidth file is written"),
            Err(error) => warn!("the bandwidth file cannot be written: {error}"),
        }
    }
}

// Files.

/// One line of a file of results.
#[derive(Serialize, Deserialize)]
struct Line {
    at: u64,
    relay: String,
    place: Where,
    /// All relays of the circuit.
    path: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    down: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    up: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    failed: Option<Failed>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Where {
    First,
    Middle,
    Last,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Failed {
    Circuit,
    Stream,
    Forged,
}

fn line(outcome: &Outcome) -> io::Result<String> {
    let failed = outcome.rates.err().map(|failure| match failure {
        Unmeasured::Circuit => Failed::Circuit,
        Unmeasured::Stream => Failed::Stream,
        Unmeasured::Forged => Failed::Forged,
    });
    let line = Line {
        at: outcome.at,
        relay: outcome.of.relay.to_string(),
        place: match outcome.of.place {
            Place::First => Where::First,
            Place::Middle => Where::Middle,
            Place::Last => Where::Last,
        },
        path: outcome.of.path.iter().map(Key::to_string).collect(),
        down: outcome.rates.ok().map(|rates| rates.down),
        up: outcome.rates.ok().map(|rates| rates.up),
        failed,
    };
    let mut text = serde_json::to_string(&line)?;
    text.push('\n');
    Ok(text)
}

fn outcome(line: &str) -> Option<Outcome> {
    let line: Line = serde_json::from_str(line).ok()?;
    let rates = match (line.failed, line.down, line.up) {
        (None, Some(down), Some(up)) => Ok(Rates { down, up }),
        (Some(Failed::Circuit), ..) => Err(Unmeasured::Circuit),
        (Some(Failed::Stream), ..) => Err(Unmeasured::Stream),
        (Some(Failed::Forged), ..) => Err(Unmeasured::Forged),
        (None, ..) => return None,
    };
    let (place, stands, length) = match line.place {
        Where::First => (Place::First, 0, 2),
        Where::Middle => (Place::Middle, 1, 3),
        Where::Last => (Place::Last, 1, 2),
    };
    let relay = line.relay.parse::<Key>().ok()?;
    let path = line.path.iter().map(|one| one.parse::<Key>().ok());
    let path = path.collect::<Option<Vec<_>>>()?;
    let is_right = path.len() == length && path.get(stands) == Some(&relay);
    let of = Measurement { relay, place, path };
    let outcome = Outcome {
        at: line.at,
        of,
        rates,
    };
    is_right.then_some(outcome)
}

/// What a file has of results that are not too old. A line that a crash has cut, or that is none, is left out; without a file there are none.
fn kept(path: &Path, oldest: u64) -> io::Result<Results> {
    newest(path, LARGEST, oldest)
}

/// The same, of so many bytes at its end: the newest results are there.
fn newest(path: &Path, most: u64, oldest: u64) -> io::Result<Results> {
    let mut results = Results::default();
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(results),
        Err(error) => return Err(error),
    };
    let ahead = now().saturating_add(3600);
    let skipped = file.metadata()?.len().saturating_sub(most);
    file.seek(SeekFrom::Start(skipped))?;
    for text in BufReader::new(file.take(most)).lines() {
        let found = outcome(&text?).filter(|found| (oldest..=ahead).contains(&found.at));
        found.into_iter().for_each(|found| results.put(found));
    }
    Ok(results)
}

/// What is too old is forgotten at the start.
fn rewrite(path: &Path, results: &Results) -> io::Result<()> {
    let lines = results.iter().map(line).collect::<io::Result<String>>()?;
    replace(path, &lines)
}

/// Readers find the old file or the new one: "implementations SHOULD write bandwidth files atomically".
pub(super) fn replace(path: &Path, text: &str) -> io::Result<()> {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let mut file = File::create(&new)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&new, path)
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpStream,
        time::timeout,
    };

    use super::*;

    fn found(at: u64, rates: Result<Rates, Unmeasured>) -> Outcome {
        Outcome {
            at,
            of: Measurement {
                relay: Key([7; 32]),
                place: Place::Middle,
                path: [6, 7, 8].map(|one| Key([one; 32])).to_vec(),
            },
            rates,
        }
    }

    #[tokio::test]
    async fn strangers_who_hold_all_places_of_the_target_keep_nobody_from_it() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let address = listener.local_addr().expect("an address");
        let connect = || async { TcpStream::connect(address).await.expect("connected") };
        let places = 64;
        let asking = async {
            let mut silent = Vec::new();
            for _ in 0..places {
                silent.push(connect().await);
            }
            let mut answers = Vec::new();
            let mut one = connect().await;
            let asked = one.write_all(b"GET / HTTP/1.1\r\n\r\n").await;
            asked.expect("written");
            one.read_to_end(&mut answers).await.expect("answered");
            // Whoever was silent for longest has made room.
            let mut nothing = [0];
            let read = silent[0].read(&mut nothing).await;
            assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
            String::from_utf8(answers).expect("text")
        };
        tokio::select! {
            // Before anybody's time for a head is over.
            answer = timeout(Duration::from_secs(5), asking) => {
                let answer = answer.expect("answered");
                assert!(answer.starts_with("HTTP/1.1 404 "), "{answer}");
            }
            () = serve(listener, Expected::default(), places) => {}
        }
    }

    #[test]
    fn results_are_kept_and_grow_old_and_a_cut_line_is_left_out() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("scan.jsonl");
        assert_eq!(kept(&path, 0).expect("none").iter().count(), 0);
        let all = [
            found(10, Ok(Rates { down: 5, up: 6 })),
            found(20, Err(Unmeasured::Circuit)),
            found(21, Err(Unmeasured::Stream)),
            found(22, Err(Unmeasured::Forged)),
        ];
        let lines = all.iter().map(line).collect::<io::Result<String>>();
        let text = lines.expect("written");
        let cut = format!("{text}{{\"at\":30,\"rel\n{{}}\n\n");
        fs::write(&path, cut).expect("written");
        let results = kept(&path, 0).expect("read");
        assert_eq!(results.iter().cloned().collect::<Vec<_>>(), all);
        rewrite(&path, &results).expect("written");
        assert_eq!(fs::read_to_string(&path).expect("read"), text);
        assert_eq!(kept(&path, 20).expect("read").iter().count(), 3);
        // Of a file that is too large it is the oldest ones that are left out.
        let most = u64::try_from(text.len()).expect("short") - 1;
        let some = newest(&path, most, 0).expect("read");
        assert_eq!(some.iter().cloned().collect::<Vec<_>>(), all[1..]);
        let elsewhere = text.replace("middle", "first");
        fs::write(&path, elsewhere).expect("written");
        assert_eq!(
            kept(&path, 0).expect("read").iter().count(),
            0,
            "it does not stand there"
        );
        let ahead = line(&found(now() + 7200, Err(Unmeasured::Stream))).expect("a line");
        fs::write(&path, ahead).expect("written");
        assert_eq!(
            kept(&path, 0).expect("read").iter().count(),
            0,
            "clocks that were wrong"
        );
    }
}
