//! A client of every version of HTTP, so that a test says once what holds for all of them. HTTP/1.1 has no client of ours: its bytes are
//! written here, one request a connection.

use std::{any::Any, fmt, sync::Arc};

use bytes::{Bytes, BytesMut};
use hoplite_http::{ByteStream, DatagramSink, Exchange, Flow, HttpVersion, Session};
use hoplite_overlay::Batch;
use hoplite_wire::{
    RequestHead,
    capsule::{self, CapsuleReader},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    sync::{Mutex, mpsc},
};

use crate::soon;

/// All of them.
pub const ALL: [HttpVersion; 3] = [HttpVersion::H3, HttpVersion::H2, HttpVersion::H1];

/// Those that clients of ours speak.
pub const SPOKEN_BY_CLIENTS: [HttpVersion; 2] = [HttpVersion::H3, HttpVersion::H2];

/// Bytes both ways.
pub trait Tunnel: AsyncRead + AsyncWrite + fmt::Debug + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + fmt::Debug + Send + Unpin> Tunnel for T {}

/// A client, and what keeps its connection.
#[derive(Debug)]
pub enum Client {
    /// One of ours.
    Ours {
        /// Its connection.
        session: Box<Session>,
        /// What the connection ends without.
        below: Box<dyn Any + Send + Sync>,
    },
    /// HTTP/1.1: one connection, one request.
    Raw(Mutex<Option<Box<dyn Tunnel>>>),
}

/// A request that a client has sent.
#[derive(Debug)]
pub enum Sent {
    /// Over HTTP/3 or HTTP/2.
    Ours(Box<Exchange>),
    /// Over HTTP/1.1.
    Raw(Box<dyn Tunnel>),
}

/// A client's flow of UDP payloads.
#[derive(Debug)]
pub enum Near {
    /// Over HTTP/3 or HTTP/2, and what has arrived.
    Ours(Flow, mpsc::UnboundedReceiver<Bytes>),
    /// Over HTTP/1.1: capsules, and bytes of which not all of one has come.
    Raw(Box<dyn Tunnel>, CapsuleReader, BytesMut),
}

impl Client {
    /// Over HTTP/3 or HTTP/2; `below` lives as long as it does.
    pub fn new(session: Session, below: impl Any + Send + Sync) -> Self {
        Self::Ours {
            session: Box::new(session),
            below: Box::new(below),
        }
    }

    /// Over HTTP/1.1.
    pub fn raw(stream: impl Tunnel + 'static) -> Self {
        Self::Raw(Mutex::new(Some(Box::new(stream))))
    }

    /// Sends the head of a request.
    ///
    /// # Panics
    /// The connection takes none.
    pub async fn send(&self, head: &RequestHead) -> Sent {
        match self {
            Self::Ours { session, .. } => {
                Sent::Ours(Box::new(soon(session.request(head)).await.expect("sent")))
            }
            Self::Raw(stream) => {
                let mut stream = stream.lock().await.take().expect("one request");
                let token = head.protocol.as_deref().unwrap_or_default();
                let text = match &head.path {
                    Some(path) => format!(
                        "GET {path} HTTP/1.1\r\nHost: relay.test\r\nConnection: Upgrade\r\nUpgrade: {token}\r\n\r\n"
                    ),
                    None => format!("CONNECT {0} HTTP/1.1\r\nHost: {0}\r\n\r\n", head.authority),
                };
                stream.write_all(text.as_bytes()).await.expect("sent");
                stream.flush().await.expect("sent");
                Sent::Raw(stream)
            }
        }
    }
}

impl Sent {
    /// The answer's status, and a field of it whose name is given in lower case.
    ///
    /// # Panics
    /// There is none.
    pub async fn response(&mut self, field: &str) -> (u16, Option<Vec<u8>>) {
        match self {
            Self::Ours(exchange) => {
                let head = soon(exchange.response()).await.expect("an answer");
                (head.status, head.header(field).map(<[u8]>::to_vec))
            }
            Self::Raw(stream) => {
                let mut text = Vec::new();
                while !text.ends_with(b"\r\n\r\n") {
                    text.push(soon(stream.read_u8()).await.expect("an answer"));
                }
                let text = String::from_utf8(text).expect("text");
                let status = text.get(9..12).and_then(|code| code.parse().ok());
                let lines = text.lines().filter_map(|line| line.split_once(": "));
                let value = lines.filter(|(name, _)| name.eq_ignore_ascii_case(field));
                let value = value.map(|(_, value)| value.into()).next();
                (status.expect("a status"), value)
            }
        }
    }

    /// As a program of ours holds it.
    ///
    /// # Panics
    /// It is of HTTP/1.1.
    pub fn into_byte_stream(self) -> ByteStream {
        match self {
            Self::Ours(exchange) => exchange.into_stream().expect("a client"),
            Self::Raw(_) => unreachable!("HTTP/1.1 has no client of ours"),
        }
    }

    /// The bytes of its tunnel.
    pub fn into_stream(self) -> Box<dyn Tunnel> {
        match self {
            Self::Ours(exchange) => Box::new(exchange.into_stream().expect("a client")),
            Self::Raw(stream) => stream,
        }
    }

    /// The payloads of its tunnel.
    pub fn into_flow(self) -> Near {
        match self {
            Self::Ours(exchange) => {
                let (flow, payloads) = flow(*exchange);
                Near::Ours(flow, payloads)
            }
            Self::Raw(stream) => Near::Raw(stream, CapsuleReader::default(), BytesMut::new()),
        }
    }
}

/// Keeps what arrives.
struct Kept(mpsc::UnboundedSender<Bytes>);

impl DatagramSink for Kept {
    fn push(&self, payload: Bytes) {
        // Nobody reads it any more: it is lost, as datagrams may be.
        self.0.send(payload).ok();
    }

    fn flush(&self) {}
}

/// A flow, and what arrives on it.
pub fn flow(exchange: Exchange) -> (Flow, mpsc::UnboundedReceiver<Bytes>) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let sink = Arc::new(Kept(sender));
    (exchange.datagrams(sink), receiver)
}

impl Near {
    /// Sends all of it.
    ///
    /// # Panics
    /// There is no room, or no flow any more.
    pub async fn send(&mut self, batch: Batch<'_>) {
        match self {
            Self::Ours(flow, _) => {
                let sent = flow.send(batch);
                assert_eq!(sent.accepted, batch.payloads().count());
            }
            Self::Raw(stream, ..) => {
                let mut capsules = BytesMut::new();
                for payload in batch.payloads() {
                    capsule::write_udp(&mut capsules, payload);
                }
                stream.write_all(&capsules).await.expect("sent");
                stream.flush().await.expect("sent");
            }
        }
    }

    /// The next payload.
    ///
    /// # Panics
    /// None comes.
    pub async fn receive(&mut self) -> Bytes {
        match self {
            Self::Ours(_, payloads) => soon(payloads.recv()).await.expect("arrives"),
            Self::Raw(stream, capsules, read) => loop {
                let mut bytes = std::mem::take(read).freeze();
                let value = capsules.next_datagram(&mut bytes);
                read.extend_from_slice(&bytes);
                match value {
                    Some(value) => return value.slice(1..),
                    None => assert!(soon(stream.read_buf(read)).await.expect("open") > 0),
                }
            },
        }
    }
}
