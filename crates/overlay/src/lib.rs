//! The seam: an [`Overlay`] carries flows to targets, by whatever path.
//! `direct`, `masque` and `onion` implement it; each passes the suite in `conformance`.
//!
//! # Not in this room
//! How a hop is authenticated (`link`), what a relay permits (`relay`), who turns programs into flows (`mediator`).

#[cfg(any(test, feature = "testing"))]
pub mod conformance;
mod datagrams;
#[expect(
    clippy::disallowed_methods,
    reason = "the one place where flows leave by the device's own sockets"
)]
pub mod direct;
mod error;
#[cfg(any(test, feature = "testing"))]
pub mod memory;
pub mod names;
mod stream;
mod terms;

use std::{fmt, future::Future, net::IpAddr, pin::Pin, sync::Arc};

pub use datagrams::{Batch, Bound, Datagrams, Ecn, End, Packets, Received};
pub use direct::Direct;
pub use error::{Error, ErrorKind, Reason};
use hoplite_wire::{Target, connect_ip::Scope};
pub use stream::{Io, PendingStream, Stream};
pub use terms::{Isolation, Terms};

/// A flow that is being opened.
pub type Opening<'a, T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send + 'a>>;

/// What carries flows: nothing (`direct`), nested relays (`masque`), circuits (`onion`).
///
/// Opening may be called at any time and from any task; dropping the future gives the attempt up.
/// Nothing is sent to the target, and no name looked up, other than through the overlay.
pub trait Overlay: fmt::Debug + Send + Sync {
    /// Opens a TCP flow to `target`; the stream is ready when the far end has connected, or before ([`Terms::early`]).
    fn open_stream<'a>(&'a self, target: &'a Target, terms: &'a Terms) -> Opening<'a, Stream>;

    /// Opens a UDP flow to `target`; datagrams keep their boundaries and may be lost or reordered.
    fn open_datagrams<'a>(
        &'a self,
        target: &'a Target,
        terms: &'a Terms,
    ) -> Opening<'a, Box<dyn Datagrams>>;

    /// Asks the far end for the addresses of `name`.
    fn resolve<'a>(&'a self, name: &'a str, terms: &'a Terms) -> Opening<'a, Vec<IpAddr>>;

    /// Opens a flow of IP packets within `scope`; it is ready when the far end has given it an address and told its routes.
    /// Overlays that carry none answer [`ErrorKind::Unsupported`].
    fn open_packets<'a>(
        &'a self,
        _scope: &'a Scope,
        _terms: &'a Terms,
    ) -> Opening<'a, Box<dyn Packets>> {
        Box::pin(async { Err(datagrams::unsupported()) })
    }

    /// Opens a UDP socket at the far end, whose address is the same for all whom it sends to and hears. Overlays that have none answer
    /// [`ErrorKind::Unsupported`].
    fn open_bound<'a>(&'a self, _terms: &'a Terms) -> Opening<'a, Arc<dyn Bound>> {
        Box::pin(async {
            Err(Error::new(
                ErrorKind::Unsupported,
                "opening a UDP socket at the far end",
            ))
        })
    }

    /// Asks the far end's resolver with a DNS message (RFC 1035), whose id should be 0; the answer is a message too, with the
    /// same id and question. That a name does not exist, or that the resolver failed, is an answer.
    fn query<'a>(&'a self, _message: &'a [u8], _terms: &'a Terms) -> Opening<'a, Vec<u8>> {
        Box::pin(async {
            Err(Error::new(
                ErrorKind::Unsupported,
                "asking a resolver through an overlay that has none",
            ))
        })
    }
}
