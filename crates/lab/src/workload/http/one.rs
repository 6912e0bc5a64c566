//! HTTP/1.1 as a client: one fetch at a time on a connection, kept alive. RFC 9112; hyper does the work.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use tokio::{net::TcpStream, time::timeout};

use super::{
    Fetch,
    body::{Check, HASH},
    connection::Task,
    finish, head, take,
};
use crate::workload::{
    TransferError,
    record::Record,
    trouble::{Fault, stalled},
};

/// A connection.
#[derive(Debug)]
pub(super) struct One {
    requests: SendRequest<Empty<Bytes>>,
    stall: Duration,
    _driver: Arc<Task>,
}

impl One {
    pub(super) async fn open(stream: TcpStream, stall: Duration) -> Result<Self, TransferError> {
        let (requests, connection) = handshake(TokioIo::new(stream))
            .await
            .map_err(|error| of(&error))?;
        let driver = Task::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "an HTTP/1.1 connection ended early");
            }
        });
        Ok(Self {
            requests,
            stall,
            _driver: driver,
        })
    }

    pub(super) async fn fetch(
        &mut self,
        fetch: &Fetch,
        record: &mut Record,
    ) -> Result<(), TransferError> {
        let request = http::Request::get(fetch.path.as_str()).header("host", &fetch.authority);
        let request = request
            .body(Empty::new())
            .map_err(|why| Fault::Misc.because(why))?;
        let limit = self.stall;
        let late = |_| stalled(limit);
        timeout(limit, self.requests.ready())
            .await
            .map_err(late)?
            .map_err(|error| of(&error))?;
        let answer = self.requests.send_request(request);
        record.phases.command = Some(record.clock.us());
        let answer = timeout(limit, answer)
            .await
            .map_err(late)?
            .map_err(|error| of(&error))?;
        let seen_as = answer
            .headers()
            .get("x-seen-as")
            .map(|value| value.as_bytes());
        head(answer.status().as_u16(), seen_as, record)?;
        let (mut body, mut check) = (answer.into_body(), Check::new(fetch.octets));
        while let Some(frame) = timeout(limit, body.frame()).await.map_err(late)? {
            let frame = frame.map_err(|error| of(&error))?;
            if let Some(data) = frame.data_ref() {
                take(&mut check, data, record)?;
            }
        }
        finish(check, record)
    }
}

/// What hyper reports.
fn of(error: &hyper::Error) -> TransferError {
    match () {
        () if error.is_parse() => Fault::Auth.because(error),
        () if error.is_incomplete_message() || error.is_closed() || error.is_canceled() => {
            Fault::Closed.because(error)
        }
        () => Fault::Read.because(error),
    }
}

/// Octets of a whole body.
pub(super) const fn length(octets: u64) -> u64 {
    octets.saturating_add(HASH)
}
