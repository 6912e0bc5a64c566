//! The SOCKS5 front end: one session for each connection of a program. CONNECT and UDP ASSOCIATE; names stay names;
//! user name and password are the isolation token, whatever they are. RFC 1928, RFC 1929; the codec is `wire::socks`.
//!
//! We do not serve BIND, because no overlay accepts connections at its far end.

mod associate;
mod flow;
mod scratch;
mod socket;

use std::{io, sync::Arc};

use hoplite_overlay::{Error, ErrorKind, Isolation, Reason};
use hoplite_wire::{
    Target,
    socks::{Acceptor, Command, Endpoint, Refusal, Reply, ReplyCode, Request, Step},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::timeout,
};

use crate::{app::App, copy::copy, front::Room};

/// Serves one program until it or its flow ends.
pub(crate) async fn serve(mut app: App, room: Arc<Room>) {
    let asked = timeout(room.limits.handshake, handshake(&mut app)).await;
    match asked {
        Ok(Ok(asked)) => Box::pin(asked.serve(app, room)).await,
        Ok(Err(Stop::Refused(refusal))) => refuse(app, &room, refusal).await,
        Ok(Err(Stop::Gone(error))) => tracing::trace!(%error, "a program left"),
        Err(_) => {
            room.counters.malformed.add(1);
            tracing::debug!("a program took too long for its SOCKS handshake");
        }
    }
}

/// Why there is no request.
enum Stop {
    Refused(Refusal),
    Gone(io::Error),
}

/// What a program asked for.
struct Asked {
    request: Request,
    isolation: Isolation,
    /// What came after the request, before the answer.
    early: Vec<u8>,
}

async fn handshake(app: &mut App) -> Result<Asked, Stop> {
    let mut acceptor = Acceptor::new();
    loop {
        match acceptor.step().map_err(Stop::Refused)? {
            Step::Read => read(app, &mut acceptor).await.map_err(Stop::Gone)?,
            Step::Write(octets) => app.write_all(&octets).await.map_err(Stop::Gone)?,
            Step::Request(request) => {
                let (token, early) = acceptor.into_parts();
                let isolation = token.map(Isolation::new).unwrap_or_default();
                return Ok(Asked {
                    request,
                    isolation,
                    early,
                });
            }
        }
    }
}

async fn read(app: &mut App, acceptor: &mut Acceptor) -> io::Result<()> {
    let mut input = zeroize::Zeroizing::new([0; 1024]);
    match app.read(&mut *input).await? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        n => {
            acceptor.handle_input(input.get(..n).unwrap_or_default());
            Ok(())
        }
    }
}

async fn refuse(mut app: App, room: &Room, refusal: Refusal) {
    room.counters.malformed.add(1);
    tracing::debug!(%refusal, "a program was refused");
    if app.write_all(&refusal.answer()).await.is_ok() {
        app.close().await;
    }
}

impl Asked {
    async fn serve(self, app: App, room: Arc<Room>) {
        match self.request.command {
            Command::Connect => self.connect(app, &room).await,
            Command::Associate if room.udp => {
                let announced = self.request.endpoint;
                Box::pin(associate::serve(app, announced, self.isolation, room)).await;
            }
            Command::Associate | Command::Bind => fail(app, ReplyCode::CommandNotSupported).await,
        }
    }

    async fn connect(self, mut app: App, room: &Room) {
        let target = match self.request.endpoint.target() {
            Ok(target) => target,
            Err(error) => return refuse(app, room, Refusal::Target(error)).await,
        };
        let Some(opened) = open(&app, &target, self.isolation, room).await else {
            return;
        };
        let stream = match opened {
            Ok(stream) => stream,
            Err(error) => return fail(app, reply_code(&error)).await,
        };
        let answered = reply(&mut app, ReplyCode::Succeeded, Endpoint::UNSPECIFIED).await;
        if answered.is_ok() {
            let idle = room.limits.idle_stream;
            copy(app, stream, self.early, idle, &room.counters).await;
        }
    }
}

/// Opens the flow, unless the program leaves before it is open.
async fn open(
    app: &App,
    target: &Target,
    isolation: Isolation,
    room: &Room,
) -> Option<Result<hoplite_overlay::Stream, Error>> {
    tokio::select! {
        opened = room.open_stream(target, isolation) => Some(opened),
        () = app.gone() => None,
    }
}

async fn fail(mut app: App, code: ReplyCode) {
    if reply(&mut app, code, Endpoint::UNSPECIFIED).await.is_ok() {
        app.close().await;
    }
}

async fn reply(app: &mut App, code: ReplyCode, bound: Endpoint) -> io::Result<()> {
    let mut out = Vec::with_capacity(22);
    Reply { code, bound }.emit(&mut out);
    app.write_all(&out).await
}

/// What a failure is called; the table is in the crate's documentation.
fn reply_code(error: &Error) -> ReplyCode {
    match (error.kind(), error.reason()) {
        (ErrorKind::EntryUnreachable, _) => ReplyCode::NetworkUnreachable,
        (ErrorKind::TargetFailed, Some(Reason::Refused)) => ReplyCode::ConnectionRefused,
        (ErrorKind::TargetFailed, Some(Reason::NetworkUnreachable)) => {
            ReplyCode::NetworkUnreachable
        }
        (ErrorKind::TargetFailed, _) => ReplyCode::HostUnreachable,
        (ErrorKind::Forbidden, _) => ReplyCode::NotAllowed,
        (ErrorKind::TimedOut, _) => ReplyCode::TtlExpired,
        (ErrorKind::Unsupported, _) => ReplyCode::CommandNotSupported,
        (ErrorKind::PathFailed | ErrorKind::Bug, _) => ReplyCode::GeneralFailure,
    }
}

#[cfg(test)]
mod tests;
