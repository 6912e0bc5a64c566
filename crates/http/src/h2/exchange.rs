//! One request with its answer, from either end, until it goes on as octets or as datagrams.
//! Dropped before that, it is reset.

use std::{
    fmt,
    future::{Future, pending, poll_fn},
    sync::Arc,
};

use ::h2::{RecvStream, SendStream, client::ResponseFuture, server::SendResponse};
use bytes::{Bytes, BytesMut};
use hoplite_wire::message::ResponseHead;

use super::{
    DataReceiver, DataSender, Flow, H2Error, H2Stream,
    head::{read_response, response},
};
use crate::DatagramSink;

/// A request and its answer.
pub struct Exchange {
    state: State,
    recv: Option<RecvStream>,
    max_payload: usize,
}

enum State {
    /// A client waits for the answer.
    Asked(Box<ResponseFuture>, SendStream<Bytes>),
    /// A server has to answer.
    Asking(SendResponse<Bytes>),
    /// Answered; octets may go both ways.
    Open(SendStream<Bytes>),
    /// Answered, and over.
    Over,
}

impl Exchange {
    pub(super) fn asked(
        answer: ResponseFuture,
        send: SendStream<Bytes>,
        max_payload: usize,
    ) -> Self {
        Self {
            state: State::Asked(Box::new(answer), send),
            recv: None,
            max_payload,
        }
    }

    pub(super) fn asking(
        answer: SendResponse<Bytes>,
        recv: RecvStream,
        max_payload: usize,
    ) -> Self {
        Self {
            state: State::Asking(answer),
            recv: Some(recv),
            max_payload,
        }
    }

    /// The client waits for the final response.
    ///
    /// # Errors
    /// The stream was reset or the connection has failed.
    pub async fn response(&mut self) -> Result<ResponseHead, H2Error> {
        let State::Asked(answer, _) = &mut self.state else {
            return Err(H2Error::State);
        };
        let (parts, recv) = answer.await?.into_parts();
        if let State::Asked(_, send) = std::mem::replace(&mut self.state, State::Over) {
            self.state = State::Open(send);
        }
        self.recv = Some(recv);
        read_response(&parts)
    }

    /// The server answers and leaves the stream open.
    ///
    /// # Errors
    /// The client has gone.
    pub fn respond(
        &mut self,
        head: &ResponseHead,
    ) -> impl Future<Output = Result<(), H2Error>> + Send + use<> {
        let answered = self.answer(head, false);
        async { answered }
    }

    /// The server answers and ends the stream.
    ///
    /// # Errors
    /// The client has gone.
    pub fn refuse(
        mut self,
        head: &ResponseHead,
    ) -> impl Future<Output = Result<(), H2Error>> + Send + use<> {
        let answered = self.answer(head, true);
        async { answered }
    }

    /// Resolves when the client has broken off the request before it was answered, or with the connection.
    pub async fn gone(&mut self) {
        match &mut self.state {
            State::Asking(answer) => drop(poll_fn(|cx| answer.poll_reset(cx)).await),
            _ => pending().await,
        }
    }

    fn answer(&mut self, head: &ResponseHead, over: bool) -> Result<(), H2Error> {
        let State::Asking(answer) = &mut self.state else {
            return Err(H2Error::State);
        };
        let send = answer.send_response(response(head)?, over)?;
        self.state = match over {
            true => State::Over,
            false => State::Open(send),
        };
        Ok(())
    }

    /// A client sends a whole body behind the head of its request and ends the sending side; at most some tens of kilobytes,
    /// which wait here for the window.
    ///
    /// # Errors
    /// The stream was reset or the connection has failed.
    pub fn send(&mut self, content: Bytes) -> Result<(), H2Error> {
        match &mut self.state {
            State::Asked(_, send) => Ok(send.send_data(content, true)?),
            _ => Err(H2Error::State),
        }
    }

    /// The server answers with a whole body, of the same size, and ends the stream.
    ///
    /// # Errors
    /// The client has gone.
    pub fn respond_with(&mut self, head: &ResponseHead, content: Bytes) -> Result<(), H2Error> {
        self.answer(head, false)?;
        match &mut self.state {
            State::Open(send) => Ok(send.send_data(content, true)?),
            _ => Err(H2Error::State),
        }
    }

    /// Reads the body to its end; `None` if it is larger than `limit` octets. Nothing can be read behind it.
    ///
    /// # Errors
    /// The stream was reset or the connection has failed.
    pub async fn content(&mut self, limit: usize) -> Result<Option<Bytes>, H2Error> {
        let mut receiver = DataReceiver::new(self.recv.take());
        let mut content = BytesMut::new();
        while let Some(part) = poll_fn(|cx| receiver.poll_data(cx)).await? {
            if content.len() + part.len() > limit {
                return Ok(None);
            }
            content.extend_from_slice(&part);
        }
        Ok(Some(content.freeze()))
    }

    /// The two directions, once the request is answered; before that both fail.
    pub fn split(self) -> (DataSender, DataReceiver) {
        let send = match self.state {
            State::Open(send) => Some(send),
            _ => None,
        };
        (DataSender::new(send), DataReceiver::new(self.recv))
    }

    /// A TCP flow. The client may call it before the response, which is read by [`hoplite_overlay::Asked::poll_answer`] then; the
    /// server calls it after answering.
    pub fn into_stream(self) -> H2Stream {
        let (send, answer) = match self.state {
            State::Asked(answer, send) => (Some(send), Some(answer)),
            State::Open(send) => (Some(send), None),
            _ => (None, None),
        };
        let receiver = DataReceiver::new(self.recv);
        H2Stream::new(DataSender::new(send), receiver, answer)
    }

    /// A UDP flow, once the request is answered: `sink` gets the peer's payloads.
    pub fn datagrams(self, sink: Arc<dyn DatagramSink>) -> Flow {
        let max_payload = self.max_payload;
        let (sender, receiver) = self.split();
        Flow::new(sender, receiver, sink, max_payload)
    }
}

impl fmt::Debug for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.state {
            State::Asked(..) => "Exchange(asked)",
            State::Asking(_) => "Exchange(asking)",
            State::Open(_) => "Exchange(open)",
            State::Over => "Exchange(over)",
        })
    }
}
