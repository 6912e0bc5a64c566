//! An overlay and a flow of datagrams that a test bends: what the test does not say is left to what is below.
//!
//! ```
//! # use hoplite_overlay::{Direct, Error, ErrorKind};
//! # use hoplite_testing::Double;
//! let overlay = Double::over(Direct::new()).streams(|below, target, terms| match target.port {
//!     25 => Box::pin(async { Err(Error::new(ErrorKind::Forbidden, "a test")) }),
//!     _ => below.open_stream(target, terms),
//! });
//! ```

use std::{
    any::Any,
    fmt,
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use hoplite_overlay::{
    Batch, Bound, Datagrams, End, Error, ErrorKind, Opening, Overlay, Packets, Received, Stream,
    Terms,
};
use hoplite_wire::{Target, connect_ip::Scope};

/// What a test says to one method: it gets the overlay below, and what that method gets.
type Said<R, T> =
    Box<dyn for<'a> Fn(&'a dyn Overlay, &'a R, &'a Terms) -> Opening<'a, T> + Send + Sync>;

/// An overlay that is another one, but for what a test says.
pub struct Double {
    below: Box<dyn Overlay>,
    streams: Option<Said<Target, Stream>>,
    datagrams: Option<Said<Target, Box<dyn Datagrams>>>,
    names: Option<Said<str, Vec<IpAddr>>>,
    packets: Option<Said<Scope, Box<dyn Packets>>>,
    queries: Option<Said<[u8], Vec<u8>>>,
    asked: AtomicUsize,
    kept: Vec<Box<dyn Any + Send + Sync>>,
}

impl Double {
    /// What nothing is said about is asked of `below`.
    pub fn over(below: impl Overlay + 'static) -> Self {
        Self {
            below: Box::new(below),
            streams: None,
            datagrams: None,
            names: None,
            packets: None,
            queries: None,
            asked: AtomicUsize::new(0),
            kept: Vec::new(),
        }
    }

    /// What nothing is said about fails with `error`.
    pub fn failing(error: Error) -> Self {
        Self::over(Failing(error))
    }

    /// What nothing is said about is not supported.
    pub fn nothing() -> Self {
        Self::failing(Error::new(ErrorKind::Unsupported, "a test"))
    }

    /// How streams are opened.
    pub fn streams<F>(mut self, open: F) -> Self
    where
        F: for<'a> Fn(&'a dyn Overlay, &'a Target, &'a Terms) -> Opening<'a, Stream>,
        F: Send + Sync + 'static,
    {
        self.streams = Some(Box::new(open));
        self
    }

    /// How flows of datagrams are opened.
    pub fn datagrams<F>(mut self, open: F) -> Self
    where
        F: for<'a> Fn(&'a dyn Overlay, &'a Target, &'a Terms) -> Opening<'a, Box<dyn Datagrams>>,
        F: Send + Sync + 'static,
    {
        self.datagrams = Some(Box::new(open));
        self
    }

    /// What becomes of each flow of datagrams that was opened below.
    pub fn flows<F>(self, bend: F) -> Self
    where
        F: Fn(DoubleFlow) -> DoubleFlow + Clone + Send + Sync + 'static,
    {
        self.datagrams(move |below, target, terms| {
            let bend = bend.clone();
            Box::pin(async move {
                let flow = below.open_datagrams(target, terms).await?;
                Ok(bend(DoubleFlow::over(flow)).boxed())
            })
        })
    }

    /// How names are resolved.
    pub fn names<F>(mut self, resolve: F) -> Self
    where
        F: for<'a> Fn(&'a dyn Overlay, &'a str, &'a Terms) -> Opening<'a, Vec<IpAddr>>,
        F: Send + Sync + 'static,
    {
        self.names = Some(Box::new(resolve));
        self
    }

    /// How flows of IP packets are opened.
    pub fn packets<F>(mut self, open: F) -> Self
    where
        F: for<'a> Fn(&'a dyn Overlay, &'a Scope, &'a Terms) -> Opening<'a, Box<dyn Packets>>,
        F: Send + Sync + 'static,
    {
        self.packets = Some(Box::new(open));
        self
    }

    /// How DNS messages are answered.
    pub fn queries<F>(mut self, answer: F) -> Self
    where
        F: for<'a> Fn(&'a dyn Overlay, &'a [u8], &'a Terms) -> Opening<'a, Vec<u8>>,
        F: Send + Sync + 'static,
    {
        self.queries = Some(Box::new(answer));
        self
    }

    /// Keeps `what` as long as the overlay: the relays below it, say.
    pub fn keeping(mut self, what: impl Any + Send + Sync) -> Self {
        self.kept.push(Box::new(what));
        self
    }

    /// How often it was asked for anything.
    pub fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    /// The overlay below, which has been asked once more.
    fn below(&self) -> &dyn Overlay {
        self.asked.fetch_add(1, Ordering::SeqCst);
        &*self.below
    }
}

impl Overlay for Double {
    fn open_stream<'a>(&'a self, target: &'a Target, terms: &'a Terms) -> Opening<'a, Stream> {
        match (&self.streams, self.below()) {
            (Some(said), below) => said(below, target, terms),
            (None, below) => below.open_stream(target, terms),
        }
    }

    fn open_datagrams<'a>(
        &'a self,
        target: &'a Target,
        terms: &'a Terms,
    ) -> Opening<'a, Box<dyn Datagrams>> {
        match (&self.datagrams, self.below()) {
            (Some(said), below) => said(below, target, terms),
            (None, below) => below.open_datagrams(target, terms),
        }
    }

    fn resolve<'a>(&'a self, name: &'a str, terms: &'a Terms) -> Opening<'a, Vec<IpAddr>> {
        match (&self.names, self.below()) {
            (Some(said), below) => said(below, name, terms),
            (None, below) => below.resolve(name, terms),
        }
    }

    fn open_bound<'a>(&'a self, terms: &'a Terms) -> Opening<'a, Arc<dyn Bound>> {
        self.below().open_bound(terms)
    }

    fn open_packets<'a>(
        &'a self,
        scope: &'a Scope,
        terms: &'a Terms,
    ) -> Opening<'a, Box<dyn Packets>> {
        match (&self.packets, self.below()) {
            (Some(said), below) => said(below, scope, terms),
            (None, below) => below.open_packets(scope, terms),
        }
    }

    fn query<'a>(&'a self, message: &'a [u8], terms: &'a Terms) -> Opening<'a, Vec<u8>> {
        match (&self.queries, self.below()) {
            (Some(said), below) => said(below, message, terms),
            (None, below) => below.query(message, terms),
        }
    }
}

impl fmt::Debug for Double {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Double")
            .field("below", &self.below)
            .finish_non_exhaustive()
    }
}

/// An overlay that fails.
#[derive(Debug)]
struct Failing(Error);

impl Failing {
    fn fail<T>(&self) -> Opening<'_, T> {
        Box::pin(async { Err(self.0.clone()) })
    }
}

impl Overlay for Failing {
    fn open_stream<'a>(&'a self, _: &'a Target, _: &'a Terms) -> Opening<'a, Stream> {
        self.fail()
    }

    fn open_datagrams<'a>(
        &'a self,
        _: &'a Target,
        _: &'a Terms,
    ) -> Opening<'a, Box<dyn Datagrams>> {
        self.fail()
    }

    fn resolve<'a>(&'a self, _: &'a str, _: &'a Terms) -> Opening<'a, Vec<IpAddr>> {
        self.fail()
    }

    fn open_packets<'a>(&'a self, _: &'a Scope, _: &'a Terms) -> Opening<'a, Box<dyn Packets>> {
        self.fail()
    }

    fn query<'a>(&'a self, _: &'a [u8], _: &'a Terms) -> Opening<'a, Vec<u8>> {
        self.fail()
    }
}

type Sends = Box<
    dyn Fn(&dyn Datagrams, &mut Context<'_>, Batch<'_>) -> Poll<Result<(), Error>> + Send + Sync,
>;
type Receives = Box<
    dyn Fn(&dyn Datagrams, &mut Context<'_>, &mut [u8]) -> Poll<Result<Received, Error>>
        + Send
        + Sync,
>;
type Moved = Box<dyn Fn(&dyn Datagrams) -> bool + Send + Sync>;

/// A flow of datagrams that is another one, but for what a test says.
pub struct DoubleFlow {
    below: Box<dyn Datagrams>,
    sends: Option<Sends>,
    receives: Option<Receives>,
    moved: Option<Moved>,
}

impl DoubleFlow {
    /// What nothing is said about is left to `below`.
    pub fn over(below: Box<dyn Datagrams>) -> Self {
        Self {
            below,
            sends: None,
            receives: None,
            moved: None,
        }
    }

    /// Takes everything, payloads of up to 1200 bytes, and receives nothing.
    pub fn silent() -> Self {
        Self::over(Box::new(Silent))
    }

    /// What `poll_send` does.
    pub fn sends<F>(mut self, send: F) -> Self
    where
        F: Fn(&dyn Datagrams, &mut Context<'_>, Batch<'_>) -> Poll<Result<(), Error>>,
        F: Send + Sync + 'static,
    {
        self.sends = Some(Box::new(send));
        self
    }

    /// What `poll_recv` does.
    pub fn receives<F>(mut self, receive: F) -> Self
    where
        F: Fn(&dyn Datagrams, &mut Context<'_>, &mut [u8]) -> Poll<Result<Received, Error>>,
        F: Send + Sync + 'static,
    {
        self.receives = Some(Box::new(receive));
        self
    }

    /// Whether it should be opened again.
    pub fn moved<F>(mut self, moved: F) -> Self
    where
        F: Fn(&dyn Datagrams) -> bool + Send + Sync + 'static,
    {
        self.moved = Some(Box::new(moved));
        self
    }

    /// As overlays give it out.
    pub fn boxed(self) -> Box<dyn Datagrams> {
        Box::new(self)
    }
}

impl Datagrams for DoubleFlow {
    fn max_payload(&self) -> usize {
        self.below.max_payload()
    }

    fn poll_send(&self, cx: &mut Context<'_>, batch: Batch<'_>) -> Poll<Result<(), Error>> {
        match &self.sends {
            Some(said) => said(&*self.below, cx, batch),
            None => self.below.poll_send(cx, batch),
        }
    }

    fn poll_recv(&self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<Result<Received, Error>> {
        match &self.receives {
            Some(said) => said(&*self.below, cx, buf),
            None => self.below.poll_recv(cx, buf),
        }
    }

    fn moved(&self) -> bool {
        match &self.moved {
            Some(said) => said(&*self.below),
            None => self.below.moved(),
        }
    }

    fn announce(&self, end: End, id: &[u8]) {
        self.below.announce(end, id);
    }

    fn withdraw(&self, end: End, id: &[u8]) {
        self.below.withdraw(end, id);
    }

    fn carries_quic(&self) {
        self.below.carries_quic();
    }

    fn suspect(&self) -> bool {
        self.below.suspect()
    }
}

impl fmt::Debug for DoubleFlow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DoubleFlow")
            .field("below", &self.below)
            .finish_non_exhaustive()
    }
}

/// A flow into nowhere.
#[derive(Debug)]
struct Silent;

impl Datagrams for Silent {
    fn max_payload(&self) -> usize {
        1200
    }

    fn poll_send(&self, _: &mut Context<'_>, _: Batch<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn poll_recv(&self, _: &mut Context<'_>, _: &mut [u8]) -> Poll<Result<Received, Error>> {
        Poll::Pending
    }
}
