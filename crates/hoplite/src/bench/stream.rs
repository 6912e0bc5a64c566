//! TCP through the SOCKS port: goodput and CPU seconds per GB, up and down, one and several streams.
//! Plain TCP over loopback is measured with the same generator.

use std::{
    io::{self, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    time::{Duration, Instant},
};

use super::{broken, sample::Sample};
use crate::{
    cpu::{Meter, Watched},
    errors::Failure,
    load::{
        socks,
        stop::{Counter, Worker},
        target::{self, Target},
    },
    testbed::Chain,
};

/// What comes before the measurement: connections open, windows grow.
const WARM_UP: Duration = Duration::from_millis(500);

/// Which way the payload goes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Way {
    Download,
    Upload,
}

/// A transfer on a thread of its own; dropping it ends it.
struct Flow {
    stream: TcpStream,
    _worker: Worker,
}

/// Measures for `window` through the chain.
pub(super) fn through(
    chain: &Chain,
    target: &Target,
    way: Way,
    streams: u8,
    window: Duration,
) -> Result<Sample, Failure> {
    let connect = || socks::connect(chain.socks(), target.address());
    transfer(&chain.watched(), connect, target, way, streams, window)
        .map_err(|error| broken(&error))
}

/// Measures plain TCP; both ends are this process.
pub(super) fn plain(target: &Target, streams: u8, window: Duration) -> Result<Sample, Failure> {
    let both = [Watched {
        name: "both".into(),
        pid: std::process::id(),
    }];
    let connect = || directly(target.address());
    transfer(&both, connect, target, Way::Download, streams, window).map_err(|error| broken(&error))
}

#[expect(clippy::disallowed_methods, reason = "the baseline has no overlay")]
fn directly(address: SocketAddr) -> io::Result<TcpStream> {
    TcpStream::connect(address)
}

fn transfer(
    watched: &[Watched],
    connect: impl Fn() -> io::Result<TcpStream>,
    target: &Target,
    way: Way,
    streams: u8,
    window: Duration,
) -> io::Result<Sample> {
    let counter = match way {
        Way::Download => Counter::default(),
        Way::Upload => target.taken().clone(),
    };
    let flows: Vec<Flow> = (0..streams)
        .map(|_| Flow::start(connect()?, way, &counter))
        .collect::<Result<_, _>>()?;
    std::thread::sleep(WARM_UP.min(window));
    let (meter, start, before) = (Meter::start(watched)?, Instant::now(), counter.value());
    std::thread::sleep(window);
    let (octets, seconds) = (counter.value() - before, start.elapsed().as_secs_f64());
    let cpu = meter.stop()?;
    drop(flows);
    match octets {
        0 => Err(io::Error::other("nothing arrived")),
        octets => Ok(Sample::transfer(octets, seconds, &cpu)),
    }
}

impl Flow {
    fn start(mut stream: TcpStream, way: Way, counter: &Counter) -> io::Result<Self> {
        stream.write_all(&[match way {
            Way::Download => target::DOWNLOAD,
            Way::Upload => target::UPLOAD,
        }])?;
        let (mut working, counter) = (stream.try_clone()?, counter.clone());
        let worker = Worker::start(move |stop| {
            drop(match way {
                Way::Download => target::take(&mut working, &counter),
                Way::Upload => target::send(&mut working, stop),
            });
        })?;
        Ok(Self {
            stream,
            _worker: worker,
        })
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        drop(self.stream.shutdown(Shutdown::Both));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_tcp_is_measured_both_ways() {
        let target = Target::start().expect("listens");
        let me = [Watched {
            name: "both".into(),
            pid: std::process::id(),
        }];
        for way in [Way::Download, Way::Upload] {
            let connect = || directly(target.address());
            let window = Duration::from_millis(100);
            let sample = transfer(&me, connect, &target, way, 2, window).expect("measured");
            assert!(format!("{sample:?}").contains("goodput_bps"));
        }
    }
}
