//! The UDP socket under HTTP/3: the host's own, or one whose datagrams carry the header of a SOCKS5 association. RFC 1928 §7.
//! `three` hands it to quinn. Segmentation offload goes through: each segment gets its header.

use std::{
    io::{self, IoSliceMut},
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use hoplite_wire::socks::DatagramView;
use quinn::{
    AsyncUdpSocket, Runtime, TokioRuntime, UdpPoller,
    udp::{RecvMeta, Transmit},
};
use tokio::net::TcpStream;

use crate::workload::run::{
    Order, TransferError,
    door::{self, Token},
    record::Record,
    trouble::Fault,
};

/// An address for a server that only the proxy knows by name. RFC 5737.
const NAMELESS: [u8; 4] = [192, 0, 2, 1];

/// A socket, and where QUIC believes the server is.
pub(super) async fn open(
    order: &Order,
    port: u16,
    token: &Token,
    record: &mut Record,
) -> Result<(Arc<dyn AsyncUdpSocket>, SocketAddr), TransferError> {
    let failed = |error: io::Error| Fault::Connect.because(error);
    let way = door::open_association(order, port, token, record).await?;
    let socket = TokioRuntime.wrap_udp_socket(way.socket).map_err(failed)?;
    let Some((control, target)) = way.association else {
        return Ok((socket, way.peer));
    };
    let believed = target
        .clone()
        .target()
        .ok()
        .and_then(|target| target.socket_addr());
    let server = believed.unwrap_or_else(|| SocketAddr::from((NAMELESS, port)));
    let mut header = Vec::new();
    target.emit_datagram_header(&mut header);
    let relayed = Relayed {
        inner: socket,
        proxy: way.peer,
        server,
        header,
        _control: control,
    };
    Ok((Arc::new(relayed), server))
}

/// A socket whose datagrams go through an association.
#[derive(Debug)]
struct Relayed {
    inner: Arc<dyn AsyncUdpSocket>,
    proxy: SocketAddr,
    server: SocketAddr,
    header: Vec<u8>,
    _control: TcpStream,
}

impl AsyncUdpSocket for Relayed {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Arc::clone(&self.inner).create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let segment = transmit
            .segment_size
            .unwrap_or(transmit.contents.len())
            .max(1);
        let contents = wrap(&self.header, transmit.contents, segment);
        self.inner.try_send(&Transmit {
            destination: self.proxy,
            ecn: transmit.ecn,
            contents: &contents,
            segment_size: transmit.segment_size.map(|size| size + self.header.len()),
            src_ip: None,
        })
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let count = ready!(self.inner.poll_recv(cx, bufs, meta))?;
        for (buffer, meta) in bufs.iter_mut().zip(meta.iter_mut()).take(count) {
            (meta.len, meta.stride) = unwrap(buffer, meta.len, meta.stride);
            meta.addr = self.server;
            meta.dst_ip = None;
        }
        Poll::Ready(Ok(count))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        self.inner.max_transmit_segments()
    }

    fn max_receive_segments(&self) -> usize {
        self.inner.max_receive_segments()
    }

    /// "No" even where the kernel may: what the proxy sends on is never split, and packets that are too large must be seen as lost.
    fn may_fragment(&self) -> bool {
        false
    }
}

/// Puts the header in front of every segment.
fn wrap(header: &[u8], contents: &[u8], segment: usize) -> Vec<u8> {
    let segments = contents.len().div_ceil(segment);
    let mut out = Vec::with_capacity(contents.len() + segments * header.len());
    for piece in contents.chunks(segment) {
        out.extend_from_slice(header);
        out.extend_from_slice(piece);
    }
    out
}

/// Takes the header off every segment, in place; the new length and stride. What is no datagram of the association goes.
/// Segments whose headers have another length than the first one's go too: they would not fit the stride.
fn unwrap(buffer: &mut [u8], len: usize, stride: usize) -> (usize, usize) {
    let (mut to, mut header, stride) = (0, None, stride.max(1));
    for start in (0..len).step_by(stride) {
        let end = (start + stride).min(len);
        let Some(own) = buffer.get(start..end).and_then(header_of) else {
            continue;
        };
        if *header.get_or_insert(own) != own {
            continue;
        }
        buffer.copy_within(start + own..end, to);
        to += end - start - own;
    }
    (to, stride.saturating_sub(header.unwrap_or(0)).max(1))
}

/// The length of a whole datagram's header. One that carries nothing is none: QUIC has no use for it.
fn header_of(datagram: &[u8]) -> Option<usize> {
    let view = DatagramView::parse(datagram).ok()?;
    let whole = view.fragment == 0 && !view.payload.is_empty();
    whole.then_some(view.header.len())
}

#[cfg(test)]
mod tests {
    use hoplite_wire::socks::Endpoint;

    use super::*;

    fn header(address: &str) -> Vec<u8> {
        let mut out = Vec::new();
        let address: SocketAddr = address.parse().unwrap();
        Endpoint::from(address).emit_datagram_header(&mut out);
        out
    }

    #[test]
    fn segments_are_wrapped_one_by_one_and_come_out_as_they_went_in() {
        let contents: Vec<u8> = (0..=255).cycle().take(2500).collect();
        let header = header("10.77.0.1:443");
        let mut wrapped = wrap(&header, &contents, 1000);
        assert_eq!(wrapped.len(), 2500 + 3 * header.len());
        let len = wrapped.len();
        let (len, stride) = unwrap(&mut wrapped, len, 1000 + header.len());
        assert_eq!((len, stride), (2500, 1000));
        assert_eq!(wrapped[..len], contents);
    }

    #[test]
    fn fragments_and_nonsense_are_dropped() {
        let mut datagram = wrap(&header("[fd77::1]:443"), &[7; 10], 10);
        datagram[2] = 1;
        let len = datagram.len();
        assert_eq!(unwrap(&mut datagram, len, len).0, 0);
        assert_eq!(unwrap(&mut [9; 30], 30, 30).0, 0);
        assert_eq!(unwrap(&mut [], 0, 0).0, 0);
    }
}
