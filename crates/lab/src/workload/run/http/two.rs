//! HTTP/2 as a client: streams of one connection, with windows as large as browsers have them. RFC 9113; the crate `h2` does the work.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use h2::client::{Builder, SendRequest};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use super::{
    CONNECTION_WINDOW, Fetch, STREAM_WINDOW, body::Check, connection::Task, finish, headed, take,
};
use crate::workload::run::{TransferError, patience::patiently, record::Record, trouble::Fault};

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
        let opening = patiently(stall, builder.handshake(stream)).await?;
        let (requests, connection) = opening.map_err(of)?;
        Ok(Self {
            requests,
            stall,
            _driver: Task::drive("HTTP/2", connection),
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
        let ready = patiently(limit, self.requests.clone().ready()).await?;
        let mut requests = ready.map_err(of)?;
        let (answer, _) = requests.send_request(request, true).map_err(of)?;
        record.phases.command = Some(record.clock.us());
        let answer = patiently(limit, answer).await?.map_err(of)?;
        headed(&answer, record)?;
        let (mut body, mut check) = (answer.into_body(), Check::new(fetch.octets));
        while let Some(data) = patiently(limit, body.data()).await? {
            let data = data.map_err(of)?;
            take(&mut check, &data, record)?;
            let released = body.flow_control().release_capacity(data.len());
            released.map_err(of)?;
        }
        finish(check, record)
    }
}

/// What h2 reports.
fn of(error: h2::Error) -> TransferError {
    match error.is_io() || error.is_go_away() || error.is_reset() {
        true => Fault::Closed.because(error),
        false => Fault::Read.because(error),
    }
}
