//! One request and its response, at either end.
//! It becomes a byte stream, two halves, or a UDP flow.
//! RFC 9114 §4.1.

use std::{
    future::poll_fn,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::{Bytes, BytesMut};
use hoplite_wire::{RequestHead, ResponseHead, h3::Code, message::HeadError};

use super::{DataReceiver, DataSender, DatagramSink, Flow, H3Error, H3Stream};

/// A request that is under way. Dropped, both directions are reset.
#[derive(Debug)]
pub struct Exchange {
    pub(super) sender: DataSender,
    pub(super) receiver: DataReceiver,
}

impl Exchange {
    pub(super) fn new(sender: DataSender, receiver: DataReceiver) -> Self {
        Self { sender, receiver }
    }

    /// The id of the stream.
    pub fn id(&self) -> u64 {
        self.receiver.id()
    }

    /// The client's end: waits for the final response; informational ones are skipped.
    ///
    /// # Errors
    /// The peer reset the stream or broke a rule, or the connection is lost.
    pub async fn response(&mut self) -> Result<ResponseHead, H3Error> {
        self.receiver.response().await
    }

    /// The server's end: sends the response, or an informational one before it.
    ///
    /// # Errors
    /// The peer stopped the stream, or the connection is lost.
    pub async fn respond(&mut self, head: &ResponseHead) -> Result<(), H3Error> {
        if !head.is_success() {
            self.receiver.tunnel = false;
        }
        self.sender.write_head(&head.encode()).await
    }

    /// The server's end: sends a response without a body and reads no more.
    ///
    /// # Errors
    /// The peer stopped the stream, or the connection is lost.
    pub async fn refuse(mut self, head: &ResponseHead) -> Result<(), H3Error> {
        self.respond(head).await?;
        self.sender.finish().await?;
        self.receiver.stop(Code::NO_ERROR);
        Ok(())
    }

    /// Sends a whole body behind the head, and ends the sending side.
    ///
    /// # Errors
    /// The peer stopped the stream, or the connection is lost.
    pub async fn send(&mut self, content: Bytes) -> Result<(), H3Error> {
        self.receiver.ticket().streams(true);
        self.sender.write(content).await?;
        self.sender.finish().await
    }

    /// Reads the body to its end; `None` if it is larger than `limit` octets.
    ///
    /// # Errors
    /// The peer reset the stream or broke a rule, or the connection is lost.
    pub async fn content(&mut self, limit: usize) -> Result<Option<Bytes>, H3Error> {
        let mut content = BytesMut::new();
        while let Some(part) = self.receiver.data().await? {
            if content.len() + part.len() > limit {
                return Ok(None);
            }
            content.extend_from_slice(&part);
        }
        Ok(Some(content.freeze()))
    }

    /// The server's end: sends a response with a whole body, and reads no more.
    ///
    /// # Errors
    /// The peer stopped the stream, or the connection is lost.
    pub async fn answer(mut self, head: &ResponseHead, content: Bytes) -> Result<(), H3Error> {
        self.respond(head).await?;
        self.send(content).await?;
        self.receiver.stop(Code::NO_ERROR);
        Ok(())
    }

    /// The server's end: resolves when the client has broken off the request, by a reset of its own direction or by stopping ours, or with the connection.
    pub async fn gone(&mut self) {
        tokio::select! {
            _ = self.sender.stopped() => {}
            () = self.receiver.reset_by_peer() => {}
        }
    }

    /// Both halves.
    pub fn split(self) -> (DataSender, DataReceiver) {
        self.receiver.refuse_datagrams();
        (self.sender, self.receiver)
    }

    /// A byte stream, for CONNECT. The client may call it before the response, which is read by [`hoplite_overlay::Asked::poll_answer`] then.
    pub fn into_stream(self) -> H3Stream {
        let (sender, receiver) = self.split();
        H3Stream { sender, receiver }
    }

    /// A UDP flow, for CONNECT-UDP: payloads that arrive go to `sink`, those that came early at once.
    /// The client may call it before the response, and then gets that from [`Flow::response`]; the server calls it after responding.
    pub fn datagrams(self, sink: Arc<dyn DatagramSink>) -> Flow {
        Flow::new(self.sender, self.receiver, sink)
    }

    /// Ends both directions at once with `code`.
    pub fn reset(mut self, code: Code) {
        self.sender.reset(code);
        self.receiver.stop(code);
    }
}

impl DataReceiver {
    /// The final response.
    pub(super) async fn response(&mut self) -> Result<ResponseHead, H3Error> {
        poll_fn(|cx| self.poll_response(cx)).await
    }

    /// The final response, as soon as it is there. To be polled until it is.
    pub(super) fn poll_response(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<ResponseHead, H3Error>> {
        loop {
            let Some(section) = ready!(self.poll_head(cx))? else {
                let error = self.refuse(Code::MESSAGE_ERROR, "the stream ends before the response");
                return Poll::Ready(Err(error));
            };
            if let Some(head) = self.read_response(&section)? {
                return Poll::Ready(Ok(head));
            }
        }
    }

    /// The head of a response, unless it is an informational one.
    fn read_response(&mut self, section: &[u8]) -> Result<Option<ResponseHead>, H3Error> {
        match ResponseHead::decode(section, self.max_field_section()) {
            // "HTTP/3 does not support […] the 101 (Switching Protocols) informational status code."
            Ok(head) if head.status == 101 => {
                Err(self.refuse(Code::MESSAGE_ERROR, "switching protocols"))
            }
            Ok(head) if head.is_informational() => Ok(None),
            Ok(head) => {
                self.heads_end();
                self.tunnel &= head.is_success();
                Ok(Some(head))
            }
            Err(error) => Err(self.refuse_head(error)),
        }
    }

    /// The server's end: the head of the request; `None` when the stream ends before it.
    pub(super) async fn request(
        &mut self,
    ) -> Result<Option<Result<RequestHead, HeadError>>, H3Error> {
        let Some(section) = poll_fn(|cx| self.poll_head(cx)).await? else {
            return Ok(None);
        };
        let head = RequestHead::decode(&section, self.max_field_section());
        self.heads_end();
        self.tunnel = head.as_ref().is_ok_and(|head| head.method == "CONNECT");
        Ok(Some(head))
    }

    /// A head that cannot be read fails the connection, one that breaks a rule the stream.
    pub(super) fn refuse_head(&mut self, error: HeadError) -> H3Error {
        match error {
            HeadError::Decompression => self.fail(
                Code::QPACK_DECOMPRESSION_FAILED,
                "an unreadable field section",
            ),
            HeadError::TooLarge => {
                self.refuse(Code::EXCESSIVE_LOAD, "a field section above the limit")
            }
            HeadError::Malformed(rule) => self.refuse(Code::MESSAGE_ERROR, rule),
        }
    }
}
