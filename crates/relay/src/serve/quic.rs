//! HTTP/3 over QUIC: handshakes, connections, and a task for each request.
//! Each shard runs it on its endpoint. RFC 9114; graceful shutdown by GOAWAY (§5.2).

use std::{future::Future, sync::Arc, task::{Context, Poll}};

use bytes::Bytes;
use hoplite_link::quic::{Connection, Endpoint, Incoming, VarInt};
use hoplite_masque::h3::{self, Session};
use tokio::{task::JoinSet, time::timeout};

use super::{
    Alive, Phase, Shared,
    exchange::{ClientFlow, Exchange, Sent},
    handler::Job,
    splice::{Broken, FromClient, ToClient},
};
use crate::{limits::{ClientKey, Permit}, metrics::Up};

/// Serves an endpoint until it is to stop.
pub(crate) async fn serve(shared: Arc<Shared>, endpoint: Endpoint, mut alive: Alive) {
    let mut draining = alive.clone();
    loop {
        tokio::select! {
            incoming = endpoint.accept() => match incoming {
                Some(incoming) => take(&shared, incoming, &alive),
                None => break,
            },
            () = draining.reached(Phase::Draining) => break,
        }
    }
    endpoint.set_server_config(None);
    alive.reached(Phase::Stopped).await;
}
