//! HTTP/2 as a client: streams of one connection, with windows as large as browsers have them. RFC 9113; the crate `h2` does the work.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use h2::client::{Builder, SendRequest};
use tokio::{net::TcpStream, time::timeout};
use tokio_rustls::client::TlsStream;

use super::{Fetch, body::Check, connection::Task, finish, head, take};
use crate::workload::{
    TransferError,
    record::Record,
    trouble::{Fault, stalled},
};

/// Octets that a stream may have on their way: what Chromium grants.
const STREAM_WINDOW: u32 = 6 << 20;

/// The same for the connection.
const CONNECTION_WINDOW: u32 = 15 << 20;

/// A connection.
#[derive(Clone)]
pub(super) struct Two {
    requests: SendRequest<Bytes>,
    stall: Duration,
    _driver: Arc<Task>,
}

impl Two {
    pub(super) async fn open(
        stream: TlsStream<TcpStream>,
        stall: Duration,
    ) -> Result<Self, TransferError> {
        let mut builder = Builder::new();
        builder.initial_window_size(STREAM_WINDOW);
        builder.initial_connection_window_size(CONNECTION_WINDOW);
        let opening = timeout(stall, builder.handshake(stream)).await;
        let opening = opening.map_err(|_| stalled(stall))?;
        let (requests, connection) = opening.map_err(|error| of(&error))?;
        let driver = Task::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "an HTTP/2 connection ended early");
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
        let uri = format!("https://{}{}", fetch.authority, fetch.path);
        let request = http::Request::get(uri).body(());
        let request = request.map_err(|why| Fault::Misc.because(why))?;
        let limit = self.stall;
        let late = |_| stalled(limit);
        let ready = timeout(limit, self.requests.clone().ready()).await;
        let mut requests = ready.map_err(late)?.map_err(|error| of(&error))?;
        let sent = requests.send_request(request, true);
        let (answer, _) = sent.map_err(|error| of(&error))?;
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
        while let Some(data) = timeout(limit, body.data()).await.map_err(late)? {
            let data = data.map_err(|error| of(&error))?;
            take(&mut check, &data, record)?;
            let released = body.flow_control().release_capacity(data.len());
            released.map_err(|error| of(&error))?;
        }
        finish(check, record)
    }
}

/// What h2 reports.
fn of(error: &h2::Error) -> TransferError {
    match error.is_io() || error.is_go_away() || error.is_reset() {
        true => Fault::Closed.because(error),
        false => Fault::Read.because(error),
    }
}
