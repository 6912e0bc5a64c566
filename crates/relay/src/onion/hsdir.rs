//! The relay as HSDir: it keeps the descriptors that onion services publish and gives them to who asks by the blinded key, over circuits alone
//! (BEGIN_DIR). rend-spec-v3, "URLs for anonymous uploading and downloading"; the requests are `wire::tor::hsdir_request`'s, in HTTP/1.0 or 1.1.
//!
//! Who asks is not known, only whose channel the circuit comes through: that counts as the requester. Of streams at once nobody has more than are
//! free for others, and of descriptors that are published each has a share (`Extensions`), the quiet first. What is not here, what is refused and
//! what is asked for wrongly have one answer each, which says nothing else.

mod descriptors;

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use bytes::Bytes;
use hoplite_crypto::onion::descriptor::SignedDescriptor;
use hoplite_onion::{
    channel::Waiting,
    relay::{Asking, Directory, Extensions},
};
use hoplite_overlay::{Error, ErrorKind, Reason, Stream};
use hoplite_wire::tor::{hsdir_request::HsDirRequest, service_descriptor::DESCRIPTOR};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use parking_lot::Mutex;
use tokio::{
    io::{BufStream, duplex},
    time::Instant,
};

use self::descriptors::{Descriptors, Limits, Offered};
use super::{
    directory_streams::{BUFFER, Streams, converse},
    unix_time,
};
use crate::{config::Onion as Settings, statistics::Seen};

/// How long a stream may last: what slow circuits need for the largest descriptor.
const STREAM_TIMEOUT: Duration = Duration::from_secs(60);
/// How the targets of all requests to an HSDir begin.
pub(super) const HSDIR: &str = "/tor/hs/";
/// All publish to one relay: the shares are of this one's.
const OWN: [u8; 32] = [0; 32];

/// Whether the list gives the descriptor of a blinded key to this relay.
type IsOurs = dyn Fn(&[u8; 32]) -> bool + Send + Sync;

/// What keeps descriptors. Clones are the same one.
#[derive(Clone)]
pub struct HsDir(Arc<Inner>);

struct Inner {
    streams: Streams,
    is_ours: ArcSwap<Box<IsOurs>>,
    state: Mutex<State>,
    counters: Counters,
    seen: Arc<Seen>,
}

struct State {
    descriptors: Descriptors,
    publishing: Extensions,
}

/// What became of requests.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// Descriptors that are kept since.
    pub(crate) published: AtomicU64,
    /// Descriptors that are not.
    pub(crate) refused: AtomicU64,
    /// Descriptors that were given.
    pub(crate) fetched: AtomicU64,
    /// Requests for what is not here.
    pub(crate) unknown: AtomicU64,
    /// Streams and descriptors that were too many.
    pub(crate) limited: AtomicU64,
}

impl HsDir {
    pub(super) fn new(settings: &Settings, seen: &Arc<Seen>) -> Self {
        let limits = Limits {
            descriptors: settings.hsdir_descriptors,
            bytes: settings.hsdir_bytes,
        };
        let publishing = Extensions::new((
            settings.hsdir_publishes,
            settings.hsdir_publishes_per_second,
        ));
        Self(Arc::new(Inner {
            streams: Streams::new(settings.hsdir_streams),
            is_ours: ArcSwap::new(Arc::new(Box::new(|_: &[u8; 32]| true))),
            state: Mutex::new(State {
                descriptors: Descriptors::new(limits),
                publishing,
            }),
            counters: Counters::default(),
            seen: Arc::clone(seen),
        }))
    }

    /// From now on only descriptors of these blinded keys are kept: those that the directory's list gives to this relay. Before, all are.
    pub fn keep_only(&self, is_ours: impl Fn(&[u8; 32]) -> bool + Send + Sync + 'static) {
        self.0.is_ours.store(Arc::new(Box::new(is_ours)));
        // Thousands of places on a ring, for which nobody waits.
        let mut others = self.0.state.lock().descriptors.keys();
        let is_ours = self.0.is_ours.load();
        others.retain(|key| !is_ours(key));
        self.0.state.lock().descriptors.forget(&others);
    }

    /// Forgets what is out of date.
    pub(super) fn sweep(&self, now: Instant) {
        self.0.state.lock().descriptors.sweep(now);
    }

    /// Descriptors now, and their bytes.
    pub(crate) fn kept(&self) -> (usize, usize) {
        let state = self.0.state.lock();
        (state.descriptors.len(), state.descriptors.bytes())
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.0.counters
    }

    /// Answers a request that came over a stream of somebody else's, if there is a place.
    pub(super) async fn answer_one(
        &self,
        request: Request<Incoming>,
        requester: u64,
    ) -> (StatusCode, Bytes) {
        match self.0.streams.enter(requester) {
            Some(_place) => self.answer(request, requester).await,
            None => {
                self.0.counters.limited.fetch_add(1, Relaxed);
                (StatusCode::SERVICE_UNAVAILABLE, Bytes::new())
            }
        }
    }

    async fn answer(&self, request: Request<Incoming>, requester: u64) -> (StatusCode, Bytes) {
        let target = request.uri().path_and_query();
        let target = target.map_or("", |target| target.as_str());
        match HsDirRequest::parse(request.method().as_str(), target) {
            Some(HsDirRequest::Publish) => self.published(request, requester).await,
            Some(HsDirRequest::Fetch(key)) => self.fetched(&key),
            None => self.unknown(),
        }
    }

    async fn respond(&self, request: Request<Incoming>, requester: u64) -> Response<Full<Bytes>> {
        let (status, body) = self.answer(request, requester).await;
        let mut response = Response::new(Full::new(body));
        *response.status_mut() = status;
        response
    }

    fn fetched(&self, key: &[u8; 32]) -> (StatusCode, Bytes) {
        let found = self.0.state.lock().descriptors.fetch(key, Instant::now());
        let Some(text) = found else {
            return self.unknown();
        };
        self.0.counters.fetched.fetch_add(1, Relaxed);
        (StatusCode::OK, text)
    }

    fn unknown(&self) -> (StatusCode, Bytes) {
        self.0.counters.unknown.fetch_add(1, Relaxed);
        (StatusCode::NOT_FOUND, Bytes::new())
    }

    /// The body is read first: who is still sending may not see the answer.
    async fn published(&self, request: Request<Incoming>, requester: u64) -> (StatusCode, Bytes) {
        let body = Limited::new(request.into_body(), DESCRIPTOR)
            .collect()
            .await;
        let now = Instant::now();
        let counters = &self.0.counters;
        let (counter, status) = if !self.admits(requester, now) {
            (&counters.limited, StatusCode::SERVICE_UNAVAILABLE)
        } else if body.is_ok_and(|body| self.keep(body.to_bytes(), now)) {
            (&counters.published, StatusCode::OK)
        } else {
            (&counters.refused, StatusCode::BAD_REQUEST)
        };
        counter.fetch_add(1, Relaxed);
        (status, Bytes::new())
    }

    /// Whether a descriptor of his is looked at now: signatures cost time.
    fn admits(&self, requester: u64, now: Instant) -> bool {
        let mut state = self.0.state.lock();
        state.publishing.admits(&OWN, requester, now)
    }

    fn keep(&self, text: Bytes, now: Instant) -> bool {
        let Some(offered) = checked(text, now) else {
            return false;
        };
        let (key, is_ours) = (offered.key, self.0.is_ours.load());
        let kept = is_ours(&key) && self.0.state.lock().descriptors.publish(offered, now);
        if kept {
            self.0.seen.onion(&key);
        }
        kept
    }
}

/// A descriptor that its blinded key has signed.
fn checked(text: Bytes, now: Instant) -> Option<Offered> {
    let unix = unix_time();
    let signed = SignedDescriptor::parse(str::from_utf8(&text).ok()?, DESCRIPTOR, unix).ok()?;
    let lifetime = u64::from(signed.lifetime()).saturating_mul(60);
    let lasts = lifetime.min(signed.expires().saturating_sub(unix));
    Some(Offered {
        key: *signed.key().as_bytes(),
        revision: signed.revision(),
        until: now + Duration::from_secs(lasts),
        text,
    })
}

/// Streams to a relay's directory: descriptors are all that it has.
impl Directory for HsDir {
    fn open(&self, asking: Asking) -> Waiting<'_, Result<Stream, Error>> {
        Box::pin(async move {
            // "These requests must be made anonymously."
            if !asking.is_relay {
                let doing = "asking an HSDir from next to it";
                return Err(Error::new(ErrorKind::Unsupported, doing));
            }
            let requester = asking.requester.key;
            let Some(place) = self.0.streams.enter(requester) else {
                self.0.counters.limited.fetch_add(1, Relaxed);
                let error = Error::new(ErrorKind::TargetFailed, "a stream to the HSDir");
                return Err(error.because(Reason::Limit));
            };
            let (near, far) = duplex(BUFFER);
            let hsdir = self.clone();
            tokio::spawn(async move {
                let answer = |request| hsdir.respond(request, requester);
                converse(far, STREAM_TIMEOUT, answer).await;
                drop(place);
            });
            Ok(Stream::new(BufStream::new(near)))
        })
    }
}

impl fmt::Debug for HsDir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HsDir")
            .field("kept", &self.kept().0)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
