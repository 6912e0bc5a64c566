//! What leaves of a connection: the next packet, as long as there is one. A part of the machine.
//! RFC 9293 §3.10.8 and §3.8.6.

use hoplite_wire::ip::tcp::{Flags, Header, Options};
use tokio::time::Instant;

use super::{Machine, Packet, Phase};
use crate::tun::tcp::{receive::scale_for, sequence::Seq};

impl Machine {
    /// The next packet that is to leave.
    pub(in crate::tun::tcp) fn transmit(&mut self, now: Instant) -> Option<Packet> {
        if let Some(seq) = self.reset_due.take() {
            return Some(self.reset_packet(seq));
        }
        let packet = match self.phase {
            Phase::Held | Phase::Closed => return None,
            Phase::Answered => self.transmit_syn()?,
            Phase::Open => self.transmit_octets().or_else(|| self.transmit_ack())?,
            Phase::TimeWait => self.transmit_ack()?,
        };
        self.rest(now);
        Some(packet)
    }

    fn transmit_syn(&mut self) -> Option<Packet> {
        // What came before its time is answered by the acknowledgement in our SYN.
        if !std::mem::take(&mut self.syn_due) && !self.receive.owes() {
            return None;
        }
        self.receive.paid();
        let scale = self.scaled.then(|| scale_for(self.settings.window));
        let mut header = self.header(self.send.una().minus(1), Flags::SYN | Flags::ACK);
        header.options = Options {
            mss: Some(self.settings.mss),
            window_scale: scale,
            ..Options::default()
        };
        Some(bare(header))
    }

    fn transmit_octets(&mut self) -> Option<Packet> {
        let portion = self.send.poll()?;
        self.receive.paid();
        let mut flags = Flags::ACK;
        if portion.last {
            flags = flags | Flags::PSH;
        }
        if portion.fin {
            flags = flags | Flags::FIN;
            self.first_to_finish |= !self.receive.ended();
        }
        let header = self.header(portion.seq, flags);
        let portion = Some(portion);
        Some(Packet { header, portion })
    }

    fn transmit_ack(&mut self) -> Option<Packet> {
        // RFC 9293 §3.8.6.1 probes with an octet; one that was acknowledged before does as well and needs no octet (as Linux has it).
        if std::mem::take(&mut self.probe_due) {
            return Some(bare(self.header(self.send.una().minus(1), Flags::ACK)));
        }
        if !self.receive.owes() {
            return None;
        }
        self.receive.paid();
        Some(bare(self.header(self.send.highest(), Flags::ACK)))
    }

    fn header(&mut self, seq: Seq, flags: Flags) -> Header {
        let scaled = !flags.contains(Flags::SYN);
        Header {
            sequence: seq.0,
            acknowledgment: self.receive.next().0,
            flags,
            window: self.receive.advertise(scaled),
            ..Header::default()
        }
    }

    fn reset_packet(&self, seq: Seq) -> Packet {
        bare(Header {
            sequence: seq.0,
            acknowledgment: self.receive.next().0,
            flags: Flags::RST | Flags::ACK,
            ..Header::default()
        })
    }

    /// The octets of a packet from [`Self::transmit`], and the size that they are to be cut into.
    pub(in crate::tun::tcp) fn payload(&self, packet: &Packet) -> ([&[u8]; 2], Option<u16>) {
        let Some(portion) = &packet.portion else {
            return ([&[]; 2], None);
        };
        let cut = portion.len > self.send.mss();
        let segment = cut.then(|| u16::try_from(self.send.mss()).unwrap_or(u16::MAX));
        (self.send.payload(portion), segment)
    }
}

fn bare(header: Header) -> Packet {
    let portion = None;
    Packet { header, portion }
}
