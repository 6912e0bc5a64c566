//! Tells the authorities of the directory what the relay says of itself: at its start, and again and again. The key that signs it is
//! beside the relay's identity, and made if it is not there: the identity of its circuits, or of a relay without them a key of its own. With it
//! goes a proof by the TLS key that the relay shows: nobody else can name its pin.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use hoplite_crypto::{Certificates, SigningKey};
use hoplite_directory::{FetchError, said_by_holder, sign_descriptor, upload};
use hoplite_overlay::Direct;
use hoplite_relay::{Config, Handle, config::Role};
use hoplite_wire::{
    Target,
    directory::{Descriptor, Key, Ports, Roles},
};
use tokio::sync::watch;
use tracing::{info, warn};

use crate::{directory::now, errors::Failure, identity::onion::Stored, secret};

/// How long an authority may take to answer.
const PATIENCE: Duration = Duration::from_secs(20);
/// When those are asked again that did not take it.
const AGAIN: Duration = Duration::from_secs(60);

/// What is said, and to whom.
pub(super) struct Publisher {
    key: SigningKey,
    /// What the relay shows in TLS, as it is replaced.
    certificates: Arc<Certificates>,
    descriptor: Descriptor,
    authorities: Vec<Target>,
    every: Duration,
    /// The onion key, as it is rotated.
    onion: Option<watch::Receiver<[u8; 32]>>,
}

impl Publisher {
    /// None if the file names no authority. `onion` is what a relay with circuits has stored, `current` tells of its onion key.
    pub(super) fn of(
        config: &Config,
        handle: &Handle,
        onion: Option<&Stored>,
        current: Option<watch::Receiver<[u8; 32]>>,
    ) -> Result<Option<Self>, Failure> {
        let directory = &config.directory;
        if directory.publish.is_empty() {
            return Ok(None);
        }
        let key = match onion {
            Some(stored) => identity_key(config, stored)?,
            None => descriptor_key(config)?,
        };
        let certificates = handle.certificates();
        let mut descriptor = describe(config, handle.addresses(), Key(key.public()));
        descriptor.pin = certificates.pin().map(Into::into);
        descriptor.onion = current.as_ref().map(|current| *current.borrow());
        descriptor.check().map_err(|error| {
            let remedy = "correct [directory] in its file";
            Failure::new("describing the relay", error, remedy)
        })?;
        Ok(Some(Self {
            key,
            certificates,
            descriptor,
            authorities: directory.publish.clone(),
            every: Duration::from_secs(directory.every),
            onion: current,
        }))
    }

    /// Hands it in until dropped.
    pub(super) async fn run(mut self) {
        info!(identity = %self.descriptor.identity, "the relay is told to the directory");
        loop {
            // Each must be later than the one before, also when the clock was set back meanwhile.
            self.descriptor.published = now().max(self.descriptor.published.saturating_add(1));
            self.descriptor.pin = self.certificates.pin().map(Into::into);
            let missed = self.publish().await;
            let pause = if missed {
                AGAIN.min(self.every)
            } else {
                self.every
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                key = rotated(&mut self.onion) => self.descriptor.onion = Some(key),
            }
        }
    }

    /// Whether somebody did not take it.
    async fn publish(&self) -> bool {
        let signed = match sign_descriptor(self.descriptor.clone(), &self.key) {
            Ok(signed) => signed,
            Err(refused) => {
                warn!("the descriptor cannot be signed: {refused}");
                return true;
            }
        };
        let Some(proof) = self.certificates.prove(&said_by_holder(&signed)) else {
            warn!(
                "the TLS key signs in no way that authorities know: use one of ECDSA, Ed25519 or RSA"
            );
            return true;
        };
        let overlay = Direct::new();
        let mut missed = false;
        for (authority, address) in (1..).zip(&self.authorities) {
            let answer = upload(&overlay, address, (&signed, Some(&proof)), PATIENCE).await;
            if let Err(error) = answer {
                missed = true;
                tell(authority, &error);
            }
        }
        missed
    }
}

/// The next onion key.
async fn rotated(onion: &mut Option<watch::Receiver<[u8; 32]>>) -> [u8; 32] {
    if let Some(onion) = onion
        && onion.changed().await.is_ok()
    {
        return *onion.borrow_and_update();
    }
    std::future::pending().await
}

/// Clients find the identity of a relay's channels in its descriptor, so that one signs the other.
fn identity_key(config: &Config, stored: &Stored) -> Result<SigningKey, Failure> {
    let key = stored.signing_key()?;
    let before = config.identity.join(secret::DESCRIPTOR);
    if before.exists() && secret::read(&before)?.public() != key.public() {
        warn!(
            "the relay is told to the directory by the identity of its circuits from now on, not by the one of {}",
            secret::DESCRIPTOR
        );
    }
    Ok(key)
}

/// Without circuits: a key of its own, unless there is an identity for circuits already, which they would be told by later.
fn descriptor_key(config: &Config) -> Result<SigningKey, Failure> {
    let path = config.identity.join(secret::DESCRIPTOR);
    match path.exists() {
        true => secret::read(&path),
        false => match Stored::read(&config.identity)? {
            Some(stored) => stored.signing_key(),
            None => secret::make(&path, false),
        },
    }
}

fn tell(authority: usize, error: &FetchError) {
    warn!(authority, "the relay's descriptor was not taken: {error}");
}

fn describe(config: &Config, listen: &[SocketAddr], identity: Key) -> Descriptor {
    let directory = &config.directory;
    let addresses = match directory.addresses.is_empty() {
        true => listen.to_vec(),
        false => directory.addresses.clone(),
    };
    let mut family = directory.family.clone();
    family.sort_unstable();
    family.dedup();
    let egress = config.roles.contains(&Role::Egress);
    let closed: Vec<u16> = config
        .egress
        .deny
        .iter()
        .filter_map(hoplite_relay::Rule::port_everywhere)
        .collect();
    Descriptor {
        name: config.name.clone(),
        identity,
        published: 0,
        addresses,
        pin: None,
        onion: None,
        roles: Roles {
            ingress: config.roles.contains(&Role::Ingress),
            egress,
        },
        region: directory.region.clone(),
        operator: directory.operator.clone(),
        family,
        bandwidth: directory.bandwidth,
        exit: Ports::except(&closed).filter(|_| egress),
    }
}
