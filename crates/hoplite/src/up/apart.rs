//! Two processes: one with the right to change the machine, which reads nothing that the network sends, and one without any right, which
//! does. [`super::session`] is the first, [`Worker`] the second.
//!
//! They speak over a pair of Unix sockets that keep the borders of messages (unix(7), SOCK_SEQPACKET). What the worker says is one of the
//! few things of [`FromWorker`]: nothing of it names a rule, a route, a file, an address or a program, so whoever takes the worker over can stop the
//! traffic and see it, but not open what is blocked. Its sockets need a mark, which only a privileged process may set: it hands each to the
//! other one, where a thread sets that one mark; another thread has the files of private tokens ([`super::stocks`]).

use std::{
    collections::BTreeMap,
    future::pending,
    io::{self, IoSlice, IoSliceMut, Read, Seek, Write},
    mem::MaybeUninit,
    net::{IpAddr, SocketAddr},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    pin::pin,
    process::{Child, Command, Stdio},
    sync::Arc,
    thread,
    time::Duration,
};

use hoplite_mediator::tun::{self, Counters, Descriptor, Device, Transparent};
use hoplite_overlay::{
    Direct, Error, Overlay, Reason,
    direct::rights::{Right, force_buffers},
};
use parking_lot::Mutex;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg,
    sendmsg, socketpair,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use socket2::SockRef;
use tokio::io::unix::AsyncFd;
use tracing::warn;

use super::{
    control::{Report, open_flows},
    plan::MARK,
    traffic::{self, Remembering},
};
use crate::{
    client::{
        ClientOverlay,
        service::{self, Prepared, Running},
    },
    config::client::Client,
    listed::{self, DirectoryCache, Keeper, Listed},
    process::{Recording, Signals},
    say::{Complaint, Failure},
    wallet::{TokensLeft, Wallets},
};

/// Bytes of a message. A larger one is a reason to end the worker.
const MAX_MESSAGE: usize = 64 * 1024;

/// Descriptors that come with a message.
const MAX_DESCRIPTORS: usize = 3;

/// Bytes of what is kept of the directory.
const LARGEST_KEPT: u64 = 64 << 20;

/// What the worker is told.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum ToWorker {
    /// What it must know of the machine. Comes with the socket by which it has sockets marked, what is kept of the directory, and the socket by
    /// which it has private tokens.
    Begin {
        /// Whom the networks say to ask for names.
        servers: Vec<SocketAddr>,
        /// Whether the system may be asked for names now.
        asks_system: bool,
        /// Whether traffic has flowed before, by another worker.
        again: bool,
        /// Those of its addresses that programs can use.
        addresses: Vec<IpAddr>,
    },
    /// The interface, its descriptor.
    Device {
        /// Name servers that it answers for beside its own.
        answered: Vec<IpAddr>,
    },
    /// Whom the networks say to ask from now on.
    Servers(Vec<SocketAddr>),
    /// The device's network may have changed.
    Look,
    /// How is it doing?
    Report,
    /// To say in the log how the path did.
    Tell,
    /// To tell relays, and end.
    Leave,
}

/// What the worker may say.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum FromWorker {
    /// It has what a path is worker_overlay of.
    Prepared,
    /// Something has come back from the last relay.
    Flows(Box<Report>),
    /// Nothing does, for these reasons.
    Failed(Vec<Complaint>),
    /// The interface cannot be read any more.
    Gone,
    /// How it is doing.
    Report(Box<Report>),
    /// There is something to keep of the directory; comes with it.
    Keep,
}

/// One end. What is sent while the other end does not read waits in the socket; when that is full, sending fails.
#[derive(Debug)]
pub(crate) struct Channel(AsyncFd<OwnedFd>);

impl Channel {
    /// Needs a tokio runtime.
    pub(crate) fn new(socket: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        #[expect(unsafe_code, reason = "tokio cannot know who closes a descriptor")]
        // SAFETY: it is open, and is closed by nobody but the AsyncFd that owns it.
        Ok(Self(unsafe { AsyncFd::register(socket) }?))
    }

    /// Sends a message, and a descriptor with it.
    pub(crate) fn send(&self, message: &impl Serialize, with: &[BorrowedFd<'_>]) -> io::Result<()> {
        let bytes = serde_json::to_vec(message)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !with.is_empty() {
            ancillary.push(SendAncillaryMessage::ScmRights(with));
        }
        let parts = [IoSlice::new(&bytes)];
        sendmsg(
            self.0.get_ref(),
            &parts,
            &mut ancillary,
            SendFlags::NOSIGNAL,
        )?;
        Ok(())
    }

    /// The next message with what came with it; `None` when the other end is gone. May be given up and called again.
    pub(crate) async fn next<T: DeserializeOwned>(&self) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
        let mut bytes = vec![0; MAX_MESSAGE];
        let (length, with) = loop {
            let mut ready = self.0.readable().await?;
            match receive(self.0.get_ref(), &mut bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready.clear_ready(),
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(None),
                other => break other?,
            }
        };
        match bytes.get(..length) {
            Some([]) | None => Ok(None),
            Some(message) => Ok(Some((serde_json::from_slice(message)?, with))),
        }
    }
}

fn receive(socket: impl AsFd, bytes: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let parts = &mut [IoSliceMut::new(bytes)];
    let received = recvmsg(socket, parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let mut with = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            with.extend(descriptors);
        }
    }
    if received.flags.contains(ReturnFlags::TRUNC) {
        Err(io::ErrorKind::InvalidData.into())
    } else {
        Ok((received.bytes, with))
    }
}

pub(crate) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    Ok(socketpair(family, kind, SocketFlags::CLOEXEC, None)?)
}

/// The worker as the other process sees it. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct WorkerProcess {
    pub(super) channel: Channel,
    child: Child,
}

impl WorkerProcess {
    /// Starts this command line again as a worker. It gets `kept`, `tokens` and a socket for its marks with `begin`. Needs a tokio runtime.
    pub(super) fn start(
        begin: &ToWorker,
        kept: &DirectoryCache,
        tokens: &OwnedFd,
    ) -> io::Result<Self> {
        let (ours, theirs) = pair()?;
        let child = Command::new("/proc/self/exe")
            .args(std::env::args_os().skip(1))
            .arg("--worker")
            .stdin(theirs)
            .stdout(Stdio::null())
            .spawn()?;
        let worker = Self {
            channel: Channel::new(ours)?,
            child,
        };
        let (marks, asked) = pair()?;
        thread::Builder::new()
            .name("marks".into())
            .spawn(move || mark_sockets(&marks))?;
        let kept = written(kept)?;
        let with = [asked.as_fd(), kept.as_fd(), tokens.as_fd()];
        worker.channel.send(begin, &with)?;
        Ok(worker)
    }

    /// Its number.
    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        self.child.kill().unwrap_or_default();
        self.child.wait().map(drop).unwrap_or_default();
    }
}

/// Puts what is kept of the directory where the other process can read it.
pub(super) fn written(kept: &DirectoryCache) -> io::Result<OwnedFd> {
    let memory = rustix::fs::memfd_create("kept", rustix::fs::MemfdFlags::CLOEXEC)?;
    let mut file = std::fs::File::from(memory);
    file.write_all(&serde_json::to_vec(kept)?)?;
    file.rewind()?;
    Ok(file.into())
}

/// What the other process has put there.
pub(super) fn read(from: OwnedFd) -> io::Result<DirectoryCache> {
    // Memory, which reading never waits for; nothing else can be sealed (fcntl(2)).
    rustix::fs::fcntl_get_seals(&from)?;
    let mut bytes = Vec::new();
    std::fs::File::from(from)
        .take(LARGEST_KEPT)
        .read_to_end(&mut bytes)?;
    Ok(serde_json::from_slice(&bytes)?)
}

const MARK_IT: u8 = 0;
const ENLARGE_IT: u8 = 1;

/// Sets our mark on each socket that comes, or gives it large buffers, until the other end is gone. One at a time; the answer is an error's number, or 0.
fn mark_sockets(marks: &OwnedFd) {
    let mut asked = [0; 1];
    while let Ok((1, with)) = receive(marks, &mut asked) {
        let done = match (asked, with.as_slice()) {
            ([MARK_IT], [socket]) => SockRef::from(socket).set_mark(MARK),
            ([ENLARGE_IT], [socket]) => force_buffers(socket),
            _ => Err(io::ErrorKind::InvalidInput.into()),
        };
        let number = match done {
            Ok(()) => 0,
            Err(error) => error.raw_os_error().unwrap_or(libc::EINVAL),
        };
        if rustix::net::send(marks, &number.to_ne_bytes(), SendFlags::NOSIGNAL).is_err() {
            return;
        }
    }
}

/// Has the worker's sockets marked over `marks`, from now on.
pub(super) fn leave_marks_to(marks: OwnedFd) {
    let marks = Mutex::new(marks);
    let agent = move |socket: BorrowedFd<'_>, right| {
        let marks = marks.lock();
        ask(&marks, socket, right)
    };
    hoplite_overlay::direct::rights::leave_to(Box::new(agent));
}

fn ask(marks: &OwnedFd, socket: BorrowedFd<'_>, right: Right) -> io::Result<()> {
    let asked = match right {
        Right::Mark => [MARK_IT],
        Right::Buffers => [ENLARGE_IT],
    };
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let with = [socket];
    ancillary.push(SendAncillaryMessage::ScmRights(&with));
    let parts = [IoSlice::new(&asked)];
    sendmsg(marks, &parts, &mut ancillary, SendFlags::NOSIGNAL)?;
    let mut answer = [0; 4];
    rustix::net::recv(marks, &mut answer, RecvFlags::empty())?;
    match i32::from_ne_bytes(answer) {
        0 => Ok(()),
        number => Err(io::Error::from_raw_os_error(number)),
    }
}

/// What it was started with.
#[derive(Debug)]
pub(super) struct Task {
    pub(super) client: Client,
    pub(super) services: Vec<Prepared>,
    /// How long the first probe may take.
    pub(super) wait: Duration,
    pub(super) recording: Recording,
}

/// What it must know before it begins.
struct Known {
    again: bool,
    listed: Option<Listed>,
    wallets: Wallets,
    names: Arc<Remembering>,
}

/// Servers in whose place we answer, and the descriptor of the interface.
type First = (Vec<IpAddr>, Vec<OwnedFd>);

impl Known {
    /// Dials.
    fn begin(self, task: &mut Task) -> Result<WorkerOverlay, Failure> {
        let Self {
            again,
            listed,
            wallets,
            names,
        } = self;
        let kept = (listed.as_ref(), wallets.clone());
        let carried = traffic::carried(&task.client, kept, &task.recording, &names)?;
        let overlay = traffic::split(&task.client, &carried, &names);
        let services = std::mem::take(&mut task.services);
        let services = carried.serve(services, &traffic::past(&names));
        Ok(WorkerOverlay {
            again,
            listed,
            wallets,
            carried,
            services,
            overlay,
            names,
        })
    }
}

/// What it carries by.
struct WorkerOverlay {
    again: bool,
    listed: Option<Listed>,
    wallets: Wallets,
    carried: ClientOverlay,
    services: Vec<Running>,
    overlay: Arc<dyn Overlay>,
    names: Arc<Remembering>,
}

impl WorkerOverlay {
    /// Whether all that is wrong is that there are no private tokens for now.
    fn has_run_out(&self, error: &Error) -> bool {
        let is_out = |left: &TokensLeft| left.left == 0;
        let is_refused = error.reason() == Some(Reason::Authentication);
        self.again && is_refused && self.wallets.left().iter().any(is_out)
    }
}

/// The process that carries the traffic: it speaks with relays and programs, and has no right to anything but the descriptors that it was given.
struct Worker<'a> {
    task: &'a Task,
    channel: Arc<Channel>,
    /// Addresses that programs can use.
    addresses: Vec<IpAddr>,
    counters: Arc<Counters>,
    /// What earlier interfaces counted.
    before: BTreeMap<String, u64>,
}

/// Serves until the other process is gone, or tells it to leave.
pub(super) async fn work(mut task: Task, socket: OwnedFd) -> Result<(), Failure> {
    // A terminal and a service manager signal all processes; when this one ends, the other one decides.
    let _signals = Signals::listen()?;
    let channel = Arc::new(Channel::new(socket).map_err(|error| failed(&error))?);
    if let Err(failure) = carry(&mut task, &channel).await {
        // Nobody is left to hear it, if this fails.
        let said = FromWorker::Failed(failure.complaints());
        channel.send(&said, &[]).unwrap_or_default();
    }
    Ok(())
}

/// Nobody is dialled before the interface comes, and with it the rules by which our sockets are routed: by those of others a first packet would leave
/// from the address of another tunnel.
async fn carry(task: &mut Task, channel: &Arc<Channel>) -> Result<(), Failure> {
    let Some((known, addresses)) = prepare(task, channel).await? else {
        return Ok(());
    };
    let said = channel.send(&FromWorker::Prepared, &[]);
    said.map_err(|error| failed(&error))?;
    let Some(first) = first_interface(channel, &known.names).await? else {
        return Ok(());
    };
    let worker_overlay = known.begin(task)?;
    let worker = Worker {
        task,
        channel: Arc::clone(channel),
        addresses,
        counters: Arc::default(),
        before: BTreeMap::new(),
    };
    worker.serve(&worker_overlay, first).await
}

/// Waits for the first interface, and the servers in whose place we answer; `None` when it is not wanted any more.
async fn first_interface(channel: &Channel, names: &Remembering) -> Result<Option<First>, Failure> {
    loop {
        match channel.next().await.map_err(|error| failed(&error))? {
            None | Some((ToWorker::Leave, _)) => return Ok(None),
            Some((ToWorker::Device { answered }, with)) => return Ok(Some((answered, with))),
            Some((ToWorker::Servers(servers), _)) => names.ask(&servers),
            Some((ToWorker::Report, _)) => {
                let nothing_yet = FromWorker::Report(Box::default());
                let said = channel.send(&nothing_yet, &[]);
                said.map_err(|error| failed(&error))?;
            }
            Some(_) => {}
        }
    }
}

/// Learns who the relays are, before anything is taken; `None` when it is not wanted any more.
async fn prepare(
    task: &mut Task,
    channel: &Arc<Channel>,
) -> Result<Option<(Known, Vec<IpAddr>)>, Failure> {
    let told = channel.next().await.map_err(|error| failed(&error))?;
    let Some((
        ToWorker::Begin {
            servers,
            asks_system,
            again,
            addresses,
        },
        with,
    )) = told
    else {
        return Ok(None);
    };
    let [marks, kept, tokens] =
        <[OwnedFd; 3]>::try_from(with).map_err(|_| failed(&"three descriptors did not come"))?;
    leave_marks_to(marks);
    let kept = read(kept).map_err(|error| failed(&error))?;
    let keeper = Some(keeper(kept, channel));
    // What an earlier block stops, these sockets may.
    let marked = Direct::for_tunnels().mark(MARK);
    let listed = listed::prepare(&mut task.client, &marked, keeper).await?;
    let names = traffic::names(&task.client, &servers, asks_system).await;
    let wallets = traffic::wallets(&task.client, tokens, &names).await?;
    let known = Known {
        again,
        listed,
        wallets,
        names,
    };
    Ok(Some((known, addresses)))
}

/// What is new of the directory goes to the other process. One that does not read loses it, and has it with what is new the next time; Tor's documents with
/// the next of these.
fn keeper(kept: DirectoryCache, channel: &Arc<Channel>) -> Keeper {
    let channel = Mutex::new(Arc::downgrade(channel));
    let keep = move |kept: DirectoryCache| {
        let channel = channel.lock().upgrade();
        let sent = channel.map_or(Ok(()), |channel| {
            let kept = written(&kept)?;
            channel.send(&FromWorker::Keep, &[kept.as_fd()])
        });
        if let Err(error) = sent {
            warn!(%error, "what is new of the directory is not kept");
        }
    };
    Keeper {
        kept,
        keep: Arc::new(keep),
    }
}

impl Worker<'_> {
    async fn serve(mut self, worker_overlay: &WorkerOverlay, first: First) -> Result<(), Failure> {
        let mut probing = pin!(traffic::until_it_flows(
            &*worker_overlay.overlay,
            self.task.wait
        ));
        let mut probes = true;
        let mut transparent = self.transparent(first.0, first.1, worker_overlay)?;
        loop {
            let mut serving = pin!(transparent.serve(pending()));
            let mut serves = true;
            let next = loop {
                tokio::select! {
                    _ = &mut serving, if serves => {
                        serves = false;
                        self.say(&FromWorker::Gone)?;
                    }
                    probed = &mut probing, if probes => {
                        probes = false;
                        match probed {
                            // Another worker would have no more of them, and ask the issuer each time.
                            Err(error) if worker_overlay.has_run_out(&error) => warn!("{error}: nothing passes"),
                            Err(error) => return Err(traffic::failure(&error, worker_overlay.carried.missing())),
                            Ok(()) => {
                                let report = Box::new(self.report(worker_overlay));
                                self.say(&FromWorker::Flows(report))?;
                            }
                        }
                    }
                    told = self.channel.next() => {
                        match told.map_err(|error| failed(&error))? {
                            None => return Ok(()),
                            Some((ToWorker::Leave, _)) => {
                                worker_overlay.carried.tell();
                                worker_overlay.carried.leave().await;
                                return Ok(());
                            }
                            Some((ToWorker::Device { answered }, with)) => break (answered, with),
                            Some((told, _)) => self.obey(told, worker_overlay)?,
                        }
                    }
                }
            };
            transparent = self.transparent(next.0, next.1, worker_overlay)?;
        }
    }

    fn obey(&self, told: ToWorker, worker_overlay: &WorkerOverlay) -> Result<(), Failure> {
        match told {
            ToWorker::Servers(servers) => worker_overlay.names.ask(&servers),
            ToWorker::Look => worker_overlay.carried.network_changed(),
            ToWorker::Report => {
                let report = Box::new(self.report(worker_overlay));
                self.say(&FromWorker::Report(report))?;
            }
            ToWorker::Tell => {
                worker_overlay.carried.tell();
                worker_overlay.services.iter().for_each(Running::tell);
            }
            ToWorker::Begin { .. } | ToWorker::Device { .. } | ToWorker::Leave => {}
        }
        Ok(())
    }

    /// The mediator on the interface that came.
    fn transparent(
        &mut self,
        answered: Vec<IpAddr>,
        mut with: Vec<OwnedFd>,
        worker_overlay: &WorkerOverlay,
    ) -> Result<Transparent<Descriptor>, Failure> {
        let descriptor = with.pop().ok_or_else(|| failed(&"no interface came"))?;
        let client = &self.task.client.config;
        let mut config: tun::Config = client.transparent();
        let device =
            Device::new(descriptor, config.device.mtu, true).map_err(|error| failed(&error))?;
        // Without addresses of a family programs are told none of it.
        config.device.addresses = self.addresses.clone();
        config.device.behind = client.takeover.gateway.clone();
        config.dns.resolvers.extend(answered);
        config.dns.onion_services = worker_overlay.carried.reaches_services();
        let excluded = client.takeover.exclude.domains.iter();
        let excluded = excluded.map(|domain| domain.name().clone());
        config.dns.elsewhere.extend(excluded);
        client.ways_of_names(&mut config.dns);
        let transparent = Transparent::new(config, Arc::clone(&worker_overlay.overlay), device);
        for (name, count) in self.counters.snapshot().all() {
            *self.before.entry(name.to_owned()).or_default() += count;
        }
        self.counters = transparent.counters();
        Ok(transparent)
    }

    fn report(&self, worker_overlay: &WorkerOverlay) -> Report {
        let (listed, carried) = (worker_overlay.listed.as_ref(), &worker_overlay.carried);
        let live = self.counters.snapshot().all();
        let mut counters = self.before.clone();
        for (name, count) in &live {
            *counters.entry((*name).to_owned()).or_default() += count;
        }
        Report {
            path: carried.names(),
            connected: carried.missing().is_none(),
            channel: carried.channel().map(str::to_owned),
            split_until: listed.and_then(Listed::split_until),
            tokens: worker_overlay.wallets.left(),
            services: service::statuses(&worker_overlay.services),
            service_circuits: carried.service_circuits(),
            flows: open_flows(&live),
            counters,
        }
    }

    fn say(&self, said: &FromWorker) -> Result<(), Failure> {
        self.channel
            .send(said, &[])
            .map_err(|error: io::Error| failed(&error))
    }
}

fn failed(why: &dyn std::fmt::Display) -> Failure {
    Failure::new("carrying traffic", why, "please report this")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn channels() -> (Channel, OwnedFd) {
        let (one, other) = pair().expect("sockets");
        (Channel::new(one).expect("a channel"), other)
    }

    fn says(socket: &OwnedFd, bytes: &[u8]) {
        let sent = rustix::net::send(socket, bytes, SendFlags::empty());
        assert_eq!(sent, Ok(bytes.len()));
    }

    #[tokio::test]
    async fn a_message_arrives_with_its_descriptor_and_the_end_is_heard() {
        let (channel, other) = channels();
        let other = Channel::new(other).expect("a channel");
        let kept = written(&DirectoryCache::default()).expect("written");
        let sent = other.send(&FromWorker::Keep, &[kept.as_fd()]);
        sent.expect("sent");
        let (said, with) = channel
            .next()
            .await
            .expect("no failure")
            .expect("a message");
        assert!(matches!(said, FromWorker::Keep));
        let [kept] = <[OwnedFd; 1]>::try_from(with).expect("one");
        assert_eq!(read(kept).expect("read"), DirectoryCache::default());
        drop(other);
        let end = channel.next::<FromWorker>().await;
        assert!(end.expect("no failure").is_none());
    }

    #[tokio::test]
    async fn a_worker_that_asks_for_anything_else_is_not_understood() {
        let others = [
            "{\"run\":[\"nft\",\"flush\",\"ruleset\"]}",
            "{\"device\":{\"answered\":[]}}",
            "\"leave\"",
            "\"down\"",
            "{\"keep\":\"/etc/passwd\"}",
            "{",
        ];
        for other in others {
            let (channel, socket) = channels();
            says(&socket, other.as_bytes());
            let heard = channel.next::<FromWorker>().await;
            assert!(heard.is_err(), "{other}");
        }
    }

    #[tokio::test]
    async fn a_message_that_is_too_long_is_an_end_and_no_allocation() {
        let (channel, socket) = channels();
        says(&socket, &vec![b' '; MAX_MESSAGE + 1]);
        assert!(channel.next::<FromWorker>().await.is_err());
    }

    #[test]
    fn what_is_to_be_kept_is_memory_and_nothing_that_could_be_waited_for() {
        let (pipe, _writer) = io::pipe().expect("a pipe");
        assert!(read(pipe.into()).is_err());
        let file = std::fs::File::open("/etc/hostname")
            .or_else(|_| std::fs::File::open("/proc/self/status"));
        assert!(read(file.expect("one of them").into()).is_err());
    }

    #[test]
    fn marks_are_set_on_sockets_alone_and_nothing_else_is_done_to_them() {
        let (ours, asked) = pair().expect("sockets");
        let thread = thread::spawn(move || mark_sockets(&ours));
        let null = std::fs::File::open("/dev/null").expect("there");
        assert!(ask(&asked, null.as_fd(), Right::Mark).is_err());
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("bound");
        let told = ask(&asked, socket.as_fd(), Right::Mark).map_err(|error| error.kind());
        match told {
            Ok(()) => assert_eq!(SockRef::from(&socket).mark().ok(), Some(MARK)),
            Err(kind) => assert_eq!(kind, io::ErrorKind::PermissionDenied),
        }
        for wrong in [&[2][..], &[MARK_IT]] {
            says(&asked, wrong);
            let mut answer = [0; 4];
            rustix::net::recv(&asked, &mut answer, RecvFlags::empty()).expect("answered");
            assert_ne!(i32::from_ne_bytes(answer), 0);
        }
        drop(asked);
        thread.join().expect("it ends with the other side");
    }
}
