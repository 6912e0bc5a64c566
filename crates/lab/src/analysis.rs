//! What is computed from results and records: order statistics, intervals, comparisons, and the papers' own analyses.
//! Pure functions over values; `campaign` and `report` read the files.

use std::{net::IpAddr, path::PathBuf};

use crate::{
    errors::Failure,
    trial::{Analysis, Report, Trial},
};

pub mod bootstrap;
mod capture;
pub mod cascade;
pub mod classify;
pub(crate) mod fingerprint;
pub mod holm;
pub mod quantile;

/// The figures of a repetition that its trial asks for, by name.
///
/// # Errors
/// The capture or the qlogs are missing, are broken, or do not belong together.
pub fn analyse(trial: &Trial, report: &Report) -> Result<Vec<(String, f64)>, Failure> {
    let mut figures = Vec::new();
    for analysis in &trial.analyses {
        let seen = Seen::of(trial, analysis)?;
        figures.extend(match analysis {
            Analysis::Cascade { .. } => cascade::of_files(&seen, &trial.directory.join("qlog"))?,
            Analysis::Fingerprint { .. } => fingerprint::of_files(&seen, began(report))?,
        });
    }
    Ok(figures)
}

/// When the first transfer began, in seconds since 1970.
fn began(report: &Report) -> f64 {
    let begins = report.transfers.iter().map(|transfer| transfer.began);
    begins.fold(f64::INFINITY, f64::min)
}

/// Where packets were seen, and who the client is.
struct Seen {
    doing: &'static str,
    capture: PathBuf,
    client: [IpAddr; 2],
}

impl Seen {
    fn of(trial: &Trial, analysis: &Analysis) -> Result<Self, Failure> {
        let (doing, link) = match analysis {
            Analysis::Cascade { link } => (cascade::DOING, link),
            Analysis::Fingerprint { link } => (fingerprint::DOING, link),
        };
        Ok(Self {
            doing,
            client: client_of(trial, link, doing)?,
            capture: trial.directory.join("pcap").join(format!("{link}.pcap")),
        })
    }

    fn read(&self) -> Result<capture::Capture, Failure> {
        capture::Capture::read(&self.capture, &self.client).map_err(|error| {
            Failure::new(
                self.doing,
                error,
                "keep the capture: [keep] pcap = [\"LINK\"]",
            )
        })
    }
}

/// The addresses of the host at an end of the link: the one that asks, if both are hosts.
fn client_of(trial: &Trial, link: &str, doing: &str) -> Result<[IpAddr; 2], Failure> {
    let missing = |why: String| Failure::new(doing, why, "correct `link` in [[analysis]]");
    let found = trial.topology.links.iter().find(|known| known.name == link);
    let ends = &found
        .ok_or_else(|| missing(format!("there is no link {link:?}")))?
        .ends;
    let addresses = trial.topology.addresses();
    let asks = |end: &&String| trial.workloads.iter().any(|plan| plan.from == **end);
    let asking = ends.iter().find(asks).unwrap_or(&ends[0]);
    let addresses = addresses
        .get(asking)
        .ok_or_else(|| missing(format!("{asking:?} is no host")))?;
    Ok([addresses.v4.into(), addresses.v6.into()])
}
