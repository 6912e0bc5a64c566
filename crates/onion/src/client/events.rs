//! What a client's circuits and streams do, for whoever follows them on this device, in the words of Tor's control protocol: control-spec, "Circuit
//! status changed" and "Stream status changed".
//!
//! Nothing is kept: who comes later does not learn what was before. Streams are those of programs; what the client asks relays itself, names and UDP
//! are none.

use std::{
    fmt,
    fmt::Write,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use hoplite_overlay::{Error, ErrorKind, Terms};
use hoplite_wire::{ServicePurpose, Target, cell::relay::EndReason};
use parking_lot::Mutex;
use tokio::sync::broadcast;

use crate::{failure, path::Relay};

/// Events that a follower may be behind. One that is further behind has lost some, and is told so.
const BEHIND: usize = 1024;

/// What an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// A circuit, `CIRC`.
    Circuit,
    /// A stream, `STREAM`.
    Stream,
}

/// Something that happened.
#[derive(Clone, Debug)]
pub struct Event {
    /// About what.
    pub kind: EventKind,
    /// The event as the control protocol has it, behind its `650 `. It names a target, a program's port and the relays of a path: none of it is for a log.
    pub text: Arc<str>,
}

/// Where events go. By default nowhere: none are made then.
#[derive(Clone, Default)]
pub struct Events(Option<Arc<Hub>>);

struct Hub {
    events: broadcast::Sender<Event>,
    circuits: AtomicU64,
    streams: AtomicU64,
}

impl Events {
    /// Events that can be followed.
    pub fn open() -> Self {
        Self(Some(Arc::new(Hub {
            events: broadcast::Sender::new(BEHIND),
            circuits: AtomicU64::default(),
            streams: AtomicU64::default(),
        })))
    }

    /// What happens from now on; nothing, if events go nowhere.
    pub fn follow(&self) -> Option<broadcast::Receiver<Event>> {
        self.0.as_ref().map(|hub| hub.events.subscribe())
    }

    /// A circuit is begun.
    pub(crate) fn circuit(&self, purpose: CircuitPurpose) -> CircuitEvents {
        let told = CircuitEvents {
            id: self.0.as_ref().map_or(0, |hub| next(&hub.circuits)),
            hub: self.0.clone(),
            purpose,
            path: String::new(),
            hops: 0,
            built: false,
            ended: false,
        };
        told.tell("LAUNCHED", None);
        told
    }

    /// A program asks for a stream.
    pub(crate) fn stream(&self, target: &Target, terms: &Terms) -> StreamEvents {
        let Some(hub) = &self.0 else {
            return StreamEvents::default();
        };
        let told = Told {
            id: next(&hub.streams),
            hub: Arc::clone(hub),
            target: target.to_string(),
            state: Mutex::default(),
        };
        told.tell("NEW", &Source(terms.program));
        StreamEvents(Some(Arc::new(told)))
    }
}

impl Hub {
    fn tell(&self, kind: EventKind, text: String) {
        let event = Event {
            kind,
            text: text.into(),
        };
        // That nobody follows is no error.
        self.events.send(event).ok();
    }
}

/// From 1 on, as C tor counts.
fn next(counter: &AtomicU64) -> u64 {
    counter.fetch_add(1, Relaxed) + 1
}

/// What a circuit is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CircuitPurpose {
    /// Streams.
    General,
    /// The streams of a Conflux set, which it is not linked to yet.
    ConfluxUnlinked,
    /// The same, linked.
    ConfluxLinked,
    /// An onion service.
    Service(ServicePurpose),
}

impl CircuitPurpose {
    fn word(self) -> &'static str {
        match self {
            Self::General => "GENERAL",
            Self::ConfluxUnlinked => "CONFLUX_UNLINKED",
            Self::ConfluxLinked => "CONFLUX_LINKED",
            Self::Service(ServicePurpose::ClientRendezvous) => "HS_CLIENT_REND",
            Self::Service(ServicePurpose::ClientIntroduction) => "HS_CLIENT_INTRO",
            Self::Service(ServicePurpose::ClientHsDir) => "HS_CLIENT_HSDIR",
            Self::Service(ServicePurpose::ServiceRendezvous) => "HS_SERVICE_REND",
            Self::Service(ServicePurpose::ServiceIntroduction) => "HS_SERVICE_INTRO",
            Self::Service(ServicePurpose::ServiceHsDir) => "HS_SERVICE_HSDIR",
        }
    }
}

/// One circuit, of which is told what it does. Dropped, it has ended.
pub(crate) struct CircuitEvents {
    hub: Option<Arc<Hub>>,
    id: u64,
    purpose: CircuitPurpose,
    /// As far as it has come.
    path: String,
    hops: usize,
    built: bool,
    ended: bool,
}

impl CircuitEvents {
    /// Which circuit it is; 0 where events go nowhere.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// It has so many hops of `path`.
    pub(crate) fn reached(&mut self, path: &[Relay], hops: usize) {
        if self.hub.is_none() {
            return;
        }
        while self.hops < hops
            && let Some(relay) = path.get(self.hops)
        {
            self.path.push(if self.hops == 0 { ' ' } else { ',' });
            push_long_name(&mut self.path, relay);
            self.hops += 1;
            self.tell("EXTENDED", None);
        }
    }

    /// It has all its hops.
    pub(crate) fn built(&mut self) {
        self.built = true;
        self.tell("BUILT", None);
    }

    /// A leg of a set is linked.
    pub(crate) fn linked(&mut self) {
        self.purpose = CircuitPurpose::ConfluxLinked;
    }

    /// It has ended, or did not come about; `ours`: we have ended it.
    pub(crate) fn end(&mut self, error: &Error, ours: bool) {
        let reason = match error.kind() {
            _ if ours => "FINISHED",
            ErrorKind::TimedOut => "TIMEOUT",
            ErrorKind::EntryUnreachable if self.hops == 0 => "CONNECTFAILED",
            ErrorKind::EntryUnreachable => "CHANNEL_CLOSED",
            ErrorKind::Bug => "INTERNAL",
            _ => "DESTROYED",
        };
        self.end_because(reason);
    }

    fn end_because(&mut self, reason: &'static str) {
        if !std::mem::replace(&mut self.ended, true) {
            let status = if self.built { "CLOSED" } else { "FAILED" };
            self.tell(status, Some(reason));
        }
    }

    fn tell(&self, status: &'static str, reason: Option<&'static str>) {
        let Some(hub) = &self.hub else {
            return;
        };
        let (id, path, purpose) = (self.id, &self.path, self.purpose.word());
        let mut text = format!("CIRC {id} {status}{path} PURPOSE={purpose}");
        if let Some(reason) = reason {
            write!(text, " REASON={reason}").unwrap_or_default();
        }
        hub.tell(EventKind::Circuit, text);
    }
}

impl Drop for CircuitEvents {
    fn drop(&mut self) {
        self.end_because("FINISHED");
    }
}

/// control-spec "General-use tokens": a LongName, without a nickname. A relay without an RSA identity is called by what stands in for one.
fn push_long_name(text: &mut String, relay: &Relay) {
    text.push('$');
    for byte in relay.keys.rsa_id {
        write!(text, "{byte:02X}").unwrap_or_default();
    }
}

/// One stream of a program, of which is told what it does. It has ended when the last of these is dropped.
#[derive(Clone, Default)]
pub(crate) struct StreamEvents(Option<Arc<Told>>);

struct Told {
    hub: Arc<Hub>,
    id: u64,
    target: String,
    state: Mutex<StreamState>,
}

#[derive(Default)]
struct StreamState {
    /// The circuit that it is on; 0: on none yet.
    circuit: u64,
    answered: bool,
    ended: bool,
}

impl StreamEvents {
    /// It is asked for on this circuit.
    pub(crate) fn sent(&self, circuit: u64) {
        if let Some(told) = &self.0 {
            told.state.lock().circuit = circuit;
            told.tell("SENTCONNECT", &"");
        }
    }

    /// Its target has answered.
    pub(crate) fn succeeded(&self) {
        let Some(told) = &self.0 else {
            return;
        };
        let again = std::mem::replace(&mut told.state.lock().answered, true);
        if !again {
            told.tell("SUCCEEDED", &"");
        }
    }

    /// It does not come about, on no circuit that was tried.
    pub(crate) fn failed(&self, error: &Error) {
        if let Some(told) = &self.0 {
            told.end("FAILED", failure::end_of(error));
        }
    }

    /// Its program holds it no more; `circuit` is why its circuit has ended, if it has.
    pub(crate) fn closed(&self, circuit: Option<&Error>) {
        let Some(told) = &self.0 else {
            return;
        };
        let answered = told.state.lock().answered;
        if answered {
            let reason = circuit.map_or(EndReason::DONE, |_| EndReason::DESTROY);
            told.end("CLOSED", reason);
        }
    }
}

impl Told {
    fn end(&self, status: &'static str, reason: EndReason) {
        let again = std::mem::replace(&mut self.state.lock().ended, true);
        if !again {
            self.tell(status, &format_args!(" REASON={}", word(reason)));
        }
    }

    fn tell(&self, status: &'static str, more: &dyn fmt::Display) {
        let (id, circuit, target) = (self.id, self.state.lock().circuit, &self.target);
        let text = format!("STREAM {id} {status} {circuit} {target}{more}");
        self.hub.tell(EventKind::Stream, text);
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        self.end("FAILED", EndReason::MISC);
    }
}

/// Who asks for a stream, and that it is for a program.
struct Source(Option<SocketAddr>);

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(program) = self.0 {
            write!(f, " SOURCE_ADDR={program}")?;
        }
        f.write_str(" PURPOSE=USER")
    }
}

/// What control-spec calls a reason.
fn word(reason: EndReason) -> &'static str {
    match reason {
        EndReason::RESOLVEFAILED => "RESOLVEFAILED",
        EndReason::CONNECTREFUSED => "CONNECTREFUSED",
        EndReason::EXITPOLICY => "EXITPOLICY",
        EndReason::DESTROY => "DESTROY",
        EndReason::DONE => "DONE",
        EndReason::TIMEOUT => "TIMEOUT",
        EndReason::NOROUTE => "NOROUTE",
        EndReason::INTERNAL => "INTERNAL",
        EndReason::RESOURCELIMIT => "RESOURCELIMIT",
        _ => "MISC",
    }
}

impl PartialEq for Events {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (None, None) => true,
            _ => false,
        }
    }
}

impl Eq for Events {}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Events")
    }
}
