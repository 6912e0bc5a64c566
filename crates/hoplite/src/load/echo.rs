//! A UDP echo through the SOCKS port: round trips one by one, then many datagrams under way.
//! `demo` uses it and checks every answer's content.

use std::{
    io,
    net::SocketAddr,
    time::{Duration, Instant},
};

use super::{batch::Socket, socks};

/// Payload of each datagram, in octets: fits every path of up to four hops.
const PAYLOAD: usize = 1000;
/// How many are under way at once.
const UNDER_WAY: usize = 32;
/// So long without an answer, and what is under way is lost.
const SILENCE: Duration = Duration::from_secs(1);
/// How long the first answer may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// What came back.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Echoed {
    /// Answers with the right content.
    pub(crate) answers: usize,
    /// Payload of the answers, in octets.
    pub(crate) octets: u64,
    /// How long it took altogether.
    pub(crate) time: Duration,
}

/// A UDP association that talks to one echo server.
pub(crate) struct Echo {
    socket: Socket,
    association: socks::Association,
    packet: Vec<u8>,
    number: u64,
}

impl Echo {
    /// Asks the proxy for an association, and waits for the first answer.
    pub(crate) fn open(proxy: SocketAddr, server: SocketAddr) -> io::Result<Self> {
        let SocketAddr::V4(server) = server else {
            return Err(io::Error::other("the echo server listens on IPv4"));
        };
        let association = socks::associate(proxy)?;
        let socket = Socket::new(association.socket.try_clone()?)?;
        let mut packet = socks::udp_header(server).to_vec();
        packet.resize(socks::UDP_HEADER + PAYLOAD, 0);
        let mut echo = Self {
            socket,
            association,
            packet,
            number: 0,
        };
        let start = Instant::now();
        while echo.round_trip()?.is_none() {
            if start.elapsed() > PATIENCE {
                return Err(io::Error::other("no UDP datagram came back"));
            }
        }
        Ok(echo)
    }

    /// The time of one round trip, or nothing if it was lost.
    pub(crate) fn round_trip(&mut self) -> io::Result<Option<Duration>> {
        let start = Instant::now();
        self.send(1)?;
        let answers = self.receive(1)?;
        Ok((answers > 0).then(|| start.elapsed()))
    }

    /// Sends `count` datagrams and counts what comes back.
    pub(crate) fn stream(&mut self, count: usize) -> io::Result<Echoed> {
        let (start, mut answers, mut sent, mut lost) = (Instant::now(), 0, 0, 0);
        while answers + lost < count {
            let room = UNDER_WAY
                .saturating_sub(sent - answers - lost)
                .min(count - sent);
            self.send(room)?;
            sent += room;
            match self.receive(UNDER_WAY)? {
                0 => lost = sent - answers,
                n => answers = (answers + n).min(sent),
            }
            lost = lost.min(sent - answers);
        }
        Ok(Echoed {
            answers,
            octets: (answers * PAYLOAD) as u64,
            time: start.elapsed(),
        })
    }

    fn send(&mut self, count: usize) -> io::Result<()> {
        for _ in 0..count {
            self.number += 1;
            let content = self.packet.iter_mut().skip(socks::UDP_HEADER);
            fill(content, self.number);
            self.socket
                .send(self.association.relay, &self.packet, self.packet.len())?;
        }
        Ok(())
    }

    /// Counts the right answers that are there, or waits a while for the first.
    fn receive(&mut self, most: usize) -> io::Result<usize> {
        let (start, mut right) = (Instant::now(), 0);
        while right == 0 && start.elapsed() < SILENCE {
            self.socket.receive(SILENCE, |_, datagram| {
                right += usize::from(datagram.get(socks::UDP_HEADER..).is_some_and(is_right));
            })?;
        }
        Ok(right.min(most))
    }
}

/// A number, then octets that follow from it.
fn fill<'a>(content: impl Iterator<Item = &'a mut u8>, number: u64) {
    for (i, octet) in content.enumerate() {
        *octet = octet_at(number, i);
    }
}

fn octet_at(number: u64, i: usize) -> u8 {
    match i {
        0..8 => number.to_be_bytes()[i],
        _ => number.wrapping_mul(31).to_le_bytes()[0].wrapping_add(i.to_le_bytes()[0]),
    }
}

fn is_right(payload: &[u8]) -> bool {
    let number = payload
        .first_chunk()
        .map(|number| u64::from_be_bytes(*number));
    let right = |number| {
        payload
            .iter()
            .enumerate()
            .all(|(i, &octet)| octet == octet_at(number, i))
    };
    payload.len() == PAYLOAD && number.is_some_and(right)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_answer_is_not_right() {
        let mut payload = [0; PAYLOAD];
        fill(payload.iter_mut(), 1234);
        assert!(is_right(&payload));
        payload[500] ^= 1;
        assert!(!is_right(&payload) && !is_right(&payload[..999]));
    }
}
