//! A TUN device: reads one packet of up to 64 KiB at a time and writes the same, so that the kernel cuts and checks as little as we do.
//! The router reads, the flows write. Linux `Documentation/networking/tuntap.rst`, struct virtio_net_hdr of VIRTIO 1.2 §5.1.6.
//! Without that header (other systems, `vnet_header = false`) packets are at most an MTU long and checksums are finished here.

mod pool;
mod virtio;

use std::{
    fmt,
    io::{self, IoSlice},
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use bytes::Bytes;
use rustix::{
    fs::{OFlags, fcntl_getfl, fcntl_setfl},
    io::Errno,
};
use tokio::io::{
    Interest,
    unix::{AsyncFd, AsyncFdReadyGuard},
};

pub(crate) use self::pool::Pool;
use self::virtio::Header;
use super::{
    Counters,
    cut::cut,
    port::{Kind, Outgoing, Port},
};

/// A device that is removed shows it by an error alone.
const INTEREST: Interest = Interest::READABLE.add(Interest::ERROR);

/// The device. It stays as long as its descriptor does.
pub struct Device {
    fd: AsyncFd<OwnedFd>,
    mtu: u16,
    vnet_header: bool,
    /// Whether the kernel refused a train of datagrams: Linux before 6.2.
    cuts_trains: AtomicBool,
    counters: Arc<Counters>,
}

/// A packet from a program.
#[derive(Clone, Debug)]
pub(crate) struct Incoming {
    pub(crate) octets: Bytes,
    /// Whether nobody needs to look at the transport checksum: it was never computed, or somebody has looked.
    pub(crate) checked: bool,
    /// The size of the pieces, where the kernel left cutting to us.
    pub(crate) segment: Option<u16>,
}

impl Device {
    /// Takes over the descriptor of a TUN device without packet information (IFF_NO_PI). `vnet_header` says whether each packet has
    /// a header of 10 octets before it (IFF_VNET_HDR); then whoever made the device has told the kernel by TUNSETOFFLOAD what it may leave
    /// to us: TUN_F_CSUM, TSO4, TSO6, USO4 and USO6. To be called inside a tokio runtime.
    ///
    /// # Errors
    /// The operating system's.
    pub fn new(fd: OwnedFd, mtu: u16, vnet_header: bool) -> io::Result<Self> {
        let flags = fcntl_getfl(&fd)?;
        fcntl_setfl(&fd, flags | OFlags::NONBLOCK)?;
        #[expect(unsafe_code, reason = "no safe way to wait for a descriptor")]
        // SAFETY: an OwnedFd is open and the same descriptor for as long as it lives, and the AsyncFd owns it.
        let fd = unsafe { AsyncFd::register_with_interest(fd, INTEREST) }?;
        Ok(Self {
            fd,
            mtu,
            vnet_header,
            cuts_trains: AtomicBool::new(false),
            counters: Arc::default(),
        })
    }

    pub(crate) fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.counters)
    }

    /// Waits for a packet, or for the end of the device.
    pub(crate) async fn readable(&self) -> io::Result<AsyncFdReadyGuard<'_, OwnedFd>> {
        self.fd.ready(INTEREST).await
    }

    /// The next packet; `None` if the kernel says things about it that nobody agreed on.
    pub(crate) fn read(&self, pool: &mut Pool) -> io::Result<Option<Incoming>> {
        let mut buf = pool.take();
        let read = rustix::io::read(self.fd.get_ref(), rustix::buffer::spare_capacity(&mut buf));
        if let Err(error) = read {
            pool.give_back(buf);
            return Err(error.into());
        }
        let (header, at) = match self.vnet_header {
            true => (Header::parse(&buf), virtio::LEN),
            false => (Some(Header::default()), 0),
        };
        let octets = pool.freeze(buf, at);
        self.counters.packets_in.add(1);
        self.counters.octets_in.add(octets.len());
        Ok(header.map(|header| Incoming {
            octets,
            checked: header.checked(),
            segment: header.segment(),
        }))
    }

    /// One write, which takes all or nothing.
    fn write(&self, header: Header, headers: &[u8], payload: [&[u8]; 2]) -> Result<(), Errno> {
        let header = header.octets();
        let header = if self.vnet_header { &header[..] } else { &[] };
        let parts = [header, headers, payload[0], payload[1]].map(IoSlice::new);
        let parts = if header.is_empty() {
            &parts[1..]
        } else {
            &parts[..]
        };
        rustix::io::writev(self.fd.get_ref(), parts)?;
        self.counters.packets_out.add(1);
        let len = headers.len() + payload[0].len() + payload[1].len();
        self.counters.octets_out.add(len);
        Ok(())
    }

    /// For what the kernel does not cut.
    fn send_cut(&self, packet: Outgoing<'_>) -> bool {
        cut(packet, |headers, payload| {
            self.told(self.write(Header::default(), headers, payload))
        })
    }

    /// Counts what became of a packet.
    fn told(&self, written: Result<(), Errno>) -> bool {
        match written {
            Ok(()) => return true,
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) => self.counters.queue_full.add(1),
            Err(error) => {
                tracing::trace!(%error, "the device refuses a packet");
                self.counters.refused.add(1);
            }
        }
        false
    }
}

impl Port for Device {
    fn send(&self, packet: Outgoing<'_>) -> bool {
        let train = packet.kind == Kind::Udp && packet.segment.is_some();
        if !self.vnet_header || train && self.cuts_trains.load(Ordering::Relaxed) {
            return self.send_cut(packet);
        }
        let written = self.write(Header::of(&packet), packet.headers, packet.payload);
        if written == Err(Errno::INVAL) && train {
            self.cuts_trains.store(true, Ordering::Relaxed);
            return self.send_cut(packet);
        }
        self.told(written)
    }

    fn mtu(&self) -> u16 {
        self.mtu
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device")
            .field("mtu", &self.mtu)
            .field("vnet_header", &self.vnet_header)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
