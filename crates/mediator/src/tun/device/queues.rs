//! A TUN device as two queues, where the system's packets are an app's to take and to give: a ring of Wintun's, a packet flow of Apple's
//! NetworkExtension.

use std::{future::poll_fn, io, task::Poll};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::mpsc::{
    Receiver, Sender, channel,
    error::{TryRecvError, TrySendError},
};

use super::PacketIo;

/// The ends of both queues that are the device's. When the app drops one of its own the device is gone.
#[derive(Debug)]
pub struct PacketQueues {
    incoming: Mutex<Incoming>,
    outgoing: Sender<Bytes>,
}

#[derive(Debug)]
struct Incoming {
    queue: Receiver<Bytes>,
    /// What waiting took out of it.
    next: Option<Bytes>,
}

impl PacketQueues {
    /// Two queues of up to `bound` packets, and the app's ends of them: where it puts packets of programs, and where it takes those for
    /// programs from. Each is one IP packet, with nothing before it. For a packet of a program that finds no room the app waits, or drops it; a
    /// packet for a program is dropped and counted.
    pub fn new(bound: usize) -> (Self, Sender<Bytes>, Receiver<Bytes>) {
        let (of_programs, queue) = channel(bound);
        let (outgoing, for_programs) = channel(bound);
        let next = None;
        let incoming = Mutex::new(Incoming { queue, next });
        let queues = Self { incoming, outgoing };
        (queues, of_programs, for_programs)
    }
}

impl PacketIo for PacketQueues {
    type Ready<'a> = ();

    async fn readable(&self) -> io::Result<()> {
        poll_fn(|cx| {
            let mut incoming = self.incoming.lock();
            if incoming.next.is_none() {
                match incoming.queue.poll_recv(cx) {
                    Poll::Ready(Some(packet)) => incoming.next = Some(packet),
                    Poll::Ready(None) => return Poll::Ready(Err(gone())),
                    Poll::Pending => return Poll::Pending,
                }
            }
            Poll::Ready(Ok(()))
        })
        .await
    }

    fn drained((): ()) {}

    fn read(&self, buf: &mut Vec<u8>) -> io::Result<usize> {
        let mut incoming = self.incoming.lock();
        let packet = match incoming.next.take() {
            Some(packet) => packet,
            None => incoming.queue.try_recv().map_err(|error| match error {
                TryRecvError::Empty => io::ErrorKind::WouldBlock.into(),
                TryRecvError::Disconnected => gone(),
            })?,
        };
        buf.extend_from_slice(&packet);
        Ok(0)
    }

    fn write(&self, _: &[u8], packet: [&[u8]; 3]) -> io::Result<()> {
        let sent = self.outgoing.try_send(packet.concat().into());
        sent.map_err(|error| match error {
            TrySendError::Full(_) => io::ErrorKind::WouldBlock.into(),
            TrySendError::Closed(_) => gone(),
        })
    }
}

fn gone() -> io::Error {
    io::ErrorKind::BrokenPipe.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tun::{
        Device,
        device::PacketBuffers,
        outgoing::{OutgoingPacket, PacketSink},
    };

    fn read(device: &Device<PacketQueues>) -> io::Result<Bytes> {
        let read = device.read(&mut PacketBuffers::default())?;
        Ok(read.expect("no header that could be wrong").bytes)
    }

    #[tokio::test]
    async fn packets_come_whole_and_in_order_whether_or_not_somebody_waits() {
        let (queues, of_programs, mut for_programs) = PacketQueues::new(4);
        let device = Device::over(queues, 1500);
        for packet in ["one", "two", "three"] {
            of_programs.try_send(packet.into()).expect("room");
        }
        assert_eq!(read(&device).expect("there"), "one");
        for packet in ["two", "three"] {
            // Waiting twice takes nothing twice.
            device.readable().await.expect("readable");
            device.readable().await.expect("readable");
            assert_eq!(read(&device).expect("there"), packet);
        }
        let error = read(&device).expect_err("nothing");
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        assert!(device.send(OutgoingPacket {
            payload: [b"b", b"c"],
            ..OutgoingPacket::whole(b"a")
        }));
        assert_eq!(for_programs.try_recv().expect("sent"), "abc");
    }

    #[tokio::test]
    async fn who_waits_is_woken_by_a_packet_and_by_the_end() {
        let (queues, of_programs, _for_programs) = PacketQueues::new(4);
        let device = Device::over(queues, 1500);
        let app = tokio::spawn(async move {
            tokio::task::yield_now().await;
            of_programs.send("late".into()).await.expect("open");
        });
        device.readable().await.expect("readable");
        assert_eq!(read(&device).expect("there"), "late");
        app.await.expect("ends");
        let error = device.readable().await.expect_err("gone");
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
        let error = read(&device).expect_err("gone");
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn what_finds_no_room_or_nobody_is_dropped_and_counted() {
        let (queues, _of_programs, for_programs) = PacketQueues::new(2);
        let device = Device::over(queues, 1500);
        let sent = [(); 3].map(|()| device.send(OutgoingPacket::whole(b"packet")));
        assert_eq!(sent, [true, true, false]);
        drop(for_programs);
        assert!(!device.send(OutgoingPacket::whole(b"packet")));
        let counted = device.counters().snapshot();
        assert_eq!(
            (counted.packets_out, counted.queue_full, counted.refused),
            (2, 1, 1)
        );
    }
}
