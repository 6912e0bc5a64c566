//! The client's side of a TCP tunnel: bare bytes for CONNECT, capsules for connect-tcp.
//! RFC 9114 §4.4; draft-ietf-httpbis-connect-tcp, "Closing Connections".

use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use hoplite_http::{DataReceiver, DataSender, Exchange, HttpError};
use hoplite_wire::connect_tcp::{Draft, OVERHEAD, Reader};

/// Payloads up to this many bytes are copied behind the head of their capsule, so that both leave together.
const SMALL: usize = 8 * 1024;

/// Why there is no more from the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Broken {
    /// Its stream was reset, or the connection is lost.
    Stream,
    /// It broke a rule of the capsules, or ended its stream without FINAL_DATA: what came is not complete.
    Capsules,
}

/// From the client.
#[derive(Debug)]
pub(crate) struct Incoming {
    receiver: DataReceiver,
    capsules: Option<Reader>,
    /// Read, and not taken out of its capsules yet.
    left: Bytes,
    /// How much was read and not charged yet: payload, and what stands around it.
    charge: usize,
}

/// To the client.
#[derive(Debug)]
pub(crate) struct Outgoing {
    sender: DataSender,
    capsules: Option<Draft>,
}

/// Both directions of an answered request: in the capsules of a draft, or bare.
pub(crate) fn split(exchange: Exchange, capsules: Option<Draft>) -> (Incoming, Outgoing) {
    let (sender, receiver) = exchange.split();
    let incoming = Incoming {
        receiver,
        capsules: capsules.map(Reader::new),
        left: Bytes::new(),
        charge: 0,
    };
    (incoming, Outgoing { sender, capsules })
}

impl Incoming {
    /// The next bytes, none of them where what was read is skipped; `None` when the client has finished. What it sends behind FINAL_DATA is not read.
    pub(crate) fn poll_data(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Bytes>, Broken>> {
        let mut has_read = false;
        loop {
            if let Some(reader) = &mut self.capsules {
                match reader.next(&mut self.left) {
                    Ok(None) if reader.has_ended() => return Poll::Ready(Ok(None)),
                    Ok(None) if has_read => return Poll::Ready(Ok(Some(Bytes::new()))),
                    Ok(None) => (),
                    Ok(payload) => return Poll::Ready(Ok(payload)),
                    Err(_) => return Poll::Ready(Err(Broken::Capsules)),
                }
            }
            let read = ready!(self.receiver.poll_data(cx)).map_err(|_| Broken::Stream)?;
            has_read = true;
            self.charge += read.as_ref().map_or(0, Bytes::len);
            match read {
                // "When the receive stream is closed abruptly or without a FINAL_DATA capsule received, the endpoint SHOULD send a TCP RST".
                None if self.capsules.is_some() => return Poll::Ready(Err(Broken::Capsules)),
                Some(bytes) if self.capsules.is_some() => self.left = bytes,
                bare => return Poll::Ready(Ok(bare)),
            }
        }
    }

    /// Bytes that have come and were not taken.
    pub(crate) fn unread(&self) -> usize {
        self.receiver.unread().saturating_add(self.left.len())
    }

    /// What the client is to be charged for: all that was read since this was taken last, capsules that are skipped among it.
    pub(crate) fn take_charge(&mut self) -> usize {
        std::mem::take(&mut self.charge)
    }

    /// The same, without taking it.
    pub(crate) fn charge(&self) -> usize {
        self.charge
    }
}

impl Outgoing {
    /// Waits for room and takes the bytes.
    ///
    /// # Errors
    /// The client has gone.
    pub(crate) async fn write(&mut self, bytes: Bytes) -> Result<(), HttpError> {
        let Some(draft) = self.capsules else {
            return self.sender.write(bytes).await;
        };
        let is_small = bytes.len() <= SMALL;
        let mut head = BytesMut::with_capacity(OVERHEAD + if is_small { bytes.len() } else { 0 });
        draft.write_data_head(&mut head, bytes.len());
        if is_small {
            head.extend_from_slice(&bytes);
            return self.sender.write(head.freeze()).await;
        }
        self.sender.write(head.freeze()).await?;
        self.sender.write(bytes).await
    }

    /// The target has finished: "When an endpoint receives a valid TCP FIN, it MUST send a FINAL_DATA capsule." The stream stays open behind it,
    /// so that the other direction can still break.
    ///
    /// # Errors
    /// The client has gone.
    pub(crate) async fn finish(&mut self) -> Result<(), HttpError> {
        let Some(draft) = self.capsules else {
            return self.sender.finish().await;
        };
        let mut end = BytesMut::new();
        draft.write_end(&mut end);
        self.sender.write(end.freeze()).await
    }

    /// Both directions have finished: "If the connection closed gracefully, the endpoint MUST close the send stream gracefully."
    ///
    /// # Errors
    /// The client has gone.
    pub(crate) async fn close(&mut self) -> Result<(), HttpError> {
        match self.capsules {
            Some(_) => self.sender.finish().await,
            None => Ok(()),
        }
    }

    /// Breaks the stream off because the target did.
    pub(crate) fn reset(&mut self) {
        self.sender.reset();
    }
}
