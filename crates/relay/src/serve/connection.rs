//! One client's connection, over either transport and any version of HTTP: within the limits, a task for each request, and a graceful end.
//! `quic` and `tls` run it once their handshake is done.

use std::{
    future::{Future, pending},
    net::IpAddr,
    pin::pin,
    sync::Arc,
    time::Duration,
};

use hoplite_channel::Channel;
use hoplite_http::{Incoming, Session};
use hoplite_link::LinkKind;
use hoplite_wire::region::Region;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

use super::{Alive, Phase, Shared, handler::Job, quic::OverQuic};
use crate::{
    admission::AdmittedBy,
    egress::Lots,
    limits::{Account, Bucket, ClientKey, Place},
    metrics::Up,
    onion::Onion,
};

/// How long a QUIC connection that came to nothing holds memory: three times the probe timeout before a round trip was measured
/// (RFC 9000 §10.2, RFC 9002 §6.2.2).
pub(crate) const CLOSING: Duration = Duration::from_secs(3);

/// How often is looked whether a channel carries circuits that were not begun by its peer.
const LOOK: Duration = Duration::from_secs(1);

/// Why the relay ends a client's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    /// Somebody else needs the place.
    Displaced,
    /// Somebody else needs the memory.
    Memory,
    /// No request was admitted in time.
    NoRequest,
    /// Its client breaks off what it asks for, again and again.
    Excessive,
}

impl Ended {
    const fn name(self) -> &'static str {
        match self {
            Self::Displaced => "displaced",
            Self::Memory => "memory",
            Self::NoRequest => "no_request",
            Self::Excessive => "excessive",
        }
    }
}

/// A client that was let in, and what it occupies.
pub(crate) struct AdmittedConnection {
    pub(crate) shared: Arc<Shared>,
    client: ClientKey,
    alive: Alive,
    place: Arc<Place>,
    pub(crate) account: Arc<Account>,
    by: Arc<AdmittedBy>,
    lots: Arc<Lots>,
    /// Where its client is, by the address that it came from when it began.
    region: Option<Region>,
}

impl AdmittedConnection {
    /// Counts the connection; `None` if there is no room for it.
    pub(crate) fn admit(
        shared: &Arc<Shared>,
        (client, address): (ClientKey, IpAddr),
        alive: &Alive,
    ) -> Option<Self> {
        let Ok(place) = shared.quotas.connection(client) else {
            shared.metrics.limited("connections");
            return None;
        };
        let Ok(account) = shared.quotas.account(client) else {
            shared.metrics.limited("memory");
            return None;
        };
        Some(Self {
            shared: shared.clone(),
            client,
            alive: alive.clone(),
            place: Arc::new(place),
            account: Arc::new(account),
            by: Arc::default(),
            lots: Arc::new(Lots::new(Instant::now())),
            region: shared
                .client_regions
                .load()
                .as_ref()
                .and_then(|regions| regions.region(address)),
        })
    }

    /// Does the first part of a connection; `None` if nothing comes of it in time, or somebody else needs the place.
    pub(crate) async fn greet<T>(&self, greeting: impl Future<Output = Option<T>>) -> Option<T> {
        tokio::select! {
            greeted = timeout(self.shared.limits().handshake, greeting) => {
                let failed = &self.shared.metrics.handshakes_failed;
                greeted.ok().flatten().or_else(|| {
                    failed.inc();
                    None
                })
            }
            () = self.place.lost() => {
                self.shared.metrics.ended(Ended::Displaced.name());
                None
            }
        }
    }

    /// Counts a connection of QUIC for as long as it still holds memory; if it came to nothing, it keeps its place too. No drain waits for that.
    pub(crate) async fn leave(self) {
        let Self {
            shared,
            alive,
            place,
            account,
            ..
        } = self;
        drop((shared, alive));
        account.end();
        let place = Some(place).filter(|place| place.leave());
        sleep(CLOSING).await;
        drop((place, account));
    }

    /// Serves requests until the connection ends; `quic`: what there is below it, if that is QUIC. Then the tunnels that are left end as well.
    pub(crate) async fn serve(&mut self, session: &Session, quic: Option<&OverQuic>) {
        let place = self.place.clone();
        let account = self.account.clone();
        let first_request = self.shared.limits().first_request;
        let mut overstays = pin!(overstays(&place, &account, first_request));
        let mut kept = pin!(account.keep(|| session.takes_more()));
        let abandons = Bucket::per_second(self.shared.limits().abandoned);
        let mut draining = Some(self.alive.clone());
        let mut requests = JoinSet::new();
        let ended = loop {
            tokio::select! {
                incoming = session.accept() => match incoming {
                    Some(incoming) => {
                        drop(requests.spawn(Box::new(self.job(incoming, quic)).run()));
                        if let Some(quic) = quic {
                            quic.make_room(requests.len(), &self.account);
                        }
                    }
                    None => break None,
                },
                Some(answered) = requests.join_next() => {
                    if !answered.unwrap_or(true) && !abandons.admits(1) {
                        break Some(Ended::Excessive);
                    }
                }
                () = session.abandoned() => {
                    if !abandons.admits(1) {
                        break Some(Ended::Excessive);
                    }
                }
                cause = &mut overstays => break Some(cause),
                () = &mut kept => (),
                () = begins(&mut draining) => session.drain(),
                () = self.alive.reached(Phase::Stopped) => break None,
            }
        };
        if let Some(cause) = ended {
            self.shared.metrics.ended(cause.name());
        }
        match ended {
            Some(Ended::Excessive) => session.close_excessive(),
            _ => session.close(),
        }
    }

    /// Serves the circuits of a channel until it ends.
    pub(crate) async fn carry(&self, onion: &Onion, channel: Channel) {
        let open = &self.shared.metrics.channels_open;
        let open = match channel.kind() {
            LinkKind::Quic => &open.quic,
            LinkKind::Tls => &open.tls,
        };
        let _open = Up::new(open);
        let watched = channel.clone();
        let first_circuit = self.shared.limits().first_request;
        let carried = onion.serve(
            channel,
            self.client,
            &self.shared,
            self.alive.clone(),
            (&self.place, &self.account),
        );
        let ended = tokio::select! {
            () = carried => None,
            () = follow(&self.place, &watched) => None,
            cause = overstays(&self.place, &self.account, first_circuit) => Some(cause),
        };
        if let Some(cause) = ended {
            self.shared.metrics.ended(cause.name());
            watched.close();
        }
    }

    fn job(&self, incoming: Incoming, quic: Option<&OverQuic>) -> Job {
        Job {
            shared: self.shared.clone(),
            client: self.client,
            place: self.place.clone(),
            account: self.account.clone(),
            by: self.by.clone(),
            lots: self.lots.clone(),
            region: self.region,
            alive: self.alive.clone(),
            head: incoming.head,
            client_connection: quic.map(OverQuic::client_connection),
            exchange: incoming.exchange,
        }
    }
}

/// A channel is busy also while it carries circuits that this relay has begun on it. Never resolves.
async fn follow(place: &Arc<Place>, channel: &Channel) {
    let mut busy = None;
    loop {
        busy = match channel.circuits() {
            0 => None,
            _ => busy.or_else(|| Some(place.busy())),
        };
        sleep(LOOK).await;
    }
}

/// Resolves when a connection is to go: no request was admitted in time, or somebody else needs the place or the memory.
async fn overstays(place: &Place, account: &Account, first_request: Duration) -> Ended {
    let late = async {
        sleep(first_request).await;
        if first_request.is_zero() || !place.is_waiting() {
            pending::<()>().await;
        }
    };
    tokio::select! {
        () = late => Ended::NoRequest,
        () = place.lost() => Ended::Displaced,
        () = account.lost() => Ended::Memory,
    }
}

/// Resolves once, when the relay begins to drain.
async fn begins(draining: &mut Option<Alive>) {
    match draining {
        Some(alive) => alive.reached(Phase::Draining).await,
        None => pending().await,
    }
    *draining = None;
}
