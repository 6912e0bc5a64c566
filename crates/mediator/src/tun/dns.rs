//! Answers programs' DNS queries: names at once with temporary addresses, so that they travel unresolved to the last relay;
//! special names here; everything else by asking through the overlay. [`Responder`] is a machine without I/O, [`Resolver`] its driver.
//! Paper 003 §6 (optimistic DNS), RFC 1035, RFC 2308, RFC 6761 and its relatives.
//!
//! # What is answered how
//! | question | optimistic | pessimistic |
//! |---|---|---|
//! | A, AAAA of a name | a temporary address, at once | what the far end answers |
//! | … while no temporary address is left | what the far end answers | what the far end answers |
//! | … of a name that a flow did not find within 30 s | does not exist | what the far end answers |
//! | … of a name below a search domain | a temporary address if the far end has one, else its answer | what the far end answers |
//! | … of a single label | does not exist | does not exist |
//! | AAAA where the device has no IPv6 | nothing | nothing |
//! | HTTPS, SVCB | nothing, at once | what the far end answers |
//! | PTR of a temporary address | the name, to who has asked for it; to others it does not exist | the same |
//! | other types | what the far end answers | what the far end answers |
//! | names in `by_name` | as all others, but never a real address | a temporary address if the far end has one; HTTPS nothing |
//! | … all others, where these are left alone | what the far end answers, whatever it is | the same |
//! | names in `elsewhere` | as below a search domain, HTTPS nothing | the same |
//! | A, AAAA of an onion service, where the overlay leads there | a temporary address, at once | the same |
//! | … all other types, and names below `.onion` that are none | nothing; does not exist | the same |
//!
//! **Search domains.** A resolver library completes names with them and takes the first candidate that exists; if all were
//! answered at once, the first would always win. So candidates are asked for, which costs a round trip, and single labels
//! exist in no case: what they mean on this network must not be told to a relay.
//!
//! **HTTPS and SVCB** are answered with nothing. What could be written without asking has neither ALPN nor ECH, hence tells no
//! more than A and AAAA do; and "clients SHOULD upgrade" to https where such a record exists (RFC 9460 §9.5), which a made-up one
//! would make them do with sites that have no https.
//!
//! **Onion services** have no address that anybody could look up, so nobody is asked for their names, whatever becomes of them (RFC 7686 §2). A
//! mistyped one is found by its flow, like any name that does not exist.
//!
//! **Pessimistic mode** hands out real addresses, and then the address travels, not the name: an address may belong to
//! many names, and which one a program means is not ours to guess. Addresses of this device's own networks are dropped, unless
//! `private` is set: nobody far away knows them, and a program that believed them would be led to a neighbour.

use std::{
    fmt, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::{Arc, Weak},
    time::Duration,
};

use hoplite_overlay::{Error, ErrorKind, Overlay, Stream, Terms};
use hoplite_wire::{
    HostName,
    dns::{Code, MAX_MESSAGE, Question, RecordType, Unfit},
    ip,
    special::{
        LOOPBACK, has_onion_address, is_local_name, is_localhost, is_nobody, is_onion_name,
        is_or_carries_special, is_special_purpose,
    },
};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, BufReader, DuplexStream, duplex},
    sync::Notify,
    time::{Instant, timeout},
};

use super::{
    Counters, DeviceContext, FlowKey,
    config::{self, DnsMode},
    names::Names,
    outgoing::{OutgoingPacket, udp_headers},
};
use crate::users::{Slot, Slots, User, UserQueues};

/// How long a negative answer of ours may be kept, in seconds.
const NEGATIVE_TTL: u32 = 30;

/// Which families the device has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Families {
    pub(crate) v4: bool,
    pub(crate) v6: bool,
}

impl Families {
    /// Those of the device's addresses; both if they are not known.
    pub(crate) fn of(own: &[IpAddr]) -> Self {
        let has = |is: fn(&IpAddr) -> bool| own.is_empty() || own.iter().any(is);
        Self {
            v4: has(IpAddr::is_ipv4),
            v6: has(IpAddr::is_ipv6),
        }
    }
}

/// How a query comes and its reply goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    /// UDP: replies are limited in size.
    Udp,
    /// TCP.
    Tcp,
}

/// What is to be done about a query.
#[derive(Debug)]
pub(crate) enum QueryOutcome {
    /// This is the reply.
    Reply(Vec<u8>),
    /// It is to be asked through the overlay; [`Responder::answered`] makes the reply of the response.
    Forward(ForwardedQuery),
    /// Nothing: it was no query.
    Drop,
}

/// A question that waits for the far end.
#[derive(Debug)]
pub(crate) struct ForwardedQuery {
    question: Question,
    transport: Transport,
    user: User,
    rule: ReplyRule,
}

/// What is made of the far end's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReplyRule {
    /// The program gets it.
    PassOn,
    /// The program gets it, whatever addresses it has.
    LeaveAlone,
    /// If the name has addresses, a temporary one stands for them; while none is left the program gets the answer.
    Substitute,
    /// If the name has addresses, a temporary one stands for them; while none is left the query fails: a flow to a real address would go another
    /// way.
    SubstituteOnly,
}

/// Which way the flows to a name go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// The overlay's path, as every name's.
    Relays,
    /// One within the overlay that its name alone tells.
    Named,
    /// Another one, that the overlay knows.
    Elsewhere,
    /// Their own: programs open them without us.
    LeftAlone,
}

/// What the rules for a question say.
enum Decision {
    Reply(Vec<u8>),
    Forward(ReplyRule),
}

/// Decides about queries, without I/O and clock.
#[derive(Debug)]
pub(crate) struct Responder {
    config: config::Dns,
    families: Families,
    names: Arc<Names>,
    counters: Arc<Counters>,
}

impl Responder {
    pub(crate) fn new(
        config: config::Dns,
        families: Families,
        names: Arc<Names>,
        counters: Arc<Counters>,
    ) -> Self {
        Self {
            config,
            families,
            names,
            counters,
        }
    }

    /// What becomes of a query.
    pub(crate) fn answer(
        &self,
        query: &[u8],
        transport: Transport,
        user: User,
        now: Instant,
    ) -> QueryOutcome {
        self.counters.dns_queries.add(1);
        let question = match Question::read(query) {
            Ok(question) => question,
            Err(unfit) => {
                self.counters.dns_malformed.add(1);
                return match unfit {
                    Unfit::Answered(reply) => QueryOutcome::Reply(reply),
                    Unfit::Nothing => QueryOutcome::Drop,
                };
            }
        };
        match self.decide(&question, user, now) {
            Decision::Reply(reply) => QueryOutcome::Reply(fitted(&question, transport, reply)),
            Decision::Forward(rule) => QueryOutcome::Forward(ForwardedQuery {
                question,
                transport,
                user,
                rule,
            }),
        }
    }

    /// The reply to a question for which somebody was asked.
    pub(crate) fn answered(
        &self,
        query: &ForwardedQuery,
        response: Result<Vec<u8>, Error>,
        now: Instant,
    ) -> Vec<u8> {
        let question = &query.question;
        let reply = match response {
            Ok(response) => match query.rule {
                ReplyRule::PassOn => self.adopt(question, &response),
                ReplyRule::LeaveAlone => {
                    let fine = |ip| !self.names.is_temporary(ip);
                    question.adopt(&response, fine).ok()
                }
                ReplyRule::Substitute | ReplyRule::SubstituteOnly => {
                    self.substitute(query, &response, now)
                }
            },
            Err(error) => Some(question.failed(rcode(&error))),
        };
        let reply = reply.unwrap_or_else(|| question.failed(Code::FAILURE));
        if reply.get(3).is_some_and(|flags| flags & 0x0f == 2) {
            self.counters.dns_failed.add(1);
        }
        fitted(question, query.transport, reply)
    }

    fn decide(&self, question: &Question, user: User, now: Instant) -> Decision {
        if !question.is_internet() {
            return Decision::Reply(question.failed(Code::REFUSED));
        }
        let text = question.text();
        // Before all else: whatever goes another way, no network is told of an onion service (RFC 7686 §2).
        if is_onion_name(&text) {
            return if self.config.onion_services {
                self.onion_service(question, &text, user, now)
            } else {
                Decision::Reply(missing(question))
            };
        }
        let way = self.way(&text);
        match way {
            Way::LeftAlone => return self.left_alone(question, &text, user, now),
            Way::Elsewhere => return self.elsewhere(question),
            Way::Relays | Way::Named => {}
        }
        let special = || special_answer(question, &text).filter(|_| way == Way::Relays);
        if let Some(reply) = self.reverse(question, user, now).or_else(special) {
            return Decision::Reply(reply);
        }
        match (self.config.mode, question.kind()) {
            (_, RecordType::AAAA) if !self.families.v6 => empty(question),
            (_, RecordType::A) if !self.families.v4 => empty(question),
            (DnsMode::Pessimistic, kind) if way == Way::Relays || !leads_to_flows(kind) => {
                Decision::Forward(ReplyRule::PassOn)
            }
            (_, RecordType::HTTPS | RecordType::SVCB) => empty(question),
            (DnsMode::Pessimistic, _) => Decision::Forward(ReplyRule::SubstituteOnly),
            (DnsMode::Optimistic, RecordType::A | RecordType::AAAA) => {
                self.optimistic(question, (&text, way), user, now)
            }
            (DnsMode::Optimistic, _) => Decision::Forward(ReplyRule::PassOn),
        }
    }

    /// Of `elsewhere` and `by_name` the longest domain decides that has the name.
    fn way(&self, text: &str) -> Way {
        let longest = |domains: &[HostName]| {
            let above = domains.iter().map(HostName::as_str);
            above
                .filter(|domain| is_below(text, domain))
                .map(str::len)
                .max()
        };
        let elsewhere = longest(&self.config.elsewhere);
        match (longest(&self.config.by_name), elsewhere) {
            (Some(named), elsewhere) if Some(named) >= elsewhere => Way::Named,
            _ if self.config.leaves_others => Way::LeftAlone,
            (_, Some(_)) => Way::Elsewhere,
            (_, None) => Way::Relays,
        }
    }

    /// What is asked for as if we were not there, but for what is found on this machine alone, and for ways to other resolvers, where names could not
    /// be told apart.
    fn left_alone(&self, question: &Question, text: &str, user: User, now: Instant) -> Decision {
        let stays = is_localhost(text) || is_way_to_another_resolver(text);
        let special = || special_answer(question, text).filter(|_| stays);
        match self.reverse(question, user, now).or_else(special) {
            Some(reply) => Decision::Reply(reply),
            None => Decision::Forward(ReplyRule::LeaveAlone),
        }
    }

    fn optimistic(
        &self,
        question: &Question,
        (text, way): (&str, Way),
        user: User,
        now: Instant,
    ) -> Decision {
        // A flow to a real address would not go the way of its name.
        let unless = |rule| match way {
            Way::Named => ReplyRule::SubstituteOnly,
            _ => rule,
        };
        match question.name() {
            // Nobody can open a flow to such a name.
            None => Decision::Forward(ReplyRule::PassOn),
            Some(_) if is_below_any(text, &self.config.search) => {
                Decision::Forward(unless(ReplyRule::Substitute))
            }
            Some(name) if self.names.is_missing(&name, now) => {
                Decision::Reply(question.nothing(Code::NO_NAME, NEGATIVE_TTL))
            }
            Some(name) => match self.temporary(question, &name, user, now) {
                Some(reply) => Decision::Reply(reply),
                None => Decision::Forward(unless(ReplyRule::PassOn)),
            },
        }
    }

    /// A name that nobody is asked for: it is answered here, or not at all.
    fn onion_service(&self, question: &Question, text: &str, user: User, now: Instant) -> Decision {
        let named = question.name().filter(|_| has_onion_address(text));
        let known = named.filter(|name| !self.names.is_missing(name, now));
        let Some(name) = known else {
            return Decision::Reply(missing(question));
        };
        match question.kind() {
            RecordType::AAAA if !self.families.v6 => empty(question),
            RecordType::A if !self.families.v4 => empty(question),
            RecordType::A | RecordType::AAAA => {
                let reply = self.temporary(question, &name, user, now);
                Decision::Reply(reply.unwrap_or_else(|| question.failed(Code::FAILURE)))
            }
            _ => empty(question),
        }
    }

    /// Names that go another way must be known by the time a flow is opened: real addresses are not handed out.
    fn elsewhere(&self, question: &Question) -> Decision {
        match question.kind() {
            RecordType::AAAA if !self.families.v6 => empty(question),
            RecordType::A if !self.families.v4 => empty(question),
            RecordType::A | RecordType::AAAA => Decision::Forward(ReplyRule::SubstituteOnly),
            RecordType::HTTPS | RecordType::SVCB => empty(question),
            _ => Decision::Forward(ReplyRule::PassOn),
        }
    }

    /// The name of a temporary address, for who has asked for it: nobody learns which names others use. `None` if the question is about something else.
    fn reverse(&self, question: &Question, user: User, now: Instant) -> Option<Vec<u8>> {
        let (ip, prefix) = question.reverse()?;
        let whole = if ip.is_ipv4() { 32 } else { 128 };
        if prefix != whole || !self.names.is_temporary(ip) {
            return None;
        }
        let name = self.names.name_for(user, ip, now);
        Some(match (question.kind(), name) {
            (RecordType::PTR, Some(name)) => question.pointer(&name, self.ttl()),
            (_, Some(_)) => question.nothing(Code::NO_ERROR, NEGATIVE_TTL),
            (_, None) => question.nothing(Code::NO_NAME, 0),
        })
    }

    /// The reply with the temporary addresses of a name; `None`, and counted, while none is left.
    fn temporary(
        &self,
        question: &Question,
        name: &HostName,
        user: User,
        now: Instant,
    ) -> Option<Vec<u8>> {
        let pair = self.names.pair(name, user, now);
        if pair.is_none() {
            self.counters.dns_exhausted.add(1);
        }
        Some(question.addresses(pair?.both(), self.ttl()))
    }

    fn substitute(&self, query: &ForwardedQuery, response: &[u8], now: Instant) -> Option<Vec<u8>> {
        let (question, rule) = (&query.question, query.rule);
        let (rcode, found) = question.heard(response).ok()?;
        let wanted = |ip: &IpAddr| ip.is_ipv4() == (question.kind() == RecordType::A);
        match rcode {
            Code::NO_ERROR if found.iter().any(wanted) => {
                match self.temporary(question, &question.name()?, query.user, now) {
                    None if rule == ReplyRule::Substitute => self.adopt(question, response),
                    reply => reply,
                }
            }
            Code::NO_ERROR | Code::NO_NAME => Some(question.nothing(rcode, NEGATIVE_TTL)),
            rcode => Some(question.failed(rcode)),
        }
    }

    /// The far end's answer, as far as it is believed.
    fn adopt(&self, question: &Question, response: &[u8]) -> Option<Vec<u8>> {
        question.adopt(response, |ip| self.is_believed(ip)).ok()
    }

    fn is_believed(&self, ip: IpAddr) -> bool {
        let nowhere = is_or_carries_special(ip) && !self.config.private;
        !nowhere && !self.names.is_temporary(ip)
    }

    fn ttl(&self) -> u32 {
        u32::try_from(self.config.ttl.as_secs()).unwrap_or(60)
    }
}

impl ForwardedQuery {
    /// The message to be asked.
    pub(crate) fn message(&self) -> Vec<u8> {
        self.question.message()
    }

    /// The reply when nobody can be asked now.
    pub(crate) fn failure(&self) -> Vec<u8> {
        self.question.failed(Code::FAILURE)
    }
}

/// Whether a program opens flows to what is answered, without asking for another name first.
fn leads_to_flows(kind: RecordType) -> bool {
    use RecordType::{A, AAAA, HTTPS, SVCB};
    matches!(kind, A | AAAA | HTTPS | SVCB)
}

fn empty(question: &Question) -> Decision {
    Decision::Reply(question.nothing(Code::NO_ERROR, NEGATIVE_TTL))
}

fn fitted(question: &Question, transport: Transport, reply: Vec<u8>) -> Vec<u8> {
    let max_len = match transport {
        Transport::Udp => question.datagram(),
        Transport::Tcp => MAX_MESSAGE,
    };
    question.fitted(reply, max_len)
}

/// Whether a name is below one of `domains`, or one of them.
fn is_below_any(text: &str, domains: &[HostName]) -> bool {
    let mut domains = domains.iter();
    domains.any(|domain| is_below(text, domain.as_str()))
}

/// Whether a name is below `zone`, or the zone itself.
fn is_below(text: &str, zone: &str) -> bool {
    let rest = text.strip_suffix(zone);
    rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

/// What a program is told of an overlay's failure.
fn rcode(error: &Error) -> Code {
    match error.kind() {
        ErrorKind::Forbidden => Code::REFUSED,
        _ => Code::FAILURE,
    }
}

/// The device's resolver: drives [`Responder`] and asks through the overlay what that cannot answer, for a bounded number of queries at once.
/// When there are so many, a user that has fewer of them than another takes the slot of that one's oldest.
pub(crate) struct Resolver {
    dns: Responder,
    overlay: Arc<dyn Overlay>,
    /// How many queries may be asked at once.
    max_pending: usize,
    slots: Arc<Slots>,
    pending: Mutex<UserQueues<Weak<PendingQuery>>>,
    counters: Arc<Counters>,
}

/// A query that is being asked, until it has an answer or has been evicted.
struct PendingQuery {
    slot: Mutex<Option<Slot>>,
    evicted: Notify,
}

/// Answers a program's datagrams to the device's resolver, each now or later: `queries` cut every `segment` bytes.
pub(crate) fn answer(context: &Arc<DeviceContext>, key: FlowKey, queries: &[u8], segment: usize) {
    let user = context.user(ip::UDP, key);
    for query in queries.chunks(segment.max(1)) {
        let back = Arc::clone(context);
        context.dns.datagram(query, user, move |reply| {
            let mut headers = Vec::new();
            udp_headers(&mut headers, key.target, key.program, reply.len());
            back.sink
                .send(OutgoingPacket::udp(&headers, [reply, &[]], None));
        });
    }
}

impl Resolver {
    pub(crate) fn new(
        config: &config::Dns,
        families: Families,
        names: &Arc<Names>,
        overlay: &Arc<dyn Overlay>,
        counters: &Arc<Counters>,
    ) -> Arc<Self> {
        let (names, counters) = (Arc::clone(names), Arc::clone(counters));
        Arc::new(Self {
            dns: Responder::new(config.clone(), families, names, Arc::clone(&counters)),
            overlay: Arc::clone(overlay),
            max_pending: config.asked,
            slots: Arc::default(),
            pending: Mutex::default(),
            counters,
        })
    }

    /// Answers a datagram: `reply` is called once, at once or later, or not at all if there is nothing to answer.
    pub(crate) fn datagram(
        self: &Arc<Self>,
        query: &[u8],
        user: User,
        reply: impl FnOnce(&[u8]) + Send + 'static,
    ) {
        match self.dns.answer(query, Transport::Udp, user, Instant::now()) {
            QueryOutcome::Reply(bytes) => reply(&bytes),
            QueryOutcome::Drop => {}
            QueryOutcome::Forward(query) => match self.slot(user) {
                None => reply(&query.failure()),
                Some(slot) => {
                    let resolver = Arc::clone(self);
                    tokio::spawn(async move { reply(&resolver.ask(&query, slot).await) });
                }
            },
        }
    }

    /// Answers a query that came on a stream; `None` if there is nothing to answer.
    async fn query(&self, query: &[u8], user: User) -> Option<Vec<u8>> {
        match self.dns.answer(query, Transport::Tcp, user, Instant::now()) {
            QueryOutcome::Reply(bytes) => Some(bytes),
            QueryOutcome::Drop => None,
            QueryOutcome::Forward(query) => Some(match self.slot(user) {
                None => query.failure(),
                Some(slot) => self.ask(&query, slot).await,
            }),
        }
    }

    /// The resolver's end of a user's new TCP connection.
    pub(crate) fn stream(self: &Arc<Self>, user: User) -> Stream {
        open_stream(Arc::clone(self), user)
    }

    /// A slot among the queries that are being asked; the storm that finds none is counted.
    fn slot(&self, user: User) -> Option<Arc<PendingQuery>> {
        let mut pending = self.pending.lock();
        if self.slots.len() >= self.max_pending {
            self.counters.dns_crowded.add(1);
            let victim = self.slots.victim(user).filter(|victim| *victim != user)?;
            evict(&mut pending, victim)?;
        }
        let new = Arc::new(PendingQuery {
            slot: Mutex::new(Some(self.slots.take(user))),
            evicted: Notify::new(),
        });
        pending.tidy(self.max_pending.saturating_mul(2), |pending| {
            pending.strong_count() > 0
        });
        pending.push(user, Arc::downgrade(&new));
        Some(new)
    }

    async fn ask(&self, query: &ForwardedQuery, pending: Arc<PendingQuery>) -> Vec<u8> {
        self.counters.dns_asked.add(1);
        let terms = Terms::default().within(self.dns.config.patience);
        let message = query.message();
        let asked = terms.run("asking a resolver", self.overlay.query(&message, &terms));
        tokio::select! {
            biased;
            response = asked => self.dns.answered(query, response, Instant::now()),
            () = pending.evicted.notified() => query.failure(),
        }
    }
}

/// The oldest of a user's queries fails at once.
fn evict(pending: &mut UserQueues<Weak<PendingQuery>>, user: User) -> Option<()> {
    while let Some(oldest) = pending.pop(user) {
        let Some(oldest) = oldest.upgrade() else {
            continue;
        };
        let mut slot = oldest.slot.lock();
        if slot.take().is_some() {
            oldest.evicted.notify_one();
            return Some(());
        }
    }
    None
}

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Resolver")
    }
}

/// How long a program may think between two queries: "a few seconds" (RFC 7766 §6.2.3).
const STREAM_IDLE: Duration = Duration::from_secs(10);
/// What waits in each direction, in bytes.
const STREAM_BUFFER: usize = 4096;
/// How long a query on a stream may be, in bytes: one question and its options are far shorter.
const MAX_STREAM_QUERY: u16 = 4096;

/// A user's connection to `resolver`, DNS over TCP: messages with their length before them, answered one after the other (RFC 1035 §4.2.2,
/// RFC 7766).
fn open_stream(resolver: Arc<Resolver>, user: User) -> Stream {
    let (near, far) = duplex(STREAM_BUFFER);
    tokio::spawn(serve_stream(resolver, user, far));
    Stream::new(BufReader::with_capacity(STREAM_BUFFER, near))
}

async fn serve_stream(resolver: Arc<Resolver>, user: User, mut stream: DuplexStream) {
    while let Ok(Ok(query)) = timeout(STREAM_IDLE, read_query(&mut stream)).await {
        let Some(reply) = resolver.query(&query, user).await else {
            break;
        };
        let written = timeout(STREAM_IDLE, write_reply(&mut stream, &reply)).await;
        if !matches!(written, Ok(Ok(()))) {
            break;
        }
    }
    if let Err(error) = stream.shutdown().await {
        tracing::trace!(%error, "a program left before its resolver did");
    }
}

/// Takes memory for what has come, whatever length was told.
async fn read_query(stream: &mut DuplexStream) -> io::Result<Vec<u8>> {
    let len = stream.read_u16().await?;
    if len > MAX_STREAM_QUERY {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut query = Vec::new();
    stream.take(len.into()).read_to_end(&mut query).await?;
    if query.len() < len.into() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(query)
}

async fn write_reply(stream: &mut DuplexStream, reply: &[u8]) -> io::Result<()> {
    let len = u16::try_from(reply.len()).map_err(io::Error::other)?;
    let framed = [&len.to_be_bytes()[..], reply].concat();
    stream.write_all(&framed).await
}

/// How long these answers may be kept, in seconds: they do not change.
const SPECIAL_TTL: u32 = 3600;
/// The addresses of `ipv4only.arpa` (RFC 7050 §2.2).
const IPV4_ONLY: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(192, 0, 0, 170)),
    IpAddr::V4(Ipv4Addr::new(192, 0, 0, 171)),
];

/// Where programs learn whether they may ask a resolver of their own, and which.
const CANARY: &str = "use-application-dns.net";
const DISCOVERY: &str = "resolver.arpa";

fn is_way_to_another_resolver(text: &str) -> bool {
    text == CANARY || is_below(text, DISCOVERY)
}

/// The answer to a question about a special name: one that means something on this device or this network only, or that asking for would undo
/// what the device is there for, whatever the mode.
fn special_answer(question: &Question, text: &str) -> Option<Vec<u8>> {
    match text {
        // "answer address queries with loopback addresses" (RFC 6761 §6.3).
        _ if is_localhost(text) => Some(addresses(question, &LOOPBACK)),
        // Does not exist (RFC 6761 §6.4), or is not for the DNS (RFC 9476).
        _ if is_nobody(text) || is_below(text, "alt") => Some(missing(question)),
        // Multicast DNS stays on the link: "SHOULD […] respond with NXDOMAIN" (RFC 6762 §22.1 no. 5). So do names of a home
        // (RFC 8375), of a private network (.internal and its elders), and those of onion services (RFC 7686 §2 no. 4).
        _ if is_local_name(text) => Some(missing(question)),
        // Firefox asks whether it may take its own resolver: then names would be looked up twice, and not travel.
        CANARY => Some(missing(question)),
        // "resolvers […] MUST […] answer queries" for it themselves (RFC 8880 §7.1); there is no NAT64 behind this device.
        "ipv4only.arpa" => Some(addresses(question, &IPV4_ONLY)),
        // Nobody finds another resolver by way of this one: NODATA (RFC 9462 §6.4).
        _ if is_below(text, DISCOVERY) => Some(question.nothing(Code::NO_ERROR, SPECIAL_TTL)),
        // The one label of a search: it means nothing outside, and a relay must not learn what it means here.
        _ if !text.contains('.') && asks_for_host(question) => Some(missing(question)),
        _ => reverse(question),
    }
}

/// Reverse zones of addresses that mean something here only (RFC 6303 §4): nobody outside knows them.
fn reverse(question: &Question) -> Option<Vec<u8>> {
    let (ip, prefix) = question.reverse()?;
    if ip.is_loopback() && question.kind() == RecordType::PTR {
        let name = HostName::new("localhost").ok()?;
        return Some(question.pointer(&name, SPECIAL_TTL));
    }
    let local = prefix >= 8 && is_special_purpose(ip) && is_special_purpose(last(ip, prefix));
    local.then(|| missing(question))
}

/// The last address of a prefix.
fn last(ip: IpAddr, prefix: u8) -> IpAddr {
    let prefix = u32::from(prefix);
    match ip {
        IpAddr::V4(ip) => {
            let rest = u32::MAX.checked_shr(prefix).unwrap_or(0);
            Ipv4Addr::from(u32::from(ip) | rest).into()
        }
        IpAddr::V6(ip) => {
            let rest = u128::MAX.checked_shr(prefix).unwrap_or(0);
            Ipv6Addr::from(u128::from(ip) | rest).into()
        }
    }
}

fn addresses(question: &Question, addresses: &[IpAddr]) -> Vec<u8> {
    let wanted = addresses.iter().any(|ip| match question.kind() {
        RecordType::A => ip.is_ipv4(),
        RecordType::AAAA => ip.is_ipv6(),
        _ => false,
    });
    if wanted {
        question.addresses(addresses.iter().copied(), SPECIAL_TTL)
    } else {
        question.nothing(Code::NO_ERROR, SPECIAL_TTL)
    }
}

fn missing(question: &Question) -> Vec<u8> {
    question.nothing(Code::NO_NAME, NEGATIVE_TTL)
}

fn asks_for_host(question: &Question) -> bool {
    use RecordType::{A, AAAA, HTTPS, SVCB};
    matches!(question.kind(), A | AAAA | HTTPS | SVCB)
}

#[cfg(test)]
mod tests;
