//! Payloads with the network's marks, for those who pass on what others have marked. [`Datagrams`] has none.
//! Used by [`super::UdpFlow`] itself and by the relay. RFC 3168.

use std::{
    io,
    sync::atomic::Ordering,
    task::{Context, Poll, ready},
};

use super::{Ecn, Form, LARGEST_BATCH, UdpFlow, flow_failed, refused};
use crate::{Batch, Datagrams, Error, Received};

impl UdpFlow {
    /// As [`Datagrams::poll_send`]; the packets are marked with `ecn`.
    ///
    /// # Errors
    /// As there.
    pub fn poll_send_marked(
        &self,
        cx: &mut Context<'_>,
        batch: Batch<'_>,
        ecn: Option<Ecn>,
    ) -> Poll<Result<(), Error>> {
        let segment = batch.segment.max(1);
        let form = Form { segment, ecn };
        if batch.contents.len() <= segment && batch.contents.len() <= self.max_payload() {
            return self.poll_send_chunk(cx, batch.contents, form);
        }
        if segment > self.max_payload() {
            return self.poll_send_fitting(cx, batch, ecn);
        }
        let per_call = (LARGEST_BATCH / segment).clamp(1, self.state.max_gso_segments().max(1));
        self.poll_send_all(cx, batch.contents.chunks(per_call * segment), form)
    }

    /// As [`Datagrams::poll_recv`], and how the packets are marked: all that come together are marked alike.
    /// A buffer of less than 65,535 octets may not learn it.
    ///
    /// # Errors
    /// As there.
    pub fn poll_recv_marked(
        &self,
        cx: &mut Context<'_>,
        buf: &mut [u8],
    ) -> Poll<Result<(Received, Option<Ecn>), Error>> {
        loop {
            if self.refused.swap(false, Ordering::AcqRel) {
                return Poll::Ready(Err(refused()));
            }
            match self.receiving.try_recv(&self.state, buf) {
                Ok(arrived) => {
                    self.count_dropped(arrived.dropped);
                    if let Some(received) = arrived.received {
                        return Poll::Ready(Ok((received, arrived.ecn)));
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.receiver.register(cx.waker());
                    if !self.refused.load(Ordering::Acquire) {
                        ready!(self.receiving.poll_ready(cx)).map_err(flow_failed)?;
                    }
                }
                Err(error) => return Poll::Ready(Err(flow_failed(error))),
            }
        }
    }
}
