//! The raw limit: what no packet tunnel on this machine can beat. One thread seals 1200-byte payloads as QUIC does
//! (RFC 9001 §5: AES-128-GCM, header protection) and sends them with UDP_SEGMENT, one receives with UDP_GRO and opens them.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    time::{Duration, Instant},
};

use crate::{
    cpu::thread_time,
    datagrams::Socket,
    load::{Counter, Worker},
};
use ring::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey, quic};

/// A short header with an 8-byte connection id, its first bytes also the packet number.
const HEADER: usize = 9;
/// What QUIC and HTTP add inside: frame type, length, quarter-stream id.
const FRAMING: usize = 3;
const PAYLOAD: usize = 1200;
const TAG: usize = 16;
const PACKET: usize = HEADER + FRAMING + PAYLOAD + TAG;
/// As many packets as one UDP_SEGMENT call takes below 65,507 bytes.
const SEGMENTS: usize = 52;
/// Packets under way.
const WINDOW: u64 = 1500;
/// The receiver says so often how far it is.
const REPORT_EVERY: u64 = 256;

struct Keys {
    packet: LessSafeKey,
    header: quic::HeaderProtectionKey,
}

/// What was measured.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    /// Packets that were opened.
    pub packets: u64,
    /// How long it took.
    pub wall: Duration,
    /// Processor time of the thread that sends.
    pub sender: Duration,
    /// Processor time of the thread that receives.
    pub receiver: Duration,
}

impl Limit {
    /// Payload of the packets, in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.packets * PAYLOAD as u64
    }
}

/// Measures for `window`.
///
/// # Errors
/// The operating system's.
pub fn limit(window: Duration) -> io::Result<Limit> {
    let receiver = Socket::new(UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?)?;
    let to = receiver.local()?;
    let (opened, spent) = (Counter::default(), Counter::default());
    let (count, cost) = (opened.clone(), spent.clone());
    let worker = Worker::start(move |stop| {
        let start = thread_time();
        drop(receive(receiver, &count, || stop.is_set()));
        cost.add(u64::try_from(thread_time().saturating_sub(start).as_nanos()).unwrap_or(u64::MAX));
    })?;
    let start = (Instant::now(), thread_time());
    send(to, window)?;
    let (wall, sender) = (start.0.elapsed(), thread_time().saturating_sub(start.1));
    drop(worker);
    Ok(Limit {
        packets: opened.value(),
        wall,
        sender,
        receiver: Duration::from_nanos(spent.value()),
    })
}

fn send(to: SocketAddr, window: Duration) -> io::Result<()> {
    let keys = Keys::new()?;
    let mut socket = Socket::new(UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?)?;
    let segments = SEGMENTS.min(socket.most_segments());
    let mut batch = vec![7; segments * PACKET];
    let (mut next, mut opened, start) = (0u64, 0u64, Instant::now());
    while start.elapsed() < window {
        for (packet, number) in batch.chunks_mut(PACKET).zip(next..) {
            keys.seal(packet, number);
        }
        socket.send(to, &batch, PACKET)?;
        next += segments as u64;
        let mut patience = Duration::ZERO;
        loop {
            let heard =
                socket.receive(patience, |_, report| opened = opened.max(number_in(report)))?;
            if next.saturating_sub(opened) <= WINDOW {
                break;
            }
            if heard == 0 && !patience.is_zero() {
                // Whatever is missing now was dropped.
                opened = next;
            }
            patience = Duration::from_millis(20);
        }
    }
    Ok(())
}

fn receive(mut socket: Socket, opened: &Counter, over: impl Fn() -> bool) -> io::Result<()> {
    let keys = Keys::new()?;
    let (mut seen, mut report_at) = (0, REPORT_EVERY);
    while !over() {
        let mut sender = None;
        let mut good = 0;
        let got = socket.receive(Duration::from_millis(20), |from, packet| {
            sender = Some(from);
            good += u64::from(packet.len() == PACKET && keys.open(packet));
        })?;
        opened.add(good);
        seen += got as u64;
        if let Some(sender) = sender.filter(|_| seen >= report_at) {
            report_at = seen + REPORT_EVERY;
            socket.send(sender, &seen.to_be_bytes(), 8)?;
        }
    }
    Ok(())
}

fn number_in(report: &[u8]) -> u64 {
    report
        .first_chunk()
        .map_or(0, |number| u64::from_be_bytes(*number))
}

impl Keys {
    fn new() -> io::Result<Self> {
        let broken = |_| io::Error::other("ring refuses the key");
        let packet = UnboundKey::new(&AES_128_GCM, &[3; 16]).map_err(broken)?;
        let header = quic::HeaderProtectionKey::new(&quic::AES_128, &[4; 16]).map_err(broken)?;
        Ok(Self {
            packet: LessSafeKey::new(packet),
            header,
        })
    }

    /// Writes the header, seals the payload in place, masks the header.
    fn seal(&self, packet: &mut [u8], number: u64) {
        let (header, body) = packet.split_at_mut(HEADER);
        header.fill(0);
        header[0] = 0x40;
        header[1..].copy_from_slice(&number.to_be_bytes());
        let (content, tag) = body.split_at_mut(FRAMING + PAYLOAD);
        let sealed =
            self.packet
                .seal_in_place_separate_tag(nonce(header), Aad::from(&*header), content);
        if let Ok(made) = sealed {
            tag.copy_from_slice(made.as_ref());
        }
        self.mask(header, body);
    }

    /// Whether the packet is authentic.
    fn open(&self, packet: &mut [u8]) -> bool {
        let (header, body) = packet.split_at_mut(HEADER);
        self.mask(header, body);
        self.packet
            .open_in_place(nonce(header), Aad::from(&*header), body)
            .is_ok()
    }

    /// RFC 9001 §5.4: masking twice is not masking.
    fn mask(&self, header: &mut [u8], body: &[u8]) {
        let mask = self.header.new_mask(&body[4..20]).unwrap_or_default();
        header[0] ^= mask[0] & 0x1f;
        for (byte, mask) in header[HEADER - 4..].iter_mut().zip(&mask[1..]) {
            *byte ^= mask;
        }
    }
}

fn nonce(header: &[u8]) -> Nonce {
    let mut nonce = [0; 12];
    nonce[4..].copy_from_slice(&header[1..HEADER]);
    Nonce::assume_unique_for_key(nonce)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_sealed_opens_and_what_was_changed_does_not() {
        let keys = Keys::new().expect("keys");
        let mut packet = vec![1; PACKET];
        keys.seal(&mut packet, 77);
        let mut changed = packet.clone();
        changed[100] ^= 1;
        assert!(keys.open(&mut packet) && !keys.open(&mut changed));
    }

    #[test]
    fn packets_arrive_and_cost_time_at_both_ends() {
        let limit = limit(Duration::from_millis(50)).expect("runs");
        let times = [limit.wall, limit.sender, limit.receiver];
        assert!(
            limit.packets > 0 && !times.contains(&Duration::ZERO),
            "{limit:?}"
        );
    }
}
