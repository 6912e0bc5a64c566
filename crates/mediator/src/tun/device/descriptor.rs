//! A TUN device as a descriptor, made here or handed over: one read is one packet, and so is one write.
//! Linux `Documentation/networking/tuntap.rst`; Android `VpnService.Builder.establish`; macOS and iOS `net/if_utun.h`, where four bytes before
//! each packet name its family. Run on Linux alone: with the header of utun too, but over a pair of sockets.

use std::{
    io::{self, IoSlice},
    os::fd::OwnedFd,
};

use rustix::{
    fs::{OFlags, fcntl_getfl, fcntl_setfl},
    io::Errno,
};
use tokio::io::{
    Interest,
    unix::{AsyncFd, AsyncFdReadyGuard},
};

use super::PacketIo;

/// A device that is removed shows it by an error alone.
const INTEREST: Interest = Interest::READABLE.add(Interest::ERROR);

/// The protocol families of utun's header, as the numbers of Darwin's `sys/socket.h`.
const AF_INET: u32 = 2;
const AF_INET6: u32 = 30;

/// Bytes of that header.
const UTUN_HEADER_LEN: usize = 4;

/// A descriptor, for which the runtime waits.
#[derive(Debug)]
pub struct Descriptor {
    fd: AsyncFd<OwnedFd>,
    header: Header,
}

/// What stands before each packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Header {
    /// Nothing.
    None,
    /// Virtio's, which the device reads and writes.
    Virtio,
    /// Utun's: the protocol family, in network byte order.
    Utun,
}

impl Descriptor {
    /// In the current runtime.
    pub(super) fn new(fd: OwnedFd, header: Header) -> io::Result<Self> {
        let flags = fcntl_getfl(&fd)?;
        fcntl_setfl(&fd, flags | OFlags::NONBLOCK)?;
        #[expect(unsafe_code, reason = "no safe way to wait for a descriptor")]
        // SAFETY: an OwnedFd is open and the same descriptor for as long as it lives, and the AsyncFd owns it.
        let fd = unsafe { AsyncFd::register_with_interest(fd, INTEREST) }?;
        Ok(Self { fd, header })
    }
}

impl PacketIo for Descriptor {
    type Ready<'a> = AsyncFdReadyGuard<'a, OwnedFd>;

    fn has_vnet_header(&self) -> bool {
        self.header == Header::Virtio
    }

    async fn readable(&self) -> io::Result<Self::Ready<'_>> {
        self.fd.ready(INTEREST).await
    }

    fn drained(mut ready: Self::Ready<'_>) {
        ready.clear_ready();
    }

    fn read(&self, buf: &mut Vec<u8>) -> io::Result<usize> {
        rustix::io::read(self.fd.get_ref(), rustix::buffer::spare_capacity(buf))?;
        // The family is not looked at: the packet's first byte says the same.
        Ok(match self.header {
            Header::None | Header::Virtio => 0,
            Header::Utun => UTUN_HEADER_LEN,
        })
    }

    fn write(&self, before: &[u8], packet: [&[u8]; 3]) -> io::Result<()> {
        let family = family(packet).to_be_bytes();
        let before = match self.header {
            Header::None | Header::Virtio => before,
            Header::Utun => &family,
        };
        let [headers, first, second] = packet;
        let parts = [before, headers, first, second].map(IoSlice::new);
        let parts = if before.is_empty() {
            &parts[1..]
        } else {
            &parts[..]
        };
        match rustix::io::writev(self.fd.get_ref(), parts) {
            Ok(_) => Ok(()),
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) => {
                Err(io::ErrorKind::WouldBlock.into())
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// The family of a packet.
fn family([headers, ..]: [&[u8]; 3]) -> u32 {
    match headers.first().map(|first| first >> 4) {
        Some(4) => AF_INET,
        _ => AF_INET6,
    }
}

#[cfg(test)]
mod tests {
    //! A pair of datagram sockets stands for utun: both keep the borders of what is written.

    use std::{os::unix::net::UnixDatagram, time::Duration};

    use proptest::prelude::*;

    use super::*;
    use crate::tun::{
        Device,
        device::PacketBuffers,
        outgoing::{OutgoingPacket, PacketSink},
    };

    fn utun() -> (Device<Descriptor>, UnixDatagram) {
        let (ours, system) = UnixDatagram::pair().expect("a pair");
        system.set_nonblocking(true).expect("an option");
        (Device::utun(ours.into(), 1500).expect("a device"), system)
    }

    fn packet() -> impl Strategy<Value = Vec<u8>> {
        let first = prop::sample::select(vec![0x45, 0x46, 0x60, 0x6f]);
        let rest = prop::collection::vec(any::<u8>(), 19..1500);
        (first, rest).prop_map(|(first, rest)| [vec![first], rest].concat())
    }

    fn framed(packet: &[u8]) -> Vec<u8> {
        let family = if packet[0] >> 4 == 4 { 2 } else { 30 };
        [&[0, 0, 0, family], packet].concat()
    }

    proptest! {
        #[test]
        fn utun_has_the_family_before_each_packet_in_both_directions(
            packets in prop::collection::vec(packet(), 1..8), cut in 1_usize..19,
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().expect("a runtime");
            runtime.block_on(async {
                let (device, system) = utun();
                let mut buffers = PacketBuffers::default();
                for packet in packets {
                    system.send(&framed(&packet)).expect("sends");
                    let _ready = device.readable().await.expect("readable");
                    let incoming = device.read(&mut buffers).expect("reads").expect("a packet");
                    prop_assert_eq!(&incoming.bytes[..], &packet[..]);
                    prop_assert!(!incoming.checked && incoming.segment.is_none());
                    let error = device.read(&mut buffers).expect_err("no other");
                    prop_assert_eq!(error.kind(), io::ErrorKind::WouldBlock);

                    // As flows write them: headers, and two pieces of what follows.
                    let (headers, rest) = packet.split_at(cut);
                    let (first, second) = rest.split_at(rest.len() / 2);
                    let outgoing = OutgoingPacket { payload: [first, second], ..OutgoingPacket::whole(headers) };
                    prop_assert!(device.send(outgoing));
                    let mut written = [0; 2000];
                    let len = system.recv(&mut written).expect("written");
                    prop_assert_eq!(&written[..len], &framed(&packet)[..]);
                }
                Ok(())
            })?;
        }
    }

    #[tokio::test]
    async fn less_than_the_header_is_an_empty_packet() {
        let (device, system) = utun();
        for bytes in [&[][..], &[0, 0, 0], &[0, 0, 0, 2]] {
            system.send(bytes).expect("sends");
            let _ready = device.readable().await.expect("readable");
            let incoming = device.read(&mut PacketBuffers::default()).expect("reads");
            assert!(incoming.expect("one").bytes.is_empty());
        }
    }

    #[tokio::test]
    async fn what_comes_while_nobody_waits_is_read_later() {
        let (device, system) = utun();
        let mut buffers = PacketBuffers::default();
        for round in 0..3 {
            for _ in 0..5 {
                system.send(&framed(&[0x45, round])).expect("sends");
            }
            let ready = device.readable().await.expect("readable");
            let mut count = 0;
            while let Ok(Some(incoming)) = device.read(&mut buffers) {
                assert_eq!(incoming.bytes[..], [0x45, round]);
                count += 1;
            }
            assert_eq!(count, 5);
            Descriptor::drained(ready);
            let waits = tokio::time::timeout(Duration::ZERO, device.readable()).await;
            assert!(waits.is_err(), "there is nothing more");
        }
    }
}
