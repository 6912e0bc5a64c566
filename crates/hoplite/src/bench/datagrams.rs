//! Datagrams through CONNECT-UDP: a target floods the program in front of the SOCKS port as fast as it takes them.
//! Packets a second and CPU per packet matter here; the relay's share is what an operator pays.

use std::{
    io,
    net::SocketAddr,
    time::{Duration, Instant},
};

use super::{broken, sample::Sample};
use crate::{
    cpu::Meter,
    errors::Failure,
    load::{
        batch::Socket,
        datagrams::{Dress, Flood, UdpTarget},
        socks,
        stop::Counter,
    },
    testbed::Chain,
};

/// What comes before the measurement.
const WARM_UP: Duration = Duration::from_millis(500);
/// How long the first datagram may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// Payload under way, in octets: less than a socket's usual buffer takes.
const UNDER_WAY: u64 = 128 << 10;
/// The same in datagrams that were sent one by one: the kernel's buffer counts its own costs, some 800 octets for each.
const MOST_ALONE: u64 = 200;
/// Who sends as little as this does not send trains of it: the flood is no kinder to the relay than real programs are.
const SENT_ALONE: usize = 200;

/// Measures datagrams of `size` octets for `window`.
pub(super) fn flood(
    chain: &Chain,
    size: usize,
    dress: Dress,
    window: Duration,
) -> Result<Sample, Failure> {
    run(chain, size, dress, window).map_err(|error| broken(&error))
}

/// The program: what it received so far.
struct Receiver {
    association: socks::Association,
    socket: Socket,
    size: usize,
    dress: Dress,
    highest: Counter,
    count: u64,
}

fn run(chain: &Chain, size: usize, dress: Dress, window: Duration) -> io::Result<Sample> {
    let flood = Flood {
        dress,
        size,
        together: size > SENT_ALONE,
        window: window_of(size),
        arrived: Counter::default(),
        sent: Counter::default(),
    };
    let target = UdpTarget::flood(flood.clone())?;
    let mut receiver = Receiver::open(chain, size, dress, flood.arrived.clone())?;
    receiver.ask(target.address())?;
    receiver.receive_for(WARM_UP.min(window))?;
    let watched = chain.watched();
    let (meter, start, before, sent) = (
        Meter::start(&watched)?,
        Instant::now(),
        receiver.count,
        flood.sent.value(),
    );
    receiver.receive_for(window)?;
    let (count, seconds) = (receiver.count - before, start.elapsed().as_secs_f64());
    let sent = flood.sent.value() - sent;
    let cpu = meter.stop()?;
    if count == 0 {
        return Err(io::Error::other("no datagram arrived"));
    }
    let relay: f64 = cpu
        .iter()
        .filter(|(name, _)| name.starts_with("relay"))
        .map(|(_, spent)| spent)
        .sum();
    Ok(Sample::transfer(count * size as u64, seconds, &cpu)
        .with("pps", count as f64 / seconds)
        .with("pps_per_relay_cpu_s", count as f64 / relay)
        .with("lost", 1.0 - (count as f64 / sent as f64).min(1.0)))
}

fn window_of(size: usize) -> u64 {
    match size > SENT_ALONE {
        true => UNDER_WAY / size as u64,
        false => MOST_ALONE,
    }
}

impl Receiver {
    fn open(chain: &Chain, size: usize, dress: Dress, highest: Counter) -> io::Result<Self> {
        let association = socks::associate(chain.socks())?;
        let socket = Socket::new(association.socket.try_clone()?)?;
        Ok(Self {
            association,
            socket,
            size,
            dress,
            highest,
            count: 0,
        })
    }

    /// Asks the target until it answers: the first datagrams may be lost.
    fn ask(&mut self, target: SocketAddr) -> io::Result<()> {
        let SocketAddr::V4(target) = target else {
            return Err(io::Error::other("the target listens on IPv4"));
        };
        let mut request = socks::udp_header(target).to_vec();
        request.extend(self.dress.request());
        let start = Instant::now();
        while self.count == 0 {
            self.socket
                .send(self.association.relay, &request, request.len())?;
            self.receive_for(Duration::from_millis(100))?;
            if start.elapsed() > PATIENCE {
                return Err(io::Error::other(
                    "the UDP target does not answer through the relay",
                ));
            }
        }
        Ok(())
    }

    fn receive_for(&mut self, time: Duration) -> io::Result<()> {
        let start = Instant::now();
        while start.elapsed() < time {
            let (mut count, mut highest) = (0, 0);
            let (size, dress) = (self.size, self.dress);
            self.socket
                .receive(Duration::from_millis(20), |_, datagram| {
                    if let Some(payload) = datagram
                        .get(socks::UDP_HEADER..)
                        .filter(|payload| payload.len() == size)
                    {
                        count += 1;
                        highest = dress.number_of(payload).max(highest);
                    }
                })?;
            self.count += count;
            self.highest.raise(highest);
        }
        Ok(())
    }
}
