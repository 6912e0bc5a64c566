//! The relay as a directory cache of Tor's network: it gives the consensus, certificates and microdescriptors to whoever asks over a circuit (BEGIN_DIR),
//! and to clients that have just come above all, who know nothing yet and ask over circuits of one hop. dir-spec "Directory cache operation", tor-spec
//! "Opening a directory stream". The binary fetches and checks what is given ([`DirectoryCache::give`]); what the HSDir beside it is asked for goes there.
//!
//! Not here: the consensus without microdescriptors, server descriptors and extra-info. Clients ask for them only if told to by hand (`UseMicrodescriptors
//! 0`), and whoever reads all of them asks authorities: they get 404, and would double what a relay keeps and fetches.
//!
//! What all give together is bounded by the second, and of it and of streams each requester (the address or relay that a channel comes from) has as
//! much as is free for others: who has asked for little lately comes first, others are told 503 and ask somebody else. An answer waits for its circuit,
//! in parts of [`PART`] bytes that are shared with all others.

mod documents;

use std::{
    collections::VecDeque,
    convert::Infallible,
    fmt,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll},
    time::Duration,
};

use arc_swap::ArcSwap;
use bytes::Bytes;
use hoplite_onion::{
    channel::Waiting,
    relay::{Asking, Directory, Extensions},
};
use hoplite_overlay::{Error, ErrorKind, Reason, Stream};
use hoplite_wire::{
    content_coding::Encoding,
    tor::directory_request::{DirectoryRequest, diff_from, http_date},
};
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use parking_lot::Mutex;
use tokio::{
    io::{BufStream, duplex},
    time::Instant,
};

use self::documents::{Answer, Asked};
pub use self::documents::{Documents, GivenCertificate, GivenConsensus};
use super::{
    directory_streams::{BUFFER, Streams, converse},
    hsdir::{HSDIR, HsDir},
    unix_time,
};
use crate::config::Onion as Settings;

/// How long a stream may last: what slow circuits need for a consensus.
const STREAM_TIMEOUT: Duration = Duration::from_secs(300);
/// Bytes of an answer that are handed on at once.
const PART: usize = 8192;
/// Bytes of answers that are counted as one.
const UNIT: usize = 16_384;
/// All ask one relay: the shares are of this one's.
const OWN: [u8; 32] = [0; 32];

/// What gives documents. Clones are the same one.
#[derive(Clone)]
pub struct DirectoryCache(Arc<Inner>);

struct Inner {
    hsdir: Option<HsDir>,
    streams: Streams,
    giving: Mutex<Extensions>,
    documents: ArcSwap<Documents>,
    counters: Counters,
}

/// What became of requests.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// Documents were given.
    pub(crate) given: AtomicU64,
    /// A difference was given instead of the consensus.
    pub(crate) diffs: AtomicU64,
    /// Among both: consensuses, whole or as a difference.
    pub(crate) consensuses: AtomicU64,
    /// There was no later one.
    pub(crate) unmodified: AtomicU64,
    /// What is not here was asked for.
    pub(crate) unknown: AtomicU64,
    /// It was too much.
    pub(crate) limited: AtomicU64,
    /// Bytes of documents that were given.
    pub(crate) bytes: AtomicU64,
}

impl DirectoryCache {
    /// One that has nothing yet; `hsdir` is this relay's.
    pub(super) fn new(settings: &Settings, hsdir: Option<HsDir>) -> Self {
        let units = |bytes: usize| u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX);
        let rate = (
            units(settings.directory_bytes),
            units(settings.directory_bytes_per_second),
        );
        Self(Arc::new(Inner {
            hsdir,
            streams: Streams::new(settings.directory_streams),
            giving: Mutex::new(Extensions::new(rate)),
            documents: ArcSwap::default(),
            counters: Counters::default(),
        }))
    }

    /// From now on this is what is given.
    pub fn give(&self, documents: Documents) {
        self.0.documents.store(Arc::new(documents));
    }

    /// What is given now.
    pub fn documents(&self) -> Arc<Documents> {
        self.0.documents.load_full()
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.0.counters
    }

    async fn answer(&self, request: Request<Incoming>, asking: Asking) -> Response<Parts> {
        let target = request.uri().path_and_query();
        let target = target.map_or("", |target| target.as_str()).to_owned();
        if target.starts_with(HSDIR) {
            return self.answer_of_hsdir(request, asking).await;
        }
        let asked = asked(&request, &target);
        let answer = match &asked {
            Some(asked) => self.0.documents.load().answer(asked, unix_time()),
            None => Answer::without_body(StatusCode::NOT_FOUND),
        };
        let answer = if self.admits(asking.requester.key, answer.bytes()) {
            answer
        } else {
            Answer::without_body(StatusCode::SERVICE_UNAVAILABLE)
        };
        self.count(&answer, asked.as_ref());
        response(answer, asked.map(|asked| asked.encoding))
    }

    /// Who shows his address asks nothing about onion services.
    async fn answer_of_hsdir(&self, request: Request<Incoming>, asking: Asking) -> Response<Parts> {
        let hsdir = self.0.hsdir.as_ref().filter(|_| asking.is_relay);
        let (status, body) = match hsdir {
            Some(hsdir) => hsdir.answer_one(request, asking.requester.key).await,
            None => (StatusCode::NOT_FOUND, Bytes::new()),
        };
        let mut answer = Answer::without_body(status);
        answer.body.push_back(body);
        response(answer, None)
    }

    /// Whether he is given so much now. What is short is owed: nobody is given anything before it has come back.
    fn admits(&self, requester: u64, bytes: usize) -> bool {
        let units = u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX);
        let mut giving = self.0.giving.lock();
        giving.admits_many(&OWN, requester, units.max(1), Instant::now())
    }

    fn count(&self, answer: &Answer, asked: Option<&Asked>) {
        let counters = &self.0.counters;
        if answer.status == StatusCode::OK && asked.is_some_and(Asked::is_of_consensus) {
            counters.consensuses.fetch_add(1, Relaxed);
        }
        let counter = match answer.status {
            StatusCode::OK if answer.is_diff => &counters.diffs,
            StatusCode::OK => &counters.given,
            StatusCode::NOT_MODIFIED => &counters.unmodified,
            StatusCode::NOT_FOUND => &counters.unknown,
            _ => &counters.limited,
        };
        counter.fetch_add(1, Relaxed);
        let bytes = u64::try_from(answer.bytes()).unwrap_or(u64::MAX);
        counters.bytes.fetch_add(bytes, Relaxed);
    }
}

/// What a request asks for; `None`: nothing that is known here.
fn asked(request: &Request<Incoming>, target: &str) -> Option<Asked> {
    (request.method() == Method::GET).then_some(())?;
    let (known, compressed) = DirectoryRequest::parse(target)?;
    let field = |name| {
        let value: Option<&HeaderValue> = request.headers().get(name);
        value.and_then(|value| value.to_str().ok())
    };
    Some(Asked {
        request: known,
        encoding: Encoding::of(field("accept-encoding"), compressed),
        if_modified_since: field("if-modified-since").and_then(http_date),
        diff_from: field("x-or-diff-from-consensus").map_or_else(Vec::new, diff_from),
    })
}

fn response(answer: Answer, encoding: Option<Encoding>) -> Response<Parts> {
    let has_body = answer.status == StatusCode::OK;
    let mut response = Response::new(Parts::of(answer.body));
    *response.status_mut() = answer.status;
    if let Some(encoding) = encoding.filter(|_| has_body) {
        let fields = response.headers_mut();
        let name = HeaderValue::from_static(encoding.name());
        fields.insert(header::CONTENT_ENCODING, name);
        let text = HeaderValue::from_static("text/plain");
        fields.insert(header::CONTENT_TYPE, text);
    }
    response
}

/// A body, of which no more is handed on at once than [`PART`] bytes.
struct Parts {
    all: VecDeque<Bytes>,
    left: u64,
}

impl Parts {
    fn of(all: VecDeque<Bytes>) -> Self {
        let left: usize = all.iter().map(Bytes::len).sum();
        let left = u64::try_from(left).unwrap_or(u64::MAX);
        Self { all, left }
    }

    fn next(&mut self) -> Option<Bytes> {
        loop {
            let first = self.all.front_mut()?;
            let part = first.split_to(first.len().min(PART));
            if first.is_empty() {
                self.all.pop_front();
            }
            if !part.is_empty() {
                let bytes = u64::try_from(part.len()).unwrap_or(u64::MAX);
                self.left = self.left.saturating_sub(bytes);
                return Some(part);
            }
        }
    }
}

impl Body for Parts {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.next().map(|part| Ok(Frame::data(part))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

impl Directory for DirectoryCache {
    fn open(&self, asking: Asking) -> Waiting<'_, Result<Stream, Error>> {
        Box::pin(async move {
            let Some(place) = self.0.streams.enter(asking.requester.key) else {
                self.0.counters.limited.fetch_add(1, Relaxed);
                let error = Error::new(ErrorKind::TargetFailed, "a stream to the directory");
                return Err(error.because(Reason::Limit));
            };
            let (near, far) = duplex(BUFFER);
            let cache = self.clone();
            tokio::spawn(async move {
                converse(far, STREAM_TIMEOUT, |request| cache.answer(request, asking)).await;
                drop(place);
            });
            Ok(Stream::new(BufStream::new(near)))
        })
    }
}

impl fmt::Debug for DirectoryCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DirectoryCache")
            .field("streams", &self.0.streams)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
