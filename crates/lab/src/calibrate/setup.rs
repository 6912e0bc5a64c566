//! How long it takes to make many hosts: 200 within three seconds.

use std::{collections::BTreeMap, time::Instant};

use super::{Effort, Figure, bench};
use crate::{errors::Failure, netns::Lab, topology::Direction};

const HOSTS: usize = 200;
const LIMIT_S: f64 = 3.0;

pub(super) fn check(_: &Effort, figure: &mut dyn FnMut(Figure)) -> Result<(), Failure> {
    let topology = bench::star(HOSTS, &Direction::default());
    let began = Instant::now();
    let built = Lab::build(&topology, &BTreeMap::new())?;
    let took = began.elapsed().as_secs_f64();
    drop(built);
    figure(Figure::new("setup", "s", LIMIT_S, took, took, took <= LIMIT_S).with("hosts", HOSTS));
    Ok(())
}
