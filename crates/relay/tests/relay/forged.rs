//! Initial packets of QUIC with forged source addresses: each is what a real client would send first, with keys and ids of its own, and nobody
//! will answer what comes back. RFC 9000 §21.1.1.1 (handshake denial of service).

use std::{
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket},
    sync::Arc,
    time::Instant,
};

use hoplite_crypto::{Pin, Trust, client_tls};
use quinn_proto::{
    ClientConfig, Endpoint, EndpointConfig, TransportConfig, crypto::rustls::QuicClientConfig,
};
use quinn_udp::{Transmit, UdpSocketState};

/// What `count` clients that want this protocol would send first, each its datagrams.
pub(crate) fn initials_for(
    alpn: &[u8],
    relay: SocketAddr,
    pin: Pin,
    count: usize,
) -> Vec<Vec<Vec<u8>>> {
    let tls = client_tls(&Trust::Pins(vec![pin]), &[alpn]).expect("TLS");
    let tls: QuicClientConfig = tls.try_into().expect("QUIC");
    let mut config = ClientConfig::new(Arc::new(tls));
    config.transport_config(Arc::new(TransportConfig::default()));
    let mut endpoint = Endpoint::new(Arc::new(EndpointConfig::default()), None, false, None);
    let mut one = || {
        let now = Instant::now();
        let dialled = endpoint.connect(now, config.clone(), relay, "localhost");
        let (_, mut connection) = dialled.expect("begun");
        let (mut datagrams, mut buffer) = (Vec::new(), Vec::new());
        while connection.poll_transmit(now, 1, &mut buffer).is_some() {
            datagrams.push(std::mem::take(&mut buffer));
        }
        datagrams
    };
    (0..count).map(|_| one()).collect()
}

/// A socket that sends from any address of 127.0.0.0/8.
pub(crate) struct Forger {
    socket: UdpSocket,
    state: UdpSocketState,
    relay: SocketAddr,
}

impl Forger {
    pub(crate) fn new(relay: SocketAddr) -> Self {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).expect("a socket");
        let state = UdpSocketState::new((&socket).into()).expect("a socket");
        Self {
            socket,
            state,
            relay,
        }
    }

    /// Sends all datagrams of one client as if from `source`.
    pub(crate) fn send(&self, source: Ipv4Addr, datagrams: &[Vec<u8>]) -> io::Result<()> {
        for contents in datagrams {
            let transmit = Transmit {
                destination: self.relay,
                ecn: None,
                contents,
                segment_size: None,
                src_ip: Some(IpAddr::V4(source)),
            };
            self.state.try_send((&self.socket).into(), &transmit)?;
        }
        Ok(())
    }
}

/// The address of the client with this number.
pub(crate) fn address(number: usize) -> Ipv4Addr {
    let [_, b, c, d] = u32::try_from(number + 0x100).unwrap_or(0x100).to_be_bytes();
    Ipv4Addr::new(127, b, c, d)
}
