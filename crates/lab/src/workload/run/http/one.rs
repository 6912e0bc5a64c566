//! HTTP/1.1 as a client: one fetch at a time on a connection, kept alive. RFC 9112; hyper does the work.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::{Fetch, body::Check, connection::Task, finish, headed, take};
use crate::workload::run::{TransferError, patience::patiently, record::Record, trouble::Fault};

/// A connection.
#[derive(Debug)]
pub(super) struct One {
    requests: SendRequest<Empty<Bytes>>,
    stall: Duration,
    _driver: Arc<Task>,
}

impl One {
    pub(super) async fn open(stream: TcpStream, stall: Duration) -> Result<Self, TransferError> {
        let (requests, connection) = handshake(TokioIo::new(stream)).await.map_err(of)?;
        Ok(Self {
            requests,
            stall,
            _driver: Task::drive("HTTP/1.1", connection),
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
        let ready = patiently(limit, self.requests.ready()).await?;
        ready.map_err(of)?;
        let answer = self.requests.send_request(request);
        record.phases.command = Some(record.clock.us());
        let answer = patiently(limit, answer).await?.map_err(of)?;
        headed(&answer, record)?;
        let (mut body, mut check) = (answer.into_body(), Check::new(fetch.octets));
        while let Some(frame) = patiently(limit, body.frame()).await? {
            let frame = frame.map_err(of)?;
            if let Some(data) = frame.data_ref() {
                take(&mut check, data, record)?;
            }
        }
        finish(check, record)
    }
}

/// What hyper reports.
fn of(error: hyper::Error) -> TransferError {
    match () {
        () if error.is_parse() => Fault::Auth.because(error),
        () if error.is_incomplete_message() || error.is_closed() || error.is_canceled() => {
            Fault::Closed.because(error)
        }
        () => Fault::Read.because(error),
    }
}
