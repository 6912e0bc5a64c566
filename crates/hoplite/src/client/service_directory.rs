//! Where the list of relays places the descriptors of onion services, and how those who keep them are asked: over circuits. The machines of
//! `onion::onion_service` decide what is asked.

use std::{fmt, sync::Arc};

use hoplite_crypto::onion::service_keys::{BlindedKey, OnionAddress};
use hoplite_directory::{
    FetchError, HsDirs, PlacedRing, fetch_descriptor, path_selection::Network, publish_descriptor,
};
use hoplite_onion::{
    channel::Waiting,
    onion_service::{Destination, DirectoryCircuits, Placed, ServiceDirectory},
    path::{Relay, ServicePurpose},
};
use hoplite_overlay::{Error, ErrorKind, Reason};
use hoplite_wire::directory::Key;

use super::onion::relay_of_list;
use crate::listed::Listed;

/// The HSDirs of the list.
pub(super) struct ListedHsDirs {
    listed: Listed,
    circuits: DirectoryCircuits,
}

impl ListedHsDirs {
    pub(super) fn new(listed: &Listed, circuits: DirectoryCircuits) -> Self {
        Self {
            listed: listed.clone(),
            circuits,
        }
    }

    fn hsdirs(&self) -> Result<(Arc<Network>, HsDirs), Error> {
        let wrong = |why: String| Error::new(ErrorKind::PathFailed, why);
        let found = self.listed.hsdirs();
        let found = found.map_err(|why| {
            wrong(format!(
                "looking for the relays that keep descriptors of onion services: {why}"
            ))
        })?;
        let has_hsdirs = |(_, hsdirs): &(_, HsDirs)| !hsdirs.is_empty();
        found.filter(has_hsdirs).ok_or_else(|| {
            wrong("reaching an onion service by a list whose relays keep no descriptors (their operators decide: [onion] hsdir)".into())
        })
    }
}

fn placed(ring: &PlacedRing, chosen: &[Key], (network, hsdirs): &(Arc<Network>, HsDirs)) -> Placed {
    let (period, schedule) = (ring.placement.period, hsdirs.schedule());
    let lasts = u64::from(period.minutes).saturating_mul(60);
    let relay = |key: &Key| relay_of_list(network, network.relay(key)?);
    Placed {
        period,
        ends: schedule.begins(period).saturating_add(lasts),
        hsdirs: chosen.iter().filter_map(relay).collect(),
    }
}

impl ServiceDirectory for ListedHsDirs {
    fn looked_for(&self, address: &OnionAddress) -> Result<Placed, Error> {
        let found = self.hsdirs()?;
        let ring = found.1.fetches();
        let key = address.blinded(ring.placement.period);
        Ok(placed(&ring, &ring.asked(&key), &found))
    }

    fn published(&self, address: &OnionAddress) -> Result<[Destination; 2], Error> {
        let found = self.hsdirs()?;
        let ([first, second], counted_from) = (found.1.uploads(), found.1.counted_from());
        let destination = |ring: PlacedRing, counted_from| {
            let key = address.blinded(ring.placement.period);
            Destination {
                placed: placed(&ring, &ring.told(&key), &found),
                counted_from,
            }
        };
        let [from, second_from] = counted_from;
        Ok([destination(first, from), destination(second, second_from)])
    }

    fn fetch<'a>(
        &'a self,
        hsdir: &'a Relay,
        key: &'a BlindedKey,
    ) -> Waiting<'a, Result<String, Error>> {
        Box::pin(async move {
            let stream = self
                .circuits
                .open(hsdir, ServicePurpose::ClientHsDir)
                .await?;
            let fetched = fetch_descriptor(stream, key.as_bytes()).await;
            fetched.map_err(|error| {
                unasked(
                    error,
                    "asking a relay for the descriptor of an onion service",
                )
            })
        })
    }

    fn publish<'a>(
        &'a self,
        hsdir: &'a Relay,
        descriptor: Arc<str>,
    ) -> Waiting<'a, Result<(), Error>> {
        Box::pin(async move {
            let stream = self
                .circuits
                .open(hsdir, ServicePurpose::ServiceHsDir)
                .await?;
            let published = publish_descriptor(stream, &descriptor).await;
            published.map_err(|error| {
                unasked(error, "giving a relay the descriptor of an onion service")
            })
        })
    }
}

fn unasked(error: FetchError, doing: &'static str) -> Error {
    if error.is_not_found() {
        return Error::new(ErrorKind::TargetFailed, doing).because(Reason::NameNotFound);
    }
    Error::new(ErrorKind::PathFailed, doing).caused_by(error)
}

impl fmt::Debug for ListedHsDirs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ListedHsDirs")
    }
}
