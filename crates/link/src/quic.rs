//! The only door to the QUIC stack: what the other rooms may use of it, under one name.
//! Used by `masque`, `onion` and `relay`, so that another stack, or a driver of our own, is exchanged here alone.

pub use quinn::{
    AcceptBi, AcceptUni, AckFrequencyConfig, ApplicationClose, AsyncUdpSocket, Chunk, ClientConfig,
    ClosedStream, ConnectError, Connecting, Connection, ConnectionClose, ConnectionError,
    ConnectionId, ConnectionIdGenerator, ConnectionStats, Dir, EcnCodepoint, Endpoint,
    EndpointConfig, IdleTimeout, Incoming, MtuDiscoveryConfig, OpenBi, OpenUni, PathStats,
    ReadDatagram, ReadError, ReadExactError, ReadToEndError, RecvStream, ResetError, RetryError,
    Runtime, SendDatagram, SendDatagramError, SendStream, ServerConfig, Side, StoppedError,
    StreamId, TokioRuntime, TransportConfig, TransportErrorCode, UdpPoller, VarInt,
    VarIntBoundsExceeded, WriteError, Written, congestion, crypto,
};
