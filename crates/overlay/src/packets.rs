//! A flow of IP packets through an overlay: ICMP echo, and protocols that are neither TCP nor UDP.
//! The mediator opens one for each protocol and target; packets come and go in batches, in the shape of [`Datagrams`](crate::Datagrams).
//! RFC 9484 is how `masque` carries it.

use std::{
    fmt,
    future::poll_fn,
    net::IpAddr,
    task::{Context, Poll},
};

use hoplite_wire::connect_ip::{Prefix, Route};

use crate::{Batch, Error, ErrorKind, Received};

/// An open flow of IP packets. One task sends and one receives at a time: the last waker wins. Dropping it closes the flow.
pub trait Packets: fmt::Debug + Send + Sync {
    /// The source addresses that packets sent here may have: assigned by the far end, and meaningless anywhere else.
    fn addresses(&self) -> Vec<Prefix>;

    /// Where packets sent here may go. Of a name that the scope asked for, these are the addresses it has.
    fn routes(&self) -> Vec<Route>;

    /// The largest packet, in octets, that the road carries now; at least 1280.
    fn mtu(&self) -> usize;

    /// Takes the whole batch of packets, or none and wakes later. What breaks a rule (a source that is not assigned, a destination
    /// off the routes) or exceeds [`Self::mtu`] may be dropped and counted. An error is final for the flow.
    fn poll_send(&self, cx: &mut Context<'_>, packets: Batch<'_>) -> Poll<Result<(), Error>>;

    /// Fills `buf` with as many packets of one size as are there and fit. A packet larger than `buf` is dropped.
    fn poll_recv(&self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<Result<Received, Error>>;

    /// Whether the flow should be opened again, because there is a better road now.
    fn moved(&self) -> bool {
        false
    }
}

impl dyn Packets + '_ {
    /// Sends one packet.
    ///
    /// # Errors
    /// The flow's final error.
    pub async fn send(&self, packet: &[u8]) -> Result<(), Error> {
        poll_fn(|cx| self.poll_send(cx, Batch::one(packet))).await
    }

    /// Receives what is there into `buf`.
    ///
    /// # Errors
    /// The flow's final error.
    pub async fn recv(&self, buf: &mut [u8]) -> Result<Received, Error> {
        poll_fn(|cx| self.poll_recv(cx, buf)).await
    }

    /// The assigned address of the same family as `family`, if there is one.
    pub fn source(&self, family: IpAddr) -> Option<IpAddr> {
        let same = |prefix: &Prefix| prefix.address().is_ipv4() == family.is_ipv4();
        let found = self.addresses().into_iter().find(same)?;
        Some(found.address())
    }
}

/// What an overlay without IP packets answers.
pub(crate) fn unsupported() -> Error {
    Error::new(ErrorKind::Unsupported, "opening a flow of IP packets")
}
