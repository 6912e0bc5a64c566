//! How other commands reach the process of `up`: a socket in the run directory that only its owner may use, one line of JSON each way; and what
//! it tells of itself, as JSON and as words for people.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, BufRead, BufReader, Write},
    os::unix::{fs::PermissionsExt, net::UnixStream as Plain},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt},
    net::{UnixListener, UnixStream},
    sync::{Semaphore, mpsc, oneshot},
    time::timeout,
};

use super::{Lock, Refusal, nftables::Standing};
use crate::{
    client::service::{self, ServiceStatus},
    say::Failure,
    wallet::TokensLeft,
};

/// How long a question may take to arrive.
const QUESTION_TIMEOUT: Duration = Duration::from_secs(5);

/// How long `down` may take: relays that are gone do not hold it up.
const DOWN_TIMEOUT: Duration = Duration::from_secs(30);

/// Questions that are answered at once; whoever asks more often waits.
const MAX_QUESTIONS: usize = 8;

/// Bytes of a question.
const MAX_LINE: u64 = 4096;

/// What can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Command {
    /// How it is doing.
    Status,
    /// To undo everything and end; the answer comes when that is done.
    Down,
    /// To undo what carries and end, and to leave what blocks: another one takes its place.
    Leave,
}

#[derive(Serialize, Deserialize)]
struct Request {
    command: Command,
}

/// A question and where its answer goes.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) command: Command,
    pub(crate) answer: oneshot::Sender<Value>,
}

/// Where it is.
pub(crate) fn path(run_dir: &Path, name: &str) -> PathBuf {
    run_dir.join(format!("{name}.sock"))
}

/// Gone when it is dropped.
#[derive(Debug)]
pub(crate) struct Control {
    path: PathBuf,
    questions: mpsc::Receiver<Asked>,
    serving: tokio::task::JoinHandle<()>,
    open: Arc<Semaphore>,
}

impl Control {
    /// Listens. One that a dead process left is replaced: we hold the lock.
    pub(crate) fn listen(run_dir: &Path, name: &str) -> io::Result<Self> {
        let path = path(run_dir, name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(&path)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
        let (asked, questions) = mpsc::channel(MAX_QUESTIONS);
        let open = Arc::new(Semaphore::new(MAX_QUESTIONS));
        Ok(Self {
            path,
            questions,
            serving: tokio::spawn(serve(listener, asked, Arc::clone(&open))),
            open,
        })
    }

    /// The next question.
    pub(crate) async fn asked(&mut self) -> Asked {
        match self.questions.recv().await {
            Some(asked) => asked,
            None => std::future::pending().await,
        }
    }

    /// Waits until the answers that were given are on their way.
    pub(super) async fn answered(&self) {
        let all = u32::try_from(MAX_QUESTIONS).unwrap_or(u32::MAX);
        drop(timeout(QUESTION_TIMEOUT / 5, self.open.acquire_many(all)).await);
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.serving.abort();
        // Whoever comes next replaces it anyway.
        fs::remove_file(&self.path).unwrap_or_default();
    }
}

/// That of a command which serves in the foreground, if one is wanted; nobody else has one of this name there meanwhile.
#[derive(Debug)]
pub(crate) struct Socket(Option<(Control, Lock)>);

impl Socket {
    /// In `run_dir`, which is made, if there is one. `doing` is what fails if somebody else has it.
    pub(crate) fn listen(run_dir: Option<&Path>, name: &str, doing: &str) -> Result<Self, Failure> {
        let Some(run_dir) = run_dir else {
            return Ok(Self(None));
        };
        let lock =
            Lock::take(run_dir, &format!("{name}.lock")).map_err(|refusal| match refusal {
                Refusal::Full(complaint) | Refusal::Failed(complaint) => complaint.into(),
                Refusal::Held(pid) => Failure::new(
                    doing,
                    format!("process {pid} has this run directory"),
                    "end that one, or give another --run-dir",
                ),
            })?;
        let control = Control::listen(run_dir, name);
        let control = control.map_err(|error| Failure::file("listening in", run_dir, &error))?;
        Ok(Self(Some((control, lock))))
    }

    /// Whether there is one.
    pub(crate) fn is_wanted(&self) -> bool {
        self.0.is_some()
    }

    /// The next question.
    pub(crate) async fn asked(&mut self) -> Asked {
        match &mut self.0 {
            Some((control, _)) => control.asked().await,
            None => std::future::pending().await,
        }
    }
}

async fn serve(listener: UnixListener, asked: mpsc::Sender<Asked>, open: Arc<Semaphore>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Too many open files: the next one may have more luck.
            tokio::time::sleep(QUESTION_TIMEOUT / 5).await;
            continue;
        };
        let Ok(permit) = Arc::clone(&open).acquire_owned().await else {
            return;
        };
        let asked = asked.clone();
        tokio::spawn(async move {
            if let Err(error) = talk(stream, &asked).await {
                tracing::debug!(%error, "a question was not answered");
            }
            drop(permit);
        });
    }
}

async fn talk(mut stream: UnixStream, asked: &mpsc::Sender<Asked>) -> io::Result<()> {
    let (read, mut write) = stream.split();
    let mut line = String::new();
    let mut read = tokio::io::BufReader::new(read.take(MAX_LINE));
    timeout(QUESTION_TIMEOUT, read.read_line(&mut line)).await??;
    let reply = match serde_json::from_str::<Request>(&line) {
        Ok(Request { command }) => pass_on(command, asked).await,
        Err(error) => json!({"failed": format!("not a question: {error}")}),
    };
    let reply = format!("{reply}\n");
    timeout(QUESTION_TIMEOUT, write.write_all(reply.as_bytes())).await??;
    Ok(())
}

async fn pass_on(command: Command, asked: &mpsc::Sender<Asked>) -> Value {
    let ending = || json!({"failed": "it is ending"});
    let (answer, answered) = oneshot::channel();
    if asked.send(Asked { command, answer }).await.is_err() {
        return ending();
    }
    answered.await.unwrap_or_else(|_| ending())
}

/// Asks the process that listens at `path`; `None` if nobody does.
pub(crate) fn ask(path: &Path, command: Command) -> io::Result<Option<Value>> {
    let mut stream = match Plain::connect(path) {
        Ok(stream) => stream,
        Err(error) if is_nobody(&error) => return Ok(None),
        Err(error) => return Err(error),
    };
    stream.set_read_timeout(Some(DOWN_TIMEOUT))?;
    stream.set_write_timeout(Some(QUESTION_TIMEOUT))?;
    let mut line = serde_json::to_string(&Request { command })?;
    line.push('\n');
    stream.write_all(line.as_bytes())?;
    let mut reply = String::new();
    BufReader::new(stream).read_line(&mut reply)?;
    if reply.is_empty() {
        Ok(None)
    } else {
        Ok(Some(serde_json::from_str(&reply)?))
    }
}

fn is_nobody(error: &io::Error) -> bool {
    let kinds = [io::ErrorKind::NotFound, io::ErrorKind::ConnectionRefused];
    kinds.contains(&error.kind())
}

/// How the device is doing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Status {
    /// In one word.
    pub(crate) state: State,
    /// The interface.
    pub(crate) name: String,
    /// The process; there is none when it is blocked or down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) process: Option<Process>,
    /// What of the firewall stands now.
    #[serde(default)]
    pub(crate) firewall: Standing,
    /// What was dropped because it would have gone past us; absent without nftables.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) blocked: Option<Dropped>,
}

/// In one word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum State {
    /// A process is there, and nothing has gone through yet.
    Starting,
    /// Traffic flows.
    Up,
    /// Nobody is there, and nothing passes.
    Blocked,
    /// Nobody is there, and only a part of what blocks stands.
    Partly,
    /// Traffic flows as if we had never been there.
    #[default]
    Down,
}

/// What only a living process can tell.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Process {
    /// Its id.
    pub(crate) pid: u32,
    /// That of the one that carries the traffic; 0 while there is none.
    #[serde(default)]
    pub(crate) worker: u32,
    /// When it came up, in seconds since 1970.
    pub(crate) since: u64,
    /// The relays of the path, the first one first.
    pub(crate) path: Vec<String>,
    /// Whether there is a connection to each of them now.
    pub(crate) connected: bool,
    /// What circuits run over, if they carry the traffic and there is a channel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) channel: Option<String>,
    /// Authorities have signed two different lists for one time. Until when the last list before them is used, in seconds since 1970; 0 if there is
    /// none to use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) split_until: Option<u64>,
    /// Private tokens that are left.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) tokens: Vec<TokensLeft>,
    /// The onion services of this device.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) services: Vec<ServiceStatus>,
    /// Circuits to onion services, of this device's programs.
    #[serde(default)]
    pub(crate) service_circuits: usize,
    /// Whether what does not go through it is blocked.
    pub(crate) block: bool,
    /// How many routing rules of other programs come before ours.
    #[serde(default)]
    pub(crate) before: usize,
    /// How names were taken over.
    pub(crate) dns: String,
    /// Bytes from programs.
    pub(crate) sent: u64,
    /// Bytes to programs.
    pub(crate) received: u64,
    /// Flows open now, by kind.
    pub(crate) flows: BTreeMap<String, u64>,
    /// Everything else that is counted.
    pub(crate) counters: BTreeMap<String, u64>,
}

/// What the process knows that carries the traffic.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Report {
    /// The relays of the path, the first one first.
    pub(crate) path: Vec<String>,
    /// Whether there is a connection to each of them now.
    pub(crate) connected: bool,
    /// What circuits run over.
    pub(crate) channel: Option<String>,
    /// As [`Process::split_until`].
    pub(crate) split_until: Option<u64>,
    /// Private tokens that are left.
    pub(crate) tokens: Vec<TokensLeft>,
    /// The onion services of this device.
    pub(crate) services: Vec<ServiceStatus>,
    /// Circuits to onion services.
    pub(crate) service_circuits: usize,
    /// Flows open now, by kind.
    pub(crate) flows: BTreeMap<String, u64>,
    /// Everything that is counted.
    pub(crate) counters: BTreeMap<String, u64>,
}

impl Report {
    /// Fit to be shown on a terminal, whoever has written it.
    pub(super) fn plain(self) -> Self {
        Self {
            path: self
                .path
                .iter()
                .map(|name| plain(name))
                .take(PATH)
                .collect(),
            channel: self.channel.map(|channel| plain(&channel)),
            tokens: self
                .tokens
                .iter()
                .map(TokensLeft::plain)
                .take(NAMES)
                .collect(),
            services: self
                .services
                .into_iter()
                .map(|service| service.plain(plain))
                .take(NAMES)
                .collect(),
            flows: known(self.flows, &FLOWS),
            counters: self
                .counters
                .into_iter()
                .filter(|(name, _)| is_counter(name))
                .take(COUNTERS)
                .collect(),
            ..self
        }
    }
}

/// Kinds of flows.
const FLOWS: [&str; 3] = ["tcp", "udp", "packets"];

/// Counters that are shown.
const COUNTERS: usize = 1024;

fn known(mut counts: BTreeMap<String, u64>, names: &[&str]) -> BTreeMap<String, u64> {
    counts.retain(|name, _| names.contains(&name.as_str()));
    counts
}

/// Whether it can be the name of one.
fn is_counter(name: &str) -> bool {
    let plain = |it: u8| it.is_ascii_alphanumeric() || it == b'_';
    !name.is_empty() && name.len() <= 64 && name.bytes().all(plain)
}

/// Relays that are shown of a path.
const PATH: usize = 16;

/// Names that are shown of those that tokens are for.
const NAMES: usize = 256;

/// Characters that are shown of a text.
const SHOWN: usize = 512;

/// Without what a terminal would obey, and not too long.
pub(crate) fn plain(text: &str) -> String {
    let shown = text.chars().filter(|it| !it.is_control());
    shown.take(SHOWN).collect()
}

/// What was dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Dropped {
    /// Packets.
    pub(crate) packets: u64,
    /// Bytes of them.
    #[serde(alias = "bytes")]
    pub(crate) bytes: u64,
}

impl Status {
    /// For people, line by line.
    pub(crate) fn lines(&self) -> Vec<String> {
        let name = &self.name;
        let mut lines = vec![match self.state {
            State::Starting => format!("{name} is starting: nothing has gone through yet"),
            State::Up => format!("{name} is up"),
            State::Blocked => format!(
                "{name} is not up, and all traffic is blocked: 'hoplite up' goes on, 'hoplite down' opens"
            ),
            State::Partly => format!(
                "{name} is not up, and only a part of what blocks stands: programs may get past; 'hoplite up --block-only' blocks, 'hoplite down' opens"
            ),
            State::Down => format!("{name} is down: traffic flows past us"),
        }];
        lines.extend(self.firewall_line());
        lines.extend(self.process.iter().flat_map(Process::lines));
        lines.extend(self.blocked.map(|blocked| {
            let Dropped { packets, bytes } = blocked;
            format!("blocked since the block stands: {packets} packets, {bytes} bytes")
        }));
        lines
    }
}

impl Status {
    fn firewall_line(&self) -> Option<String> {
        let blocks = self.process.as_ref().is_none_or(|process| process.block);
        let what = match self.firewall {
            _ if self.state == State::Down || !blocks => return None,
            Standing::Stands => "stands",
            Standing::Changed => "is not the one that was loaded: somebody changed it",
            Standing::Gone => "is gone: what binds to an interface gets past",
            Standing::Unknown => {
                "cannot be looked at: there is no nft that works, or no right to ask it"
            }
        };
        Some(format!("the firewall {what}"))
    }
}

impl Process {
    fn lines(&self) -> Vec<String> {
        let flows = self
            .flows
            .iter()
            .map(|(kind, open)| format!("{open} {kind}"));
        let flows = flows.collect::<Vec<_>>().join(", ");
        let block = if self.block {
            "blocked"
        } else {
            "let through, as --no-block asks"
        };
        let before = (self.before > 0).then(|| {
            format!("{} routing rules of other programs come before ours: nftables alone stops what they lead past us", self.before)
        });
        let lines = vec![
            path_line(&self.path, self.connected, self.channel.as_deref()),
            format!("sent {} bytes, received {}", self.sent, self.received),
            format!("flows open: {flows}"),
            format!("names: {}; what goes past is {block}", self.dns),
            format!(
                "process {}, since {} (seconds since 1970)",
                self.pid, self.since
            ),
        ];
        let split = self.split_until.map(split_line);
        let tokens = self.tokens.iter().map(tokens_line);
        let lines = lines.into_iter().chain(split).chain(before);
        let services = service::lines(&self.services, self.service_circuits);
        lines.chain(tokens).chain(services).collect()
    }
}

/// Which relays, and whether there is a connection to them.
pub(crate) fn path_line(path: &[String], connected: bool, channel: Option<&str>) -> String {
    let path = match path {
        [] => "no relay at all: nothing is hidden".to_owned(),
        path => format!("path: {}", path.join(" → ")),
    };
    let connected = match (connected, channel) {
        (false, _) => " (not connected now)".to_owned(),
        (true, None) => String::new(),
        (true, Some(channel)) => format!(" (circuits, over {channel})"),
    };
    format!("{path}{connected}")
}

impl TokensLeft {
    fn plain(&self) -> Self {
        Self {
            origin: plain(&self.origin),
            left: self.left,
            trouble: self.trouble.as_deref().map(plain),
        }
    }
}

fn tokens_line(tokens: &TokensLeft) -> String {
    let TokensLeft { origin, left, .. } = tokens;
    let trouble = tokens.trouble.as_deref();
    let trouble = trouble.map(|why| format!("; the issuer has given no more: {why}"));
    let trouble = trouble.unwrap_or_default();
    match left {
        0 => format!(
            "private tokens for {origin} have run out: what is connected goes on, no new connection is made{trouble}"
        ),
        left => format!("private tokens for {origin}: {left} left{trouble}"),
    }
}

fn split_line(until: u64) -> String {
    let what =
        "the directory is split: its authorities have signed two different lists for one time";
    let used = match until {
        0 => "there is no earlier list to use".to_owned(),
        until => {
            format!(
                "the last list before them is used until {until} (seconds since 1970), or until there is a later one"
            )
        }
    };
    format!("{what}, and {used}; report it to their operators, the cache has both")
}

/// What was opened less what was closed.
pub(super) fn open_flows(counters: &[(&'static str, u64)]) -> BTreeMap<String, u64> {
    let of = |name: &str| {
        let found = counters.iter().find(|(known, _)| *known == name);
        found.map_or(0, |(_, count)| *count)
    };
    let open = |kind: &str| {
        let (opened, closed) = (of(&format!("{kind}_opened")), of(&format!("{kind}_closed")));
        (kind.to_owned(), opened.saturating_sub(closed))
    };
    FLOWS.into_iter().map(open).collect()
}

/// As one flat object: scripts need not know what only a process can tell.
pub(crate) fn flat(status: &Status) -> Value {
    let mut value = serde_json::to_value(status).unwrap_or_default();
    let process = value.as_object_mut().and_then(|all| all.remove("process"));
    if let (Some(all), Some(Value::Object(process))) = (value.as_object_mut(), process) {
        all.extend(process);
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_shows_no_kind_of_flow_that_there_is_not_and_no_counter_without_a_name() {
        let count = |names: &[&str]| names.iter().map(|name| ((*name).to_owned(), 7)).collect();
        let long = "x".repeat(65);
        let report = Report {
            flows: count(&["tcp", "udp", "packets", "\u{1b}]52;c;\u{7}", &long]),
            counters: count(&["tcp_opened", "", "\u{1b}[2J", &long]),
            ..Report::default()
        };
        let shown = report.plain();
        assert_eq!(shown.flows, count(&["tcp", "udp", "packets"]));
        assert_eq!(shown.counters, count(&["tcp_opened"]));
    }

    async fn asked_from_outside(path: PathBuf, command: Command) -> io::Result<Option<Value>> {
        let ask = move || ask(&path, command);
        tokio::task::spawn_blocking(ask).await.expect("no panic")
    }

    #[tokio::test]
    async fn a_question_is_answered_and_only_the_owner_may_ask() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = path(directory.path(), "hoplite7");
        fs::write(&path, "left by a dead one").expect("written");
        let mut control = Control::listen(directory.path(), "hoplite7").expect("listens");
        let mode = fs::metadata(&path).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let asking = tokio::spawn(asked_from_outside(path.clone(), Command::Down));
        let asked = control.asked().await;
        assert_eq!(asked.command, Command::Down);
        asked.answer.send(json!({"state": "down"})).expect("heard");
        control.answered().await;
        let answer = asking.await.expect("no panic").expect("asked");
        assert_eq!(answer, Some(json!({"state": "down"})));
        drop(control);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn nobody_is_told_from_nonsense() {
        let directory = tempfile::tempdir().expect("a directory");
        let nobody = asked_from_outside(path(directory.path(), "x"), Command::Status).await;
        assert_eq!(nobody.expect("no failure"), None);
        let control = Control::listen(directory.path(), "x").expect("listens");
        let mut stream = UnixStream::connect(&control.path).await.expect("connects");
        stream
            .write_all(b"{\"command\":\"fly\"}\n")
            .await
            .expect("written");
        let mut reply = String::new();
        stream.read_to_string(&mut reply).await.expect("read");
        assert!(reply.contains("not a question"), "{reply}");
    }
}

#[cfg(test)]
mod status_tests {
    use super::*;

    #[test]
    fn what_a_worker_says_of_itself_does_nothing_to_a_terminal() {
        let report = Report {
            path: vec!["a\u{1b}]0;x\u{7}\n".into(); 99],
            channel: Some("QUIC\r".into()),
            ..Report::default()
        };
        let plain = report.plain();
        assert_eq!(plain.path, vec!["a]0;x"; PATH]);
        assert_eq!(plain.channel.as_deref(), Some("QUIC"));
    }

    #[test]
    fn a_split_directory_is_told_to_people_and_scripts() {
        let status = |split_until| Status {
            state: State::Up,
            process: Some(Process {
                split_until,
                ..Process::default()
            }),
            ..Status::default()
        };
        let lines = |until| status(until).lines().join("\n");
        assert!(!lines(None).contains("split"));
        let told = lines(Some(1_700_000_000));
        assert!(
            told.contains("the directory is split") && told.contains("1700000000"),
            "{told}"
        );
        assert!(lines(Some(0)).contains("no earlier list to use"));
        assert_eq!(flat(&status(None)).get("split_until"), None);
        assert_eq!(flat(&status(Some(7)))["split_until"], 7);
    }

    #[test]
    fn tokens_that_have_run_out_are_told_and_a_worker_cannot_write_to_a_terminal_by_them() {
        let left = |left| TokensLeft {
            origin: "amber\u{1b}[2J".into(),
            left,
            trouble: (left == 0).then(|| "it answered 429\n".into()),
        };
        let report = Report {
            tokens: vec![left(0), left(7)],
            ..Report::default()
        };
        let process = Process {
            tokens: report.plain().tokens,
            ..Process::default()
        };
        let lines = process.lines().join("|");
        assert!(
            lines.contains("private tokens for amber[2J have run out"),
            "{lines}"
        );
        assert!(lines.contains("given no more: it answered 429"), "{lines}");
        assert!(
            lines.contains("private tokens for amber[2J: 7 left"),
            "{lines}"
        );
        assert!(!lines.contains(char::is_control), "{lines}");
    }

    #[test]
    fn scripts_get_one_flat_object_and_people_get_words() {
        let process = Process {
            pid: 7,
            path: vec!["a".into(), "b".into()],
            ..Process::default()
        };
        let status = Status {
            state: State::Up,
            name: "hoplite0".into(),
            process: Some(process),
            firewall: Standing::Stands,
            blocked: None,
        };
        let value = flat(&status);
        assert_eq!((&value["state"], &value["pid"]), (&"up".into(), &7.into()));
        let lines = status.lines().join("\n");
        assert!(lines.contains("path: a → b (not connected now)"), "{lines}");
        let down = flat(&Status::default());
        assert!(down["state"] == "down" && down.get("pid").is_none());
    }
}
