//! Streams to the relay's directory (BEGIN_DIR): how many there are at once, and one request in HTTP/1.0 or 1.1 on each, in bounded memory and time.
//! dir-spec "Standards compliance".

use std::{
    collections::HashMap, convert::Infallible, error::Error as StdError, fmt, future::Future,
    sync::Arc, time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use hyper::{
    body::{Body, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::{io::DuplexStream, time::timeout};

/// How long a request's head may take.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of a request's head, and of what waits for the circuit each way: the parser's least.
pub(super) const BUFFER: usize = 8192;

/// The streams that are open. Nobody has more of them than are free for others. Clones are the same ones.
#[derive(Clone)]
pub(super) struct Streams {
    most: usize,
    open: Arc<Mutex<Open>>,
}

#[derive(Default)]
struct Open {
    /// By requester.
    each: HashMap<u64, usize>,
    all: usize,
}

/// A stream's place; dropping it gives the place back.
pub(super) struct Place {
    streams: Streams,
    requester: u64,
}

impl Streams {
    /// This many at once.
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            open: Arc::default(),
        }
    }

    /// A place for one more, if there is one for him.
    pub(super) fn enter(&self, requester: u64) -> Option<Place> {
        let mut open = self.open.lock();
        let own = open.each.get(&requester).copied().unwrap_or(0);
        let free = self.most.saturating_sub(open.all);
        (own < free).then_some(())?;
        open.each.insert(requester, own.saturating_add(1));
        open.all = open.all.saturating_add(1);
        Some(Place {
            streams: self.clone(),
            requester,
        })
    }
}

#[cfg(test)]
impl Streams {
    pub(super) fn are_open(&self) -> bool {
        let open = self.open.lock();
        assert_eq!(open.each.values().sum::<usize>(), open.all);
        open.all > 0
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = self.streams.open.lock();
        open.all = open.all.saturating_sub(1);
        match open.each.get_mut(&self.requester) {
            Some(own) if *own > 1 => *own = own.saturating_sub(1),
            _ => drop(open.each.remove(&self.requester)),
        }
    }
}

/// Answers one request, within `limit`. Whoever breaks off, or writes no HTTP, has had his answer.
pub(super) async fn converse<A, B>(
    stream: DuplexStream,
    limit: Duration,
    answer: impl Fn(Request<Incoming>) -> A,
) where
    A: Future<Output = Response<B>>,
    B: Body<Data = Bytes> + 'static,
    B::Error: Into<Box<dyn StdError + Send + Sync>>,
{
    let service = service_fn(|request| {
        let answering = answer(request);
        async { Ok::<_, Infallible>(answering.await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(BUFFER)
        .keep_alive(false)
        .auto_date_header(false)
        // C tor knows fields in these letters alone.
        .title_case_headers(true)
        .serve_connection(TokioIo::new(stream), service);
    drop(timeout(limit, connection).await);
}

impl fmt::Debug for Streams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Streams")
            .field("open", &self.open.lock().all)
            .finish_non_exhaustive()
    }
}
