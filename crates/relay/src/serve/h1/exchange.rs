//! One request of an HTTP/1.1 client with its answer, until the connection itself is the tunnel.
//! Made by the session, used by the handler. Dropped without an answer, it closes the connection.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use hoplite_http::DatagramSink;
use hoplite_wire::ResponseHead;
use http::{HeaderValue, Response, header};
use http_body_util::Empty;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::{sync::oneshot, time::timeout};

use super::{
    Open, Stream,
    flow::Flow,
    head,
    tunnel::{DataReceiver, DataSender, Tunnel},
};
use crate::{
    config::Limits,
    serve::{exchange, splice::Broken},
};

type Answer = oneshot::Sender<Response<Empty<Bytes>>>;

/// A request and its answer.
pub(crate) struct Exchange {
    state: State,
    /// It came as a GET that is to be upgraded.
    upgraded: bool,
    /// It brought content, which is not read.
    content: bool,
    open: Open,
    /// How long the client may take to read the answer.
    patience: Duration,
    /// What may wait for the client of a UDP tunnel, in octets.
    bound: usize,
}

enum State {
    Asked(Answer, OnUpgrade),
    /// What came right behind the head goes first.
    Open(Arc<Tunnel>, Bytes),
    Over,
}

impl Exchange {
    pub(super) fn new(answer: Answer, upgrade: OnUpgrade, open: Open, limits: &Limits) -> Self {
        Self {
            state: State::Asked(answer, upgrade),
            upgraded: false,
            content: false,
            open,
            patience: limits.handshake,
            bound: limits.datagram_buffer,
        }
    }

    /// Remembers what the answer depends on.
    pub(super) fn describe(self, upgraded: bool, content: bool) -> Self {
        Self {
            upgraded,
            content,
            ..self
        }
    }

    fn split(self) -> (DataReceiver, DataSender) {
        let (tunnel, first) = match self.state {
            State::Open(tunnel, first) => (Some(tunnel), first),
            State::Asked(..) | State::Over => (None, Bytes::new()),
        };
        (
            DataReceiver::new(tunnel.clone(), first),
            DataSender::new(tunnel),
        )
    }
}

impl exchange::Exchange for Exchange {
    type Up = DataReceiver;
    type Down = DataSender;
    type Flow = Flow;

    async fn gone(&mut self) {
        match &mut self.state {
            State::Asked(answer, _) => answer.closed().await,
            State::Open(..) | State::Over => std::future::pending().await,
        }
    }

    async fn respond(&mut self, head: &ResponseHead) -> Result<(), Broken> {
        let State::Asked(answer, upgrade) = std::mem::replace(&mut self.state, State::Over) else {
            return Err(Broken);
        };
        let response = match self.upgraded {
            true => head::write(&head::switching(head)),
            false => head::write(head),
        };
        answer.send(response.ok_or(Broken)?).map_err(|_| Broken)?;
        let upgraded = timeout(self.patience, upgrade).await;
        let upgraded = upgraded.map_err(|_| Broken)?.map_err(|_| Broken)?;
        let parts = upgraded.downcast::<TokioIo<Stream>>();
        let parts = parts.map_err(|_| Broken)?;
        let tunnel = Tunnel::new(parts.io.into_inner(), self.open.clone());
        self.state = State::Open(Arc::new(tunnel), parts.read_buf);
        Ok(())
    }

    async fn refuse(self, head: &ResponseHead) -> Result<(), Broken> {
        let State::Asked(answer, _) = self.state else {
            return Err(Broken);
        };
        let mut response = head::write(head).ok_or(Broken)?;
        if self.content {
            let close = HeaderValue::from_static("close");
            response.headers_mut().insert(header::CONNECTION, close);
        }
        answer.send(response).map_err(|_| Broken)
    }

    fn stream(self) -> (DataReceiver, DataSender) {
        self.split()
    }

    fn datagrams(self, sink: Arc<dyn DatagramSink>) -> Flow {
        let bound = self.bound;
        let (receiver, sender) = self.split();
        Flow::new(sender, receiver, sink, bound)
    }
}
