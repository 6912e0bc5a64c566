//! The relay's file. What its keys mean stands in `hoplite_relay::config`; here it is read, checked and its paths resolved.

use std::path::Path;

use hoplite_relay::config::{Config, ConfigError, LinkKind};

use super::{Document, directory};
use crate::{
    fetch,
    say::{Complaint, Failure},
};

/// A file that was read and checked.
#[derive(Clone, Debug)]
pub(crate) struct Relay {
    /// What the file says, its paths seen from the file's directory.
    pub(crate) config: Config,
    /// What is allowed, but probably not meant.
    pub(crate) warnings: Vec<String>,
}

/// Reads the file at `path`.
pub(crate) fn load(path: &Path) -> Result<Relay, Failure> {
    read(&super::open(path)?)
}

/// Reads and checks a relay's file.
pub(crate) fn read(document: &Document) -> Result<Relay, Failure> {
    let mut config: Config = super::value(document)?;
    resolve_paths(&mut config, document.path());
    config
        .check()
        .map_err(|error| vec![complaint(document, &error)])?;
    if let Some(refused) = super::refused_rival(document, config.onion.rival) {
        return Err(vec![refused].into());
    }
    let said = &config.directory;
    if !said.authorities.is_empty() {
        let (threshold, hostile) = (said.threshold, said.hostile);
        let wrong = directory::complaints(
            document,
            "directory.",
            &said.authorities,
            threshold,
            hostile,
        );
        if !wrong.is_empty() {
            return Err(wrong.into());
        }
    }
    for entry in &config.auth.token {
        entry
            .read()
            .map_err(|error| vec![complaint(document, &error)])?;
    }
    let private = config.auth.private_tokens.as_ref();
    let directory = private.and_then(|private| private.directory.as_deref());
    if directory.is_some_and(|address| !fetch::is_address(address)) {
        let problem = "expected the https:// address of the issuer, with a host";
        let error = ConfigError::new("auth.private_tokens.directory", problem);
        return Err(vec![complaint(document, &error)].into());
    }
    if let Some(store) = private.and_then(|private| private.store.as_ref()) {
        let read = store.read();
        read.map_err(|error| vec![complaint(document, &error)])?;
    }
    if let Some(fleet) = &config.fleet {
        let read = fleet.read();
        read.map_err(|error| vec![complaint(document, &error)])?;
    }
    config
        .ingress
        .read_client_regions()
        .map_err(|error| vec![complaint(document, &error)])?;
    Ok(Relay {
        warnings: warnings(&config),
        config,
    })
}

fn resolve_paths(config: &mut Config, file: &Path) {
    config.identity = super::beside(file, &config.identity);
    if let Some(tls) = &mut config.tls {
        tls.cert = super::beside(file, &tls.cert);
        tls.key = super::beside(file, &tls.key);
    }
    if let Some(private) = &mut config.auth.private_tokens {
        for path in [&mut private.keys, &mut private.secrets] {
            *path = path.as_ref().map(|path| super::beside(file, path));
        }
        match &mut private.store {
            None => private.spent = Some(super::beside(file, &private.spent())),
            Some(store) => {
                for path in [&mut store.url_file, &mut store.ca] {
                    *path = path.as_ref().map(|path| super::beside(file, path));
                }
            }
        }
    }
    if let Some(tor) = &mut config.onion.tor {
        for path in &mut tor.family_keys {
            *path = super::beside(file, path);
        }
    }
    if let Some(fleet) = &mut config.fleet {
        fleet.key = super::beside(file, &fleet.key);
    }
    let ingress = &mut config.ingress;
    for path in [&mut ingress.geofeed, &mut ingress.mmdb] {
        *path = path.as_ref().map(|path| super::beside(file, path));
    }
    for entry in &mut config.auth.token {
        entry.file = entry.file.as_ref().map(|path| super::beside(file, path));
    }
}

fn complaint(document: &Document, error: &ConfigError) -> Complaint {
    document.complain(
        error.key,
        &error.problem,
        "correct it, then run 'hoplite check'",
    )
}

fn warnings(config: &Config) -> Vec<String> {
    let mut warnings = Vec::new();
    let reachable = config
        .listen
        .iter()
        .any(|address| !address.ip().is_loopback());
    if !config.auth.is_closed() && reachable {
        warnings.push("no token is set: anybody can use this relay".into());
    }
    if config.onion.enabled && config.auth.is_closed() {
        warnings.push("onion.open lets everybody build circuits here: they know no tokens".into());
    }
    let onion = &config.onion;
    let nobody = config.directory.authorities.is_empty() && config.ingress.relays.is_empty();
    if onion.enabled && config.is_ingress() && nobody && onion.channels == [LinkKind::Quic] {
        warnings.push(
            "channels over QUIC alone reach only relays that are known: name directory.authorities or ingress.relays, or add \"tls\" to onion.channels"
                .into(),
        );
    }
    if onion.enabled
        && config.directory.authorities.is_empty()
        && !config.directory.publish.is_empty()
    {
        warnings.push(
            "the directory is told of this relay, but it does not read the list: name directory.authorities, so that the relays of the list go before others"
                .into(),
        );
    }
    if (1..86_400).contains(&config.directory.statistics) {
        warnings.push(
            "directory.statistics is shorter than a day: statistics hide people less than they say, which is for test networks alone"
                .into(),
        );
    }
    if !config.egress.allow.is_empty() {
        warnings.push("egress.allow opens private or special addresses to clients".into());
    }
    if config
        .metrics
        .listen
        .is_some_and(|address| !address.ip().is_loopback())
    {
        warnings.push(
            "metrics.listen is not a loopback address: others in the network can read the metrics"
                .into(),
        );
    }
    warnings
}
