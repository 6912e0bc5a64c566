//! A circuit's two neighbours as it is made: the CREATE2 that a peer sends, and the one that is sent on for it.
//! [`super::driver`] waits for both. tor-spec "CREATE and CREATED cells", "EXTEND and EXTENDED cells".

use std::{
    future::poll_fn,
    sync::{Arc, atomic::Ordering::Relaxed},
    task::{Poll, ready},
};

use hoplite_wire::cell::{
    Cell, Command,
    circuit::{Create2, Created2, DestroyReason},
};
use tokio::time::timeout;

use super::{Asker, Circuit, Relay};
use crate::{channel, flow::Control};

/// The circuit to the next relay, and what its CREATED2 said.
pub(super) type Extended = (channel::Circuit, Vec<u8>);

/// What comes of a CREATE2: the circuit, its flow control, and CREATED2; nothing if it is bad, or a replay.
pub(super) type Made = Option<(Circuit, Control, Vec<u8>)>;

/// Waits for CREATE2, and answers it.
pub(super) async fn create(
    back: &mut channel::Circuit,
    relay: &Arc<Relay>,
    asker: Asker,
) -> Result<(Circuit, Control), DestroyReason> {
    let receiver = &mut back.receiver;
    let first = timeout(relay.config.patience, poll_fn(|cx| receiver.poll_recv(cx))).await;
    let cell = match first {
        Ok(Some(cell)) if cell.command == Command::CREATE2 => cell,
        Ok(_) => return Err(DestroyReason::PROTOCOL),
        Err(_) => return Err(DestroyReason::TIMEOUT),
    };
    let made = answer(&mut *back.receiver, cell, relay, asker).await?;
    let Some((circuit, control, created)) = made else {
        relay.counters.refused.fetch_add(1, Relaxed);
        return Err(DestroyReason::PROTOCOL);
    };
    let cell = Cell::new(back.id, Command::CREATED2, |body| {
        body.extend_from_slice(&created)
    });
    let cell = cell.map_err(|_| DestroyReason::INTERNAL)?;
    send(back, cell).await?;
    Ok((circuit, control))
}

/// Has the answer computed. Nothing may come on the circuit meanwhile but its end: then it is not.
async fn answer(
    receiver: &mut dyn channel::Receiver,
    cell: Cell,
    relay: &Arc<Relay>,
    asker: Asker,
) -> Result<Made, DestroyReason> {
    Create2::parse(&cell.body).map_err(|_| DestroyReason::PROTOCOL)?;
    let of = Arc::clone(relay);
    let computing = relay.handshakes.compute(asker, move || {
        let create = Create2::parse(&cell.body).ok()?;
        if !of.is_new(create.data) {
            return None;
        }
        Circuit::create(&of.keys(), &create, of.config.congestion_control).ok()
    });
    tokio::select! {
        biased;
        made = computing => made.map_err(|_| {
            relay.counters.limited.fetch_add(1, Relaxed);
            DestroyReason::RESOURCELIMIT
        }),
        cell = poll_fn(|cx| receiver.poll_recv(cx)) => Err(match cell {
            Some(cell) if cell.command != Command::DESTROY => DestroyReason::PROTOCOL,
            _ => DestroyReason::NONE,
        }),
    }
}

/// Makes the circuit to the next relay, for as long as patience lasts.
pub(super) async fn dial(
    relay: Arc<Relay>,
    next: crate::path::Relay,
    create: Vec<u8>,
    origin: Option<channel::Origin>,
) -> Result<Extended, DestroyReason> {
    let dialling = async {
        let channel = relay
            .dialer
            .channel(&next)
            .await
            .map_err(|error| reason(&error))?;
        let opened = match &origin {
            Some(origin) => channel.open_for(origin).await,
            None => channel.open().await,
        };
        let mut circuit = opened.map_err(|_| DestroyReason::CONNECTFAILED)?;
        let cell = Cell::new(circuit.id, Command::CREATE2, |body| {
            body.extend_from_slice(&create)
        });
        send(&mut circuit, cell.map_err(|_| DestroyReason::PROTOCOL)?).await?;
        let answer = poll_fn(|cx| circuit.receiver.poll_recv(cx)).await;
        let created = created(answer)?;
        Ok((circuit, created))
    };
    let dialled = timeout(relay.config.patience, dialling).await;
    dialled.unwrap_or(Err(DestroyReason::TIMEOUT))
}

/// What a relay further on answered to CREATE2: the data of EXTENDED2.
fn created(answer: Option<Cell>) -> Result<Vec<u8>, DestroyReason> {
    let cell = answer.ok_or(DestroyReason::CHANNEL_CLOSED)?;
    match cell.command {
        Command::CREATED2 => {
            let parsed = Created2::parse(&cell.body).map_err(|_| DestroyReason::PROTOCOL)?;
            let mut data = Vec::with_capacity(parsed.data.len() + 2);
            parsed.write(&mut data);
            Ok(data)
        }
        // Its own reason stays here: see [`super::driver`].
        Command::DESTROY => Err(DestroyReason::DESTROYED),
        _ => Err(DestroyReason::PROTOCOL),
    }
}

async fn send(circuit: &mut channel::Circuit, cell: Cell) -> Result<(), DestroyReason> {
    poll_fn(|cx| {
        let ready = ready!(circuit.sender.poll_ready(cx));
        Poll::Ready(ready.map_err(|_| DestroyReason::CHANNEL_CLOSED))
    })
    .await?;
    circuit.sender.send(cell);
    Ok(())
}

fn reason(error: &hoplite_overlay::Error) -> DestroyReason {
    use hoplite_overlay::{ErrorKind, Reason};
    match (error.kind(), error.reason()) {
        (_, Some(Reason::Identity)) => DestroyReason::OR_IDENTITY,
        (_, Some(Reason::Limit)) => DestroyReason::RESOURCELIMIT,
        (ErrorKind::TimedOut, _) => DestroyReason::TIMEOUT,
        _ => DestroyReason::CONNECTFAILED,
    }
}
