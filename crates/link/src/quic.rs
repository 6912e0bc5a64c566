//! The door to the QUIC stack: what other rooms use of it comes from here, so that the stack can be replaced behind it.

pub use quinn::{
    AcceptBi, Chunk, ClosedStream, Connection, ConnectionError, Endpoint, Incoming, ReadError,
    RecvStream, SendDatagram, SendDatagramError, SendStream, StreamId, TransportConfig, VarInt,
    WriteError,
};
