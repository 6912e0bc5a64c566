//! The client's circuits: made from the configuration, over channels that stand on the device's own sockets.
//! [`super::overlay`] calls it where the file says `overlay = "onion"`; docs/architecture.md, "onion".

mod from_list;
mod given;
mod query;
mod telling;

use std::{sync::Arc, time::Duration};

use hoplite_crypto::observe::Watch;
use hoplite_link::channel::{self, ChannelDialer, Channels, Counts, Kind, handshake::Us};
use hoplite_onion::{Config, Onion, channel::Linked, edge::Limits, path::Paths};
use hoplite_overlay::Overlay;
use hoplite_wire::tuning::Congestion;
use tokio::time::{Instant, sleep};

use self::{from_list::FromList, telling::Telling};
use super::overlay::{Carried, Ground};
use crate::{
    config::client::{Client, onion as file},
    errors::Failure,
};

/// How often channels that nobody needs are looked for.
const SWEEP: Duration = Duration::from_secs(60);

/// How long the last packets may take to leave this device.
const FAREWELL: Duration = Duration::from_millis(20);

/// Circuits that a first relay begins towards this client, who serves none: they are refused.
const ARRIVALS: usize = 1;

/// What is told of the circuits.
#[derive(Clone, Debug)]
pub(super) struct Circuits {
    /// What the file calls the relays of the path.
    names: Arc<[String]>,
    channels: Channels,
}

/// The overlay of circuits over the path of the file. The first circuit is begun at once, so that the first flow finds it.
pub(super) fn over_circuits(
    client: &Client,
    watch: Option<Arc<dyn Watch>>,
    ground: &Ground,
) -> Result<Carried, Failure> {
    let file = &client.config.onion;
    let channels = Channels::new(dialer(client, watch, ground), |_| {});
    let linked = Linked::new(channels.clone(), file.channel.into());
    let listed = from_list(client)?;
    let paths: Arc<dyn Paths> = match &listed {
        Some(listed) => Arc::clone(listed) as _,
        None => Arc::new(given::path(client)?),
    };
    let onion = Onion::new(Arc::new(linked), paths, config(file));
    onion.warm();
    tokio::spawn(sweep(channels.clone()));
    let circuits = Circuits {
        names: client.config.path.clone().into(),
        channels,
    };
    let overlay: Arc<dyn Overlay> = Arc::new(Telling::new(onion));
    if let Some(listed) = listed {
        listed.keep(Arc::clone(&overlay), Arc::new(ground.tunnels.clone()));
    }
    Ok(Carried::by_circuits(overlay, circuits))
}

/// Paths from the directory's list, if the file has one.
fn from_list(client: &Client) -> Result<Option<Arc<FromList>>, Failure> {
    let (hops, path) = (client.config.length(), &client.config.path);
    let listed = client.listed.as_ref();
    listed
        .map(|listed| FromList::new(listed, hops, path))
        .transpose()
}

fn dialer(client: &Client, watch: Option<Arc<dyn Watch>>, ground: &Ground) -> ChannelDialer {
    let mut link = hoplite_link::Config::default();
    link.hooks.watch = watch;
    link.wishes.congestion = congestion(client.config.tunnel.wishes().congestion);
    link.rest = ground.rest.unwrap_or(link.rest);
    let config = channel::Config {
        arrivals: ARRIVALS,
        window: client.config.onion.window,
        ..channel::Config::default()
    };
    let below: Arc<dyn Overlay> = Arc::new(ground.tunnels.clone());
    // Without an identity: relays do not learn who dials.
    ChannelDialer::new(
        below,
        Us::default(),
        &link,
        config,
        Arc::<Counts>::default(),
    )
}

/// Of what this end sends. What circuits carry does not control itself.
fn congestion(asked: Congestion) -> Congestion {
    match asked {
        Congestion::Off => Congestion::Auto,
        asked => asked,
    }
}

fn config(file: &file::Onion) -> Config {
    let default = Config::default();
    Config {
        congestion_control: file.congestion_control,
        ahead: file.ahead,
        tokens: file.isolated,
        lasts: file.lasts,
        idle: file.idle,
        attempts: file.attempts,
        dial: default.dial,
        build: (default.build.0.min(file.build), file.build),
        limits: Limits {
            streams: file.streams,
            ..default.limits
        },
    }
}

async fn sweep(channels: Channels) {
    loop {
        sleep(SWEEP).await;
        channels.sweep(Instant::now());
    }
}

impl Circuits {
    /// What the file calls the relays of the path, the first one first.
    pub(super) fn names(&self) -> Vec<String> {
        self.names.to_vec()
    }

    /// The first relay, if there is no channel to it now: of those behind it this device knows nothing.
    pub(super) fn missing(&self) -> Option<(usize, String)> {
        let first = self.names.first().cloned().unwrap_or_default();
        self.channels.is_empty().then_some((0, first))
    }

    /// What circuits run over.
    pub(super) fn channel(&self) -> Option<&'static str> {
        let open = self.channels.open();
        open.first().map(|channel| match channel.kind() {
            Kind::Quic => "quic",
            Kind::Tls => "tls",
        })
    }

    /// The device's network may have changed.
    pub(super) fn look(&self) {
        self.channels.open().iter().for_each(channel::Channel::look);
    }

    /// Closes the channels, so that relays need not keep circuits of a client that is gone until they notice.
    pub(super) async fn leave(&self) {
        let open = self.channels.open();
        open.iter().for_each(channel::Channel::close);
        if !open.is_empty() {
            sleep(FAREWELL).await;
        }
    }

    /// Says in the log what circuits run over.
    pub(super) fn tell(&self) {
        for channel in self.channels.open() {
            let (kind, circuits) = (channel.kind(), channel.circuits());
            tracing::info!(?kind, circuits, "a channel to a first relay");
        }
    }
}
