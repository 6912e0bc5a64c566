//! `hoplite geofeed`: what the pools of an egress say to others of its addresses (RFC 8805), and whether somebody's feed is right.

use std::{
    fs,
    path::{Path, PathBuf},
};

use clap::{Args, Subcommand};
use hoplite_relay::config::Egress;
use hoplite_wire::{geofeed::Geofeed, region::Region, special};
use ipnet::IpNet;
use serde_json::json;

use crate::{
    config::{self, Document},
    say,
    say::{Complaint, Failure},
};

/// The commands.
#[derive(Clone, Debug, Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    what: What,
}

#[derive(Clone, Debug, Subcommand)]
enum What {
    /// Print the geofeed of a relay's pools, to be published.
    Print {
        /// The relay's TOML file.
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
    },
    /// Say whether a geofeed is right; each line that is wrong is named.
    Check {
        /// The feed.
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// The TOML file of a relay whose pools the feed is to have where they are.
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
    },
}

/// Runs it.
pub(crate) fn run(options: &Options, json: bool) -> Result<(), Failure> {
    match &options.what {
        What::Print { config } => print(config, json),
        What::Check { file, config } => check(file, config.as_deref(), json),
    }
}

fn print(path: &Path, json: bool) -> Result<(), Failure> {
    let relay = config::relay::load(path)?.config;
    let remedy = "add [[egress.pool]]";
    let doing = "printing the geofeed of a relay";
    if relay.egress.pool.is_empty() {
        let why = format!("{} has no pool of addresses", path.display());
        return Err(vec![Complaint::new(doing, why, remedy)].into());
    }
    let feed = relay.egress.geofeed();
    let feed = feed.map_err(|error| vec![Complaint::new(doing, error, "correct it")])?;
    remark_private(&feed);
    if json {
        return feed.entries().into_iter().try_for_each(|(prefix, region)| {
            let region = region.map(|region| region.to_string());
            say::json(&json!({ "prefix": prefix, "region": region }))
        });
    }
    say::answer(feed.to_string().trim_end())
}

fn check(path: &Path, config: Option<&Path>, json: bool) -> Result<(), Failure> {
    let feed =
        fs::read(path).map_err(|error| Failure::file("reading the geofeed", path, &error))?;
    let feed = Geofeed::parse(&feed).map_err(|errors| -> Failure {
        let doing = format!("reading the geofeed {}", path.display());
        let remedy = "see RFC 8805, section 2.1";
        let each = errors.into_iter();
        let each = each.map(|error| Complaint::new(doing.clone(), error, remedy));
        each.collect::<Vec<_>>().into()
    })?;
    if let Some(config) = config {
        let document = config::open(config)?;
        let egress = config::relay::read(&document)?.config.egress;
        let wrong = contradictions(&document, &egress, &feed);
        if !wrong.is_empty() {
            return Err(wrong.into());
        }
    }
    remark_private(&feed);
    let overlaps = feed.overlaps();
    for (prefix, around) in &overlaps {
        say::remark(format!(
            "note: {prefix} lies in {around}, which is elsewhere: the longer prefix counts"
        ));
    }
    let (prefixes, overlapping) = (feed.entries().len(), overlaps.len());
    if json {
        return say::json(&json!({ "ok": true, "prefixes": prefixes, "overlaps": overlapping }));
    }
    say::answer(format!(
        "right: {prefixes} prefix(es), {overlapping} of them in one that is elsewhere"
    ))
}

/// Which pools the feed has elsewhere, or nowhere. It may say less of a place than the pool, or more; and anything of a pool without a region.
fn contradictions(document: &Document, egress: &Egress, feed: &Geofeed) -> Vec<Complaint> {
    let mut wrong = Vec::new();
    let entries = feed.entries();
    for (number, pool) in egress.pool.iter().enumerate() {
        let Some(region) = pool.region else { continue };
        let mut tell = |why: String| {
            let key = format!("egress.pool[{number}].addresses");
            let remedy = "correct it, or publish what 'hoplite geofeed print' says";
            wrong.push(document.complain(&key, why, remedy));
        };
        for prefix in &pool.addresses {
            let around = entries.iter().filter(|(net, _)| net.contains(prefix));
            let around = around.max_by_key(|(net, _)| net.prefix_len());
            let within = entries.iter();
            let within = within.filter(|(net, _)| net != prefix && prefix.contains(net));
            if around.is_none() {
                tell(format!(
                    "the feed does not have all of {prefix}, a pool of {region}"
                ));
            }
            for (net, said) in around.into_iter().chain(within) {
                match said {
                    None => tell(format!(
                        "the feed has {net} nowhere, and the pool in {region}"
                    )),
                    Some(said) if !agrees(*said, region) => {
                        tell(format!(
                            "the feed has {net} in {said}, and the pool in {region}"
                        ));
                    }
                    Some(_) => {}
                }
            }
        }
    }
    wrong
}

/// Whether one of them is, or lies in, the other.
fn agrees(a: Region, b: Region) -> bool {
    a == b || (a.country() == b.country() && (a.is_country() || b.is_country()))
}

/// Nobody looks for these.
fn remark_private(feed: &Geofeed) {
    let private = |net: &IpNet| special::is_special_purpose(net.addr());
    for (prefix, _) in feed.entries().iter().filter(|(net, _)| private(net)) {
        say::remark(format!("note: {prefix} is no public prefix"));
    }
}
