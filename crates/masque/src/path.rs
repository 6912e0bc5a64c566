//! One to four relays in a row, as one overlay. The last hop carries the flows; each hop is dialled through the one before.
//! Made by the binary from `path = [...]`, and by [`crate::Paths`] from `hops = n`.

use std::{net::IpAddr, sync::Arc};

use hoplite_overlay::{Datagrams, Error, ErrorKind, Opening, Overlay, Packets, Stream, Terms};
use hoplite_wire::{Target, connect_ip::Scope};

use crate::{Config, Hop, Mode, Relay, spare::Spares};

/// More than four hops cost packet size and time, and hide nothing more.
pub const MAX_HOPS: usize = 4;

/// A chain of hops. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Path {
    hops: Vec<Hop>,
    last: Hop,
    spares: Arc<Spares>,
    keeps_spare: bool,
}

impl Path {
    /// The path through `relays`, the first of which is reached through `below`.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] unless there are 1..=4 relays; what [`Hop::new`] answers.
    pub fn new(
        relays: Vec<Relay>,
        below: &Arc<dyn Overlay>,
        config: &Arc<Config>,
    ) -> Result<Self, Error> {
        if relays.len() > MAX_HOPS {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "making a path of more than four relays",
            ));
        }
        let mut hops: Vec<Hop> = Vec::with_capacity(relays.len());
        let (carrier, last) = (carrier(config), relays.len().saturating_sub(1));
        let mut tunnelled = 0;
        for (number, relay) in relays.into_iter().enumerate() {
            let below = hops
                .last()
                .map_or_else(|| below.clone(), |hop| Arc::new(hop.clone()) as _);
            let mut config = if number < last {
                carrier.clone()
            } else {
                Config::clone(config)
            };
            // Nobody but the first relay sees the packets of the others by themselves. Padded inside, they would fit no more where the
            // path of a hop below turns out to carry less.
            config.link.pad &= number == 0;
            config.link.tunnelled_below = tunnelled;
            tunnelled += usize::from(relay.mode(&config) == Mode::Tunnelled);
            hops.push(Hop::new(relay, number, below, &Arc::new(config))?);
        }
        let last = hops.last().cloned();
        let last =
            last.ok_or_else(|| Error::new(ErrorKind::Unsupported, "making a path of no relay"))?;
        let spares = Spares::new(last.clone(), config.isolated, config.spare_after);
        // All tokens share the connection to the first relay.
        let keeps_spare = config.spare && hops.len() > 1;
        Ok(Self {
            hops,
            last,
            spares,
            keeps_spare,
        })
    }

    /// Dials the whole path now and keeps it open.
    pub fn keep_warm(&self) {
        for hop in &self.hops {
            hop.keep_warm();
        }
        if self.keeps_spare {
            self.spares.keep();
        }
    }

    /// Waits until the whole path stands.
    ///
    /// # Errors
    /// What the hop that failed answered.
    pub async fn connect(&self) -> Result<(), Error> {
        self.last.connect().await
    }

    /// Whether both are the same path with the same connections.
    pub fn is(&self, other: &Self) -> bool {
        self.last.is(&other.last)
    }

    /// The hops, first one first.
    pub fn hops(&self) -> &[Hop] {
        &self.hops
    }
}

/// For hops that only carry the link to the next relay.
fn carrier(config: &Config) -> Config {
    let mut config = config.clone();
    config.link.carrier = true;
    config
}

impl Overlay for Path {
    fn open_stream<'a>(&'a self, target: &'a Target, terms: &'a Terms) -> Opening<'a, Stream> {
        let terms = self.spares.terms(terms);
        Box::pin(async move { self.last.open_stream(target, &terms).await })
    }

    fn open_datagrams<'a>(
        &'a self,
        target: &'a Target,
        terms: &'a Terms,
    ) -> Opening<'a, Box<dyn Datagrams>> {
        let terms = self.spares.terms(terms);
        Box::pin(async move { self.last.gathered(target, &terms).await })
    }

    fn resolve<'a>(&'a self, name: &'a str, terms: &'a Terms) -> Opening<'a, Vec<IpAddr>> {
        let terms = self.spares.terms(terms);
        Box::pin(async move { self.last.resolve(name, &terms).await })
    }

    fn query<'a>(&'a self, message: &'a [u8], terms: &'a Terms) -> Opening<'a, Vec<u8>> {
        let terms = self.spares.terms(terms);
        Box::pin(async move { self.last.query(message, &terms).await })
    }

    fn open_packets<'a>(
        &'a self,
        scope: &'a Scope,
        terms: &'a Terms,
    ) -> Opening<'a, Box<dyn Packets>> {
        let terms = self.spares.terms(terms);
        Box::pin(async move { self.last.open_packets(scope, &terms).await })
    }
}
