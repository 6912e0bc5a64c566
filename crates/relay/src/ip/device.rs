//! The egress for packets of all protocols: a TUN device that the operator has made. What is written to it the system forwards and
//! masquerades; what comes back belongs to the flow that has its destination address.
//! Flows write from wherever they run; one thread reads for all. Without offloads: few relays carry much by it, and other people's
//! packets are never taken apart.

use std::{
    collections::{HashMap, VecDeque},
    fmt, io,
    net::IpAddr,
    os::fd::OwnedFd,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use hoplite_overlay::{
    Batch, Error, Packets, Received,
    direct::tun::{self, PacketHeader},
};
use hoplite_wire::{
    connect_ip::{Prefix, Route},
    ip,
};
use parking_lot::{Mutex, MutexGuard};
use tokio::io::{Interest, unix::AsyncFd};

/// Bytes that wait for one flow; the newest are dropped.
const WAITING: usize = 256 * 1024;
/// What an empty place costs of it.
const OVERHEAD: usize = 64;
/// The largest packet that the device hands out, in bytes.
const MAX_PACKET: usize = 65_535;
/// Packets read before others get their turn.
const PACKET_BUDGET: usize = 64;
/// What the device carries if it says nothing else.
const MTU: usize = 1500;

/// An open TUN device.
pub(crate) struct Device {
    fd: OwnedFd,
    flows: Mutex<HashMap<IpAddr, Arc<FlowQueue>>>,
}

/// What waits for one flow.
#[derive(Default)]
struct FlowQueue(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    packets: VecDeque<Bytes>,
    bytes: usize,
    receiver: Option<Waker>,
}

/// A flow's share of the device; its addresses are free for others when it is dropped.
pub(crate) struct DeviceFlow {
    device: Arc<Device>,
    mailbox: Arc<FlowQueue>,
    own: Vec<IpAddr>,
    routes: Vec<Route>,
}

impl Device {
    /// Opens the device called `name`; making it, if it is not there, needs CAP_NET_ADMIN.
    ///
    /// # Errors
    /// No such device and no right to make it, or it belongs to somebody else.
    pub(crate) fn open(name: &str) -> io::Result<Arc<Self>> {
        let device = tun::device()?;
        tun::attach(&device, name, PacketHeader::None)?;
        Ok(Arc::new(Self {
            fd: device.into(),
            flows: Mutex::default(),
        }))
    }

    fn flows(&self) -> MutexGuard<'_, HashMap<IpAddr, Arc<FlowQueue>>> {
        self.flows.lock()
    }

    /// A flow with addresses that nobody else has.
    pub(crate) fn flow(self: &Arc<Self>, own: Vec<IpAddr>, routes: Vec<Route>) -> DeviceFlow {
        let mailbox = Arc::new(FlowQueue::default());
        let entries = own.iter().map(|address| (*address, mailbox.clone()));
        self.flows().extend(entries);
        DeviceFlow {
            device: self.clone(),
            mailbox,
            own,
            routes,
        }
    }

    /// Hands what comes to the flows, until the device is gone.
    ///
    /// # Errors
    /// It is gone.
    pub(crate) async fn read(&self) -> io::Result<()> {
        let fd = self.fd.try_clone()?;
        #[expect(unsafe_code, reason = "no safe way to wait for a descriptor")]
        // SAFETY: an OwnedFd is open and the same descriptor for as long as it lives, and the AsyncFd owns it.
        let ready = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }?;
        let mut buffer = vec![0; MAX_PACKET];
        loop {
            let mut guard = ready.readable().await?;
            for _ in 0..PACKET_BUDGET {
                match rustix::io::read(&self.fd, &mut buffer) {
                    Ok(len) => self.deliver(buffer.get(..len).unwrap_or_default()),
                    Err(rustix::io::Errno::AGAIN) => {
                        guard.clear_ready();
                        break;
                    }
                    Err(rustix::io::Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            tokio::task::yield_now().await;
        }
    }

    /// What is nobody's is dropped: the system talks on its devices by itself.
    fn deliver(&self, bytes: &[u8]) {
        let Ok(packet) = ip::parse(bytes) else {
            return;
        };
        let mailbox = self.flows().get(&packet.destination).cloned();
        if let Some(mailbox) = mailbox {
            mailbox.put(bytes);
        }
    }

    /// A full device loses the newest, as a router would.
    fn write(&self, packet: &[u8]) {
        if let Err(error) = rustix::io::write(&self.fd, packet) {
            tracing::trace!(%error, "the TUN device did not take a packet");
        }
    }
}

impl FlowQueue {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock()
    }

    fn put(&self, packet: &[u8]) {
        let mut waiting = self.waiting();
        let cost = packet.len() + OVERHEAD;
        if waiting.bytes + cost > WAITING {
            return;
        }
        waiting.bytes += cost;
        waiting.packets.push_back(Bytes::copy_from_slice(packet));
        if let Some(receiver) = waiting.receiver.take() {
            receiver.wake();
        }
    }

    fn poll_take(&self, cx: &mut Context<'_>) -> Poll<Bytes> {
        let mut waiting = self.waiting();
        match waiting.packets.pop_front() {
            Some(packet) => {
                waiting.bytes -= packet.len() + OVERHEAD;
                Poll::Ready(packet)
            }
            None => {
                waiting.receiver = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Packets for DeviceFlow {
    fn addresses(&self) -> Vec<Prefix> {
        self.own.iter().copied().map(Prefix::one).collect()
    }

    fn routes(&self) -> Vec<Route> {
        self.routes.clone()
    }

    fn mtu(&self) -> usize {
        MTU
    }

    fn poll_send(&self, _: &mut Context<'_>, packets: Batch<'_>) -> Poll<Result<(), Error>> {
        packets
            .payloads()
            .for_each(|packet| self.device.write(packet));
        Poll::Ready(Ok(()))
    }

    fn poll_recv(&self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<Result<Received, Error>> {
        loop {
            let packet = std::task::ready!(self.mailbox.poll_take(cx));
            let (len, segment) = (packet.len(), packet.len());
            if let Some(to) = buf.get_mut(..len) {
                to.copy_from_slice(&packet);
                return Poll::Ready(Ok(Received { len, segment }));
            }
        }
    }
}

impl Drop for DeviceFlow {
    fn drop(&mut self) {
        let mut flows = self.device.flows();
        for own in &self.own {
            // Somebody else may have the address by now.
            if flows
                .get(own)
                .is_some_and(|of| Arc::ptr_eq(of, &self.mailbox))
            {
                flows.remove(own);
            }
        }
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({} addresses)", self.flows().len())
    }
}

impl fmt::Debug for DeviceFlow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DeviceFlow")
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    /// A device that takes everything and hands out nothing.
    fn device() -> Arc<Device> {
        let fd = File::options().write(true).open("/dev/null");
        Arc::new(Device {
            fd: fd.expect("it is there").into(),
            flows: Mutex::default(),
        })
    }

    #[test]
    fn a_flow_that_ends_late_leaves_its_address_to_who_has_it_by_now() {
        let own: IpAddr = [10, 0, 0, 2].into();
        let device = device();
        let before = device.flow(vec![own], Vec::new());
        let now = device.flow(vec![own], Vec::new());
        drop(before);
        let entry = device.flows().get(&own).cloned();
        assert!(entry.is_some_and(|of| Arc::ptr_eq(&of, &now.mailbox)));
        drop(now);
        assert!(device.flows().is_empty());
    }
}
