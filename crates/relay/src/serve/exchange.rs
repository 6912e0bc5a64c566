//! What the handler needs of a request, over any version of HTTP: answer it, then carry octets or payloads.
//! The transports implement it in their own files.

use std::{future::Future, sync::Arc, time::Duration};

use bytes::Bytes;
use hoplite_http::DatagramSink;
use hoplite_overlay::Batch;
use hoplite_wire::{ResponseHead, connect_ip, forwarding::Capsule};

use super::splice::{Broken, FromClient, ToClient};
use crate::forward::Road;

/// A request that waits for its answer.
pub(crate) trait Exchange: Send + 'static {
    /// The client's octets.
    type Up: FromClient;
    /// The octets to the client.
    type Down: ToClient;
    /// The payloads to the client.
    type Flow: ClientFlow;

    /// The connection below, if its client's packets may be forwarded past it.
    fn road(&self) -> Option<Road> {
        None
    }
    /// What may wait for the client of this request alone, beside what the connection's windows allow, in octets.
    fn buffer(&self) -> usize {
        0
    }
    /// Resolves when the client has broken the request off, before it is answered.
    fn gone(&mut self) -> impl Future<Output = ()> + Send;
    /// Answers, and leaves the stream open.
    fn respond(&mut self, head: &ResponseHead) -> impl Future<Output = Result<(), Broken>> + Send;
    /// Answers, and ends the stream.
    fn refuse(self, head: &ResponseHead) -> impl Future<Output = Result<(), Broken>> + Send;
    /// Reads the content of the request, before the answer; `None` if it is larger than `limit` octets. HTTP/1.1 has none here.
    fn content(
        &mut self,
        _limit: usize,
    ) -> impl Future<Output = Result<Option<Bytes>, Broken>> + Send {
        async { Err(Broken) }
    }
    /// Answers with content, and ends the stream. HTTP/1.1 leaves it out.
    fn answer(
        self,
        head: &ResponseHead,
        _content: Bytes,
    ) -> impl Future<Output = Result<(), Broken>> + Send
    where
        Self: Sized,
    {
        self.refuse(head)
    }
    /// Goes on as a TCP tunnel.
    fn stream(self) -> (Self::Up, Self::Down);
    /// Goes on as a UDP tunnel or as a flow of IP packets: `sink` gets the client's payloads, also those that came before the answer.
    fn datagrams(self, sink: Arc<dyn DatagramSink>) -> Self::Flow;
}

/// The client's end of a UDP tunnel. Dropping it ends the tunnel.
pub(crate) trait ClientFlow: Send + Sync {
    /// Sends payloads; those that do not fit are lost.
    fn send(&self, batch: Batch<'_>) -> Sent;
    /// Resolves when the client has closed the tunnel, in order or not.
    fn closed(&self) -> impl Future<Output = ()> + Send;
    /// Breaks the tunnel off: the target's host says that nobody is there.
    fn reset(&self);
    /// Sends a capsule about connection ids, if there is room for it now. Only where there is a [`Exchange::road`].
    fn send_capsule(&self, _capsule: &Capsule) -> bool {
        false
    }
    /// Sends a capsule of IP proxying, behind what waits. `false`: there is no room, or the flow has ended.
    fn send_ip_capsule(&self, _capsule: &connect_ip::Capsule) -> bool {
        false
    }
    /// The payloads are IP packets: those that IPv6 requires of every link are carried.
    fn carry_packets(&self) {}
    /// The largest packet that is carried to the client, in octets.
    fn max_packet(&self) -> usize {
        connect_ip::LEAST_MTU
    }
    /// Breaks the tunnel off: the client broke a rule of forwarded mode or of IP proxying.
    fn abort(&self) {
        self.reset();
    }
    /// Makes the client say that it is still there.
    fn keep_alive(&self) {}
    /// Whether nothing waits to be sent to this client; who asks has waited for that already for so long.
    fn is_drained(&self, _waited: Duration) -> bool {
        true
    }
    /// Packets may have grown while they were forwarded: those that are tunnelled again are carried whatever their size.
    fn carry_forwarded(&self) {}
}

/// What became of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sent {
    /// On their way.
    pub(crate) accepted: usize,
    /// Lost, because too much waits for this client.
    pub(crate) full: usize,
    /// Lost, because the way to the client does not carry their size.
    pub(crate) too_large: usize,
}
