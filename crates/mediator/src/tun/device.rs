//! A TUN device: reads one packet of up to 64 KiB at a time and writes the same, so that the kernel cuts and checks as little as we do.
//! Linux `Documentation/networking/tuntap.rst`, struct virtio_net_hdr of VIRTIO 1.2 §5.1.6.
//! Without that header (other systems, `vnet_header = false`) packets are at most an MTU long and checksums are finished here.
//!
//! What differs between systems is behind [`PacketIo`]: a descriptor of Unix's, or queues that an app fills. It is a parameter and no trait
//! object, since it is called for each packet.

#[cfg(unix)]
mod descriptor;
mod queues;

#[cfg(unix)]
use std::os::fd::OwnedFd;
use std::{
    collections::VecDeque,
    fmt,
    future::Future,
    io, mem,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use bytes::Bytes;

#[cfg(unix)]
pub use self::descriptor::Descriptor;
#[cfg(unix)]
use self::descriptor::Header;
pub use self::queues::PacketQueues;
use super::{
    Counters,
    outgoing::{Offload, OutgoingPacket, PacketSink, segment_packet},
};

/// Where a device's packets come from and go to.
pub trait PacketIo: fmt::Debug + Send + Sync + 'static {
    /// Whether a header of ten bytes stands before each packet (IFF_VNET_HDR), by which the system leaves segmentation and checksums to us and
    /// takes them from us.
    fn has_vnet_header(&self) -> bool {
        false
    }

    /// What the runtime remembers of a device that had something to be read.
    type Ready<'a>: Send;

    /// Waits for a packet, or for the end of the device: [`Self::read`] says which.
    ///
    /// # Errors
    /// The device is gone.
    fn readable(&self) -> impl Future<Output = io::Result<Self::Ready<'_>>> + Send;

    /// Since then [`Self::read`] has found nothing more: the next one who waits waits for more.
    fn drained(ready: Self::Ready<'_>);

    /// Puts the next packet into `buf`, which is empty and has room for any, and says where in it the packet begins.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`]: there is none. [`io::ErrorKind::Interrupted`]: ask again. Any other: the device is gone.
    fn read(&self, buf: &mut Vec<u8>) -> io::Result<usize>;

    /// Takes one packet, in three pieces, all of it or nothing; `before` is the header, empty where there is none.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`]: no room. [`io::ErrorKind::InvalidInput`]: not with this header. With any error the packet is lost.
    fn write(&self, before: &[u8], packet: [&[u8]; 3]) -> io::Result<()>;
}

/// The device. It stays as long as what is below it does.
pub struct Device<P> {
    packets: P,
    mtu: u16,
    /// Whether trains of datagrams are segmented here, since the kernel refused one (no USO: Linux before 6.2).
    segments_udp: AtomicBool,
    counters: Arc<Counters>,
}

/// A packet from a program.
#[derive(Clone, Debug)]
pub(crate) struct IncomingPacket {
    pub(crate) bytes: Bytes,
    /// Whether nobody needs to look at the transport checksum: it was never computed, or somebody has looked.
    pub(crate) checked: bool,
    /// The size of the pieces, where the kernel left cutting to us.
    pub(crate) segment: Option<u16>,
}

#[cfg(unix)]
impl Device<Descriptor> {
    /// Takes over the descriptor of a TUN device without packet information (IFF_NO_PI). `vnet_header` says whether each packet has
    /// a header of 10 bytes before it (IFF_VNET_HDR); then whoever made the device has told the kernel by TUNSETOFFLOAD what it may leave
    /// to us: TUN_F_CSUM, TSO4, TSO6, USO4 and USO6. To be called inside a tokio runtime.
    ///
    /// # Errors
    /// The operating system's.
    pub fn new(fd: OwnedFd, mtu: u16, vnet_header: bool) -> io::Result<Self> {
        let header = if vnet_header {
            Header::Virtio
        } else {
            Header::None
        };
        Ok(Self::over(Descriptor::new(fd, header)?, mtu))
    }

    /// Takes over the descriptor of an interface `utun` of macOS or iOS. To be called inside a tokio runtime.
    ///
    /// # Errors
    /// The operating system's.
    pub fn utun(fd: OwnedFd, mtu: u16) -> io::Result<Self> {
        Ok(Self::over(Descriptor::new(fd, Header::Utun)?, mtu))
    }
}

impl<P: PacketIo> Device<P> {
    /// Over whatever has the packets of an interface with this MTU.
    pub fn over(packets: P, mtu: u16) -> Self {
        Self {
            packets,
            mtu,
            segments_udp: AtomicBool::new(false),
            counters: Arc::default(),
        }
    }

    pub(crate) fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.counters)
    }

    /// Waits for a packet, or for the end of the device.
    pub(crate) async fn readable(&self) -> io::Result<P::Ready<'_>> {
        self.packets.readable().await
    }

    /// The next packet; `None` if the kernel says things about it that nobody agreed on.
    pub(crate) fn read(&self, buffers: &mut PacketBuffers) -> io::Result<Option<IncomingPacket>> {
        let mut buf = buffers.take();
        let at = match self.packets.read(&mut buf) {
            Ok(at) => at,
            Err(error) => {
                buffers.give_back(buf);
                return Err(error);
            }
        };
        let (header, at) = if self.packets.has_vnet_header() {
            (VnetHeader::parse(&buf), VNET_HEADER_LEN)
        } else {
            (Some(VnetHeader::default()), at)
        };
        let bytes = buffers.freeze(buf, at);
        self.counters.packets_in.add(1);
        self.counters.bytes_in.add(bytes.len());
        Ok(header.map(|header| IncomingPacket {
            bytes,
            checked: header.checked(),
            segment: header.segment(),
        }))
    }

    /// One write, which takes all or nothing.
    fn write(&self, header: VnetHeader, headers: &[u8], payload: [&[u8]; 2]) -> io::Result<()> {
        let header = header.to_bytes();
        let header = if self.packets.has_vnet_header() {
            &header[..]
        } else {
            &[]
        };
        self.packets
            .write(header, [headers, payload[0], payload[1]])?;
        self.counters.packets_out.add(1);
        let len = headers.len() + payload[0].len() + payload[1].len();
        self.counters.bytes_out.add(len);
        Ok(())
    }

    /// Sends a packet that the kernel does not segment.
    fn send_segmented(&self, packet: OutgoingPacket<'_>) -> bool {
        segment_packet(packet, |headers, payload| {
            self.count_written(self.write(VnetHeader::default(), headers, payload))
        })
    }

    /// Counts what became of a packet.
    fn count_written(&self, written: io::Result<()>) -> bool {
        match written {
            Ok(()) => return true,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.counters.queue_full.add(1);
            }
            Err(error) => {
                tracing::trace!(%error, "the device refuses a packet");
                self.counters.refused.add(1);
            }
        }
        false
    }
}

impl<P: PacketIo> PacketSink for Device<P> {
    fn send(&self, packet: OutgoingPacket<'_>) -> bool {
        let train = packet.offload == Offload::Udp && packet.segment.is_some();
        if !self.packets.has_vnet_header() || train && self.segments_udp.load(Ordering::Relaxed) {
            return self.send_segmented(packet);
        }
        let written = self.write(VnetHeader::of(&packet), packet.headers, packet.payload);
        match written {
            Err(error) if error.kind() == io::ErrorKind::InvalidInput && train => {
                self.segments_udp.store(true, Ordering::Relaxed);
                self.send_segmented(packet)
            }
            written => self.count_written(written),
        }
    }

    fn mtu(&self) -> u16 {
        self.mtu
    }
}

impl<P: fmt::Debug> fmt::Debug for Device<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device")
            .field("mtu", &self.mtu)
            .field("packets", &self.packets)
            .finish_non_exhaustive()
    }
}

/// Bytes of the header, unless TUNSETVNETHDRSZ asks for more.
const VNET_HEADER_LEN: usize = 10;

/// The checksum from `csum_start` on is to be computed; the pseudo header's sum is in its place.
const NEEDS_CSUM: u8 = 1;
/// Somebody has looked at the checksum.
const DATA_VALID: u8 = 2;

const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
const GSO_UDP_L4: u8 = 5;
/// Beside the type: the first segment has CWR.
const GSO_ECN: u8 = 0x80;

/// The header that a TUN device with IFF_VNET_HDR puts before each packet: what is left to the other side (VIRTIO 1.2 §5.1.6). Numbers are in
/// the machine's own order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct VnetHeader {
    flags: u8,
    gso_type: u8,
    /// Bytes of all headers of the packet.
    hdr_len: u16,
    /// Bytes of payload of each piece.
    gso_size: u16,
    csum_start: u16,
    csum_offset: u16,
}

impl VnetHeader {
    /// The header at the beginning of what was read; `None` if it is cut or names a kind of cutting that we did not offer.
    fn parse(bytes: &[u8]) -> Option<Self> {
        let &[flags, gso_type, a, b, c, d, e, f, g, h] = bytes.first_chunk()?;
        let [hdr_len, gso_size, csum_start, csum_offset] =
            [[a, b], [c, d], [e, f], [g, h]].map(u16::from_ne_bytes);
        let header = Self {
            flags,
            gso_type: gso_type & !GSO_ECN,
            hdr_len,
            gso_size,
            csum_start,
            csum_offset,
        };
        let known = [GSO_NONE, GSO_TCPV4, GSO_TCPV6, GSO_UDP_L4];
        let sized = header.gso_type == GSO_NONE || gso_size > 0;
        (known.contains(&header.gso_type) && sized).then_some(header)
    }

    fn to_bytes(self) -> [u8; VNET_HEADER_LEN] {
        let mut bytes = [0; VNET_HEADER_LEN];
        let words = [
            self.hdr_len,
            self.gso_size,
            self.csum_start,
            self.csum_offset,
        ];
        bytes[0] = self.flags;
        bytes[1] = self.gso_type;
        for (field, word) in bytes[2..].chunks_exact_mut(2).zip(words) {
            field.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    /// What the kernel is asked to do with `packet`.
    fn of(packet: &OutgoingPacket<'_>) -> Self {
        let Some(checksum_at) = packet.offload.checksum_at() else {
            return Self::default();
        };
        let short = |len: usize| u16::try_from(len).unwrap_or(u16::MAX);
        let transport_at = packet.transport_at();
        Self {
            flags: NEEDS_CSUM,
            gso_type: packet.segment.map_or(GSO_NONE, |_| gso(packet)),
            hdr_len: packet.segment.map_or(0, |_| short(packet.headers.len())),
            gso_size: packet.segment.unwrap_or(0),
            csum_start: short(transport_at),
            csum_offset: short(checksum_at),
        }
    }

    fn checked(&self) -> bool {
        self.flags & (NEEDS_CSUM | DATA_VALID) != 0
    }

    fn segment(&self) -> Option<u16> {
        (self.gso_type != GSO_NONE).then_some(self.gso_size)
    }
}

fn gso(packet: &OutgoingPacket<'_>) -> u8 {
    match (packet.offload, packet.transport_at()) {
        (Offload::Tcp, 20) => GSO_TCPV4,
        (Offload::Tcp, _) => GSO_TCPV6,
        (Offload::Udp, _) => GSO_UDP_L4,
        (Offload::None, _) => GSO_NONE,
    }
}

/// The largest packet (IPv6: 40 bytes and 65535) and the header before it.
const MAX_PACKET: usize = 66 * 1024;
/// Up to this many bytes are copied out.
const MAX_COPIED: usize = 8 * 1024;
/// How many buffers that are still in use somewhere are remembered.
const MAX_LENT: usize = 16;

/// Buffers that packets are read into. A large packet travels on in the buffer that it was read into; when its last part is gone the buffer is
/// used again. Small ones are copied out, so that none holds 66 KiB.
#[derive(Debug, Default)]
pub(crate) struct PacketBuffers {
    free: Vec<u8>,
    /// The oldest first.
    lent: VecDeque<Bytes>,
}

impl PacketBuffers {
    /// An empty buffer with room for any packet.
    fn take(&mut self) -> Vec<u8> {
        let mut buf = mem::take(&mut self.free);
        if buf.capacity() < MAX_PACKET {
            buf = self
                .returned()
                .unwrap_or_else(|| Vec::with_capacity(MAX_PACKET));
        }
        buf.clear();
        buf
    }

    /// A buffer was not needed.
    fn give_back(&mut self, buf: Vec<u8>) {
        self.free = buf;
    }

    /// What stands in `buf` from `at` on.
    fn freeze(&mut self, buf: Vec<u8>, at: usize) -> Bytes {
        if buf.len() <= MAX_COPIED {
            let bytes = Bytes::copy_from_slice(buf.get(at..).unwrap_or_default());
            self.free = buf;
            return bytes;
        }
        let whole = Bytes::from(buf);
        if self.lent.len() >= MAX_LENT {
            self.lent.pop_front();
        }
        self.lent.push_back(whole.clone());
        whole.slice(at.min(whole.len())..)
    }

    /// The oldest lent buffer, if nobody uses it any more.
    fn returned(&mut self) -> Option<Vec<u8>> {
        match self.lent.pop_front()?.try_into_mut() {
            Ok(buf) => {
                let buf = Vec::from(buf);
                (buf.capacity() >= MAX_PACKET).then_some(buf)
            }
            Err(used) => {
                self.lent.push_front(used);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    //! A pair of datagram sockets stands for the device: both keep the borders of what is written.

    use std::os::unix::net::UnixDatagram;

    use hoplite_wire::ip;

    use super::*;
    use crate::tun::outgoing::{tcp_headers, udp_headers};

    fn device(vnet_header: bool) -> (Device<Descriptor>, UnixDatagram) {
        let (ours, kernel) = UnixDatagram::pair().expect("a pair");
        kernel.set_nonblocking(true).expect("an option");
        let device = Device::new(ours.into(), 1500, vnet_header).expect("a device");
        (device, kernel)
    }

    fn receive(kernel: &UnixDatagram) -> Vec<u8> {
        let mut buf = vec![0; 70_000];
        let len = kernel.recv(&mut buf).expect("something was written");
        buf.truncate(len);
        buf
    }

    fn headers(payload_len: usize) -> Vec<u8> {
        let mut headers = Vec::new();
        let (from, to) = ("203.0.113.9:53", "198.18.0.1:4000");
        let (from, to) = (from.parse().expect("valid"), to.parse().expect("valid"));
        udp_headers(&mut headers, from, to, payload_len);
        headers
    }

    #[tokio::test]
    async fn a_packet_is_read_with_what_the_kernel_says_about_it() {
        let (device, kernel) = device(true);
        let header = VnetHeader {
            flags: 1,
            gso_type: 5,
            gso_size: 1200,
            ..VnetHeader::default()
        };
        let packet = [&header.to_bytes()[..], &headers(3000), &[7; 3000]].concat();
        kernel.send(&packet).expect("sends");
        let _ready = device.readable().await.expect("readable");
        let incoming = device.read(&mut PacketBuffers::default()).expect("reads");
        let incoming = incoming.expect("understood");
        assert_eq!(incoming.bytes[..], packet[10..]);
        assert!(incoming.checked);
        assert_eq!(incoming.segment, Some(1200));
        assert_eq!(device.counters().snapshot().bytes_in, 3028);
    }

    #[tokio::test]
    async fn what_nobody_agreed_on_is_no_packet() {
        let (device, kernel) = device(true);
        for bytes in [&[0, 3, 0, 0, 1, 1, 0, 0, 0, 0, 0x45][..], &[0; 4]] {
            kernel.send(bytes).expect("sends");
            let _ready = device.readable().await.expect("readable");
            let read = device.read(&mut PacketBuffers::default()).expect("reads");
            assert!(read.is_none());
        }
        let error = device
            .read(&mut PacketBuffers::default())
            .expect_err("nothing");
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    }

    #[tokio::test]
    async fn a_train_is_written_at_once_where_the_kernel_cuts_it() {
        let (device, kernel) = device(true);
        let (headers, payload) = (headers(3000), [&[1; 2000][..], &[2; 1000]]);
        assert!(device.send(OutgoingPacket::udp(&headers, payload, Some(1200))));
        let written = receive(&kernel);
        let header = VnetHeader::parse(&written).expect("a header");
        assert_eq!((header.segment(), header.csum_start), (Some(1200), 20));
        assert_eq!(
            written[10..],
            [&headers[..], payload[0], payload[1]].concat()
        );
        assert!(kernel.recv(&mut [0; 9]).is_err());
    }

    #[tokio::test]
    async fn without_the_header_packets_are_cut_and_their_checksums_finished() {
        let (device, kernel) = device(false);
        let headers = headers(3000);
        assert!(device.send(OutgoingPacket::udp(&headers, [&[1; 3000], &[]], Some(1200))));
        for len in [1200, 1200, 600] {
            let written = receive(&kernel);
            let packet = ip::parse(&written).expect("a packet");
            assert!(packet.checksum_is_right());
            assert_eq!(packet.payload.len(), len + 8);
        }
        assert!(kernel.recv(&mut [0; 9]).is_err());
        kernel.send(&headers).expect("sends");
        let incoming = device.read(&mut PacketBuffers::default());
        let incoming = incoming.expect("reads").expect("understood");
        assert!(!incoming.checked, "somebody has to look");
    }

    #[tokio::test]
    async fn a_full_queue_drops_and_counts() {
        let (device, _kernel) = device(true);
        let (from, to) = (
            "fd00::2".parse().expect("valid"),
            "fd00::1".parse().expect("valid"),
        );
        let (header, mut headers) = (ip::tcp::Header::default(), Vec::new());
        tcp_headers(&mut headers, from, to, &header, 30_000);
        let packet = OutgoingPacket::tcp(&headers, [&[0; 30_000], &[]], Some(1440));
        let taken = (0..10_000).take_while(|_| device.send(packet)).count();
        assert!(taken > 0);
        let snapshot = device.counters().snapshot();
        assert_eq!(snapshot.packets_out, taken as u64);
        assert_eq!(snapshot.queue_full, 1);
    }

    #[tokio::test]
    async fn a_device_that_is_gone_refuses_and_counts() {
        let (device, kernel) = device(true);
        drop(kernel);
        let headers = headers(0);
        assert!(!device.send(OutgoingPacket::udp(&headers, [&[], &[]], None)));
        assert_eq!(device.counters().snapshot().refused, 1);
    }
}

#[cfg(test)]
mod vnet_header_tests {
    use super::*;

    #[test]
    fn what_the_kernel_left_to_us_is_read() {
        let written = VnetHeader {
            flags: NEEDS_CSUM,
            gso_type: GSO_UDP_L4,
            hdr_len: 28,
            gso_size: 1200,
            csum_start: 20,
            csum_offset: 6,
        };
        let header = VnetHeader::parse(&written.to_bytes()).expect("known");
        assert_eq!(header, written);
        assert!(header.checked());
        assert_eq!(header.segment(), Some(1200));
        let ecn = VnetHeader {
            gso_type: GSO_TCPV6 | GSO_ECN,
            ..written
        };
        let header = VnetHeader::parse(&ecn.to_bytes()).expect("known");
        assert_eq!(header.gso_type, GSO_TCPV6);
        assert!(!VnetHeader::default().checked());
    }

    #[test]
    fn a_kind_of_cutting_that_nobody_offered_is_refused() {
        let ufo = VnetHeader {
            gso_type: 3,
            gso_size: 1400,
            ..VnetHeader::default()
        };
        assert_eq!(VnetHeader::parse(&ufo.to_bytes()), None);
        let unsized_one = VnetHeader {
            gso_type: GSO_TCPV4,
            ..VnetHeader::default()
        };
        assert_eq!(VnetHeader::parse(&unsized_one.to_bytes()), None);
        assert_eq!(VnetHeader::parse(&[0; 9]), None);
    }

    #[test]
    fn a_large_segment_is_left_to_the_kernel_with_its_checksum() {
        let headers = [&[0x60][..], &[0; 59]].concat();
        let packet = OutgoingPacket::tcp(&headers, [&[0; 3000], &[]], Some(1440));
        let expected = VnetHeader {
            flags: NEEDS_CSUM,
            gso_type: GSO_TCPV6,
            hdr_len: 60,
            gso_size: 1440,
            csum_start: 40,
            csum_offset: 16,
        };
        assert_eq!(VnetHeader::of(&packet), expected);
        let small = OutgoingPacket::tcp(&headers, [&[0; 1440], &[]], Some(1440));
        assert_eq!(VnetHeader::of(&small).gso_type, GSO_NONE);
        assert_eq!(
            VnetHeader::of(&OutgoingPacket::whole(&headers)),
            VnetHeader::default()
        );
    }
}

#[cfg(test)]
mod buffer_tests {
    use super::*;

    fn fill(buffers: &mut PacketBuffers, len: usize) -> (Bytes, *const u8) {
        let mut buf = buffers.take();
        buf.resize(len, 7);
        let at = buf.as_ptr();
        (buffers.freeze(buf, 10), at)
    }

    #[test]
    fn a_large_packet_is_not_copied_and_its_buffer_comes_back() {
        let mut buffers = PacketBuffers::default();
        let (packet, first) = fill(&mut buffers, 60_000);
        assert_eq!(packet.len(), 59_990);
        assert_eq!(packet.as_ptr(), first.wrapping_add(10));
        let (other, second) = fill(&mut buffers, 60_000);
        assert_ne!(first, second, "the first is still in use");
        drop(packet);
        let (_, third) = fill(&mut buffers, 60_000);
        assert_eq!(third, first);
        drop(other);
    }

    #[test]
    fn a_small_packet_holds_no_large_buffer() {
        let mut buffers = PacketBuffers::default();
        let (packet, first) = fill(&mut buffers, 60);
        assert_eq!((packet.len(), packet[0]), (50, 7));
        let (_, second) = fill(&mut buffers, 60);
        assert_eq!(first, second);
    }

    #[test]
    fn buffers_that_never_come_back_are_forgotten() {
        let mut buffers = PacketBuffers::default();
        let kept: Vec<_> = (0..100).map(|_| fill(&mut buffers, 60_000).0).collect();
        assert_eq!(buffers.lent.len(), MAX_LENT);
        assert_eq!(kept.len(), 100);
    }
}
