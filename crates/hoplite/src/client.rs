//! `hoplite client`: programs' traffic in by SOCKS and HTTP, out over the relays of the file.

mod onion;
pub(crate) mod overlay;

use std::{net::SocketAddr, path::Path};

use hoplite_mediator::{BindError, Config, Front, Listen};
use tracing::{info, warn};

use self::overlay::{Carried, Ground};
use crate::{
    config::{self, client::Client},
    errors::Failure,
    listed, qlog, resources, say,
    signals::{self, Asked, Signals},
    testbed::{self, Ready},
};

/// Carries traffic with the file at `path`.
pub(crate) fn run(path: &Path) -> Result<(), Failure> {
    let mut client = config::client::load(path)?;
    client
        .warnings
        .iter()
        .for_each(|warning| warn!("{warning}"));
    resources::raise_file_limit();
    let recording = qlog::Recording::from_environment()?;
    signals::current_thread_runtime()?.block_on(async {
        let mut signals = Signals::listen()?;
        let front = bind(client.config.front())?;
        let ground = Ground::default();
        listed::prepare(&mut client, &ground.tunnels).await?;
        let carried = overlay::of(&client, recording.watch(), &ground)?;
        say::remark(invitation(&front, &client.config));
        let stopped = stopped(&mut signals, &carried);
        front.serve(carried.overlay.clone(), stopped).await;
        carried.tell();
        carried.leave().await;
        info!("the client has stopped");
        Ok(())
    })
}

async fn stopped(signals: &mut Signals, carried: &Carried) {
    while signals.next().await == Asked::Reload {
        carried.tell();
        info!("a client reads its file only when it starts: start it again");
    }
}

fn bind(config: Config) -> Result<Front, Failure> {
    Front::bind(config).map_err(|error| match &error {
        BindError::Config(_) => Failure::new(
            "starting the client",
            &error,
            "run 'hoplite check' on the file",
        ),
        BindError::Listen { .. } => {
            Failure::new("starting the client", &error, "then start it again")
        }
    })
}

/// One line that says where to point a browser.
fn invitation(front: &Front, client: &config::client::Config) -> String {
    let socks = front
        .socks_addr()
        .map(|address| format!("SOCKS5 at {address} (with remote DNS: socks5h://{address})"));
    let http = front
        .http_addr()
        .map(|address| format!("HTTP proxy at http://{address}"));
    let ways: Vec<String> = socks.into_iter().chain(http).collect();
    let path = match client.length() {
        0 => "no relay at all, nothing is hidden".to_owned(),
        hops if client.is_onion() => {
            format!("circuits through {hops} relay(s), for TCP and names; UDP is refused")
        }
        hops => format!("{hops} relay(s) on the path"),
    };
    format!(
        "hoplite: {path}; point your browser at the {}",
        ways.join(" or the ")
    )
}

/// A client of `demo` and `bench`: over the relays of `client`, or over none.
pub(crate) fn serve_node(client: Option<&Client>) -> Result<(), Failure> {
    resources::raise_file_limit();
    signals::current_thread_runtime()?.block_on(async {
        let front = bind(client.map_or_else(baseline, |client| client.config.front()))?;
        let carried = match client {
            Some(client) => overlay::of(client, None, &Ground::default())?,
            None => Carried::without_relays(&Ground::default()),
        };
        let nowhere = || {
            Failure::new(
                "starting the client",
                "it listens nowhere",
                "please report this",
            )
        };
        testbed::ready(&Ready {
            listen: front.socks_addr().ok_or_else(nowhere)?,
            pin: None,
            onion: None,
        })?;
        front
            .serve(carried.overlay.clone(), testbed::orphaned())
            .await;
        carried.leave().await;
        Ok(())
    })
}

fn baseline() -> Config {
    let mut config = Config::default();
    config.socks.listen = Listen::At(SocketAddr::from(([127, 0, 0, 1], 0)));
    config.http.listen = Listen::Off;
    config
}
