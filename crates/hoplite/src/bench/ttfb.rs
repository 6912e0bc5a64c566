//! Time to the first octet on a warm path: from the connection to the SOCKS port to the target's first octet.
//! The same with 0 hops is the baseline; the report shows the difference per hop.

use std::{
    io::{self, Read, Write},
    time::Instant,
};

use super::{
    broken,
    sample::{Sample, spread},
};
use crate::{
    errors::Failure,
    load::{
        socks,
        target::{ECHO, Target},
    },
    testbed::Chain,
};

/// Flows that warm the path up, and flows that are measured.
const WARM_UP: usize = 20;
const MEASURED: usize = 300;

/// Measures through the chain.
pub(super) fn warm(chain: &Chain, target: &Target) -> Result<Sample, Failure> {
    let times = (0..WARM_UP + MEASURED)
        .map(|_| first_octet(chain, target))
        .skip(WARM_UP);
    let times: Vec<f64> = times
        .collect::<Result<_, _>>()
        .map_err(|error| broken(&error))?;
    let mut sample = Sample::default();
    if let Some(spread) = spread(times) {
        sample = sample.with("ttfb_ms", spread.median * 1e3);
    }
    Ok(sample)
}

fn first_octet(chain: &Chain, target: &Target) -> io::Result<f64> {
    let start = Instant::now();
    let mut stream = socks::connect(chain.socks(), target.address())?;
    stream.write_all(&[ECHO])?;
    stream.read_exact(&mut [0])?;
    Ok(start.elapsed().as_secs_f64())
}
